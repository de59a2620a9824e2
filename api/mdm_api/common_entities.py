"""``/api/v1/common-entities``: predefined entities, installed as a commit by the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.to_thread
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import load_catalog
from mdm_api.committing import commit_definitions
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.access import may_administer
from mdm_gitops.access.catalog import Catalog, CatalogEntry, DesiredView
from mdm_gitops.errors import AccessDenied, InputError
from mdm_gitops.model import Action
from mdm_gitops.source.commits import Files
from mdm_gitops.source.common_entities import (
    CommonEntity,
    Installation,
    common_entities,
    find_common,
    installation,
    installed,
    wanted_with,
    with_domain,
)


async def list_common_entities(call: Call) -> Response:
    catalog, view = await load_catalog(call)

    def documents() -> list[dict[str, Any]]:  # rows are hashed
        known = common_entities().values()
        return [_document(each, _installation(each, catalog, view)) for each in known]

    return json_response({"items": await anyio.to_thread.run_sync(documents)})


async def install_common_entity(call: Call) -> Response:
    await anyio.to_thread.run_sync(common_entities)
    common = find_common(call.path("id"))
    domain = _domain(bodies.load_object(await call.body(), known=("domain",), may_be_empty=True))
    catalog, view = await load_catalog(call)
    defined = {name: entry for name, entry in catalog.entries.items() if entry.desired is not None}
    wanted = wanted_with(common, defined)
    given = view.definitions
    domains = {each.name for each in given.project.domains} if given else set()
    places = {each.id: _place(each, defined, domain) for each in wanted}
    new_domains = sorted(set(places.values()) - domains)
    _require(call, catalog, places, wanted, new_domains)

    def change(files: Mapping[str, bytes]) -> Files:
        written: dict[str, bytes | None] = {}
        for each in wanted:
            written |= installed(files, each, domain)
        for name in new_domains:
            written |= with_domain({**files, **_kept(written)}, name)
        return written

    upgraded = [each.id for each in wanted if each.entity.folded in defined]
    fresh = [each.id for each in wanted if each.id not in upgraded]
    done = await commit_definitions(call, change, message=_message(fresh, upgraded))
    answer = {
        "installed": fresh,
        "upgraded": upgraded,
        "commit": done.commit,
        "branch": done.branch,
    }
    return json_response(answer, status=201 if done.branch is None else 202)


def _message(fresh: list[str], upgraded: list[str]) -> str:
    said = [f"Upgrade common entities: {', '.join(upgraded)}"] if upgraded else []
    said += [f"Install common entities: {', '.join(fresh)}"] if fresh else []
    return "; ".join(said)


def _place(common: CommonEntity, defined: Mapping[str, CatalogEntry], domain: str) -> str:
    """Return the domain it will be in: where it is, else where it is wanted, else its own."""
    entry = defined.get(common.entity.folded)
    if entry is None:
        return domain or common.entity.domain
    return entry.definition.domain


def _kept(files: Files) -> Mapping[str, bytes]:
    return {path: data for path, data in files.items() if data is not None}


def _domain(given: Mapping[str, Any]) -> str:
    domain = given.get("domain")
    if domain is not None and not (isinstance(domain, str) and domain):
        raise InputError("domain must be a text", parameter="domain")
    return domain or ""


def _require(
    call: Call,
    catalog: Catalog,
    places: Mapping[str, str],
    wanted: tuple[CommonEntity, ...],
    new_domains: list[str],
) -> None:
    """Installing needs admin in the domain; a new domain is for a Global Admin. What an entity that was
    here before left behind comes back with the name, so that has to be the caller's, too."""
    if new_domains and not call.principal.is_global_admin:
        raise AccessDenied(
            f"there is no domain {new_domains[0][:60]}, and only a Global Admin adds one",
            hint="name a domain of yours in the body",
        )
    for each in wanted:
        place = places[each.id]
        entry = catalog.entries.get(each.entity.folded)
        former = entry is None or catalog.rights(entry).may(Action.ADMIN)
        if not (former and may_administer(call.principal, call.state, domain=place, entity="")):
            raise AccessDenied(f"this needs the action admin in domain {place[:60]}")
    visible = catalog.visible()
    for name in {name for each in wanted for name in each.needs}:
        if name in catalog.entries and name not in visible:
            raise AccessDenied(f"this needs the action read on {name}")


def _installation(common: CommonEntity, catalog: Catalog, view: DesiredView) -> Installation | None:
    """Return what is there of it, as far as the caller may know; None for nothing."""
    entry = catalog.find(common.entity.name)
    if entry is None or entry.desired is None:
        return None
    seeds = view.definitions.seeds if view.definitions else {}
    return installation(common, entry.desired, seeds.get(common.entity.folded))


def _document(common: CommonEntity, there: Installation | None) -> dict[str, Any]:
    entity = common.entity
    return {
        "id": common.id,
        "name": entity.name,
        "displayName": entity.display_name,
        "description": entity.description,
        "domain": entity.domain,
        "version": entity.version,
        "rows": common.rows,
        "dependencies": list(common.needs),
        "source": common.source,
        "licence": common.licence,
        "installed": there is not None,
        "installedVersion": there.version if there else None,
        "changedLocally": there.changed if there else None,
        "upgradable": there.upgradable if there else False,
    }


operations = (
    Operation(
        method="GET",
        path="/api/v1/common-entities",
        handler=list_common_entities,
        summary="List predefined entities",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        description="Code lists that come with the program, with the source and licence of their rows."
        " `version` is what can be installed, `installedVersion` what is there: null also for an entity of the"
        " same name whose `version` was never one of the catalogue. `changedLocally` says whether definition or"
        " seed were changed since.",
        answers={200: Answer(description="Entities.", schema=schemas.ref("CommonEntities"))},
    ),
    Operation(
        method="POST",
        path="/api/v1/common-entities/{id}/install",
        handler=install_common_entity,
        summary="Install a predefined entity, or bring it to its newer version",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters={"id": "Name of the common entity."},
        body=Body(
            description="The domain it goes to; else its own.",
            schemas={JSON: schemas.ref("CommonInstall")},
            required=False,
        ),
        description="A commit by the caller with the entity, what it refers to, and their seeds. One that is"
        " there in a former version is upgraded where it is, definition and seed, and what was changed locally is"
        " kept; 409 `COMMON_ENTITY_CONFLICT` names in `conflicts` what both have changed. Saved is not deployed."
        " Needs the action admin in the domain.",
        answers={
            201: Answer(
                description="Committed, and not deployed yet.",
                schema=schemas.ref("CommonInstalled"),
            ),
            202: Answer(
                description="Pushed to a branch; somebody merges it.",
                schema=schemas.ref("CommonInstalled"),
            ),
        },
        errors=(
            "REQUEST_INVALID",
            "ACCESS_DENIED",
            "COMMON_ENTITY_NOT_FOUND",
            "ENTITY_EXISTS",
            "COMMON_ENTITY_CONFLICT",
            "DEFINITION_INVALID",
            "DEFINITIONS_IN_GIT",
            "DEFINITIONS_EDITED",
            "PUSH_REFUSED",
            "SOURCE_UNAVAILABLE",
            "WAREHOUSE_LOCKED",
        ),
    ),
)
