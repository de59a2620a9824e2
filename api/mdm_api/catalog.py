"""Find the entity that a path names, among those that the caller may know of."""

from __future__ import annotations

from functools import partial

from mdm_api.call import Call
from mdm_gitops.access.catalog import Catalog, CatalogEntry, DesiredView, build_catalog
from mdm_gitops.data.asking import no_such_entity
from mdm_gitops.errors import AccessDenied, Conflict, MdmError
from mdm_gitops.model import Action
from mdm_gitops.warehouse.store import last_deployment_states


async def load_catalog(call: Call) -> tuple[Catalog, DesiredView]:
    """Return the catalog as the caller sees it, and the definitions it was made from."""
    view = await call.services.definitions.current()
    read = partial(last_deployment_states, schemas=call.services.schemas)
    last = await call.services.with_connection(read)
    catalog = build_catalog(call.state, view, principal=call.principal, last_deployments=last)
    return catalog, view


def find(catalog: Catalog, name: str) -> CatalogEntry:
    """Return the entry of *name*, or raise the error for absent and hidden ones."""
    entry = catalog.find(name)
    if entry is None:
        raise no_such_entity(name, [e.definition.name for e in catalog.visible().values()])
    return entry


def require(catalog: Catalog, entry: CatalogEntry, action: Action) -> None:
    if not catalog.rights(entry).may(action):
        raise AccessDenied(f"this needs the action {action.value} on {entry.definition.name}")


async def explain_absence(call: Call, error: MdmError) -> MdmError:
    """Return what to say of an entity that has no rows to show: perhaps it is not deployed yet."""
    if error.kind_code != "ENTITY_NOT_FOUND":
        return error
    catalog, _ = await load_catalog(call)
    name = call.path("name")
    entry = catalog.find(name)
    if entry is None:
        return no_such_entity(name, [e.definition.name for e in catalog.visible().values()])
    if not catalog.rights(entry).may_read:
        return AccessDenied(f"this needs the action read on {entry.definition.name}")
    return Conflict(
        f"entity {entry.definition.name} is not deployed",
        hint=f"POST /api/v1/entities/{entry.definition.name}/deploy",
        code="ENTITY_NOT_DEPLOYED",
    )
