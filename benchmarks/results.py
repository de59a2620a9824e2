"""What was measured last, kept in ``results.json``: one entry per part, so that parts are measured one by one.

An entry of a run at full size is not replaced by one of a smaller run unless that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from figures import Curve, Figure, Series, Told

FILE: Final = Path(__file__).with_name("results.json")
FULL, SMALL = "full", "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of one part."""

    part: str
    size: str  # FULL or SMALL
    date: str
    seconds: float  # that it took
    busy_before: float  # share of the processors that others used just before
    machine: str
    versions: Mapping[str, str]
    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...]


def read(file: Path = FILE) -> dict[str, Entry]:
    """Return the entries by the names of their parts."""
    if not file.exists():
        return {}
    return {name: _entry(name, held) for name, held in json.loads(file.read_text()).items()}


def keep(entry: Entry, *, replaces_full: bool = False, file: Path = FILE) -> bool:
    """Put *entry* in the place of the last one of its part; False when a full one stays instead."""
    entries = read(file)
    last = entries.get(entry.part)
    if last and last.size == FULL and entry.size != FULL and not replaces_full:
        return False
    entries[entry.part] = entry
    new = file.with_suffix(".new")
    held = {name: _held(entries[name]) for name in sorted(entries)}
    new.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")
    new.replace(file)
    return True


def to_json(told: Told) -> dict[str, Any]:
    """Return *told* without what every value has anyway."""
    held = asdict(told)
    return {name: value for name, value in held.items() if value not in (None, "", False)}


def from_json(held: Mapping[str, Any]) -> Told:
    if "case" in held:
        return Figure(**held)
    series = tuple(
        Series(name=each["name"], points=tuple((x, y) for x, y in each["points"]))
        for each in held["series"]
    )
    return Curve(**{**held, "series": series})


def _held(entry: Entry) -> dict[str, Any]:
    held = asdict(entry) | {
        "figures": [to_json(each) for each in entry.figures],
        "curves": [to_json(each) for each in entry.curves],
    }
    del held["part"]
    return held


def _entry(name: str, held: Mapping[str, Any]) -> Entry:
    told = [from_json(each) for each in (*held["figures"], *held["curves"])]
    return Entry(
        **{
            **held,
            "part": name,
            "figures": tuple(each for each in told if isinstance(each, Figure)),
            "curves": tuple(each for each in told if isinstance(each, Curve)),
        }
    )
