"""Moments in query parameters: ``fromUtc=2026-04-28T10:12:45Z``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from mdm_api.operations import Parameter
from mdm_gitops.errors import InputError
from mdm_gitops.model import DataType, NotOfType, coerce

_HINT: Final = "write it like 2026-04-28T10:12:45Z, with a + as %2B"

SINCE: Final = Parameter(
    name="fromUtc",
    description="Only what happened at this moment (ISO 8601, UTC) or later.",
    example="2026-04-28T00:00:00Z",
)
UNTIL: Final = Parameter(
    name="toUtc",
    description="Only what happened before this moment (ISO 8601, UTC).",
    example="2026-04-29T00:00:00Z",
)


def moment(given: Mapping[str, Any], parameter: Parameter) -> datetime | None:
    """Return the moment that was given for *parameter*; one without an offset is in UTC.

    Raises:
        InputError: it is none.
    """
    text = given[parameter.name] or None
    try:
        found: datetime | None = coerce(DataType.DATETIME, text)
    except NotOfType as error:
        raise InputError(
            f"{parameter.name} {error}", hint=_HINT, parameter=parameter.name
        ) from None
    return found
