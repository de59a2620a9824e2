"""``POST /api/v1/entities/{name}/similar``: rows like a given one."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.catalog import explain_absence
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_gitops.access import Tier
from mdm_gitops.data.asking import Asking, readable_entity
from mdm_gitops.data.rows import parse_row_id
from mdm_gitops.data.similar import (
    MAX_PER_KEY,
    MAX_WITHOUT_INDEX,
    Matches,
    SimilarRequest,
    similar_rows,
)
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.warehouse.connect import Connection

if TYPE_CHECKING:
    from mdm_gitops.data.match_score import ColumnScore

_MEMBERS: Final = ("id", "values", "top", "minScore")
_DIGITS: Final = 4


async def find_similar(call: Call) -> Response:
    if bodies.media_type(call.request) not in (JSON, ""):
        raise bodies.unsupported(call.request, JSON)
    given = bodies.load_object(await call.body(), known=_MEMBERS)
    request, row_id = _read(given)

    async def work(conn: Connection, asking: Asking) -> Matches:
        asked = request
        if row_id is not None:
            stored = readable_entity(asking, call.path("name"))
            asked = SimilarRequest(
                row_id=parse_row_id(row_id, stored.definition),
                top=request.top,
                min_score=request.min_score,
            )
        return await similar_rows(conn, asking=asking, entity=call.path("name"), request=asked)

    try:
        matches = await call.reading(work)
    except NotFound as error:
        raise await explain_absence(call, error) from None
    call.note_rows(len(matches.found))
    return json_response(
        {
            "matches": [
                {
                    "id": match.row_id,
                    "score": rounded(match.score),
                    "columns": column_scores(match.columns),
                    "row": orjson.Fragment(match.row),
                }
                for match in matches.found
            ],
            "rules": "derived" if matches.is_derived else "definition",
            "skippedKeys": matches.skipped_keys,
        }
    )


def column_scores(columns: tuple[ColumnScore, ...]) -> list[dict[str, Any]]:
    """Return what each column says to a score, as answers have it."""
    return [
        {
            "name": each.name,
            "matchMode": each.mode.value,
            "weight": each.weight,
            "score": None if each.score is None else rounded(each.score),
            **({"crossedWith": each.crossed_with} if each.crossed_with else {}),
        }
        for each in columns
    ]


def rounded(score: float) -> float:
    return round(score, _DIGITS)


def number_of(given: dict[str, Any], member: str) -> float | None:
    """Return the number of a body's *member*.

    Raises:
        InputError: it is none.
    """
    value = given.get(member)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise InputError(f"{member} must be a number", parameter=member)
    return float(value)


def _read(given: dict[str, Any]) -> tuple[SimilarRequest, str | None]:
    row_id, values, top = given.get("id"), given.get("values"), given.get("top")
    if (row_id is None) == (values is None):
        raise InputError("give either id or values")
    if row_id is not None and not isinstance(row_id, str):
        raise InputError("id must be a text", parameter="id")
    if values is not None and not isinstance(values, dict):
        raise InputError("values must be an object of columns", parameter="values")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int)):
        raise InputError("top must be a whole number", parameter="top")
    request = SimilarRequest(values=values, top=top, min_score=number_of(given, "minScore"))
    return request, row_id


operations = (
    Operation(
        method="POST",
        path="/api/v1/entities/{name}/similar",
        handler=find_similar,
        summary="Find rows like a given one",
        description="Active rows that the caller may see, the most alike first, each with its score and"
        " what each column says to it. What is compared are the columns of the entity's `similarity`;"
        " of an entity without it, columns that follow from its definition (`rules: derived`), and"
        f" all rows are compared while there are no more than {MAX_WITHOUT_INDEX:,}. Columns that are"
        " masked for the caller are not compared. A column in which either row has no value says"
        f" nothing. A key that more than {MAX_PER_KEY} visible rows share is not looked through;"
        " `skippedKeys` counts them.",
        tag="Duplicates",
        access=Access.SIGNED_IN,
        tier=Tier.PROFESSIONAL,
        checks_late=True,
        path_parameters={"name": "Name of the entity, in any case."},
        body=Body(
            description="A row or values to compare with; how many rows, and from which score.",
            schemas={JSON: schemas.ref("SimilarRequest")},
        ),
        answers={200: Answer(description="They.", schema=schemas.ref("SimilarRows"))},
        errors=(
            "REQUEST_INVALID",
            "ENTITY_NOT_FOUND",
            "ENTITY_NOT_DEPLOYED",
            "ROW_NOT_FOUND",
            "ACCESS_DENIED",
            "COLUMN_RESTRICTED",
            "SIMILARITY_OFF",
            "BODY_TOO_LARGE",
            "MEDIA_TYPE_UNSUPPORTED",
            "QUERY_TIMEOUT",
        ),
    ),
)
