"""``GET /metrics``: what Prometheus reads.

With several workers each keeps its numbers in files of ``PROMETHEUS_MULTIPROC_DIR``, which ``serve``
sets, and any of them answers for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.responses import Response

from mdm_api.call import Call
from mdm_api.operations import Access, Answer, Operation

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
_POOL_STATS: Final = {
    "pool_size": "Connections of the pool.",
    "pool_available": "Connections of the pool that nobody uses.",
    "requests_waiting": "Requests that wait for a connection.",
}


class Metrics:
    """The numbers of one application; each has its own registry, so tests do not meet."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._by_request: dict[
            tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]
        ] = {}
        self._requests = Counter(
            "mdm_http_requests",
            "Requests by route template.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "mdm_http_request_seconds",
            "Time from the request's head to the end of the answer.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._rows = Counter("mdm_rows_read", "Rows sent in answers.", registry=self._registry)
        self._deliveries = Counter(
            "mdm_webhook_deliveries",
            "Attempts to deliver by outcome: delivered, failed, dead or blocked.",
            ["webhook", "outcome"],
            registry=self._registry,
        )
        self._delivery_seconds = Histogram(
            "mdm_webhook_delivery_seconds",
            "Time until a receiver answered, or did not.",
            ["webhook"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._behind = Gauge(
            "mdm_webhook_behind",
            "Changes of the feed that the subscription has not come to.",
            ["webhook"],
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._pool = {
            name: Gauge(
                f"mdm_database_{name}",
                help_text,
                registry=self._registry,
                multiprocess_mode="livesum",
            )
            for name, help_text in _POOL_STATS.items()
        }

    def note_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        count, observe = self._of_request(method, route, status)
        count()
        observe(seconds)

    def _of_request(
        self, method: str, route: str, status: int
    ) -> tuple[Callable[[], None], Callable[[float], None]]:
        """Return what counts such a request; to look it up by labels costs more than to count."""
        key = (method, route, status)
        found = self._by_request.get(key)
        if found is None:
            found = self._by_request[key] = (
                self._requests.labels(method, route, str(status)).inc,
                self._seconds.labels(method, route).observe,
            )
        return found

    def note_rows(self, number: int) -> None:
        self._rows.inc(number)

    def note_delivery(self, webhook: str, outcome: str, seconds: float) -> None:
        self._deliveries.labels(webhook, outcome).inc()
        self._delivery_seconds.labels(webhook).observe(seconds)

    def note_behind(self, webhook: str, changes: int) -> None:
        self._behind.labels(webhook).set(changes)

    def note_pool(self, stats: dict[str, int]) -> None:
        for name, gauge in self._pool.items():
            gauge.set(stats.get(name, 0))

    def text(self) -> bytes:
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            return generate_latest(self._registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


async def get_metrics(call: Call) -> Response:
    services = call.services
    stats: dict[str, Any] = services.pool.get_stats()
    services.metrics.note_pool(stats)
    return Response(services.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


operations = (
    Operation(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        summary="Numbers for Prometheus",
        tag="Health",
        access=Access.PUBLIC,
        answers={
            200: Answer(
                description="Text exposition format.",
                media_type="text/plain",
                schema={"type": "string"},
            )
        },
    ),
)
