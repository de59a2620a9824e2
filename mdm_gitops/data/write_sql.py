"""The statements that write rows: one statement judges a batch, writes it, its history and events.

Each is run outside of a transaction or as part of one, and is a whole: what it writes, it also
records. Its rows come from a relation ``given``, the *source*, with the columns ``_pos`` (the
caller's number), ``_id``, ``_base`` (the version that must still hold, or NULL), ``_actor`` (who
acts), ``_author`` (whose values these are), ``_detail`` (for the event) and the row's own columns;
where they become proposals (``proposals_sql``), also ``_batch`` (the name of their batch, or NULL).

The outcome has one line per given row: the store's revision, ``_pos``, a status, the numbers of its
faults, the row as JSON and its version. Nothing is written if the store's revision is not the one
that the statement was built for.

The change set is inserted last and draws its number after all rows are locked (0003_events.sql).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from mdm_gitops.data import judging
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.row_json import RowState, outputs, select_list
from mdm_gitops.data.target import Target
from mdm_gitops.filter import TypedFilter, compile_predicate
from mdm_gitops.model import Action, Entity
from mdm_gitops.plan.physical import ROW_COLUMNS, Role
from mdm_gitops.warehouse.prepared import Prepared


class Operation(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"
    RESTORE = "restore"


EVENT_OF: Final = {
    Operation.CREATE: "data_created",
    Operation.UPDATE: "data_updated",
    Operation.SOFT_DELETE: "data_soft_deleted",
    Operation.HARD_DELETE: "data_deleted",
    Operation.RESTORE: "data_restored",
}


class Status(StrEnum):
    """What became of a given row."""

    DONE = ""
    UNCHANGED = "unchanged"
    INVALID = "invalid"  # the faults say why
    TAKEN = "taken"  # a unique value belongs to another row
    MISSING = "missing"  # also: not visible for the caller
    STALE = "stale"  # not the version that the caller has seen
    DELETED = "deleted"
    NOT_DELETED = "not_deleted"
    OUTSIDE = "outside"  # before or after, outside of what the caller may write
    KEY = "key"  # a value that other rows may hold would change
    REFERENCED = "referenced"
    WITHDRAWN = "withdrawn"  # it existed as a proposal alone, and that is gone
    MOVED = "moved"  # the store is not as the statement expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the rows come from. *sql* is a SELECT with the columns that the module's header names.

    *columns* are the row's own columns it has; they hold text unless it is *typed*. If *marked*, its
    column ``_given`` says per row which of them were given, as a text of 0 and 1 in their order.
    """

    sql: str
    columns: tuple[str, ...]
    typed: bool = False
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class WriteStatement:
    """SQL, what the numbers of its faults mean, and where the values of its parameters come from."""

    sql: bytes
    faults: tuple[Fault, ...]
    predicates: tuple[tuple[str, str, TypedFilter], ...]

    @cached_property
    def prepared(self) -> Prepared:
        return Prepared.of(self.sql)

    def parameters(self, asking: Asking) -> dict[str, Any]:
        values: dict[str, Any] = {"revision": asking.state.revision}
        for prefix, alias, typed in self.predicates:
            predicate = compile_predicate(
                typed,
                context=asking.filter_context,
                schema=asking.schemas.data,
                alias=alias,
                parameter_prefix=prefix,
            )
            values.update(predicate.parameters)
        return values


def json_source(target: Target) -> Source:
    """Return the rows of the parameter ``rows``: JSON objects, their values texts."""
    columns = target.columns
    fields = "".join(f', "{name}" text' for name in columns)
    sql = (
        'SELECT g.*, g."_actor" AS "_author" FROM'
        " json_to_recordset(%(rows)s::json) AS"
        ' g("_pos" int, "_id" uuid, "_base" int, "_actor" text, "_batch" text,'
        f' "_detail" jsonb, "_given" text{fields})'
    )
    return Source(sql=sql, columns=columns, marked=True)


def write_statement(
    asking: Asking,
    target: Target,
    operation: Operation,
    source: Source,
    *,
    relink: bool = False,
    whatever_its_state: bool = False,
) -> WriteStatement:
    """Return the statement that does *operation* to the rows of *source*.

    With *relink* a change of a value that other rows hold is written (the caller relinks them in the
    same transaction); without, such rows are told as ``KEY``. With *whatever_its_state* soft-deleted
    rows are updated, too.
    """
    builder = Builder(asking=asking, target=target, source=source, deleted_too=whatever_its_state)
    if operation is Operation.CREATE:
        return builder.create()
    return builder.change(operation, relink=relink)


