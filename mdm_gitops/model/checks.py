"""What must hold inside one entity and between entities.

``model.entity`` gives the shape; here is the meaning. Pure: each function takes values and yields
``Problem``; which file and line that is, is the source's business. Rows are judged in
``model.seed_checks``, permissions, webhooks and the project in ``model.access_checks``.

Cycles of references are allowed, also of columns that are not nullable: foreign keys are created
after all tables and are deferrable, so both rows of a cycle can be written in one transaction and
are checked at its end. An entity may refer to itself for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from mdm_gitops.model.column_checks import check_column, check_renamed_from
from mdm_gitops.model.entity import TEXTUAL, Column, ConsumptionView, Entity, MatchMode
from mdm_gitops.model.known import Known
from mdm_gitops.model.names import fold, why_unusable, why_unusable_entity
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.model.survivorship_checks import check_survivorship
from mdm_gitops.model.values import DataType

MAX_KEY_COLUMNS: Final = 16
DEFAULT_RESERVED_SCHEMAS: Final = ("mdm", "mdm_data")
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?\Z")
_MATCHES: Final[Mapping[MatchMode, tuple[DataType, ...]]] = {
    MatchMode.EXACT: tuple(kind for kind in DataType if kind is not DataType.JSON),
    MatchMode.FUZZY: (DataType.STRING, DataType.TEXT),
    MatchMode.PHONETIC: (DataType.STRING, DataType.TEXT),
    MatchMode.NUMBER: (DataType.INT, DataType.LONG, DataType.DECIMAL),
    MatchMode.DATE: (DataType.DATE, DataType.DATETIME),
}


def check_entity(
    entity: Entity, *, reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS
) -> Iterator[Problem]:
    """Yield what is wrong inside *entity*; *reserved_schemas* are those no view may be put in."""
    yield from _check_head(entity)
    yield from _check_columns(entity)
    yield from _check_key(entity)
    yield from _check_sorting(entity)
    yield from _check_unique_constraints(entity)
    yield from _check_search(entity)
    yield from _check_similarity(entity)
    yield from check_survivorship(entity)
    yield from _check_views(entity, reserved_schemas)


def check_between(entity: Entity, known: Known) -> Iterator[Problem]:
    """Yield what is wrong between *entity*, its domain and the entities it refers to."""
    if (unknown := known.unknown_domain(entity.domain, ("domain",))) is not None:
        yield unknown
    for index, column in enumerate(entity.columns):
        if column.reference is not None:
            yield from _check_reference(column, known, ("columns", index, "reference"))


def check_all_entities(entities: Iterable[Entity]) -> Iterator[tuple[Entity, Problem]]:
    """Yield what no single entity shows: names taken twice by entities' renames and views."""
    renames: dict[str, Entity] = {}
    views: dict[tuple[str, str], Entity] = {}
    for entity in entities:
        if entity.renamed_from is not None:
            first = renames.setdefault(fold(entity.renamed_from), entity)
            if first is not entity:
                yield entity, _renamed_twice(entity.renamed_from, first.name, ("renamedFrom",))
        for index, view in enumerate(entity.consumption.views):
            key = (fold(view.view_schema), fold(view.name))
            owner = views.setdefault(key, entity)
            if owner is not entity:
                yield entity, _view_twice(view, owner.name, index)


def _check_head(entity: Entity) -> Iterator[Problem]:
    unusable = why_unusable_entity(entity.name)
    if unusable:
        yield Problem(rule="bad-name", message=f"entity name {unusable}", pointer=("name",))
    if entity.renamed_from is not None:
        yield from check_renamed_from(entity.renamed_from, entity.name, (), kind="entity")
    if not _VERSION.match(entity.version):
        yield Problem(
            rule="bad-version",
            message=f"version {entity.version[:40]!r} is not of the form 1.0.0",
            pointer=("version",),
        )
    yield from _twice("alias", entity.aliases, ("aliases",))


def _check_columns(entity: Entity) -> Iterator[Problem]:
    renamed: dict[str, str] = {}
    seen: dict[str, str] = {}
    for index, column in enumerate(entity.columns):
        at: Pointer = ("columns", index)
        yield from check_column(column, at)
        folded = column.folded
        if (first := seen.get(folded)) is not None:
            yield Problem(
                rule="duplicate-name",
                message=f"column {column.name!r} is here twice"
                if first == column.name
                else f"columns {first!r} and {column.name!r} differ in case only",
                pointer=(*at, "name"),
            )
        seen.setdefault(folded, column.name)
        if column.renamed_from is not None:
            old = fold(column.renamed_from)
            if old in renamed:
                yield _renamed_twice(column.renamed_from, renamed[old], (*at, "renamedFrom"))
            renamed.setdefault(old, column.name)


