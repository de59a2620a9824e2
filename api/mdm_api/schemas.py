"""JSON Schemas of the answers and bodies, for the OpenAPI document: all of them by name.

Entity definitions come from the model's own schema; the rest is written out by resource in the
modules beside this one. What all resources share, errors and health, is here.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Final

from mdm_api.schema_parts import COUNT, TEXT, Schema, list_of, object_of, ref
from mdm_api.schemas_access import ACCESS
from mdm_api.schemas_definitions import DEFINITIONS
from mdm_api.schemas_deployment import DEPLOYMENT
from mdm_api.schemas_events import EVENTS
from mdm_api.schemas_matching import MATCHING
from mdm_api.schemas_merging import MERGING
from mdm_api.schemas_rows import ROWS
from mdm_api.schemas_search import SEARCH
from mdm_gitops.errors import CATALOGUE
from mdm_gitops.source.schemas import schema_text

__all__ = ["components", "ref"]


@cache
def components() -> dict[str, Schema]:
    """Return all named schemas."""
    return {
        **_entity_schemas(),
        **_SHARED,
        **ACCESS,
        **ROWS,
        **MERGING,
        **MATCHING,
        **SEARCH,
        **EVENTS,
        **DEFINITIONS,
        **DEPLOYMENT,
    }


def _entity_schemas() -> dict[str, Schema]:
    """Return the entity's schema and its parts, with references as a component has them."""
    text = schema_text("entity").replace('"#/$defs/', '"#/components/schemas/Entity.')
    document = json.loads(text)
    parts = document.pop("$defs", {})
    for key in ("$schema", "$id"):
        document.pop(key, None)
    return {"Entity": document, **{f"Entity.{name}": part for name, part in parts.items()}}


_SHARED: Final[dict[str, Schema]] = {
    "Problem": object_of(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "code": {"type": "string", "enum": list(CATALOGUE)},
            "traceId": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        {"hint": TEXT, "errors": list_of(ref("ProblemItem"))},
    ),
    "ProblemItem": object_of(
        {"code": TEXT, "message": TEXT},
        {
            "pointer": {**TEXT, "description": "JSON Pointer into the definition."},
            "line": COUNT,
            "file": TEXT,
            "hint": TEXT,
        },
    ),
    "Health": object_of({"status": TEXT}, {"version": TEXT, "entities": COUNT}),
}
