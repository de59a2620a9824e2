"""Rows of a seed file as statements: what differs is updated, what is absent is inserted.

One statement does both for a piece of the file, writes the versions it replaces into the history
first, and records one change set with an event for each row that it wrote. Rows that the file does
not name are never touched. The rows come as one JSON text, so a statement has few parts however many
rows it carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlglot import exp

from mdm_gitops.model import DataType, SeedMode, coerce, fold
from mdm_gitops.model.values import to_json_value
from mdm_gitops.plan.changes import ApplySeed, Phase, UserColumn
from mdm_gitops.plan.physical import ROW_COLUMNS, PhysicalColumn
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import trees
from mdm_gitops.warehouse.ddl.metadata import entity_id_of, seeded
from mdm_gitops.warehouse.ddl.nodes import DEFER_CONSTRAINTS
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.ddl.trees import Tree, column, identifier, render, template, text
from mdm_gitops.warehouse.names import Schemas

SEED_PRINCIPAL: Final = "system:seed"
ROWS_PER_STATEMENT: Final = 5_000

_DATA_TYPE: Final[Mapping[str, DataType]] = MappingProxyType(
    {
        "text": DataType.TEXT,
        "integer": DataType.INT,
        "bigint": DataType.LONG,
        "numeric": DataType.DECIMAL,
        "boolean": DataType.BOOL,
        "date": DataType.DATE,
        "timestamp with time zone": DataType.DATETIME,
        "uuid": DataType.GUID,
        "jsonb": DataType.JSON,
    }
)
# Aliases inside the statement: rows of the file, rows of the table, rows about to change, rows that
# were changed, rows that are new, what is told of both.
_GIVEN, _ROW, _BEFORE = "given", "present", "before"
_UPDATED, _INSERTED, _DONE = "updated", "inserted", "done"
# When the new version begins and the one before ends: always later than that one began, also where
# the clock was set back, so that no moment has two versions.
_MOMENT: Final = "_moment"


def apply_seed(change: ApplySeed, schemas: Schemas) -> Iterator[Statement]:
    group = f"seed {change.group}"
    rows = list(_row_texts(change))
    if rows:
        # Rows may refer to rows that come later, in this file or in another of the group.
        yield _statement(DEFER_CONSTRAINTS, "prove references at the end", change, group)
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        piece = rows[start : start + ROWS_PER_STATEMENT]
        last = start + len(piece)
        title = f"seed {change.table}, rows {start + 1} to {last} of {len(rows)}"
        yield _statement(_upsert_sql(change, piece, schemas), title, change, group)
    noted = seeded(change.entity, change.seed.content_hash, schemas)
    yield _statement(noted.sql, noted.title, change, group)


def _statement(sql: str, title: str, change: ApplySeed, group: str) -> Statement:
    lock = Lock.ROW_EXCLUSIVE
    return Statement(phase=Phase.SEED, sql=sql, title=title, lock=lock, group=group)


def rows_text(change: ApplySeed) -> str:
    """Return all rows of the file as one JSON text by physical names, values by their types."""
    return _array(_row_texts(change))


def _row_texts(change: ApplySeed) -> Iterator[str]:
    columns = [(each, trees.json_text(each.name)) for each in change.columns]
    return (_row_text(row, columns) for row in change.seed.rows)


def _array(rows: Iterable[str]) -> str:
    return "[" + ",\n".join(rows) + "]"


def _row_text(row: Mapping[str, Any], columns: list[tuple[PhysicalColumn, str]]) -> str:
    """Return one row as JSON by physical names, which stand beside the *columns* as JSON; what it
    lacks is the column's default or null."""
    given = {fold(name): value for name, value in row.items()}
    members = []
    for wanted, name in columns:
        value = wanted.default
        if wanted.name in given:
            base = "numeric" if wanted.type.startswith("numeric") else wanted.type
            value = coerce(_DATA_TYPE[base], given[wanted.name])
        # Outside of jsonb as text, which PostgreSQL reads by the column's own type: exact.
        written = value if wanted.type == "jsonb" else to_json_value(value)
        members.append(f"{name}:{trees.json_text(written)}")
    return "{" + ",".join(members) + "}"


def _upsert_sql(change: ApplySeed, rows: list[str], schemas: Schemas) -> str:
    names = [each.name for each in change.columns]
    inserted: dict[str, Tree] = {
        "_sys_id": _call(schemas, "uuid_v7"),
        **{name: column(name, of=_GIVEN) for name in names},
        "_sys_version": trees.number(1),
        "_sys_created_at": exp.CurrentTimestamp(),
        "_sys_created_by": text(SEED_PRINCIPAL),
        "_sys_last_modified_at": exp.CurrentTimestamp(),
        "_sys_last_modified_by": text(SEED_PRINCIPAL),
        "_sys_is_deleted": exp.Boolean(this=False),
    }
    insert = exp.Insert(
        this=_into(schemas, change.table, inserted),
        expression=exp.select(*inserted.values()).from_(_GIVEN),
        conflict=exp.OnConflict(
            conflict_keys=[trees.ascending(column(name)) for name in change.key_columns],
            action=exp.Var(this="DO NOTHING"),
        ),
        returning=exp.Returning(expressions=[exp.Star()]),
    )
    parts: list[tuple[str, Tree]] = [(_GIVEN, _given(change, rows))]
    if change.mode is not SeedMode.CREATE:
        parts.append((_BEFORE, _before(change, schemas)))
        if change.history_table:
            parts.append(("kept", _keep(change, change.history_table, schemas)))
        parts.append((_UPDATED, _update(change, schemas)))
    parts += [(_INSERTED, insert), (_DONE, _done(change)), *_events(change, schemas)]
    recorded = _change_set(schemas)
    recorded.set("with_", exp.With(expressions=[_common(name, tree) for name, tree in parts]))
    return render(recorded)