def _renamed_twice(old: str, first: str, pointer: Pointer) -> Problem:
    return Problem(
        rule="renamed-twice",
        message=f"{old!r} is already the former name of {first!r}",
        pointer=pointer,
        hint="one thing can only become one other thing",
    )


def _check_key(entity: Entity) -> Iterator[Problem]:
    yield from _check_column_list(entity, entity.key_columns, ("keyColumns",), no_json=True)
    for index, name in enumerate(entity.key_columns):
        column = entity.column(name)
        if column is not None and column.nullable:
            position = list(entity.column_by_name).index(column.folded)
            yield Problem(
                rule="nullable-key",
                message=f"key column {column.name!r} must not be nullable",
                pointer=("keyColumns", index),
                hint=f"add `nullable: false` to column {position + 1}, {column.name!r}",
            )


def _check_sorting(entity: Entity) -> Iterator[Problem]:
    names = [sort.column for sort in entity.sort_columns]
    yield from _check_column_list(entity, names, ("sortColumns",), inner="column", no_json=True)
    if entity.display_ref_column is not None:
        at: Pointer = ("displayRefColumn",)
        yield from _check_known(entity, entity.display_ref_column, at, no_json=True)


def _check_unique_constraints(entity: Entity) -> Iterator[Problem]:
    sets: dict[frozenset[str], str] = {}
    at: Pointer = ("uniqueConstraints",)
    names = [constraint.name for constraint in entity.unique_constraints]
    yield from _twice("unique constraint", names, at, inner="name")
    for index, constraint in enumerate(entity.unique_constraints):
        unusable = why_unusable(constraint.name)
        if unusable:
            message = f"unique constraint name {unusable}"
            yield Problem(rule="bad-name", message=message, pointer=(*at, index, "name"))
        columns_at: Pointer = (*at, index, "columns")
        yield from _check_column_list(entity, constraint.columns, columns_at, no_json=True)
        columns = frozenset(map(fold, constraint.columns))
        if columns in sets:
            yield Problem(
                rule="duplicate-unique",
                message=f"unique constraints {sets[columns]!r} and {constraint.name!r}"
                " have the same columns",
                pointer=columns_at,
            )
        sets.setdefault(columns, constraint.name)


def _check_search(entity: Entity) -> Iterator[Problem]:
    names, at = entity.search.columns, ("search", "columns")
    yield from _check_column_list(entity, names, at)
    for index, name in enumerate(names):
        column = entity.column(name)
        if column is not None and column.restricted:
            yield Problem(
                rule="restricted-search",
                message=f"restricted column {column.name!r} cannot be searched",
                pointer=(*at, index),
                hint="what is masked must not be told by what is found",
            )
        elif column is not None and column.data_type not in TEXTUAL:
            yield Problem(
                rule="search-not-for-type",
                message=f"{column.data_type.value} column {column.name!r} cannot be searched",
                pointer=(*at, index),
                hint="columns of string and text can",
            )
    if entity.search.enabled and not names and not entity.searched_columns:
        yield Problem(
            rule="search-without-columns",
            message="search is enabled but no column holds text that may be searched",
            pointer=("search",),
            on_key=True,
        )


def _check_similarity(entity: Entity) -> Iterator[Problem]:
    similarity = entity.similarity
    if similarity is None:
        return
    at: Pointer = ("similarity", "columns")
    names = [column.name for column in similarity.columns]
    yield from _check_column_list(entity, names, at, inner="name", no_json=True)
    if similarity.enabled and not names:
        yield Problem(
            rule="similarity-without-columns",
            message="similarity is enabled but names no columns",
            pointer=("similarity",),
            on_key=True,
        )
    for index, compared in enumerate(similarity.columns):
        column = entity.column(compared.name)
        if column is not None and column.data_type not in _MATCHES[compared.match_mode]:
            yield Problem(
                rule="match-not-for-type",
                message=f"matchMode {compared.match_mode.value} is not for"
                f" {column.data_type.value} column {column.name!r}",
                pointer=(*at, index, "matchMode"),
            )


def _check_views(entity: Entity, reserved_schemas: Sequence[str]) -> Iterator[Problem]:
    reserved = {*map(fold, reserved_schemas), "information_schema"}
    seen: set[tuple[str, str]] = set()
    for index, view in enumerate(entity.consumption.views):
        at: Pointer = ("consumption", "views", index)
        schema = fold(view.view_schema)
        if schema in reserved or schema.startswith("pg_"):
            yield Problem(
                rule="reserved-schema",
                message=f"schema {view.view_schema!r} is not free for views",
                pointer=(*at, "schema"),
            )
        elif unusable := why_unusable(view.view_schema):
            yield Problem(
                rule="bad-name", message=f"schema name {unusable}", pointer=(*at, "schema")
            )
        if unusable := why_unusable(view.name):
            yield Problem(rule="bad-name", message=f"view name {unusable}", pointer=(*at, "name"))
        if (schema, fold(view.name)) in seen:
            yield _view_twice(view, entity.name, index)
        seen.add((schema, fold(view.name)))
        yield from _check_column_list(entity, view.columns, (*at, "columns"))


