"""The repository that is measured: many entities of many columns, each with approval and history."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COLUMNS: Final = 15
PROJECT: Final = "name: bench\napiVersion: mdm-gitops/v1\ndomains:\n  - name: bench\n"
_HEAD: Final = """\
# yaml-language-server: $schema=../schemas/entity.json
name: entity_{number}
displayName: Entity {number}
domain: bench
description: One of many
historyEnabled: true
approvalRequired: true
keyColumns: [column_0]
columns:
"""
_COLUMN: Final = """\
  - name: column_{number}
    displayName: Column {number}
    dataType: string
    nullable: {nullable}
    maxLength: {length}
    classification: internal
"""
_RICH: Final = """\
    pattern: "[A-Z0-9]{1,20}"
    default: A1
"""
_REFERENCE: Final = """\
    reference: {{entity: entity_{target}}}
"""


def write(root: Path, entities: int, columns: int = COLUMNS) -> Path:
    """Write the repository into *root*, which need not exist."""
    (root / "entities").mkdir(parents=True)
    (root / "mdm.yaml").write_text(PROJECT)
    for number in range(entities):
        path_of(root, number).write_text(text(number, columns))
    return root


def path_of(root: Path, number: int) -> Path:
    return root / "entities" / f"entity_{number}.yaml"


def text(number: int, columns: int = COLUMNS, *, length: int = 100) -> str:
    """Return the file of one entity; another *length* is a small change."""
    lines = _HEAD.format(number=number)
    for index in range(columns):
        nullable = str(index > 0).lower()
        lines += _COLUMN.format(number=index, nullable=nullable, length=length)
        lines += _RICH if index == 1 else ""
        lines += _REFERENCE.format(target=number // 2) if index == 2 else ""
    return lines
