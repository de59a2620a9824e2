"""Errors the toolkit raises on purpose, and the one catalogue of their codes.

MdmError
├── DefinitionError      definition files are wrong; carries every finding with file:line:column
├── FilterError          a filter expression is wrong; carries the position
├── SettingsError        a setting is unknown or has a wrong value
├── PlanRefused          the plan holds something that was not allowed; nothing was changed
├── PlanStale            definitions or warehouse moved since the plan was made
├── WarehouseLocked      somebody else is applying, or a table stayed locked
├── PartlyApplied        some steps ran, one did not; the next run goes on from there
├── SourceError          the repository of definitions cannot be reached, or what it says not taken
├── WarehouseError       the warehouse cannot be reached or is not usable
├── NotFound             no such entity, row or plan
├── Conflict             the request does not fit the present state
├── InputError           a request or a command has a wrong value
├── RowRefused           a row breaks rules; carries every reason with its column
├── AuthRequired         no usable credential
├── AccessDenied         a credential without the right
├── SignInFailed         a sign-in at the identity provider did not end well
└── ProviderUnavailable  the identity provider does not answer, or not as it should

Anything else that escapes is a bug. ``CATALOGUE`` is the contract: a code is never renamed and
never changes its meaning; the docs page and the problem documents are made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a code means to a program: its HTTP status, and the exit code of the command line."""

    title: str
    status: int
    exit_code: int = 1


