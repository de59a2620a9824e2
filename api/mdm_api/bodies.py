"""Request bodies: bounded, and JSON read strictly.

Refused: more bytes than allowed, text that is not UTF-8, NaN and infinities, repeated keys, numbers
and nesting beyond reason, characters that PostgreSQL cannot store.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.source.limits import MAX_DEPTH, MAX_INTEGER_DIGITS, MAX_NUMBER_EXPONENT

if TYPE_CHECKING:
    from mdm_api.call import Call

_YAML_TYPES: Final = ("application/yaml", "text/yaml", "text/x-yaml", "application/x-yaml")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        MdmError: it has more than *max_bytes* (413).
    """
    declared = request.headers.get("Content-Length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def media_type(request: Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


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
        value = _DECODER.decode(text)
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        message = error.msg[:1].lower() + error.msg[1:]
        raise InputError(f"the body is not valid JSON: {message}", place=place) from None
    _check_text(value)
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the body has member {twice[:60]!r} twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise InputError(f"a number of the body has more than {MAX_INTEGER_DIGITS} digits")
    return int(digits)


def _fraction(text: str) -> Decimal:
    number = Decimal(text) if len(text) <= 2 * MAX_NUMBER_EXPONENT else Decimal("Infinity")
    if not number.is_finite() or abs(int(number.as_tuple().exponent)) > MAX_NUMBER_EXPONENT:
        raise InputError(f"number {text[:40]} of the body is out of all proportion")
    return number


def _constant(word: str) -> Any:
    raise InputError(f"{word} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)


def _check_text(value: Any) -> None:
    match value:
        case str():
            if "\x00" in value:
                raise InputError("a text of the body holds a NUL character")
            if any("\ud800" <= sign <= "\udfff" for sign in value):
                raise InputError("a text of the body holds half of a surrogate pair")
        case dict():
            for name, inner in value.items():
                _check_text(name)
                _check_text(inner)
        case list():
            for inner in value:
                _check_text(inner)
