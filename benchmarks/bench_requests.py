"""Single requests as clients send them: read, list, filter, create, update, beside the limit of PostgreSQL.

Ours is the real server with everything on: API key, permissions, validation, audit, history. The limit is
pgbench on the same PostgreSQL and an equal table of twelve columns, in the same run: one prepared statement
per request, with rows as JSON text too, but without checks of ours, audit and history. Clients, server and
database share the machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import quote

import load
from bench_deploy import apply
from figures import Curve, Figure, Series, Told, processor_s
from locations import COUNTRIES, FILES, LIMIT_TABLE, countries, write_csv
from served import KEY, serving
from warehouse import Server, opened

from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.embedded_binaries import find_binaries

ROWS: Final = 100_000
SECONDS: Final = 5.0
CLIENTS: Final = 64
CURVE: Final = (1, 4, 16, 64, 256)
CURVED: Final = ("read by id", "list 100, another page each", "create")
CURVE_S: Final = 2.0
MOST_OF_PGBENCH: Final = 64  # clients; each is a connection, of which the server has 100
_PAGES: Final = 200  # that are read one after the other before, for their cursors
_PGBENCH: Final = ("-n", "-M", "prepared")
DATA: Final = "/api/v1/entities/location/data"
RIGHTS: Final = """\
permissions:
  - {users: ["apikey:editor"], domains: [bench], entities: [], actions: [write]}
  - users: ["apikey:filtered"]
    domains: [bench]
    entities: [location]
    actions: [read]
    rowFilterDsl: "[country] IN ('C1','C2','C3') AND [active] = true"
"""
FILTER: Final = "[country] = 'C5' AND [kind] = 'port'"
AS_ROW_FILTER: Final = "[country] IN ('C1','C2','C3') AND [active] = true"
_COLUMNS: Final = (
    "code, name, country, city, kind, amount, pieces, active, opened, updated, token, note"
)
_LETTERS: Final = iter("ABCDEFGHIJKNOPQRSTUVWXYZ")  # of codes: each load writes rows of its own
ROW: Final = {
    "name": "Name of a new location",
    "country": "C7",
    "city": "Zürich",
    "kind": "port",
    "amount": "123.45",
    "pieces": 17,
    "active": True,
    "opened": "2020-01-31",
    "updated": "2024-03-10T01:00:00Z",
    "token": "01234567-0000-4000-8000-0123456789ab",
    "note": "some words",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request and what PostgreSQL does for it alone."""

    name: str
    script: str  # for pgbench
    least: float  # of the limit
    paths: Sequence[str] = field(default=())
    key: str = "editor"
    method: str = "GET"
    body: str = ""


async def measure(server: Server, *, rows: int = ROWS, seconds: float = SECONDS) -> list[Told]:
    url = await server.fresh_database()
    async with opened(url) as conn:
        await apply(conn, definitions())
        with serving(url) as (address, pid):
            keys = {name: api_key(address, name) for name in ("editor", "filtered")}
            fill(address, rows)
            await _fill_limit(conn)
            ids = await ids_of(conn)
            cases = cases_of(rows, ids, list(pages_of(address, keys["editor"])))
            told: list[Told] = list(_one_worker(url, address, pid, keys, cases, seconds))
            curves = {
                case.name: [_pgbench_series(url, case), _series(address, keys, case, "1 worker")]
                for case in cases
                if case.name in CURVED
            }
        with serving(url, workers=2) as (address, _):
            told += _two_workers(url, address, keys, cases, seconds)
            for case in cases:
                if case.name in CURVED:
                    curves[case.name].append(_series(address, keys, case, "2 workers"))
    return [*told, *(_curve(name, series) for name, series in curves.items())]


def definitions() -> Definitions:
    """Return the entity of the requests, with the rights of its two keys."""
    files = {name: text.encode() for name, text in FILES.items()}
    return read_tree({**files, "permissions.yaml": RIGHTS.encode()})


def pages_of(address: str, key: str) -> Iterator[str]:
    """Yield the paths of pages of the list, one after the other."""
    after = ""
    for _ in range(_PAGES):
        path = f"{DATA}?after={after}" if after else DATA
        yield path
        request = urllib.request.Request(address + path, headers={"X-API-Key": key})
        with urllib.request.urlopen(request, timeout=60) as answer:
            after = json.loads(answer.read())["nextAfter"]
        if after is None:
            return


def _curve(name: str, series: Sequence[Series]) -> Curve:
    return Curve(
        title=f"{name}: throughput over clients",
        x="clients",
        y="answers per second",
        series=tuple(series),
        note="Clients, server and PostgreSQL share two processors.",
    )


def _pgbench_series(url: str, case: Case) -> Series:
    limit = _Limit(url, case.script)
    clients = [number for number in CURVE if number <= MOST_OF_PGBENCH]
    points = ((float(n), limit.per_s(clients=n, seconds=CURVE_S)) for n in clients)
    return Series(name="pgbench", points=tuple(points))


