"""Entities in a line, and what checks say of them: what the tests of checks share."""

from __future__ import annotations

from typing import Any

from mdm_gitops.model import Entity
from mdm_gitops.model.known import Known
from mdm_gitops.source.documents import json_pointer

CODE = {"name": "code", "dataType": "string", "nullable": False}


def entity_of(*columns: dict[str, Any], **more: Any) -> Entity:
    return Entity.model_validate({"name": "e", "domain": "d", "columns": list(columns)} | more)


def found(problems: Any) -> list[tuple[str, str]]:
    return [(json_pointer(problem.pointer), problem.rule) for problem in problems]


def text_of(problems: Any) -> str:
    return "\n".join(f"{p.message} | {p.hint}" for p in problems)


A, B, J = (
    {"name": "a", "dataType": "string", "nullable": False},
    {"name": "b", "dataType": "int"},
    {"name": "j", "dataType": "json"},
)


def known(*entities: Entity) -> Known:
    return Known(entities={entity.folded: entity for entity in entities}, domains=("d", "other"))


KEYED = entity_of(
    CODE,
    {"name": "num", "dataType": "int", "unique": True},
    {"name": "free", "dataType": "int"},
    {"name": "alone", "dataType": "long"},
    {"name": "j", "dataType": "json"},
    name="target",
    keyColumns=["Code"],
    uniqueConstraints=[{"name": "u", "columns": ["alone"]}],
)
