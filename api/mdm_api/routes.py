"""Operations as Starlette routes: one per path, which knows all its methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mdm_api.call import Call
from mdm_api.operations import Operation
from mdm_api.services import Services
from mdm_api.throttle import admit_counted
from mdm_gitops.errors import MdmError


class PathEndpoint:
    """The operations of one path, by method. HEAD is GET without the body, which the server drops."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = dict(operations)
        if "GET" in self._operations:
            self._operations.setdefault("HEAD", self._operations["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        services: Services = request.app.state.services
        operation = self._operations.get(request.method)
        if operation is None:
            # Whoever may not come in learns nothing of what there is.
            some = next(iter(self._operations.values()))
            call = Call(request=request, operation=some, services=services, parameters={})
            await admit_counted(call)
            raise MdmError(
                f"{request.method[:20]} is not possible here",
                code="METHOD_NOT_ALLOWED",
                allow=sorted(self._operations),
            )
        request.scope["mdm.route"] = operation.path
        call = Call(request=request, operation=operation, services=services, parameters={})
        await admit_counted(call)
        call.read_query()
        return await operation.handler(call)


def routes_of(operations: Iterable[Operation]) -> list[Route]:
    """Return the routes; a path with a fixed segment stands before one with a name there."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        methods = by_path.setdefault(operation.path, {})
        assert operation.method not in methods, f"{operation.method} {operation.path} stands twice"
        methods[operation.method] = operation
    ordered = sorted(by_path.items(), key=lambda item: _specificity(item[0]))
    return [
        Route(next(iter(methods.values())).route_path, PathEndpoint(methods))
        for _, methods in ordered
    ]


def _specificity(path: str) -> tuple[tuple[bool, str], ...]:
    return tuple((segment.startswith("{"), segment) for segment in path.split("/"))
