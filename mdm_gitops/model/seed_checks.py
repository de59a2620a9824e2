"""Whether the rows of a seed may stand in their entity.

Rows are judged column by column, each distinct value once: reference data repeats itself, and a
file may hold hundreds of thousands of rows. That a referenced row exists is left to the database:
it may come from another seed, or be there already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mdm_gitops.model.column_checks import ValueJudge, shown
from mdm_gitops.model.entity import Column, Entity
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Problem
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.model.values import DataType

Row = Mapping[str, Any]


def normalise_names(entity: Entity, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows with columns spelt as the definition spells them; unknown ones stay."""
    written = set[str]().union(*rows)
    spelling = {name: column.name for name in written if (column := entity.column(name))}
    if all(name == right for name, right in spelling.items()):
        return rows
    return [{spelling.get(name, name): value for name, value in row.items()} for row in rows]


def check_names(entity: Entity, rows: Sequence[Row]) -> Iterator[Problem]:
    """Yield columns that do not exist or are named twice in a row; to be done before the rest."""
    if not entity.key_columns:
        yield Problem(
            rule="seed-without-key",
            message=f"entity {entity.name!r} has no keyColumns, so it cannot be seeded",
            pointer=(),
            hint="a seed finds its rows again by the key",
        )
    shapes = {tuple(row): index for index, row in reversed(list(enumerate(rows)))}
    for shape, index in sorted(shapes.items(), key=lambda item: item[1]):
        seen: set[str] = set()
        for name in shape:
            if entity.column(name) is None:
                yield _unknown_column(entity, name, index)
            elif fold(name) in seen:
                yield Problem(
                    rule="duplicate-key",
                    message=f"row {index + 1}: column {name!r} is here twice",
                    pointer=(index, name),
                    on_key=True,
                )
            seen.add(fold(name))


def _unknown_column(entity: Entity, name: str, index: int) -> Problem:
    names = [column.name for column in entity.columns]
    system = name.startswith("_sys_")
    return Problem(
        rule="system-column" if system else "unknown-column",
        message=f"row {index + 1}: {name!r} is a system column and cannot be written"
        if system
        else f"row {index + 1}: entity {entity.name!r} has no column {name!r}",
        pointer=(index, name),
        on_key=True,
        hint="" if system else did_you_mean(name, names),
    )


def check_rows(entity: Entity, rows: Sequence[Row]) -> Iterator[Problem]:
    """Yield wrong values; *rows* have passed ``normalise_names`` and ``check_names``."""
    refused: set[int] = set()
    for column in entity.columns:
        for problem in _check_column(column, rows):
            refused.add(int(problem.pointer[0]))
            yield problem
    unique_sets = [("key", entity.key_columns)]
    unique_sets += [
        (f"unique {column.name}", (column.name,)) for column in entity.columns if column.unique
    ]
    unique_sets += [(each.name, each.columns) for each in entity.unique_constraints]
    for name, names in unique_sets:
        columns = [found for each in names if (found := entity.column(each))]
        yield from _check_unique(name, columns, rows, refused)


def _check_column(column: Column, rows: Sequence[Row]) -> Iterator[Problem]:
    required = not column.nullable
    may_be_absent = not required or column.default is not None
    judge = ValueJudge.of(column)
    name = column.name
    known: dict[tuple[type, Any], str] = {}
    hashable = column.data_type is not DataType.JSON
    for index, row in enumerate(rows):
        raw = row.get(name)
        if raw is None:
            if required and (name in row or not may_be_absent):
                yield _missing(column, index, written=name in row)
            continue
        if hashable and not isinstance(raw, dict | list):
            key = (type(raw), raw)
            why = known.get(key)
            if why is None:
                why = known[key] = judge.why_refused(raw)
        else:
            why = judge.why_refused(raw)
        if why:
            yield Problem(
                rule="bad-value",
                message=f"row {index + 1}: {name} {shown(raw)} {why}",
                pointer=(index, name),
            )


def _missing(column: Column, index: int, *, written: bool) -> Problem:
    return Problem(
        rule="required",
        message=f"row {index + 1}: {column.name} is "
        + ("null, but the column is not nullable" if written else "missing, but required"),
        pointer=(index, column.name),
    )


def _check_unique(
    kind: str, columns: Sequence[Column], rows: Sequence[Row], refused: set[int]
) -> Iterator[Problem]:
    """Equal values are equal after typing (1.0 and 1.00); rows with a null differ from all."""
    first: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        if index in refused:
            continue
        values = tuple(column.typed(row.get(column.name, column.default)) for column in columns)
        if None in values or not values:
            continue
        earlier = first.setdefault(values, index)
        if earlier != index:
            text = ", ".join(shown(row.get(column.name, column.default)) for column in columns)
            yield Problem(
                rule="duplicate-row",
                message=f"row {index + 1}: {kind} ({text}) is that of row {earlier + 1} too",
                pointer=(index, columns[0].name),
            )
