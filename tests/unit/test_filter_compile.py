"""The SQL of a filter: its shape, its parameters, and that no text of a user is in it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from mdm_gitops.errors import FilterError
from mdm_gitops.filter import (
    Predicate,
    compile_predicate,
    conjunction,
    only_found,
    parse,
    see_through,
    type_check,
)
from mdm_gitops.filter import compile as compiler
from tests.unit.filter_samples import CONTEXT, DEFINITIONS, ITEM


def compiled(text: str, **options: Any) -> Predicate:
    typed = type_check(parse(text), ITEM, DEFINITIONS)
    defaults = {"context": CONTEXT, "schema": "mdm_data", "alias": "t"}
    return compile_predicate(typed, **(defaults | options))


SQL: list[tuple[str, str, dict[str, Any]]] = [
    ("[QTY] = 5", '"t"."qty" = CAST(%(f0)s AS INT)', {"f0": 5}),
    ("[qty] <> 5", '"t"."qty" <> CAST(%(f0)s AS INT)', {"f0": 5}),
    ("[qty] < [big]", '"t"."qty" < "t"."big"', {}),
    ("[code] = 'x'", '"t"."code" = CAST(%(f0)s AS TEXT)', {"f0": "x"}),
    ("[code] >= 'x'", '"t"."code" COLLATE "C" >= CAST(%(f0)s AS TEXT)', {"f0": "x"}),
    ("[code] < [title]", '"t"."code" COLLATE "C" < "t"."title"', {}),
    ("[active] = true", '"t"."active" = CAST(%(f0)s AS BOOLEAN)', {"f0": True}),
    ("[doc] IS NULL", '"t"."doc" IS NULL', {}),
    ("[doc] IS NOT NULL", 'NOT "t"."doc" IS NULL', {}),
    ("[qty] IN (1, null)", '"t"."qty" = ANY(CAST(%(f0)s AS INT[]))', {"f0": [1, None]}),
    ("[qty] NOT IN (1)", '"t"."qty" <> ALL (CAST(%(f0)s AS INT[]))', {"f0": [1]}),
    (
        "[owner] IN (groups(), 'x', me())",
        '"t"."owner" = ANY(CAST(%(f0)s AS TEXT[]))',
        {"f0": ["me", "é", "\\", "x", "a%b"]},
    ),
    ("[code] LIKE 'a\\_%'", '"t"."code" LIKE CAST(%(f0)s AS TEXT)', {"f0": "a\\_%"}),
    ("[code] ILIKE 'a'", '"t"."code" ILIKE CAST(%(f0)s AS TEXT)', {"f0": "a"}),
    ("[code] LIKE null", '"t"."code" LIKE CAST(%(f0)s AS TEXT)', {"f0": None}),
    (
        "[code] NOT CONTAINS '5\\%_'",
        'NOT "t"."code" LIKE CAST(%(f0)s AS TEXT)',
        {"f0": "%5\\\\\\%\\_%"},
    ),
    ("[code] STARTSWITH me()", '"t"."code" LIKE CAST(%(f0)s AS TEXT)', {"f0": "a\\%b%"}),
    ("[code] ENDSWITH ''", '"t"."code" LIKE CAST(%(f0)s AS TEXT)', {"f0": "%"}),
    ("[code] CONTAINS null", '"t"."code" LIKE CAST(%(f0)s AS TEXT)', {"f0": None}),
    ("[born] = today()", '"t"."born" = CAST(%(f0)s AS DATE)', {"f0": date(2024, 2, 29)}),
    (
        "[seen] < today()",
        '"t"."seen" < CAST(%(f0)s AS TIMESTAMPTZ)',
        {"f0": datetime(2024, 2, 29, tzinfo=UTC)},
    ),
    ("[seen] < now()", '"t"."seen" < CAST(%(f0)s AS TIMESTAMPTZ)', {"f0": CONTEXT.now}),
    (
        "NOT ([qty] = 1 AND [big] = 2) AND [qty] = 3",
        ('("t"."qty" <> CAST(%(f0)s AS INT) OR "t"."big" <> CAST(%(f1)s AS BIGINT))'
        ' AND "t"."qty" = CAST(%(f2)s AS INT)'),
        {"f0": 1, "f1": 2, "f2": 3},
    ),
    (
        "[country].[name] = 'x'",
        ('EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r0" WHERE "f_r0"."code" = "t"."country"'
        ' AND "f_r0"."name" = CAST(%(f0)s AS TEXT))'),
        {"f0": "x"},
    ),
    (
        "[country].[name] IS NULL",
        ('NOT EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r0"'
        ' WHERE "f_r0"."code" = "t"."country" AND NOT "f_r0"."name" IS NULL)'),
        {},
    ),
    (
        "[country].[population] BETWEEN 1 AND [qty] AND [country].[name] CONTAINS 'x'",
        ('EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r0" WHERE "f_r0"."code" = "t"."country"'
        ' AND (("f_r0"."population" >= CAST(%(f0)s AS BIGINT) AND "f_r0"."population" <= "t"."qty")'
        ' AND "f_r0"."name" LIKE CAST(%(f1)s AS TEXT)))'),
        {"f0": 1, "f1": "%x%"},
    ),
    (
        "[parent].[qty] = [country].[population]",
        ('EXISTS(SELECT 1 FROM "mdm_data"."item" AS "f_r0" WHERE "f_r0"."code" = "t"."parent"'
        ' AND EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r1"'
        ' WHERE "f_r1"."code" = "t"."country" AND "f_r0"."qty" = "f_r1"."population") OFFSET 0)'),
        {},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sql", "parameters"), SQL)
def test_a_filter_becomes_a_condition_with_parameters(
    text: str, sql: str, parameters: dict[str, Any]
) -> None:
    assert compiled(text) == Predicate(sql=sql, parameters=parameters)


def test_an_or_of_conditions_on_one_referenced_row_asks_once() -> None:
    assert compiled("[country].[name] = 'x' OR [country].[population] = 1").sql.count("EXISTS") == 1


def test_only_the_first_question_to_a_table_may_become_a_join() -> None:
    row_filter = type_check(parse("[country].[name] = 'x'"), ITEM, DEFINITIONS)
    asked = type_check(parse("[country].[population] = 1"), ITEM, DEFINITIONS)
    both = compile_predicate(
        conjunction(row_filter, asked), context=CONTEXT, schema="mdm_data", alias="t"
    )
    assert both.sql.count("EXISTS") == 1, "the same row is asked once"
    mixed = compiled(
        "([country].[name] = 'x' AND ([country].[name] = 'y' OR [qty] = 1)) AND [qty] = 2"
    )
    assert (mixed.sql.count("EXISTS"), mixed.sql.count("OFFSET 0")) == (2, 1)
    assert compiled("[parent].[qty] = 1").sql.count("OFFSET 0") == 1


def test_a_hidden_row_counts_as_absent() -> None:
    typed = type_check(parse("[country].[name] IS NULL"), ITEM, DEFINITIONS)
    rule = type_check(
        parse("[neighbour].[code] = me()"), DEFINITIONS.entities["country"], DEFINITIONS
    )
    sql = compile_predicate(
        see_through(typed, {"country": rule}), context=CONTEXT, schema="mdm_data", alias="t"
    ).sql
    assert sql == (
        'NOT EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r0"'
        ' WHERE "f_r0"."code" = "t"."country" AND NOT "f_r0"."name" IS NULL AND'
        ' EXISTS(SELECT 1 FROM "mdm_data"."country" AS "f_r1"'
        ' WHERE "f_r1"."code" = "f_r0"."neighbour" AND "f_r1"."code" = CAST(%(f0)s AS TEXT)'
        " OFFSET 0))"
    )


def test_references_may_lead_into_relations_of_the_statement() -> None:
    predicate = compiled("[country].[name] = 'x'", relation_prefix="led_")
    assert predicate.sql == (
        'EXISTS(SELECT 1 FROM "led_country" AS "f_r0" WHERE "f_r0"."code" = "t"."country"'
        ' AND "f_r0"."name" = CAST(%(f0)s AS TEXT))'
    )


COUNTRY = 'SELECT 1 FROM "s"."country"'
UNNAMED = (
    f'"t"."country" IS NULL OR (NOT EXISTS({COUNTRY} AS "f_r0" WHERE "f_r0"."code" = "t"."country"'
    f' AND NOT "f_r0"."name" IS NULL) AND EXISTS({COUNTRY} AS "f_r1"'
    ' WHERE "f_r1"."code" = "t"."country" AND NOT "f_r1"."code" IS NULL OFFSET 0))'
)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("[country].[name] IS NULL", UNNAMED),
        (
            "[title] = null AND ([country].[name] IS NULL OR [title] IS NULL)",
            f'"t"."title" = CAST(%(f0)s AS TEXT) AND (({UNNAMED}) OR "t"."title" IS NULL)',
        ),
        (
            "[country].[name] IS NOT NULL",
            (
                f'EXISTS({COUNTRY} AS "f_r0" WHERE "f_r0"."code" = "t"."country"'
                ' AND NOT "f_r0"."name" IS NULL)'
            ),
        ),
    ],
)
def test_a_filter_that_keeps_rows_back_wants_the_row_that_is_referred_to(
    text: str, sql: str
) -> None:
    typed = only_found(type_check(parse(text), ITEM, DEFINITIONS))
    assert compile_predicate(typed, context=CONTEXT, schema="s", alias="t").sql == sql


def test_names_of_the_caller_are_quoted_and_kept_from_psycopg() -> None:
    found = compiled(
        "[qty] = 1 AND [country].[name] = 'x'",
        schema='da"ta%s',
        alias='a"%(x)s',
        parameter_prefix="mine",
    )
    assert found.sql == (
        '"a""%%(x)s"."qty" = CAST(%(mine0)s AS INT) AND EXISTS(SELECT 1'
        ' FROM "da""ta%%s"."country" AS "mine_r0"'
        ' WHERE "mine_r0"."code" = "a""%%(x)s"."country"'
        ' AND "mine_r0"."name" = CAST(%(mine1)s AS TEXT))'
    )


def test_the_shape_is_kept_and_the_context_fills_it() -> None:
    typed = type_check(parse("[owner] = me() AND [qty] = 77"), ITEM, DEFINITIONS)
    before = compiler._shape.cache_info().hits
    for name in ("one", "two", "three"):
        context = compiler.FilterContext(today=CONTEXT.today, now=CONTEXT.now, me=name)
        found = compile_predicate(typed, context=context, schema="mdm_data", alias="t")
        assert found.parameters == {"f0": name, "f1": 77}
    assert compiler._shape.cache_info().hits == before + 2


INJECTIONS = [
    "[title]='x'' OR ''1''=''1'",
    "[title]='x'' ; DROP TABLE item; --'",
    "[title] = '%(f1)s'",
    "[title] = '%s%%'",
    "[title] = '\\''; SELECT 1; --'",
    "[title] LIKE '%'' OR 1=1 --'",
    "[title] IN ('x'')', 'y')",
    "[title] = '$1'",
    "[title] = 'U&\\0027'",
    "[title] = 'E\\'''",
    "[title] STARTSWITH '\"; DROP SCHEMA mdm_data CASCADE; --'",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_text_of_a_user_is_never_in_the_sql(text: str) -> None:
    """What is written in quotes is a parameter; the SQL is one of a few known shapes."""
    shapes = {
        '"t"."title" = CAST(%(f0)s AS TEXT)',
        '"t"."title" LIKE CAST(%(f0)s AS TEXT)',
        '"t"."title" = ANY(CAST(%(f0)s AS TEXT[]))',
    }
    assert compiled(text).sql in shapes


NOT_FILTERS = [
    "[qty]=1) OR (1=1",
    "[qty]=1;DROP TABLE item",
    "[qty]=1 UNION SELECT 1",
    "[qty]/*x*/=1",
    "[qty]=1 -- x",
    '[qty"=1 OR "1]=1',
    "[t.qty]=1",
    "[qty]::text = '1'",
    "[qty]=(SELECT 1)",
    "[qty]=pg_sleep(10)",
    "[pg_sleep(10)]=1",
    "[ctid]='(0,1)'",
    "[tableoid]=1",
    "[title] ~ 'x'",
    "[title] || 'x' = 'y'",
    "[country].[title] = 'x'",
    "[_sys_secret] = 'x'",
    "[title]=\x00",
    "[title]='\x00'",
    "[title]=E'x'",
    "[title]=$$x$$",
]


@pytest.mark.parametrize("text", NOT_FILTERS)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        compiled(text)


def test_the_largest_filters_compile() -> None:
    """The recursion follows parentheses alone, however many conditions there are."""
    chain = " OR ".join(["[qty]=1 AND [big]=2"] * 100)
    assert compiled(chain).sql.count("=") == 200
    ranges = " AND ".join(["[parent].[qty] NOT BETWEEN 1 AND 2"] * 190)
    assert len(compiled(ranges).parameters) == 380
    deep = "NOT (" * 16 + "[qty]=1 AND ([big]=2 OR [qty]=3)" + ")" * 16
    with pytest.raises(FilterError, match="nested deeper"):
        compiled(deep)
    assert compiled(deep[5:-1]).sql.count("%(f") == 3
    long_list = f"[qty] IN ({','.join(['1'] * 1_000)})"
    assert len(compiled(long_list).parameters["f0"]) == 1_000
