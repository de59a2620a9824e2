"""Request bodies: bounded, and JSON read strictly (``source.strict_json``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request

from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.source.limits import MAX_DEPTH
from mdm_gitops.source.strict_json import (
    DECODER,
    check_text,
    in_words,
    may_hold_what_cannot_be_stored,
)

if TYPE_CHECKING:
    from mdm_api.call import Call

_YAML_TYPES: Final = ("application/yaml", "text/yaml", "text/x-yaml", "application/x-yaml")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        MdmError: it has more than *max_bytes* (413).
    """
    declared = header(request, b"content-length")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def header(request: Request, name: bytes) -> str:
    """Return the first value of the header *name*, which is in lower case; "" where there is none."""
    for given, value in request.scope["headers"]:
        if given == name:
            return str(value, "latin-1")
    return ""


def media_type(request: Request) -> str:
    return header(request, b"content-type").partition(";")[0].strip().lower()


def unsupported(request: Request, *expected: str) -> MdmError:
    return MdmError(
        f"Content-Type {media_type(request)[:60]!r} is not read here",
        hint=f"send {' or '.join(expected)}",
        code="MEDIA_TYPE_UNSUPPORTED",
    )


async def yaml_text(call: Call) -> bytes:
    """Return the YAML of a body that is YAML, or ``{"yaml": "..."}``."""
    data = await call.body()
    if media_type(call.request) in _YAML_TYPES:
        return data
    if media_type(call.request) != "application/json":
        raise unsupported(call.request, "application/yaml", "application/json")
    text = load_object(data, known=("yaml",)).get("yaml")
    if not isinstance(text, str):
        raise InputError('the body must be {"yaml": "..."}')
    return text.encode()


def load_json(data: bytes) -> Any:
    """Return the value of *data*; fractions are ``Decimal``.

    Raises:
        InputError: it is not strict JSON.
    """
    try:
        text = data.decode("utf-8")
        if _depth_bound(text) > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise InputError(f"the body is nested deeper than {MAX_DEPTH}")
        value = DECODER.decode(text)
        if may_hold_what_cannot_be_stored(text):
            check_text(value)
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"the body is not valid JSON: {in_words(error)}", place=place) from None
    return value


def load_object(
    data: bytes, *, known: tuple[str, ...], may_be_empty: bool = False
) -> dict[str, Any]:
    """Return *data* as an object of *known* members.

    Raises:
        InputError: it is none, or has another member.
    """
    if may_be_empty and not data.strip():
        return {}
    value = load_json(data)
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object")
    unknown = [name for name in value if name not in known]
    if unknown:
        from mdm_gitops.model.suggest import did_you_mean

        raise InputError(
            f"the body has an unknown member {unknown[0][:60]!r}",
            hint=did_you_mean(unknown[0], known),
        )
    return value


def _too_large(max_bytes: int) -> MdmError:
    return MdmError(f"the body has more than {max_bytes:,} bytes", code="BODY_TOO_LARGE")


def _depth_bound(text: str) -> int:
    return text.count("[") + text.count("{")


def _depth(text: str) -> int:
    """Return how deep brackets outside of strings are nested, as far as it matters."""
    depth = deepest = 0
    in_text = escaped = False
    for sign in text:
        if in_text:
            in_text = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign == '"':
            in_text = True
        elif sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif sign in "]}":
            depth -= 1
    return deepest
