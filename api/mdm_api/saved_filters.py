"""``/api/v1/entities/{name}/saved-filters``: what each caller keeps for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import (
    JSON,
    Access,
    Answer,
    Body,
    Operation,
    also_without_version,
)
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.saved_filters import (
    MAX_COLUMNS,
    MAX_NAME_LENGTH,
    MAX_PER_ENTITY,
    MAX_SORT_LENGTH,
    KeptFilter,
    SavedFilter,
    delete_filter,
    save_filter,
    saved_filter,
    saved_filters,
)
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.model.access import MAX_FILTER_LENGTH
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.connect import Connection

Document = dict[str, Any]
_MEMBERS: Final = ("name", "filter", "sort", "columns", "isDefault")


async def list_saved_filters(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> list[KeptFilter]:
        return await saved_filters(conn, asking=asking, entity=call.path("name"))

    found = await _asked(call, work)
    return json_response({"items": [_document(kept) for kept in found]})


async def get_saved_filter(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> KeptFilter:
        return await saved_filter(
            conn, asking=asking, entity=call.path("name"), name=call.path("filterName")
        )

    return json_response(_document(await _asked(call, work)))


async def post_saved_filter(call: Call) -> Response:
    saved = _read(await _body(call))

    async def work(conn: Connection, asking: Asking) -> tuple[KeptFilter, bool]:
        return await save_filter(conn, asking=asking, entity=call.path("name"), saved=saved)

    kept, is_new = await _asked(call, work)
    if not is_new:
        return json_response(_document(kept))
    location = f"{quote(call.request.scope['path'])}/{quote(saved.name, safe='')}"
    return json_response(_document(kept), status=201, headers={"Location": location})


async def delete_saved_filter(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> None:
        await delete_filter(
            conn, asking=asking, entity=call.path("name"), name=call.path("filterName")
        )

    await _asked(call, work)
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


async def _asked(call: Call, work: Any) -> Any:
    try:
        return await call.reading(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None


async def _body(call: Call) -> Document:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    return bodies.load_object(await call.body(), known=_MEMBERS)


def _read(given: Document) -> SavedFilter:
    columns = given.get("columns")
    if columns is not None and not (
        isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    ):
        raise InputError("columns must be a list of names", parameter="columns")
    is_default = given.get("isDefault")
    if not isinstance(is_default, bool | None):
        raise InputError("isDefault must be true or false", parameter="isDefault")
    return SavedFilter(
        name=_text(given, "name"),
        filter=_text(given, "filter").strip(),
        sort=_text(given, "sort").strip(),
        columns=tuple(columns or ()),
        is_default=bool(is_default),
    )


def _text(given: Document, member: str) -> str:
    value = given.get(member)
    if not isinstance(value, str | None) or (value is None and member == "name"):
        raise InputError(f"{member} must be a text", parameter=member)
    return value or ""


def _document(kept: KeptFilter) -> Document:
    saved = kept.saved
    document = {
        "name": saved.name,
        "filter": saved.filter,
        "sort": saved.sort,
        "columns": list(saved.columns),
        "isDefault": saved.is_default,
        "updatedUtc": to_json_value(kept.updated_at),
        "valid": not kept.reason,
    }
    return {**document, "reason": kept.reason} if kept.reason else document


_PATH: Final = {"name": "Name of the entity, in any case."}
_FILTER_PATH: Final = {**_PATH, "filterName": "Name of the saved filter, percent-encoded."}
_ERRORS: Final = ("ENTITY_NOT_FOUND", "ENTITY_NOT_DEPLOYED", "ACCESS_DENIED")
_NOT_FOUND: Final = "SAVED_FILTER_NOT_FOUND"
_LIST: Final = Operation(
    method="GET",
    path="/api/v1/entities/{name}/saved-filters",
    handler=list_saved_filters,
    summary="List the caller's saved filters",
    tag="Saved filters",
    access=Access.SIGNED_IN,
    tier=Tier.ENTERPRISE,
    path_parameters=_PATH,
    description="By name. One that no longer fits the deployed definition or the caller's rights is"
    " there with `valid: false` and the reason.",
    answers={200: Answer(description="They.", schema=schemas.ref("SavedFilters"))},
    errors=_ERRORS,
)
operations = also_without_version(
    (
        _LIST,
        replace(
            _LIST,
            method="POST",
            handler=post_saved_filter,
            summary="Save a filter",
            description="Creates it, or replaces the caller's own of that name. Filter, sort and"
            " columns are checked as those of a list. A default takes the place of the one before."
            f" At most {MAX_PER_ENTITY} per caller and entity; a name has up to {MAX_NAME_LENGTH}"
            f" characters, a filter {MAX_FILTER_LENGTH:,}, a sort {MAX_SORT_LENGTH:,}; up to"
            f" {MAX_COLUMNS} columns.",
            body=Body(
                description="What to save. Only `name` is needed.",
                schemas={JSON: schemas.ref("SavedFilterInput")},
            ),
            answers={
                200: Answer(description="It replaced one.", schema=schemas.ref("SavedFilter")),
                201: Answer(
                    description="It is new.",
                    schema=schemas.ref("SavedFilter"),
                    headers={"Location": "Where it is."},
                ),
            },
            errors=(
                *_ERRORS,
                "REQUEST_INVALID",
                "FILTER_INVALID",
                "COLUMN_RESTRICTED",
                "SAVED_FILTER_LIMIT",
                "BODY_TOO_LARGE",
                "MEDIA_TYPE_UNSUPPORTED",
            ),
        ),
        replace(
            _LIST,
            path="/api/v1/entities/{name}/saved-filters/{filterName}",
            handler=get_saved_filter,
            summary="Read a saved filter",
            description="",
            path_parameters=_FILTER_PATH,
            rest="filterName",
            answers={200: Answer(description="It.", schema=schemas.ref("SavedFilter"))},
            errors=(*_ERRORS, _NOT_FOUND),
        ),
        replace(
            _LIST,
            method="DELETE",
            path="/api/v1/entities/{name}/saved-filters/{filterName}",
            handler=delete_saved_filter,
            summary="Delete a saved filter",
            description="",
            path_parameters=_FILTER_PATH,
            rest="filterName",
            answers={204: Answer(description="It is gone.")},
            errors=(*_ERRORS, _NOT_FOUND),
        ),
    )
)
