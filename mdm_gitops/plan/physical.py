"""The physical form of an entity: tables, columns, rules and views as values.

``physical_entity`` renders a definition into that form; the live catalog is read into the same
form (``plan.live``); their difference is the plan. No other description of the physical state
exists. Nothing here is SQL: ``warehouse.ddl`` writes it.

Two objects are the same when their *specification* is the same; names are derived from it and only
compared last, so that a renamed column renames its rules instead of building them again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from mdm_gitops.model import Column, ConsumptionView, DataType, Definitions, Entity, fold
from mdm_gitops.model.similarity import indexed_for_match, match_kinds

MAX_IDENTIFIER: Final = 63  # PostgreSQL: NAMEDATALEN - 1


class Role(StrEnum):
    """Which of an entity's tables: approved rows, pending versions, closed versions."""

    MAIN = "main"
    EDIT = "edit"
    HISTORY = "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalColumn:
    name: str
    type: str  # as PostgreSQL's format_type prints it
    not_null: bool = False
    default: Any = None  # a typed value, None for no default


class RuleKind(StrEnum):
    PATTERN = "pattern"  # argument: the pattern
    ALLOWED = "allowed"  # argument: the values
    RANGE = "range"  # argument: (minimum or None, maximum or None)
    LENGTH = "length"  # argument: characters
    REQUIRED = "required"  # helper of SET NOT NULL; never part of the desired state
    CASTABLE = "castable"  # helper of a retype; argument: the new type


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    column: str
    rule: RuleKind
    argument: Any = None  # hashable
    validated: bool = True

    @property
    def spec(self) -> tuple[Any, ...]:
        return ("check", self.column, self.rule, self.argument)


