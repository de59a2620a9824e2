"""Duplicate scans and similar rows: quality and time, beside splink on the same rows and machine.

Two kinds of labelled people (``people``): by the published model of corruption alone, and with people who
live together, who are alike without being the same. Ours runs with the rules that an entity without any has,
and is judged at the score from which a scan keeps pairs; splink at the best of all thresholds. The weights of
the default rules were chosen on another seed than the one measured here.

Splink is no dependency: it is put into an environment of its own beside the other temporary files, or found
in the one that MDM_BENCH_SPLINK names. Where that fails, its figures are left out.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from figures import Figure
from people import COLUMNS, People, corrupted, people
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.scan_run import run_scan
from mdm_gitops.data.scans import ScanRequest, begin_scan
from mdm_gitops.data.similar import SimilarRequest, similar_rows
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.store import read_state

SCANNED: Final = 100_000
ASKED: Final = 200
WRITTEN: Final = 10_000
_SYSTEM: Final = "_sys_created_at, _sys_created_by, _sys_last_modified_at, _sys_last_modified_by"
SEED: Final = 77
SPLINK: Final = "splink==5.0.0"
_COLUMNS: Final = "\n".join(
    f"  - {{name: {name}, dataType: {'date' if name == 'birth_date' else 'string'}}}"
    for name in COLUMNS
)
_COMPARED: Final = ", ".join(
    "{name: birth_date, matchMode: date, weight: 2.5}"
    if name == "birth_date"
    else f"{{name: {name}}}"
    for name in COLUMNS
)
_RULES: Final = f"similarity: {{columns: [{_COMPARED}]}}\n"


def _files(rules: str) -> dict[str, bytes]:
    entity = f"name: person\ndomain: d\nkeyColumns: [code]\n{rules}columns:\n"
    entity += f"  - {{name: code, dataType: string, nullable: false}}\n{_COLUMNS}\n"
    project = b"name: bench\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n"
    return {"mdm.yaml": project, "entities/person.yaml": entity.encode()}


async def measure(server: Server, folder: Path, *, rows: int) -> list[Figure]:
    """Return the figures; each is told on the standard error as soon as it is there."""
    python = await asyncio.to_thread(_splink)
    figures = []
    for households, told in ((0.0, "published model"), (1 / 7, "with households")):
        given = people(SCANNED, seed=SEED, households=households)
        figures += _ready(await _scan(server, folder, given, told, python))
    return [*figures, *_ready(await _similar(server, rows))]


def _ready(figures: list[Figure]) -> list[Figure]:
    for each in figures:
        print(f"... {each.case}: {each.text}; {each.note}", file=sys.stderr, flush=True)
    return figures


# --- scans ----------------------------------------------------------------------------------------


async def _scan(
    server: Server, folder: Path, given: People, told: str, python: str
) -> list[Figure]:
    taken_s, processor_s, found = await _our_scan(server, given)
    true = given.pairs
    hits = len(found & true)
    f1 = 2 * hits / (len(found) + len(true))
    quality = f"P {hits / len(found):.4f} R {hits / len(true):.4f} F1 {f1:.4f}"
    case = f"duplicate scan of {SCANNED:,} people, {told}"
    if not python:
        note = f"{quality}; splink could not be installed"
        return [Figure(case=case, value=taken_s, unit="s", note=note)]
    theirs = await asyncio.to_thread(_their_scan, python, folder, given)
    their_s = theirs["train_s"] + theirs["predict_s"]
    best = "P {precision:.4f} R {recall:.4f} F1 {f1:.4f}".format(**theirs)
    return [
        Figure(
            case=f"{case}: time / splink's",
            value=taken_s / their_s,
            unit="ratio",
            limit=1.0,
            note=f"{taken_s:.1f} s with reading and writing, of one processor {processor_s:.1f} s;"
            f" splink trains {theirs['train_s']:.1f} s, predicts {theirs['predict_s']:.1f} s, of all"
            f" processors {theirs['processor_s']:.1f} s",
        ),
        Figure(
            case=f"{case}: splink's best F1 / ours",
            value=theirs["f1"] / f1,
            unit="ratio",
            limit=1.0,
            note=f"{quality}; splink {best}",
        ),
    ]


async def _our_scan(server: Server, given: People) -> tuple[float, float, set[tuple[int, int]]]:
    """Return the seconds by the clock and of this process's processor, and the pairs."""
    url = await server.fresh_database()
    async with opened(url) as conn, opened(url) as telling:
        await _deployed(conn, _files(""))
        ids = await _fill(conn, given.rows)
        asking = await _asking(conn)
        scan_id = await begin_scan(conn, asking=asking, entity="person", request=ScanRequest())
        started, used = time.perf_counter(), time.process_time()
        await run_scan(conn, telling, schemas=SCHEMAS, scan_id=scan_id, max_rows=SCANNED)
        taken_s, processor_s = time.perf_counter() - started, time.process_time() - used
        cursor = await conn.execute("SELECT low, high FROM mdm.match_pair")
        at = {each: number for number, each in enumerate(ids)}
        found = {
            (min(at[low], at[high]), max(at[low], at[high]))
            for low, high in await cursor.fetchall()
        }
    return taken_s, processor_s, found


