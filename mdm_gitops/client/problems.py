"""What a server refuses, as the error that it is: problem documents become ``ApiError``.

Of what was sent nothing is told here: neither headers nor bodies are in an error.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mdm_gitops.errors import CATALOGUE, MdmError

_BY_STATUS: Final = {
    400: "REQUEST_INVALID",
    401: "AUTH_REQUIRED",
    403: "ACCESS_DENIED",
    404: "NOT_FOUND",
    413: "BODY_TOO_LARGE",
    429: "MDM_RATE_LIMIT",
}


class ApiError(MdmError):
    """A server said no. ``kind_code`` is its code, or the nearest one that this version knows."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        hint: str = "",
        code: str = "",
        trace_id: str = "",
        errors: tuple[dict[str, Any], ...] = (),
    ) -> None:
        told: dict[str, Any] = {"traceId": trace_id} if trace_id else {}
        if errors:
            told["errors"] = list(errors)
        known = code if code in CATALOGUE else _BY_STATUS.get(status, "INTERNAL")
        super().__init__(message, hint=hint, code=known, **told)
        self.status = status
        self.server_code = code or known
        """The code as the server spelt it, also where this version does not know it."""
        self.trace_id = trace_id
        self.errors = errors


def problem_of(status: int, body: bytes) -> MdmError:
    """Return the error that the answer *body* tells, or as much of one as there is."""
    document = _document(body)
    if document is None:
        return ApiError(
            f"the server answered with status {status} and no problem document",
            hint="is this the address of a server of this program?",
            status=status,
            code=_BY_STATUS.get(status, "SERVER_UNREACHABLE"),
        )
    return ApiError(
        str(document["detail"]),
        hint=str(document.get("hint") or ""),
        status=status,
        code=str(document["code"]),
        trace_id=str(document.get("traceId") or ""),
        errors=_items(document.get("errors")),
    )


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    if isinstance(found, dict) and "code" in found and "detail" in found:
        return found
    return None


def _items(found: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(found, list):
        return ()
    return tuple(each for each in found if isinstance(each, dict))
