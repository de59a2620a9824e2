"""JSON Schemas of what search answers."""

from __future__ import annotations

from typing import Final

from mdm_api.schema_parts import COUNT, FLAG, TEXT, Schema, list_of, object_of, ref

_PARTS: Final[Schema] = {
    **list_of(ref("SearchPart")),
    "description": "The value in pieces, in order. Of a long value only what is around the first place,"
    " with … where it was cut.",
}
_SCORE: Final[Schema] = {**COUNT, "description": "Compares the items of one answer, nothing else."}

SEARCH: Final[dict[str, Schema]] = {
    "SearchPart": object_of(
        {"text": TEXT, "match": {**FLAG, "description": "Whether this piece was looked for."}}
    ),
    "SearchedRow": object_of(
        {
            "entity": TEXT,
            "_sys_id": {"type": "string", "format": "uuid"},
            "label": {**TEXT, "description": "The displayRefColumn, or the key."},
            "key": {"type": "object", "description": "The values of the key columns."},
            "score": _SCORE,
            "highlights": list_of(object_of({"column": TEXT, "parts": _PARTS})),
        }
    ),
    "SearchedRows": object_of(
        {
            "items": list_of(ref("SearchedRow")),
            "total": {**COUNT, "description": "Rows found; at least these where incomplete."},
            "incomplete": {**FLAG, "description": "Whether there may be more, as the hint tells."},
            "notIndexed": {
                **list_of(TEXT),
                "description": "Entities that were looked through without an index.",
            },
            "notSearched": list_of(TEXT),
        },
        {"hint": TEXT},
    ),
    "SearchedEntity": object_of(
        {
            "name": TEXT,
            "displayName": {"anyOf": [TEXT, {"type": "null"}]},
            "description": {"anyOf": [TEXT, {"type": "null"}]},
            "domain": TEXT,
            "score": _SCORE,
            "highlights": list_of(
                object_of(
                    {
                        "field": {
                            **TEXT,
                            "enum": ["name", "displayName", "aliases", "description"],
                        },
                        "parts": _PARTS,
                    },
                    {"column": {**TEXT, "description": "The column whose text it is."}},
                )
            ),
        }
    ),
    "SearchedEntities": object_of({"items": list_of(ref("SearchedEntity")), "total": COUNT}),
}
