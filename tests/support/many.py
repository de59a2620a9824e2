"""Repositories of any number of entities that are alike: for what must not grow with them."""

from __future__ import annotations

import json
from typing import Any

from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree

_PROJECT = {
    "name": "lab",
    "apiVersion": "mdm-gitops/v1",
    "domains": [{"name": "lab"}],
    "policy": {"maxRemovedEntities": 1000, "maxRemovedPercent": 100},
}


def many(count: int, **changed: dict[str, Any]) -> Definitions:
    """Return *count* entities ``e0``, ``e1``, ...; *changed* gives some of them other members."""
    return read_tree(files_of_many(count, **changed))


def files_of_many(count: int, **changed: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of ``many``, by their paths."""
    files = {"mdm.yaml": json.dumps(_PROJECT).encode()}
    for number in range(count):
        entity = {**_entity(number), **changed.get(f"e{number}", {})}
        files[f"entities/e{number}.yaml"] = json.dumps(entity).encode()
    return files


def _entity(number: int) -> dict[str, Any]:
    return {
        "name": f"e{number}",
        "domain": "lab",
        "historyEnabled": True,
        "keyColumns": ["code"],
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False},
            {"name": "note", "dataType": "string", "pattern": "[;'%]*", "default": "';%'"},
            {"name": "up", "dataType": "string", "reference": {"entity": f"e{number // 2}"}},
        ],
    }
