"""Around every request: its trace id, its numbers, its line in the log, and the net for errors.

The outermost layer of the application. Whatever happens inside becomes an answer here; an error
after the answer has begun closes the connection, because half of an answer must not look whole.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mdm_api import throttle
from mdm_api.metrics import Metrics
from mdm_api.problems import as_mdm_error, problem_response
from mdm_api.streaming import Streamed
from mdm_gitops.logs import new_trace_id, tell, trace_as

_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-")
_ACCESS: Final = logging.getLogger("mdm_api.access")
_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_SECURITY: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))

Answering = Callable[[Request], Awaitable[Response]]


class Observed:
    """ASGI application; puts ``mdm.trace_id`` into the scope and expects ``mdm.route`` in it.

    *answer* makes the answer to a request, or raises; what is no request is for *others*.
    """

    def __init__(
        self, answer: Answering, *, others: ASGIApp, metrics: Metrics, problem_base_url: str | None
    ) -> None:
        self._answer = answer
        self._others = others
        self._metrics = metrics
        self._problem_base_url = problem_base_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        scope["mdm.trace_id"] = trace_id_of(scope)
        trace_as(scope["mdm.trace_id"])  # the server gives each request a task of its own
        started, status = time.perf_counter(), 0
        try:
            try:
                response = await self._answer(Request(scope, receive, send))
            except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
                response = self._problem(scope, error)
            if isinstance(response, Streamed):
                status = await self._send_stream(response, scope, receive, send)
            else:
                status = response.status_code
                await _with_headers(response, scope)(scope, receive, send)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _problem(self, scope: Scope, error: Exception) -> Response:
        trace_id = scope["mdm.trace_id"]
        own = as_mdm_error(error, trace_id=trace_id)
        return problem_response(own, trace_id=trace_id, base_url=self._problem_base_url)

    async def _send_stream(
        self, response: Streamed, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """Send an answer that is still being made, which can fail before it begins, and after."""
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = (*_SECURITY, *throttle.headers_of(scope))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            await response(scope, receive, send_noting)
        except Exception as error:
            answer = self._problem(scope, error)
            if status:
                raise
            await answer(scope, receive, send_noting)
        return status

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # Only templates become labels: a path is the caller's text and has no end of values.
        route = scope.get("mdm.route", "unmatched")
        method = scope["method"] if route != "unmatched" else "-"
        self._metrics.note_request(method=method, route=route, status=status, seconds=seconds)
        if route not in _QUIET and _ACCESS.isEnabledFor(logging.INFO):
            tell(_ACCESS, "request", _record(scope, route, status, seconds))


def _with_headers(response: Response, scope: Scope) -> Response:
    response.raw_headers.extend(_SECURITY)
    response.raw_headers.extend(throttle.headers_of(scope))
    return response


def trace_id_of(scope: Scope) -> str:
    """Return the trace id of a valid ``traceparent``, else a new one."""
    for name, value in scope["headers"]:
        if name == b"traceparent" and (found := _TRACEPARENT.match(value)):
            return found[1].decode()
    return new_trace_id()


def _record(scope: Scope, route: str, status: int, seconds: float) -> dict[str, Any]:
    """What the log tells. No query: filters hold values; no header: they hold keys; no path: what is
    not one of ours may hold anything."""
    return {
        "method": scope["method"],
        "route": route,
        "status": status,
        "durationMs": int(seconds * 1_000_000) / 1000,
        "rows": scope.get("mdm.rows", 0),
        "principal": scope.get("mdm.principal"),
        "client": (scope.get("client") or ("",))[0],
        "traceId": scope["mdm.trace_id"],
    }