class IndexKind(StrEnum):
    """Over the values of columns, or over what a function of the store makes of them."""

    VALUES = "values"
    SEARCH = "search"  # the words of the columns
    MATCH = "match"  # keys that alike rows share; argument: which


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    name: str
    columns: tuple[str, ...]
    unique: bool
    kind: IndexKind = IndexKind.VALUES
    argument: str | None = None  # of the store's function, beside the columns
    suffix: str = ""  # what follows the table's name in *name*; "" when it is not known
    valid: bool = True
    plain: bool = True  # of the one form that we create; a live one may have been put in its place

    @property
    def spec(self) -> tuple[Any, ...]:
        return ("index", self.kind, self.columns, self.argument, self.unique, self.plain)

    @property
    def computed(self) -> bool:
        """Whether it holds what a function makes of the columns, not their values."""
        return self.kind is not IndexKind.VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    name: str
    column: str
    target_table: str
    target_column: str
    validated: bool = True
    plain: bool = True  # as of an index

    @property
    def spec(self) -> tuple[Any, ...]:
        return ("foreign-key", self.column, self.target_table, self.target_column, self.plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    role: Role
    columns: Mapping[str, PhysicalColumn]
    primary_key: tuple[str, ...]
    primary_key_name: str
    checks: tuple[Check, ...] = ()
    indexes: tuple[Index, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A consumption view: *columns* maps output name -> physical column of *table*, in order."""

    schema: str
    name: str
    table: str
    columns: tuple[tuple[str, str], ...]
    include_deleted: bool

    @property
    def key(self) -> tuple[str, str]:
        return (self.schema, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalEntity:
    tables: Mapping[Role, Table]
    views: tuple[View, ...] = ()

    @property
    def main(self) -> Table:
        return self.tables[Role.MAIN]


def _system(name: str, type_: str, *, default: Any = None, null: bool = False) -> PhysicalColumn:
    return PhysicalColumn(name=name, type=type_, not_null=not null, default=default)


ROW_COLUMNS: Final = (
    _system("_sys_version", "integer", default=1),
    _system("_sys_created_at", "timestamp with time zone"),
    _system("_sys_created_by", "text"),
    _system("_sys_last_modified_at", "timestamp with time zone"),
    _system("_sys_last_modified_by", "text"),
    _system("_sys_is_deleted", "boolean", default=False),
    _system("_sys_deleted_at", "timestamp with time zone", null=True),
)
_ID: Final = _system("_sys_id", "uuid")
_BATCH: Final = ("_sys_batch_name", "_sys_id")
_PLAIN_KIND: Final = re.compile(r"^uq(?=s?_)")  # uq_code -> ix_code, uqs_place -> ixs_place
_SYSTEM_COLUMNS: Final[Mapping[Role, tuple[PhysicalColumn, ...]]] = MappingProxyType(
    {
        Role.MAIN: (_ID, *ROW_COLUMNS),
        Role.EDIT: (
            _ID,
            _system("_sys_base_version", "integer", null=True),
            _system("_sys_operation", "text"),
            _system("_sys_state", "text"),
            _system("_sys_batch_name", "text", null=True),
            _system("_sys_comment", "text", null=True),
            _system("_sys_submitted_at", "timestamp with time zone"),
            _system("_sys_submitted_by", "text"),
            _system("_sys_decided_at", "timestamp with time zone", null=True),
            _system("_sys_decided_by", "text", null=True),
        ),
        Role.HISTORY: (
            _ID,
            *(PhysicalColumn(name=c.name, type=c.type, not_null=c.not_null) for c in ROW_COLUMNS),
            _system("_sys_valid_from", "timestamp with time zone"),
            _system("_sys_valid_to", "timestamp with time zone"),
            _system("_sys_action", "text"),
        ),
    }
)
_PRIMARY_KEY: Final = MappingProxyType(
    {
        Role.MAIN: ("_sys_id",),
        Role.EDIT: ("_sys_id",),
        Role.HISTORY: ("_sys_id", "_sys_version"),
    }
)
_TYPES: Final = MappingProxyType(
    {
        DataType.STRING: "text",
        DataType.TEXT: "text",
        DataType.INT: "integer",
        DataType.LONG: "bigint",
        DataType.DECIMAL: "numeric",
        DataType.BOOL: "boolean",
        DataType.DATE: "date",
        DataType.DATETIME: "timestamp with time zone",
        DataType.GUID: "uuid",
        DataType.JSON: "jsonb",
    }
)


def physical_type(column: Column) -> str:
    """Return the column's type as PostgreSQL prints it, with precision and scale."""
    if column.data_type is DataType.DECIMAL and column.precision is not None:
        return f"numeric({column.precision},{column.scale or 0})"
    return _TYPES[column.data_type]


def relation_object_name(table: str, suffix: str) -> str:
    """Return ``<table>__<suffix>``, cut and closed with a hash where it exceeds 63 bytes.

    Indexes share one name space with all tables of the schema. No entity name holds ``__``, so
    neither another entity nor another split into table and suffix can give the same name.
    """
    name = f"{table}__{suffix}"
    if len(name) <= MAX_IDENTIFIER:
        return name
    return f"{name[: MAX_IDENTIFIER - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def table_name(entity: str, role: Role) -> str:
    return entity if role is Role.MAIN else f"{entity}__{role.value}"


def archive_table_name(entity: str, role: Role, number: int) -> str:
    """Return the archive's name; one letter for the satellite keeps 48 + 15 bytes within 63."""
    suffix = "" if role is Role.MAIN else f"_{role.value[0]}"
    return f"{entity}__archive_{number}{suffix}"


def archive_column_name(column: str, number: int) -> str:
    return f"_arch_{number}_{column}"


def filling_column_name(column: str) -> str:
    """Return the name of a retyped column while it is being filled."""
    return f"_new_{column}"


def primary_key_name(table: str) -> str:
    return relation_object_name(table, "pk")


def check_name(column: str, rule: RuleKind) -> str:
    return f"ck_{column}_{rule.value}"


def foreign_key_name(column: str) -> str:
    return f"fk_{column}"


def index_suffix(kind: str, part: str) -> str:
    """*kind*: ``uq`` one unique column, ``uqs`` a named set of them, ``ix`` not unique."""
    return f"{kind}_{part}"


def index(table: str, suffix: str, columns: tuple[str, ...], *, unique: bool) -> Index:
    name = relation_object_name(table, suffix)
    return Index(name=name, columns=columns, unique=unique, suffix=suffix)


def computed_index(
    table: str, kind: IndexKind, columns: tuple[str, ...], argument: str | None = None
) -> Index:
    """Return the one index of its *kind* on *table*; it is called by the kind."""
    suffix = kind.value
    return Index(
        name=relation_object_name(table, suffix),
        columns=columns,
        unique=False,
        kind=kind,
        argument=argument,
        suffix=suffix,
    )


Targets = Mapping[str, tuple[str, str]]  # column -> (entity, column) it refers to, all folded


def reference_targets(entity: Entity, definitions: Definitions) -> Targets:
    """Resolve the references of *entity*: a missing target column is the target's key column."""
    targets = {}
    for column in entity.columns:
        if column.reference:
            target, target_column = definitions.reference_target(column)
            targets[column.folded] = (target.folded, target_column.folded)
    return MappingProxyType(targets)


def physical_entity(entity: Entity, targets: Targets) -> PhysicalEntity:
    """Render *entity* as it would stand in an empty database. Names are folded."""
    roles = [Role.MAIN]
    if entity.approval_required:
        roles.append(Role.EDIT)
    if entity.history_enabled:
        roles.append(Role.HISTORY)
    main = _main_table(entity, targets)
    tables = {role: main if role is Role.MAIN else satellite(main, role) for role in roles}
    views = tuple(_view(entity, view) for view in entity.consumption.views)
    return PhysicalEntity(tables=MappingProxyType(tables), views=views)


def satellite(main: Table, role: Role) -> Table:
    """Return the edit or history table beside *main*: the same columns without their rules.

    A pending row is a proposal and a closed version is the past; both may break today's rules,
    which are checked when a row enters the approved table. Both are looked up as approved rows are, and
    lists of the past are read in their order: so they have indexes over the same columns. Proposals are
    taken by batches, too.
    """
    name = table_name(main.name, role)
    user_columns = (
        PhysicalColumn(name=column.name, type=column.type)
        for column in main.columns.values()
        if not column.name.startswith("_sys_")
    )
    return Table(
        name=name,
        role=role,
        columns=_columns(role, user_columns),
        primary_key=_PRIMARY_KEY[role],
        primary_key_name=primary_key_name(name),
        indexes=tuple(_satellite_indexes(name, main, role)),
    )


def _satellite_indexes(name: str, main: Table, role: Role) -> Iterator[Index]:
    for item in main.indexes:
        if item.computed:
            continue  # only what is approved and present is searched
        suffix = _PLAIN_KIND.sub("ix", item.suffix)
        yield index(name, suffix, item.columns, unique=False)
    if role is Role.EDIT:
        yield index(name, index_suffix("ix", _BATCH[0]), _BATCH, unique=False)


def _main_table(entity: Entity, targets: Targets) -> Table:
    name = table_name(entity.folded, Role.MAIN)
    return Table(
        name=name,
        role=Role.MAIN,
        columns=_columns(Role.MAIN, (_column(column) for column in entity.columns)),
        primary_key=_PRIMARY_KEY[Role.MAIN],
        primary_key_name=primary_key_name(name),
        checks=tuple(check for column in entity.columns for check in _checks(column)),
        indexes=tuple(_indexes(entity, name)),
        foreign_keys=tuple(_foreign_key(column, *target) for column, target in targets.items()),
    )


def _columns(role: Role, user_columns: Iterator[PhysicalColumn]) -> Mapping[str, PhysicalColumn]:
    first, *rest = _SYSTEM_COLUMNS[role]
    return MappingProxyType({column.name: column for column in (first, *user_columns, *rest)})


def _column(column: Column) -> PhysicalColumn:
    return PhysicalColumn(
        name=column.folded,
        type=physical_type(column),
        not_null=not column.nullable,
        default=column.typed(column.default),
    )


def _checks(column: Column) -> Iterator[Check]:
    rules: list[tuple[RuleKind, Any]] = []
    if column.pattern is not None:
        rules.append((RuleKind.PATTERN, column.pattern))
    if column.allowed_values:
        values = (column.typed(value) for value in column.allowed_values)
        rules.append((RuleKind.ALLOWED, tuple(dict.fromkeys(values))))
    if column.min_value is not None or column.max_value is not None:
        limits = (column.typed(column.min_value), column.typed(column.max_value))
        rules.append((RuleKind.RANGE, limits))
    if column.max_length is not None:
        rules.append((RuleKind.LENGTH, column.max_length))
    for rule, argument in rules:
        name = check_name(column.folded, rule)
        yield Check(name=name, column=column.folded, rule=rule, argument=argument)


def _indexes(entity: Entity, table: str) -> Iterator[Index]:
    """Yield the unique sets, the same set once, an index for each reference, those of search and
    matching."""
    unique: dict[tuple[str, ...], str] = {}
    if entity.key_columns:
        unique[_folded(entity.key_columns)] = "_key"  # no declared set can have this name
    for column in entity.columns:
        if column.unique:
            unique.setdefault((column.folded,), column.folded)
    for constraint in entity.unique_constraints:
        unique.setdefault(_folded(constraint.columns), fold(constraint.name))
    for columns, set_name in unique.items():
        kind, part = ("uq", columns[0]) if len(columns) == 1 else ("uqs", set_name)
        yield index(table, index_suffix(kind, part), columns, unique=True)
    leading = {columns[0] for columns in unique}
    for column in entity.columns:
        if column.reference and column.folded not in leading:
            yield index(table, index_suffix("ix", column.folded), (column.folded,), unique=False)
    if entity.search.enabled and (searched := entity.searched_columns):
        columns = tuple(column.folded for column in searched)
        yield computed_index(table, IndexKind.SEARCH, columns)
    if matched := indexed_for_match(entity):
        columns = tuple(each.column for each in matched)
        yield computed_index(table, IndexKind.MATCH, columns, match_kinds(matched))


def _folded(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fold(name) for name in names)


def _foreign_key(column: str, target_entity: str, target_column: str) -> ForeignKey:
    return ForeignKey(
        name=foreign_key_name(column),
        column=column,
        target_table=table_name(target_entity, Role.MAIN),
        target_column=target_column,
    )


def _view(entity: Entity, view: ConsumptionView) -> View:
    chosen = [entity.column_by_name[fold(name)] for name in view.columns] or list(entity.columns)
    columns = [(column.name, column.folded) for column in chosen]
    if view.include_system_columns:
        names = ["_sys_id", *(column.name for column in ROW_COLUMNS)]
        columns = [("_sys_id", "_sys_id"), *columns, *((name, name) for name in names[1:])]
    return View(
        schema=fold(view.view_schema),
        name=fold(view.name),
        table=table_name(entity.folded, Role.MAIN),
        columns=tuple((fold(output), source) for output, source in columns),
        include_deleted=view.include_deleted,
    )


def filling_object_name(table: str, target: str) -> str:
    """Return the name of the trigger, and of its function, that fill *target* in *table*."""
    return relation_object_name(table, f"fill{target}")


def with_table_name(table: Table, name: str) -> Table:
    """Return *table* under another name, with the names of its key and indexes following."""
    return replace(
        table,
        name=name,
        primary_key_name=primary_key_name(name),
        indexes=tuple(
            replace(item, name=relation_object_name(name, item.suffix)) for item in table.indexes
        ),
    )