def _series(address: str, keys: Mapping[str, str], case: Case, how: str) -> Series:
    seen = ((n, run_load(address, keys, case, clients=n, seconds=CURVE_S)) for n in CURVE)
    return Series(name=how, points=tuple((float(n), each.per_s) for n, each in seen))


def cases_of(rows: int, ids: Sequence[str], pages: Sequence[str] = (DATA,)) -> list[Case]:
    """Return all kinds of requests. Of lists there are two: all clients ask for the same one at the same
    time, so that callers can share a statement, or each for another one, so that nobody can."""
    limit = "mdm_data.bench_limit"
    chosen = f"\\set n random(1, {rows})\n"
    listed = f"SELECT row_to_json(t) FROM (SELECT * FROM {limit} WHERE %s LIMIT 100) t;"
    values = ", ".join(
        "DEFAULT" if value is None else f"'{value}'" for value in ("%", *ROW.values())
    ).replace("'%'", "'M' || lpad(nextval('mdm_data.bench_code')::text, 7, '0')")
    return [
        Case(
            name="read by id",
            script=f"{chosen}SELECT row_to_json(t) FROM {limit} t WHERE id = :n;",
            least=0.3,
            paths=[f"{DATA}/{each}" for each in ids],
        ),
        Case(
            name="list 100",
            script=listed % "true ORDER BY id",
            least=0.5,
            paths=[DATA],
        ),
        Case(
            name="list 100, another page each",
            script=f"\\set n random(1, {min(rows, 100 * _PAGES)})\n"
            + listed % "id > :n ORDER BY id",
            least=0.5,
            paths=pages,
        ),
        Case(
            name="list 100, filter on two columns and sort",
            script=listed % "country = 'C5' AND kind = 'port' ORDER BY amount DESC",
            least=0.9,
            paths=[f"{DATA}?filter={quote(FILTER)}&sort=-amount"],
        ),
        Case(
            name="list 100, filter on two columns and sort, other values each",
            script=f"\\set c random(0, {COUNTRIES - 1})\n"
            + listed % "country = 'C' || :c AND kind = 'port' ORDER BY amount DESC",
            least=0.9,
            paths=[
                f"{DATA}?filter={quote(FILTER.replace('C5', f'C{number}'))}&sort=-amount"
                for number in range(COUNTRIES)
            ],
        ),
        Case(
            name="list 100 under a row filter",
            script=listed % "country IN ('C1','C2','C3') AND active ORDER BY id",
            least=0.6,
            paths=[DATA],
            key="filtered",
        ),
        Case(
            name="create",
            script=f"INSERT INTO {limit} ({_COLUMNS}) VALUES ({values});",
            least=0.7,
            paths=[DATA],
            method="POST",
            body=json.dumps({"code": "{letter}{n}", **ROW}),
        ),
        Case(
            name="update",
            script=f"{chosen}UPDATE {limit} SET city = 'Bern ' || :n, amount = :n WHERE id = :n;",
            least=0.6,
            paths=[f"{DATA}/{each}" for each in ids],
            method="PUT",
            body='{"city": "Bern {n}", "amount": 1}',
        ),
    ]


def _one_worker(
    url: str,
    address: str,
    pid: int,
    keys: Mapping[str, str],
    cases: Sequence[Case],
    seconds: float,
) -> Iterator[Figure]:
    for case in cases:
        limit = _Limit(url, case.script).per_s(clients=CLIENTS, seconds=seconds)
        used = processor_s(pid)
        seen = run_load(address, keys, case, clients=CLIENTS, seconds=seconds)
        used = 1e6 * (processor_s(pid) - used) / (seen.per_s * (seconds + load.WARM_UP_S))
        figure = _throughput(case, seen, limit, "1 worker")
        yield replace(figure, note=f"{figure.note}; {used:,.0f} us of the worker each")
        if case.name == "list 100 under a row filter":
            yield _row_filter_cost(address, keys, case, seen, seconds)
    for case in cases:
        if case.name in ("read by id", "create"):
            yield _latency(url, address, keys, case, seconds)


def _two_workers(
    url: str, address: str, keys: Mapping[str, str], cases: Sequence[Case], seconds: float
) -> Iterator[Figure]:
    for case in cases:
        limit = _Limit(url, case.script).per_s(clients=CLIENTS, seconds=seconds)
        seen = run_load(address, keys, case, clients=CLIENTS, seconds=seconds)
        yield _throughput(case, seen, limit, "2 workers")


def _throughput(case: Case, seen: load.Seen, limit: float, how: str) -> Figure:
    return Figure(
        case=f"{case.name}, {CLIENTS} clients, {how} / pgbench",
        value=seen.per_s / limit,
        unit="ratio",
        limit=case.least,
        is_floor=True,
        note=f"{seen.per_s:,.0f}/s to {limit:,.0f}/s; median {seen.median_ms:.1f} ms,"
        f" p99 {seen.p99_ms:.1f} ms",
    )


