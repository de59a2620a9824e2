"""The statements that save writes as proposals: the same judge as for direct writes, another table.

``<e>__edit`` holds at most one proposal per row, with the whole image of the row as it is proposed.
A proposal rests on a version of the approved row (``_sys_base_version``, NULL for a creation). While
that version stands, a further write is laid over what is proposed already; once it is out of date,
over the approved row. Sources and outcomes are those of ``write_sql``; the version of a line is that
of the approved row, 0 where there is none.

Run them by ``data.proposals``, which locks what they rely on. Unique values are compared with
approved rows and with other pending rows; no constraint holds the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mdm_gitops.data import judging
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.row_json import RowState, outputs, select_list
from mdm_gitops.data.selecting import proposals_sql
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_sql import (
    Builder,
    Operation,
    Source,
    Status,
    WriteStatement,
    differs_sql,
    event_image,
    events_sql,
    names_sql,
    outcome_row,
)
from mdm_gitops.model import Action
from mdm_gitops.plan.physical import Role

# What ``_sys_operation`` says.
PROPOSED: Final = {
    Operation.CREATE: "create",
    Operation.UPDATE: "update",
    Operation.SOFT_DELETE: "soft_delete",
    Operation.HARD_DELETE: "delete",
    Operation.RESTORE: "restore",
}
_DELETES: Final = (Operation.SOFT_DELETE, Operation.HARD_DELETE)
_SAVED: Final = (
    "_sys_base_version",
    "_sys_operation",
    "_sys_state",
    "_sys_batch_name",
    "_sys_comment",
    "_sys_submitted_at",
    "_sys_submitted_by",
    "_sys_decided_at",
    "_sys_decided_by",
)

# Of the proposals those whose values nobody else may propose: a rejected one claims nothing.
CLAIMS: Final = "u.\"_sys_state\" = 'pending' AND u.\"_sys_operation\" IN ('create', 'update')"
# Whether the proposal e rests on the approved row o as it is, so that more can be laid over it.
OVERLAID: Final = (
    'coalesce(e."_sys_base_version" = o."_sys_version",'
    ' o."_sys_id" IS NULL AND e."_sys_operation" = \'create\')'
)


def proposal_statement(
    asking: Asking, target: Target, operation: Operation, source: Source
) -> WriteStatement:
    """Return the statement that proposes *operation* for the rows of *source*."""
    return ProposalBuilder(asking=asking, target=target, source=source).propose(operation)


def pending_row(target: Target, asking: Asking, alias: str) -> str:
    """Return the proposal ``alias`` as the JSON that the caller may see."""
    sees_restricted = asking.rights(target.entity).sees_restricted
    members = outputs(
        target.entity, sees_restricted=sees_restricted, state=RowState.PENDING, alias=alias
    )
    return f"(SELECT row_to_json(x) FROM (SELECT {select_list(members)}) x)"


class ProposalBuilder(Builder):
    """Names in the statement: ``o`` the approved row, ``e`` what is proposed already, ``n`` the new
    proposal. ``_over`` says that ``e`` still rests on what is approved."""

    def propose(self, operation: Operation) -> WriteStatement:
        has_values = operation in (Operation.CREATE, Operation.UPDATE)
        types = self._type_faults() if has_values else []
        values = self._value_faults("n", self.target.columns) if has_values else []
        numbers = judging.numbers_sql(values, start=len(types))
        edit = self.target.table_sql(Role.EDIT)
        withdraws = operation in _DELETES
        gone = (
            f"\ngone AS (DELETE FROM {edit} x"
            ' WHERE x."_sys_id" = ANY (ARRAY(SELECT t."_id" FROM todo t WHERE t."_withdraws"))'
            ' RETURNING x."_sys_id"),'
        )
        sql = f"""WITH given AS MATERIALIZED ({self.source.sql}),
old AS MATERIALIZED (SELECT m.* FROM {self.target.main_sql} m
  WHERE m."_sys_id" = ANY (ARRAY(SELECT g."_id" FROM given g))),
