"""The plan as JSON for programs: closed vocabularies, and a version that grows when one does.

A reader that meets a ``format_version`` or a word it does not know must stop rather than guess.
``document_schema`` is the JSON Schema of it; docs/reference/plan-json.md tells it in prose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from mdm_gitops.model import ChangeClass, Policy, Seed
from mdm_gitops.model.base import Definition
from mdm_gitops.model.values import to_json_value
from mdm_gitops.plan.access_report import AccessEffect, AccessReport, TestResult
from mdm_gitops.plan.changes import (
    AbandonFilling,
    AddIndex,
    ApplySeed,
    Change,
    CreateView,
    DropView,
    FinishEntity,
    RenameColumn,
    RenameEntity,
    RenameObject,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    ValidateCheck,
    ValidateForeignKey,
)
from mdm_gitops.plan.outline import Outline, outline, summary
from mdm_gitops.plan.plan import CheckResult, Plan, PlannedChange
from mdm_gitops.plan.policy import Allowance, subject_of
from mdm_gitops.plan.proof import Proof, proof_document
from mdm_gitops.plan.verdicts import how_to_find, violation_words
from mdm_gitops.plan.words import Symbol, word

FORMAT_VERSION: Final = 1


class Reason(StrEnum):
    """Why a change is in the plan."""

    DEFINITION = "definition"  # Git asks for it, or for what was changed by hand to be as it was
    RENAME_DECLARED = "rename-declared"  # a renamedFrom
    RENAME_WITHDRAWN = "rename-withdrawn"  # a renamedFrom taken back
    RETURNED = "returned"  # it is in an archive and comes back
    FOLLOWS = "follows"  # something beneath it moves
    INTERRUPTED = "interrupted"  # an earlier apply did not come to its end
    SEED_FILE = "seed-file"


def reason_of(change: Change) -> Reason:
    match change:
        case RenameEntity() | RenameColumn():
            return Reason.RENAME_WITHDRAWN if change.reverted else Reason.RENAME_DECLARED
        case RestoreEntity() | RestoreSatellite() | RestoreColumn():
            return Reason.RETURNED
        case RetypeColumn() if change.restored_from:
            return Reason.RETURNED
        case RenameObject() | CreateView(again=True) | DropView(again=True):
            return Reason.FOLLOWS
        case FinishEntity() | ValidateCheck() | ValidateForeignKey() | AbandonFilling():
            return Reason.INTERRUPTED
        case AddIndex(rebuild=True):
            return Reason.INTERRUPTED
        case ApplySeed():
            return Reason.SEED_FILE
        case _:
            return Reason.DEFINITION


def to_document(
    plan: Plan, *, policy: Policy | None = None, proof: Proof | None = None
) -> dict[str, Any]:
    """Return *plan* as plain JSON values.

    *policy* decides what ``needs_allowance`` lists (default: that of a project that names none).
    ``proof`` is there only where one was asked for.
    """
    content = outline(plan, policy=policy)
    blocked = {number for result in plan.failed_checks for number in result.changes}
    return {
        "format_version": FORMAT_VERSION,
        "plan_id": plan.plan_id,
        "project": plan.project,
        "base_commit": plan.base_commit,
        "desired_hash": plan.desired_hash,
        "live_fingerprint": plan.live_fingerprint,
        "is_empty": plan.is_empty,
        "is_blocked": plan.is_blocked,
        "destructive": plan.worst_class is ChangeClass.DESTRUCTIVE,
        "worst_class": plan.worst_class.value if plan.worst_class else None,
        "summary": _summary(plan, content),
        "changes": [_change(item, blocked=item.number in blocked) for item in plan.changes],
        "checks": [_check(result) for result in plan.checks],
        "drift": [
            {"kind": i.kind.value, "entity": i.entity, "object": i.object, "message": i.message}
            for i in plan.drift
        ],
        "refusals": [
            {
                "code": refusal.code.value,
                "entity": refusal.entity,
                "message": refusal.message,
                "hint": refusal.hint,
                "allowable": refusal.code.allowable,
            }
            for refusal in plan.refusals
        ],
        "needs_allowance": [
            {
                "allow": str(each.allowance),
                "message": each.message,
                "change": each.item.number if each.item else None,
            }
            for each in content.unallowed
        ],
        "notes": list(plan.notes),
        "access": _access(plan.access),
        **({"proof": proof_document(proof)} if proof else {}),
    }


def _access(report: AccessReport) -> dict[str, Any]:
    return {
        "tests": [_access_test(each) for each in report.tests],
        "effects": [_effect(each) for each in report.effects],
        "uncounted": report.uncounted,
    }


def _access_test(result: TestResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "place": result.place,
        "principal": result.principal,
        "entity": result.entity,
        "action": result.action.value,
        "verdict": result.verdict.value,
        "message": result.message,
    }


def _effect(effect: AccessEffect) -> dict[str, Any]:
    rows = effect.rows
    return {
        "principal": effect.principal,
        "entity": effect.entity,
        "action": effect.action.value,
        "had": effect.had,
        "has": effect.has,
        "rows": None
        if rows is None
        else {each.name: getattr(rows, each.name) for each in fields(rows)},
        "reason": effect.reason,
    }


def _summary(plan: Plan, content: Outline) -> dict[str, Any]:
    classes = Counter(item.assessment.change_class for item in plan.changes)
    return {
        "text": summary(content),
        "entities_total": plan.entities_total,
        "created": content.count(Symbol.CREATE),
        "changed": content.count(Symbol.CHANGE, Symbol.RENAME),
        "restored": content.count(Symbol.RESTORE),
        "archived": content.count(Symbol.REMOVE),
        "permissions": len(content.permissions),
        "webhooks": len(content.webhooks),
        "seeds": len(content.seeds),
        "blocked": content.blocked,
        "refused": content.refused,
        "by_class": {each.value: classes[each] for each in ChangeClass},
    }


def _change(item: PlannedChange, *, blocked: bool) -> dict[str, Any]:
    said, cost = word(item.change), item.assessment
    subject = subject_of(item.change)
    return {
        "number": item.number,
        "kind": item.change.kind,
        "entity": item.change.entity,
        "class": cost.change_class.value,
        "destructive": cost.change_class is ChangeClass.DESTRUCTIVE,
        "reason": reason_of(item.change).value,
        "headline": said.headline,
        "detail": said.detail,
        "lock": cost.lock.value,
        "rewrites": cost.rewrites,
        "scans": cost.scans,
        "rows": cost.rows,
        "size_bytes": cost.size_bytes,
        "blocked": blocked,
        "hazards": [
            {
                "code": hazard.code.value,
                "message": hazard.message,
                "allow": str(Allowance(code=hazard.code.value, subject=subject)),
            }
            for hazard in cost.hazards
        ],
        "details": _details(item.change),
    }


def _details(change: Change) -> dict[str, Any]:
    own = (each.name for each in fields(change) if each.name != "entity")
    return {name: _plain(getattr(change, name)) for name in own}


def _plain(value: Any) -> Any:
    match value:
        case Seed():
            return {"rows": len(value.rows), "content_hash": value.content_hash}
        case Definition():
            return value.to_document()
        case Enum():
            return value.value
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case tuple() | list() | set() | frozenset():
            return [_plain(each) for each in value]
        case _ if is_dataclass(value):
            return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(to_json_value(value))


def _check(result: CheckResult) -> dict[str, Any]:
    check = result.check
    return {
        "violation": check.violation.value,
        "rule": check.rule.value if check.rule else None,
        "entity": check.entity,
        "column": check.column,
        "table": check.table,
        "violations": result.violations,
        "message": violation_words(result) if result.violations else "no row is in the way",
        "find": how_to_find(check),
        "samples": [_plain(sample) for sample in result.samples],
        "blocks": list(result.changes) if result.violations else [],
    }
