"""``/data/ref-options`` and ``/data/column-suggestions``: what a form offers to choose from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call
from mdm_api.catalog import explain_absence
from mdm_api.operations import Access, Answer, Kind, Operation, Parameter
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.choices import (
    DEFAULT_TAKE,
    MAX_TAKE,
    MAX_TEXT_LENGTH,
    ChoiceRequest,
    column_suggestions,
    reference_options,
)
from mdm_gitops.errors import NotFound
from mdm_gitops.warehouse.connect import Connection


async def ref_options(call: Call) -> Response:
    return await _answer(call, reference_options)


async def suggest_values(call: Call) -> Response:
    return await _answer(call, column_suggestions)


async def _answer(call: Call, ask: Callable[..., Awaitable[bytes]]) -> Response:
    given = call.parameters
    request = ChoiceRequest(column=given["column"], q=given["q"] or "", take=given["take"])

    async def work(conn: Connection, asking: Asking) -> bytes:
        return await ask(conn, asking=asking, entity=call.path("name"), request=request)

    try:
        options = await call.reading(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    content = b'{"options":' + options + b"}"
    headers = {"Cache-Control": "no-store"}
    return Response(content, media_type="application/json", headers=headers)


def _parameters(column: str, q: str) -> tuple[Parameter, ...]:
    return (
        Parameter(name="column", description=column, required=True),
        Parameter(
            name="q",
            description=f"{q} Case and accents do not matter; up to {MAX_TEXT_LENGTH} characters.",
            example="zur",
        ),
        Parameter(
            name="take",
            description="How many to offer.",
            kind=Kind.NUMBER,
            default=DEFAULT_TAKE,
            minimum=1,
            maximum=MAX_TAKE,
        ),
    )


_COMMON: Final[dict[str, Any]] = {
    "method": "GET",
    "tag": "Data",
    "access": Access.SIGNED_IN,
    "checks_late": True,
    "path_parameters": {"name": "Name of the entity, in any case."},
    "answers": {200: Answer(description="What to choose from.", schema=schemas.ref("Choices"))},
    "errors": (
        "REQUEST_INVALID",
        "ENTITY_NOT_FOUND",
        "ENTITY_NOT_DEPLOYED",
        "ACCESS_DENIED",
        "COLUMN_RESTRICTED",
        "QUERY_TIMEOUT",
    ),
}
operations = (
    Operation(
        path="/api/v1/entities/{name}/data/ref-options",
        handler=ref_options,
        summary="Offer rows to refer to",
        description="The active rows of the entity that the column refers to, as far as the caller"
        " may see them: the key value to store, and the text of the target's `displayRefColumn`"
        " (the key where there is none, or where it is masked for the caller). With `q` the rows"
        " whose value or label is the text come first, then those that begin with it, then those"
        " that hold it, each by label and value; without it they come by value. No right to read"
        " the target is 403 `ACCESS_DENIED`.",
        parameters=_parameters("The reference column.", "Text to find in value or label."),
        **_COMMON,
    ),
    Operation(
        path="/api/v1/entities/{name}/data/column-suggestions",
        handler=suggest_values,
        summary="Suggest values of a column",
        description="The values that the rows have in the column, counting the active rows that the"
        " caller may see: the most frequent first, then by value. Only columns marked"
        " `autocomplete: true`; a restricted one only for callers with viewrestricted.",
        parameters=_parameters("A column marked `autocomplete`.", "Text to find in the values."),
        **_COMMON,
    ),
)
