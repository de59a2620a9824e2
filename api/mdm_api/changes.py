"""``GET /api/v1/changes``: the change feed, passed through as bytes."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.responses import Response

from mdm_api import paging, schemas
from mdm_api.call import Call
from mdm_api.moments import SINCE, UNTIL, moment
from mdm_api.operations import JSON, Access, Answer, Handler, Kind, Operation, Parameter
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.feed import DEFAULT_TAKE, ChangesPage, ChangesRequest, read_changes
from mdm_gitops.data.feed_statement import MAX_TAKE
from mdm_gitops.warehouse.connect import Connection

_LAST_ID: Final = 2**53


async def list_changes(call: Call) -> Response:
    given = call.parameters
    request = ChangesRequest(
        entity=given["entity"] or "",
        after=given["afterId"],
        since=moment(given, SINCE),
        until=moment(given, UNTIL),
        take=given["take"],
    )

    async def work(conn: Connection, asking: Asking) -> ChangesPage:
        return await read_changes(conn, asking=asking, request=request)

    page = await call.reading(work)
    call.note_rows(page.count)
    return Response(_envelope(page), media_type=JSON, headers={"Cache-Control": "no-store"})


async def list_changes_unversioned(call: Call) -> Response:
    return await list_changes(call)


def _envelope(page: ChangesPage) -> bytes:
    tail = orjson.dumps(
        {
            "nextAfterId": page.next_after,
            "hasMore": page.has_more,
            "totalCount": page.total,
        }
    )
    return b'{"entries":[' + page.entries + b"]," + tail[1:]


def _operation(path: str, handler: Handler) -> Operation:
    return Operation(
        method="GET",
        path=path,
        handler=handler,
        summary="Read the change feed",
        tag="Audit and changes",
        access=Access.SIGNED_IN,
        checks_late=True,
        tier=Tier.ENTERPRISE,
        absent_below_tier=True,
        description="Committed changes of rows, oldest first. Keep `nextAfterId` and give it as"
        " `afterId` to the next call: each change comes exactly once, and those of one row in their"
        " order. Without `afterId`, `fromUtc` and `toUtc` the last 24 hours are meant. A Global Admin"
        " sees every entity, others those that they may read, and of them only the changes of rows"
        " that pass their row filter now. docs/guides/change-feed.md tells more.",
        parameters=(
            SINCE,
            UNTIL,
            Parameter(
                name="entity",
                description="Only changes of this entity: its name or display name, in any case.",
                example="customer",
            ),
            Parameter(
                name="afterId",
                description="Only entries with a larger id.",
                kind=Kind.NUMBER,
                minimum=0,
                maximum=_LAST_ID,
            ),
            paging.take("Entries", default=DEFAULT_TAKE, most=MAX_TAKE),
        ),
        answers={200: Answer(description="A page of entries.", schema=schemas.ref("ChangesPage"))},
        errors=(
            "REQUEST_INVALID",
            "ENTITY_NOT_FOUND",
            "ACCESS_DENIED",
            "CHANGES_EXPIRED",
            "QUERY_TIMEOUT",
        ),
    )


operations = (
    _operation("/api/v1/changes", list_changes),
    _operation("/api/changes", list_changes_unversioned),
)
