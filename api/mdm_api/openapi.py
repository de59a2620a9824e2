"""The OpenAPI 3.1 document, made from the table of operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mdm_api import schemas
from mdm_api.operations import Access, Answer, Operation, Parameter
from mdm_api.problems import MEDIA_TYPE
from mdm_gitops import __version__
from mdm_gitops.access import Tier
from mdm_gitops.errors import CATALOGUE

DESCRIPTION: Final = (
    "Master data: definitions, deployment and rows. Errors are problem documents (RFC 9457) with a"
    " `code` of docs/reference/errors.md. Unknown query parameters are refused."
)
_TAGS: Final = (
    "Entity definitions",
    "Deployment",
    "Data",
    "Saved filters",
    "Packages",
    "Audit and changes",
    "Access",
    "Signing in",
    "Health",
    "Documentation",
)
_SIGN_IN: Final = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "An access token of the identity provider, of a user or a service.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-mdm_session",
        "description": "The session of a browser that signed in at /login; `mdm_session` on a server"
        " without TLS.",
    },
}
_BASIC: Final = {
    "keyAsPassword": {
        "type": "http",
        "scheme": "basic",
        "description": "For browsers: any user name, and the API key as password.",
    }
}


def openapi_document(
    operations: Iterable[Operation], *, server_url: str | None = None
) -> dict[str, Any]:
    """Return the document that describes *operations*."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mdm-gitops",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": server_url or "/"}],
        "tags": [{"name": tag} for tag in _TAGS],
        "paths": paths,
        "components": {
            "securitySchemes": {**_SIGN_IN, **_BASIC},
            "schemas": schemas.components(),
        },
    }


def error_codes(operation: Operation) -> tuple[str, ...]:
    """Return the codes that *operation* may answer, with those that come from around it."""
    around = ["INTERNAL"]
    if operation.path.startswith("/api/"):
        around = ["MDM_RATE_LIMIT", *around]
    if operation.body is not None:
        around = ["BODY_TOO_LARGE", *around]
    if operation.access is not Access.PUBLIC or not operation.takes_any_query:
        around = ["REQUEST_INVALID", *around]  # a parameter nobody knows, or two credentials
    if operation.access is not Access.PUBLIC:
        around = ["AUTH_REQUIRED", "WAREHOUSE_UNAVAILABLE", *around]
    if operation.access is Access.GLOBAL_ADMIN:
        around = ["ACCESS_DENIED", *around]
    if operation.absent_below_tier:
        around = ["NOT_FOUND", *around]
    elif lowest_tier(operation) is not Tier.COMMUNITY:
        around = ["TIER_REQUIRED", *around]
    return tuple(dict.fromkeys((*operation.errors, *around)))


def lowest_tier(operation: Operation) -> Tier:
    """Return the lowest tier that has all of *operation*, its parameters included."""
    needed = (operation.tier, *(parameter.tier for parameter in operation.parameters))
    return max(needed, key=list(Tier).index)


def _operation(operation: Operation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *(_path_parameter(name, text) for name, text in operation.path_parameters.items()),
            *(_query_parameter(parameter) for parameter in operation.parameters),
        ],
        "responses": _responses(operation),
        "security": _security(operation),
    }
    if operation.description:
        document["description"] = operation.description
    if operation.tier is not Tier.COMMUNITY:
        document["x-tier"] = operation.tier.value
    if operation.body is not None:
        document["requestBody"] = {
            "description": operation.body.description,
            "required": operation.body.required,
            "content": {
                media_type: {"schema": schema}
                for media_type, schema in operation.body.schemas.items()
            },
        }
    return document


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    if operation.access is Access.PUBLIC:
        return []
    keys: list[dict[str, list[str]]] = [{name: []} for name in _SIGN_IN]
    return [*keys, {"keyAsPassword": []}] if operation.with_basic else keys


def _path_parameter(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    limits = {
        "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "default": parameter.default,
        "enum": list(parameter.choices) or None,
    }
    schema = {"type": parameter.kind.value, **{k: v for k, v in limits.items() if v is not None}}
    document: dict[str, Any] = {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": schema,
    }
    if parameter.required:
        document["required"] = True
    if parameter.example is not None:
        document["example"] = parameter.example
    if parameter.tier is not Tier.COMMUNITY:
        document["x-tier"] = parameter.tier.value
    return document


def _responses(operation: Operation) -> dict[str, Any]:
    answers = {str(status): _answer(answer) for status, answer in operation.answers.items()}
    codes: dict[int, list[str]] = {}
    for code in error_codes(operation):
        codes.setdefault(CATALOGUE[code].status, []).append(code)
    problems = {str(status): _problem(named) for status, named in sorted(codes.items())}
    return {**answers, **problems}


def _answer(answer: Answer) -> dict[str, Any]:
    document: dict[str, Any] = {"description": answer.description}
    if answer.schema is not None:
        content = {answer.media_type: answer.schema, **answer.others}
        document["content"] = {name: {"schema": schema} for name, schema in content.items()}
    if answer.headers:
        document["headers"] = _headers(answer.headers)
    return document


def _headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
    }


def _problem(codes: Iterable[str]) -> dict[str, Any]:
    titles = "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in codes)
    return {
        "description": titles,
        "content": {MEDIA_TYPE: {"schema": schemas.ref("Problem")}},
    }
