"""Merging two rows of an entity into one: previews, merges, and merges that wait for approval.

All of a merge is one transaction (``data.merge_steps``). Where the entity needs approval, a merge waits for
another person like any other change: what is asked for is tried and taken back, and kept with the
versions that it rests on; ``data.unmerging`` decides on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from psycopg import errors

from mdm_gitops.data.asking import Asking, changeable_entity
from mdm_gitops.data.failures import translated
from mdm_gitops.data.merge_steps import Merged, MergeRequest, MergeWork
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.errors import Conflict, InputError, WarehouseLocked
from mdm_gitops.warehouse.connect import Connection, ConnectionPool, borrow_checked

T = TypeVar("T")
_ATTEMPTS: Final = 5
_RACES: Final = (
    errors.IntegrityError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a merge would do; *columns* tell where each value of the survivor would come from."""

    survivor: bytes
    columns: Sequence[Mapping[str, Any]]
    relinked: Mapping[str, int]
    survivor_version: int
    duplicate_version: int


class Merger:
    """Merges through connections of *pool*."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def preview(self, asking: Asking, entity: str, request: MergeRequest) -> Preview:
        """Return what ``merge`` would do. Errors as ``merge``."""

        async def decide(conn: Connection) -> Preview:
            work = MergeWork(conn=conn, asking=asking, target=target)
            drawn, tried = await work.try_out(request, work.read(request.values))
            return Preview(
                survivor=tried.survivor,
                columns=tried.columns,
                relinked=tried.relinked,
                survivor_version=drawn.survivor.version,
                duplicate_version=drawn.duplicate.version,
            )

        target = _target(asking, entity, request)
        return await in_transaction(self._pool, decide)

    async def merge(self, asking: Asking, entity: str, request: MergeRequest) -> Merged:
        """Merge the duplicate into the survivor, or propose to, where the entity needs approval.

        Raises:
            NotFound: one of the rows is not there, or the caller may not see it.
            AccessDenied: the caller may not write one of them, before or after.
            Conflict: a row is not in a state for it, has changed, or a reference cannot be relinked.
            RowRefused: the survivor would break rules.
            StateMoved: ask again with a newer state.
        """
        target = _target(asking, entity, request)
        proposes = target.entity.approval_required

        async def decide(conn: Connection) -> Merged:
            work = MergeWork(conn=conn, asking=asking, target=target)
            given = work.read(request.values)
            if proposes:
                return await work.propose(request, given)
            return await work.merge(await work.draw(request, given=given))

        return await in_transaction(self._pool, decide)


def _target(asking: Asking, entity: str, request: MergeRequest) -> Target:
    target = target_of(asking, changeable_entity(asking, entity))
    if request.survivor_id == request.duplicate_id:
        raise InputError(
            "survivorId and duplicateId are the same row",
            hint="name two rows of the entity",
            parameter="duplicateId",
        )
    return target


async def in_transaction(pool: ConnectionPool, decide: Callable[[Connection], Awaitable[T]]) -> T:
    """Run *decide* in a transaction; begin again when another writer came in between."""
    is_taken = False
    with translated():
        async with borrow_checked(pool) as conn:
            for _ in range(_ATTEMPTS):
                try:
                    async with conn.transaction():
                        return await decide(conn)
                except _RACES as race:  # the next look sees what the other has written
                    is_taken = isinstance(race, errors.UniqueViolation)
    if is_taken:  # and that each time: by rows of the merge itself
        raise Conflict(
            "rows that refer to the duplicate cannot be relinked: they would become equal in values"
            " that are unique",
            hint="change or merge the rows that are in the way first",
            code="MERGE_LINK_REFUSED",
        )
    raise WarehouseLocked("others are writing the same rows", hint="try again in a moment")
