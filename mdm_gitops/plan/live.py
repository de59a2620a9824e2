"""The live catalog as values, and its reading as physical objects.

``LiveRelation`` is what the store's function ``live_relation`` returns. ``interpret`` turns it into
a ``Table`` of the same type that ``plan.physical`` renders. Columns, indexes and foreign keys are
read by their structure; expressions (checks, defaults, views) by comparison with what PostgreSQL
printed right after we created them: equal text means the recorded rule still stands, any other text
means that somebody changed it by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    check_name,
)

Objects = Mapping[str, Mapping[str, Any]]
_NOTHING: Final[Objects] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ByHand:
    """A default whose text is not what we recorded: equal to no typed value."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRelation:
    """A table or view as PostgreSQL describes it; *recorded* is its text at the last deployment."""

    schema: str
    name: str
    kind: str  # pg_class.relkind
    objects: Objects
    recorded: Objects = field(default_factory=lambda: _NOTHING)

    def part(self, kind: str) -> Mapping[str, Any]:
        return self.objects.get(kind) or {}

    def recorded_part(self, kind: str) -> Mapping[str, Any]:
        return self.recorded.get(kind) or {}

    @property
    def is_table(self) -> bool:
        return self.kind == "r"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTable:
    """*table* holds what we own or could own; the rest is named so that drift can show it."""

    table: Table
    altered: tuple[str, ...] = ()  # rules of ours whose expression was changed by hand
    strange: tuple[str, ...] = ()  # objects that we did not create, as words for a person


def interpret(
    live: LiveRelation, *, expected: Table, role: Role, triggers: Collection[str] = ()
) -> LiveTable:
    """Read *live* as a table of *role*; *expected* is what we last deployed under its name.

    *triggers* of ours stand there while a retype is under way.
    """
    checks, altered, strange_checks = _checks(live, expected)
    indexes, strange_indexes = _indexes(live, expected)
    keys, strange_keys = _foreign_keys(live, expected)
    primary = _primary_key(live)
    table = Table(
        name=live.name,
        role=role,
        columns=MappingProxyType(_columns(live, expected)),
        primary_key=primary[1],
        primary_key_name=primary[0],
        checks=checks,
        indexes=indexes,
        foreign_keys=keys,
    )
    strange = (*strange_checks, *strange_indexes, *strange_keys, *_strange_triggers(live, triggers))
    return LiveTable(table=table, altered=altered, strange=strange)


def _columns(live: LiveRelation, expected: Table) -> dict[str, PhysicalColumn]:
    recorded = live.recorded_part("columns")
    known = expected.columns
    columns = {}
    for name, facts in live.part("columns").items():
        default: Any = None
        if facts["default"] is not None:
            ours = name in known and recorded.get(name, {}).get("default") == facts["default"]
            default = known[name].default if ours else ByHand(facts["default"])
        columns[name] = PhysicalColumn(
            name=name, type=facts["type"], not_null=facts["not_null"], default=default
        )
    return columns


def _checks(
    live: LiveRelation, expected: Table
) -> tuple[tuple[Check, ...], tuple[str, ...], tuple[str, ...]]:
    recorded = live.recorded_part("constraints")
    known = {check.name: check for check in expected.checks}
    checks, altered, strange = [], [], []
    for name, facts in live.part("constraints").items():
        if facts["kind"] != "c":
            continue
        rule = known.get(name) or _helper(live, name, facts) if name in recorded else None
        if rule is None:
            strange.append(f"check {name}")
        elif recorded[name]["definition"] != facts["definition"]:
            altered.append(name)
        else:
            checks.append(replace(rule, validated=facts["validated"]))
    return tuple(checks), tuple(altered), tuple(strange)


def _helper(live: LiveRelation, name: str, facts: Mapping[str, Any]) -> Check | None:
    """A helper check is never part of a definition: it is known by its name and one column.

    Where each value can be cast the check is ``true``, which PostgreSQL ties to no column.
    """
    for column in facts["columns"] or live.part("columns"):
        for rule in (RuleKind.REQUIRED, RuleKind.CASTABLE):
            if name == check_name(column, rule):
                return Check(name=name, column=column, rule=rule)
    return None


def _indexes(live: LiveRelation, expected: Table) -> tuple[tuple[Index, ...], tuple[str, ...]]:
    known = {index.name: index for index in expected.indexes}
    recorded = live.recorded_part("indexes")
    indexes, strange = [], []
    for name, facts in live.part("indexes").items():
        # Not what was there when we last looked: a stranger's index may have been there too.
        if name not in known:
            strange.append(f"index {name}")
            continue
        if known[name].computed:
            # One that failed has never been recorded; it is ours to build again.
            same = facts["definition"] == recorded.get(name, {}).get("definition")
            plain = same or not facts["valid"]
            indexes.append(replace(known[name], valid=facts["valid"], plain=plain))
            continue
        found = replace(
            known[name],
            columns=tuple(facts["columns"] or ()),
            unique=facts["unique"],
            valid=facts["valid"],
            plain=facts["plain"],
        )
        indexes.append(found)
    return tuple(indexes), tuple(strange)


def _foreign_keys(
    live: LiveRelation, expected: Table
) -> tuple[tuple[ForeignKey, ...], tuple[str, ...]]:
    known = {key.name for key in expected.foreign_keys}
    keys, strange = [], []
    for name, facts in live.part("constraints").items():
        if facts["kind"] in ("u", "x"):
            strange.append(f"constraint {name}")
        if facts["kind"] != "f":
            continue
        if name not in known:
            strange.append(f"foreign key {name}")
            continue
        keys.append(
            ForeignKey(
                name=name,
                column=facts["columns"][0],
                target_table=facts["target_table"],
                target_column=facts["target_columns"][0],
                validated=facts["validated"],
                plain=_is_plain_key(live, facts),
            )
        )
    return tuple(keys), tuple(strange)


def _is_plain_key(live: LiveRelation, facts: Mapping[str, Any]) -> bool:
    """Whether it is of the one form that we create: deferrable, one column, no actions."""
    return (
        facts["deferrable"]
        and not facts["deferred"]
        and facts["actions"] == "aas"
        and len(facts["columns"]) == 1
        and facts["target_schema"] == live.schema
    )


def _primary_key(live: LiveRelation) -> tuple[str, tuple[str, ...]]:
    for name, facts in live.part("constraints").items():
        if facts["kind"] == "p":
            return name, tuple(facts["columns"])
    return "", ()


def _strange_triggers(live: LiveRelation, ours: Collection[str]) -> tuple[str, ...]:
    return tuple(f"trigger {name}" for name in live.part("triggers") if name not in ours)