def _common(name: str, tree: Tree) -> exp.CTE:
    return exp.CTE(this=tree, alias=exp.TableAlias(this=exp.to_identifier(name)))


# --- what is told of it ---------------------------------------------------------------------------


def _done(change: ApplySeed) -> Tree:
    """Return what was written: action, row, version, and the row's own columns before and after."""
    created = exp.select(
        exp.alias_(text("data_created"), "action"),
        column("_sys_id", of=_INSERTED),
        column("_sys_version", of=_INSERTED),
        exp.alias_(trees.cast(exp.Null(), "json"), "old"),
        exp.Alias(this=_image(change, _INSERTED), alias=exp.to_identifier("new")),
    ).from_(_INSERTED)
    if change.mode is SeedMode.CREATE:
        return created
    same_row = exp.EQ(this=column("_sys_id", of=_UPDATED), expression=column("_sys_id", of=_BEFORE))
    changed = (
        exp.select(
            _action(),
            column("_sys_id", of=_UPDATED),
            column("_sys_version", of=_UPDATED),
            _image(change, _BEFORE),
            _image(change, _UPDATED),
        )
        .from_(_UPDATED)
        .join(exp.to_table(_BEFORE), on=same_row)
    )
    return exp.union(created, changed, distinct=False)


def _image(change: ApplySeed, alias: str) -> Tree:
    """Return the row's own columns as events keep them: as ``data.row_json`` spells and writes them."""
    members = [
        exp.alias_(_told(each, alias), each.shown, quoted=True) for each in change.user_columns
    ]
    row = exp.Column(this=exp.to_identifier("x"))
    document = exp.Anonymous(this="ROW_TO_JSON", expressions=[row])
    return exp.select(document).from_(exp.select(*members).subquery("x")).subquery()


def _told(shown: UserColumn, alias: str) -> Tree:
    value = column(shown.name, of=alias)
    if not shown.is_moment:
        return value
    return template(
        "REPLACE(CAST(:value AT TIME ZONE 'UTC' AS TEXT), ' ', 'T') || 'Z'", value=value
    )


def _events(change: ApplySeed, schemas: Schemas) -> Iterator[tuple[str, Tree]]:
    """Yield the key of the change set, which there is only for rows that were written, and its events."""
    sequence = text(trees.quoted(schemas.config, "change_set_key"))
    drawn = exp.Anonymous(this="NEXTVAL", expressions=[trees.cast(sequence, "regclass")])
    some = exp.Exists(this=exp.select(exp.Literal.number(1)).from_(_DONE))
    yield "key", exp.select(exp.alias_(drawn, "key")).where(some)
    of_done = {name: column(name, of=_DONE) for name in ("action", "old", "new")}
    values: dict[str, Tree] = {
        "change_set": column("key", of="key"),
        "ordinal": template("ROW_NUMBER() OVER () - 1"),
        "entity_id": entity_id_of(change.entity, schemas),
        "record_id": column("_sys_id", of=_DONE),
        "version": column("_sys_version", of=_DONE),
        **of_done,
    }
    source = exp.select(*values.values()).from_(_DONE).join("key", join_type="cross")
    yield (
        "events",
        exp.Insert(
            this=_names(trees.table(schemas.config, "event"), values),
            expression=source,
            returning=exp.Returning(expressions=[exp.Literal.number(1)]),
        ),
    )


def _change_set(schemas: Schemas) -> exp.Insert:
    """Return the insertion of the set, whose number is drawn when all rows are locked and told."""
    number = exp.alias_(trees.cast(exp.Count(this=exp.Star(), big_int=True), "integer"), "n")
    commit = exp.select(column("commit_id")).from_(trees.table(schemas.config, "project"))
    values: dict[str, Tree] = {
        "key": column("key", of="key"),
        "events": column("n", of="told"),
        "occurred_at": template("STATEMENT_TIMESTAMP()"),
        "actor": text(SEED_PRINCIPAL),
        "commit_id": commit.subquery(),
    }
    told = exp.select(number).from_("events").subquery("told")
    source = exp.select(*values.values()).from_("key").join(told, join_type="cross")
    return exp.Insert(
        this=_names(trees.table(schemas.config, "change_set"), values), expression=source
    )


# --- rows -----------------------------------------------------------------------------------------


