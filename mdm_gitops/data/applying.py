"""Applying claimed proposals, many at a time, each judged by itself.

Proposals of one operation go through one statement. A proposal that refers to another one is applied
after it; a circle of them is applied as a whole or not at all. A row that is refused is told and left
as it is; what the database itself refuses (two proposals that want the same value at the same moment)
fails the whole call, and the caller tries them one by one.

Call it inside a transaction, with the claims made in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.approvals_sql import REFERENCE_PENDING, approval_statement
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.claims import Claim
from mdm_gitops.data.dependencies import Group, Node, in_order
from mdm_gitops.data.proposals_sql import PROPOSED
from mdm_gitops.data.relink import update_and_relink
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_run import Line, run_write
from mdm_gitops.data.write_sql import Operation, Status, WriteStatement
from mdm_gitops.plan.physical import Role

_OPERATIONS: Final = {word: operation for operation, word in PROPOSED.items()}
_WITH_VALUES: Final = (Operation.CREATE, Operation.UPDATE)
_OTHERS: Final = (Operation.RESTORE, Operation.SOFT_DELETE)


class _Undone(Exception):
    """Not all of a circle can be applied."""


@dataclass(kw_only=True)
class Applying:
    """``lines`` says of each proposal what became of it."""

    conn: AsyncConnection[Any]
    asking: Asking
    target: Target
    claims: Mapping[UUID, Claim]
    comment: str | None
    lines: dict[UUID, Line] = field(default_factory=dict)

    async def run(self) -> None:
        for group in in_order([_node(claim) for claim in self._of(_WITH_VALUES)]):
            if group.is_circle:
                await self._circle(group)
            else:
                await self._each(_WITH_VALUES, group.keys)
        await self._each(_OTHERS, [claim.row_id for claim in self._of(_OTHERS)])
        await self._delete([claim.row_id for claim in self._of((Operation.HARD_DELETE,))])

    def _of(self, operations: Sequence[Operation]) -> list[Claim]:
        return [c for c in self.claims.values() if _OPERATIONS[c.operation] in operations]

    def _operation(self, row_id: UUID) -> Operation:
        return _OPERATIONS[self.claims[row_id].operation]

    async def _each(self, operations: Sequence[Operation], row_ids: Iterable[UUID]) -> None:
        all_ids = list(row_ids)
        for operation in operations:
            ids = [row_id for row_id in all_ids if self._operation(row_id) is operation]
            if not ids:
                continue
            lines = await self._apply(operation, ids)
            await self._remove(lines)
            for row_id, line in lines.items():
                if line.status is Status.KEY:
                    lines[row_id] = await self._relinking(row_id)
            self.lines.update(lines)

    async def _delete(self, row_ids: Sequence[UUID]) -> None:
        """Delete rows for good; those that others of them refer to come after these."""
        rest = list(row_ids)
        while rest:
            await self._each((Operation.HARD_DELETE,), rest)
            again = [i for i in rest if self.lines[i].status is Status.REFERENCED]
            if len(again) == len(rest):
                return
            rest = again

    async def _relinking(self, row_id: UUID) -> Line:
        line = await self._updated(row_id)
        await self.conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await self._remove({row_id: line})
        return line

    async def _updated(self, row_id: UUID, *, circle: Sequence[UUID] = ()) -> Line:
        """Apply an update and relink the rows that refer to it; constraints are deferred then."""
        line = await update_and_relink(
            self.conn,
            asking=self.asking,
            target=self.target,
            statement=self._statement(Operation.UPDATE, relink=True, in_circle=bool(circle)),
            row_id=row_id,
            values=self._values([row_id], circle),
            author=self.claims[row_id].author,
        )
        if line.status is Status.MOVED:
            raise StateMoved
        return line

    async def _circle(self, group: Group[UUID]) -> None:
        """Apply all or none: one that is refused would leave the others with a reference to nothing."""
        found: dict[UUID, Line] = {}
        created = [i for i in group.keys if self._operation(i) is Operation.CREATE]
        try:
            async with self.conn.transaction():
                await self.conn.execute("SET CONSTRAINTS ALL DEFERRED")
                if created:
                    found |= await self._apply(Operation.CREATE, created, circle=group.keys)
                for row_id in group.keys:
                    if row_id not in found:
                        found[row_id] = await self._updated(row_id, circle=group.keys)
                if any(line.status is not Status.DONE for line in found.values()):
                    raise _Undone
                await self.conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
                await self._remove(found)
        except _Undone:
            found = {
                row_id: _WAITING if line.status is Status.DONE else line
                for row_id, line in found.items()
            }
        self.lines.update(found)

    # --- the statements ---

    async def _apply(
        self, operation: Operation, ids: Sequence[UUID], *, circle: Sequence[UUID] = ()
    ) -> dict[UUID, Line]:
        statement = self._statement(operation, in_circle=bool(circle))
        values = self._values(ids, circle)
        lines = await run_write(self.conn, asking=self.asking, statement=statement, values=values)
        if any(line.status is Status.MOVED for line in lines.values()):
            raise StateMoved
        return {ids[position - 1]: line for position, line in lines.items()}

    def _values(self, ids: Sequence[UUID], circle: Sequence[UUID] = ()) -> dict[str, Any]:
        return {"ids": list(ids), "circle": list(circle), "comment": self.comment}

    def _statement(
        self, operation: Operation, *, relink: bool = False, in_circle: bool = False
    ) -> WriteStatement:
        asking, target = self.asking, self.target
        sees_restricted = asking.rights(target.entity).sees_restricted
        return asking.state.remember(
            ("approve", target.name, operation, sees_restricted, relink, in_circle),
            lambda: approval_statement(
                asking, target, operation, relink=relink, in_circle=in_circle
            ),
        )

    async def _remove(self, lines: Mapping[UUID, Line]) -> None:
        """Remove the proposals that have been applied."""
        done = [row_id for row_id, line in lines.items() if line.status is Status.DONE]
        if done:
            sql = (
                f'DELETE FROM {self.target.table_sql(Role.EDIT)} WHERE "_sys_id" = ANY (%s::uuid[])'
            )
            await self.conn.execute(sql.encode(), [done])


_WAITING: Final = Line(status=Status.INVALID, faults=((REFERENCE_PENDING, ""),))


def _node(claim: Claim) -> Node[UUID]:
    return Node(key=claim.row_id, needs=claim.needs, brings=claim.brings)