standing AS MATERIALIZED ({self._standing_proposals(edit)}),
drawn AS MATERIALIZED ({self._drawn(operation, types)}),
next AS MATERIALIZED (SELECT x.*, {self._again(has_values)} AS "_again" FROM drawn x),
judged AS MATERIALIZED (SELECT n.*, w."_numbers", s."_status",
  s."_status" = '' AND {self._revision_holds()} AS "_holds"
  FROM next n LEFT JOIN old o ON o."_sys_id" = n."_id" LEFT JOIN standing e ON e."_sys_id" = n."_id"
  CROSS JOIN LATERAL (SELECT n."_faults" || {numbers} AS "_numbers" OFFSET 0) w
  CROSS JOIN LATERAL (SELECT CASE {self._refusals(operation)}
    WHEN w."_numbers" <> '' THEN '{Status.INVALID}'
    {self._refusals_of_values() if has_values else ""} ELSE '' END AS "_status" OFFSET 0) s),
todo AS MATERIALIZED (SELECT j.* FROM judged j WHERE j."_holds"),
saved AS ({self._save(edit)}),{gone if withdraws else ""}
done AS (SELECT s."_sys_id" FROM saved s{
            ' UNION ALL SELECT x."_sys_id" FROM gone x' if withdraws else ""
        }),
{self._proposal_events()}
SELECT {self._revision()}, j."_pos",
  CASE WHEN j."_status" <> '' THEN j."_status" WHEN NOT j."_holds" THEN '{Status.MOVED}'
    WHEN d."_sys_id" IS NULL THEN '{Status.MISSING}'
    WHEN j."_withdraws" THEN '{Status.WITHDRAWN}' ELSE '' END, j."_numbers",
  CASE WHEN d."_sys_id" IS NOT NULL AND NOT j."_withdraws"
      THEN {pending_row(self.target, self.asking, "j")}
    WHEN j."_status" = '{Status.UNCHANGED}' THEN {outcome_row(self.target, self.asking, "o")} END,
  j."_sys_version"
  FROM judged j LEFT JOIN done d ON d."_sys_id" = j."_id"
  LEFT JOIN old o ON o."_sys_id" = j."_id" """
        return self._statement(sql, [*types, *values])

    # --- what stands, and what is proposed ---

    def _standing_proposals(self, edit: str) -> str:
        return f"""SELECT e.*, coalesce(o."_sys_version", 0) AS "_sys_version",
    coalesce(o."_sys_created_at", e."_sys_submitted_at") AS "_sys_created_at",
    coalesce(o."_sys_created_by", e."_sys_submitted_by") AS "_sys_created_by",
    e."_sys_submitted_at" AS "_sys_last_modified_at",
    e."_sys_submitted_by" AS "_sys_last_modified_by",
    coalesce(o."_sys_is_deleted", false) AS "_sys_is_deleted", o."_sys_deleted_at",
    {OVERLAID} AS "_over"
  FROM {edit} e LEFT JOIN old o ON o."_sys_id" = e."_sys_id"
  WHERE e."_sys_id" = ANY (ARRAY(SELECT g."_id" FROM given g))"""

    def _drawn(self, operation: Operation, types: Sequence[Fault]) -> str:
        if operation is Operation.CREATE:
            exists, values = 'g."_id"', self._new_values()
            withdraws = "false"
        else:
            exists = 'CASE WHEN o."_sys_id" IS NOT NULL OR e."_over" THEN g."_id" END'
            values = self._proposed_values(is_update=operation is Operation.UPDATE)
            alone = 'o."_sys_id" IS NULL'
            withdraws = alone if operation in _DELETES else "false"
        return f"""SELECT g."_pos", g."_id", g."_base", g."_actor", g."_detail",
    {exists} AS "_sys_id"{values}, o."_sys_version" AS "_sys_base_version",
    CASE WHEN o."_sys_id" IS NULL THEN 'create' ELSE '{PROPOSED[operation]}' END AS "_sys_operation",
    'pending'::text AS "_sys_state",
    coalesce(g."_batch", CASE WHEN e."_over" THEN e."_sys_batch_name" END) AS "_sys_batch_name",
    NULL::text AS "_sys_comment", statement_timestamp() AS "_sys_submitted_at",
    g."_author" AS "_sys_submitted_by", NULL::timestamptz AS "_sys_decided_at",
    NULL::text AS "_sys_decided_by", coalesce(o."_sys_version", 0) AS "_sys_version",
    coalesce(o."_sys_created_at", statement_timestamp()) AS "_sys_created_at",
    coalesce(o."_sys_created_by", g."_author") AS "_sys_created_by",
    statement_timestamp() AS "_sys_last_modified_at", g."_author" AS "_sys_last_modified_by",
    coalesce(o."_sys_is_deleted", false) AS "_sys_is_deleted", o."_sys_deleted_at",
    {withdraws} AS "_withdraws", {judging.numbers_sql(types)} AS "_faults"
  FROM given g LEFT JOIN old o ON o."_sys_id" = g."_id"
  LEFT JOIN standing e ON e."_sys_id" = g."_id\""""

    def _proposed_values(self, *, is_update: bool) -> str:
        """Return the image: of an update laid over what is proposed, else what is approved."""
        laid_over = 'e."_over"' if is_update else 'o."_sys_id" IS NULL'
        found = []
        for name in self.target.columns:
            value = f'CASE WHEN {laid_over} THEN e."{name}" ELSE o."{name}" END'
            if is_update and name in self.source.columns:
                given = self._given_value(name)
                value = (
                    f"CASE WHEN {self._was_given(name)} THEN {given} ELSE {value} END"
                    if self.source.marked
                    else given
                )
            found.append(f', {value} AS "{name}"')
        return "".join(found)

    def _again(self, has_values: bool) -> str:
        """Return whether another row of this batch has a unique value first."""
        found = []
        for unique in self.target.unique_sets if has_values else ():
            given = " AND ".join(f'x."{name}" IS NOT NULL' for name in unique)
            same = ", ".join(f'x."{name}"' for name in unique)
            number = f'row_number() OVER (PARTITION BY {same} ORDER BY x."_pos")'
            found.append(f"({given} AND {number} > 1)")
        return " OR ".join(found) or "false"

    # --- what stands against it ---

    def _refusals(self, operation: Operation) -> str:
        cases = [
            ('n."_sys_id" IS NULL', Status.MISSING),
            *self._hidden(),
            ('n."_base" <> n."_sys_version"', Status.STALE),
        ]
        match operation:
            case Operation.RESTORE:
                cases.insert(1, ('o."_sys_id" IS NULL', Status.MISSING))
                cases.append(('NOT o."_sys_is_deleted"', Status.NOT_DELETED))
            case Operation.UPDATE | Operation.SOFT_DELETE:
                cases.append(('n."_sys_is_deleted"', Status.DELETED))
            case Operation.HARD_DELETE:
                cases.append((self._is_referenced(), Status.REFERENCED))
        return _whens(cases)

    def _hidden(self) -> list[tuple[str, Status]]:
        """Return the cases of what the caller may not see, or not write. A proposal that he may not
        see, for a row that he may, is out of his reach as any row he may not write."""
        approved, proposed = 'o."_sys_id" IS NOT NULL', 'e."_sys_id" IS NOT NULL'
        alone = f'{proposed} AND o."_sys_id" IS NULL'
        found = [
            (approved, self._refused(Action.READ, "o"), Status.MISSING),
            (alone, self._refused(Action.READ, "e"), Status.MISSING),
            (approved, self._refused(Action.WRITE, "o"), Status.OUTSIDE),
            (proposed, self._refused(Action.READ, "e"), Status.OUTSIDE),
            (proposed, self._refused(Action.WRITE, "e"), Status.OUTSIDE),
        ]
        return [(f"{there} AND {sql}", status) for there, sql, status in found if sql != "false"]

    def _refusals_of_values(self) -> str:
        """Return the cases that the new image gives, after it was found to be valid."""
        waits = "coalesce(e.\"_sys_state\", '') = 'pending'"
        unchanged = f'o."_sys_id" IS NOT NULL AND NOT {waits} AND NOT ('
        unchanged += f"{differs_sql(self.target.columns)})"
        cases = [(unchanged, Status.UNCHANGED)]
        cases += [(sql, Status.TAKEN) for sql in self._taken(self.target.columns)]
        cases.append(('n."_again"', Status.TAKEN))
        cases.append((self._refused(Action.WRITE, "n"), Status.OUTSIDE))
        return _whens(cases)

    def _taken(self, columns: Sequence[str]) -> list[str]:
        edit = self.target.table_sql(Role.EDIT)
        found = []
        for unique in self.target.unique_sets:
            same = " AND ".join(f'u."{name}" = n."{name}"' for name in unique)
            other = f'{same} AND u."_sys_id" <> n."_id"'
            found.append(
                f"({differs_sql(unique)}) AND (EXISTS (SELECT FROM {self.target.main_sql} u"
                f" WHERE {other}) OR EXISTS (SELECT FROM {edit} u WHERE {other} AND {CLAIMS}))"
            )
        return found

    def _reference_faults(self, alias: str, columns: Sequence[str]) -> list[Fault]:
        return list(
            judging.reference_faults(
                self.target,
                columns,
                alias=alias,
                visible=self._visible_reference,
                also=self._proposed_reference,
            )
        )

    def _proposed_reference(self, entity: str, key: str, value: str) -> str:
        """Return the condition that a pending row of *entity* which the caller may see has *value*."""
        other = self.asking.state.entities[entity].definition
        if not other.approval_required:
            return ""
        typed = row_filter(self.asking, other) if self.asking.rights(other).may_read else None
        approved = self._predicate(typed, "m") if typed else ""
        visible = f" AND ({self._predicate(typed, 'p')})" if typed else ""
        pending = proposals_sql(self.target.schemas, entity, approved=approved)
        return f'EXISTS (SELECT FROM ({pending}) p WHERE p."{key}" = {value}{visible})'

    # --- writing ---

    def _save(self, edit: str) -> str:
        names = (*self.target.columns, *_SAVED)
        values = ", ".join(f't."{name}"' for name in names)
        replaced = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in names)
        return (
            f"INSERT INTO {edit} AS x ({names_sql(('_sys_id', *names))})"
            f' SELECT t."_id", {values} FROM todo t WHERE NOT t."_withdraws" ORDER BY t."_pos"'
            f' ON CONFLICT ("_sys_id") DO UPDATE SET {replaced} RETURNING x."_sys_id"'
        )

    def _proposal_events(self) -> str:
        target = self.target
        approved = f'CASE WHEN o."_sys_id" IS NOT NULL THEN {event_image(target, "o")} END'
        old = (
            'CASE WHEN e."_sys_state" = \'pending\' AND NOT t."_withdraws"'
            f" THEN {event_image(target, 'e')} ELSE {approved} END"
        )
        return events_sql(
            target,
            action="CASE WHEN t.\"_withdraws\" THEN 'data_rejected' ELSE 'data_edited' END",
            rows='done d JOIN todo t ON t."_id" = d."_sys_id"'
            ' LEFT JOIN old o ON o."_sys_id" = d."_sys_id"'
            ' LEFT JOIN standing e ON e."_sys_id" = d."_sys_id"',
            record='d."_sys_id"',
            version='t."_sys_version"',
            old=old,
            new=event_image(target, "t"),
            detail='CASE WHEN t."_withdraws" THEN \'{"withdrawn": true}\'::jsonb'
            ' ELSE t."_detail" END',
        )


def _whens(cases: Sequence[tuple[str, Status]]) -> str:
    return " ".join(f"WHEN {sql} THEN '{status}'" for sql, status in cases if sql != "false")