def _their_scan(python: str, folder: Path, given: People) -> dict[str, Any]:
    path = folder / "people.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "person"])
        for row, person in zip(given.rows, given.persons, strict=True):
            writer.writerow([*(value or "" for value in row), person])
    script = Path(__file__).with_name("splink_people.py")
    done = subprocess.run([python, script, path], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def _splink() -> str:
    """Return the Python of an environment that has splink; "" where there can be none."""
    named = os.environ.get("MDM_BENCH_SPLINK")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "mdm-bench-splink"
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        asked = [python, "-m", "pip", "install", "--quiet", SPLINK, "pandas"]
        has_it = subprocess.run(
            [python, "-c", "import splink, pandas"], check=False, capture_output=True
        )
        if has_it.returncode:
            subprocess.run(asked, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return str(python)


# --- similar --------------------------------------------------------------------------------------


async def _similar(server: Server, rows: int) -> list[Figure]:
    url = await server.fresh_database()
    given = people(rows, seed=SEED + 1)
    chance = random.Random(SEED)
    async with opened(url) as conn:
        await _deployed(conn, _files(""))
        await _fill(conn, given.rows)
        started = time.perf_counter()
        await _deployed(conn, _files(_RULES))  # now the index is built
        built_s = time.perf_counter() - started
        await conn.execute("VACUUM ANALYZE mdm_data.person")
        size = await conn.execute("SELECT pg_relation_size('mdm_data.person__match') / 1e6")
        [(megabytes,)] = await size.fetchall()
        asking = await _asking(conn)
        times, own_times, hits = [], [], 0
        for number in chance.sample(range(rows), ASKED):
            asked = corrupted(chance, given.rows[number])
            values = dict(zip(COLUMNS, asked, strict=True))
            started, used = time.perf_counter(), time.process_time()
            request = SimilarRequest(values=values)
            found = await similar_rows(conn, asking=asking, entity="person", request=request)
            times.append(time.perf_counter() - started)
            own_times.append(time.process_time() - used)
            wanted = f'"code":"{number}"'.encode()
            hits += any(wanted in match.row for match in found.found)
        locked_s, larger = await _as_column(conn)
        with_s, without_s = await _written(conn)
    times.sort()
    return [
        Figure(
            case=f"similar of {rows:,} people, p95",
            value=times[int(ASKED * 0.95)] * 1000,
            unit="ms",
            limit=100.0,
            note=f"median {times[ASKED // 2] * 1000:.1f} ms, on average"
            f" {sum(own_times) / ASKED * 1000:.1f} ms of it of our processor; {hits} of {ASKED}"
            f" corrupted rows find their original; index of {megabytes:.0f} MB, built in"
            f" {built_s:.0f} s; a row is written in {with_s / WRITTEN * 1e6:.0f} µs with it and"
            f" {without_s / WRITTEN * 1e6:.0f} µs without",
        ),
        Figure(
            case=f"keys of {rows:,} people in a generated column, nobody reads or writes for",
            value=locked_s,
            unit="s",
            note=f"what the index over the expression spares; the table {larger:.2f} x as large",
        ),
    ]


_KEYS: Final = """
SELECT pg_get_expr(indexprs, indrelid), pg_table_size(indrelid)
  FROM pg_index WHERE indexrelid = 'mdm_data.person__match'::regclass
"""


async def _as_column(conn: Connection) -> tuple[float, float]:
    """Return the seconds that a generated column of the keys locks the table, and how much it grows."""
    [(keys, before)] = await (await conn.execute(_KEYS)).fetchall()
    async with conn.transaction(force_rollback=True):
        started = time.perf_counter()
        await conn.execute(
            "ALTER TABLE mdm_data.person"
            f" ADD COLUMN keys text[] GENERATED ALWAYS AS ({keys}) STORED".encode()
        )
        locked_s = time.perf_counter() - started
        [(_, after)] = await (await conn.execute(_KEYS)).fetchall()
    return locked_s, after / before


async def _written(conn: Connection) -> tuple[float, float]:
    """Return the seconds of writing WRITTEN rows with the index of keys and without."""
    copied = f"{', '.join(COLUMNS)}, {_SYSTEM}"
    taken = []
    for mark in ("with", "without"):
        if mark == "without":
            await conn.execute("DROP INDEX mdm_data.person__match")
        started = time.perf_counter()
        await conn.execute(
            f"INSERT INTO mdm_data.person (_sys_id, code, {copied})"
            f" SELECT gen_random_uuid(), '{mark}' || code, {copied}"
            f" FROM mdm_data.person LIMIT {WRITTEN}".encode()
        )
        taken.append(time.perf_counter() - started)
    return taken[0], taken[1]


async def _deployed(conn: Connection, files: dict[str, bytes]) -> None:
    definitions = read_tree(files)
    await apply_plan(conn, definitions, None, schemas=SCHEMAS, actor="user:bench", approved=True)


async def _fill(conn: Connection, rows: Sequence[tuple[str | None, ...]]) -> list[UUID]:
    ids = [uuid4() for _ in rows]
    names = ", ".join(("_sys_id", "code", *COLUMNS))
    said = (f"{datetime.now(UTC)}\tuser:bench\t" * 2).strip()
    async with (
        conn.cursor() as cursor,
        cursor.copy(f"COPY mdm_data.person ({names}, {_SYSTEM}) FROM STDIN".encode()) as copy,
    ):
        for number, (row_id, row) in enumerate(zip(ids, rows, strict=True)):
            values = "\t".join([value or "\\N" for value in row])  # of letters that mean nothing
            await copy.write(f"{row_id}\t{number}\t{values}\t{said}\n")
    await conn.execute("ANALYZE mdm_data.person")
    return ids


async def _asking(conn: Connection) -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name="bench", is_global_admin=True),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=datetime.now(UTC),
    )
