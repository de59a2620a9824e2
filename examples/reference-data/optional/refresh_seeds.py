"""Write ``seed/*.json`` of this folder anew.

    python refresh_seeds.py units FOLDER    a clone of github.com/datasets/unece-units-of-measure
    python refresh_seeds.py zones           the installed package ``tzdata`` (``pip install tzdata``)

Run by hand when there is something new, and review the difference: each row is one line. It only copies,
sorts and names; it invents nothing, and stops where a row does not fit.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path

Row = dict[str, str]

SEED_FOLDER = Path(__file__).parent / "seed"
UNITS_FILE = "data/units-of-measure.csv"
# Every other mark of the source says what a revision changed, and not whether the unit is in use.
STATUS: Mapping[str, str] = {"D": "deprecated", "X": "deleted"}
# Whole numbers that a spreadsheet has made fractions.
LEVELS: Mapping[str, str] = {"1.0": "1", "2.0": "2"}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["units", folder]:
            text = (Path(folder) / UNITS_FILE).read_text(encoding="utf-8")
            write("unit_of_measure", "code", units(csv.DictReader(text.splitlines(keepends=True))))
        case ["zones"]:
            data = files("tzdata")
            zone_info = data / "zoneinfo"
            write(
                "time_zone",
                "name",
                zones(
                    (data / "zones").read_text(encoding="utf-8").split(),
                    (zone_info / "zone.tab").read_text(encoding="utf-8"),
                    (zone_info / "tzdata.zi").read_text(encoding="utf-8"),
                ),
            )
        case _:
            sys.stderr.write(f"{__doc__}")
            return 64
    return 0


def units(source: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    """Yield the units; marks that stand for no value are left out."""
    for given in source:
        level = given["LevelAndCategory"].strip()
        row = {
            "code": given["CommonCode"],
            "name": given["Name"],
            "symbol": given["Symbol"],
            "status": STATUS.get(given["Status"].strip(), "active"),
            "level": LEVELS.get(level, level),
            "description": given["Description"],
            "conversion_factor": given["ConversionFactor"],
        }
        yield {column: " ".join(value.split()) for column, value in row.items() if value.strip()}


def zones(names: Iterable[str], table: str, rules: str) -> Iterator[Row]:
    """Yield the zones: *names* with what zone.tab and the links of tzdata.zi say of them."""
    places = dict(_places(table))
    links = dict(_links(rules))
    known = set(names)
    if stray := sorted({*places, *links, *links.values()} - known):
        raise SystemExit(f"{stray[0]!r} is not in the list of names")
    for name in known:
        row: Row = {"name": name, **places.get(name, {})}
        yield row | ({"alias_of": links[name]} if name in links else {})


def _places(table: str) -> Iterator[tuple[str, Row]]:
    for line in table.splitlines():
        if line and not line.startswith("#"):
            country, coordinates, name, *comment = line.split("\t")
            row = {"country": country, "coordinates": coordinates}
            yield name, row | ({"comment": comment[0]} if comment else {})


def _links(rules: str) -> Iterator[tuple[str, str]]:
    for line in rules.splitlines():
        if line.startswith("L "):
            _, target, name = line.split(" ")
            yield name, target


def write(entity: str, key: str, rows: Iterable[Row]) -> None:
    """Write a JSON array with one row per line, so that Git shows a change row by row."""
    ordered = sorted(rows, key=lambda row: row[key])
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in ordered)
    file = SEED_FOLDER / f"{entity}.json"
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    sys.stderr.write(f"{entity}: {len(ordered)} rows\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
