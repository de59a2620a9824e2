"""``/api/v1/entities/{name}/duplicates``: scans for duplicates, the pairs they found, and dismissing them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import Response

from mdm_api import bodies, paging, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_api.similar import column_scores, number_of, rounded
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.duplicates import (
    DEFAULT_TAKE,
    MAX_TAKE,
    PairPage,
    PairRequest,
    list_pairs,
    set_dismissed,
)
from mdm_gitops.data.match_blocks import MAX_BLOCK
from mdm_gitops.data.scans import Scan, ScanRequest, cancel_scan, read_scan
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.connect import Connection


async def scan_duplicates(call: Call) -> Response:
    given = await _body(call, "full", "minScore")
    full = given.get("full", False)
    if not isinstance(full, bool):
        raise InputError("full must be true or false", parameter="full")
    request = ScanRequest(full=full, min_score=number_of(given, "minScore"))
    name = call.path("name")
    scan_id = await _explained(
        call, call.services.scanner.begin(call.writing, entity=name, request=request)
    )

    async def work(conn: Connection, asking: Asking) -> Scan:
        return await read_scan(conn, asking=asking, entity=name, scan_id=str(scan_id))

    scan = await call.reading(work)
    location = f"{call.request.scope['path'].removesuffix('/scan')}/scans/{scan_id}"
    return json_response(_scan(scan), status=202, headers={"Location": location})


async def get_duplicate_scan(call: Call) -> Response:
    return json_response(_scan(await _asked(call, _reading(call))))


async def cancel_duplicate_scan(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> None:
        await cancel_scan(conn, asking=asking, entity=call.path("name"), scan_id=call.path("id"))

    await _asked(call, work)
    return json_response(_scan(await _asked(call, _reading(call))))


def _reading(call: Call) -> Callable[[Connection, Asking], Awaitable[Scan]]:
    async def work(conn: Connection, asking: Asking) -> Scan:
        return await read_scan(
            conn, asking=asking, entity=call.path("name"), scan_id=call.path("id")
        )

    return work


async def list_duplicates(call: Call) -> Response:
    given = call.parameters
    request = PairRequest(
        min_score=_score(given["minScore"]),
        take=given["take"],
        after=given["after"] or "",
        dismissed=given["dismissed"],
    )

    async def work(conn: Connection, asking: Asking) -> PairPage:
        return await list_pairs(conn, asking=asking, entity=call.path("name"), request=request)

    page = await _asked(call, work)
    call.note_rows(len(page.pairs))
    items = [
        {
            "ids": list(pair.ids),
            "score": rounded(pair.score),
            "columns": column_scores(pair.columns),
            "rows": [orjson.Fragment(row) for row in pair.rows],
            "changed": pair.has_changed,
        }
        for pair in page.pairs
    ]
    return json_response(
        {
            "items": items,
            "take": request.take,
            "hasMore": page.next_after is not None,
            "nextAfter": page.next_after,
            "scannedUtc": _moment(page.scanned_at),
        }
    )


async def dismiss_duplicate(call: Call) -> Response:
    return await _dismissing(call, dismissed=True)


async def reopen_duplicate(call: Call) -> Response:
    return await _dismissing(call, dismissed=False)


async def _dismissing(call: Call, *, dismissed: bool) -> Response:
    ids = _ids(await _body(call, "ids"))

    async def work(conn: Connection, asking: Asking) -> None:
        await set_dismissed(
            conn, asking=asking, entity=call.path("name"), ids=ids, dismissed=dismissed
        )

    await _asked(call, work)
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


async def _asked(call: Call, work: Any) -> Any:
    return await _explained(call, call.reading(work))


async def _explained(call: Call, answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except NotFound as error:
        raise await explain_absence(call, error) from None


async def _body(call: Call, *known: str) -> dict[str, Any]:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    return bodies.load_object(await call.body(), known=known, may_be_empty=known != ("ids",))


def _ids(given: dict[str, Any]) -> tuple[UUID, UUID]:
    try:
        one, other = given["ids"]
        return UUID(one), UUID(other)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError("ids must be the identifiers of two rows", parameter="ids") from None


def _score(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        raise InputError("minScore must be a number", parameter="minScore") from None


def _scan(scan: Scan) -> dict[str, Any]:
    return {
        "scanId": str(scan.scan_id),
        "state": scan.state,
        "mode": scan.mode,
        "minScore": scan.min_score,
        "sinceUtc": _moment(scan.since),
        "startedUtc": _moment(scan.started_at),
        "startedBy": scan.started_by,
        "finishedUtc": _moment(scan.finished_at),
        "step": scan.step,
        "progress": scan.progress,
        "counts": scan.counts,
        "error": scan.error,
    }


def _moment(moment: datetime | None) -> Any:
    return None if moment is None else to_json_value(moment)


_PATH: Final = {"name": "Name of the entity, in any case."}
_SCAN_PATH: Final = {**_PATH, "id": "Identifier of the scan."}
_E: Final = "/api/v1/entities/{name}/duplicates"
_ERRORS: Final = ("REQUEST_INVALID", "ENTITY_NOT_FOUND", "ENTITY_NOT_DEPLOYED", "ACCESS_DENIED")
_BODY_ERRORS: Final = ("BODY_TOO_LARGE", "MEDIA_TYPE_UNSUPPORTED")
_ANSWER: Final = Answer(description="The scan.", schema=schemas.ref("DuplicateScan"))
_LIST: Final = Operation(
    method="GET",
    path=_E,
    handler=list_duplicates,
    summary="List pairs that may be duplicates",
    description="As the last scans found them, the most alike first, with both rows and what each"
    " column says to the score now. Only pairs of which the caller may see both rows. `changed` says"
    " that a row has changed since the pair was scored. After the rules of comparing change there are"
    " none until the next scan.",
    tag="Duplicates",
    access=Access.SIGNED_IN,
    tier=Tier.PROFESSIONAL,
    path_parameters=_PATH,
    parameters=(
        Parameter(
            name="minScore", description="Only pairs with this score or more.", example="0.8"
        ),
        paging.take("Pairs", default=DEFAULT_TAKE, most=MAX_TAKE),
        Parameter(name="after", description="The `nextAfter` of the page before."),
        Parameter(
            name="dismissed",
            description="The pairs that were dismissed, instead of the others.",
            kind=Kind.FLAG,
            default=False,
        ),
    ),
    answers={200: Answer(description="A page.", schema=schemas.ref("DuplicatePairs"))},
    errors=(*_ERRORS, "SIMILARITY_OFF", "QUERY_TIMEOUT"),
)
_DISMISS: Final = replace(
    _LIST,
    method="POST",
    path=f"{_E}/dismiss",
    handler=dismiss_duplicate,
    summary="Dismiss a pair",
    description="The two rows are not the same: no list shows them again as a pair, whatever later scans"
    " find, until that is undone. Doing it twice is doing it once. For those who may write both rows.",
    parameters=(),
    body=Body(description="The rows.", schemas={JSON: schemas.ref("DuplicateIds")}),
    answers={204: Answer(description="It is so.")},
    errors=(*_ERRORS, *_BODY_ERRORS, "ROW_NOT_FOUND"),
)
operations = (
    replace(
        _LIST,
        method="POST",
        path=f"{_E}/scan",
        handler=scan_duplicates,
        summary="Scan an entity for duplicates",
        description="Begins a job that finds pairs of active rows that may mean the same thing, for those"
        " who may write the entity. After the first scan only rows that changed since the last one are"
        " compared with all (`mode: changed`), unless `full` is asked for or rules or `minScore` are"
        f" others. A key that more than {MAX_BLOCK} rows share is not looked through; `counts` tells"
        " how many there were and how many rows have no other. One scan of an entity runs at a time.",
        parameters=(),
        body=Body(
            description="Nothing, or what is to be otherwise.",
            schemas={JSON: schemas.ref("DuplicateScanRequest")},
            required=False,
        ),
        answers={
            202: Answer(
                description="It runs.",
                schema=schemas.ref("DuplicateScan"),
                headers={"Location": "Where its state is."},
            )
        },
        errors=(*_ERRORS, *_BODY_ERRORS, "SIMILARITY_OFF", "DUPLICATE_SCAN_RUNNING"),
    ),
    replace(
        _LIST,
        path=f"{_E}/scans/{{id}}",
        handler=get_duplicate_scan,
        summary="Read the state of a scan",
        description="A scan whose process was killed is `failed`.",
        path_parameters=_SCAN_PATH,
        parameters=(),
        answers={200: _ANSWER},
        errors=(*_ERRORS, "DUPLICATE_SCAN_NOT_FOUND"),
    ),
    replace(
        _LIST,
        method="POST",
        path=f"{_E}/scans/{{id}}/cancel",
        handler=cancel_duplicate_scan,
        summary="Cancel a scan",
        description="Nothing of it is kept. A scan that has ended stays as it is.",
        path_parameters=_SCAN_PATH,
        parameters=(),
        answers={200: _ANSWER},
        errors=(*_ERRORS, "DUPLICATE_SCAN_NOT_FOUND"),
    ),
    _LIST,
    _DISMISS,
    replace(
        _DISMISS,
        path=f"{_E}/reopen",
        handler=reopen_duplicate,
        summary="Take the dismissal of a pair back",
        description="It is listed again if a scan finds it.",
    ),
)
