"""Operations by their paths: one route of Starlette's for all, which finds the operation by segments.

A list of routes is tried one after the other, and each try is a regular expression; with a hundred paths
that was the larger part of what a small request costs. Here a request costs as much as its path is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
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


_End: TypeAlias = tuple[PathEndpoint, tuple[str, ...]]  # with the names of the parameters


@dataclass(slots=True)
class _Node:
    """A segment of paths: what may follow it, and what ends here."""

    fixed: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None  # any one segment
    rest: _End | None = None  # all segments that follow
    end: _End | None = None


_NOTHING: Final[tuple[Match, dict[str, Any]]] = (Match.NONE, {})


class Paths(BaseRoute):
    """All paths of *operations*. A fixed segment goes before a name in its place."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.endpoints = _endpoints(operations)
        self._root = _Node()
        for path, (endpoint, rest) in self.endpoints.items():
            _plant(self._root, path, endpoint, rest=rest)

    def matches(self, scope: Scope) -> tuple[Match, dict[str, Any]]:
        if scope["type"] != "http":
            return _NOTHING
        found = _find(self._root, scope["path"])
        if found is None:
            return _NOTHING
        endpoint, parameters = found
        return Match.FULL, {"endpoint": endpoint, "path_params": parameters}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["endpoint"](scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)


def routes_of(operations: Iterable[Operation]) -> list[BaseRoute]:
    return [Paths(operations)]


def _endpoints(operations: Iterable[Operation]) -> dict[str, tuple[PathEndpoint, str]]:
    """Return, by path, the endpoint and the name of the parameter that may hold slashes."""
    by_path: dict[str, dict[str, Operation]] = {}
    rests: dict[str, str] = {}
    for operation in operations:
        methods = by_path.setdefault(operation.path, {})
        assert operation.method not in methods, f"{operation.method} {operation.path} stands twice"
        methods[operation.method] = operation
        rests[operation.path] = operation.rest
    return {path: (PathEndpoint(methods), rests[path]) for path, methods in by_path.items()}


def _plant(node: _Node, path: str, endpoint: PathEndpoint, *, rest: str) -> None:
    names: list[str] = []
    for segment in path.split("/"):
        if not segment.startswith("{"):
            node = node.fixed.setdefault(segment, _Node())
            continue
        names.append(segment[1:-1])
        if names[-1] == rest:
            node.rest = (endpoint, tuple(names))
            return
        node.named = node.named or _Node()
        node = node.named
    assert node.end is None, f"{path} is like another path"
    node.end = (endpoint, tuple(names))


def _find(root: _Node, path: str) -> tuple[PathEndpoint, dict[str, str]] | None:
    """Go down along fixed segments; come back to the names that were passed by where that ends."""
    segments = path.split("/")
    passed_by: list[tuple[_Node, int, tuple[str, ...]]] = [(root, 0, ())]
    rest: tuple[_End, tuple[str, ...]] | None = None
    while passed_by:
        node, at, values = passed_by.pop()
        while at < len(segments):
            segment = segments[at]
            if node.rest is not None:
                rest = (node.rest, (*values, "/".join(segments[at:])))
            following, named = node.fixed.get(segment), node.named if segment else None
            at += 1
            if following is not None:
                if named is not None:
                    passed_by.append((named, at, (*values, segment)))
                node = following
            elif named is not None:
                node, values = named, (*values, segment)
            else:
                break
        else:
            if node.end is not None:
                return _with_values(node.end, values)
    return _with_values(*rest) if rest else None


def _with_values(end: _End, values: tuple[str, ...]) -> tuple[PathEndpoint, dict[str, str]]:
    endpoint, names = end
    return endpoint, dict(zip(names, values, strict=True))
