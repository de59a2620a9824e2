"""What a long campaign found, kept for the committed figures.

``make soak`` names a file in ``MDM_CAMPAIGNS``; without it nothing is kept. Not a judge: a campaign
fails by its own assertions, and a failed one takes the place of the last that held.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass
class Record:
    """``cases`` is what the bound of about 3/N counts: kills, faults, events, requests."""

    cases: dict[str, int] = field(default_factory=dict)
    told: str = ""

    def __call__(self, *, told: str = "", **cases: int) -> None:
        """Note how many *cases* of each kind there were; *told* is a sentence beside them."""
        self.cases.update(cases)
        self.told = told or self.told


@contextmanager
def campaign(name: str) -> Iterator[Record]:
    """Keep what the block notes as campaign *name*, and whether it held."""
    record, started = Record(), time.monotonic()
    held = False
    try:
        yield record
        held = True
    finally:
        if file := os.environ.get("MDM_CAMPAIGNS"):
            _keep(Path(file), name, record, held=held, seconds=time.monotonic() - started)


def _keep(file: Path, name: str, record: Record, *, held: bool, seconds: float) -> None:
    entry = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "held": held,
        "seconds": round(seconds),
        "cases": record.cases,
        "told": record.told,
    }
    with _alone_in(file.parent):
        kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        kept[name] = entry
        ordered = {each: kept[each] for each in sorted(kept)}
        new = file.with_suffix(".new")
        new.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        new.replace(file)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
