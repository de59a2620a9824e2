"""``/api/v1/permissions``: who may what, shown as deployed and changed as commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.committing import commit_access
from mdm_api.operations import JSON, YAML, Access, Answer, Body, Operation
from mdm_gitops.access import may_administer
from mdm_gitops.errors import AccessDenied, Conflict, InputError
from mdm_gitops.model import Action, PermissionGrant
from mdm_gitops.model.access import ALL_DOMAINS, PermissionItem, Permissions
from mdm_gitops.source.commits import Committed, Files
from mdm_gitops.source.edit import append_item
from mdm_gitops.source.render import render
from mdm_gitops.source.repository import read_tree

PATH: Final = "permissions.yaml"
_MEMBERS: Final = ("principal", "domain", "entity", "actions", "rowFilterDsl")


async def list_permissions(call: Call) -> Response:
    grants = _visible(call)
    return json_response({"items": [_document(grant) for grant in grants]})


async def create_permission(call: Call) -> Response:
    item = _item(bodies.load_object(await call.body(), known=_MEMBERS))
    [grant] = item.grants()
    if not may_administer(call.principal, call.state, domain=grant.domain, entity=grant.entity):
        raise AccessDenied("you may not give rights there", hint="the action admin lets you")

    def change(files: Mapping[str, bytes]) -> Files:
        if grant in _grants_of(files):
            return {}
        return {PATH: append_item(files.get(PATH), "permissions", item)}

    message = f"Permit {', '.join(item.actions)} to {grant.principal}"
    done = await commit_access(call, change, message=message)
    return _committed(done, _document(grant))


async def export_permissions(call: Call) -> Response:
    text = render(_collected(_visible(call)))
    return Response(text, media_type=YAML, headers={"Cache-Control": "no-store"})


async def import_permissions(call: Call) -> Response:
    """The whole set is replaced: only who may administer all of it can do that."""
    if not may_administer(call.principal, call.state, domain=ALL_DOMAINS, entity=""):
        raise AccessDenied("the whole set is replaced, which is for an admin of all domains")
    text = await bodies.yaml_text(call)

    def change(files: Mapping[str, bytes]) -> Files:
        before, after = _grants_of(files), _grants_of({**files, PATH: text})
        if _admins(before) and not _admins(after):
            raise Conflict(
                "the last permission with the action admin would be removed",
                hint="give the action admin to somebody",
                code="PLAN_REFUSED",
            )
        return {PATH: text}

    done = await commit_access(call, change, message="Replace all permissions")
    return _committed(done, {"commit": done.commit, "branch": done.branch}, created=200)


def _visible(call: Call) -> list[PermissionGrant]:
    """Return the assignments that the caller administers, in a fixed order.

    Raises:
        AccessDenied: there are none that it may.
    """
    state = call.state
    grants = sorted({grant for each in state.grants.values() for grant in each})
    found = [
        grant
        for grant in grants
        if may_administer(call.principal, state, domain=grant.domain, entity=grant.entity)
    ]
    if not found and not call.principal.is_global_admin:
        raise AccessDenied("permissions are shown to those who have the action admin")
    return found


def _grants_of(files: Mapping[str, bytes]) -> frozenset[PermissionGrant]:
    return frozenset(read_tree(files).grants) if PATH in files else frozenset()


def _admins(grants: Iterable[PermissionGrant]) -> bool:
    return any(Action.ADMIN in grant.actions for grant in grants)


def _item(given: Mapping[str, Any]) -> PermissionItem:
    for name in ("principal", "domain", "entity", "rowFilterDsl"):
        value = given.get(name)
        if not (isinstance(value, str) or (value is None and name in ("entity", "rowFilterDsl"))):
            raise InputError(f"{name} must be text", parameter=name)
    document = {
        "users": [given["principal"]],
        "domains": [given["domain"]],
        "entities": [given["entity"]] if given.get("entity") else [],
        "actions": given.get("actions"),
    }
    if given.get("rowFilterDsl"):
        document["rowFilterDsl"] = given["rowFilterDsl"]
    try:
        return PermissionItem.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{at}: {first['msg']}", parameter=at) from None


def _document(grant: PermissionGrant) -> dict[str, Any]:
    return {
        "principal": grant.principal,
        "domain": grant.domain,
        "entity": grant.entity or None,
        "actions": [action.value for action in grant.actions],
        "rowFilterDsl": grant.row_filter or None,
    }


def _collected(grants: Iterable[PermissionGrant]) -> Permissions:
    """Return the grants as items of the file: who has the same rights in the same place stands
    together."""
    users: dict[tuple[Any, ...], list[str]] = {}
    for grant in grants:
        users.setdefault((grant.domain, grant.entity, grant.actions, grant.row_filter), []).append(
            grant.principal
        )
    items = [
        {
            "users": names,
            "domains": [domain],
            "entities": [entity] if entity else [],
            "actions": [action.value for action in actions],
            **({"rowFilterDsl": row_filter} if row_filter else {}),
        }
        for (domain, entity, actions, row_filter), names in users.items()
    ]
    return Permissions.model_validate({"permissions": items})


def _committed(done: Committed, document: dict[str, Any], *, created: int = 201) -> Response:
    content = {**document, "commit": done.commit, "branch": done.branch}
    if done.branch is not None:
        return json_response(content, status=202)
    return json_response(content, status=created if done.commit else 200)


_BODY: Final = Body(description="One assignment.", schemas={JSON: schemas.ref("Permission")})
_YAML_BODY: Final = Body(
    description="The whole of `permissions.yaml`.",
    schemas={YAML: {"type": "object"}, JSON: schemas.ref("YamlText")},
)
_ERRORS: Final = (
    "REQUEST_INVALID",
    "ACCESS_DENIED",
    "DEFINITION_INVALID",
    "DEFINITIONS_IN_GIT",
    "DEFINITIONS_EDITED",
    "PLAN_REFUSED",
    "WAREHOUSE_LOCKED",
)
_CHANGED: Final = Answer(
    description="Committed, and in effect.", schema=schemas.ref("PermissionCommitted")
)
_PROPOSED: Final = Answer(
    description="Pushed to a branch, in effect once it is merged.",
    schema=schemas.ref("PermissionCommitted"),
)
_UNCHANGED: Final = Answer(
    description="It was there already.", schema=schemas.ref("PermissionCommitted")
)

operations = (
    Operation(
        method="GET",
        path="/api/v1/permissions",
        handler=list_permissions,
        summary="List assignments",
        tag="Permissions",
        access=Access.SIGNED_IN,
        description="The assignments in effect that the caller administers; a Global Admin sees all.",
        answers={200: Answer(description="Assignments.", schema=schemas.ref("PermissionList"))},
        errors=("ACCESS_DENIED",),
    ),
    Operation(
        method="POST",
        path="/api/v1/permissions",
        handler=create_permission,
        summary="Add an assignment",
        tag="Permissions",
        access=Access.SIGNED_IN,
        body=_BODY,
        description="A commit by the caller to `permissions.yaml`, in effect at the next check of"
        " every worker. An entity's row may carry a row filter.",
        answers={200: _UNCHANGED, 201: _CHANGED, 202: _PROPOSED},
        errors=_ERRORS,
    ),
    Operation(
        method="GET",
        path="/api/v1/permissions/yaml",
        handler=export_permissions,
        summary="Export all assignments as YAML",
        tag="Permissions",
        access=Access.SIGNED_IN,
        answers={
            200: Answer(
                description="As `permissions.yaml`.", schema={"type": "object"}, media_type=YAML
            )
        },
        errors=("ACCESS_DENIED",),
    ),
    Operation(
        method="POST",
        path="/api/v1/permissions/yaml",
        handler=import_permissions,
        summary="Replace all assignments",
        tag="Permissions",
        access=Access.SIGNED_IN,
        body=_YAML_BODY,
        description="The body becomes `permissions.yaml`, as a commit by the caller. Refused when"
        " nobody would have the action admin any more.",
        answers={200: _CHANGED, 202: _PROPOSED},
        errors=(*_ERRORS, "MEDIA_TYPE_UNSUPPORTED"),
    ),
)
