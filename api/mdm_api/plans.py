"""``/api/v1/plans``: plans of the operator that wait for a person, and the person's word on them."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import JSON, Access, Answer, Body, Operation, Parameter
from mdm_gitops.access import may_administer
from mdm_gitops.data import audit
from mdm_gitops.errors import InputError
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.connect import Connection, borrow_checked
from mdm_gitops.warehouse.waiting_plans import (
    WaitingPlan,
    decide_plan,
    find_plan,
    list_plans,
    no_such_plan,
)

_MAX_COMMENT: Final = 4_000


async def list_waiting_plans(call: Call) -> Response:
    ended = call.parameters["state"] == "all"

    async def work(conn: Connection) -> tuple[WaitingPlan, ...]:
        return await list_plans(conn, schemas=call.services.schemas, ended=ended)

    found = await call.services.with_connection(work)
    return json_response({"items": [_line(each) for each in found if _may_decide(call, each)]})


async def get_waiting_plan(call: Call) -> Response:
    plan = await _found(call)
    return json_response({**_line(plan), "plan": plan.document})


async def approve_plan(call: Call) -> Response:
    return await _decide(call, approve=True)


async def reject_plan(call: Call) -> Response:
    return await _decide(call, approve=False)


async def _decide(call: Call, *, approve: bool) -> Response:
    body = bodies.load_object(await call.body(), known=("comment",), may_be_empty=True)
    comment = body.get("comment") or ""
    if not isinstance(comment, str) or len(comment) > _MAX_COMMENT:
        raise InputError(f"comment must be text, up to {_MAX_COMMENT} characters")
    plan = await _found(call)
    services, actor = call.services, call.principal.actor
    async with borrow_checked(services.pool) as conn, conn.transaction():
        await decide_plan(
            conn, plan, schemas=services.schemas, approve=approve, actor=actor, comment=comment
        )
        await audit.record(
            conn,
            schemas=services.schemas,
            actor=actor,
            action="plan_approved" if approve else "plan_rejected",
            entities=plan.entities,
            commit=plan.commit,
            details={"planId": plan.plan_id, **({"comment": comment} if comment else {})},
        )
    return json_response(_line(await _found(call)))


async def _found(call: Call) -> WaitingPlan:
    """Return the plan of the path; one that the caller may not decide is not there."""
    plan_id = call.path("id")

    async def work(conn: Connection) -> WaitingPlan:
        return await find_plan(conn, plan_id, schemas=call.services.schemas)

    plan = await call.services.with_connection(work)
    if not _may_decide(call, plan):
        raise no_such_plan(plan_id)
    return plan


def _may_decide(call: Call, plan: WaitingPlan) -> bool:
    """A Global Admin; or who administers all of it, where nothing goes beyond entities."""
    principal, state = call.principal, call.state
    if principal.is_global_admin:
        return True
    if plan.is_wider or not plan.domains:
        return False
    return all(
        may_administer(principal, state, domain=domain, entity="") for domain in plan.domains
    ) and all(
        may_administer(principal, state, domain=state.entities[name].definition.domain, entity=name)
        for name in plan.entities
        if name in state.entities
    )


def _line(plan: WaitingPlan) -> dict[str, Any]:
    return {
        "id": plan.plan_id,
        "state": plan.state,
        "commit": plan.commit,
        "reason": plan.reason,
        "entities": list(plan.entities),
        "domains": list(plan.domains),
        "isWider": plan.is_wider,
        "changes": plan.changes,
        "createdUtc": to_json_value(plan.created_at),
        "decidedUtc": to_json_value(plan.decided_at) if plan.decided_at else None,
        "decidedBy": plan.decided_by,
        "comment": plan.comment,
        "endedUtc": to_json_value(plan.ended_at) if plan.ended_at else None,
    }


_ID: Final = {"id": "The plan's id, as the list has it."}
_DECISION: Final = Body(
    description="Why.", schemas={JSON: schemas.ref("PlanDecision")}, required=False
)


def _decision(path: str, handler: Any, summary: str, description: str) -> Operation:
    return Operation(
        method="POST",
        path=f"/api/v1/plans/{{id}}/{path}",
        handler=handler,
        summary=summary,
        tag="Reconciliation",
        access=Access.SIGNED_IN,
        path_parameters=_ID,
        body=_DECISION,
        description=description,
        answers={200: Answer(description="Decided.", schema=schemas.ref("WaitingPlan"))},
        errors=("PLAN_NOT_FOUND", "PLAN_STALE", "REQUEST_INVALID"),
    )


operations = (
    Operation(
        method="GET",
        path="/api/v1/plans",
        handler=list_waiting_plans,
        summary="List plans that wait for a person",
        tag="Reconciliation",
        access=Access.SIGNED_IN,
        description="Those that the caller may decide: a Global Admin all, an admin those that stay"
        " within entities of their domains. Newest first.",
        parameters=(
            Parameter(
                name="state",
                description="`open`: waiting or decided, not ended; `all`: those of the past, too.",
                default="open",
                choices=("open", "all"),
            ),
        ),
        answers={200: Answer(description="Plans.", schema=schemas.ref("WaitingPlans"))},
    ),
    Operation(
        method="GET",
        path="/api/v1/plans/{id}",
        handler=get_waiting_plan,
        summary="Show a plan that waits",
        tag="Reconciliation",
        access=Access.SIGNED_IN,
        path_parameters=_ID,
        description="With `plan`, the whole of it as `mdm-gitops plan --format json` prints it; rows"
        " that a data check has found are left out.",
        answers={200: Answer(description="The plan.", schema=schemas.ref("WaitingPlan"))},
        errors=("PLAN_NOT_FOUND",),
    ),
    _decision(
        "approve",
        approve_plan,
        "Approve a plan",
        "The operator applies it, if the plan it then makes is still exactly this one; otherwise the"
        " new one waits.",
    ),
    _decision(
        "reject",
        reject_plan,
        "Reject a plan",
        "It is not offered again until definitions or warehouse change.",
    ),
)
