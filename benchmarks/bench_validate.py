"""How long ``validate`` takes, as a multiple of only parsing the same files with the C loader."""

from __future__ import annotations

import tempfile
from pathlib import Path

import corpus
import yaml
from figures import Figure, best_s

from mdm_gitops.source import read_folder


def measure(entities: int = 1_000) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        root = corpus.write(Path(folder) / "repository", entities)
        texts = [file.read_bytes() for file in root.rglob("*.yaml")]
        parse = best_s(lambda: [yaml.load(text, Loader=yaml.CSafeLoader) for text in texts])
        validate = best_s(lambda: read_folder(root))
    return [
        Figure(
            case=f"validate, {entities:,} entities x {corpus.COLUMNS} columns",
            value=validate / parse,
            unit="ratio",
            limit=2.0,
            note=f"{validate:.2f} s; the C loader alone {parse:.2f} s",
        )
    ]
