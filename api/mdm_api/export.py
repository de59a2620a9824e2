"""``GET /api/v1/entities/{name}/data/export``: all rows as one file, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from starlette.responses import Response

from mdm_api import paging, schemas
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.moments import moment
from mdm_api.operations import Access, Answer, Kind, Operation, Parameter
from mdm_api.services import Services
from mdm_api.streaming import BrokenOff, Outlet, Streamed
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.export import Export, ExportFormat, ExportRequest, opened_export
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import MAX_SKIP
from mdm_gitops.errors import MdmError, NotFound, WarehouseLocked
from mdm_gitops.warehouse.connect import Connection

MEDIA_TYPES: Final = {
    ExportFormat.CSV: "text/csv",
    ExportFormat.JSON: "application/json",
    ExportFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


async def export_data(call: Call) -> Response:
    request = _request(call.parameters)

    async def work(outlet: Outlet) -> None:
        try:
            async with _slot(call.services):
                await call.reading(
                    lambda conn, asking: _export(call, conn, asking, request, outlet)
                )
        except NotFound as error:
            raise await explain_absence(call, error) from None

    return Streamed(work)


@asynccontextmanager
async def _slot(services: Services) -> AsyncIterator[None]:
    """Wait for a turn: an export holds its connection as long as its client takes to read."""
    try:
        async with asyncio.timeout(services.settings.Database.PoolWaitSeconds):
            await services.export_slots.acquire()
    except TimeoutError:
        raise WarehouseLocked(
            "as many exports are running as may run at once",
            hint="try again in a moment; Mdm__Database__PoolMaxSize allows more",
        ) from None
    try:
        yield
    finally:
        services.export_slots.release()


async def _export(
    call: Call, conn: Connection, asking: Asking, request: ExportRequest, outlet: Outlet
) -> None:
    """Send the export; once it began, no failure of it may make the caller start over."""
    try:
        await _send(call, conn, asking, request, outlet)
    except (MdmError, StateMoved) as error:
        if outlet.began:
            raise BrokenOff("the export broke off") from error
        raise


async def _send(
    call: Call, conn: Connection, asking: Asking, request: ExportRequest, outlet: Outlet
) -> None:
    timeout_s = call.services.settings.Data.ExportTimeoutSeconds
    async with opened_export(
        conn, asking=asking, entity=call.path("name"), request=request, timeout_s=timeout_s
    ) as export:
        headers = _headers(export, request)
        if call.request.method == "HEAD":
            await outlet.send_head(headers)
            return
        async with aclosing(export.chunks()) as chunks:
            await outlet.send_all(chunks, headers)
        call.note_rows(export.rows)


def _headers(export: Export, request: ExportRequest) -> dict[str, str]:
    media_type = MEDIA_TYPES[request.format]
    charset = "; charset=utf-8; header=present" if request.format is ExportFormat.CSV else ""
    return {
        "Content-Type": media_type + charset,
        "Content-Disposition": f'attachment; filename="{export.file_name}"',
        "Cache-Control": "no-store",
    }


def _request(given: Mapping[str, Any]) -> ExportRequest:
    return ExportRequest(
        format=ExportFormat(given["format"]),
        state=RowState(given["state"]),
        fields=given["fields"] or "",
        filter=given["filter"] or "",
        sort=given["sort"] or "",
        skip=given["skip"],
        take=given["take"],
        as_of=moment(given, _AS_OF),
    )


_AS_OF: Final = Parameter(
    name="asOfUtc",
    description="A moment in the past (ISO 8601, UTC unless it says otherwise): the rows are as they"
    " were then. Only of entities with `historyEnabled`.",
    example="2026-01-31T12:00:00Z",
    tier=Tier.ENTERPRISE,
)
_DESCRIPTION: Final = (
    "All rows that the caller may see, of one moment, as a file. CSV is RFC 4180 in UTF-8 with lines"
    ' that end in LF: null is an empty field, an empty text is `""`; a text that a spreadsheet'
    " would run is preceded by `'`, which an import takes off again. What was exported as CSV or"
    " JSON can be imported as it is. Masked values are `***`. A refusal comes before the first byte;"
    " an answer that breaks off has no regular end."
)

operations = (
    Operation(
        method="GET",
        path="/api/v1/entities/{name}/data/export",
        handler=export_data,
        summary="Export rows as CSV, JSON or a workbook",
        tag="Data",
        access=Access.SIGNED_IN,
        tier=Tier.PROFESSIONAL,
        checks_late=True,
        description=_DESCRIPTION,
        path_parameters={"name": "Name of the entity, in any case."},
        parameters=(
            Parameter(
                name="format",
                description="The form of the file.",
                default=ExportFormat.CSV.value,
                choices=tuple(each.value for each in ExportFormat),
            ),
            Parameter(
                name="filter",
                description="A filter in the bracket language, combined by AND with the row filter"
                " of the caller.",
                example="[country] = 'CH' AND [active] = true",
            ),
            Parameter(
                name="sort",
                description="Columns to sort by, `-` before one for descending. Without it the"
                " definition's `sortColumns`.",
                example="name,-code",
            ),
            paging.skip("Rows", most=MAX_SKIP),
            Parameter(
                name="take",
                description="Rows to export at most; all without it.",
                kind=Kind.NUMBER,
                minimum=1,
                maximum=MAX_SKIP,
            ),
            Parameter(
                name="fields",
                description="Columns to export, in this order; without it those of the definition,"
                " and no system columns.",
                example="code,name,_sys_version",
            ),
            Parameter(
                name="state",
                description="Approved rows by deletion.",
                default=RowState.ACTIVE.value,
                choices=tuple(state.value for state in RowState if state is not RowState.PENDING),
            ),
            _AS_OF,
        ),
        answers={
            200: Answer(
                description="The file.",
                media_type=MEDIA_TYPES[ExportFormat.CSV],
                schema={"type": "string"},
                others={
                    MEDIA_TYPES[ExportFormat.JSON]: {"type": "array", "items": schemas.ref("Row")},
                    MEDIA_TYPES[ExportFormat.XLSX]: {"type": "string", "format": "binary"},
                },
                headers={"Content-Disposition": "The name of the file, `<entity>.<format>`."},
            )
        },
        errors=(
            "REQUEST_INVALID",
            "FILTER_INVALID",
            "ENTITY_NOT_FOUND",
            "ENTITY_NOT_DEPLOYED",
            "COLUMN_RESTRICTED",
            "HISTORY_NOT_ENABLED",
            "QUERY_TIMEOUT",
            "WAREHOUSE_LOCKED",
        ),
    ),
)
