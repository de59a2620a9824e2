"""Data checks as queries: how many live rows would break a new rule, and which ones for example.

Values are seen as they will be after the plan: where a column is being retyped, through its cast.
A constraint holds for every row of a table, so soft-deleted rows count like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from sqlglot import exp

from mdm_gitops.plan.plan import DataCheck, Violation
from mdm_gitops.warehouse.ddl import trees
from mdm_gitops.warehouse.ddl.casts import cast_value, castable
from mdm_gitops.warehouse.ddl.rules import condition
from mdm_gitops.warehouse.ddl.trees import Tree, column, identifier, render, template
from mdm_gitops.warehouse.names import Schemas

MAX_SAMPLES: Final = 5
MAX_SAMPLE_LENGTH: Final = 200  # characters of a value that is shown

# Aliases: the row in question, and another one it is held against.
_ROW, _OTHER = "r", "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckQuery:
    """*count_sql* gives one number, *sample_sql* rows: ``_sys_id``, then the columns as text."""

    count_sql: str
    sample_sql: str


def check_sql(check: DataCheck, *, schemas: Schemas) -> CheckQuery:
    """Return the queries of *check*. One with a ``fixed_count`` need not be asked."""
    broken = _broken_rows(check, schemas)
    if check.violation is Violation.IS_DUPLICATE:
        count = _duplicates(check, schemas)
    else:
        count = broken.select(template("COUNT(*)"))
    shown: list[Tree] = [exp.cast(column("_sys_id", of=_ROW), "text", dialect=trees.DIALECT)]
    shown += [_shown(name) for name in _shown_columns(check)]
    order = [trees.ascending(tree) for tree in _order(check)]
    sample = broken.select(*shown).order_by(*order).limit(MAX_SAMPLES)
    return CheckQuery(count_sql=render(count), sample_sql=render(sample))


def row_condition(check: DataCheck) -> Tree | None:
    """Return the condition of a violating row, where a row is judged by itself alone."""
    match check.violation:
        case Violation.IS_NULL:
            return exp.Is(this=_value(check, check.columns[0]), expression=exp.Null())
        case Violation.BREAKS_RULE:
            value = _value(check, check.columns[0])
            assert check.rule is not None, "a rule that is broken has a kind"
            kept = condition(value, type_=_type(check), rule=check.rule, argument=check.argument)
            return template("(:kept) IS FALSE", kept=kept)
        case Violation.CANNOT_BE_CAST:
            name = check.columns[0]
            test = castable(column(name, of=_ROW), *check.casts[name])
            return exp.Not(this=exp.Paren(this=test))
        case Violation.NEEDS_DEFAULT:
            return exp.Boolean(this=True)
        case Violation.IS_DUPLICATE | Violation.REFERS_TO_NOTHING:
            return None
        case _:
            assert_never(check.violation)


def is_of_one_row(check: DataCheck) -> bool:
    return row_condition(check) is not None


def counts_sql(checks: Sequence[DataCheck], *, schemas: Schemas) -> str:
    """Return one query for many checks on one table, all with a ``row_condition``: one scan."""
    counts: list[Tree] = []
    for check in checks:
        broken = row_condition(check)
        assert broken is not None, "only rows that are judged alone can be counted together"
        where = exp.Where(this=broken)
        counts.append(exp.Filter(this=template("COUNT(*)"), expression=where))
    rows = trees.table(schemas.data, checks[0].table, alias=_ROW)
    return render(exp.select(*counts).from_(rows))


def _broken_rows(check: DataCheck, schemas: Schemas) -> exp.Select:
    rows = exp.Select().from_(trees.table(schemas.data, check.table, alias=_ROW))
    alone = row_condition(check)
    if alone is not None:
        return rows.where(alone)
    if check.violation is Violation.IS_DUPLICATE:
        return rows.where(_is_duplicate(check, schemas))
    return rows.where(*_refers_to_nothing(check, schemas))


def _type(check: DataCheck) -> str:
    cast = check.casts.get(check.columns[0])
    return cast[1] if cast else check.column_type


def _value(check: DataCheck, name: str, *, of: str = _ROW) -> Tree:
    """Return the value of a column as it will be."""
    present = column(name, of=of)
    cast = check.casts.get(name)
    return cast_value(present, *cast) if cast else present


def _alike(check: DataCheck, schemas: Schemas) -> exp.Select:
    """Return the groups of rows that would have the same key, without anything selected yet.

    A null is equal to nothing. A key of new columns alone has their default in every row.
    """
    values = [_value(check, name, of=_OTHER) for name in check.columns]
    rows = exp.Select().from_(trees.table(schemas.data, check.table, alias=_OTHER))
    for value in values:
        rows = rows.where(template("NOT :v IS NULL", v=value)).group_by(value.copy())
    return rows.having(template("COUNT(*) > 1"))


def _is_duplicate(check: DataCheck, schemas: Schemas) -> Tree:
    groups = _alike(check, schemas)
    if not check.columns:
        return exp.Exists(this=groups.select(trees.number(1)))
    key = trees.row([_value(check, name) for name in check.columns])
    theirs = (_value(check, name, of=_OTHER) for name in check.columns)
    return exp.In(this=key, query=exp.Subquery(this=groups.select(*theirs)))


def _duplicates(check: DataCheck, schemas: Schemas) -> exp.Select:
    sizes = _alike(check, schemas).select(template("COUNT(*) AS n"))
    total = template("COALESCE(SUM(g.n), 0)")
    inner = exp.Subquery(this=sizes, alias=exp.TableAlias(this=exp.to_identifier("g")))
    return exp.Select().select(exp.cast(total, "bigint", dialect=trees.DIALECT)).from_(inner)


def _refers_to_nothing(check: DataCheck, schemas: Schemas) -> Iterator[Tree]:
    value = _value(check, check.columns[0])
    yield template("NOT :v IS NULL", v=value)
    if check.target_table is not None:
        assert check.target_column is not None, "a target table is named with its column"
        target = column(check.target_column, of=_OTHER)
        there = cast_value(target, *check.target_cast) if check.target_cast else target
        found = (
            exp.select(trees.number(1))
            .from_(trees.table(schemas.data, check.target_table, alias=_OTHER))
            .where(exp.EQ(this=there, expression=value.copy()))
        )
        yield exp.Not(this=exp.Exists(this=found))
    if check.target_values:
        coming = [trees.literal(each, trees.type_of(each)) for each in check.target_values]
        yield exp.Not(this=exp.In(this=value.copy(), expressions=coming))


def _shown_columns(check: DataCheck) -> tuple[str, ...]:
    return () if check.masked else check.columns


def _shown(name: str) -> Tree:
    text = exp.cast(column(name, of=_ROW), "text", dialect=trees.DIALECT)
    shortened = exp.Left(this=text, expression=trees.number(MAX_SAMPLE_LENGTH))
    return exp.Alias(this=shortened, alias=identifier(name))


def _order(check: DataCheck) -> list[Tree]:
    by_value = check.columns if check.violation is Violation.IS_DUPLICATE else ()
    return [*(_value(check, name) for name in by_value), column("_sys_id", of=_ROW)]