def outcome_row(target: Target, asking: Asking, alias: str) -> str:
    """Return the row ``alias`` as the JSON that the caller may see."""
    return _row_json(target, alias, sees_restricted=asking.rights(target.entity).sees_restricted)


def event_image(target: Target, alias: str) -> str:
    """Return the row's own columns as JSON, unmasked, as events keep them."""
    members = outputs(target.entity, sees_restricted=True, state=RowState.ALL, alias=alias)
    own = [member for member in members if not member.name.startswith("_sys_")]
    return f"(SELECT row_to_json(x) FROM (SELECT {select_list(own)}) x)"


def _row_json(target: Target, alias: str, *, sees_restricted: bool) -> str:
    members = outputs(
        target.entity, sees_restricted=sees_restricted, state=RowState.ALL, alias=alias
    )
    return f"(SELECT row_to_json(x) FROM (SELECT {select_list(members)}) x)"


_NEXT_MOMENT: Final = (
    "greatest(statement_timestamp(), o.\"_sys_last_modified_at\" + interval '1 microsecond')"
)


@dataclass(kw_only=True)
class Builder:
    """Puts a statement together; the parts that judge are shared with what writes proposals."""

    asking: Asking
    target: Target
    source: Source
    deleted_too: bool = False
    predicates: list[tuple[str, str, TypedFilter]] = field(default_factory=list)

    # --- the two shapes ---

    def create(self) -> WriteStatement:
        target = self.target
        types = self._type_faults()
        values = self._value_faults("n", target.columns)
        numbers = judging.numbers_sql(values, start=len(types))
        outside = self._refused(Action.WRITE, "n")
        names = ["_sys_id", *target.columns, *(column.name for column in ROW_COLUMNS)]
        written = ", ".join(f't."{name}"' for name in names)
        sql = f"""WITH given AS MATERIALIZED ({self.source.sql}),
next AS MATERIALIZED (SELECT g."_pos", g."_id", g."_actor", g."_detail", g."_id" AS "_sys_id"
  {self._new_values()}, 1 AS "_sys_version", statement_timestamp() AS "_sys_created_at",
  g."_author" AS "_sys_created_by", statement_timestamp() AS "_sys_last_modified_at",
  g."_author" AS "_sys_last_modified_by", false AS "_sys_is_deleted",
  NULL::timestamptz AS "_sys_deleted_at", {judging.numbers_sql(types)} AS "_faults" FROM given g),
judged AS MATERIALIZED (SELECT n.*, w."_numbers", s."_status",
  s."_status" = '' AND {self._revision_holds()} AS "_holds" FROM next n
  CROSS JOIN LATERAL (SELECT n."_faults" || {numbers} AS "_numbers" OFFSET 0) w
  CROSS JOIN LATERAL (SELECT CASE WHEN w."_numbers" <> '' THEN 'invalid'
    WHEN {outside} THEN 'outside' ELSE '' END AS "_status" OFFSET 0) s),
todo AS MATERIALIZED (SELECT j.* FROM judged j WHERE j."_holds"),
done AS (INSERT INTO {target.main_sql} AS m ({names_sql(names)})
  SELECT {written} FROM todo t ORDER BY t."_pos" ON CONFLICT DO NOTHING RETURNING m.*),
{self._events(Operation.CREATE, old="NULL::json", new=event_image(target, "d"))}
SELECT {self._revision()}, j."_pos",
  CASE WHEN j."_status" <> '' THEN j."_status" WHEN NOT j."_holds" THEN 'moved'
    WHEN d."_sys_id" IS NULL THEN 'taken' ELSE '' END, j."_numbers",
  CASE WHEN d."_sys_id" IS NOT NULL THEN {outcome_row(target, self.asking, "d")} END,
  d."_sys_version"
  FROM judged j LEFT JOIN done d ON d."_sys_id" = j."_id" """
        return self._statement(sql, [*types, *values])

    def change(self, operation: Operation, *, relink: bool) -> WriteStatement:
        target = self.target
        is_update = operation is Operation.UPDATE
        types = self._type_faults() if is_update else []
        values = self._value_faults("n", self.source.columns) if is_update else []
        faults = [*types, *values]
        numbers = judging.numbers_sql(values, start=len(types))
        history = f"\nkept AS ({self._keep(operation)})," if target.entity.history_enabled else ""
        removed = operation is Operation.HARD_DELETE
        new = "NULL::json" if removed else event_image(target, "d")
        row = "NULL::json" if removed else outcome_row(target, self.asking, "d")
        sql = f"""WITH given AS MATERIALIZED ({self.source.sql}),
old AS MATERIALIZED (SELECT m.* FROM {target.main_sql} m
  WHERE m."_sys_id" = ANY (ARRAY(SELECT g."_id" FROM given g))
  ORDER BY m."_sys_id" FOR UPDATE OF m),
next AS MATERIALIZED (SELECT g."_pos", g."_id", g."_base", g."_actor", g."_detail",
  o."_sys_id"{self._changed_values(is_update)}, o."_sys_version" + 1 AS "_sys_version",
  o."_sys_created_at", o."_sys_created_by", {_NEXT_MOMENT} AS "_sys_last_modified_at",
  g."_author" AS "_sys_last_modified_by", {_DELETED[operation]} AS "_sys_is_deleted",
  {_DELETED_AT[operation]} AS "_sys_deleted_at", {judging.numbers_sql(types)} AS "_faults"
  FROM given g LEFT JOIN old o ON o."_sys_id" = g."_id"),
judged AS MATERIALIZED (SELECT n.*, w."_numbers", s."_status",
  s."_status" = '' AND {self._revision_holds()} AS "_holds"
  FROM next n LEFT JOIN old o ON o."_sys_id" = n."_id"
  CROSS JOIN LATERAL (SELECT n."_faults" || {numbers} AS "_numbers" OFFSET 0) w
  CROSS JOIN LATERAL (SELECT CASE {self._standing(operation)}
    WHEN w."_numbers" <> '' THEN 'invalid'
    {self._further(operation, relink=relink)} ELSE '' END AS "_status" OFFSET 0) s),
todo AS MATERIALIZED (SELECT j.* FROM judged j WHERE j."_holds"),
done AS ({self._write(operation)}),{history}
{self._events(operation, old=event_image(target, "o"), new=new)}
SELECT {self._revision()}, j."_pos",
  CASE WHEN j."_status" <> '' THEN j."_status" WHEN NOT j."_holds" THEN 'moved'
    WHEN d."_sys_id" IS NULL THEN 'missing' ELSE '' END, j."_numbers",
  CASE WHEN d."_sys_id" IS NOT NULL THEN {row}
    WHEN j."_status" = 'unchanged' THEN {outcome_row(target, self.asking, "o")} END,
  coalesce(d."_sys_version", o."_sys_version")
  FROM judged j LEFT JOIN done d ON d."_sys_id" = j."_id"
  LEFT JOIN old o ON o."_sys_id" = j."_id" """
        return self._statement(sql, faults)

    # --- values ---

    def _type_faults(self) -> list[Fault]:
        if self.source.typed:
            return []
        return list(judging.type_faults(self.target, self.source.columns, alias="g"))

    def _value_faults(self, alias: str, columns: Sequence[str]) -> list[Fault]:
        return [
            *judging.value_faults(self.target, columns, alias=alias),
            *self._reference_faults(alias, columns),
        ]

    def _reference_faults(self, alias: str, columns: Sequence[str]) -> list[Fault]:
        visible = self._visible_reference
        return list(judging.reference_faults(self.target, columns, alias=alias, visible=visible))

    def _given_value(self, column: str) -> str:
        if self.source.typed:
            return f'g."{column}"'
        return judging.typed_sql(self.target, column, alias="g")

    def _was_given(self, column: str) -> str:
        return f"substr(g.\"_given\", {self.source.columns.index(column) + 1}, 1) = '1'"

    def _new_values(self) -> str:
        found = []
        for name in self.target.columns:
            value = default = judging.default_sql(self.target, name)
            if name in self.source.columns:
                value = self._given_value(name)
                if self.source.marked and not default.startswith("NULL"):
                    value = f"CASE WHEN {self._was_given(name)} THEN {value} ELSE {default} END"
            found.append(f', {value} AS "{name}"')
        return "".join(found)

    def _changed_values(self, is_update: bool) -> str:
        found = []
        for name in self.target.columns:
            value = f'o."{name}"'
            if is_update and name in self.source.columns:
                given = self._given_value(name)
                value = (
                    f"CASE WHEN {self._was_given(name)} THEN {given} ELSE {value} END"
                    if self.source.marked
                    else given
                )
            found.append(f', {value} AS "{name}"')
        return "".join(found)

    # --- what stands against it ---

    def _standing(self, operation: Operation) -> str:
        """Return the cases that the old row alone gives."""
        cases = [
            ('n."_sys_id" IS NULL', Status.MISSING),
            (self._refused(Action.READ, "o"), Status.MISSING),
            (self._refused(Action.WRITE, "o"), Status.OUTSIDE),
            ('n."_base" <> o."_sys_version"', Status.STALE),
        ]
        match operation:
            case Operation.RESTORE:
                cases.append(('NOT o."_sys_is_deleted"', Status.NOT_DELETED))
            case Operation.UPDATE | Operation.SOFT_DELETE if not self.deleted_too:
                cases.append(('o."_sys_is_deleted"', Status.DELETED))
            case Operation.HARD_DELETE:
                cases.append((self._is_referenced(), Status.REFERENCED))
        return " ".join(f"WHEN {sql} THEN '{status}'" for sql, status in cases if sql != "false")

    def _further(self, operation: Operation, *, relink: bool) -> str:
        """Return the cases that the new row gives, after it was found to be valid."""
        if operation is not Operation.UPDATE:
            return ""
        columns = self.source.columns
        cases = [(self._unchanged(columns), Status.UNCHANGED)]
        keys = [name for name in self.target.referred_columns if name in columns]
        if keys and not relink:
            cases.append((differs_sql(keys), Status.KEY))
        cases += [(sql, Status.TAKEN) for sql in self._taken(columns)]
        cases.append((self._refused(Action.WRITE, "n"), Status.OUTSIDE))
        return " ".join(f"WHEN {sql} THEN '{status}'" for sql, status in cases if sql != "false")

    def _unchanged(self, columns: Sequence[str]) -> str:
        return f"NOT ({differs_sql(columns)})"

    def _taken(self, columns: Sequence[str]) -> list[str]:
        found = []
        for unique in self.target.unique_sets:
            if any(name in columns for name in unique):
                same = " AND ".join(f'u."{name}" = n."{name}"' for name in unique)
                other = f'{same} AND u."_sys_id" <> n."_id"'
                held = f"EXISTS (SELECT FROM {self.target.main_sql} u WHERE {other})"
                found.append(f"({differs_sql(unique)}) AND {held}")
        return found

    def _is_referenced(self) -> str:
        found = []
        for referrer in self.target.referrers:
            table = f'"{self.target.schemas.data}"."{referrer.entity}"'
            where = f'r."{referrer.column}" = o."{referrer.key}"'
            if referrer.entity == self.target.name:
                where += ' AND r."_sys_id" <> o."_sys_id"'
            found.append(f"EXISTS (SELECT FROM {table} r WHERE {where})")
        return "(" + " OR ".join(found) + ")" if found else "false"

    def _refused(self, action: Action, alias: str) -> str:
        """Return the condition that the row *alias* is outside of the caller's filter, or "false"."""
        typed = row_filter(self.asking, self.target.entity, action)
        if (action, alias) == (Action.WRITE, "o") and typed == row_filter(
            self.asking, self.target.entity
        ):
            return "false"  # then it would have been missing
        return f"({self._predicate(typed, alias)}) IS NOT TRUE" if typed else "false"

    def _visible_reference(self, entity: str, alias: str) -> str:
        other: Entity = self.asking.state.entities[entity].definition
        if not self.asking.rights(other).may_read:
            return ""  # known by its key alone, as the constraint knows it
        typed = row_filter(self.asking, other)
        return self._predicate(typed, alias) if typed else ""

    def _predicate(self, typed: TypedFilter, alias: str) -> str:
        prefix = f"w{len(self.predicates)}_"
        self.predicates.append((prefix, alias, typed))
        return compile_predicate(
            typed,
            context=self.asking.filter_context,
            schema=self.target.schemas.data,
            alias=alias,
            parameter_prefix=prefix,
        ).sql

    # --- writing ---

    def _write(self, operation: Operation) -> str:
        main = self.target.main_sql
        # The array keeps the planner, which takes a request for a hundred rows, from reading a table of some
        # thousand rows for each.
        where = (
            'WHERE m."_sys_id" = t."_id"'
            ' AND m."_sys_id" = ANY (ARRAY(SELECT d."_id" FROM todo d)) RETURNING m.*'
        )
        if operation is Operation.HARD_DELETE:
            return f"DELETE FROM {main} m USING todo t {where}"
        names = [
            *(self.source.columns if operation is Operation.UPDATE else ()),
            "_sys_version",
            "_sys_last_modified_at",
            "_sys_last_modified_by",
            *(() if operation is Operation.UPDATE else ("_sys_is_deleted", "_sys_deleted_at")),
        ]
        assignments = ", ".join(f'"{name}" = t."{name}"' for name in names)
        return f"UPDATE {main} m SET {assignments} FROM todo t {where}"

    def _keep(self, operation: Operation) -> str:
        """Close the version that was replaced."""
        names = ["_sys_id", *self.target.columns, *(column.name for column in ROW_COLUMNS)]
        ends = (
            f"{_NEXT_MOMENT}" if operation is Operation.HARD_DELETE else 't."_sys_last_modified_at"'
        )
        return (
            f"INSERT INTO {self.target.table_sql(Role.HISTORY)}"
            f" ({names_sql([*names, '_sys_valid_from', '_sys_valid_to', '_sys_action'])})"
            f' SELECT {", ".join(f"""o."{name}" """.strip() for name in names)},'
            f" o.\"_sys_last_modified_at\", {ends}, '{EVENT_OF[operation]}'"
            ' FROM done d JOIN old o USING ("_sys_id") JOIN todo t ON t."_id" = d."_sys_id"'
        )

    def _events(self, operation: Operation, *, old: str, new: str) -> str:
        """Return the CTEs that record what ``done`` holds, numbered within the set."""
        join_old = "" if operation is Operation.CREATE else ' JOIN old o USING ("_sys_id")'
        return events_sql(
            self.target,
            action=f"'{EVENT_OF[operation]}'",
            rows=f'done d{join_old} JOIN todo t ON t."_id" = d."_sys_id"',
            record='d."_sys_id"',
            version='d."_sys_version"',
            old=old,
            new=new,
        )

    def _revision(self) -> str:
        return f"(SELECT value FROM {self.target.config_sql('revision')})"

    def _revision_holds(self) -> str:
        return f"{self._revision()} = %(revision)s::bigint"

    def _statement(self, sql: str, faults: Sequence[Fault]) -> WriteStatement:
        return WriteStatement(
            sql=sql.encode(), faults=tuple(faults), predicates=tuple(self.predicates)
        )


