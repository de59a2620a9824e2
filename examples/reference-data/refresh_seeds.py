"""Write ``seed/*.json`` anew from the installed ``pycountry`` package (``pip install pycountry``).

Run by hand when a new release is out, and review the difference: each row is one line. It only
copies and sorts. It invents nothing, and stops when a parent code does not resolve.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

Row = dict[str, str]

SEED_FOLDER = Path(__file__).parent / "seed"

# entity: (file of the package, its top-level key, {column here: field there})
SOURCES: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "country": (
        "iso3166-1.json",
        "3166-1",
        {
            "code": "alpha_2",
            "alpha_3": "alpha_3",
            "numeric_code": "numeric",
            "name": "name",
            "official_name": "official_name",
            "common_name": "common_name",
            "flag": "flag",
        },
    ),
    "subdivision": (
        "iso3166-2.json",
        "3166-2",
        {
            "code": "code",
            "country": "country",
            "name": "name",
            "type": "type",
            "parent": "parent",
        },
    ),
    "currency": (
        "iso4217.json",
        "4217",
        {"code": "alpha_3", "numeric_code": "numeric", "name": "name"},
    ),
    "language": (
        "iso639-3.json",
        "639-3",
        {
            "code": "alpha_3",
            "alpha_2": "alpha_2",
            "bibliographic": "bibliographic",
            "name": "name",
            "inverted_name": "inverted_name",
            "common_name": "common_name",
            "scope": "scope",
            "type": "type",
        },
    ),
}


def main() -> int:
    try:
        databases = files("pycountry") / "databases"
    except ModuleNotFoundError:
        sys.stderr.write("pycountry is not installed\nhint: pip install pycountry\n")
        return 1
    for entity, (file_name, key, fields) in SOURCES.items():
        source: list[Row] = json.loads((databases / file_name).read_text(encoding="utf-8"))[key]
        if entity == "subdivision":
            source = with_country_and_parent(source)
        rows = [
            {column: row[field] for column, field in fields.items() if field in row}
            for row in source
        ]
        rows.sort(key=lambda row: row["code"])
        (SEED_FOLDER / f"{entity}.json").write_text(as_lines(rows), encoding="utf-8", newline="\n")
        sys.stderr.write(f"{entity}: {len(rows)} rows\n")
    return 0


def with_country_and_parent(rows: list[Row]) -> list[Row]:
    """Add the country, and write each parent in full: some releases leave out its country."""
    codes = {row["code"] for row in rows}
    return [_completed(row, codes) for row in rows]


def _completed(row: Row, codes: set[str]) -> Row:
    country = row["code"].partition("-")[0]
    completed = row | {"country": country}
    if "parent" in row:
        parent = row["parent"]
        completed["parent"] = parent if parent in codes else f"{country}-{parent}"
        if completed["parent"] not in codes:
            raise SystemExit(f"{row['code']}: parent {parent!r} is not in the list")
    return completed


def as_lines(rows: Iterable[Row]) -> str:
    """Return a JSON array with one row per line, so that Git shows a change row by row."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    raise SystemExit(main())
