"""What a decision about a proposal is refused with, in words and codes.

The values are the proposer's, so what is masked for the approver is masked in the sentences, too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.approvals_sql import REFERENCE_PENDING
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.claims import Claim, not_yours_to_decide
from mdm_gitops.data.conflicts import taken_by
from mdm_gitops.data.judging import RowError, row_error
from mdm_gitops.data.refusals import reason, refuse_standing, taken_error
from mdm_gitops.data.row_input import GivenRow, read_row
from mdm_gitops.data.row_json import MASK
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_run import Line
from mdm_gitops.data.write_sql import Status, event_image
from mdm_gitops.errors import AccessDenied, Conflict, MdmError, RowRefused, WarehouseLocked
from mdm_gitops.model import Column
from mdm_gitops.plan.physical import Role


def refused_approval(
    asking: Asking, target: Target, claim: Claim, seen_at: str | None
) -> MdmError | None:
    """Return why the caller cannot approve what *claim* holds, before anything is tried.

    *seen_at* is when the proposal was submitted that he has seen, if he says so.
    """
    entity = target.entity
    if not claim.may_decide:
        return not_yours_to_decide(entity)
    if seen_at is not None and seen_at != claim.submitted_at:
        return rewritten(target)
    if claim.is_own and not entity.allow_same_author_approval:
        return AccessDenied(
            "you have proposed this yourself, and another person must approve it",
            hint="the entity's allowSameAuthorApproval would let authors approve",
            code="APPROVAL_SAME_AUTHOR",
        )
    return None if claim.is_current else stale(target)


def rewritten(target: Target) -> Conflict:
    return Conflict(
        f"the proposal for the row of {target.entity.name} was written again since you have seen it",
        hint="read it again and decide on what is proposed now",
        code="APPROVAL_STALE",
    )


def stale(target: Target) -> Conflict:
    return Conflict(
        f"the approved row of {target.entity.name} has changed since this was proposed",
        hint="reject the proposal, or let its author write again on top of what is there now",
        code="APPROVAL_STALE",
    )


async def refused_line(
    conn: AsyncConnection[Any], *, asking: Asking, target: Target, row_id: UUID, line: Line
) -> MdmError:
    """Return why a proposal that was tried has not been applied."""
    if line.status in (Status.STALE, Status.MISSING, Status.DELETED, Status.NOT_DELETED):
        return stale(target)
    try:
        refuse_standing(target.entity, line)
    except MdmError as error:
        return error
    row = await _proposed_values(conn, asking, target, row_id)
    if line.status is Status.TAKEN:
        holders = await taken_by(conn, asking=asking, target=target, row_id=row_id, row=row)
        if holders:
            return taken_error(target.entity, holders, row)
        return WarehouseLocked("others are writing the same values", hint="try again in a moment")
    return _invalid(asking, target, line, row)


def _invalid(asking: Asking, target: Target, line: Line, row: GivenRow) -> MdmError:
    nowhere = {column for code, column in line.faults if code == "ENTITY_VALIDATION_REFERENCE"}
    waiting = [c for code, c in line.faults if code == REFERENCE_PENDING and c not in nowhere]
    columns = target.entity.column_by_name
    if waiting:
        reasons = [_waits(columns[name]) for name in waiting if name]
        return Conflict(
            f"a row that this row of {target.entity.name} refers to is still pending",
            hint="approve that one first, or both in one batch",
            code=REFERENCE_PENDING,
            **({"errors": reasons} if reasons else {}),
        )
    shows = asking.rights(target.entity).sees_restricted
    errors = [
        _masked(columns[name], code)
        if columns[name].restricted and not shows
        else row_error(columns[name], code, row.values.get(name))
        for code, name in line.faults
        if code != REFERENCE_PENDING
    ]
    return RowRefused([reason(error) for error in errors])


def _waits(column: Column) -> dict[str, Any]:
    message = f"{column.name} refers to a row that is still pending"
    return reason(RowError(code=REFERENCE_PENDING, column=column.name, message=message))


def _masked(column: Column, code: str) -> RowError:
    return RowError(code=code, column=column.name, message=f"{column.name} breaks a rule")


async def _proposed_values(
    conn: AsyncConnection[Any], asking: Asking, target: Target, row_id: UUID
) -> GivenRow:
    """Return the values of a proposal as if they had been sent, masked ones as stars in messages."""
    sql = (
        f"SELECT {event_image(target, 'e')}::text FROM {target.table_sql(Role.EDIT)} e"
        ' WHERE e."_sys_id" = %s'
    )
    cursor = await conn.execute(sql.encode(), [row_id])
    [text] = await cursor.fetchone() or ("{}",)
    by_nobody = replace(asking, principal=replace(asking.principal, is_global_admin=True))
    row = read_row(by_nobody, target.entity, json.loads(text, parse_float=Decimal))
    if asking.rights(target.entity).sees_restricted:
        return row
    hidden = {column.folded: MASK for column in target.entity.columns if column.restricted}
    return replace(row, values={**row.values, **hidden})
