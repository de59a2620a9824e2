"""``GET /api/v1/me`` and ``GET /api/v1/roles``: who the caller is, and what may be done by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import load_catalog
from mdm_api.operations import Access, Answer, Operation
from mdm_gitops.access.catalog import Catalog, CatalogEntry
from mdm_gitops.access.rights import domain_actions
from mdm_gitops.access.roles import ROLES
from mdm_gitops.model import Action

Document = dict[str, Any]


async def get_me(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    principal = call.principal
    domains = domain_actions(principal, call.state)
    document = {
        "principal": principal.actor,
        "kind": principal.kind.value,
        "name": principal.name,
        "groups": sorted(principal.groups),
        "isGlobalAdmin": principal.is_global_admin,
        "credential": call.credential.kind.value,
        "tier": call.services.tier.value,
        "domains": [
            {"domain": name, "actions": _names(actions)}
            for name, actions in sorted(domains.items())
        ],
        "rights": [_entity(catalog, entry) for entry in catalog.visible().values()],
    }
    return json_response(document)


async def list_roles(call: Call) -> Response:
    items = [
        {
            "name": role.name,
            "action": role.action.value,
            "grants": _names(role.grants),
            "description": role.description,
        }
        for role in ROLES
    ]
    auth = call.services.settings.Auth
    application = {"globalAdmin": auth.AdminRole, "entry": auth.EntryRole or None}
    return json_response({"items": items, "applicationRoles": application})


def _entity(catalog: Catalog, entry: CatalogEntry) -> Document:
    rights = catalog.rights(entry)
    return {
        "entity": entry.definition.name,
        "domain": entry.definition.domain,
        "actions": _names(rights.actions),
        # Their text may speak of what the caller must not know.
        "onSomeRows": _names(rights.row_filters),
    }


def _names(actions: Iterable[Action]) -> list[str]:
    given = set(actions)
    return [action.value for action in Action if action in given]


operations = (
    Operation(
        method="GET",
        path="/api/v1/me",
        handler=get_me,
        summary="Who the caller is, and what it may do",
        tag="Access",
        access=Access.SIGNED_IN,
        description="The effective rights: what domain rows grant by domain, and for each entity"
        " that the caller may know of, all actions. `onSomeRows` names those that reach only the"
        " rows of a row filter.",
        answers={200: Answer(description="The caller.", schema=schemas.ref("Me"))},
    ),
    Operation(
        method="GET",
        path="/api/v1/roles",
        handler=list_roles,
        summary="List roles",
        tag="Access",
        access=Access.SIGNED_IN,
        description="The levels of permission, and the action that gives each in permissions.yaml. `applicationRoles`"
        " names the roles of the identity provider that make a Global Admin and let somebody in.",
        answers={200: Answer(description="They.", schema=schemas.ref("Roles"))},
    ),
)
