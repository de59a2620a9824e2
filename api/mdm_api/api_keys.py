"""``/api/v1/api-keys``: make, list and revoke the keys of programs. For a Global Admin."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.access import PrincipalKind
from mdm_gitops.access.key_admin import ApiKey, create_key, list_keys, revoke_key
from mdm_gitops.errors import InputError
from mdm_gitops.model import DataType, NotOfType, coerce
from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.connect import borrow_checked

Document = dict[str, Any]
_MEMBERS: Final = ("name", "isGlobalAdmin", "expiresUtc")


async def list_api_keys(call: Call) -> Response:
    found = await call.services.with_connection(partial(list_keys, schemas=call.services.schemas))
    return json_response({"items": [_document(call, key) for key in found]})


async def create_api_key(call: Call) -> Response:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    given = bodies.load_object(await call.body(), known=_MEMBERS)
    services = call.services
    async with borrow_checked(services.pool) as conn:
        key, secret = await create_key(
            conn,
            _name(given),
            schemas=services.schemas,
            actor=call.principal.actor,
            now=services.now(),
            is_global_admin=_is_admin(given),
            expires_at=_expiry(given),
        )
    return json_response({**_document(call, key), "key": secret}, status=201)


async def revoke_api_key(call: Call) -> Response:
    services = call.services
    async with borrow_checked(services.pool) as conn:
        await revoke_key(
            conn,
            call.path("name"),
            schemas=services.schemas,
            actor=call.principal.actor,
            now=services.now(),
            # Whoever is a Global Admin without a key can come in again and make one.
            has_other_admins=call.principal.kind is not PrincipalKind.APIKEY,
        )
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


def _name(given: Document) -> str:
    name = given.get("name")
    if not isinstance(name, str):
        raise InputError("name must be a text", parameter="name")
    return name


def _is_admin(given: Document) -> bool:
    is_admin = given.get("isGlobalAdmin")
    if not isinstance(is_admin, bool | None):
        raise InputError("isGlobalAdmin must be true or false", parameter="isGlobalAdmin")
    return bool(is_admin)


def _expiry(given: Document) -> datetime | None:
    try:
        expiry: datetime | None = coerce(DataType.DATETIME, given.get("expiresUtc"))
    except NotOfType as error:
        raise InputError(f"expiresUtc {error}", parameter="expiresUtc") from None
    return expiry


def _document(call: Call, key: ApiKey) -> Document:
    return {
        "name": key.name,
        "isGlobalAdmin": key.is_global_admin,
        "state": _state(key, call.services.now()),
        "createdUtc": to_json_value(key.created_at),
        "createdBy": key.created_by,
        "expiresUtc": to_json_value(key.expires_at),
        "revokedUtc": to_json_value(key.revoked_at),
        "lastUsedUtc": to_json_value(key.last_used_at),
    }


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"


operations = (
    Operation(
        method="GET",
        path="/api/v1/api-keys",
        handler=list_api_keys,
        summary="List API keys",
        tag="Access",
        access=Access.GLOBAL_ADMIN,
        description="By name, with those that were revoked or have expired. The last use is told to"
        " the minute, some seconds late.",
        answers={200: Answer(description="They.", schema=schemas.ref("ApiKeys"))},
    ),
    Operation(
        method="POST",
        path="/api/v1/api-keys",
        handler=create_api_key,
        summary="Create an API key",
        tag="Access",
        access=Access.GLOBAL_ADMIN,
        description="The key is in this answer and nowhere else. What it may do is given to"
        " `apikey:<name>` in permissions.yaml, or all with `isGlobalAdmin`. The name of a revoked or"
        " expired key may be taken again, and its rights come with it.",
        body=Body(
            description="What to create. Only `name` is needed.",
            schemas={JSON: schemas.ref("NewApiKey")},
        ),
        answers={201: Answer(description="The key.", schema=schemas.ref("CreatedApiKey"))},
        errors=("REQUEST_INVALID", "API_KEY_EXISTS", "BODY_TOO_LARGE", "MEDIA_TYPE_UNSUPPORTED"),
    ),
    Operation(
        method="DELETE",
        path="/api/v1/api-keys/{name}",
        handler=revoke_api_key,
        summary="Revoke an API key",
        tag="Access",
        access=Access.GLOBAL_ADMIN,
        description="From the next request on, on every server, the key is not valid. The last key"
        " of a Global Admin is not revoked by a key (409 `LAST_ADMIN_KEY`): make another one first,"
        " or sign in as a Global Admin.",
        path_parameters={"name": "Name of the key, percent-encoded."},
        answers={204: Answer(description="It is revoked.")},
        errors=("API_KEY_NOT_FOUND", "LAST_ADMIN_KEY"),
    ),
)
