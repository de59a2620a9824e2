"""``POST``, ``PUT``, ``PATCH`` and ``DELETE`` of rows under ``/api/v1/entities/{name}/data``."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.answers import json_answer
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.rows import parse_row_id
from mdm_gitops.data.write_sql import Operation as Change
from mdm_gitops.data.writing import WrittenRow
from mdm_gitops.errors import Conflict, InputError, NotFound

_NO_STORE: Final = {"Cache-Control": "no-store"}
_ETAG: Final = re.compile(r'"v([0-9]{1,9})"\Z')


async def create_data(call: Call) -> Response:
    document = await _document(call)
    name = call.path("name")

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.writer.create(asking, name, document)

    written = await _written(call, work)
    location = f"/api/v1/entities/{name}/data/{written.row_id}"
    if written.is_pending:
        return _answer(written, status=202, headers={"Location": f"{location}?state=pending"})
    return _answer(written, status=201, headers={"Location": location})


async def update_data(call: Call) -> Response:
    document = await _document(call)
    base = _expected_version(call)

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.writer.update(
            asking, call.path("name"), _row_id(call, asking), document, base=base
        )

    written = await _written(call, work)
    return _answer(written, status=202 if written.is_pending else 200)


async def patch_data(call: Call) -> Response:
    return await update_data(call)


async def delete_data(call: Call) -> Response:
    change = Change.SOFT_DELETE if call.parameters["soft"] else Change.HARD_DELETE
    written = await _change_state(call, change)
    if written.is_pending:
        return _answer(written, status=202)
    if written.body is None:
        return Response(status_code=204, headers=_NO_STORE)
    return _answer(written, status=200)


async def restore_data(call: Call) -> Response:
    written = await _change_state(call, Change.RESTORE)
    return _answer(written, status=202 if written.is_pending else 200)


async def restore_version(call: Call) -> Response:
    given = bodies.load_object(await call.body(), known=("version",))
    version = given.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 < version < 2**31:
        raise InputError("version must be the number of a version", parameter="version")
    base = _expected_version(call)

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.writer.restore_version(
            asking, call.path("name"), _row_id(call, asking), version, base=base
        )

    written = await _written(call, work)
    return _answer(written, status=202 if written.is_pending else 200)


async def _change_state(call: Call, change: Change) -> WrittenRow:
    base = _expected_version(call)

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.writer.change_state(
            asking, call.path("name"), _row_id(call, asking), change, base=base
        )

    return await _written(call, work)


async def _written(call: Call, work: Any) -> WrittenRow:
    try:
        written: WrittenRow = await call.writing(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    return written


def _row_id(call: Call, asking: Asking) -> Any:
    stored = readable_entity(asking, call.path("name"))
    return parse_row_id(call.path("id"), stored.definition)


async def _document(call: Call) -> dict[str, Any]:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    value = bodies.load_json(await call.body())
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object, the row's columns")
    return value


def _expected_version(call: Call) -> int | None:
    """Return the version of ``If-Match``, None for any (RFC 9110, section 13.1.1).

    Raises:
        Conflict: there is none, and the settings ask for one (428).
        InputError: it is no ETag of ours.
    """
    text = bodies.header(call.request, b"if-match").strip()
    if not text:
        if call.services.settings.Data.RequireIfMatch:
            raise Conflict(
                "this server writes only with If-Match",
                hint="send the ETag of the row that you have read",
                code="IF_MATCH_REQUIRED",
            )
        return None
    if text == "*":
        return None
    found = _ETAG.match(text)
    if not found:
        raise InputError(
            "If-Match is not an ETag of this service",
            hint='send back the ETag of the row as it is, for example "v3"',
            parameter="If-Match",
        )
    return int(found[1])


def _answer(written: WrittenRow, *, status: int, headers: dict[str, str] | None = None) -> Response:
    told = {"ETag": f'"v{written.version}"', **(headers or {})}
    return json_answer(written.body or b"null", status=status, headers=told)


_PATH: Final = {"name": "Name of the entity, in any case."}
_ROW_PATH: Final = {**_PATH, "id": "`_sys_id` of the row."}
_BODY: Final = Body(
    description="The row's own columns. System columns (`_sys_...`) are written by the service.",
    schemas={JSON: schemas.ref("RowInput")},
)
VALUE_ERRORS: Final = (
    "ENTITY_VALIDATION_REQUIRED_FIELD",
    "ENTITY_VALIDATION_TYPE",
    "ENTITY_VALIDATION_PATTERN",
    "ENTITY_VALIDATION_ALLOWED_VALUE",
    "ENTITY_VALIDATION_RANGE",
    "ENTITY_VALIDATION_LENGTH",
    "ENTITY_VALIDATION_REFERENCE",
    "ENTITY_VALIDATION_UNIQUE",
    "ROW_KEY_DELETED",
)
_VALIDATION: Final = (
    *VALUE_ERRORS,
    "ENTITY_VALIDATION_UNKNOWN_COLUMN",
    "ENTITY_VALIDATION_SYSTEM_COLUMN",
)
_ERRORS: Final = (
    "REQUEST_INVALID",
    "ACCESS_DENIED",
    "ENTITY_NOT_FOUND",
    "ENTITY_NOT_DEPLOYED",
    "WAREHOUSE_LOCKED",
)
_ON_ROW: Final = (*_ERRORS, "ROW_NOT_FOUND", "ROW_VERSION_CONFLICT", "IF_MATCH_REQUIRED")
_ETAG_HEADER: Final = {"ETag": 'The version of the row, `"v<_sys_version>"`.'}
_ROW: Final = Answer(
    description="The row as it is now.", schema=schemas.ref("Row"), headers=_ETAG_HEADER
)
_PENDING: Final = Answer(
    description="The proposal: the entity needs approval.",
    schema=schemas.ref("Row"),
    headers=_ETAG_HEADER,
)
_UPDATE: Final[dict[str, Any]] = {
    "path": "/api/v1/entities/{name}/data/{id}",
    "tag": "Data",
    "access": Access.SIGNED_IN,
    "checks_late": True,
    "path_parameters": _ROW_PATH,
    "body": _BODY,
    "description": "Writes the columns that the body has; the others keep their values. `If-Match`"
    " with the row's ETag refuses to overwrite what somebody else wrote meanwhile (412). Nothing is"
    " written, and no version made, if nothing would change. A key value that other rows refer to"
    " takes them along, each with its own history and event.",
    "answers": {200: _ROW, 202: _PENDING},
    "errors": (*_ON_ROW, *_VALIDATION, "ROW_DELETED", "MEDIA_TYPE_UNSUPPORTED"),
}

operations = (
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/data",
        handler=create_data,
        summary="Create a row",
        tag="Data",
        access=Access.SIGNED_IN,
        checks_late=True,
        path_parameters=_PATH,
        body=_BODY,
        description="Columns that are left out get their default. Everything that is wrong with the"
        " row is listed in `errors`. Where the entity needs approval, the row waits for it (202).",
        answers={
            201: Answer(
                description="The new row.",
                schema=schemas.ref("Row"),
                headers={**_ETAG_HEADER, "Location": "Where the row is."},
            ),
            202: _PENDING,
        },
        errors=(*_ERRORS, *_VALIDATION, "MEDIA_TYPE_UNSUPPORTED"),
    ),
    Operation(method="PUT", handler=update_data, summary="Update a row", **_UPDATE),
    Operation(method="PATCH", handler=patch_data, summary="Update a row, like PUT", **_UPDATE),
    Operation(
        method="DELETE",
        path="/api/v1/entities/{name}/data/{id}",
        handler=delete_data,
        summary="Delete a row",
        tag="Data",
        access=Access.SIGNED_IN,
        checks_late=True,
        path_parameters=_ROW_PATH,
        description="Without `soft=true` the row is gone for good, except for its history and its"
        " events; it is refused while other rows refer to it. A soft-deleted row keeps its key and"
        " can be restored.",
        parameters=(
            Parameter(
                name="soft",
                description="Whether the row is only marked as deleted.",
                kind=Kind.FLAG,
                default=False,
            ),
        ),
        answers={
            200: Answer(
                description="The soft-deleted row.",
                schema=schemas.ref("Row"),
                headers=_ETAG_HEADER,
            ),
            202: _PENDING,
            204: Answer(description="The row is gone."),
        },
        errors=(*_ON_ROW, "ROW_DELETED", "ROW_REFERENCED"),
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/data/{id}/restore",
        handler=restore_data,
        summary="Restore a soft-deleted row",
        tag="Data",
        access=Access.SIGNED_IN,
        checks_late=True,
        path_parameters=_ROW_PATH,
        answers={200: _ROW, 202: _PENDING},
        errors=(*_ON_ROW, "ROW_NOT_DELETED"),
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/versions/{id}/restore",
        handler=restore_version,
        summary="Return a row to an earlier version",
        tag="Versions",
        access=Access.SIGNED_IN,
        tier=Tier.PROFESSIONAL,
        checks_late=True,
        path_parameters=_ROW_PATH,
        body=Body(
            description="Which version.",
            schemas={
                JSON: {
                    "type": "object",
                    "required": ["version"],
                    "properties": {"version": {"type": "integer", "minimum": 1}},
                    "additionalProperties": False,
                }
            },
        ),
        description="Writes the values of that version as a new one, by the rules of today: a value"
        " that is not allowed any more is refused.",
        answers={200: _ROW, 202: _PENDING},
        errors=(
            *_ON_ROW,
            *_VALIDATION,
            "ROW_DELETED",
            "VERSION_NOT_FOUND",
            "HISTORY_NOT_ENABLED",
            "TIER_REQUIRED",
        ),
    ),
)
