"""What must hold in ``access-tests.yaml`` before a test can be judged at all.

Whether the permissions pass a test is not asked here: a test that fails is not a mistake of its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mdm_gitops.model.access import Action
from mdm_gitops.model.access_checks import why_not_principal
from mdm_gitops.model.access_tests import AccessTest, AccessTests, Expectation, Key
from mdm_gitops.model.column_checks import shown
from mdm_gitops.model.entity import Entity, Scalar
from mdm_gitops.model.known import Known
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.model.values import NotOfType

_WITH_ROWS: Final = (Action.READ, Action.WRITE, Action.APPROVE)


def check_access_tests(tests: AccessTests, known: Known) -> Iterator[Problem]:
    names: dict[str, int] = {}
    for index, test in enumerate(tests.tests):
        at: Pointer = ("tests", index)
        if names.setdefault(test.name.strip(), index) != index or not test.name.strip():
            what = f"test {test.name!r} is here twice" if test.name.strip() else "test has no name"
            yield Problem(rule="duplicate-name", message=what, pointer=(*at, "name"))
        yield from _check_principal(test, at)
        yield from _check_expectation(test, at)
        entity = known.entities.get(fold(test.entity))
        if entity is not None:
            yield from _check_columns(test, entity, at)
            yield from _check_keys(test, entity, at)
        elif (unknown := known.unknown_entity(test.entity, (*at, "entity"))) is not None:
            yield unknown


def _check_principal(test: AccessTest, at: Pointer) -> Iterator[Problem]:
    if refused := why_not_principal(test.principal):
        message = f"principal {test.principal[:60]!r} {refused}"
        yield Problem(rule="bad-principal", message=message, pointer=(*at, "principal"))
    for number, group in enumerate(test.groups):
        if refused := why_not_principal(group) or _why_not_group(group):
            message = f"group {group[:60]!r} {refused}"
            yield Problem(rule="bad-principal", message=message, pointer=(*at, "groups", number))


def _why_not_group(group: str) -> str:
    prefix, colon, _ = group.partition(":")
    return "is written without group:" if colon and prefix == "group" else ""


def _check_expectation(test: AccessTest, at: Pointer) -> Iterator[Problem]:
    expect, place = test.expect, (*at, "expect")
    if not isinstance(expect, Expectation):
        return
    if not (expect.asks_for_rows or expect.masked or expect.visible):
        hint = "write denied, allowed, or rows, count, all, includes, excludes, masked, visible"
        yield Problem(
            rule="no-expectation", message="nothing is expected", pointer=place, hint=hint
        )
    if expect.asks_for_rows and test.action not in _WITH_ROWS:
        yield _contradiction(f"{test.action.value} reaches no rows of its own", place)
    if (expect.masked or expect.visible) and test.action is not Action.READ:
        yield _contradiction("columns are masked for the action read", place)
    exact = [n for n in ("rows", "count", "all") if getattr(expect, n) not in (None, False)]
    if len(exact) > 1:
        yield _contradiction(f"{' and '.join(exact)} say the same; keep one", place)
    if exact[:1] == ["rows"] and (expect.includes or expect.excludes):
        yield _contradiction("rows says it exactly; leave includes and excludes out", place)
    if expect.all and expect.excludes:
        yield _contradiction("all rows are expected, so none can be excluded", place)
    for one, other in (("includes", "excludes"), ("masked", "visible")):
        yield from _check_apart(expect, one, other, place)


def _contradiction(message: str, place: Pointer) -> Problem:
    return Problem(rule="contradiction", message=message, pointer=place)


def _check_apart(expect: Expectation, one: str, other: str, place: Pointer) -> Iterator[Problem]:
    for number, each in enumerate(getattr(expect, other)):
        if each in getattr(expect, one):
            message = f"{shown(each)} is in both {one} and {other}"
            yield Problem(rule="contradiction", message=message, pointer=(*place, other, number))


def _check_columns(test: AccessTest, entity: Entity, at: Pointer) -> Iterator[Problem]:
    if not isinstance(test.expect, Expectation):
        return
    for member in ("masked", "visible"):
        for number, name in enumerate(getattr(test.expect, member)):
            if entity.column(name) is None:
                yield Problem(
                    rule="unknown-column",
                    message=f"entity {entity.name!r} has no column {name!r}",
                    pointer=(*at, "expect", member, number),
                    hint=did_you_mean(name, [column.name for column in entity.columns]),
                )


def _check_keys(test: AccessTest, entity: Entity, at: Pointer) -> Iterator[Problem]:
    if not isinstance(test.expect, Expectation):
        return
    for member in ("rows", "includes", "excludes"):
        seen: set[tuple[object, ...]] = set()
        for number, key in enumerate(getattr(test.expect, member) or ()):
            place = (*at, "expect", member, number)
            try:
                values = key_values(entity, key)
            except NotOfType as error:
                yield Problem(rule="bad-key", message=str(error), pointer=place)
                continue
            if values in seen:
                message = f"row {shown(key)} is here twice"
                yield Problem(rule="duplicate-row", message=message, pointer=place)
            seen.add(values)


def key_values(entity: Entity, key: Key) -> tuple[object, ...]:
    """Return *key* as typed values in the order of the entity's key columns.

    Raises:
        NotOfType: it is no key of *entity*; the message says why.
    """
    given = _by_column(entity, key)
    values = []
    for name in entity.key_columns:
        column = entity.column(name)
        if column is None:
            raise NotOfType(f"entity {entity.name!r} has no column {name!r}, which is in its key")
        try:
            values.append(column.typed(given[fold(name)]))
        except NotOfType as error:
            raise NotOfType(f"{name} {shown(given[fold(name)])} {error}") from None
    return tuple(values)


def _by_column(entity: Entity, key: Key) -> Mapping[str, Scalar]:
    columns: Sequence[str] = entity.key_columns
    if not columns:
        raise NotOfType(f"entity {entity.name!r} has no keyColumns; use count or all")
    if isinstance(key, dict):
        given = {fold(name): value for name, value in key.items()}
        if given.keys() != {fold(name) for name in columns} or len(given) != len(key):
            raise NotOfType(f"a row of {entity.name!r} is named by {', '.join(columns)}")
        return given
    if len(columns) > 1:
        names = ", ".join(f"{name}: ..." for name in columns)
        raise NotOfType(f"a row of {entity.name!r} has a key of several columns: {{{names}}}")
    return {fold(columns[0]): key}
