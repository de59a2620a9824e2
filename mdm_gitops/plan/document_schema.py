"""The JSON Schema (2020-12) of the plan document; ``schemas/plan.json`` is written from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from mdm_gitops.model import Action, ChangeClass
from mdm_gitops.plan.access_report import Verdict
from mdm_gitops.plan.changes import ALL
from mdm_gitops.plan.document import FORMAT_VERSION, Reason
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.plan import DriftKind, HazardCode, Lock, RefusalCode, Violation
from mdm_gitops.plan.proof import ProofState

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "integer", "minimum": 1}


def plan_schema() -> dict[str, Any]:
    """Return the schema. Every object is closed but ``details`` and samples."""
    document = _object(
        format_version={"const": FORMAT_VERSION},
        plan_id=_TEXT,
        project=_TEXT,
        base_commit=_or_null(_TEXT),
        desired_hash=_TEXT,
        live_fingerprint=_TEXT,
        is_empty=_FLAG,
        is_blocked=_FLAG,
        destructive=_FLAG,
        worst_class=_or_null(_enum(ChangeClass)),
        summary=_summary(),
        changes=_list(_change()),
        checks=_list(_check()),
        drift=_list(_object(kind=_enum(DriftKind), entity=_TEXT, object=_TEXT, message=_TEXT)),
        refusals=_list(
            _object(
                code=_enum(RefusalCode), entity=_TEXT, message=_TEXT, hint=_TEXT, allowable=_FLAG
            )
        ),
        needs_allowance=_list(_object(allow=_TEXT, message=_TEXT, change=_or_null(_NUMBER))),
        notes=_list(_TEXT),
        access=_object(tests=_list(_access_test()), effects=_list(_effect()), uncounted=_COUNT),
    )
    document["properties"]["proof"] = _proof()  # only with --prove
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Plan",
        "description": "What mdm-gitops plan --format json prints",
        **document,
    }


def schema_text() -> str:
    """Return the schema as its file holds it."""
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False) + "\n"


def _summary() -> dict[str, Any]:
    counts = ("entities_total", "created", "changed", "restored", "archived")
    more = ("permissions", "webhooks", "seeds", "blocked", "refused")
    by_class = {change_class.value: _COUNT for change_class in ChangeClass}
    return _object(
        text=_TEXT, **dict.fromkeys((*counts, *more), _COUNT), by_class=_object(**by_class)
    )


def _change() -> dict[str, Any]:
    return _object(
        **{"class": _enum(ChangeClass)},
        number=_NUMBER,
        kind={"enum": [change.kind for change in ALL]},
        entity=_TEXT,
        destructive=_FLAG,
        reason=_enum(Reason),
        headline=_TEXT,
        detail=_TEXT,
        lock=_enum(Lock),
        rewrites=_FLAG,
        scans=_FLAG,
        rows=_COUNT,
        size_bytes=_COUNT,
        blocked=_FLAG,
        hazards=_list(_object(code=_enum(HazardCode), message=_TEXT, allow=_TEXT)),
        details={"type": "object"},
    )


def _access_test() -> dict[str, Any]:
    texts = ("name", "place", "principal", "entity", "message")
    return _object(**dict.fromkeys(texts, _TEXT), action=_enum(Action), verdict=_enum(Verdict))


def _effect() -> dict[str, Any]:
    counts = ("before", "after", "gained", "lost", "total")
    return _object(
        **dict.fromkeys(("principal", "entity", "reason"), _TEXT),
        action=_enum(Action),
        had=_FLAG,
        has=_FLAG,
        rows=_or_null(_object(**dict.fromkeys(counts, _COUNT))),
    )


def _check() -> dict[str, Any]:
    return _object(
        violation=_enum(Violation),
        rule=_or_null(_enum(RuleKind)),
        entity=_TEXT,
        column=_TEXT,
        table=_TEXT,
        violations=_COUNT,
        message=_TEXT,
        find=_TEXT,
        samples=_list({"type": "object"}),
        blocks=_list(_NUMBER),
    )


def _proof() -> dict[str, Any]:
    counts = dict.fromkeys(("steps", "statements", "relations"), _COUNT)
    return _object(
        state=_enum(ProofState), place=_TEXT, **counts, message=_TEXT, problems=_list(_TEXT)
    )


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _enum(words: Iterable[StrEnum]) -> dict[str, Any]:
    return {"enum": [word.value for word in words]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
