"""Bulk actions: ``POST /api/v1/entities/{name}/data/bulk-action/preview`` and ``/execute``.

The execution answers with one JSON object, or, where the client asks for ``application/x-ndjson``, with a line
for each step and the result as the last one. Either way it is one transaction: a client that leaves before
the end takes all of it back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_api.problems import as_mdm_error, problem_document
from mdm_api.streaming import Outlet, Streamed
from mdm_api.writes import VALUE_ERRORS
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.bulk_actions import BulkAction, BulkOutcome, Preview, preview
from mdm_gitops.data.write_sql import Operation as Change
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.warehouse.connect import Connection

NDJSON: Final = "application/x-ndjson"
_MAX_BATCH_NAME: Final = 200
_MEMBERS: Final = ("action", "filter", "all", "set", "soft", "batchName", "previewToken")


async def preview_bulk_action(call: Call) -> Response:
    document = await _document(call)
    action = _action(call.path("name"), document)

    async def work(conn: Connection, asking: Asking) -> Preview:
        return await preview(conn, asking=asking, action=action)

    async with _explained(call):
        seen = await call.reading(work)
    return json_response(
        {
            "matchCount": seen.found.rows,
            "notAllowed": seen.found.denied,
            "sample": orjson.Fragment(seen.sample),
            "previewToken": seen.found.token,
        }
    )


async def execute_bulk_action(call: Call) -> Response:
    document = await _document(call)
    action = _action(call.path("name"), document)
    token = _text(document, "previewToken")
    if not token:
        raise InputError(
            "previewToken is missing",
            hint=f"POST .../{call.path('name')}/data/bulk-action/preview gives it",
            parameter="previewToken",
        )
    if NDJSON in call.request.headers.get("Accept", "").lower():
        return Streamed(lambda outlet: _by_lines(call, action, token, outlet))
    return Streamed(lambda outlet: _at_once(call, action, token, outlet))


async def _at_once(call: Call, action: BulkAction, token: str, outlet: Outlet) -> None:
    async def tell(done: int, of: int) -> None:
        pass

    outcome = await _executed(call, action, token, tell)
    content = orjson.dumps(outcome.document)
    await outlet.send_piece(content, _headers(JSON), more=False)


async def _by_lines(call: Call, action: BulkAction, token: str, outlet: Outlet) -> None:
    """Nothing is sent before the rows are known to be those of the preview."""
    headers = _headers(NDJSON)

    async def tell(done: int, of: int) -> None:
        line = orjson.dumps({"progress": {"done": done, "of": of}}) + b"\n"
        await outlet.send_piece(line, headers, more=True)

    try:
        last = {"result": (await _executed(call, action, token, tell)).document}
    except Exception as error:
        if not outlet.began:
            raise
        trace_id = call.request.scope["mdm.trace_id"]
        own = as_mdm_error(error, trace_id=trace_id)
        base = call.services.settings.Server.ProblemBaseUrl
        last = {"problem": problem_document(own, trace_id=trace_id, base_url=base)}
    content = orjson.dumps(last, default=str) + b"\n"
    await outlet.send_piece(content, headers, more=False)


async def _executed(call: Call, action: BulkAction, token: str, tell: Any) -> BulkOutcome:
    async def work(asking: Asking) -> BulkOutcome:
        return await call.services.bulk_actor.execute(asking, action, token, tell)

    async with _explained(call):
        outcome = await call.writing(work)
    call.note_rows(outcome.matched)
    return outcome


@asynccontextmanager
async def _explained(call: Call) -> AsyncIterator[None]:
    try:
        yield
    except NotFound as error:
        raise await explain_absence(call, error) from None


def _headers(media_type: str) -> dict[str, str]:
    return {"Content-Type": media_type, "Cache-Control": "no-store"}


# --- what is sent ---------------------------------------------------------------------------------


async def _document(call: Call) -> dict[str, Any]:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    return bodies.load_object(await call.body(), known=_MEMBERS)


def _action(entity: str, document: dict[str, Any]) -> BulkAction:
    change = _change(document)
    given = document.get("set")
    if change is not Change.UPDATE:
        if given is not None:
            raise InputError("set has no meaning for a delete", parameter="set")
        given = {}
    elif not isinstance(given, dict) or not given:
        raise InputError("set must be an object of columns and values", parameter="set")
    batch_name = _text(document, "batchName").strip()
    if len(batch_name) > _MAX_BATCH_NAME:
        raise InputError(
            f"batchName is longer than {_MAX_BATCH_NAME} characters", parameter="batchName"
        )
    return BulkAction(
        entity=entity,
        change=change,
        filter=_filter(document),
        set=given,
        batch_name=batch_name or None,
    )


def _change(document: dict[str, Any]) -> Change:
    soft = _flag(document, "soft")
    match document.get("action"):
        case "update":
            if soft:
                raise InputError("soft has no meaning for an update", parameter="soft")
            return Change.UPDATE
        case "delete":
            return Change.SOFT_DELETE if soft else Change.HARD_DELETE
    raise InputError("action must be update or delete", parameter="action")


def _filter(document: dict[str, Any]) -> str:
    """Return the filter, "" for all rows; nobody means all rows by leaving something out."""
    text, everything = _text(document, "filter").strip(), _flag(document, "all")
    if text and everything:
        raise InputError("filter and all are given, and mean different rows", parameter="all")
    if not text and not everything:
        raise InputError(
            "filter is missing, and all rows are only meant if that is said",
            hint='give a filter, or "all": true',
            parameter="filter",
        )
    return text


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name} must be a text", parameter=name)
    return value or ""


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{name} must be true or false", parameter=name)
    return bool(value)


# --- the operations -------------------------------------------------------------------------------

_BODY: Final = Body(
    description="Which rows, and what to do to them.", schemas={JSON: schemas.ref("BulkAction")}
)
_ERRORS: Final = (
    "REQUEST_INVALID",
    "FILTER_INVALID",
    "ACCESS_DENIED",
    "COLUMN_RESTRICTED",
    "ENTITY_NOT_FOUND",
    "ENTITY_NOT_DEPLOYED",
    *VALUE_ERRORS,
    "ENTITY_VALIDATION_UNKNOWN_COLUMN",
    "ENTITY_VALIDATION_SYSTEM_COLUMN",
    "MEDIA_TYPE_UNSUPPORTED",
    "QUERY_TIMEOUT",
    "WAREHOUSE_LOCKED",
)
_BULK_ACTION: Final[dict[str, Any]] = {
    "method": "POST",
    "tag": "Data",
    "access": Access.SIGNED_IN,
    "tier": Tier.ENTERPRISE,
    "checks_late": True,
    "path_parameters": {"name": "Name of the entity, in any case."},
    "body": _BODY,
}

operations = (
    Operation(
        path="/api/v1/entities/{name}/data/bulk-action/preview",
        handler=preview_bulk_action,
        summary="Look at what a bulk update or delete would be for",
        description="Counts the active rows that the filter finds, as far as you see them, and shows"
        " the first ten. `previewToken` stands for exactly these rows as they are now. Values of `set`"
        " that no row may have are refused here already. All rows are meant only with `all`.",
        answers={200: Answer(description="What matches.", schema=schemas.ref("BulkActionPreview"))},
        errors=_ERRORS,
        **_BULK_ACTION,
    ),
    Operation(
        path="/api/v1/entities/{name}/data/bulk-action/execute",
        handler=execute_bulk_action,
        summary="Update or delete all rows that a filter finds",
        description="Takes the body of the preview and its `previewToken`; 409 `BULK_ACTION_STALE` if the"
        " rows are not the same any more. One transaction: each row is judged by itself, valid ones are"
        " changed with history and an event for each, the others are listed in `errors`. Where the"
        " entity needs approval, a proposal is made for each row, all of one `batchName`. With `Accept:"
        " application/x-ndjson` progress is told line by line. When the client leaves before the end,"
        " nothing is changed.",
        answers={
            200: Answer(
                description="What became of the rows; `rejected` may be all of them.",
                schema=schemas.ref("BulkActionResult"),
                others={NDJSON: schemas.ref("BulkActionLine")},
            )
        },
        errors=(*_ERRORS, "BULK_ACTION_STALE"),
        **_BULK_ACTION,
    ),
)
