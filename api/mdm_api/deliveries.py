"""``/api/v1/webhooks/{id}/...``: what became of the deliveries of one subscription, and what to do about it.

What delivers is not imported here before somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from starlette.responses import Response

from mdm_api import bodies, paging, schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_gitops.access import Tier
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model.values import to_json_value

if TYPE_CHECKING:
    from mdm_gitops.deliver.admin import Overview
    from mdm_gitops.deliver.targets import TargetRules


async def subscription(call: Call) -> Overview:
    """Return the one that the path names, or raise NotFound."""
    from mdm_gitops.deliver.admin import no_such_webhook, overviews

    try:
        webhook_id = UUID(call.path("id"))
    except ValueError:
        raise no_such_webhook() from None
    [found] = await call.services.with_connection(
        lambda conn: overviews(conn, schemas=call.services.schemas, webhook_id=webhook_id)
    )
    return found


def rules_for(call: Call) -> TargetRules:
    from mdm_gitops.deliver.targets import rules_of

    return rules_of(call.services.settings.Webhooks)


async def test_webhook(call: Call) -> Response:
    from mdm_gitops.deliver.admin import no_such_webhook
    from mdm_gitops.deliver.subscriptions import read_subscriptions
    from mdm_gitops.deliver.trial import try_once

    overview = await subscription(call)
    found = await call.services.with_connection(
        lambda conn: read_subscriptions(conn, schemas=call.services.schemas)
    )
    tried = found.get(overview.webhook_id)
    if tried is None:
        raise no_such_webhook()
    # Without a connection of the pool: the receiver may take its time.
    told = await try_once(tried, rules=rules_for(call))
    return json_response(
        {
            "delivered": told.delivered,
            "blocked": told.blocked,
            "status": told.status or None,
            "error": told.error or None,
            "durationMs": round(told.seconds * 1000, 1),
        }
    )


async def list_deliveries(call: Call) -> Response:
    from mdm_gitops.deliver.admin import deliveries

    overview = await subscription(call)
    take = call.parameters["take"]
    found = await call.services.with_connection(
        lambda conn: deliveries(
            conn,
            schemas=call.services.schemas,
            webhook_id=overview.webhook_id,
            state=call.parameters["state"],
            after=call.parameters["after"],
            take=take + 1,
        )
    )
    items = [
        {
            "id": each.event_id,
            "recordId": str(each.record_id),
            "state": each.state,
            "attempts": each.attempts,
            "nextAttemptUtc": (
                to_json_value(each.next_attempt_at) if each.state == "waiting" else None
            ),
            "lastAttemptUtc": each.last_attempt_at and to_json_value(each.last_attempt_at),
            "lastStatus": each.last_status or None,
            "lastError": each.last_error or None,
        }
        for each in found[:take]
    ]
    return json_response({"items": items, "hasMore": len(found) > take})


async def replay_delivery(call: Call) -> Response:
    from mdm_gitops.deliver.admin import replay

    overview = await subscription(call)
    text = call.path("n")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InputError("a delivery is named by the number of its change", parameter="n")
    await call.services.with_connection(
        lambda conn: replay(
            conn,
            schemas=call.services.schemas,
            webhook_id=overview.webhook_id,
            event_id=int(text),
        )
    )
    return Response(status_code=202, headers={"Cache-Control": "no-store"})


async def replay_webhook(call: Call) -> Response:
    from mdm_gitops.deliver.admin import replay_after

    overview = await subscription(call)
    given = bodies.load_object(await call.body(), known=("afterId",))
    after = given.get("afterId")
    if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < 2**63:
        raise InputError("afterId must be the number of a change", parameter="afterId")
    position = await call.services.with_connection(
        lambda conn: replay_after(
            conn, schemas=call.services.schemas, webhook_id=overview.webhook_id, after=after
        )
    )
    return json_response({"position": position}, status=202)


async def rotate_secret(call: Call) -> Response:
    from mdm_gitops.deliver.admin import OVERLAP_HOURS, new_secret

    overview = await subscription(call)
    if overview.webhook.secret_ref:
        raise Conflict(
            "the secret of this webhook is where secretRef says",
            hint="change it there",
            code="WEBHOOK_SECRET_ELSEWHERE",
        )
    secret = await call.services.with_connection(
        lambda conn: new_secret(conn, schemas=call.services.schemas, webhook_id=overview.webhook_id)
    )
    return json_response({"secret": secret, "previousValidHours": OVERLAP_HOURS})


ID: Final = {"id": "Identifier of the subscription."}
DEFAULTS: Final[dict[str, Any]] = {
    "tag": "Webhooks",
    "access": Access.GLOBAL_ADMIN,
    "tier": Tier.ENTERPRISE,
}


operations = (
    Operation(
        method="POST",
        path="/api/v1/webhooks/{id}/test",
        handler=test_webhook,
        summary="Send one test delivery",
        path_parameters=ID,
        description="Sends a made-up change now, once, and tells how it went.",
        answers={200: Answer(description="How it went.", schema=schemas.ref("WebhookTrial"))},
        errors=("NOT_FOUND",),
        **DEFAULTS,
    ),
    Operation(
        method="GET",
        path="/api/v1/webhooks/{id}/deliveries",
        handler=list_deliveries,
        summary="List what was not delivered",
        path_parameters=ID,
        parameters=(
            Parameter(
                name="state",
                description="Only these; all without it.",
                choices=("waiting", "dead", "blocked"),
            ),
            Parameter(
                name="after",
                description="Only changes with a larger id.",
                kind=Kind.NUMBER,
                default=0,
                minimum=0,
            ),
            paging.take("Deliveries", default=100, most=500),
        ),
        answers={200: Answer(description="By change.", schema=schemas.ref("DeliveryList"))},
        errors=("NOT_FOUND",),
        **DEFAULTS,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks/{id}/deliveries/{n}/replay",
        handler=replay_delivery,
        summary="Deliver one change again",
        path_parameters={**ID, "n": "`id` of the change in the change log."},
        answers={202: Answer(description="It will be delivered.")},
        errors=("NOT_FOUND", "REQUEST_INVALID"),
        **DEFAULTS,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks/{id}/replay",
        handler=replay_webhook,
        summary="Deliver all changes again from a place of the change log",
        path_parameters=ID,
        body=Body(
            description="After which change.",
            schemas={
                JSON: {
                    "type": "object",
                    "required": ["afterId"],
                    "properties": {"afterId": {"type": "integer", "minimum": 0}},
                    "additionalProperties": False,
                }
            },
        ),
        answers={
            202: Answer(
                description="They will be delivered.",
                schema={"type": "object", "properties": {"position": {"type": "integer"}}},
            )
        },
        errors=("NOT_FOUND", "REQUEST_INVALID"),
        **DEFAULTS,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks/{id}/secret",
        handler=rotate_secret,
        summary="Make a new secret",
        path_parameters=ID,
        description="Shown once. For a day each delivery is signed with the new and the old one. A"
        " subscription that came by Git without `secretRef` is signed with a secret that nobody has"
        " seen (`signing` is `unseen`) until this is called.",
        answers={200: Answer(description="The secret.", schema=schemas.ref("WebhookSecret"))},
        errors=("NOT_FOUND", "WEBHOOK_SECRET_ELSEWHERE"),
        **DEFAULTS,
    ),
)
