"""JSON Schemas of plans, deployments and how the operator stands."""

from __future__ import annotations

from typing import Final

from mdm_api.schema_parts import (
    COUNT,
    FLAG,
    MOMENT,
    TEXT,
    Schema,
    list_of,
    object_of,
    optional,
    ref,
)

DEPLOYMENT: Final[dict[str, Schema]] = {
    "Plan": {
        "type": "object",
        "description": "docs/reference/plan-json.md tells it.",
        "additionalProperties": True,
    },
    "ReconcileRequested": object_of({"requested": optional(COUNT)}),
    "SuspendRequest": {
        "type": "object",
        "properties": {
            "entity": {**optional(TEXT), "description": "Only this one; without it everything."},
            "reason": optional(TEXT),
        },
        "additionalProperties": False,
    },
    "ResumeRequest": {
        "type": "object",
        "properties": {"entity": optional(TEXT)},
        "additionalProperties": False,
    },
    "Reconciliation": object_of(
        {
            "mode": TEXT,
            "heartbeatUtc": optional(MOMENT),
            "observedCommit": optional(TEXT),
            "attemptedCommit": optional(TEXT),
            "appliedCommit": optional(TEXT),
            "conditions": list_of(ref("ReconciliationCondition")),
            "requested": COUNT,
            "handled": {**COUNT, "description": "The last request that a run has seen."},
        },
        {
            "isSuspended": FLAG,
            "source": TEXT,
            "operator": TEXT,
            "acceptedCommit": optional(TEXT),
            "suspensions": list_of({"type": "object"}),
            "history": list_of({"type": "object"}),
            "events": list_of({"type": "object"}),
        },
    ),
    "ReconciliationCondition": object_of(
        {"type": TEXT, "status": FLAG, "reason": TEXT, "sinceUtc": MOMENT}, {"message": TEXT}
    ),
    "PlanDecision": {
        "type": "object",
        "properties": {"comment": optional(TEXT)},
        "additionalProperties": False,
    },
    "WaitingPlan": object_of(
        {
            "id": TEXT,
            "state": {
                "type": "string",
                "enum": ["waiting", "approved", "rejected", "applied", "superseded"],
            },
            "commit": optional(TEXT),
            "reason": TEXT,
            "entities": list_of(TEXT),
            "domains": list_of(TEXT),
            "isWider": {**FLAG, "description": "Whether it changes what belongs to no entity."},
            "changes": COUNT,
            "createdUtc": MOMENT,
            "decidedUtc": optional(MOMENT),
            "decidedBy": optional(TEXT),
            "comment": TEXT,
            "endedUtc": optional(MOMENT),
        },
        {"plan": ref("Plan")},
    ),
    "WaitingPlans": object_of({"items": list_of(ref("WaitingPlan"))}),
    "DeployRequest": {
        "type": "object",
        "properties": {
            "allow": {**list_of(TEXT), "description": "Hazards, like `REMOVES_COLUMN:customer`."},
            "planId": {**TEXT, "description": "`plan_id` of the preview that was reviewed."},
        },
        "additionalProperties": False,
    },
    "RemoveRequest": {
        "type": "object",
        "properties": {"allow": list_of(TEXT)},
        "additionalProperties": False,
    },
    "Confirmation": {**object_of({"confirm": TEXT}), "additionalProperties": False},
    "DeployResult": {
        "type": "object",
        "required": ["entity"],
        "properties": {
            "entity": TEXT,
            "planId": TEXT,
            "deploymentId": optional(COUNT),
            "steps": COUNT,
            "changes": COUNT,
            "droppedTables": list_of(TEXT),
            "droppedColumns": list_of(TEXT),
        },
    },
    "Deployments": object_of(
        {
            "items": list_of(
                object_of(
                    {
                        "id": COUNT,
                        "planId": TEXT,
                        "commit": optional(TEXT),
                        "actor": TEXT,
                        "state": TEXT,
                        "startedUtc": MOMENT,
                        "finishedUtc": optional(MOMENT),
                        "entityCount": COUNT,
                    }
                )
            ),
            "skip": COUNT,
            "take": COUNT,
            "hasMore": FLAG,
        }
    ),
}
