"""What is said about a plan's changes, in words: data checks, costs, drift, hazards, refusals.

Beside ``plan.words``, which says what the changes are. All formats take their sentences from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, assert_never
from uuid import UUID

from mdm_gitops.model import ChangeClass
from mdm_gitops.model.pattern import to_postgres
from mdm_gitops.model.values import to_json_value
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.human import about, data_type, plural, size, value, visible
from mdm_gitops.plan.physical import Role, RuleKind
from mdm_gitops.plan.plan import (
    Assessment,
    CheckResult,
    DataCheck,
    DriftKind,
    Lock,
    Violation,
)
from mdm_gitops.plan.words import range_words

MOST_SAMPLES: Final = 5
_MOST_LISTED: Final = 20

CLASS_MEANING: Final = MappingProxyType(
    {
        ChangeClass.SAFE: "nobody has to change anything",
        ChangeClass.DATA_DEPENDENT: "fails if live rows break the new rule",
        ChangeClass.BREAKING: "programs that use the old form stop working",
        ChangeClass.SECURITY_WIDENING: "somebody sees or may do more than before",
        ChangeClass.DESTRUCTIVE: "data leaves the visible tables for the archive",
    }
)
DRIFT_WORDS: Final = MappingProxyType(
    {
        DriftKind.MISSING: "missing",
        DriftKind.ALTERED: "altered",
        DriftKind.STRANGE: "not ours",
    }
)
DRIFT_MEANING: Final = (
    "changed by hand; what Git asks for is set right, what is not ours is left alone"
)
AFTER_FAILURE: Final = MappingProxyType(
    {
        Phase.PREPARE: "the new column stays beside the old one, unseen; the next apply goes on",
        Phase.FLIP: "nothing of it stays",
        Phase.ENFORCE: "what was done stays, new rows already obey; the next apply goes on",
        Phase.SEED: "no row of this step is written; the next apply goes on",
        Phase.LINK: "what was done stays, new rows already obey; the next apply goes on",
        Phase.FINISH: "all of it stands; the next apply only has to say so",
    }
)


# --- data checks ----------------------------------------------------------------------------------


def violation_words(result: CheckResult) -> str:
    """Return ``167 rows are null``: how many rows are in the way, and why."""
    check, count = result.check, result.violations
    rows = plural(count, "row")
    match check.violation:
        case Violation.IS_NULL:
            return f"{rows} {_are(count)} null"
        case Violation.BREAKS_RULE:
            return f"{rows} {_rule_broken(check, count)}"
        case Violation.IS_DUPLICATE:
            what = "the same values" if "," in check.column else "a value"
            return f"{rows} {'share' if count != 1 else 'shares'} {what} with another"
        case Violation.REFERS_TO_NOTHING:
            return f"{rows} {'refer' if count != 1 else 'refers'} to nothing{_target(check)}"
        case Violation.CANNOT_BE_CAST:
            where = " of the history" if check.table.endswith(f"__{Role.HISTORY}") else ""
            return f"{plural(count, 'value')}{where} cannot become {_new_type(check)}"
        case Violation.NEEDS_DEFAULT:
            return f"{rows} would have no value"
        case _:
            assert_never(check.violation)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _target(check: DataCheck) -> str:
    if check.target_table is None:
        return ", because the target is new and its seed does not bring the value"
    return f": no such {check.target_table}.{check.target_column}"


def _new_type(check: DataCheck) -> str:
    [(_, new)] = check.casts.values()
    return data_type(new)


def _rule_broken(check: DataCheck, count: int) -> str:
    match check.rule:
        case RuleKind.PATTERN:
            return f"{'does' if count == 1 else 'do'} not match {visible(str(check.argument))}"
        case RuleKind.ALLOWED:
            return f"{'holds' if count == 1 else 'hold'} none of the allowed values"
        case RuleKind.RANGE:
            low, high = check.argument
            if low is None or high is None:
                return f"{_are(count)} not {range_words(check.argument)}"
            return f"{_are(count)} outside {value(low)} to {value(high)}"
        case RuleKind.LENGTH:
            return f"{_are(count)} longer than {plural(check.argument, 'character')}"
        case _:
            raise AssertionError("a helper is no rule of a definition")


def sample_words(sample: Any) -> str:
    """Return ``email null (row 0192…)`` for one violating row."""
    shown = [f"{visible(k)} {_quoted(v)}" for k, v in sample.items() if k != "_sys_id"]
    row = f"row {sample['_sys_id']}" if "_sys_id" in sample else ""
    return f"{', '.join(shown)} ({row})" if shown and row else ", ".join(shown) or row


def _quoted(raw: Any) -> str:
    return f"'{value(raw)}'" if isinstance(raw, str) else value(raw)


def how_to_find(check: DataCheck) -> str:
    """Return the filter (or, where the filter language cannot say it, the SQL) of the rows.

    In names of the live warehouse, as it is before the plan. "" where the whole table is meant.
    """
    condition = _filter(check)
    if condition:
        return f"filter {condition}"
    query = _query(check)
    return f"SQL {query}" if query else ""


def _filter(check: DataCheck) -> str:
    if check.casts or len(check.columns) != 1 or "__" in check.table:
        return ""
    column = f"[{check.columns[0]}]"
    match check.violation, check.rule:
        case Violation.IS_NULL, _:
            return f"{column} IS NULL"
        case Violation.BREAKS_RULE, RuleKind.RANGE:
            low, high = check.argument
            below = [f"{column} < {_literal(low)}"] if low is not None else []
            above = [f"{column} > {_literal(high)}"] if high is not None else []
            return " OR ".join([*below, *above])
        case Violation.BREAKS_RULE, RuleKind.ALLOWED if len(check.argument) <= _MOST_LISTED:
            return f"{column} NOT IN ({', '.join(_literal(each) for each in check.argument)})"
        case _:
            return ""


def _literal(raw: Any) -> str:
    """A literal that means the same in the filter language and in SQL."""
    match raw:
        case bool():
            return "true" if raw else "false"
        case int() | Decimal():
            return str(to_json_value(raw))
        case date() | datetime() | UUID():
            return f"'{to_json_value(raw)}'"
        case _:
            return "'" + visible(str(raw)).replace("'", "''") + "'"


def _query(check: DataCheck) -> str:
    table, columns = _identifier(check.table), [_identifier(name) for name in check.columns]
    match check.violation, check.rule:
        case Violation.BREAKS_RULE, RuleKind.LENGTH:
            condition = f"char_length({columns[0]}::text) > {check.argument}"
        case Violation.BREAKS_RULE, RuleKind.PATTERN:
            condition = f"{columns[0]}::text !~ {_literal(to_postgres(check.argument))}"
        case Violation.IS_NULL, _:
            condition = f"{columns[0]} IS NULL"
        case Violation.CANNOT_BE_CAST, _:
            new = next(new for _, new in check.casts.values())
            condition = f"NOT pg_input_is_valid({columns[0]}::text, {_literal(new)})"
        case Violation.IS_DUPLICATE, _ if columns:
            keys = ", ".join(columns)
            filled = " AND ".join(f"{column} IS NOT NULL" for column in columns)
            groups = f"GROUP BY {keys} HAVING count(*) > 1"
            return f"SELECT {keys}, count(*) FROM {table} WHERE {filled} {groups}"
        case Violation.REFERS_TO_NOTHING, _ if check.target_table and check.target_column:
            target, key = _identifier(check.target_table), _identifier(check.target_column)
            same = f"t.{key}::text = s.{columns[0]}::text"
            lost = (
                f"s.{columns[0]} IS NOT NULL AND NOT EXISTS (SELECT FROM {target} t WHERE {same})"
            )
            return f"SELECT * FROM {table} s WHERE {lost}"
        case _:
            return ""
    return f"SELECT * FROM {table} WHERE {condition}"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- costs, drift, allowances ---------------------------------------------------------------------


def cost_words(costs: Sequence[Assessment]) -> str:
    """Return what the costliest of *costs* takes, "" where it is not worth a word."""
    for verb in ("rewrites", "scans"):
        rows = max((c.rows for c in costs if getattr(c, verb)), default=0)
        if rows:
            size_bytes = max(c.size_bytes for c in costs if getattr(c, verb) and c.rows == rows)
            amount = f" ({size(size_bytes)})" if verb == "rewrites" and size_bytes else ""
            return f"online, {verb} {about(rows, 'row')}{amount}"
    return ""


def lock_words(locks: Iterable[Lock]) -> str:
    """Return how the strongest of *locks* is felt."""
    order = list(Lock)
    match max(locks, key=order.index, default=Lock.NONE):
        case Lock.ACCESS_EXCLUSIVE:
            return "brief lock"
        case Lock.SHARE | Lock.SHARE_ROW_EXCLUSIVE:
            return "writers wait briefly"
        case _:
            return ""
