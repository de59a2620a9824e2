"""Imports: ``POST .../data/bulk``, ``bulk-csv`` and ``bulk-xlsx``, and the errors of an import as CSV.

The body is streamed into the warehouse while it arrives; the answer comes when all of it is written,
and nothing is written when the client leaves before that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar
from uuid import UUID

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Kind, Operation, Parameter
from mdm_api.streaming import Outlet, Streamed
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, changeable_entity
from mdm_gitops.data.idempotency import RequestHash, checked_key, refuse_other_request
from mdm_gitops.data.import_columns import ImportRequest, Mode, import_columns
from mdm_gitops.data.import_csv import CsvReader, Dialect, Unreadable, dialect
from mdm_gitops.data.import_errors import error_lines, no_such_import, readable_import
from mdm_gitops.data.import_xlsx import sheet_as_csv
from mdm_gitops.data.imports import ImportSession
from mdm_gitops.errors import InputError, MdmError, NotFound
from mdm_gitops.warehouse.connect import Connection

T = TypeVar("T")
CSV: Final = "text/csv"
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_CHARSET: Final = re.compile(r'charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)
_MAX_BATCH_NAME: Final = 200

Chunks = AsyncIterator[bytes]
Receive = Callable[[ImportSession, Chunks], Awaitable[None]]


async def bulk_data(call: Call) -> Response:
    _require_type(call, JSON)
    request = _request(call)

    async def receive(session: ImportSession, chunks: Chunks) -> None:
        async def staged(asking: Asking) -> None:
            # Nothing was read yet when this is refused or repeated.
            import_columns(asking, request, None)

        await call.writing(staged)
        await session.receive_json(call.asking, chunks)

    return await _import(call, request, receive)


async def bulk_csv_data(call: Call) -> Response:
    _require_type(call, CSV)
    written = _dialect(call)
    return await _import(call, _request(call), _csv_receiver(call, written))


async def bulk_xlsx_data(call: Call) -> Response:
    _require_type(call, XLSX)
    request = _request(call)
    read = _csv_receiver(call, Dialect())

    async def receive(session: ImportSession, chunks: Chunks) -> None:
        session.escaped = False  # a workbook says itself what is text
        async with aclosing(sheet_as_csv(chunks)) as lines:
            await read(session, lines)

    return await _import(call, request, receive)


async def import_errors(call: Call) -> Response:
    import_id = _import_id(call.path("id"))

    async def send(outlet: Outlet) -> None:
        async def work(conn: Connection, asking: Asking) -> None:
            entity = await readable_import(conn, asking=asking, import_id=import_id)
            lines = error_lines(conn, schemas=asking.schemas, entity=entity, import_id=import_id)
            async with aclosing(lines):
                await outlet.send_all(lines, _file_headers(import_id))

        await call.reading(work)

    return Streamed(send)


def _csv_receiver(call: Call, written: Dialect) -> Receive:
    async def receive(session: ImportSession, chunks: Chunks) -> None:
        async def check(header: Any) -> None:
            async def columns(asking: Asking) -> object:
                return import_columns(asking, session.request, header)

            await call.writing(columns)

        await session.receive_csv(CsvReader(written), chunks, check)

    return receive


async def _import(call: Call, request: ImportRequest, receive: Receive) -> Response:
    _refuse_large(call)
    key = _idempotency_key(call)
    request_hash = RequestHash(_what(call, request))
    chunks = _body(call, request_hash)
    try:
        await _refuse_strangers(call, request)
        async with call.services.importer.opened(request) as session, aclosing(chunks):
            if key:
                earlier = await session.earlier(call.principal.actor, key)
                if earlier is not None:
                    await _drain(chunks)
                    refuse_other_request(earlier[0], request_hash.digest)
                    return _answer(earlier[1])
            await receive(session, chunks)
            await _drain(chunks)
            outcome = await _unless_gone(call, call.writing(session.write))
            answer = orjson.dumps(
                outcome.document(errors_url=f"/api/v1/imports/{outcome.import_id}/errors")
            )
            session.answered(answer, key=key, request_hash=request_hash.digest)
            await session.keep()
    except NotFound as error:
        raise await explain_absence(call, error) from None
    call.note_rows(outcome.received)
    return _answer(answer)


async def _refuse_strangers(call: Call, request: ImportRequest) -> None:
    """Refuse who may not write there before anything of the body is read."""

    async def allowed(asking: Asking) -> None:
        changeable_entity(asking, request.entity)

    await call.writing(allowed)


def _answer(content: bytes) -> Response:
    return Response(content, media_type=JSON, headers={"Cache-Control": "no-store"})


# --- the request ----------------------------------------------------------------------------------


def _request(call: Call) -> ImportRequest:
    given = call.parameters
    batch_name = (given["batchName"] or "").strip() or None
    if batch_name and len(batch_name) > _MAX_BATCH_NAME:
        raise InputError(
            f"batchName is longer than {_MAX_BATCH_NAME} characters", parameter="batchName"
        )
    return ImportRequest(
        entity=call.path("name"),
        mode=Mode(given["mode"]),
        key_columns=given["keyColumns"] or "",
        batch_name=batch_name,
        dry_run=given["dryRun"],
    )


def _what(call: Call, request: ImportRequest) -> dict[str, Any]:
    """Return what makes two requests the same, beside their bodies."""
    return {
        "path": call.operation.path,
        "entity": request.entity.lower(),
        "type": call.request.headers.get("Content-Type", "").lower(),
        **call.parameters,
    }


def _require_type(call: Call, expected: str) -> None:
    if bodies.media_type(call.request) != expected:
        raise bodies.unsupported(call.request, expected)


def _dialect(call: Call) -> Dialect:
    found = _CHARSET.search(call.request.headers.get("Content-Type", ""))
    charset = found[1] if found else None
    try:
        return dialect(sep=call.parameters["sep"], quote=call.parameters["quote"], charset=charset)
    except LookupError:
        raise MdmError(
            f"charset {(charset or '')[:40]!r} is not read here",
            hint="send utf-8, iso-8859-1 or windows-1252",
            code="MEDIA_TYPE_UNSUPPORTED",
        ) from None


def _idempotency_key(call: Call) -> str:
    text = call.request.headers.get("Idempotency-Key")
    return "" if text is None else checked_key(text)


def _import_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise no_such_import(text) from None


def _file_headers(import_id: UUID) -> Mapping[str, str]:
    return {
        "Content-Type": f"{CSV}; charset=utf-8; header=present",
        "Content-Disposition": f'attachment; filename="errors-{import_id}.csv"',
        "Cache-Control": "no-store",
    }


# --- the body -------------------------------------------------------------------------------------


def _refuse_large(call: Call) -> None:
    declared = call.request.headers.get("Content-Length", "0")
    limit = call.services.settings.Data.MaxImportBytes
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> MdmError:
    return MdmError(
        f"the body has more than {limit:,} bytes",
        hint="import it in parts",
        code="BODY_TOO_LARGE",
    )


async def _body(call: Call, request_hash: RequestHash) -> AsyncGenerator[bytes]:
    """Yield the body as it arrives, within the limits of size and silence."""
    settings, size = call.services.settings.Data, 0
    stream = call.request.stream()
    while True:
        try:
            async with asyncio.timeout(settings.ImportIdleSeconds):
                chunk = await anext(stream, b"")
        except TimeoutError:
            raise Unreadable(
                f"nothing more of it has come for {settings.ImportIdleSeconds:g} s"
            ) from None
        except ClientDisconnect:
            raise Unreadable("it ended before it was whole") from None
        if not chunk:
            return
        size += len(chunk)
        if size > settings.MaxImportBytes:
            raise _too_large(settings.MaxImportBytes)
        request_hash.feed(chunk)
        yield chunk


async def _drain(chunks: Chunks) -> None:
    async for _ in chunks:
        pass


async def _unless_gone(call: Call, work: Awaitable[T]) -> T:
    """Return what *work* gives; it is given up when the client leaves before.

    Raises:
        Unreadable: the client has left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(call))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Unreadable("the client has left before the rows were written")
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


