"""Operations by their paths: a request finds its operation by the segments of its path.

A list of routes is tried one after the other, and each try is a regular expression; with a hundred paths
that was the larger part of what a small request costs. Here a request costs as much as its path is long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from mdm_api.call import Call, Query
from mdm_api.operations import Operation
from mdm_api.services import Services
from mdm_api.throttle import admit_counted
from mdm_gitops.errors import MdmError

_MOST_KEPT: Final = 1_024  # queries, of all paths together
_LONGEST_KEPT: Final = 1_024


class PathEndpoint:
    """The operations of one path, by method. HEAD is GET without the body, which the server drops."""

    def __init__(
        self, operations: Mapping[str, Operation], queries: dict[tuple[str, str, bytes], Query]
    ) -> None:
        self.operations = dict(operations)
        if "GET" in self.operations:
            self.operations.setdefault("HEAD", self.operations["GET"])
        self._queries = queries

    async def answer(self, request: Request, services: Services) -> Response:
        operation = self.operations.get(request.scope["method"])
        if operation is None:
            # Whoever may not come in learns nothing of what there is.
            some = next(iter(self.operations.values()))
            await admit_counted(Call(request, some, services))
            raise MdmError(
                f"{request.method[:20]} is not possible here",
                code="METHOD_NOT_ALLOWED",
                allow=sorted(self.operations),
            )
        request.scope["mdm.route"] = operation.path
        call = Call(request, operation, services)
        await admit_counted(call)
        call.query = self._query(call)
        return await operation.handler(call)

    def _query(self, call: Call) -> Query:
        """Return the query; one that comes again is not read again."""
        text: bytes = call.request.scope["query_string"]
        key = (call.operation.method, call.operation.path, text)
        known = self._queries.get(key)
        if known is None:
            known = Query(call.read_query())
            if len(text) <= _LONGEST_KEPT:
                if len(self._queries) >= _MOST_KEPT:
                    self._queries.clear()
                self._queries[key] = known
        return known


_End: TypeAlias = tuple[PathEndpoint, tuple[str, ...]]  # with the names of the parameters


@dataclass(slots=True)
class _Node:
    """A segment of paths: what may follow it, and what ends here."""

    fixed: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None  # any one segment
    rest: _End | None = None  # all segments that follow
    end: _End | None = None


class Paths:
    """All paths of *operations*. A fixed segment goes before a name in its place."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.endpoints = _endpoints(operations)
        self._root = _Node()
        for path, (endpoint, rest) in self.endpoints.items():
            _plant(self._root, path, endpoint, rest=rest)

    def find(self, path: str) -> tuple[PathEndpoint, dict[str, str]] | None:
        """Return what is at *path*, and what stands there for the names of its template."""
        node, values = self._root, []
        for segment in path.split("/"):
            following = node.fixed.get(segment)
            if node.rest is not None or (following is not None and node.named is not None):
                return _find(self._root, path)
            if following is None:
                following = node.named if segment else None
                if following is None:
                    return None
                values.append(segment)
            node = following
        return _with_values(node.end, values) if node.end is not None else None


def _endpoints(operations: Iterable[Operation]) -> dict[str, tuple[PathEndpoint, str]]:
    """Return, by path, the endpoint and the name of the parameter that may hold slashes.

    They share what they remember of queries, which so has one bound.
    """
    queries: dict[tuple[str, str, bytes], Query] = {}
    by_path: dict[str, dict[str, Operation]] = {}
    rests: dict[str, str] = {}
    for operation in operations:
        methods = by_path.setdefault(operation.path, {})
        assert operation.method not in methods, f"{operation.method} {operation.path} stands twice"
        methods[operation.method] = operation
        rests[operation.path] = operation.rest
    return {
        path: (PathEndpoint(methods, queries), rests[path]) for path, methods in by_path.items()
    }


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
    """Go down along fixed segments; come back to the names that were passed by where that ends.

    Few paths need it: those with a fixed segment where a name could stand, or a name for all that follows.
    """
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


def _with_values(end: _End, values: Sequence[str]) -> tuple[PathEndpoint, dict[str, str]]:
    endpoint, names = end
    return endpoint, dict(zip(names, values, strict=True))
