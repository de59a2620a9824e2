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
from mdm_gitops.access.catalog import Catalog
from mdm_gitops.errors import AccessDenied, InputError
from mdm_gitops.model import Action
from mdm_gitops.source.commits import Files
from mdm_gitops.source.common_entities import (
    LICENCE,
    CommonEntity,
    common_entities,
    find_common,
    installed,
    wanted_with,
    with_domain,
)


async def list_common_entities(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    known = await anyio.to_thread.run_sync(common_entities)
    return json_response({"items": [_document(each, catalog) for each in known.values()]})


async def install_common_entity(call: Call) -> Response:
    await anyio.to_thread.run_sync(common_entities)
    common = find_common(call.path("id"))
    domain = _domain(bodies.load_object(await call.body(), known=("domain",), may_be_empty=True))
    catalog, view = await load_catalog(call)
    defined = {name: entry for name, entry in catalog.entries.items() if entry.desired is not None}
    wanted = wanted_with(common, defined)
    given = view.definitions
    domains = {each.name for each in given.project.domains} if given else set()
    new_domains = sorted({domain or each.entity.domain for each in wanted} - domains)
    _require(call, catalog, wanted, domain, new_domains)

    def change(files: Mapping[str, bytes]) -> Files:
        written: dict[str, bytes | None] = {}
        for each in wanted:
            written |= installed(files, each, domain)
        for name in new_domains:
            written |= with_domain({**files, **_kept(written)}, name)
        return written

    names = [each.entity.name for each in wanted]
    done = await commit_definitions(
        call, change, message=f"Install common entities: {', '.join(names)}"
    )
    answer = {"installed": names, "commit": done.commit, "branch": done.branch}
    return json_response(answer, status=201 if done.branch is None else 202)


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
    wanted: tuple[CommonEntity, ...],
    domain: str,
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
        place = domain or each.entity.domain
        entry = catalog.entries.get(each.entity.folded)
        former = entry is None or catalog.rights(entry).may(Action.ADMIN)
        if not (former and may_administer(call.principal, call.state, domain=place, entity="")):
            raise AccessDenied(f"this needs the action admin in domain {place[:60]}")
    visible = catalog.visible()
    for name in {name for each in wanted for name in each.needs}:
        if name in catalog.entries and name not in visible:
            raise AccessDenied(f"this needs the action read on {name}")


def _document(common: CommonEntity, catalog: Catalog) -> dict[str, Any]:
    entity = common.entity
    entry = catalog.find(entity.name)
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
        "licence": LICENCE,
        "installed": entry is not None and entry.desired is not None,
    }


operations = (
    Operation(
        method="GET",
        path="/api/v1/common-entities",
        handler=list_common_entities,
        summary="List predefined entities",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        description="Code lists that come with the program, with the source and licence of their rows.",
        answers={200: Answer(description="Entities.", schema=schemas.ref("CommonEntities"))},
    ),
    Operation(
        method="POST",
        path="/api/v1/common-entities/{id}/install",
        handler=install_common_entity,
        summary="Install a predefined entity",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters={"id": "Name of the common entity."},
        body=Body(
            description="The domain it goes to; else its own.",
            schemas={JSON: schemas.ref("CommonInstall")},
            required=False,
        ),
        description="A commit by the caller with the entity, what it refers to, and their seeds. Saved"
        " is not deployed. Needs the action admin in the domain.",
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
            "DEFINITION_INVALID",
            "DEFINITIONS_IN_GIT",
            "DEFINITIONS_EDITED",
            "PUSH_REFUSED",
            "SOURCE_UNAVAILABLE",
            "WAREHOUSE_LOCKED",
        ),
    ),
)
