"""``/search/data`` and ``/search/entities``: find rows and definitions by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import Access, Answer, Kind, Operation, Parameter
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.search import (
    DEFAULT_TAKE,
    MAX_SKIP,
    MAX_TAKE,
    MAX_TEXT_LENGTH,
    MAX_WORDS,
    SearchAnswer,
    SearchRequest,
    search_rows,
)
from mdm_gitops.data.search_entities import FoundEntity, search_entities
from mdm_gitops.data.search_rank import Found, Part
from mdm_gitops.warehouse.connect import Connection


async def search_data(call: Call) -> Response:
    given = call.parameters
    request = SearchRequest(
        q=given["q"], entity=given["entity"] or "", skip=given["skip"], take=given["take"]
    )

    async def work(conn: Connection, asking: Asking) -> SearchAnswer:
        return await search_rows(conn, asking=asking, request=request)

    answer = await call.reading(work)
    call.note_rows(len(answer.found))
    document: dict[str, Any] = {
        "items": [_row(each) for each in answer.found],
        "total": answer.total,
        "incomplete": answer.incomplete,
        "notIndexed": list(answer.not_indexed),
        "notSearched": list(answer.not_searched),
    }
    return json_response({**document, "hint": answer.hint} if answer.hint else document)


def _row(found: Found) -> dict[str, Any]:
    candidate = found.candidate
    return {
        "entity": candidate.entity.name,
        "_sys_id": str(candidate.row_id),
        "label": found.label,
        "key": orjson.Fragment(candidate.key),
        "score": found.score,
        "highlights": [
            {"column": column, "parts": _parts(parts)} for column, parts in found.highlights
        ],
    }


def _parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [{"text": part.text, "match": part.match} for part in parts]


async def search_definitions(call: Call) -> Response:
    given = call.parameters
    answer = search_entities(call.asking, q=given["q"], skip=given["skip"], take=given["take"])
    return json_response({"items": [_entity(e) for e in answer.found], "total": answer.total})


def _entity(found: FoundEntity) -> dict[str, Any]:
    entity = found.entity
    return {
        "name": entity.name,
        "displayName": entity.display_name,
        "description": entity.description,
        "domain": entity.domain,
        "score": found.score,
        "highlights": [
            {
                "field": place.field,
                **({"column": place.column} if place.column else {}),
                "parts": _parts(parts),
            }
            for place, parts in found.highlights
        ],
    }


_Q: Final = Parameter(
    name="q",
    description="Words to look for; all must be there. A word is also found by its beginning, and by"
    " three letters or more inside it. Case, accents and punctuation do not matter."
    f" Up to {MAX_TEXT_LENGTH} characters and {MAX_WORDS} words.",
    required=True,
    example="zür gmbh",
)
_PAGE: Final = (
    Parameter(
        name="skip",
        description="How many to leave out at the beginning.",
        kind=Kind.NUMBER,
        default=0,
        minimum=0,
        maximum=MAX_SKIP,
    ),
    Parameter(
        name="take",
        description="How many to answer.",
        kind=Kind.NUMBER,
        default=DEFAULT_TAKE,
        minimum=1,
        maximum=MAX_TAKE,
    ),
)
operations = (
    Operation(
        method="GET",
        path="/api/v1/search/entities",
        handler=search_definitions,
        summary="Find entities",
        description="The deployed entities whose rows the caller may read and whose names, aliases or"
        " descriptions, or those of their columns, hold all words. Whole words come before"
        " beginnings, and these before what stands inside; names weigh more than descriptions.",
        tag="Search",
        access=Access.SIGNED_IN,
        parameters=(_Q, *_PAGE),
        answers={
            200: Answer(description="What was found.", schema=schemas.ref("SearchedEntities"))
        },
        errors=("REQUEST_INVALID",),
    ),
    Operation(
        method="GET",
        path="/api/v1/search/data",
        handler=search_data,
        summary="Find rows",
        description="Approved rows that are not deleted, that the caller may see, and whose text columns"
        " hold all words; restricted columns are searched for nobody. Whole words come before"
        " beginnings, and these before what stands inside; key columns and the"
        " `displayRefColumn` weigh twice. Entities with `search.enabled` are asked by their"
        " index, of others the first rows are looked through. Of an entity with many hits the"
        " best fitting are ranked; `incomplete` and `hint` tell when there may be more.",
        tag="Search",
        access=Access.SIGNED_IN,
        checks_late=True,
        parameters=(
            _Q,
            Parameter(
                name="entity",
                description="Name of the one entity to search, in any case. Without it all that the"
                " caller may read are searched, each not as deep.",
                example="customer",
            ),
            *_PAGE,
        ),
        answers={200: Answer(description="What was found.", schema=schemas.ref("SearchedRows"))},
        errors=("REQUEST_INVALID", "ENTITY_NOT_FOUND", "ACCESS_DENIED", "QUERY_TIMEOUT"),
    ),
)
