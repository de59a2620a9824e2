"""The compiled filter passes exactly the rows that the oracle passes, on a real PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from typing import Any

import psycopg
import pytest
from psycopg import sql

from mdm_gitops.filter import (
    Expr,
    TypedFilter,
    compile_predicate,
    conjunction,
    disjunction,
    parse,
    see_through,
    type_check,
    unparse,
)
from mdm_gitops.filter.ast import And, Not, Or
from mdm_gitops.model import DataType
from tests.support.campaign_record import campaign
from tests.unit import filter_samples as samples
from tests.unit.filter_oracle import Oracle, Row, Truth, World

FILTERS_PER_CASE = 100  # in one round trip
FILTERS = 2_000
SOAK_FILTERS = int(os.environ.get("MDM_SOAK_FILTERS", "100000"))

DIFFERENCE = "PostgreSQL and the oracle differ on"

SQL_TYPES = {
    DataType.STRING: "text",
    DataType.TEXT: "text",
    DataType.INT: "integer",
    DataType.LONG: "bigint",
    DataType.DECIMAL: "numeric",
    DataType.BOOL: "boolean",
    DataType.DATE: "date",
    DataType.DATETIME: "timestamptz",
    DataType.GUID: "uuid",
    DataType.JSON: "jsonb",
}
# A schema whose name needs quotes, holds what psycopg reads, and is none of the defaults.
SCHEMA = 'data "100%s'


@pytest.fixture
def database(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
        for entity, types in samples.TYPES.items():
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(SQL_TYPES[data_type]))
                for name, data_type in types.items()
            ]
            conn.execute(
                sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY (_sys_id), UNIQUE (code))").format(
                    table(entity), sql.SQL(", ").join(columns)
                )
            )
        conn.execute(sql.SQL("CREATE INDEX ON {} (country)").format(table("item")))
        yield conn


def table(entity: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, entity)


@pytest.fixture
def lower(database: psycopg.Connection[Any]) -> Callable[[str], str]:
    """The server's own idea of lower case, which ILIKE goes by; character by character."""
    known: dict[str, str] = {}

    def lowered(text: str) -> str:
        unknown = sorted(set(text) - known.keys())
        if unknown:
            query = "SELECT c, lower(c) FROM unnest(%s::text[]) AS c"
            known.update(database.execute(query, (unknown,)).fetchall())
        return "".join(known[character] for character in text)

    return lowered


def load(database: psycopg.Connection[Any], rows: dict[str, list[dict[str, Any]]]) -> None:
    for entity, entity_rows in rows.items():
        name = quoted(database, entity)
        database.execute(
            f"INSERT INTO {name} SELECT (jsonb_populate_record(NULL::{name}, row)).*"
            " FROM unnest(%s::jsonb[]) AS row",
            ([samples.as_json(row) for row in entity_rows],),
        )


def quoted(database: psycopg.Connection[Any], entity: str) -> str:
    return table(entity).as_string(database).replace("%", "%%")


def passing(database: psycopg.Connection[Any], filters: list[TypedFilter]) -> list[set[Any]]:
    """Ask for all *filters* in one statement; each is the WHERE of a query of its own."""
    queries: list[str] = []
    parameters: dict[str, Any] = {}
    for number, typed in enumerate(filters):
        predicate = compile_predicate(
            typed,
            context=samples.CONTEXT,
            schema=SCHEMA,
            alias='the "row"',
            parameter_prefix=f"p{number}_",
        )
        parameters |= predicate.parameters
        queries.append(
            f'SELECT {number}, "the ""row"""._sys_id FROM {quoted(database, "item")} AS "the ""row"""'
            f" WHERE {predicate.sql}"
        )
    found: list[set[Any]] = [set() for _ in filters]
    for number, row in database.execute(" UNION ALL ".join(queries), parameters):
        found[number].add(row)
    return found


def typed_filters(case: samples.Case) -> list[tuple[Expr, TypedFilter]]:
    visible = {
        entity: type_check(expr, samples.DEFINITIONS.entities[entity], samples.DEFINITIONS)
        for entity, expr in case.visible.items()
    }
    typed: list[tuple[Expr, TypedFilter]] = []
    for expr in case.filters:
        assert parse(unparse(expr)) == expr
        checked = type_check(parse(unparse(expr)), samples.ITEM, samples.DEFINITIONS)
        typed.append((expr, see_through(checked, visible)))
    (one, first), (two, second) = typed[0], typed[-1]
    return [
        *typed,
        (And(items=(one, two)), conjunction(first, second)),
        (Or(items=(one, two)), disjunction(first, second)),
    ]