def _view_twice(view: ConsumptionView, owner: str, index: int) -> Problem:
    return Problem(
        rule="duplicate-view",
        message=f"view {view.view_schema}.{view.name} is already a view of entity {owner!r}",
        pointer=("consumption", "views", index, "name"),
    )


def _check_column_list(
    entity: Entity, names: Sequence[str], at: Pointer, *, inner: str = "", no_json: bool = False
) -> Iterator[Problem]:
    """Names of columns in a list, or under the key *inner* of each item of one."""
    if len(names) > MAX_KEY_COLUMNS and at == ("keyColumns",):
        yield Problem(
            rule="too-many-columns",
            message=f"a key has at most {MAX_KEY_COLUMNS} columns",
            pointer=at,
        )
    yield from _twice("column", names, at, inner=inner)
    for index, name in enumerate(names):
        place: Pointer = (*at, index, inner) if inner else (*at, index)
        yield from _check_known(entity, name, place, no_json=no_json)


def _check_known(entity: Entity, name: str, at: Pointer, *, no_json: bool) -> Iterator[Problem]:
    column = entity.column(name)
    if column is None:
        yield Problem(
            rule="unknown-column",
            message=f"entity {entity.name!r} has no column {name!r}",
            pointer=at,
            hint=did_you_mean(name, (column.name for column in entity.columns)),
        )
    elif no_json and column.data_type is DataType.JSON:
        yield Problem(
            rule="not-for-json",
            message=f"{at[0]} cannot use json column {column.name!r}",
            pointer=at,
        )


def _twice(kind: str, names: Sequence[str], at: Pointer, *, inner: str = "") -> Iterator[Problem]:
    if len(set(map(fold, names))) == len(names):
        return
    seen: set[str] = set()
    for index, name in enumerate(names):
        if fold(name) in seen:
            yield Problem(
                rule="duplicate-name",
                message=f"{kind} {name!r} is named twice",
                pointer=(*at, index, inner) if inner else (*at, index),
            )
        seen.add(fold(name))


def _check_reference(column: Column, known: Known, at: Pointer) -> Iterator[Problem]:
    assert column.reference is not None
    target = known.entities.get(fold(column.reference.entity))
    if target is None:
        unknown = known.unknown_entity(column.reference.entity, (*at, "entity"))
        if unknown is not None:
            yield unknown
        return
    if column.reference.column is None and len(target.key_columns) != 1:
        keys = ", ".join(target.key_columns) or "none"
        yield Problem(
            rule="reference-needs-column",
            message=f"entity {target.name!r} has no single key column to refer to (has: {keys})",
            pointer=at,
            hint="name the column: `reference: {entity: ..., column: ...}`",
        )
        return
    yield from _check_target(column, target, at)


def _check_target(column: Column, target: Entity, at: Pointer) -> Iterator[Problem]:
    assert column.reference is not None
    name = column.reference.column or target.key_columns[0]
    found = target.column(name)
    place: Pointer = (*at, "column") if column.reference.column else at
    if found is None:
        if column.reference.column:  # else the target's own keyColumns are wrong, and say so
            yield from _check_known(target, name, place, no_json=True)
    elif not is_unique(target, found):
        yield Problem(
            rule="reference-not-unique",
            message=f"column {found.name!r} of entity {target.name!r} is not unique",
            pointer=place,
            hint="refer to the single key column, or to a column with `unique: true`",
        )
    elif _stored(found) != _stored(column):
        yield Problem(
            rule="reference-type",
            message=f"column {column.name!r} is {column.data_type.value}, but refers to"
            f" {target.name}.{found.name}, which is {found.data_type.value}",
            pointer=place,
            hint=f"make it `dataType: {found.data_type.value}`",
        )


def is_unique(entity: Entity, column: Column) -> bool:
    """Whether *column* alone identifies a row: the whole key, or unique by itself."""
    alone = (
        tuple(map(fold, constraint.columns)) == (column.folded,)
        for constraint in entity.unique_constraints
    )
    return column.unique or tuple(map(fold, entity.key_columns)) == (column.folded,) or any(alone)


def _stored(column: Column) -> DataType:
    return DataType.TEXT if column.data_type.is_text else column.data_type
