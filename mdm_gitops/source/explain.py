"""Why a document does not have the shape of its model, in words for its author.

The model has already refused the document; only then is it held against the JSON Schema, because
a schema knows all keys and values that would have been right, and reports every error at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError as SchemaError
from pydantic import ValidationError

from mdm_gitops.model.column_checks import shown
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.source.schemas import schema

_TYPES: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_LIMITS: Final = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be above {}",
    "exclusiveMaximum": "must be below {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
}


def explain(name: str, document: Any, refused: ValidationError) -> list[Problem]:
    """Return every difference between *document* and the schema *name*; never none."""
    if document is None:
        return [Problem(rule="empty-file", message="file is empty", pointer=())]
    errors = Draft202012Validator(schema(name)).iter_errors(document)
    problems = list(dict.fromkeys(_problems(_leaves(errors), document)))
    return problems or list(_from_model(refused))


def _leaves(errors: Iterable[SchemaError]) -> Iterator[SchemaError]:
    """Replace ``anyOf`` of a shape and null by what is wrong with the shape."""
    for error in errors:
        shape = [inner for inner in error.context or () if inner.schema_path[0] == 0]
        yield from _leaves(shape) if shape and error.validator == "anyOf" else [error]


def _problems(errors: Iterable[SchemaError], document: Any) -> Iterator[Problem]:
    for error in errors:
        at: Pointer = tuple(error.absolute_path)
        match error.validator:
            case "additionalProperties":
                yield from _unknown_keys(error, at, _name(at, document))
            case "required":
                yield from _missing_keys(error, at, _name(at, document))
            case "type":
                yield _wrong_type(error, at)
            case "enum" | "const":
                yield _not_listed(error, at)
            case "pattern":
                message = (
                    f"{_name(at)} {shown(error.instance)} does not match {error.validator_value}"
                )
                yield Problem(rule="wrong-form", message=message, pointer=at)
            case limit if limit in _LIMITS:
                message = f"{_name(at)} {_LIMITS[limit].format(error.validator_value)}"
                yield Problem(rule="out-of-range", message=message, pointer=at)
            case _:
                yield Problem(rule="wrong-shape", message=error.message[:200], pointer=at)


def _unknown_keys(error: SchemaError, at: Pointer, where: str) -> Iterator[Problem]:
    instance: Any = error.instance
    known = list(cast(Any, error.schema)["properties"])
    for key in instance:
        if key not in known:
            yield Problem(
                rule="unknown-key",
                message=f"unknown key {shown(key)} in {where}",
                pointer=(*at, key),
                on_key=True,
                hint=did_you_mean(key, (right for right in known if right not in instance)),
            )


def _missing_keys(error: SchemaError, at: Pointer, where: str) -> Iterator[Problem]:
    instance, needed = cast(Any, error.instance), cast(Any, error.validator_value)
    for key in needed:
        if key not in instance:
            message = f"key {key!r} is missing in {where}"
            yield Problem(rule="missing-key", message=message, pointer=at)


def _wrong_type(error: SchemaError, at: Pointer) -> Problem:
    wanted = cast(Any, error.validator_value)
    types = [wanted] if isinstance(wanted, str) else [kind for kind in wanted if kind != "null"]
    names = " or ".join(_TYPES[kind] for kind in types)
    return Problem(
        rule="wrong-type",
        message=f"{_name(at)} must be {names}, found {_found(error.instance)}",
        pointer=at,
        hint=_type_hint(types, error.instance),
    )


def _type_hint(types: list[str], found: Any) -> str:
    if types == ["boolean"] and isinstance(found, str):
        return "write true or false without quotes; yes, no, on and off are text"
    if types == ["string"] and isinstance(found, bool | int | float):
        return f'put it in quotes: "{shown(found).lower()}"'
    if types == ["array"] and isinstance(found, str | bool | int | float):
        return f"write a list: [{shown(found)}]"
    if types[0] in ("integer", "number") and isinstance(found, str):
        return "write the number without quotes"
    return ""


def _not_listed(error: SchemaError, at: Pointer) -> Problem:
    right = cast(Any, error.validator_value)
    rights = right if error.validator == "enum" else [right]
    return Problem(
        rule="unknown-value",
        message=f"{_name(at)} {shown(error.instance)} is not known",
        pointer=at,
        hint=did_you_mean(error.instance, map(str, rights)),
    )


def _from_model(refused: ValidationError) -> Iterator[Problem]:
    """What the schema lets pass but the model does not, for example 3.0 as a whole number."""
    for error in refused.errors(include_url=False, include_context=False):
        at = tuple(part for part in error["loc"] if part not in ("str", "int", "float", "bool"))
        reason = error["msg"][:1].lower() + error["msg"][1:]
        message = f"{_name(at)} {shown(error['input'])} is not right: {reason}"
        yield Problem(rule="wrong-shape", message=message, pointer=at)


def _name(at: Pointer, root: Any = None) -> str:
    """The innermost key of *at*; an item is called by its own name, else by its number."""
    if not at:
        return "the file"
    last = at[-1]
    if isinstance(last, str):
        return last
    item = root
    for step in at:
        item = cast(Any, item)[step] if isinstance(item, dict | list) else None
    own = item.get("name") if isinstance(item, dict) else None
    if isinstance(own, str) and isinstance(at[-2:][0], str):
        return f"{_singular(str(at[-2]))} {shown(own)}"
    return f"{_name(at[:-1])} item {last + 1}"


def _singular(key: str) -> str:
    return key.removesuffix("s")


def _found(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"text {shown(value)}"
        case bool():
            return shown(value).lower()
        case _:
            return f"number {shown(value)}"
