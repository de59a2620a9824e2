"""``GET /api/v1/audit``: who did what and when, for a Global Admin."""

from __future__ import annotations

from uuid import UUID

import orjson
from starlette.responses import Response

from mdm_api import paging, schemas
from mdm_api.call import Call
from mdm_api.moments import SINCE, UNTIL, moment
from mdm_api.operations import JSON, Access, Answer, Handler, Operation, Parameter
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.audit import (
    DEFAULT_TAKE,
    MAX_SKIP,
    MAX_TAKE,
    AuditPage,
    AuditRequest,
    read_audit,
)
from mdm_gitops.errors import InputError
from mdm_gitops.warehouse.connect import Connection


async def list_audit(call: Call) -> Response:
    given = call.parameters
    request = AuditRequest(
        entity=given["entityName"] or "",
        user=given["user"] or "",
        action=given["action"] or "",
        record_id=_record_id(given["recordId"]),
        since=moment(given, SINCE),
        until=moment(given, UNTIL),
        skip=given["skip"],
        take=given["take"],
    )

    async def work(conn: Connection, asking: Asking) -> AuditPage:
        return await read_audit(conn, asking=asking, request=request)

    page = await call.reading(work)
    call.note_rows(page.count)
    tail = orjson.dumps({"totalCount": page.total})
    body = b'{"entries":[' + page.entries + b"]," + tail[1:]
    return Response(body, media_type=JSON, headers={"Cache-Control": "no-store"})


async def list_audit_unversioned(call: Call) -> Response:
    return await list_audit(call)


def _record_id(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InputError("recordId is no GUID", parameter="recordId") from None


def _operation(path: str, handler: Handler) -> Operation:
    return Operation(
        method="GET",
        path=path,
        handler=handler,
        summary="Read the audit",
        tag="Audit and changes",
        access=Access.GLOBAL_ADMIN,
        checks_late=True,
        tier=Tier.ENTERPRISE,
        description="Changes of rows with old and new values, deployments, changes of permissions"
        " and API keys, imports, sign-ins and refused keys; newest first. All filters must hold."
        " docs/guides/audit.md lists the actions.",
        parameters=(
            Parameter(
                name="entityName",
                description="Only this entity: its name or display name, in any case.",
                example="customer",
            ),
            Parameter(
                name="user",
                description="Only what this principal did, as `user` of an entry spells it.",
                example="apikey:price-import",
            ),
            Parameter(name="action", description="Only this action.", example="data_updated"),
            Parameter(name="recordId", description="Only this row: its `_sys_id`."),
            SINCE,
            UNTIL,
            paging.skip("Entries", most=MAX_SKIP),
            paging.take("Entries", default=DEFAULT_TAKE, most=MAX_TAKE),
        ),
        answers={200: Answer(description="A page of entries.", schema=schemas.ref("AuditPage"))},
        errors=("REQUEST_INVALID", "QUERY_TIMEOUT"),
    )


operations = (
    _operation("/api/v1/audit", list_audit),
    _operation("/api/audit", list_audit_unversioned),
)
