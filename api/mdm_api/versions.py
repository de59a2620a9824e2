"""``/versions/{id}`` and ``/data/time-travel-bounds``: what is known of the past of rows."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.responses import Response

from mdm_api import paging, schemas
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.operations import Access, Answer, Operation
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.rows import parse_row_id
from mdm_gitops.data.versions import (
    DEFAULT_TAKE,
    MAX_SKIP,
    MAX_TAKE,
    VersionPage,
    list_versions,
    time_travel_bounds,
)
from mdm_gitops.errors import NotFound
from mdm_gitops.warehouse.connect import Connection

_JSON: Final = "application/json"
_NO_STORE: Final = {"Cache-Control": "no-store"}


async def get_versions(call: Call) -> Response:
    skip, take = call.parameters["skip"], call.parameters["take"]

    async def work(conn: Connection, asking: Asking) -> VersionPage:
        stored = readable_entity(asking, call.path("name"))
        row_id = parse_row_id(call.path("id"), stored.definition)
        return await list_versions(
            conn, asking=asking, entity=stored.name, row_id=row_id, skip=skip, take=take
        )

    try:
        page = await call.reading(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    call.note_rows(len(page.items))
    tail = orjson.dumps(
        {"skip": skip, "take": take, "hasMore": page.has_more, "totalCount": page.total}
    )
    body = b'{"items":[' + b",".join(page.items) + b"]," + tail[1:]
    return Response(body, media_type=_JSON, headers=_NO_STORE)


async def get_time_travel_bounds(call: Call) -> Response:
    async def work(conn: Connection, asking: Asking) -> bytes:
        return await time_travel_bounds(conn, asking=asking, entity=call.path("name"))

    try:
        bounds = await call.reading(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    return Response(bounds, media_type=_JSON, headers=_NO_STORE)


_NAME: Final = {"name": "Name of the entity, in any case."}
_COMMON: Final[dict[str, Any]] = {
    "method": "GET",
    "tag": "Data",
    "access": Access.SIGNED_IN,
    "checks_late": True,
}
_ERRORS: Final = (
    "REQUEST_INVALID",
    "ENTITY_NOT_FOUND",
    "ENTITY_NOT_DEPLOYED",
    "HISTORY_NOT_ENABLED",
    "ACCESS_DENIED",
    "QUERY_TIMEOUT",
)

operations = (
    Operation(
        path="/api/v1/entities/{name}/versions/{id}",
        handler=get_versions,
        summary="List the versions of a row",
        path_parameters={**_NAME, "id": "`_sys_id` of the row."},
        description="The versions of a row that the caller may see, the newest first; also of a row"
        " that was deleted for good. `validTo` is null in the version that holds now. A version is"
        " seen by those whose row filter its own values pass; a row without such a version is as"
        " absent as one that is not there. `action` is what made the version.",
        parameters=(
            paging.skip("Versions", most=MAX_SKIP),
            paging.take("Versions", default=DEFAULT_TAKE, most=MAX_TAKE),
        ),
        answers={200: Answer(description="Versions.", schema=schemas.ref("VersionPage"))},
        errors=(*_ERRORS, "ROW_NOT_FOUND"),
        tier=Tier.PROFESSIONAL,
        **_COMMON,
    ),
    Operation(
        path="/api/v1/entities/{name}/data/time-travel-bounds",
        handler=get_time_travel_bounds,
        summary="Tell which moments can be asked for",
        path_parameters=_NAME,
        description="The moments that `asOfUtc` is of use for: from the creation of the first row"
        " that the caller may see (null where there is none) to now.",
        answers={200: Answer(description="The bounds.", schema=schemas.ref("TimeTravelBounds"))},
        errors=_ERRORS,
        tier=Tier.ENTERPRISE,
        **_COMMON,
    ),
)
