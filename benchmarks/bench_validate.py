"""How long ``validate`` takes, as a multiple of only parsing the same files with the C loader.

Run: python benchmarks/bench_validate.py [entities] [columns]. Target: at most 2.0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from mdm_gitops.source import read_folder

ROUNDS = 5
PROJECT = "name: bench\napiVersion: mdm-gitops/v1\ndomains:\n  - name: bench\n"
HEAD = """\
# yaml-language-server: $schema=../schemas/entity.json
name: entity_{number}
displayName: Entity {number}
domain: bench
description: One of many
historyEnabled: true
keyColumns: [column_0]
columns:
"""
COLUMN = """\
  - name: column_{number}
    displayName: Column {number}
    dataType: string
    nullable: {nullable}
    maxLength: 100
    classification: internal
"""
RICH = """\
    pattern: "[A-Z0-9]{1,20}"
    default: A1
"""
REFERENCE = """\
    reference: {{entity: entity_{target}}}
"""


def main() -> None:
    entities, columns = (int(text) for text in [*sys.argv[1:], "1000", "15"][:2])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write(root, entities, columns)
        texts = [file.read_bytes() for file in root.rglob("*.yaml")]
        parse = _best(lambda: [yaml.load(text, Loader=yaml.CSafeLoader) for text in texts])
        validate = _best(lambda: read_folder(root))
    print(f"{entities} entities x {columns} columns")
    print(f"parse    {parse * 1000:8.1f} ms")
    print(f"validate {validate * 1000:8.1f} ms")
    print(f"ratio    {validate / parse:8.2f}")


def _write(root: Path, entities: int, columns: int) -> None:
    (root / "entities").mkdir()
    (root / "mdm.yaml").write_text(PROJECT)
    for number in range(entities):
        text = HEAD.format(number=number)
        for index in range(columns):
            text += COLUMN.format(number=index, nullable=str(index > 0).lower())
            text += RICH if index == 1 else ""
            text += REFERENCE.format(target=number // 2) if index == 2 else ""
        (root / "entities" / f"entity_{number}.yaml").write_text(text)


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