CATALOGUE: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "DEFINITION_INVALID": Kind(title="Definition is not valid", status=422),
        "FILTER_INVALID": Kind(title="Filter is not valid", status=400),
        "SETTING_INVALID": Kind(title="Setting is not valid", status=500),
        "PLAN_REFUSED": Kind(title="Plan was refused", status=409, exit_code=3),
        "PLAN_STALE": Kind(title="Plan is out of date", status=409, exit_code=4),
        "WAREHOUSE_LOCKED": Kind(title="Warehouse is busy", status=503, exit_code=5),
        "PARTLY_APPLIED": Kind(title="Plan was applied in part", status=500, exit_code=6),
        "WAREHOUSE_UNAVAILABLE": Kind(title="Warehouse cannot be reached", status=503),
        "WAREHOUSE_FULL": Kind(title="Disk of the warehouse is full", status=503),
        "WAREHOUSE_UNUSABLE": Kind(title="Warehouse cannot be used", status=500),
        "PLAN_NOT_FOUND": Kind(title="No such plan", status=404),
        "SOURCE_UNAVAILABLE": Kind(title="Repository cannot be reached", status=503),
        "SOURCE_NOT_VERIFIED": Kind(title="Commit is not signed as required", status=409),
        "SOURCE_REWOUND": Kind(title="History was rewritten", status=409),
        "DEFINITIONS_IN_GIT": Kind(title="Definitions are read-only here", status=409),
        "DEFINITIONS_EDITED": Kind(title="Definitions are being edited", status=409),
        "PUSH_REFUSED": Kind(title="Remote does not take the push", status=409),
        "REVERT_CONFLICT": Kind(
            title="Commit cannot be taken back by itself", status=409, exit_code=3
        ),
        "DEFINITION_CHANGED": Kind(title="Definition has changed", status=412),
        "ENTITY_EXISTS": Kind(title="Entity exists", status=409),
        "COMMON_ENTITY_NOT_FOUND": Kind(title="No such common entity", status=404),
        "COMMON_ENTITY_CONFLICT": Kind(title="Newer version changes the same", status=409),
        "PACKAGE_UNREADABLE": Kind(title="Package cannot be read", status=400),
        "PACKAGE_UNSAFE": Kind(title="Package is refused", status=400),
        "PACKAGE_TOO_LARGE": Kind(title="Package is too large", status=413),
        "PACKAGE_MANIFEST_INVALID": Kind(title="Manifest is not valid", status=422),
        "PACKAGE_CHECKSUM": Kind(title="Package is not as it was exported", status=422),
        "PACKAGE_CONFLICT": Kind(title="Package differs from what is there", status=409),
        "ENTITY_NOT_FOUND": Kind(title="No such entity", status=404),
        "ENTITY_NOT_DEPLOYED": Kind(title="Entity is not deployed", status=409),
        "ROW_NOT_FOUND": Kind(title="No such row", status=404),
        "ENTITY_VALIDATION_REQUIRED_FIELD": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_TYPE": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_PATTERN": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_ALLOWED_VALUE": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_RANGE": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_LENGTH": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_REFERENCE": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_UNKNOWN_COLUMN": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_SYSTEM_COLUMN": Kind(title="Validation failed", status=400),
        "ENTITY_VALIDATION_UNIQUE": Kind(title="Value is taken", status=409),
        "ROW_KEY_DELETED": Kind(title="Key belongs to a deleted row", status=409),
        "ROW_VERSION_CONFLICT": Kind(title="Row has changed", status=412),
        "IF_MATCH_REQUIRED": Kind(title="If-Match is required", status=428),
        "ROW_REFERENCED": Kind(title="Row is referred to", status=409),
        "ROW_DELETED": Kind(title="Row is deleted", status=409),
        "ROW_NOT_DELETED": Kind(title="Row is not deleted", status=409),
        "ROW_MERGED": Kind(title="Row was merged into another", status=409),
        "ROW_PENDING": Kind(title="Row has a change that is pending", status=409),
        "MERGE_NOT_FOUND": Kind(title="No such merge", status=404),
        "MERGE_NOT_PENDING": Kind(title="Merge does not wait for approval", status=409),
        "MERGE_NOT_STANDING": Kind(title="Merge cannot be undone", status=409),
        "MERGE_CHANGED_SINCE": Kind(title="Changed since the merge", status=409),
        "MERGE_REFERENCE_NO_VALUE": Kind(title="Survivor has no value to refer to", status=409),
        "MERGE_LINK_REFUSED": Kind(title="Reference cannot be relinked", status=409),
        "APPROVAL_SAME_AUTHOR": Kind(title="Own changes need another approver", status=403),
        "APPROVAL_STALE": Kind(title="Proposal is out of date", status=409),
        "APPROVAL_REFERENCE_PENDING": Kind(title="Referenced row is pending", status=409),
        "APPROVAL_NOT_REQUIRED": Kind(title="Entity needs no approval", status=409),
        "PENDING_NOT_FOUND": Kind(title="No such proposal", status=404),
        "HISTORY_NOT_ENABLED": Kind(title="Entity keeps no history", status=409),
        "VERSION_NOT_FOUND": Kind(title="No such version", status=404),
        "IMPORT_UNREADABLE": Kind(title="Import cannot be read", status=400),
        "BULK_ACTION_STALE": Kind(title="Rows are not as they were previewed", status=409),
        "IDEMPOTENCY_CONFLICT": Kind(title="Key was used for another request", status=422),
        "IDEMPOTENCY_IN_FLIGHT": Kind(title="Same request is under way", status=409),
        "CHANGES_EXPIRED": Kind(title="Changes have expired", status=410),
        "TIER_REQUIRED": Kind(title="Tier does not include this", status=403),
        "SIMILARITY_OFF": Kind(title="Rows of the entity are not compared", status=409),
        "DUPLICATE_SCAN_RUNNING": Kind(title="A scan for duplicates is running", status=409),
        "DUPLICATE_SCAN_TOO_LARGE": Kind(title="Too many rows to compare", status=409),
        "DUPLICATE_SCAN_NOT_FOUND": Kind(title="No such scan for duplicates", status=404),
        "SAVED_FILTER_NOT_FOUND": Kind(title="No such saved filter", status=404),
        "SAVED_FILTER_LIMIT": Kind(title="Too many saved filters", status=409),
        "NOT_FOUND": Kind(title="Not found", status=404),
        "METHOD_NOT_ALLOWED": Kind(title="Method not allowed", status=405),
        "CONFIRMATION_REQUIRED": Kind(title="Confirmation required", status=400),
        "REQUEST_INVALID": Kind(title="Request is not valid", status=400),
        "BODY_TOO_LARGE": Kind(title="Body is too large", status=413),
        "MEDIA_TYPE_UNSUPPORTED": Kind(title="Media type is not supported", status=415),
        "AUTH_REQUIRED": Kind(title="Sign-in required", status=401),
        "ACCESS_DENIED": Kind(title="Access denied", status=403),
        "SIGN_IN_FAILED": Kind(title="Sign-in failed", status=400),
        "IDENTITY_PROVIDER_UNAVAILABLE": Kind(
            title="Identity provider cannot be asked", status=503
        ),
        "API_KEY_NOT_FOUND": Kind(title="No such API key", status=404),
        "API_KEY_EXISTS": Kind(title="API key exists", status=409),
        "LAST_ADMIN_KEY": Kind(title="Last way in for an admin", status=409),
        "COLUMN_RESTRICTED": Kind(title="Column is restricted", status=403),
        "WEBHOOK_EXISTS": Kind(title="Webhook exists", status=409),
        "WEBHOOK_SECRET_ELSEWHERE": Kind(title="Secret is kept elsewhere", status=409),
        "MDM_RATE_LIMIT": Kind(title="Too many requests", status=429),
        "SERVER_UNREACHABLE": Kind(title="Server cannot be reached", status=503),
        "INTERRUPTED": Kind(title="Stopped before the end", status=503),
        "QUERY_TIMEOUT": Kind(title="Query took too long", status=503),
        "INTERNAL": Kind(title="Internal error", status=500),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file; *line* and *column* count from 1, 0 where there is none."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.path
        return (
            f"{self.path}:{self.line}:{self.column}" if self.column else f"{self.path}:{self.line}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong in a definition file.

    *rule* is a short stable word of its own (``unknown-key``, ``duplicate-name``, ...), *pointer*
    the place inside the document as a JSON Pointer (RFC 6901).
    """

    rule: str
    message: str
    location: Location
    pointer: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


class MdmError(Exception):
    """Base class. ``str(error)`` is one sentence a user can act on, without a final period."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, hint: str = "", code: str = "", **details: Any) -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details
        self.kind_code = code or type(self).code

    @property
    def kind(self) -> Kind:
        return CATALOGUE[self.kind_code]


class DefinitionError(MdmError):
    """Definition files are wrong. *findings* holds all of them, in file order."""

    code = "DEFINITION_INVALID"

    def __init__(self, findings: Iterable[Finding], *, hint: str = "") -> None:
        self.findings = tuple(sorted(findings, key=lambda finding: finding.location))
        first = str(self.findings[0]) if self.findings else "definitions are not valid"
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        super().__init__(
            first + more, hint=hint or (self.findings[0].hint if self.findings else "")
        )


class FilterError(MdmError):
    """A filter is wrong. *position* counts characters from 0, *expected* says what fits there."""

    code = "FILTER_INVALID"

    def __init__(self, message: str, *, position: int, expected: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint, position=position, expected=expected)
        self.position = position
        self.expected = expected


class SettingsError(MdmError):
    code = "SETTING_INVALID"


class PlanRefused(MdmError):
    """The plan holds something that was not allowed. Nothing was changed."""

    code = "PLAN_REFUSED"


class PlanStale(MdmError):
    """Definitions or warehouse moved since the plan was made. Nothing was changed."""

    code = "PLAN_STALE"


class WarehouseLocked(MdmError):
    """Somebody else is applying, or a table stayed locked through all retries."""

    code = "WAREHOUSE_LOCKED"


class PartlyApplied(MdmError):
    """Some steps ran, one did not. Nothing is lost; the next apply goes on from there."""

    code = "PARTLY_APPLIED"


class SourceError(MdmError):
    """The repository of definitions cannot be reached, or what it says must not be taken."""

    code = "SOURCE_UNAVAILABLE"


class WarehouseError(MdmError):
    code = "WAREHOUSE_UNAVAILABLE"


class NotFound(MdmError):
    code = "NOT_FOUND"


class Conflict(MdmError):
    """The request does not fit the present state; the caller gives the *code*."""

    code = "PLAN_REFUSED"


class InputError(MdmError):
    code = "REQUEST_INVALID"


class RowRefused(MdmError):
    """A row breaks rules. *reasons* are objects with column, code and message; the first one's code
    is the error's."""

    code = "ENTITY_VALIDATION_TYPE"

    def __init__(
        self, reasons: Iterable[Mapping[str, Any]], *, hint: str = "", **details: Any
    ) -> None:
        self.reasons = tuple(reasons)
        first = self.reasons[0]
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        super().__init__(
            f"{first['message']}{more}",
            hint=hint,
            code=first["code"],
            **details,
            errors=list(self.reasons),
        )


class AuthRequired(MdmError):
    code = "AUTH_REQUIRED"


class AccessDenied(MdmError):
    code = "ACCESS_DENIED"


class RateLimited(MdmError):
    """More requests than the client may make; *retry_after_s* are the seconds to wait."""

    code = "MDM_RATE_LIMIT"

    def __init__(self, said: str, *, retry_after_s: int, hint: str = "") -> None:
        super().__init__(said, hint=hint)
        self.retry_after_s = retry_after_s
        # The interface gives the body of this problem a member ``message``.
        self.details["message"] = f"too many requests, try again in {retry_after_s} s"


class SignInFailed(MdmError):
    code = "SIGN_IN_FAILED"


class ProviderUnavailable(MdmError):
    """The identity provider does not answer, or not as it should. The reason stays in the log."""

    code = "IDENTITY_PROVIDER_UNAVAILABLE"


@dataclass(slots=True)
class Findings:
    """Collects findings so that all errors of a repository are reported at once."""

    items: list[Finding] = field(default_factory=list)

    def add(
        self, rule: str, message: str, location: Location, *, pointer: str = "", hint: str = ""
    ) -> None:
        self.items.append(
            Finding(rule=rule, message=message, location=location, pointer=pointer, hint=hint)
        )

    def raise_if_any(self) -> None:
        if self.items:
            raise DefinitionError(self.items)
