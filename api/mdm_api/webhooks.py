"""``/api/v1/webhooks``: subscriptions as commits, and how they go.

What delivers is not imported here before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.committing import commit_access
from mdm_api.deliveries import DEFAULTS, ID, rules_for, subscription
from mdm_api.operations import JSON, YAML, Answer, Body, Operation
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model import Webhook
from mdm_gitops.model.access import Webhooks
from mdm_gitops.model.values import to_json_value
from mdm_gitops.source.commits import Committed, Files
from mdm_gitops.source.edit import append_item, replace_item
from mdm_gitops.source.render import render
from mdm_gitops.source.repository import read_tree

if TYPE_CHECKING:
    from mdm_gitops.deliver.admin import Overview
    from mdm_gitops.deliver.targets import TargetRules

PATH: Final = "webhooks.yaml"
_MEMBERS: Final = (
    "name",
    "url",
    "domains",
    "entities",
    "actions",
    "description",
    "is_active",
    "secretRef",
)


async def list_webhooks(call: Call) -> Response:
    from mdm_gitops.deliver.admin import overviews

    found = await call.services.with_connection(
        lambda conn: overviews(conn, schemas=call.services.schemas)
    )
    return json_response({"items": [_document(each) for each in found]})


async def get_webhook(call: Call) -> Response:
    return json_response(_document(await subscription(call)))


async def create_webhook(call: Call) -> Response:
    webhook = _webhook(call, bodies.load_object(await call.body(), known=_MEMBERS))

    def change(files: Mapping[str, bytes]) -> Files:
        if any(each.name == webhook.name for each in _webhooks_of(files)):
            raise Conflict(
                f"there is a webhook {webhook.name!r} already",
                hint="PUT changes it",
                code="WEBHOOK_EXISTS",
            )
        return {PATH: append_item(files.get(PATH), "webhooks", webhook)}

    done = await commit_access(call, change, message=f"Add webhook {webhook.name}")
    if done.branch is not None:
        return json_response(_committed(done), status=202)
    secret = await _secret_for(call, webhook)
    overview = await _by_name(call, webhook.name)
    location = {"Location": f"/api/v1/webhooks/{overview.webhook_id}"}
    shown = {"secret": secret} if secret else {}
    content = {**_document(overview), **_committed(done), **shown}
    return json_response(content, status=201, headers=location)


async def update_webhook(call: Call) -> Response:
    before = await subscription(call)
    given = bodies.load_object(await call.body(), known=_MEMBERS)
    webhook = _webhook(call, {"name": before.webhook.name, **given})

    def change(files: Mapping[str, bytes]) -> Files:
        found = _webhooks_of(files)
        if webhook.name != before.webhook.name and any(w.name == webhook.name for w in found):
            raise Conflict(f"there is a webhook {webhook.name!r} already", code="WEBHOOK_EXISTS")
        number = _number_of(found, before.webhook.name)
        return {PATH: replace_item(files[PATH], "webhooks", number, webhook)}

    done = await commit_access(call, change, message=f"Change webhook {before.webhook.name}")
    if done.branch is not None:
        return json_response(_committed(done), status=202)
    if webhook.name != before.webhook.name:  # another name is another subscription
        await _secret_for(call, webhook)
    return json_response({**_document(await _by_name(call, webhook.name)), **_committed(done)})


async def delete_webhook(call: Call) -> Response:
    name = (await subscription(call)).webhook.name

    def change(files: Mapping[str, bytes]) -> Files:
        number = _number_of(_webhooks_of(files), name)
        return {PATH: replace_item(files[PATH], "webhooks", number, None)}

    done = await commit_access(call, change, message=f"Remove webhook {name}")
    return json_response(_committed(done), status=202 if done.branch is not None else 200)


async def export_webhooks(call: Call) -> Response:
    from mdm_gitops.deliver.admin import overviews

    found = await call.services.with_connection(
        lambda conn: overviews(conn, schemas=call.services.schemas)
    )
    text = render(Webhooks(webhooks=tuple(each.webhook for each in found)))
    return Response(text, media_type=YAML, headers={"Cache-Control": "no-store"})


async def import_webhooks(call: Call) -> Response:
    text = await bodies.yaml_text(call)
    rules = rules_for(call)

    def change(files: Mapping[str, bytes]) -> Files:
        for webhook in _webhooks_of({**files, PATH: text}):
            _refuse_target(rules, webhook.url)
        return {PATH: text}

    done = await commit_access(call, change, message="Replace all webhooks")
    return json_response(_committed(done), status=202 if done.branch is not None else 200)


# --- around them ----------------------------------------------------------------------------------


async def _by_name(call: Call, name: str) -> Overview:
    from mdm_gitops.deliver.admin import overviews

    found = await call.services.with_connection(
        lambda conn: overviews(conn, schemas=call.services.schemas)
    )
    return next(each for each in found if each.webhook.name == name)


async def _secret_for(call: Call, webhook: Webhook) -> str | None:
    """Give a new subscription its secret; None where the definition names one."""
    from mdm_gitops.deliver.admin import new_secret

    if webhook.secret_ref:
        return None
    overview = await _by_name(call, webhook.name)
    return await call.services.with_connection(
        lambda conn: new_secret(conn, schemas=call.services.schemas, webhook_id=overview.webhook_id)
    )


def _webhook(call: Call, given: Mapping[str, Any]) -> Webhook:
    try:
        webhook = Webhook.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{at}: {first['msg']}", parameter=at) from None
    _refuse_target(rules_for(call), webhook.url)
    return webhook


def _refuse_target(rules: TargetRules, url: str) -> None:
    refused = rules.why_refused(url)
    if refused:
        raise InputError(
            f"url {refused}",
            hint=f"the rules for targets are {rules.mode.value}",
            parameter="url",
        )


def _webhooks_of(files: Mapping[str, bytes]) -> tuple[Webhook, ...]:
    return read_tree(files).webhooks.webhooks if PATH in files else ()


def _number_of(webhooks: tuple[Webhook, ...], name: str) -> int:
    for number, webhook in enumerate(webhooks):
        if webhook.name == name:
            return number
    raise Conflict(
        f"webhook {name!r} is not in {PATH} any more",
        hint="the definitions were changed and are not deployed yet",
        code="PLAN_STALE",
    )


def _document(overview: Overview) -> dict[str, Any]:
    webhook = overview.webhook
    return {
        "id": str(overview.webhook_id),
        "name": webhook.name,
        "url": webhook.url,
        "domains": list(webhook.domains),
        "entities": list(webhook.entities),
        "actions": [action.value for action in webhook.actions],
        "description": webhook.description,
        "is_active": webhook.is_active,
        "secretRef": webhook.secret_ref,
        "signing": _signing(overview),
        "createdUtc": to_json_value(overview.created_at),
        "position": overview.position,
        "behind": overview.behind,
        "failingSinceUtc": overview.failing_since and to_json_value(overview.failing_since),
        "disabledUtc": overview.disabled_at and to_json_value(overview.disabled_at),
        "disabledReason": overview.disabled_reason,
        **overview.counts,
    }


def _signing(overview: Overview) -> str:
    if overview.webhook.secret_ref:
        return "secretRef"
    return "secret" if overview.has_shown_secret else "unseen"


def _committed(done: Committed) -> dict[str, Any]:
    return {"commit": done.commit, "branch": done.branch}


_BODY: Final = Body(description="The subscription.", schemas={JSON: schemas.ref("WebhookInput")})
_WRITE_ERRORS: Final = (
    "REQUEST_INVALID",
    "DEFINITION_INVALID",
    "DEFINITIONS_IN_GIT",
    "DEFINITIONS_EDITED",
    "WAREHOUSE_LOCKED",
    "PLAN_STALE",
    "PLAN_REFUSED",
)
_COMMITTED: Final = Answer(
    description="Pushed to a branch, in effect once it is merged.",
    schema=schemas.ref("CommitMade"),
)


def _one_webhook(description: str) -> Answer:
    return Answer(description=description, schema=schemas.ref("WebhookStatus"))


operations = (
    Operation(
        method="GET",
        path="/api/v1/webhooks",
        handler=list_webhooks,
        summary="List subscriptions",
        answers={200: Answer(description="All of them.", schema=schemas.ref("WebhookList"))},
        **DEFAULTS,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks",
        handler=create_webhook,
        summary="Subscribe",
        body=_BODY,
        description="A commit by the caller to `webhooks.yaml`, in effect at once. Changes are"
        " delivered from now on. Without `secretRef` a secret is made, which is shown here once.",
        answers={201: _one_webhook("The subscription."), 202: _COMMITTED},
        errors=(*_WRITE_ERRORS, "WEBHOOK_EXISTS"),
        **DEFAULTS,
    ),
    Operation(
        method="GET",
        path="/api/v1/webhooks/yaml",
        handler=export_webhooks,
        summary="Export subscriptions as YAML",
        answers={
            200: Answer(
                description="As `webhooks.yaml`; secrets are never in it.",
                schema={"type": "object"},
                media_type=YAML,
            )
        },
        **DEFAULTS,
    ),
    Operation(
        method="POST",
        path="/api/v1/webhooks/yaml",
        handler=import_webhooks,
        summary="Replace all subscriptions",
        body=Body(
            description="The whole of `webhooks.yaml`.",
            schemas={YAML: {"type": "object"}, JSON: schemas.ref("YamlText")},
        ),
        answers={
            200: Answer(description="Committed.", schema=schemas.ref("CommitMade")),
            202: _COMMITTED,
        },
        errors=(*_WRITE_ERRORS, "MEDIA_TYPE_UNSUPPORTED"),
        **DEFAULTS,
    ),
    Operation(
        method="GET",
        path="/api/v1/webhooks/{id}",
        handler=get_webhook,
        summary="Read one subscription",
        path_parameters=ID,
        answers={200: _one_webhook("The subscription, and how it goes.")},
        errors=("NOT_FOUND",),
        **DEFAULTS,
    ),
    Operation(
        method="PUT",
        path="/api/v1/webhooks/{id}",
        handler=update_webhook,
        summary="Change a subscription",
        path_parameters=ID,
        body=_BODY,
        description="Replaces the subscription by the body. One that was disabled is switched on"
        " again. Another name makes another subscription, which begins now.",
        answers={200: _one_webhook("The subscription."), 202: _COMMITTED},
        errors=(*_WRITE_ERRORS, "NOT_FOUND", "WEBHOOK_EXISTS"),
        **DEFAULTS,
    ),
    Operation(
        method="DELETE",
        path="/api/v1/webhooks/{id}",
        handler=delete_webhook,
        summary="Unsubscribe",
        path_parameters=ID,
        answers={
            200: Answer(description="Committed.", schema=schemas.ref("CommitMade")),
            202: _COMMITTED,
        },
        errors=(*_WRITE_ERRORS, "NOT_FOUND"),
        **DEFAULTS,
    ),
)
