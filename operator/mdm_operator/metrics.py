"""What Prometheus and probes are told by an operator that runs alone: three paths on a port of its own.

``/healthz``: the process answers. ``/readyz``: it works, or stands by for one that does, and has seen
the warehouse. No framework: one line is read, one answer is given.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from mdm_gitops.errors import SettingsError
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import Plan
from mdm_gitops.settings import OperatorSettings
from mdm_operator.reconcile import Listener, Reconciler
from mdm_operator.state import ConditionType, Outcome, Run

_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
_READ_S: Final = 5.0
_MAX_HEAD: Final = 8_192


class Numbers(Listener):
    """Counts what the operator tells; each has its own registry, so tests do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "mdm_gitops_reconcile_duration_seconds",
            "How long a run took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._total = Counter(
            "mdm_gitops_reconcile", "Runs by how they ended.", ["result"], registry=self.registry
        )
        self._drift = Gauge(
            "mdm_gitops_drift",
            "Differences made past the definitions, when last looked at.",
            ["entity"],
            registry=self.registry,
        )
        self._success = Gauge(
            "mdm_gitops_last_success_timestamp_seconds",
            "When the warehouse was last seen to be what the definitions say.",
            registry=self.registry,
        )
        self._locked = Counter(
            "mdm_gitops_lock_retries",
            "Runs put off because another program was applying or a table stayed locked.",
            registry=self.registry,
        )
        self._healed = Counter(
            "mdm_gitops_healed", "Drift that was set right.", registry=self.registry
        )
        self._conditions = Gauge(
            "mdm_gitops_condition",
            "1 where the condition is true.",
            ["type"],
            registry=self.registry,
        )
        self._leads = Gauge(
            "mdm_gitops_leader",
            "1 while this operator is the one that works.",
            registry=self.registry,
        )

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        counts = Counts(item.entity for item in plan.drift)
        self._drift.clear()
        for entity, number in counts.items():
            self._drift.labels(entity).set(number)

    def finished(self, run: Run) -> None:
        self._seconds.observe(run.duration_s)
        self._total.labels(run.outcome.value).inc()
        self._healed.inc(run.healed)
        if run.outcome.is_good:
            self._success.set(time.time())
        if run.outcome is Outcome.IN_SYNC and not run.drift:
            self._drift.clear()
        if run.error is not None and run.error.kind_code == "WAREHOUSE_LOCKED":
            self._locked.inc()

    def text(self, reconciler: Reconciler) -> bytes:
        for kind in ConditionType:
            self._conditions.labels(kind.value).set(reconciler.state.is_true(kind))
        self._leads.set(not reconciler.is_standing_by)
        return generate_latest(self.registry)


@asynccontextmanager
async def serving_numbers(
    numbers: Numbers, reconciler: Reconciler, settings: OperatorSettings
) -> AsyncIterator[int]:
    """Answer on the port of the settings for as long as the context is open; yield the port, or 0.

    Raises:
        SettingsError: the address is taken or is none of this machine.
    """
    if not settings.MetricsPort:
        yield 0
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_S)
            path = head.split(b" ", 2)[1].decode(errors="replace").partition("?")[0]
            writer.write(_answer(path, numbers, reconciler))
            await writer.drain()
        except (TimeoutError, OSError, IndexError, asyncio.IncompleteReadError, ValueError):
            return
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(
            answer, settings.MetricsHost, settings.MetricsPort, limit=_MAX_HEAD
        )
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.MetricsHost}:{settings.MetricsPort}:"
            f" {error.strerror or error}",
            hint="Mdm__Operator__MetricsPort chooses another port, 0 none",
        ) from None
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def _answer(path: str, numbers: Numbers, reconciler: Reconciler) -> bytes:
    match path:
        case "/metrics":
            return _response("200 OK", CONTENT_TYPE_LATEST, numbers.text(reconciler))
        case "/healthz":
            return _response("200 OK", "text/plain", b"ok\n")
        case "/readyz":
            if reconciler.connection is not None and not reconciler.connection.closed:
                what = b"standing by\n" if reconciler.is_standing_by else b"ready\n"
                return _response("200 OK", "text/plain", what)
            return _response("503 Service Unavailable", "text/plain", b"no warehouse yet\n")
        case _:
            return _response("404 Not Found", "text/plain", b"nothing here\n")


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
