"""Around every request: its trace id, its numbers, its line in the log, and the net for errors.

The outermost layer of the application. Whatever happens inside becomes an answer here; an error
after the answer has begun closes the connection, because half of an answer must not look whole.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdm_api import throttle
from mdm_api.metrics import Metrics
from mdm_api.problems import as_mdm_error, problem_response
from mdm_gitops.logs import new_trace_id, trace_as

_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-")
_ACCESS: Final = logging.getLogger("mdm_api.access")
_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_SECURITY: Final = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


class Observed:
    """ASGI middleware; puts ``mdm.trace_id`` into the scope and expects ``mdm.route`` in it."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, problem_base_url: str | None) -> None:
        self.app = app
        self._metrics = metrics
        self._problem_base_url = problem_base_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["mdm.trace_id"] = trace_id_of(scope)
        trace_as(scope["mdm.trace_id"])  # the server gives each request a task of its own
        started, status = time.perf_counter(), 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [*_SECURITY, *throttle.headers_of(scope)]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except Exception as error:
            own = as_mdm_error(error, trace_id=scope["mdm.trace_id"])
            if status:
                raise
            base = self._problem_base_url
            answer = problem_response(own, trace_id=scope["mdm.trace_id"], base_url=base)
            await answer(scope, receive, send_noting)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # Only templates become labels: a path is the caller's text and has no end of values.
        route = scope.get("mdm.route", "unmatched")
        method = scope["method"] if route != "unmatched" else "-"
        self._metrics.note_request(method=method, route=route, status=status, seconds=seconds)
        if route not in _QUIET and _ACCESS.isEnabledFor(logging.INFO):
            _ACCESS.info("request", extra=_record(scope, route, status, seconds))


def trace_id_of(scope: Scope) -> str:
    """Return the trace id of a valid ``traceparent``, else a new one."""
    for name, value in scope["headers"]:
        if name == b"traceparent" and (found := _TRACEPARENT.match(value)):
            return found[1].decode()
    return new_trace_id()


def _record(scope: Scope, route: str, status: int, seconds: float) -> dict[str, object]:
    """What the log tells. No query: filters hold values; no header: they hold keys; no path: what is
    not one of ours may hold anything."""
    return {
        "method": scope["method"],
        "route": route,
        "status": status,
        "durationMs": round(seconds * 1000, 3),
        "rows": scope.get("mdm.rows", 0),
        "principal": scope.get("mdm.principal"),
        "client": (scope.get("client") or ("",))[0],
        "traceId": scope["mdm.trace_id"],
    }
