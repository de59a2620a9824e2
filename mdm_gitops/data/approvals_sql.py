"""The statements that decide on proposals: those of ``write_sql`` with the edit table as their source,
and the one that rejects or withdraws.

Who may decide was found out before (``data.claims``), so the rights of the approver to write do not
count here; the rules of the entity do, again. References are judged without regard to who sees what:
the proposer's sight was judged when he proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from mdm_gitops.data import judging
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.proposals_sql import pending_row
from mdm_gitops.data.selecting import proposals_sql
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_sql import (
    Builder,
    Operation,
    Source,
    WriteStatement,
    event_image,
    events_sql,
)
from mdm_gitops.model import Action
from mdm_gitops.plan.physical import Role

REFERENCE_PENDING: Final = "APPROVAL_REFERENCE_PENDING"
_KEPT: Final = (
    "_sys_version",
    "_sys_created_at",
    "_sys_created_by",
    "_sys_last_modified_at",
    "_sys_last_modified_by",
    "_sys_is_deleted",
    "_sys_deleted_at",
    "_sys_operation",
    "_sys_batch_name",
    "_sys_submitted_at",
    "_sys_submitted_by",
)


class Ending(StrEnum):
    """How a proposal ends without being applied."""

    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


def approval_statement(
    asking: Asking,
    target: Target,
    operation: Operation,
    *,
    relink: bool = False,
    in_circle: bool = False,
) -> WriteStatement:
    """Return the statement that applies the proposals of the parameter ``ids``, in that order.

    ``_pos`` counts from 1. With *in_circle* a reference to one of the proposals ``circle`` is good.
    Further parameters: ``comment``.
    """
    builder = ApprovalBuilder(asking=asking, target=target, source=_source(target))
    builder.in_circle = in_circle
    if operation is Operation.CREATE:
        return builder.create()
    return builder.change(operation, relink=relink)


def _source(target: Target) -> Source:
    values = "".join(f', e."{name}"' for name in target.columns)
    sql = (
        'SELECT i.n::int AS "_pos", e."_sys_id" AS "_id", e."_sys_base_version" AS "_base",'
        ' %(actor)s::text AS "_actor", e."_sys_submitted_by" AS "_author",'
        " jsonb_strip_nulls(jsonb_build_object('submittedBy', e.\"_sys_submitted_by\","
        f" 'comment', %(comment)s::text)) AS \"_detail\"{values}"
        " FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n)"
        f' JOIN {target.table_sql(Role.EDIT)} e ON e."_sys_id" = i.id'
    )
    return Source(sql=sql, columns=target.columns, typed=True)


class ApprovalBuilder(Builder):
    in_circle: bool = False

    def _refused(self, action: Action, alias: str) -> str:
        return "false"

    def _unchanged(self, columns: Sequence[str]) -> str:
        return "false"  # each approval makes a version and an event

    def _reference_faults(self, alias: str, columns: Sequence[str]) -> list[Fault]:
        """Return the references to nothing, and those to what is still pending."""

        def faults(with_pending: bool) -> list[Fault]:
            def also(entity: str, key: str, value: str) -> str:
                found = [self._circle(entity, key, value)]
                found += [self._pending(entity, key, value)] if with_pending else []
                return " OR ".join(part for part in found if part)

            return list(
                judging.reference_faults(
                    self.target, columns, alias=alias, visible=lambda entity, other: "", also=also
                )
            )

        pending = [replace(fault, code=REFERENCE_PENDING) for fault in faults(False)]
        return [*faults(True), *pending]

    def _circle(self, entity: str, key: str, value: str) -> str:
        if not self.in_circle or entity != self.target.name:
            return ""
        edit = self.target.table_sql(Role.EDIT)
        return (
            f'EXISTS (SELECT FROM {edit} c WHERE c."_sys_id" = ANY (%(circle)s::uuid[])'
            f' AND c."{key}" = {value})'
        )

    def _pending(self, entity: str, key: str, value: str) -> str:
        if not self.asking.state.entities[entity].definition.approval_required:
            return ""
        edit = f"({proposals_sql(self.target.schemas, entity)})"
        return f'EXISTS (SELECT FROM {edit} p WHERE p."{key}" = {value})'


def ending_statement(asking: Asking, target: Target, ending: Ending) -> WriteStatement:
    """Return the statement that ends the proposals of the parameter ``ids``, all of them claimed.

    Further parameters: ``comment``. The lines have the proposal as it is then, if it is still there.
    """
    is_rejected = ending is Ending.REJECTED
    body = pending_row(target, asking, "t") if is_rejected else "NULL::json"
    events = events_sql(
        target,
        action="'data_rejected'",
        rows='done d JOIN todo t ON t."_id" = d."_sys_id"'
        f' LEFT JOIN {target.main_sql} o ON o."_sys_id" = d."_sys_id"',
        record='d."_sys_id"',
        version='t."_sys_version"',
        old=f'CASE WHEN o."_sys_id" IS NOT NULL THEN {event_image(target, "o")} END',
        new=event_image(target, "t"),
    )
    revision = f"(SELECT value FROM {target.config_sql('revision')})"
    sql = f"""WITH todo AS MATERIALIZED ({_ending(target, is_rejected)}
  WHERE {revision} = %(revision)s::bigint),
done AS ({_end(target, is_rejected)}),
{events}
SELECT {revision}, i.n::int, CASE WHEN t."_id" IS NULL THEN 'moved' ELSE '' END, '',
  CASE WHEN t."_id" IS NOT NULL THEN {body} END, t."_sys_version"
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n) LEFT JOIN todo t ON t."_id" = i.id"""
    return WriteStatement(sql=sql.encode(), faults=(), predicates=())


def _ending(target: Target, is_rejected: bool) -> str:
    """Return the proposals as they will be."""
    kept = ("_sys_id", *target.columns, *_KEPT)
    detail = "'reason', %(comment)s::text, 'submittedBy', p.\"_sys_submitted_by\""
    detail += "" if is_rejected else ", 'withdrawn', true"
    proposals = proposals_sql(target.schemas, target.name, states="'pending', 'rejected'")
    return (
        f'SELECT i.n::int AS "_pos", i.id AS "_id", {", ".join(f"""p."{n}" """ for n in kept)},'
        ' \'rejected\'::text AS "_sys_state", %(comment)s::text AS "_sys_comment",'
        f' %(actor)s::text AS "_actor", jsonb_strip_nulls(jsonb_build_object({detail})) AS "_detail"'
        " FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS i(id, n)"
        f' JOIN ({proposals}) p ON p."_sys_id" = i.id'
    )


def _end(target: Target, is_rejected: bool) -> str:
    edit, these = target.table_sql(Role.EDIT), 'e."_sys_id" = t."_id" RETURNING e."_sys_id"'
    if not is_rejected:
        return f"DELETE FROM {edit} e USING todo t WHERE {these}"
    return (
        f'UPDATE {edit} e SET "_sys_state" = t."_sys_state", "_sys_comment" = t."_sys_comment",'
        ' "_sys_decided_at" = statement_timestamp(), "_sys_decided_by" = t."_actor"'
        f" FROM todo t WHERE {these}"
    )
