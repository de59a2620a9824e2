"""Errors as ``application/problem+json`` (RFC 9457): the one place where they meet HTTP.

Status and title come from ``errors.CATALOGUE``. What went wrong inside (a database's words, a path,
a traceback) goes to the log with the trace id, never into an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mdm_gitops.errors import (
    CATALOGUE,
    DefinitionError,
    FilterError,
    Finding,
    MdmError,
    NotFound,
    RateLimited,
)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
_LOG: Final = logging.getLogger("mdm_api.errors")
# Their own words may tell of hosts, roles and tables.
_KEPT_INSIDE: Final = {
    "WAREHOUSE_UNAVAILABLE": "the warehouse cannot be reached, try again in a moment",
    "WAREHOUSE_UNUSABLE": "the warehouse is not usable, the log of the server says why",
    "SETTING_INVALID": "the server is not set up correctly, its log says why",
    "IDENTITY_PROVIDER_UNAVAILABLE": "the identity provider does not answer, try again in a moment",
    "INTERNAL": "something went wrong here, the log of the server has it under this trace id",
}
_API_KEY: Final = 'ApiKey realm="mdm-gitops", header="X-API-Key"'
_HTTP_CODES: Final = {
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "BODY_TOO_LARGE",
    415: "MEDIA_TYPE_UNSUPPORTED",
}


def kebab(code: str) -> str:
    return code.lower().replace("_", "-")


def problem_type(code: str, base_url: str | None) -> str:
    return f"{(base_url or '').rstrip('/')}/problems/{kebab(code)}"


def problem_document(error: MdmError, *, trace_id: str, base_url: str | None) -> dict[str, Any]:
    code, kind = error.kind_code, error.kind
    # Extensions first, so that none of them can take the place of a member below.
    document = {**_extensions(error)} if code not in _KEPT_INSIDE else {}
    document |= {
        "type": problem_type(code, base_url),
        "title": kind.title,
        "status": kind.status,
        "detail": _KEPT_INSIDE.get(code) or str(error),
        "code": code,
        "traceId": trace_id,
    }
    return document


def _extensions(error: MdmError) -> dict[str, Any]:
    found: dict[str, Any] = {"hint": error.hint} if error.hint else {}
    match error:
        case DefinitionError(findings=findings):
            return {**found, "errors": [finding_document(finding) for finding in findings]}
        case FilterError(position=position, expected=expected):
            return {**found, "position": position, **({"expected": expected} if expected else {})}
        case _:
            told = {name: value for name, value in error.details.items() if name != "headers"}
            return {**told, **found}


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return a finding as an item of ``errors``; *file* only where there is one."""
    location = finding.location
    document: dict[str, Any] = {
        "pointer": finding.pointer,
        "code": finding.rule,
        "message": finding.message,
    }
    if finding.hint:
        document["hint"] = finding.hint
    if location.line:
        document["line"] = location.line
    if location.path and not location.path.startswith("<"):
        document["file"] = location.path
    return document


def problem_response(error: MdmError, *, trace_id: str, base_url: str | None) -> Response:
    status = error.kind.status
    if status >= 500:
        _LOG.error("%s: %s", error.kind_code, error, extra={"traceId": trace_id})
    document = problem_document(error, trace_id=trace_id, base_url=base_url)
    headers = {"Cache-Control": "no-store", **_headers(error, status)}
    content = orjson.dumps(document, default=str)
    return Response(content, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def _headers(error: MdmError, status: int) -> Mapping[str, str]:
    if status == 401:
        return {"WWW-Authenticate": _API_KEY, **error.details.get("headers", {})}
    if isinstance(error, RateLimited):
        return {"Retry-After": str(error.retry_after_s)}
    if status == 503:
        return {"Retry-After": str(RETRY_AFTER_S)}
    if status == 405:
        return {"Allow": ", ".join(error.details.get("allow", ()))}
    return {}


def as_mdm_error(error: Exception, *, trace_id: str) -> MdmError:
    """Return *error* as one of ours; what is none of ours is logged with its traceback."""
    if isinstance(error, MdmError):
        return error
    if isinstance(error, HTTPException) and error.status_code in _HTTP_CODES:
        code = _HTTP_CODES[error.status_code]
        return MdmError(CATALOGUE[code].title.lower(), code=code)
    _LOG.error("unexpected error", exc_info=error, extra={"traceId": trace_id})
    return MdmError("internal error", code="INTERNAL")


def no_such_path() -> NotFound:
    return NotFound(
        "there is nothing at this path", hint="/swagger/v1/swagger.json lists all paths"
    )
