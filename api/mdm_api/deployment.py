"""``/api/v1/entities/{name}/deploy``: what a deployment would do, doing it, and what was done."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from mdm_api import bodies, paging, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import find, load_catalog, require
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.access.catalog import Catalog, CatalogEntry
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model import Action, fold
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.store import Deployment, deployments_of


async def preview_deployment(call: Call) -> Response:
    entry, catalog = await _administered(call)
    document = await call.services.deployer.preview(entry.definition.folded)
    if catalog.rights(entry).filters_for(Action.READ):
        _hide_samples(document)
    return json_response(document)


async def deploy_entity(call: Call) -> Response:
    entry, _ = await _administered(call)
    return await _deploy(call, entry)


async def redeploy_entity(call: Call) -> Response:
    entry, _ = await _administered(call)
    _require_in_use(entry)
    return await _deploy(call, entry)


async def remove_deployment(call: Call) -> Response:
    entry, _ = await _administered(call)
    _require_in_use(entry)
    allow = _allowances(bodies.load_object(await call.body(), known=("allow",), may_be_empty=True))
    answer = await call.services.deployer.remove(
        entry.definition.folded, actor=call.principal.actor, allow=allow
    )
    return json_response(answer)


async def drop_archive_tables(call: Call) -> Response:
    entry, _ = await _administered(call)
    body = bodies.load_object(await call.body(), known=("confirm",), may_be_empty=True)
    name = entry.definition.name
    if not isinstance(body.get("confirm"), str) or fold(body["confirm"]) != entry.definition.folded:
        raise InputError(
            f"dropping the archives of {name} destroys their rows for ever",
            hint=f'send {{"confirm": "{name}"}}',
            code="CONFIRMATION_REQUIRED",
        )
    answer = await call.services.deployer.drop_archives(
        entry.definition.folded, confirm=body["confirm"], actor=call.principal.actor
    )
    return json_response(answer)


async def list_deployments(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    entry = find(catalog, call.path("name"))
    names = {entry.definition.folded}
    if entry.stored is not None:
        names |= {entry.stored.name, *entry.stored.record.former_names}
    skip, take = call.parameters["skip"], call.parameters["take"]
    read = partial(
        deployments_of, schemas=call.services.schemas, names=names, skip=skip, take=take + 1
    )
    found = await call.services.with_connection(read)
    items = [_deployment(each, names) for each in found[:take]]
    return json_response({"items": items, "skip": skip, "take": take, "hasMore": len(found) > take})


async def _administered(call: Call) -> tuple[CatalogEntry, Catalog]:
    catalog, _ = await load_catalog(call)
    entry = find(catalog, call.path("name"))
    require(catalog, entry, Action.ADMIN)
    return entry, catalog


def _require_in_use(entry: CatalogEntry) -> None:
    if not entry.is_in_use:
        raise Conflict(
            f"entity {entry.definition.name} is not deployed", code="ENTITY_NOT_DEPLOYED"
        )


async def _deploy(call: Call, entry: CatalogEntry) -> Response:
    body = bodies.load_object(await call.body(), known=("allow", "planId"), may_be_empty=True)
    plan_id = body.get("planId")
    if plan_id is not None and not isinstance(plan_id, str):
        raise InputError("planId must be the planId of a preview")
    answer = await call.services.deployer.deploy(
        entry.definition.folded,
        actor=call.principal.actor,
        allow=_allowances(body),
        plan_id=plan_id,
    )
    return json_response(answer)


def _allowances(body: dict[str, Any]) -> tuple[str, ...]:
    allow = body.get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(each, str) for each in allow):
        raise InputError('allow must be a list of texts, like ["REMOVES_COLUMN:customer"]')
    return tuple(allow)


def _hide_samples(document: dict[str, Any]) -> None:
    """Take the sampled rows out of a plan: the caller's row filter does not reach them."""
    for check in document.get("checks", ()):
        if "samples" in check:
            check["samples"] = []


