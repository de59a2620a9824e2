"""The tests of ``access-tests.yaml`` against the rows, through the filter that reads go through.

A test sees what a list sees: active rows that pass the row filter of its action. Only keys that the
test itself names are looked up and told; of all others nothing but their number leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection, errors

from mdm_gitops.access import rights_of
from mdm_gitops.access.testing import judge, result_of, who_asks
from mdm_gitops.data.access_prospect import DRIFTED, DRIFTED_WORDS, Prospect
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.selecting import conditions_on, predicate_values, rows_source, where_clause
from mdm_gitops.errors import AccessDenied
from mdm_gitops.filter import TypedFilter, columns_used
from mdm_gitops.model import Entity, fold
from mdm_gitops.model.access_test_checks import key_values
from mdm_gitops.model.access_tests import AccessTest, Expectation, Key
from mdm_gitops.model.column_checks import shown
from mdm_gitops.plan.access_report import TestResult, Verdict
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.physical import physical_type
from mdm_gitops.warehouse.store import StoredEntity

_MOST_NAMED: Final = 5
TOO_SLOW: Final = "its rows could not be counted in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """*reached*, *total*: None where nobody asked. Per named key: whether it is there, and reached."""

    reached: int | None
    total: int | None
    there: tuple[bool, ...]
    within: tuple[bool, ...]


async def run_test(conn: AsyncConnection[Any], test: AccessTest, prospect: Prospect) -> TestResult:
    """Judge *test* under the permissions that are asked for; *conn* is in a transaction."""
    definitions, after, name = prospect.definitions, prospect.after, fold(test.entity)
    definition = prospect.definition(name)
    principal = who_asks(test, admin_role=prospect.admin_role, state=after)
    judged = judge(test, definition, rights_of(principal, definition, after))
    if judged.failures:
        return result_of(test, definitions, Verdict.FAILED, *judged.failures)
    if not judged.needs_rows:
        return result_of(test, definitions, Verdict.PASSED)
    verdict, *words = await _by_rows(conn, test, prospect, prospect.asking(principal, after))
    return result_of(test, definitions, Verdict(verdict), *words)


async def _by_rows(
    conn: AsyncConnection[Any], test: AccessTest, prospect: Prospect, asking: Asking
) -> tuple[str, ...]:
    expect, name = test.expect, fold(test.entity)
    assert isinstance(expect, Expectation), "only they need rows"
    stored = asking.state.entities.get(name)
    if stored is None:
        return Verdict.UNCHECKED, prospect.why_not_yet(name, ())
    try:
        typed = row_filter(asking, stored.definition, test.action)
    except AccessDenied as error:
        if error.kind_code == "TIER_REQUIRED":
            return Verdict.FAILED, str(error)
        return Verdict.UNCHECKED, "its row filter is about columns that are not deployed yet"
    named = prospect.definition(name)
    keys = named.key_columns if expect.named_rows else ()
    used = {(name, fold(column)) for column in keys} | (columns_used(typed) if typed else set())
    if reason := prospect.why_not_yet(name, used):
        return Verdict.UNCHECKED, reason
    try:
        async with conn.transaction():  # a savepoint: what is too slow ends nothing else
            found = await _ask(conn, asking, stored, typed, expect, named)
    except errors.QueryCanceled:
        return Verdict.FAILED, TOO_SLOW
    except DRIFTED:
        return Verdict.UNCHECKED, DRIFTED_WORDS
    failures = tuple(_failures(expect, found))
    if failures:
        return Verdict.FAILED, *failures
    absent = [key for key, there in zip(expect.named_rows, found.there, strict=True) if not there]
    notes = [f"there is no row {_names(absent)}, so nothing was hidden"] if absent else []
    return Verdict.PASSED, *notes


async def _ask(
    conn: AsyncConnection[Any],
    asking: Asking,
    stored: StoredEntity,
    typed: TypedFilter | None,
    expect: Expectation,
    named: Entity,
) -> _Found:
    active = conditions_on(asking, None, RowState.ACTIVE)
    reached = conditions_on(asking, typed, RowState.ACTIVE)
    source = rows_source(asking, stored, RowState.ACTIVE)
    counts = expect.rows is not None or expect.count is not None or expect.all
    there, values = _named(named, expect.named_rows, source, active)
    within, _ = _named(named, expect.named_rows, source, reached)
    query = (
        f"SELECT {_count(source, reached) if counts else 'NULL'},"
        f" {_count(source, active) if expect.all else 'NULL'},\n {there},\n {within}"
    )
    placed = [("f", "t", typed)] if typed is not None else []
    values |= predicate_values(asking, placed)
    row = await (await conn.execute(query.encode(), values)).fetchone()
    assert row is not None, "it selects from nothing"
    return _Found(reached=row[0], total=row[1], there=tuple(row[2]), within=tuple(row[3]))


def _count(source: str, conditions: Sequence[str]) -> str:
    return f"(SELECT count(*) FROM {source}{where_clause(conditions)})"


def _named(
    entity: Entity, keys: Sequence[Key], source: str, conditions: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return an array that says of each key whether a row with it passes, and its parameters."""
    if not keys:
        return "ARRAY[]::boolean[]", {}
    typed = [key_values(entity, key) for key in keys]
    values, lists, same = dict[str, Any](), [], []
    for number, name in enumerate(entity.key_columns):
        column = entity.column_by_name[fold(name)]
        values[f"k{number}"] = [each[number] for each in typed]
        # Without precision and scale: a key is compared as it is written, not as it would be stored.
        lists.append(f"%(k{number})s::{physical_type(column).partition('(')[0]}[]")
        same.append(f't."{column.folded}" = w."k{number}"')
    names = ", ".join(f'"k{number}"' for number in range(len(lists)))
    exists = f"EXISTS (SELECT FROM {source}{where_clause([*conditions, *same])})"
    unnested = f"unnest({', '.join(lists)}) WITH ORDINALITY AS w({names}, n)"
    return f"ARRAY(SELECT {exists} FROM {unnested} ORDER BY w.n)", values


def _failures(expect: Expectation, found: _Found) -> Iterator[str]:
    named = list(zip(expect.named_rows, found.there, found.within, strict=True))
    excluded = len(named) - len(expect.excludes)
    missing = [(key, there) for key, there, within in named[:excluded] if not within]
    if absent := [key for key, there in missing if not there]:
        yield f"there is no row {_names(absent)}"
    if hidden := [key for key, there in missing if there]:
        yield f"row {_names(hidden)} is not reached"
    if seen := [key for key, _, within in named[excluded:] if within]:
        yield f"row {_names(seen)} is reached"
    reached = found.reached
    if expect.rows is not None and reached is not None:
        if more := reached - sum(found.within):
            yield f"{plural(more, 'row')} more than expected {'is' if more == 1 else 'are'} reached"
    elif expect.count is not None and reached != expect.count:
        yield f"{plural(reached or 0, 'row')} reached, {expect.count:,} expected"
    elif expect.all and reached != found.total:
        yield f"{reached:,} of {plural(found.total or 0, 'row')} reached, all expected"


def _names(keys: Sequence[Key]) -> str:
    more = len(keys) - _MOST_NAMED
    text = ", ".join(shown(key) for key in keys[:_MOST_NAMED])
    return f"{text} and {more:,} more" if more > 0 else text
