"""``/pending``, ``/approve``, ``/reject`` under ``/api/v1/entities/{name}``: changes that wait."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import Response

from mdm_api import bodies, paging, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_api.writes import VALUE_ERRORS
from mdm_gitops.data.approvals import MAX_IDS, Selection, Tally
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.claims import no_such_proposal
from mdm_gitops.data.pending import PendingRequest, ProposalState, list_batches, list_pending
from mdm_gitops.data.rows import DEFAULT_TAKE, MAX_SKIP, MAX_TAKE, Page
from mdm_gitops.data.writing import WrittenRow
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.warehouse.connect import Connection

_NO_STORE: Final = {"Cache-Control": "no-store"}
_MAX_COMMENT: Final = 2_000
_MAX_BATCH_NAME: Final = 200
_MAX_MOMENT: Final = 64


async def list_pending_rows(call: Call) -> Response:
    given = call.parameters
    request = PendingRequest(
        state=ProposalState(given["state"]),
        batch_name=given["batchName"],
        filter=given["filter"] or "",
        sort=given["sort"] or "",
        skip=given["skip"],
        take=given["take"],
        after=given["after"] or "",
        count=given["count"],
    )

    async def work(conn: Connection, asking: Asking) -> Page:
        return await list_pending(conn, asking=asking, entity=call.path("name"), request=request)

    page = await _explained(call, call.reading(work))
    tail = {"nextAfter": page.next_after, "totalCount": page.total}
    return _page(page, skip=request.skip, take=request.take, **tail)


async def list_pending_batches(call: Call) -> Response:
    skip, take = call.parameters["skip"], call.parameters["take"]

    async def work(conn: Connection, asking: Asking) -> Page:
        return await list_batches(
            conn, asking=asking, entity=call.path("name"), skip=skip, take=take
        )

    page = await _explained(call, call.reading(work))
    return _page(page, skip=skip, take=take)


async def approve_row(call: Call) -> Response:
    document = await _body(call, "comment", "submittedAt")
    comment, seen_at = _comment(document), _text(document, "submittedAt", _MAX_MOMENT)

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.approver.approve(
            asking, call.path("name"), _row_id(call, asking), comment=comment, seen_at=seen_at
        )

    written = await _explained(call, call.writing(work))
    if written.body is None:
        return json_response({"_sys_id": str(written.row_id), "_sys_state": "deleted"})
    return _row(written)


async def reject_row(call: Call) -> Response:
    comment = _comment(await _body(call, "comment"))

    async def work(asking: Asking) -> WrittenRow:
        return await call.services.approver.reject(
            asking, call.path("name"), _row_id(call, asking), comment=comment
        )

    return _row(await _explained(call, call.writing(work)))


async def withdraw_row(call: Call) -> Response:
    async def work(asking: Asking) -> None:
        await call.services.approver.withdraw(asking, call.path("name"), _row_id(call, asking))

    await _explained(call, call.writing(work))
    return Response(status_code=204, headers=_NO_STORE)


async def approve_batch(call: Call) -> Response:
    selection, comment = await _selection(call)
    tally = Tally(word="approved", by_name=selection.batch_name is not None)

    async def work(asking: Asking) -> None:
        await call.services.approver.approve_batch(
            asking, call.path("name"), selection, tally, comment=comment
        )

    await _explained(call, call.writing(work))
    return _outcome(tally, approved=tally.done, rejected=0)


async def reject_batch(call: Call) -> Response:
    selection, comment = await _selection(call)
    tally = Tally(word="rejected", by_name=selection.batch_name is not None)

    async def work(asking: Asking) -> None:
        await call.services.approver.reject_batch(
            asking, call.path("name"), selection, tally, comment=comment
        )

    await _explained(call, call.writing(work))
    return _outcome(tally, approved=0, rejected=tally.done)


# --- what is sent ---------------------------------------------------------------------------------


async def _body(call: Call, *known: str) -> dict[str, Any]:
    data = await call.body()
    if data.strip() and bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    return bodies.load_object(data, known=known, may_be_empty=True)


def _comment(document: dict[str, Any]) -> str | None:
    return _text(document, "comment", _MAX_COMMENT)


def _text(document: dict[str, Any], name: str, most: int) -> str | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > most:
        raise InputError(f"{name} must be a text of at most {most:,} characters", parameter=name)
    return value


async def _selection(call: Call) -> tuple[Selection, str | None]:
    document = await _body(call, "batchName", "ids", "comment")
    name, ids = _text(document, "batchName", _MAX_BATCH_NAME), document.get("ids")
    if (name is None) == (ids is None):
        raise InputError("the body must have either batchName or ids")
    if name is not None:
        return Selection(batch_name=name), _comment(document)
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise InputError("ids must be a list of row identifiers", parameter="ids")
    if len(ids) > MAX_IDS:
        raise InputError(f"ids has more than {MAX_IDS:,} items", parameter="ids")
    return Selection(ids=tuple(ids)), _comment(document)


def _row_id(call: Call, asking: Asking) -> UUID:
    stored = readable_entity(asking, call.path("name"))
    try:
        return UUID(call.path("id"))
    except ValueError:
        raise no_such_proposal(stored.definition, call.path("id")) from None


async def _explained(call: Call, working: Awaitable[Any]) -> Any:
    try:
        return await working
    except NotFound as error:
        raise await explain_absence(call, error) from None


# --- what is answered -----------------------------------------------------------------------------


def _page(page: Page, *, skip: int, take: int, **more: Any) -> Response:
    tail = orjson.dumps({"skip": skip, "take": take, "hasMore": page.has_more, **more})
    content = b'{"items":[' + b",".join(page.rows) + b"]," + tail[1:]
    return Response(content, media_type=JSON, headers=_NO_STORE)


def _row(written: WrittenRow) -> Response:
    headers = {**_NO_STORE, "ETag": f'"v{written.version}"'}
    return Response(written.body or b"null", media_type=JSON, headers=headers)


def _outcome(tally: Tally, *, approved: int, rejected: int) -> Response:
    return json_response(
        {
            "approved": approved,
            "rejected": rejected,
            "failed": tally.failed,
            "results": tally.results,
            "resultsTruncated": tally.is_truncated,
        }
    )


# --- the operations -------------------------------------------------------------------------------

_PATH: Final = {"name": "Name of the entity, in any case."}
_ROW_PATH: Final = {**_PATH, "id": "`_sys_id` of the row."}
_ERRORS: Final = ("REQUEST_INVALID", "ACCESS_DENIED", "ENTITY_NOT_FOUND", "ENTITY_NOT_DEPLOYED")
_DECIDING: Final = (*_ERRORS, "APPROVAL_NOT_REQUIRED", "WAREHOUSE_LOCKED")
_ON_ROW: Final = (*_DECIDING, "PENDING_NOT_FOUND")
_COMMENT: Final = Body(
    description="A comment, if any.",
    schemas={JSON: schemas.ref("Comment")},
    required=False,
)
_APPROVAL: Final = Body(
    description="A comment, if any. With `submittedAt` of the proposal that was looked at, one that was"
    " written again since is refused (409 `APPROVAL_STALE`).",
    schemas={JSON: schemas.ref("Approval")},
    required=False,
)
_BATCH: Final = Body(
    description="The batch by its name, or the rows.",
    schemas={JSON: schemas.ref("BatchDecision")},
)
_OUTCOME: Final = {
    200: Answer(
        description="What became of each row; `results` has at most 10,000 of them.",
        schema=schemas.ref("BatchOutcome"),
    )
}
_ETAG: Final = {"ETag": 'The version of the approved row, `"v<_sys_version>"`.'}
_SKIP: Final = paging.skip("Items", most=MAX_SKIP)
_TAKE: Final = paging.take("Items", default=DEFAULT_TAKE, most=MAX_TAKE)
_SIGNED_IN: Final[dict[str, Any]] = {
    "tag": "Approvals",
    "access": Access.SIGNED_IN,
    "checks_late": True,
}

operations = (
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/pending",
        handler=list_pending_rows,
        summary="List changes that wait for approval",
        path_parameters=_PATH,
        description="The proposals that the caller may see: both the row as it is proposed and the"
        " approved row, if there is one, must pass the caller's row filter. `changes` tells what"
        " approving would change, compared with what is approved now. Of a column that is masked for"
        ' the caller it always holds `"***"` before and after. A stale proposal rests on a version'
        " that is no longer the approved one; it can be rejected, or written again.",
        parameters=(
            Parameter(
                name="state",
                description="Proposals that wait, those that were rejected, or both.",
                default=ProposalState.PENDING.value,
                choices=tuple(state.value for state in ProposalState),
            ),
            Parameter(name="batchName", description="Only this batch.", example="import-7"),
            Parameter(
                name="filter",
                description="A filter in the bracket language on the rows as they are proposed.",
                example="[country] = 'CH'",
            ),
            Parameter(
                name="sort",
                description="Columns to sort by, `-` before one for descending;"
                " `_sys_last_modified_at` is when it was submitted.",
                example="-_sys_last_modified_at",
            ),
            _SKIP,
            _TAKE,
            Parameter(
                name="after",
                description="`nextAfter` of the page before, with the same filter, state and sort.",
            ),
            Parameter(
                name="count",
                description="Whether to count all matching proposals (`totalCount`).",
                kind=Kind.FLAG,
                default=False,
            ),
        ),
        answers={200: Answer(description="Proposals.", schema=schemas.ref("PendingPage"))},
        errors=(*_ERRORS, "FILTER_INVALID", "COLUMN_RESTRICTED", "QUERY_TIMEOUT"),
        **_SIGNED_IN,
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/pending/batches",
        handler=list_pending_batches,
        summary="List named batches that wait for approval",
        path_parameters=_PATH,
        description="The batches with rows that wait and that the caller may see, the latest first.",
        parameters=(_SKIP, _TAKE),
        answers={200: Answer(description="Batches.", schema=schemas.ref("PendingBatches"))},
        errors=(*_ERRORS, "QUERY_TIMEOUT"),
        **_SIGNED_IN,
    ),
    Operation(
        method="DELETE",
        path="/api/v1/entities/{name}/pending/{id}",
        handler=withdraw_row,
        summary="Withdraw a proposal",
        path_parameters=_ROW_PATH,
        description="Removes a proposal that waits or was rejected. Its author may, and who may"
        " approve it.",
        answers={204: Answer(description="The proposal is gone.")},
        errors=_ON_ROW,
        **_SIGNED_IN,
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/approve/{id}",
        handler=approve_row,
        summary="Approve a proposal",
        path_parameters=_ROW_PATH,
        body=_APPROVAL,
        description="Writes what is proposed to the approved row, after all rules are checked again."
        " The event is that of the change; it names the approver as its user.",
        answers={
            200: Answer(
                description="The row as it is now. Of one that was deleted for good only"
                " `_sys_id`, with `_sys_state` `deleted`.",
                schema=schemas.ref("Row"),
                headers=_ETAG,
            )
        },
        errors=(
            *_ON_ROW,
            "MEDIA_TYPE_UNSUPPORTED",
            "APPROVAL_SAME_AUTHOR",
            "APPROVAL_STALE",
            "APPROVAL_REFERENCE_PENDING",
            *VALUE_ERRORS,
            "ROW_REFERENCED",
        ),
        **_SIGNED_IN,
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/approve-batch",
        handler=approve_batch,
        summary="Approve many proposals",
        path_parameters=_PATH,
        body=_BATCH,
        description="Each row by itself: one that cannot be approved does not hold up the others. A"
        " row that refers to another one of the batch is approved after it; rows that refer to each"
        " other in a circle are approved together or not at all.",
        answers=_OUTCOME,
        errors=(*_DECIDING, "MEDIA_TYPE_UNSUPPORTED"),
        **_SIGNED_IN,
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/reject/{id}",
        handler=reject_row,
        summary="Reject a proposal",
        path_parameters=_ROW_PATH,
        body=_COMMENT,
        description="The comment is the reason. The proposal is kept as rejected until its author"
        " writes again or withdraws it.",
        answers={
            200: Answer(
                description="The rejected proposal.", schema=schemas.ref("Row"), headers=_ETAG
            )
        },
        errors=(*_ON_ROW, "MEDIA_TYPE_UNSUPPORTED"),
        **_SIGNED_IN,
    ),
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/reject-batch",
        handler=reject_batch,
        summary="Reject many proposals",
        path_parameters=_PATH,
        body=_BATCH,
        description="Each row by itself; the comment is the reason of all.",
        answers=_OUTCOME,
        errors=(*_DECIDING, "MEDIA_TYPE_UNSUPPORTED"),
        **_SIGNED_IN,
    ),
)