def _deployment(deployment: Deployment, names: set[str]) -> dict[str, Any]:
    """*entities* is left out but for the asked one: others may be hidden from the caller."""
    given = asdict(deployment)
    return {
        "id": given["deployment_id"],
        "planId": given["plan_id"],
        "commit": given["commit"],
        "actor": given["actor"],
        "state": given["state"],
        "startedUtc": to_json_value(deployment.started_at),
        "finishedUtc": to_json_value(deployment.finished_at),
        "entityCount": len(deployment.entities),
    }


_PATH: Final = {"name": "Name of the entity, in any case."}
_ENTITY_ERRORS: Final = ("ENTITY_NOT_FOUND", "ACCESS_DENIED", "DEFINITIONS_IN_GIT")
_APPLY_ERRORS: Final = (
    *_ENTITY_ERRORS,
    "REQUEST_INVALID",
    "DEFINITION_INVALID",
    "PLAN_REFUSED",
    "PLAN_STALE",
    "WAREHOUSE_LOCKED",
    "PARTLY_APPLIED",
)
_DEPLOY_BODY: Final = Body(
    description="What is allowed. With `planId`, the `plan_id` of a preview, exactly that plan is"
    " applied and counts as approved; without it the project's policy holds, and `allow` adds to it.",
    schemas={JSON: schemas.ref("DeployRequest")},
    required=False,
)


def _post(path: str, handler: Any, summary: str, **rest: Any) -> Operation:
    return Operation(
        method="POST",
        path=f"/api/v1/entities/{{name}}{path}",
        handler=handler,
        summary=summary,
        tag="Deployment",
        access=Access.SIGNED_IN,
        path_parameters=_PATH,
        answers={200: Answer(description="Done.", schema=schemas.ref("DeployResult"))},
        **rest,
    )


operations = (
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/deploy/preview",
        handler=preview_deployment,
        summary="Plan the deployment of one entity",
        tag="Deployment",
        access=Access.SIGNED_IN,
        path_parameters=_PATH,
        description="The plan as `mdm-gitops plan --target <name> --format json` prints it. Needs"
        " the action admin on the entity.",
        answers={200: Answer(description="The plan.", schema=schemas.ref("Plan"))},
        errors=(*_ENTITY_ERRORS, "DEFINITION_INVALID"),
    ),
    _post("/deploy", deploy_entity, "Deploy one entity", body=_DEPLOY_BODY, errors=_APPLY_ERRORS),
    _post(
        "/redeploy",
        redeploy_entity,
        "Deploy a deployed entity again",
        description="As deploy, for an entity that is in use: what was changed by hand is set right.",
        body=_DEPLOY_BODY,
        errors=(*_APPLY_ERRORS, "ENTITY_NOT_DEPLOYED"),
    ),
    _post(
        "/deploy/remove",
        remove_deployment,
        "Take an entity out of use",
        description="Its tables are archived; nothing is lost, and deploy brings it back.",
        body=Body(
            description="What is allowed.",
            schemas={JSON: schemas.ref("RemoveRequest")},
            required=False,
        ),
        errors=(*_APPLY_ERRORS, "ENTITY_NOT_DEPLOYED"),
    ),
    _post(
        "/deploy/drop-archive-tables",
        drop_archive_tables,
        "Destroy the archives of an entity",
        description="The only operation that destroys data. The body repeats the entity's name.",
        body=Body(description="The confirmation.", schemas={JSON: schemas.ref("Confirmation")}),
        errors=(*_ENTITY_ERRORS, "CONFIRMATION_REQUIRED", "WAREHOUSE_LOCKED"),
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/deploy/history",
        handler=list_deployments,
        summary="List the deployments of an entity",
        tag="Deployment",
        access=Access.SIGNED_IN,
        path_parameters=_PATH,
        parameters=(
            paging.skip("Deployments", most=2**31 - 1),
            paging.take("Deployments", default=100, most=1_000),
        ),
        answers={200: Answer(description="Newest first.", schema=schemas.ref("Deployments"))},
        errors=("REQUEST_INVALID", "ENTITY_NOT_FOUND"),
    ),
)
