"""The entity of the larger benchmarks: twelve columns with all rules, and a plain table equal to it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

COUNTRIES: Final = 200
COLUMNS: Final = "code,name,country,city,kind,amount,pieces,active,opened,updated,token,note"
FILES: Final = {
    "mdm.yaml": "name: bench\napiVersion: mdm-gitops/v1\ndomains:\n  - name: bench\n",
    "entities/country.yaml": """\
name: country
domain: bench
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 4}
  - {name: name, dataType: string}
""",
    "entities/location.yaml": """\
name: location
domain: bench
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 12, pattern: "[A-Z][0-9]{7}"}
  - {name: name, dataType: string, nullable: false, maxLength: 100}
  - {name: country, dataType: string, nullable: false, reference: {entity: country}}
  - {name: city, dataType: string, maxLength: 80}
  - {name: kind, dataType: string, allowedValues: [port, rail, road, air]}
  - {name: amount, dataType: decimal, precision: 12, scale: 2, minValue: 0}
  - {name: pieces, dataType: int, minValue: 0, maxValue: 1000000}
  - {name: active, dataType: bool, nullable: false}
  - {name: opened, dataType: date}
  - {name: updated, dataType: datetime}
  - {name: token, dataType: guid}
  - {name: note, dataType: text}
""",
}
# The limit: the same bytes or rows without checks of ours, audit and history.
LIMIT_TABLE: Final = """
DROP TABLE IF EXISTS mdm_data.bench_limit;
CREATE TABLE mdm_data.bench_limit (
    code text NOT NULL CHECK (length(code) <= 12) CHECK (code ~ '^(?:[A-Z][0-9]{7})$'),
    name text NOT NULL CHECK (length(name) <= 100),
    country text NOT NULL REFERENCES mdm_data.country (code) DEFERRABLE INITIALLY IMMEDIATE,
    city text CHECK (length(city) <= 80),
    kind text CHECK (kind IN ('port', 'rail', 'road', 'air')),
    amount numeric(12,2) CHECK (amount >= 0),
    pieces integer CHECK (pieces >= 0 AND pieces <= 1000000),
    active boolean NOT NULL,
    opened date, updated timestamptz, token uuid, note text);
CREATE UNIQUE INDEX ON mdm_data.bench_limit (code);
CREATE INDEX ON mdm_data.bench_limit (country);
"""
_CITIES: Final = ("Zürich", "Genève", "São Paulo", "Łódź", "Bern", '"New ""York"""', '"Kraków, PL"')


def write_csv(file: Path, rows: int, *, bad: float = 0.0, changed: float = 0.0) -> None:
    """Write *rows*, always the same ones but for the shares that are *bad* or *changed*."""
    chance, odd = random.Random(1), random.Random(2)
    with file.open("w", encoding="utf-8") as out:
        out.write(COLUMNS + "\n")
        for number in range(rows):
            code = f"L{number:07}"
            if odd.random() < bad:
                code = code.lower()
            note = "changed" if odd.random() < changed else "" if number % 3 else "some words"
            out.write(
                f"{code},Name of location {number},C{chance.randrange(COUNTRIES)},"
                f"{chance.choice(_CITIES)},{chance.choice(('port', 'rail', 'road', 'air'))},"
                f"{chance.random() * 99_999:.2f},{chance.randrange(100_000)},"
                f"{chance.choice(('true', 'false'))},20{chance.randrange(10, 25)}-0"
                f"{chance.randrange(1, 10)}-1{chance.randrange(10)},2024-03-1{chance.randrange(10)}"
                f"T0{chance.randrange(10)}:00:0{chance.randrange(10)}Z,"
                f"{chance.getrandbits(32):08x}-0000-4000-8000-{number:012x},{note}\n"
            )


def countries() -> bytes:
    return json.dumps([{"code": f"C{n}", "name": "x"} for n in range(COUNTRIES)]).encode()
