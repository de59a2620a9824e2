"""A key value that changes takes the rows along that hold it: each with its history and its event.

Nothing cascades silently. The rows that refer to the old value are updated by the same statements as
any other, in the transaction of the change, whoever may see them: they would break otherwise. What is
proposed for such rows is carried along (``data.carrying``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.carrying import carry_proposals
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.write_run import Line, run_write
from mdm_gitops.data.write_sql import Operation, Source, Status, WriteStatement, write_statement

Changed = Mapping[str, tuple[Any, Any]]  # column -> value before and after


class RelinkRefused(StateMoved):
    """A row cannot hold the other value; *line* says why. Who only renames a value need not know."""

    def __init__(self, target: Target, column: str, line: Line) -> None:
        super().__init__()
        self.target = target
        self.column = column
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Which of those that hold a value are relinked: conditions on a row ``r`` and a proposal ``e``.

    They may use the parameters ``link_entity`` and ``link_column`` beside those in *values*. *links*
    are the only columns (entity, column) that are looked at, None for all. *detail* goes to the events.
    """

    links: frozenset[tuple[str, str]] | None = None
    rows: str = "true"
    proposals: str = "true"
    values: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


_ALL = Narrowing()


async def update_and_relink(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    statement: WriteStatement,
    row_id: UUID,
    rows: Sequence[Mapping[str, Any]] = (),
    values: Mapping[str, Any] | None = None,
    author: str = "",
) -> Line:
    """Run *statement*, which updates one row, and relink those that refer to it.

    Call it inside a transaction. *author* is whose change it is if not the caller's: then it is a
    proposal that the caller approves. Raises StateMoved if the store moved meanwhile.
    """
    # Row by row the references are wrong for a moment; at the commit they must be right.
    await conn.execute("SET CONSTRAINTS ALL DEFERRED")
    before = await _keys(conn, target, row_id)
    lines = await run_write(
        conn, asking=asking, statement=statement, rows=rows, values=values, prepare=False
    )
    line = next(iter(lines.values()))
    if line.status is Status.DONE and before is not None:
        after = await _keys(conn, target, row_id)
        assert after is not None, "the row was locked"
        await relink(
            conn,
            asking=asking,
            target=target,
            changed=_changed(target, before, after),
            author=author,
            approving=row_id if author else None,
        )
    return line


async def relink(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    changed: Changed,
    author: str = "",
    approving: UUID | None = None,
    only: Narrowing = _ALL,
) -> None:
    """Give the rows that hold a value of *changed* the value after it.

    *author* is as in ``update_and_relink``; the proposal for *approving* is about to go. Those who
    refer to rows whose own key value changes by this are relinked without regard to *only*.

    Raises:
        RelinkRefused: a row cannot hold the other value.
        StateMoved: the store moved meanwhile.
    """
    by_nobody = replace(asking, principal=replace(asking.principal, is_global_admin=True))
    for referrer in target.referrers:
        link = (referrer.entity, referrer.column)
        if referrer.key not in changed or not (only.links is None or link in only.links):
            continue
        old, new = changed[referrer.key]
        other = target_of(by_nobody, by_nobody.state.entities[referrer.entity])
        values = {
            "old": old,
            "new": new,
            "author": author or asking.principal.actor,
            "approving": approving,
            "link_entity": other.stored.entity_id,
            "link_column": referrer.column,
            "detail": Jsonb(dict(only.detail)),
            **only.values,
        }
        if await _relink_column(conn, by_nobody, other, referrer.column, values, only):
            further = {referrer.column: (old, new)}
            await relink(
                conn,
                asking=asking,
                target=other,
                changed=further,
                author=author,
                approving=approving,
            )


async def _relink_column(
    conn: AsyncConnection[Any],
    asking: Asking,
    other: Target,
    column: str,
    values: Mapping[str, Any],
    only: Narrowing,
) -> bool:
    """Relink the rows of *other*; return whether there may be rows that refer to those in turn."""
    carried = 0
    if other.entity.approval_required:
        conditions = (only.rows, only.proposals)
        carried = await carry_proposals(conn, asking, other, column, values, conditions)
    # Somebody may be giving one of them another value: whoever comes second must see that.
    await conn.execute(_lock_sql(other, column, only).encode(), values)
    lines = await run_write(
        conn,
        asking=asking,
        statement=_relinking(asking, other, column, only),
        values=values,
        prepare=False,
    )
    for line in lines.values():
        if line.status is Status.MOVED:
            raise StateMoved
        if line.status is not Status.DONE:
            raise RelinkRefused(other, column, line)
    return bool(lines or carried) and column in other.referred_columns


def _lock_sql(other: Target, column: str, only: Narrowing) -> str:
    return (
        f'SELECT FROM {other.main_sql} r WHERE r."{column}" = %(old)s::{other.type_of(column)}'
        f' AND {only.rows} ORDER BY r."_sys_id" FOR UPDATE OF r'
    )


def _relinking(asking: Asking, other: Target, column: str, only: Narrowing) -> WriteStatement:
    type_ = other.type_of(column)
    source = Source(
        sql='SELECT row_number() OVER (ORDER BY r."_sys_id")::int AS "_pos", r."_sys_id" AS "_id",'
        ' NULL::int AS "_base", %(actor)s::text AS "_actor", %(author)s::text AS "_author",'
        " jsonb_build_object('relinkedFrom', %(old)s::text) || %(detail)s::jsonb AS \"_detail\","
        f' %(new)s::{type_} AS "{column}" FROM {other.main_sql} r'
        f' WHERE r."{column}" = %(old)s::{type_} AND {only.rows}',
        columns=(column,),
        typed=True,
    )
    return asking.state.remember(
        ("relink", other.name, column, only.rows),
        lambda: write_statement(
            asking, other, Operation.UPDATE, source, relink=True, whatever_its_state=True
        ),
    )


async def _keys(conn: AsyncConnection[Any], target: Target, row_id: UUID) -> tuple[Any, ...] | None:
    columns = ", ".join(f'm."{name}"' for name in target.referred_columns)
    sql = f'SELECT {columns} FROM {target.main_sql} m WHERE m."_sys_id" = %(row_id)s FOR UPDATE'
    cursor = await conn.execute(sql.encode(), {"row_id": row_id})
    return await cursor.fetchone()


def _changed(target: Target, before: tuple[Any, ...], after: tuple[Any, ...]) -> Changed:
    pairs = zip(target.referred_columns, before, after, strict=True)
    return {name: (old, new) for name, old, new in pairs if old is not None and old != new}