# --- the operations -------------------------------------------------------------------------------

_PATH: Final = {"name": "Name of the entity, in any case."}
_PARAMETERS: Final = (
    Parameter(
        name="mode",
        description="`insert`: rows whose key is there already are rejected. `upsert`: they are"
        " updated, and columns that are not given keep their values.",
        default=Mode.INSERT.value,
        choices=tuple(mode.value for mode in Mode),
    ),
    Parameter(
        name="keyColumns",
        description="Columns that tell which row is meant, with commas between; they must be unique."
        " Without it the definition's `keyColumns`.",
        example="code",
    ),
    Parameter(
        name="batchName",
        description="A name by which the rows can be approved as one group, where the entity needs"
        " approval. Without it the server chooses one.",
    ),
    Parameter(
        name="dryRun",
        description="Whether all is done, told and then taken back.",
        kind=Kind.FLAG,
        default=False,
    ),
)
_DIALECT: Final = (
    Parameter(
        name="sep", description="Sign between values, `,` without it. `tab` is a tab.", example=";"
    ),
    Parameter(name="quote", description='Sign around values, `"` without it.'),
)
_RULES: Final = (
    " Each row is judged by itself: invalid rows are rejected and listed in `errors`, valid rows are"
    " written, all in one transaction with their history and events. The second row with the same key"
    " is rejected. With the header `Idempotency-Key` a repeated request gets the first one's answer."
)
_ANSWERS: Final = {
    200: Answer(
        description="What became of the rows; `rejected` may be all of them.",
        schema=schemas.ref("ImportResult"),
    )
}
_ERRORS: Final = (
    "REQUEST_INVALID",
    "IMPORT_UNREADABLE",
    "ACCESS_DENIED",
    "COLUMN_RESTRICTED",
    "ENTITY_NOT_FOUND",
    "ENTITY_NOT_DEPLOYED",
    "IDEMPOTENCY_CONFLICT",
    "IDEMPOTENCY_IN_FLIGHT",
    "BODY_TOO_LARGE",
    "MEDIA_TYPE_UNSUPPORTED",
    "WAREHOUSE_LOCKED",
    "QUERY_TIMEOUT",
)
_HEADER_ERRORS: Final = (
    "ENTITY_VALIDATION_UNKNOWN_COLUMN",
    "ENTITY_VALIDATION_SYSTEM_COLUMN",
    "ENTITY_VALIDATION_REQUIRED_FIELD",
)
_IMPORT: Final[dict[str, Any]] = {
    "method": "POST",
    "tag": "Data",
    "access": Access.SIGNED_IN,
    "tier": Tier.PROFESSIONAL,
    "checks_late": True,
    "path_parameters": _PATH,
    "answers": _ANSWERS,
}

