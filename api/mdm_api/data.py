"""``GET /api/v1/entities/{name}/data`` and ``/data/{id}``: rows, passed through as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import orjson
from starlette.responses import Response

from mdm_api import paging, schemas
from mdm_api.answers import json_answer
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.moments import moment
from mdm_api.operations import Access, Answer, Kind, Operation, Parameter
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.merge_records import ResolvedRow, get_resolved_row
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import (
    DEFAULT_TAKE,
    MAX_SKIP,
    MAX_TAKE,
    ListRequest,
    Page,
    Row,
    RowShape,
    parse_row_id,
    row_id_text,
)
from mdm_gitops.errors import NotFound
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.connect import Connection

_REDIRECTED: Final = "redirectedFrom"


async def list_data(call: Call) -> Response:
    request, name = call.query.made(_list_request), call.path("name")
    reader = call.services.reader

    async def work(asking: Asking) -> Page:
        stored = readable_entity(asking, name)
        return await reader.list(asking, entity=stored.name, request=request)

    try:
        page = await call.sharing(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    call.note_rows(len(page.rows))
    return json_answer(_envelope(page, request))


async def get_data(call: Call) -> Response:
    shape, as_of = call.query.made(_row_request)
    try:
        row = await _present_row(call, shape) if as_of is None else None
        if row is not None and not row.is_deleted:
            return _row_response(call, row.body, row.version)
        return await _resolved_row(call, shape, as_of)
    except NotFound as error:
        raise await explain_absence(call, error) from None


async def _present_row(call: Call, shape: RowShape) -> Row | None:
    """Return the row under its own identifier, read together with those that others ask for."""
    name, row_id, reader = call.path("name"), call.path("id"), call.services.reader

    async def work(asking: Asking) -> Row | None:
        stored = readable_entity(asking, name)
        wanted = row_id_text(row_id, stored.definition)
        return await reader.get(asking, entity=stored.name, row_id=wanted, shape=shape)

    return await call.sharing(work)


async def _resolved_row(call: Call, shape: RowShape, as_of: datetime | None) -> Response:
    """Answer a row of the past, or one that was deleted, or what has become of it by a merge."""

    async def work(conn: Connection, asking: Asking) -> tuple[ResolvedRow, Entity]:
        stored = readable_entity(asking, call.path("name"))
        row_id = parse_row_id(call.path("id"), stored.definition)
        found = await get_resolved_row(
            conn, asking=asking, entity=stored.name, row_id=row_id, shape=shape, as_of=as_of
        )
        return found, stored.definition

    found, entity = await call.reading(work)
    body, headers = found.row.body, dict[str, str]()
    if found.redirected_from is not None:
        headers["Content-Location"] = f"/api/v1/entities/{entity.name}/data/{found.row_id}"
        if entity.column(_REDIRECTED) is None:  # the row's own column keeps its name
            body = body[:-1] + f',"{_REDIRECTED}":"{found.redirected_from}"}}'.encode()
    return _row_response(call, body, found.row.version, headers)


def _row_response(
    call: Call, body: bytes, version: int, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    call.note_rows(1)
    return json_answer(body, headers={"ETag": f'"v{version}"', **headers})


def _row_request(given: Mapping[str, Any]) -> tuple[RowShape, datetime | None]:
    return _shape(given), moment(given, _AS_OF)


def _list_request(given: Mapping[str, Any]) -> ListRequest:
    return ListRequest(
        shape=_shape(given),
        filter=given["filter"] or "",
        sort=given["sort"] or "",
        skip=given["skip"],
        take=given["take"],
        after=given["after"] or "",
        count=given["count"],
        as_of=moment(given, _AS_OF),
    )


def _shape(given: Mapping[str, Any]) -> RowShape:
    return RowShape(
        state=RowState(given["state"]),
        fields=given["fields"] or "",
        expand=given["expand"] or "",
    )


def _envelope(page: Page, request: ListRequest) -> bytes:
    tail = orjson.dumps(
        {
            "skip": request.skip,
            "take": request.take,
            "hasMore": page.has_more,
            "nextAfter": page.next_after,
            "totalCount": page.total,
        }
    )
    return b'{"items":[' + page.joined + b"]," + tail[1:]


_FIELDS: Final = Parameter(
    name="fields",
    description="Columns to answer, in this order; all without it.",
    example="code,name",
)
_EXPAND: Final = Parameter(
    name="expand",
    description="Reference columns whose rows are added under `_expanded`, one level. Null stands"
    " for a row that is not there or that the caller may not see.",
    example="country",
)
_AS_OF: Final = Parameter(
    name="asOfUtc",
    description="A moment in the past (ISO 8601, UTC unless it says otherwise): the answer is as it"
    " was then, also through `expand` and through references in the filter. Only of entities with"
    " `historyEnabled`.",
    example="2026-01-31T12:00:00Z",
    tier=Tier.ENTERPRISE,
)
_PATH: Final = {"name": "Name of the entity, in any case."}
_ERRORS: Final = (
    "REQUEST_INVALID",
    "ENTITY_NOT_FOUND",
    "ENTITY_NOT_DEPLOYED",
    "COLUMN_RESTRICTED",
    "HISTORY_NOT_ENABLED",
    "QUERY_TIMEOUT",
)


def _state_parameter(default: RowState) -> Parameter:
    return Parameter(
        name="state",
        description="Approved rows by deletion, or the proposals that wait for approval.",
        default=default.value,
        choices=tuple(state.value for state in RowState),
    )


operations = (
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/data",
        handler=list_data,
        summary="List rows",
        tag="Data",
        access=Access.SIGNED_IN,
        checks_late=True,
        path_parameters=_PATH,
        description="The rows that the caller may see, in a total order. Page with `after`, which"
        " costs the same on each page; `skip` reads what it skips. Values of restricted columns are"
        ' `"***"` without the action viewrestricted.',
        parameters=(
            Parameter(
                name="filter",
                description="A filter in the bracket language, combined by AND with the row filter"
                " of the caller.",
                example="[country] = 'CH' AND [active] = true",
            ),
            Parameter(
                name="sort",
                description="Columns to sort by, `-` before one for descending. Without it the"
                " definition's `sortColumns`. Nulls come last ascending and first descending.",
                example="name,-code",
            ),
            paging.skip("Rows", most=MAX_SKIP),
            paging.take("Rows", default=DEFAULT_TAKE, most=MAX_TAKE),
            Parameter(
                name="after",
                description="`nextAfter` of the page before, with the same filter, state, sort and"
                " moment.",
            ),
            _FIELDS,
            Parameter(
                name="count",
                description="Whether to count all matching rows (`totalCount`).",
                kind=Kind.FLAG,
                default=False,
            ),
            _state_parameter(RowState.ACTIVE),
            _EXPAND,
            _AS_OF,
        ),
        answers={200: Answer(description="A page of rows.", schema=schemas.ref("RowPage"))},
        errors=(*_ERRORS, "FILTER_INVALID"),
    ),
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/data/{id}",
        handler=get_data,
        summary="Read one row",
        tag="Data",
        access=Access.SIGNED_IN,
        checks_late=True,
        path_parameters={**_PATH, "id": "`_sys_id` of the row."},
        description="A row that the caller may not see is as absent as one that is not there. A"
        " soft-deleted row is answered with `_sys_state` `deleted`. Of a row that was merged the"
        " survivor is answered, with `redirectedFrom` and its place in `Content-Location`; with"
        " `state=deleted` the merged row itself. `asOfUtc` follows the merges of then.",
        parameters=(_FIELDS, _state_parameter(RowState.ALL), _EXPAND, _AS_OF),
        answers={
            200: Answer(
                description="The row.",
                schema=schemas.ref("Row"),
                headers={
                    "ETag": 'The version of the row, `"v<_sys_version>"`.',
                    "Content-Location": "Where the row is, if another was merged into it.",
                },
            )
        },
        errors=(*_ERRORS, "ROW_NOT_FOUND"),
    ),
)