def differing(
    database: psycopg.Connection[Any], judge: Oracle, expr: Expr, case: samples.Case
) -> set[Any]:
    typed = typed_filters(samples.Case(rows=case.rows, filters=[expr], visible=case.visible))
    return passing(database, [typed[0][1]])[0] ^ judge.passing(expr, "item")


def smallest(
    database: psycopg.Connection[Any], judge: Oracle, expr: Expr, case: samples.Case
) -> str:
    """Describe the smallest part of *expr* that PostgreSQL and the oracle judge differently."""
    parts = [expr.item] if isinstance(expr, Not) else list(getattr(expr, "items", ()))
    for part in parts:
        if differing(database, judge, part, case):
            return smallest(database, judge, part, case)
    rows = [
        row for row in case.rows["item"] if row["_sys_id"] in differing(database, judge, expr, case)
    ]
    visible = {entity: unparse(each) for entity, each in case.visible.items()}
    return f"{DIFFERENCE} {unparse(expr)}\nvisible: {visible}\nrow: {rows[0]}"


def compare(
    database: psycopg.Connection[Any],
    lower: Callable[[str], str],
    *,
    filters: int,
    seed: int = 0,
    oracle: type[Oracle] = Oracle,
) -> tuple[int, int]:
    """Compare at least *filters* filters; return how many, and how many passed some rows only."""
    rng = Random(seed)
    done = telling = 0
    while done < filters:
        case = samples.case(rng, filters=FILTERS_PER_CASE)
        for ids, expected in judged(database, oracle(world(case, lower)), case):
            done += 1
            telling += 0 < len(ids) < len(expected)
    return done, telling


def world(case: samples.Case, lower: Callable[[str], str]) -> World:
    return World(
        types=samples.TYPES,
        rows=case.rows,
        references=samples.REFERENCES,
        context=samples.CONTEXT,
        lower=lower,
        visible=case.visible,
    )


def judged(
    database: psycopg.Connection[Any], judge: Oracle, case: samples.Case
) -> Iterator[tuple[set[Any], list[Any]]]:
    filters = typed_filters(case)
    with database.transaction(force_rollback=True):
        load(database, case.rows)
        found = passing(database, [typed for _, typed in filters])
        for (expr, _), ids in zip(filters, found, strict=True):
            if ids != judge.passing(expr, "item"):
                pytest.fail(smallest(database, judge, expr, case))
            yield ids, case.rows["item"]


def test_random_filters_pass_the_rows_that_the_oracle_passes(
    database: psycopg.Connection[Any], lower: Callable[[str], str]
) -> None:
    done, telling = compare(database, lower, filters=FILTERS)
    assert done >= FILTERS
    assert telling > done // 4, "most filters pass all rows or none"


@pytest.mark.soak
def test_very_many_random_filters(
    database: psycopg.Connection[Any], lower: Callable[[str], str]
) -> None:
    seed = SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    with campaign("filters") as record:
        compare(database, lower, filters=SOAK_FILTERS, seed=seed)
        record(filters=SOAK_FILTERS)


EITHER = "([qty] > 100 OR [country].[population] <> 9)"
SELF_JOINS = [
    f"([parent].[qty] BETWEEN 0 AND 1 AND {EITHER}) AND [parent].[_sys_id] = [_sys_id]",
    f"({EITHER} AND [parent].[qty] >= 0) AND [parent].[_sys_id] = [_sys_id]",
    f"([parent].[qty] = 0 AND {EITHER}) AND [parent].[code] = [code]",
]


@pytest.mark.parametrize("text", SELF_JOINS)
def test_joins_of_a_table_with_itself_lose_no_condition(
    database: psycopg.Connection[Any], lower: Callable[[str], str], text: str
) -> None:
    """PostgreSQL 18.4 passes the first row too, if it may merge the joins."""
    rows = samples.case(Random(0), filters=0).rows
    for entity, entity_rows in rows.items():
        for row in entity_rows:
            row |= dict.fromkeys(row.keys() - {"code", "_sys_id", "_sys_version"})
            row |= {"qty": -1, "parent": "a", "country": "CH"} if entity == "item" else {}
            row |= {"population": 1} if entity == "country" else {}
    rows["item"][0] |= {"qty": 0, "parent": "b"}
    rows["item"][2] |= {"qty": 0, "parent": "c"}
    case = samples.Case(rows=rows, filters=[parse(text)], visible={})
    found = [ids for ids, _ in judged(database, Oracle(world(case, lower)), case)]
    assert found[0] == {rows["item"][2]["_sys_id"]}


