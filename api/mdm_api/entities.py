"""``/api/v1/entities``: the definitions, desired and deployed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import anyio.to_thread
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import find, load_catalog
from mdm_api.operations import JSON, YAML, Access, Answer, Body, Operation, Parameter
from mdm_gitops.access.catalog import Catalog, CatalogEntry, DefinitionState, DesiredView
from mdm_gitops.errors import DefinitionError, InputError, Location
from mdm_gitops.model import Definitions, Domain, Entity, fold
from mdm_gitops.model.values import to_json_value
from mdm_gitops.source import check_entity_in, parse_entity, render_entity

# Told with a definition, and no part of it: may come back in a body and is not looked at.
_STATUS = "status"
_TOLD = (_STATUS, "commit", "branch")


async def list_entities(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    return json_response({"items": [entity_document(e, catalog) for e in _chosen(call, catalog)]})


async def summarize_entities(call: Call) -> Response:
    catalog, view = await load_catalog(call)
    chosen = _chosen(call, catalog)
    counts = Counter(entry.state for entry in chosen)
    return json_response(
        {
            "items": [_summary(entry, catalog) for entry in chosen],
            "counts": {state.value: counts[state] for state in DefinitionState},
            "definitions": _about(view),
        }
    )


def _chosen(call: Call, catalog: Catalog) -> list[CatalogEntry]:
    domain, state = call.parameters["domain"], call.parameters["state"]
    return [
        entry
        for entry in catalog.visible().values()
        if (not domain or entry.definition.domain == domain) and (not state or entry.state == state)
    ]


def _about(view: DesiredView) -> dict[str, Any]:
    definitions = view.definitions
    return {
        "available": definitions is not None,
        "commit": definitions.commit if definitions else None,
        "errorCount": len(view.findings),
    }


async def get_entity(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    entry = find(catalog, call.path("name"))
    return json_response(
        entity_document(entry, catalog), headers={"ETag": etag_of(entry.definition)}
    )


async def get_entity_yaml(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    entry = find(catalog, call.path("name"))
    headers = {
        "Content-Type": f"{YAML}; charset=utf-8",
        "Cache-Control": "no-store",
        "ETag": etag_of(entry.definition),
    }
    return Response(render_entity(entry.definition), headers=headers)


def etag_of(entity: Entity) -> str:
    """Return the version of a definition: equal for equal meaning, whatever its text."""
    return f'"d-{entity.content_hash()[:24]}"'


def entity_document(entry: CatalogEntry, catalog: Catalog) -> dict[str, Any]:
    return {**entry.definition.to_document(), _STATUS: _status(entry, catalog)}


def _status(entry: CatalogEntry, catalog: Catalog) -> dict[str, Any]:
    stored, deployed = entry.stored, entry.deployed
    return {
        "state": entry.state.value,
        "deployedVersion": deployed.version if deployed else None,
        "commit": stored.commit if stored else None,
        "deployedAt": to_json_value(stored.deployed_at) if stored else None,
        "actions": sorted(catalog.rights(entry).actions),
    }


def _summary(entry: CatalogEntry, catalog: Catalog) -> dict[str, Any]:
    entity = entry.definition
    return {
        "name": entity.name,
        "displayName": entity.display_name,
        "domain": entity.domain,
        "version": entity.version,
        "columnCount": len(entity.columns),
        "historyEnabled": entity.history_enabled,
        "approvalRequired": entity.approval_required,
        **_status(entry, catalog),
    }


# --- definitions that are sent ----------------------------------------------------------------


async def parse_yaml(call: Call) -> Response:
    text = await bodies.yaml_text(call)
    entity = await anyio.to_thread.run_sync(parse_entity, text)
    return json_response(entity.to_document())


async def validate_entity(call: Call) -> Response:
    from_json = bodies.media_type(call.request) == JSON
    text = await definition_text(call)
    known = await visible_definitions(call)
    try:
        entity = await anyio.to_thread.run_sync(check_entity_in, known, text)
    except DefinitionError as error:
        raise without_lines(error) if from_json else error from None
    return json_response({"valid": True, "definition": entity.to_document()})


async def visible_definitions(call: Call, *, in_place_of: str = "") -> Definitions:
    """Return what may be referred to: existence of what is hidden must not show in an error.

    *in_place_of* is an entity that what is sent replaces, also under another name.
    """
    catalog, view = await load_catalog(call)
    base = view.definitions or call.state.definitions
    visible = catalog.visible()
    entities = {name: entity for name, entity in base.entities.items() if name in visible}
    entities.pop(fold(in_place_of), None)
    project = base.project
    if view.definitions is None and call.state.project is None:
        # Deployed one by one, so nobody has told the store of the domains.
        domains = {entity.domain for entity in entities.values()}
        project = project.model_copy(
            update={"domains": tuple(Domain(name=n) for n in sorted(domains))}
        )
    return replace(base, project=project, entities=entities)


async def definition_text(call: Call, *, name: str = "") -> bytes:
    """Return the definition of the body as YAML; one in JSON without a name gets *name*."""
    if bodies.media_type(call.request) != JSON:
        return await bodies.yaml_text(call)
    value = bodies.load_json(await call.body())
    if not isinstance(value, dict):
        raise InputError("the body must be the definition as a JSON object")
    if set(value) == {"yaml"} and isinstance(value["yaml"], str):
        return value["yaml"].encode()
    for told in _TOLD:
        value.pop(told, None)
    if name:
        value.setdefault("name", name)
    # JSON is YAML, so one reader judges both.
    return json.dumps(value, ensure_ascii=False, default=float).encode()


def without_lines(error: DefinitionError) -> DefinitionError:
    """Findings of a JSON body go by pointer: the text that was read is not the one sent."""
    place = Location("<body>")
    return DefinitionError([replace(finding, location=place) for finding in error.findings])


_FILTERS = (
    Parameter(name="domain", description="Only entities of this domain."),
    Parameter(
        name="state",
        description="Only entities in this state.",
        choices=tuple(state.value for state in DefinitionState),
    ),
)
PATH = {"name": "Name of the entity, in any case."}
_ETAG = {"ETag": "The version of the definition, for If-Match."}
YAML_BODY = {
    YAML: {"type": "object"},
    "text/yaml": {"type": "string"},
    JSON: schemas.ref("YamlText"),
}

operations = (
    Operation(
        method="GET",
        path="/api/v1/entities",
        handler=list_entities,
        summary="List definitions",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        parameters=_FILTERS,
        description="The entities that the caller may read: those of the definitions and those"
        " deployed. Where both exist, the definition of the repository is shown.",
        answers={200: Answer(description="Definitions.", schema=schemas.ref("EntityList"))},
        errors=("REQUEST_INVALID",),
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/summary",
        handler=summarize_entities,
        summary="List entities in short, with their states",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        parameters=_FILTERS,
        answers={200: Answer(description="Entities.", schema=schemas.ref("EntitySummaries"))},
        errors=("REQUEST_INVALID",),
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/{name}",
        handler=get_entity,
        summary="Read one definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters=PATH,
        answers={
            200: Answer(
                description="The definition.",
                schema=schemas.ref("EntityDocument"),
                headers=_ETAG,
            )
        },
        errors=("ENTITY_NOT_FOUND",),
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/yaml",
        handler=get_entity_yaml,
        summary="Read one definition as YAML",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters=PATH,
        answers={
            200: Answer(
                description="The definition in canonical form.",
                media_type=YAML,
                schema={"type": "object"},
                headers=_ETAG,
            )
        },
        errors=("ENTITY_NOT_FOUND",),
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/parse-yaml",
        handler=parse_yaml,
        summary="Parse a definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        description="Answers the definition as JSON, defaults left out. What it refers to is not"
        " looked up, see validate. Nothing is saved.",
        body=Body(description="YAML, or JSON that carries it.", schemas=YAML_BODY),
        answers={200: Answer(description="The definition.", schema=schemas.ref("Entity"))},
        errors=(
            "DEFINITION_INVALID",
            "REQUEST_INVALID",
            "BODY_TOO_LARGE",
            "MEDIA_TYPE_UNSUPPORTED",
        ),
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/validate",
        handler=validate_entity,
        summary="Validate a definition among the others",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        description="Checks the definition as if it were saved, also what it refers to. Nothing is"
        " saved.",
        body=Body(
            description="The definition as JSON or YAML.",
            schemas={**YAML_BODY, JSON: schemas.ref("Entity")},
        ),
        answers={200: Answer(description="It is valid.", schema=schemas.ref("Validation"))},
        errors=(
            "DEFINITION_INVALID",
            "REQUEST_INVALID",
            "BODY_TOO_LARGE",
            "MEDIA_TYPE_UNSUPPORTED",
        ),
    ),
)
