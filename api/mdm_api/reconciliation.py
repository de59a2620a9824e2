"""``/api/v1/reconciliation``: how the operator stands, wherever it runs, and what it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.data import audit
from mdm_gitops.data.asking import no_such_entity
from mdm_gitops.errors import InputError
from mdm_gitops.model import fold
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.connect import Connection, borrow_checked
from mdm_gitops.warehouse.reconciliation import (
    EVERYTHING,
    Reconciliation,
    read_reconciliation,
    request_run,
    resume,
    suspend,
)

_MAX_REASON: Final = 1_000
_OPEN_MEMBERS: Final = ("observedCommit", "attemptedCommit", "appliedCommit")


async def get_reconciliation(call: Call) -> Response:
    schemas_ = call.services.schemas

    async def work(conn: Connection) -> Reconciliation:
        return await read_reconciliation(conn, schemas=schemas_)

    found = await call.services.with_connection(work)
    document = to_document(found)
    return json_response(document if call.principal.is_global_admin else _for_everybody(document))


async def request_reconcile(call: Call) -> Response:
    number = await _tell(
        call,
        lambda conn: request_run(conn, schemas=call.services.schemas, actor=call.principal.actor),
    )
    return json_response({"requested": number}, status=202)


async def suspend_reconciliation(call: Call) -> Response:
    body = bodies.load_object(await call.body(), known=("entity", "reason"), may_be_empty=True)
    scope, reason = _scope(body), _text(body, "reason")
    if scope and scope not in call.state.entities:
        raise no_such_entity(scope, call.state.entities)  # a misspelt name would stop nothing

    async def work(conn: Connection) -> None:
        actor = call.principal.actor
        values = {"schemas": call.services.schemas, "scope": scope, "actor": actor}
        if await suspend(conn, reason=reason, **values):  # type: ignore[arg-type]
            await _audit(conn, call, "reconciliation_suspended", scope, reason)

    await _tell(call, work)
    return await get_reconciliation(call)


async def resume_reconciliation(call: Call) -> Response:
    body = bodies.load_object(await call.body(), known=("entity",), may_be_empty=True)
    scope = _scope(body)

    async def work(conn: Connection) -> None:
        actor = call.principal.actor
        if await resume(conn, schemas=call.services.schemas, scope=scope, actor=actor):
            await _audit(conn, call, "reconciliation_resumed", scope, "")

    await _tell(call, work)
    return await get_reconciliation(call)


async def _tell(call: Call, work: Callable[[Connection], Awaitable[Any]]) -> Any:
    async with borrow_checked(call.services.pool) as conn, conn.transaction():
        return await work(conn)


async def _audit(conn: Connection, call: Call, action: str, scope: str, reason: str) -> None:
    await audit.record(
        conn,
        schemas=call.services.schemas,
        actor=call.principal.actor,
        action=action,
        entities=[scope] if scope else [],
        details={"reason": reason} if reason else {},
    )


def _scope(body: dict[str, Any]) -> str:
    name = _text(body, "entity")
    return fold(name) if name else EVERYTHING


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MAX_REASON:
        raise InputError(f"{name} must be text, up to {_MAX_REASON} characters", parameter=name)
    return value


def to_document(found: Reconciliation) -> dict[str, Any]:
    """Return *found* as JSON can hold it."""
    return {
        "source": found.source,
        "mode": found.mode,
        "operator": found.operator,
        "heartbeatUtc": to_json_value(found.heartbeat_at) if found.heartbeat_at else None,
        "acceptedCommit": found.accepted_commit,
        "observedCommit": found.state.get("observedCommit"),
        "attemptedCommit": found.state.get("attemptedCommit"),
        "appliedCommit": found.state.get("appliedCommit"),
        "conditions": found.state.get("conditions", []),
        "requested": found.requested,
        "handled": found.handled,
        "suspensions": [
            {
                "entity": each.scope or None,
                "by": each.suspended_by,
                "reason": each.reason,
                "sinceUtc": to_json_value(each.suspended_at),
            }
            for each in found.suspensions
        ],
        "history": found.state.get("history", []),
        "events": [
            {
                "id": each.event_id,
                "occurredUtc": to_json_value(each.occurred_at),
                "kind": each.kind,
                "actor": each.actor,
                "commit": each.commit,
                "message": each.message,
            }
            for each in found.events
        ],
    }


def _for_everybody(document: dict[str, Any]) -> dict[str, Any]:
    """Messages name entities that may be hidden from the caller; how it stands names none."""
    return {
        "mode": document["mode"],
        "heartbeatUtc": document["heartbeatUtc"],
        **{name: document[name] for name in _OPEN_MEMBERS},
        "conditions": [
            {key: each[key] for key in ("type", "status", "reason", "sinceUtc")}
            for each in document["conditions"]
        ],
        "requested": document["requested"],
        "handled": document["handled"],
        "isSuspended": any(each["entity"] is None for each in document["suspensions"]),
    }


_ANSWER: Final = {200: Answer(description="How it stands.", schema=schemas.ref("Reconciliation"))}


def _post(path: str, handler: Any, summary: str, **rest: Any) -> Operation:
    return Operation(
        method="POST",
        path=path,
        handler=handler,
        summary=summary,
        tag="Reconciliation",
        access=Access.GLOBAL_ADMIN,
        **rest,
    )


operations = (
    Operation(
        method="GET",
        path="/api/v1/reconciliation",
        handler=get_reconciliation,
        summary="How the operator stands",
        tag="Reconciliation",
        access=Access.SIGNED_IN,
        description="Conditions, commits and when it was last heard of. A Global Admin also gets the"
        " source, messages, history, events and suspensions.",
        answers=_ANSWER,
    ),
    _post(
        "/api/v1/reconcile",
        request_reconcile,
        "Ask the operator for a run now",
        description="The answer does not wait for the run: it is done when `handled` of the"
        " reconciliation has reached `requested`.",
        answers={202: Answer(description="Asked.", schema=schemas.ref("ReconcileRequested"))},
    ),
    _post(
        "/api/v1/reconciliation/suspend",
        suspend_reconciliation,
        "Suspend reconciling, of everything or of one entity",
        body=Body(
            description="What is suspended, and why.",
            schemas={JSON: schemas.ref("SuspendRequest")},
            required=False,
        ),
        answers=_ANSWER,
        errors=("REQUEST_INVALID", "ENTITY_NOT_FOUND"),
    ),
    _post(
        "/api/v1/reconciliation/resume",
        resume_reconciliation,
        "Let reconciling go on",
        body=Body(
            description="What goes on.",
            schemas={JSON: schemas.ref("ResumeRequest")},
            required=False,
        ),
        answers=_ANSWER,
        errors=("REQUEST_INVALID",),
    ),
)