def _call(schemas: Schemas, function: str) -> Tree:
    call = exp.Anonymous(this=identifier(function))
    return exp.Dot(this=identifier(schemas.config), expression=call)


def _into(schemas: Schemas, table: str, values: Mapping[str, Tree]) -> exp.Schema:
    return _names(trees.table(schemas.data, table), values)


def _names(table: exp.Table, values: Mapping[str, Tree]) -> exp.Schema:
    return exp.Schema(this=table, expressions=[identifier(name) for name in values])


def _given(change: ApplySeed, rows: list[str]) -> Tree:
    """Return the rows of the file as a query."""
    typed = [
        exp.ColumnDef(this=identifier(each.name), kind=trees.data_type(each.type))
        for each in change.columns
    ]
    document = trees.cast(text(_array(rows)), "jsonb")
    source = exp.Table(
        this=exp.Anonymous(this="JSONB_TO_RECORDSET", expressions=[document]),
        alias=exp.TableAlias(this=exp.to_identifier("r"), columns=typed),
    )
    return exp.select("*").from_(source)


def _before(change: ApplySeed, schemas: Schemas) -> Tree:
    """Return the rows that will change, locked, so that nobody changes them meanwhile."""
    same_key = [
        exp.EQ(this=column(name, of=_ROW), expression=column(name, of=_GIVEN))
        for name in change.key_columns
    ]
    query = (
        exp.select(exp.Column(this=exp.Star(), table=exp.to_identifier(_ROW)), _moment())
        .from_(trees.table(schemas.data, change.table, alias=_ROW))
        .join(exp.to_table(_GIVEN), on=trees.both(same_key))
        .where(_differs(change))
    )
    if change.mode is SeedMode.UPSERT:
        by = column("_sys_last_modified_by", of=_ROW)
        query = query.where(exp.EQ(this=by, expression=text(SEED_PRINCIPAL)))
    query.set("locks", [exp.Lock(update=True, expressions=[exp.to_table(_ROW)])])
    return query


def _moment() -> Tree:
    before = column("_sys_last_modified_at", of=_ROW)
    moment = template(
        "GREATEST(CURRENT_TIMESTAMP, :before + INTERVAL '1 microsecond')", before=before
    )
    return exp.alias_(moment, _MOMENT)


def _differs(change: ApplySeed) -> Tree:
    deleted = column("_sys_is_deleted", of=_ROW)
    names = _changeable(change)
    if not names:
        return deleted
    old = trees.row([column(name, of=_ROW) for name in names])
    new = trees.row([column(name, of=_GIVEN) for name in names])
    return template(":old IS DISTINCT FROM :new OR :deleted", old=old, new=new, deleted=deleted)


def _changeable(change: ApplySeed) -> list[str]:
    return [each.name for each in change.columns if each.name not in change.key_columns]


def _keep(change: ApplySeed, history: str, schemas: Schemas) -> Tree:
    """Close the present version of each row that will change."""
    own = [each.name for each in change.user_columns]
    names = ["_sys_id", *own, *(each.name for each in ROW_COLUMNS)]
    values: dict[str, Tree] = {name: column(name, of=_BEFORE) for name in names}
    values |= {
        "_sys_valid_from": column("_sys_last_modified_at", of=_BEFORE),
        "_sys_valid_to": column(_MOMENT, of=_BEFORE),
        "_sys_action": _action(),
    }
    query = exp.select(*values.values()).from_(_BEFORE)
    return exp.Insert(this=_into(schemas, history, values), expression=query)


def _action() -> Tree:
    return template(
        "CASE WHEN :deleted THEN 'data_restored' ELSE 'data_updated' END",
        deleted=column("_sys_is_deleted", of=_BEFORE),
    )


def _update(change: ApplySeed, schemas: Schemas) -> Tree:
    version = template(":version + 1", version=column("_sys_version", of=_ROW))
    values: dict[str, Tree] = {
        **{name: column(name, of=_GIVEN) for name in _changeable(change)},
        "_sys_version": version,
        "_sys_last_modified_at": column(_MOMENT, of=_BEFORE),
        "_sys_last_modified_by": text(SEED_PRINCIPAL),
        "_sys_is_deleted": exp.Boolean(this=False),
        "_sys_deleted_at": exp.Null(),
    }
    same_row = exp.EQ(this=column("_sys_id", of=_ROW), expression=column("_sys_id", of=_BEFORE))
    same_key = [
        exp.EQ(this=column(name, of=_GIVEN), expression=column(name, of=_BEFORE))
        for name in change.key_columns
    ]
    source = exp.to_table(_BEFORE)
    source.set("joins", [exp.Join(this=exp.to_table(_GIVEN), on=trees.both(same_key))])
    return exp.Update(
        this=trees.table(schemas.data, change.table, alias=_ROW),
        expressions=[exp.EQ(this=column(n), expression=v) for n, v in values.items()],
        from_=exp.From(this=source),
        where=exp.Where(this=same_row),
        returning=exp.Returning(
            expressions=[exp.Column(this=exp.Star(), table=exp.to_identifier(_ROW))]
        ),
    )
