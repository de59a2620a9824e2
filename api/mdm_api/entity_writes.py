"""Entities through the API: created, changed and removed as commits by their caller.

Saved is not deployed: the warehouse follows by deploy, or by the operator. What the caller may not see
must not show in what is refused, so a definition is first judged among the visible ones, and findings
in files of others lose their words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio.to_thread
from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import find, load_catalog, require
from mdm_api.committing import commit_definitions
from mdm_api.entities import (
    PATH,
    YAML_BODY,
    definition_text,
    entity_document,
    etag_of,
    visible_definitions,
    without_lines,
)
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.access import may_administer, rights_of
from mdm_gitops.access.catalog import Catalog
from mdm_gitops.errors import (
    AccessDenied,
    Conflict,
    DefinitionError,
    Finding,
    InputError,
    Location,
    MdmError,
    NotFound,
)
from mdm_gitops.model import Action, Entity, fold
from mdm_gitops.source import check_entity_in, parse_entity
from mdm_gitops.source.commits import Committed, Files
from mdm_gitops.source.entity_files import entity_at, path_of, removed, saved, what_changed

_ANY: Final = "*"


@dataclass(frozen=True, kw_only=True)
class _Given:
    """*has_lines* says whether *text* is the caller's own, and not what its JSON became."""

    entity: Entity
    text: bytes
    has_lines: bool


async def create_entity(call: Call) -> Response:
    given = await _given(call)
    catalog, _ = await load_catalog(call)
    _require_free(call, catalog, given.entity)
    await _check(call, given)
    return await _save(call, given, catalog, instead_of="", may_exist=False)


async def save_entity(call: Call) -> Response:
    """Create or change under the name of the path."""
    catalog, _ = await load_catalog(call)
    name = call.path("name")
    given = await _given(call, named=name)
    if catalog.find(name) is None:
        _require_same_name(name, given.entity)
        _require_free(call, catalog, given.entity)
        await _check(call, given)
        return await _save(call, given, catalog, instead_of="", may_exist=False)
    _require_admin(call, catalog, name, given.entity)
    await _check(call, given, in_place_of=name)
    return await _save(call, given, catalog, instead_of=name, may_exist=True)