def _row_filter_cost(
    address: str, keys: Mapping[str, str], case: Case, filtered: load.Seen, seconds: float
) -> Figure:
    """What the row filter costs beyond the same filter asked for by the caller."""
    asked = f"{DATA}?filter={quote(AS_ROW_FILTER)}"
    free = Case(name=case.name, script="", least=0, paths=[asked])
    seen = run_load(address, keys, free, clients=CLIENTS, seconds=seconds)
    return Figure(
        case="the same list, filtered by the caller / by the row filter",
        value=seen.per_s / filtered.per_s,
        unit="ratio",
        limit=1.15,
        note=f"{seen.per_s:,.0f}/s to {filtered.per_s:,.0f}/s",
    )


def _latency(url: str, address: str, keys: Mapping[str, str], case: Case, seconds: float) -> Figure:
    limit_ms = _Limit(url, case.script).median_ms(seconds=seconds)
    seen = run_load(address, keys, case, clients=1, seconds=seconds)
    return Figure(
        case=f"{case.name}, 1 client, median above that of pgbench",
        value=seen.median_ms - limit_ms,
        unit="ms",
        limit=1.0 if case.method == "GET" else 2.0,
        note=f"{seen.median_ms:.2f} ms to {limit_ms:.2f} ms",
    )


def run_load(
    address: str, keys: Mapping[str, str], case: Case, *, clients: int, seconds: float
) -> load.Seen:
    seen = load.run(
        load.Job(
            address=address,
            key=keys[case.key],
            clients=clients,
            seconds=seconds,
            method=case.method,
            paths=case.paths,
            body=_body(case),
        )
    )
    assert not seen.failed, f"{seen.failed} of {case.name} failed: {seen.sample}"
    return seen


def _body(case: Case) -> str:
    return case.body.replace("{letter}", next(_LETTERS)) if "{letter}" in case.body else case.body


# --- the limit ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limit:
    """One statement of PostgreSQL, prepared, sent by pgbench again and again."""

    url: str
    script: str

    def per_s(self, *, clients: int, seconds: float) -> float:
        options = ["-c", str(clients), "-j", str(min(2, clients))]
        for longer in (1, 4, 16):  # on a busy machine all of it may go by while they connect
            told = self._run(options, seconds * longer)
            if found := re.search(r"tps = ([\d.]+)", told):
                return float(found[1])
        raise AssertionError(told)

    def median_ms(self, *, seconds: float) -> float:
        with tempfile.TemporaryDirectory() as folder:
            self._run(["-c", "1", "-l", f"--log-prefix={folder}/log"], seconds)
            [file] = Path(folder).iterdir()
            return median(int(line.split()[2]) for line in file.open()) / 1_000

    def _run(self, options: Sequence[str], seconds: float) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(self.script)
            script.flush()
            time_s = str(max(1, round(seconds)))
            pgbench = find_binaries(major=18).program("pgbench")
            done = subprocess.run(
                [pgbench, *_PGBENCH, "-T", time_s, *options, "-f", script.name, self.url],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        return done.stdout


async def _fill_limit(conn: Connection) -> None:
    await conn.execute(LIMIT_TABLE.encode())
    await conn.execute(
        b"ALTER TABLE mdm_data.bench_limit ADD id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    await conn.execute(b"CREATE SEQUENCE mdm_data.bench_code")
    statement = f"INSERT INTO mdm_data.bench_limit ({_COLUMNS}) SELECT {_COLUMNS}"
    await conn.execute(f"{statement} FROM mdm_data.location ORDER BY _sys_id".encode())
    await conn.execute(b"VACUUM ANALYZE mdm_data.bench_limit")
    await conn.execute(b"VACUUM ANALYZE mdm_data.location")


async def ids_of(conn: Connection) -> list[str]:
    query = b"SELECT _sys_id::text FROM mdm_data.location ORDER BY random() LIMIT 20000"
    return [found for (found,) in await (await conn.execute(query)).fetchall()]


# --- the server -----------------------------------------------------------------------------------


def api_key(address: str, name: str) -> str:
    made = _post(address, "/api/v1/api-keys", json.dumps({"name": name}).encode())
    return str(made["key"])


def fill(address: str, rows: int) -> None:
    _post(address, "/api/v1/entities/country/data/bulk", countries())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        write_csv(file, rows)
        answer = _post(address, f"{DATA}/bulk-csv", file.read_bytes(), "text/csv")
    assert answer["inserted"] == rows, answer


def _post(address: str, path: str, body: bytes, media_type: str = "application/json") -> Any:
    headers = {"X-API-Key": KEY, "Content-Type": media_type}
    request = urllib.request.Request(address + path, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())