operations = (
    Operation(
        path="/api/v1/entities/{name}/data/bulk",
        handler=bulk_data,
        summary="Import a JSON array of rows",
        description="The body is read row by row as it arrives." + _RULES,
        parameters=_PARAMETERS,
        body=Body(
            description="An array of row objects.",
            schemas={JSON: {"type": "array", "items": schemas.ref("RowInput")}},
        ),
        errors=_ERRORS,
        **_IMPORT,
    ),
    Operation(
        path="/api/v1/entities/{name}/data/bulk-csv",
        handler=bulk_csv_data,
        summary="Import CSV",
        description="CSV as RFC 4180 has it, in UTF-8 unless `charset` says iso-8859-1 or"
        " windows-1252. The first line names the columns, by name or display name, in any case. An"
        ' empty field is null, `""` an empty text; what an export has put before a text that a'
        " spreadsheet would run is taken off again." + _RULES,
        parameters=(*_PARAMETERS, *_DIALECT),
        body=Body(description="The header and the rows.", schemas={CSV: {"type": "string"}}),
        errors=(*_ERRORS, *_HEADER_ERRORS),
        **_IMPORT,
    ),
    Operation(
        path="/api/v1/entities/{name}/data/bulk-xlsx",
        handler=bulk_xlsx_data,
        summary="Import the first sheet of a workbook",
        description="The first row of the first visible sheet names the columns. An empty cell is"
        " null." + _RULES,
        parameters=_PARAMETERS,
        body=Body(
            description="A workbook.", schemas={XLSX: {"type": "string", "format": "binary"}}
        ),
        errors=(*_ERRORS, *_HEADER_ERRORS),
        **_IMPORT,
    ),
    Operation(
        method="GET",
        path="/api/v1/imports/{id}/errors",
        handler=import_errors,
        summary="All errors of an import as CSV",
        tag="Data",
        access=Access.SIGNED_IN,
        tier=Tier.PROFESSIONAL,
        checks_late=True,
        path_parameters={"id": "Id of the import, as `errorsUrl` has it."},
        description="Columns `row`, `column`, `code`, `message`, `value`. For the one who imported and"
        " for a Global Admin, as long as it is kept (`Mdm__Data__ImportErrorRetentionDays`).",
        answers={
            200: Answer(description="The errors by row.", schema={"type": "string"}, media_type=CSV)
        },
        errors=("NOT_FOUND",),
    ),
)