async def update_entity(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    name = call.path("name")
    require(catalog, find(catalog, name), Action.ADMIN)
    given = await _given(call, named=name)
    _require_admin(call, catalog, name, given.entity)
    await _check(call, given, in_place_of=name)
    return await _save(call, given, catalog, instead_of=name, may_exist=True, must_exist=True)


async def delete_entity(call: Call) -> Response:
    catalog, _ = await load_catalog(call)
    entry = find(catalog, call.path("name"))
    require(catalog, entry, Action.ADMIN)
    name, expected = entry.definition.name, _if_match(call)

    def change(files: Mapping[str, bytes]) -> Files:
        _present(files, name, expected)
        return removed(files, name)

    done = await _commit(call, change, catalog, f"Remove {name}", name)
    if done.branch is not None:
        return json_response({"name": name, "state": None, **_told(done)}, status=202)
    after, _ = await load_catalog(call)
    left = after.find(name)
    state = left.state.value if left is not None else None
    return json_response({"name": name, "state": state, **_told(done)})


# --- what is sent -----------------------------------------------------------------------------------


async def _given(call: Call, *, named: str = "") -> _Given:
    text = await definition_text(call, name=named)
    # JSON, or YAML that begins like it: there are no lines and comments that its author would know.
    has_lines = not text.startswith(b"{")
    try:
        entity = await anyio.to_thread.run_sync(parse_entity, text)
    except DefinitionError as error:
        raise error if has_lines else without_lines(error) from None
    return _Given(entity=entity, text=text, has_lines=has_lines)


async def _check(call: Call, given: _Given, *, in_place_of: str = "") -> None:
    """Refuse what does not fit among those that the caller may see."""
    known = await visible_definitions(call, in_place_of=in_place_of)
    try:
        await anyio.to_thread.run_sync(check_entity_in, known, given.text)
    except DefinitionError as error:
        raise error if given.has_lines else without_lines(error) from None


def _if_match(call: Call) -> str:
    """Return the ETag that the definition must still have, "" where the caller asks for none."""
    text = call.request.headers.get("If-Match", "").strip()
    if text in ("", _ANY):
        return ""
    if not (text.startswith('"d-') and text.endswith('"') and len(text) < 100):
        raise InputError(
            "If-Match is not an ETag of a definition",
            hint="send back the ETag of the definition as it is",
            parameter="If-Match",
        )
    return text


def _require_same_name(name: str, entity: Entity) -> None:
    if fold(name) != entity.folded:
        raise InputError(
            f"the path says {name[:60]} and the body {entity.name}",
            hint="to rename an entity that is there, write its former name as renamedFrom",
            parameter="name",
        )


# --- who may ----------------------------------------------------------------------------------------


def _require_free(call: Call, catalog: Catalog, entity: Entity) -> None:
    """A new entity needs admin in its domain. A name that brings back rows of a former entity needs it
    there, too."""
    if not may_administer(call.principal, call.state, domain=entity.domain, entity=""):
        raise AccessDenied(f"this needs the action admin in domain {entity.domain}")
    entry = catalog.entries.get(entity.folded)
    if entry is not None and (
        entry.desired is not None or not _administers(call, entry.definition)
    ):
        raise _exists(entity.name)
    _require_former(call, catalog, entity)


def _require_admin(call: Call, catalog: Catalog, name: str, entity: Entity) -> None:
    """A change needs admin on the entity as it is, and as it will be."""
    entry = find(catalog, name)
    require(catalog, entry, Action.ADMIN)
    if fold(name) == entity.folded:
        allowed = _administers(call, entity)
    else:
        if fold(entity.renamed_from or "") != fold(name):
            _require_same_name(name, entity)
        allowed = may_administer(call.principal, call.state, domain=entity.domain, entity="")
        taken = catalog.entries.get(entity.folded)
        if allowed and taken is not None:
            raise _exists(entity.name)
    if not allowed:
        raise AccessDenied(f"this needs the action admin in domain {entity.domain}")
    _require_former(call, catalog, entity)


def _require_former(call: Call, catalog: Catalog, entity: Entity) -> None:
    """Whoever renames an entity takes its rows along."""
    former = fold(entity.renamed_from or "")
    if not former or call.principal.is_global_admin:
        return
    entry = catalog.entries.get(former)
    before = catalog.entries.get(entity.folded)
    known = before is not None and before.definition.renamed_from == entity.renamed_from
    if not known and (entry is None or not catalog.rights(entry).may(Action.ADMIN)):
        raise AccessDenied(f"this needs the action admin on {entity.renamed_from}")


def _administers(call: Call, entity: Entity) -> bool:
    return rights_of(call.principal, entity, call.state).may(Action.ADMIN)


# --- the commit -------------------------------------------------------------------------------------


async def _save(
    call: Call,
    given: _Given,
    catalog: Catalog,
    *,
    instead_of: str,
    may_exist: bool,
    must_exist: bool = False,
) -> Response:
    entity, expected = given.entity, _if_match(call)
    entry = catalog.find(instead_of) if instead_of else None
    old = entry.desired if entry is not None else None
    text = given.text if given.has_lines else None

    def change(files: Mapping[str, bytes]) -> Files:
        path = path_of(files, instead_of or entity.name)
        if path is not None and not may_exist:
            raise _exists(entity.name)
        if must_exist or expected:
            _present(files, instead_of or entity.name, expected)
        return saved(files, entity, instead_of=instead_of, text=text)

    done = await _commit(call, change, catalog, what_changed(old, entity), entity.name)
    headers = {"ETag": etag_of(entity)}
    if done.branch is not None:
        content = {**entity.to_document(), "status": None, **_told(done)}
        return json_response(content, status=202, headers=headers)
    after, _ = await load_catalog(call)
    shown = after.find(entity.name)
    document = entity_document(shown, after) if shown is not None else entity.to_document()
    if old is not None:
        return json_response({**document, **_told(done)}, headers=headers)
    headers["Location"] = f"/api/v1/entities/{entity.name}"
    return json_response({**document, **_told(done)}, status=201, headers=headers)


def _present(files: Mapping[str, bytes], name: str, expected: str) -> None:
    path = path_of(files, name)
    if path is None:
        raise NotFound(
            f"entity {name[:60]} is not among the definitions",
            hint="it was removed there; POST defines it again",
            code="ENTITY_NOT_FOUND",
        )
    present = entity_at(files, path)
    if expected and (present is None or etag_of(present) != expected):
        raise MdmError(
            f"the definition of {name[:60]} has changed",
            hint="read it again and repeat your change on it",
            code="DEFINITION_CHANGED",
        )


async def _commit(call: Call, change: Any, catalog: Catalog, message: str, name: str) -> Committed:
    try:
        return await commit_definitions(call, change, message=message)
    except DefinitionError as error:
        if call.principal.is_global_admin:
            raise
        raise _visible_part(error, catalog, name) from None


def _visible_part(error: DefinitionError, catalog: Catalog, name: str) -> DefinitionError:
    """Take the words of findings away that speak of what the caller may not see."""
    visible = {*catalog.visible(), fold(name)}
    kept, hidden = [], 0
    for finding in error.findings:
        folder, _, file = finding.location.path.rpartition("/")
        if folder and fold(file.rpartition(".")[0]) in visible:
            kept.append(finding)
        else:
            hidden += 1
    if hidden:
        kept.append(
            Finding(
                rule="elsewhere",
                message="definitions that you may not see need it as it is, or are not valid",
                location=Location("<elsewhere>"),
            )
        )
    return DefinitionError(kept)


def _exists(name: str) -> Conflict:
    return Conflict(
        f"there is an entity {name} already", hint="PUT changes it", code="ENTITY_EXISTS"
    )


def _told(done: Committed) -> dict[str, Any]:
    return {"commit": done.commit, "branch": done.branch}


_BODY: Final = Body(
    description="The definition as JSON or YAML.",
    schemas={**YAML_BODY, JSON: schemas.ref("Entity")},
)
_ERRORS: Final = (
    "REQUEST_INVALID",
    "BODY_TOO_LARGE",
    "MEDIA_TYPE_UNSUPPORTED",
    "ACCESS_DENIED",
    "DEFINITION_INVALID",
    "DEFINITIONS_IN_GIT",
    "DEFINITIONS_EDITED",
    "ENTITY_EXISTS",
    "WAREHOUSE_LOCKED",
)
_ETAG: Final = {"ETag": "The version of the definition, for If-Match."}
_CREATED: Final = Answer(
    description="Committed, and not deployed yet.",
    schema=schemas.ref("EntityCommitted"),
    headers=_ETAG,
)
_PROPOSED: Final = Answer(
    description="Pushed to a branch; somebody merges it.",
    schema=schemas.ref("EntityCommitted"),
    headers=_ETAG,
)
_SAVED: Final = Answer(
    description="Committed, and not deployed yet; without a commit where nothing differs.",
    schema=schemas.ref("EntityCommitted"),
    headers=_ETAG,
)
_SAVING: Final = (
    "A commit by the caller. Of the file only what differs is written, so comments and layout stay;"
    " a new file holds the YAML as it was sent. All definitions are checked together first. Needs the"
    " action admin in the entity's domain. `If-Match` with the definition's ETag refuses to overwrite"
    " what somebody else committed meanwhile (412)."
)

operations = (
    Operation(
        method="POST",
        path="/api/v1/entity-create",
        handler=create_entity,
        summary="Create a definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        body=_BODY,
        description=_SAVING,
        answers={201: _CREATED, 202: _PROPOSED},
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}",
        handler=save_entity,
        summary="Create or change a definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters=PATH,
        body=_BODY,
        description=_SAVING,
        answers={200: _SAVED, 201: _CREATED, 202: _PROPOSED},
        errors=(*_ERRORS, "ENTITY_NOT_FOUND", "DEFINITION_CHANGED"),
    ),
    Operation(
        method="PUT",
        path="/api/v1/entities/{name}",
        handler=update_entity,
        summary="Change a definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters=PATH,
        body=_BODY,
        description=f"{_SAVING} A body with another name and the present one as `renamedFrom`"
        " renames the entity, its file and its seed.",
        answers={200: _SAVED, 202: _PROPOSED},
        errors=(*_ERRORS, "ENTITY_NOT_FOUND", "DEFINITION_CHANGED"),
    ),
    Operation(
        method="DELETE",
        path="/api/v1/entities/{name}",
        handler=delete_entity,
        summary="Remove a definition",
        tag="Entity definitions",
        access=Access.SIGNED_IN,
        path_parameters=PATH,
        description="A commit by the caller that removes the entity's file and its seed. Tables stay as"
        " they are until deploy/remove or the operator archives them. Refused while other"
        " definitions, permissions or webhooks name the entity.",
        answers={
            200: Answer(description="Committed.", schema=schemas.ref("EntityRemoved")),
            202: Answer(
                description="Pushed to a branch; somebody merges it.",
                schema=schemas.ref("EntityRemoved"),
            ),
        },
        errors=(
            "REQUEST_INVALID",
            "ACCESS_DENIED",
            "DEFINITION_INVALID",
            "DEFINITIONS_IN_GIT",
            "DEFINITIONS_EDITED",
            "ENTITY_NOT_FOUND",
            "DEFINITION_CHANGED",
            "WAREHOUSE_LOCKED",
        ),
    ),
)