class NullIsFalse(Oracle):
    def compare(self, left: Any, operator: Any, right: Any) -> Truth:
        return super().compare(left, operator, right) or False


class UnknownIsForgotten(Oracle):
    def all_of(self, truths: Any) -> Truth:
        return all(truth is not False for truth in truths)


class UnderscoreIsALetter(Oracle):
    def like(self, text: str, pattern: str) -> bool:
        return super().like(text, pattern.replace("_", "\\_"))


class PercentIsAWildcardInContains(Oracle):
    def resembles(self, text: str | None, match: Any, pattern: str | None) -> Truth:
        if match == "CONTAINS" and text is not None and pattern is not None:
            return self.like(text, "%" + pattern.replace("\\", "\\\\") + "%")
        return super().resembles(text, match, pattern)


class OrderIgnoresCase(Oracle):
    def compare(self, left: Any, operator: Any, right: Any) -> Truth:
        if isinstance(left, str) and isinstance(right, str) and "=" not in operator:
            left, right = left.lower(), right.lower()
        return super().compare(left, operator, right)


class EverythingIsVisible(Oracle):
    def follow(self, entity: str, reference: str, row: Row) -> Row | None:
        self.world.visible = {}
        return super().follow(entity, reference, row)


@pytest.mark.parametrize(
    "broken",
    [
        NullIsFalse,
        UnknownIsForgotten,
        UnderscoreIsALetter,
        PercentIsAWildcardInContains,
        OrderIgnoresCase,
        EverythingIsVisible,
    ],
)
def test_a_broken_oracle_is_noticed(
    database: psycopg.Connection[Any], lower: Callable[[str], str], broken: type[Oracle]
) -> None:
    """Negative control: the comparison has teeth for each kind of mistake."""
    with pytest.raises(pytest.fail.Exception, match=DIFFERENCE):
        compare(database, lower, filters=FILTERS, oracle=broken)


INDEXED = [
    ("[code] = 'a'", "code = "),
    ("[code] IN ('a', 'b')", "code = ANY"),
    ("[country] = 'CH' AND [qty] = 1", "country = "),
    ("[country].[code] = 'CH'", "country = "),
    ("[parent].[qty] = 1", "code = "),
    ("[_sys_id] = '00000000-0000-0000-0000-000000000001'", "_sys_id = "),
]


@pytest.mark.parametrize(("text", "condition"), INDEXED)
def test_equality_and_references_can_use_an_index(
    database: psycopg.Connection[Any], text: str, condition: str
) -> None:
    """With a million rows it would; with none the planner is told not to read them all."""
    predicate = compile_predicate(
        type_check(parse(text), samples.ITEM, samples.DEFINITIONS),
        context=samples.CONTEXT,
        schema=SCHEMA,
        alias="t",
    )
    database.execute("SET enable_seqscan = off")
    query = f"EXPLAIN SELECT 1 FROM {quoted(database, 'item')} AS t WHERE {predicate.sql}"
    plan = "\n".join(line for (line,) in database.execute(query, predicate.parameters))
    assert f"Index Cond: ({condition}" in plan.replace("(t.", "(").replace("(f_r0.", "("), plan


def test_the_heaviest_pattern_on_long_text_is_quick(database: psycopg.Connection[Any]) -> None:
    """LIKE is the only operator whose cost depends on what the user wrote."""
    text = "[title] LIKE '" + "%a" * 2_000 + "_b'"
    predicate = compile_predicate(
        type_check(parse(text), samples.ITEM, samples.DEFINITIONS),
        context=samples.CONTEXT,
        schema=SCHEMA,
        alias="t",
    )
    item = quoted(database, "item")
    database.execute(f"INSERT INTO {item} (_sys_id, title) VALUES (gen_random_uuid(), %s)",
                     ("a" * 65_536,))  # fmt: skip
    database.execute("SET statement_timeout = '5s'")
    query = f"SELECT count(*) FROM {item} AS t WHERE {predicate.sql}"
    assert database.execute(query, predicate.parameters).fetchone() == (0,)