def events_sql(
    target: Target,
    *,
    action: str,
    rows: str,
    record: str,
    version: str,
    old: str,
    new: str,
    detail: str = 't."_detail"',
) -> str:
    """Return the CTEs that record an event for each of *rows*, and their change set.

    *rows* is what stands after FROM; it has the columns ``_actor`` and ``_detail`` of ``t``, and each
    further argument is an expression over it. The parameter ``actor`` is whose change set it is.
    """
    return f"""key AS MATERIALIZED (
  SELECT nextval('{_regclass(target)}') AS key WHERE EXISTS (SELECT FROM done)),
events AS (INSERT INTO {target.config_sql("event")}
  (change_set, ordinal, entity_id, record_id, action, version, actor, old, new, detail)
  SELECT k.key, row_number() OVER (ORDER BY t."_pos") - 1, {target.stored.entity_id}, {record},
    {action}, {version}, NULLIF(t."_actor", %(actor)s), {old}, {new}, {detail}
  FROM {rows} CROSS JOIN key k RETURNING 1),
change_set AS (INSERT INTO {target.config_sql("change_set")}
  (key, events, occurred_at, actor, commit_id)
  SELECT k.key, n.n, statement_timestamp(), %(actor)s, (SELECT commit_id FROM {target.config_sql("project")})
  FROM key k CROSS JOIN (SELECT count(*)::int AS n FROM events) n WHERE n.n > 0)"""


def _regclass(target: Target) -> str:
    return target.config_sql("change_set_key").replace("'", "''").replace("%", "%%")


_DELETED: Final = {
    Operation.UPDATE: 'o."_sys_is_deleted"',
    Operation.HARD_DELETE: 'o."_sys_is_deleted"',
    Operation.SOFT_DELETE: "true",
    Operation.RESTORE: "false",
}
_DELETED_AT: Final = {
    Operation.UPDATE: 'o."_sys_deleted_at"',
    Operation.HARD_DELETE: 'o."_sys_deleted_at"',
    Operation.SOFT_DELETE: _NEXT_MOMENT,
    Operation.RESTORE: "NULL::timestamptz",
}


def names_sql(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def differs_sql(columns: Sequence[str]) -> str:
    new = ", ".join(f'n."{name}"' for name in columns)
    old = ", ".join(f'o."{name}"' for name in columns)
    return f"ROW({new}) IS DISTINCT FROM ROW({old})"
