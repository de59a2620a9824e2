"""``/api/v1/entities/{name}/data/deduplicate``: merges of two rows, their previews, and undoing them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import Response

from mdm_api import bodies, paging, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Operation, Parameter
from mdm_api.writes import VALUE_ERRORS
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.merge_records import (
    DEFAULT_TAKE,
    MAX_TAKE,
    STATES,
    MergePage,
    get_merge,
    list_merges,
)
from mdm_gitops.data.merge_steps import Merged, MergeRequest
from mdm_gitops.data.merging import Preview
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.unmerging import Undone, no_such_merge
from mdm_gitops.errors import Conflict, InputError, NotFound
from mdm_gitops.warehouse.connect import Connection

_MAX_COMMENT: Final = 2_000


async def merge_rows(call: Call) -> Response:
    given = await _request(call)
    seen = (given.get("survivorVersion"), given.get("duplicateVersion"))
    if call.services.settings.Data.RequireIfMatch and None in seen:
        raise Conflict(
            "this server merges only rows whose versions are named",
            hint="send survivorVersion and duplicateVersion of the rows that you have read",
            code="IF_MATCH_REQUIRED",
        )

    async def work(asking: Asking) -> Merged:
        request = _merge_request(call, asking, given)
        return await call.services.merger.merge(asking, call.path("name"), request)

    merged = await _explained(call, call.writing(work))
    return json_response(_merged(merged), status=202 if merged.state == "pending" else 200)


async def preview_merge(call: Call) -> Response:
    given = await _request(call)

    async def work(asking: Asking) -> Preview:
        request = _merge_request(call, asking, given)
        return await call.services.merger.preview(asking, call.path("name"), request)

    preview = await _explained(call, call.writing(work))
    return json_response(
        {
            "survivor": orjson.Fragment(preview.survivor),
            "columns": preview.columns,
            "relinked": preview.relinked,
            "survivorVersion": preview.survivor_version,
            "duplicateVersion": preview.duplicate_version,
        }
    )


async def list_entity_merges(call: Call) -> Response:
    given = call.parameters

    async def work(conn: Connection, asking: Asking) -> MergePage:
        return await list_merges(
            conn,
            asking=asking,
            entity=call.path("name"),
            state=given["state"],
            after=given["after"] or "",
            take=given["take"],
        )

    page = await _explained(call, call.reading(work))
    return json_response(
        {
            "items": page.items,
            "take": given["take"],
            "hasMore": page.next_after is not None,
            "nextAfter": page.next_after,
        }
    )


async def get_entity_merge(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> dict[str, Any]:
        merge_id = _merge_id(call, asking)
        return await get_merge(conn, asking=asking, entity=call.path("name"), merge_id=merge_id)

    return json_response(await _explained(call, call.reading(work)))


async def undo_merge(call: Call) -> Response:
    keep = (await _body(call, "keepLaterEdits")).get("keepLaterEdits", False)
    if not isinstance(keep, bool):
        raise InputError("keepLaterEdits must be true or false", parameter="keepLaterEdits")

    async def work(asking: Asking) -> Undone:
        return await call.services.merge_decider.undo(
            asking, call.path("name"), _merge_id(call, asking), keep_later_edits=keep
        )

    undone = await _explained(call, call.writing(work))
    return json_response(_undone(undone), status=202 if undone.state == "undo_pending" else 200)


async def approve_merge(call: Call) -> Response:
    comment = _comment(await _body(call, "comment"))

    async def work(asking: Asking) -> Merged | Undone:
        return await call.services.merge_decider.approve(
            asking, call.path("name"), _merge_id(call, asking), comment=comment
        )

    decided = await _explained(call, call.writing(work))
    return json_response(_undone(decided) if isinstance(decided, Undone) else _merged(decided))


async def reject_merge(call: Call) -> Response:
    comment = _comment(await _body(call, "comment"))

    async def work(asking: Asking) -> tuple[UUID, str]:
        merge_id = _merge_id(call, asking)
        return merge_id, await call.services.merge_decider.reject(
            asking, call.path("name"), merge_id, comment=comment
        )

    merge_id, state = await _explained(call, call.writing(work))
    return json_response({"mergeId": str(merge_id), "state": state})


# --- what is sent ---------------------------------------------------------------------------------


async def _request(call: Call) -> dict[str, Any]:
    return await _body(
        call,
        "survivorId",
        "duplicateId",
        "values",
        "survivorVersion",
        "duplicateVersion",
        may_be_empty=False,
    )


async def _body(call: Call, *known: str, may_be_empty: bool = True) -> dict[str, Any]:
    data = await call.body()
    if data.strip() and bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    return bodies.load_object(data, known=known, may_be_empty=may_be_empty)


def _merge_request(call: Call, asking: Asking, given: dict[str, Any]) -> MergeRequest:
    values = given.get("values")
    if values is not None and not isinstance(values, dict):
        raise InputError("values must be an object, columns with their values", parameter="values")
    return MergeRequest(
        survivor_id=_row_id(call, asking, given, "survivorId"),
        duplicate_id=_row_id(call, asking, given, "duplicateId"),
        values=values or {},
        survivor_version=_version(given, "survivorVersion"),
        duplicate_version=_version(given, "duplicateVersion"),
    )


def _row_id(call: Call, asking: Asking, given: dict[str, Any], name: str) -> UUID:
    stored = readable_entity(asking, call.path("name"))
    text = given.get(name)
    if not isinstance(text, str):
        raise InputError(f"{name} must be the _sys_id of a row", parameter=name)
    try:
        return UUID(text)
    except ValueError:
        raise no_such_row(stored.definition, text) from None


def _version(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise InputError(f"{name} must be the number of a version", parameter=name)
    return value


def _comment(document: dict[str, Any]) -> str | None:
    value = document.get("comment")
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_COMMENT):
        raise InputError(
            f"comment must be a text of at most {_MAX_COMMENT:,} characters", parameter="comment"
        )
    return value


def _merge_id(call: Call, asking: Asking) -> UUID:
    stored = readable_entity(asking, call.path("name"))
    try:
        return UUID(call.path("mergeId"))
    except ValueError:
        raise no_such_merge(stored.definition, call.path("mergeId")) from None


async def _explained(call: Call, working: Awaitable[Any]) -> Any:
    try:
        return await working
    except NotFound as error:
        raise await explain_absence(call, error) from None


# --- what is answered -----------------------------------------------------------------------------


def _merged(merged: Merged) -> dict[str, Any]:
    return {
        "mergeId": str(merged.merge_id),
        "state": merged.state,
        "survivor": orjson.Fragment(merged.survivor),
        "relinked": merged.relinked,
        "columns": merged.columns,
    }


def _undone(undone: Undone) -> dict[str, Any]:
    return {
        "mergeId": str(undone.merge_id),
        "state": undone.state,
        "survivor": orjson.Fragment(undone.survivor),
        "duplicate": orjson.Fragment(undone.duplicate),
        "relinked": undone.relinked,
    }


# --- the operations -------------------------------------------------------------------------------

_AT: Final = "/api/v1/entities/{name}/data/deduplicate"
_PATH: Final = {"name": "Name of the entity, in any case."}
_MERGE_PATH: Final = {**_PATH, "mergeId": "Identifier of the merge."}
_COMMON: Final[dict[str, Any]] = {
    "tag": "Deduplicate",
    "access": Access.SIGNED_IN,
    "tier": Tier.PROFESSIONAL,
    "checks_late": True,
}
_ERRORS: Final = ("REQUEST_INVALID", "ENTITY_NOT_FOUND", "ENTITY_NOT_DEPLOYED", "TIER_REQUIRED")
_WRITES: Final = (
    *_ERRORS,
    *VALUE_ERRORS,
    "ACCESS_DENIED",
    "MEDIA_TYPE_UNSUPPORTED",
    "WAREHOUSE_LOCKED",
    "ROW_PENDING",
    "MERGE_LINK_REFUSED",
)
_MERGES: Final = (
    *_WRITES,
    "ENTITY_VALIDATION_UNKNOWN_COLUMN",
    "ENTITY_VALIDATION_SYSTEM_COLUMN",
    "ROW_NOT_FOUND",
    "ROW_VERSION_CONFLICT",
    "ROW_DELETED",
    "ROW_MERGED",
    "MERGE_REFERENCE_NO_VALUE",
)
_UNDOES: Final = (*_WRITES, "MERGE_NOT_FOUND", "MERGE_CHANGED_SINCE", "ROW_NOT_DELETED")
_REQUEST: Final = Body(
    description="Both rows by their `_sys_id`. `values` win over the rules of survivorship. A version"
    " that is given must still be that of its row (412).",
    schemas={JSON: schemas.ref("MergeRequest")},
)
_COMMENT: Final = Body(
    description="A comment, if any.", schemas={JSON: schemas.ref("Comment")}, required=False
)

operations = (
    Operation(
        method="POST",
        path=_AT,
        handler=merge_rows,
        summary="Merge two rows",
        path_parameters=_PATH,
        body=_REQUEST,
        description="The survivor gets its values by the entity's rules of survivorship, all rows that"
        " refer to the duplicate refer to the survivor from then on, and the duplicate is"
        " soft-deleted: all in one transaction, with versions and events. The duplicate's identifier"
        " leads to the survivor. References are relinked whoever may see them; `relinked` counts those"
        " that the caller may see. Where the entity needs approval, the merge waits for another person"
        " (202).",
        answers={
            200: Answer(description="The merge.", schema=schemas.ref("Merged")),
            202: Answer(
                description="The merge as it would be: the entity needs approval.",
                schema=schemas.ref("Merged"),
            ),
        },
        errors=(*_MERGES, "IF_MATCH_REQUIRED"),
        **_COMMON,
    ),
    Operation(
        method="POST",
        path=f"{_AT}/preview",
        handler=preview_merge,
        summary="Tell what a merge would do",
        path_parameters=_PATH,
        body=_REQUEST,
        description="The survivor as it would be, where each value would come from and by which rule,"
        " and how many rows would be relinked. Refused as the merge would be. Nothing is written.",
        answers={200: Answer(description="What it would do.", schema=schemas.ref("MergePreview"))},
        errors=_MERGES,
        **_COMMON,
    ),
    Operation(
        method="GET",
        path=_AT,
        handler=list_entity_merges,
        summary="List merges",
        path_parameters=_PATH,
        description="The merges of the entity of which the caller may see both rows, the newest first.",
        parameters=(
            Parameter(name="state", description="Only these.", choices=STATES),
            Parameter(name="after", description="`nextAfter` of the page before."),
            paging.take("Merges", default=DEFAULT_TAKE, most=MAX_TAKE),
        ),
        answers={200: Answer(description="A page.", schema=schemas.ref("MergePage"))},
        errors=_ERRORS,
        **_COMMON,
    ),
    Operation(
        method="GET",
        path=f"{_AT}/{{mergeId}}",
        handler=get_entity_merge,
        summary="Read one merge",
        path_parameters=_MERGE_PATH,
        description="Where each value of the survivor came from, and how many rows that were relinked"
        " still refer to it.",
        answers={200: Answer(description="The merge.", schema=schemas.ref("Merge"))},
        errors=(*_ERRORS, "MERGE_NOT_FOUND"),
        **_COMMON,
    ),
    Operation(
        method="POST",
        path=f"{_AT}/{{mergeId}}/undo",
        handler=undo_merge,
        summary="Undo a merge",
        path_parameters=_MERGE_PATH,
        body=Body(
            description="What to do with values that were changed since.",
            schemas={JSON: schemas.ref("MergeUndo")},
            required=False,
        ),
        description="Gives both rows and all links back, by new versions and events. If something that"
        " it would undo was changed since, it is refused and names the rows; with `keepLaterEdits`"
        " those stay as they are. Where the entity needs approval, the undo waits for another person"
        " (202).",
        answers={
            200: Answer(description="Both rows.", schema=schemas.ref("MergeUndone")),
            202: Answer(
                description="Both rows as they would be: the entity needs approval.",
                schema=schemas.ref("MergeUndone"),
            ),
        },
        errors=(*_UNDOES, "MERGE_NOT_STANDING"),
        **_COMMON,
    ),
    Operation(
        method="POST",
        path=f"{_AT}/{{mergeId}}/approve",
        handler=approve_merge,
        summary="Approve a merge or its undo",
        path_parameters=_MERGE_PATH,
        body=_COMMENT,
        description="Applies what is pending, as its author would have. Both rows must be as they were"
        " when it was proposed.",
        answers={200: Answer(description="What it did.", schema=schemas.ref("MergeDecided"))},
        errors=(
            *_UNDOES,
            "MERGE_REFERENCE_NO_VALUE",
            "MERGE_NOT_PENDING",
            "APPROVAL_SAME_AUTHOR",
            "APPROVAL_STALE",
        ),
        **_COMMON,
    ),
    Operation(
        method="POST",
        path=f"{_AT}/{{mergeId}}/reject",
        handler=reject_merge,
        summary="Reject a merge or its undo",
        path_parameters=_MERGE_PATH,
        body=_COMMENT,
        description="Ends what is pending. Its author may, and who may approve changes of both rows.",
        answers={200: Answer(description="How it stands now.", schema=schemas.ref("MergeState"))},
        errors=(
            *_ERRORS,
            "ACCESS_DENIED",
            "MEDIA_TYPE_UNSUPPORTED",
            "WAREHOUSE_LOCKED",
            "MERGE_NOT_FOUND",
            "MERGE_NOT_PENDING",
        ),
        **_COMMON,
    ),
)
