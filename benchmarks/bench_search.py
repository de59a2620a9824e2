"""How long searches in an entity of 1,000,000 rows take, how large its index is and what it costs a write.

A search has 50 ms in 95 of 100 cases. Beside it stands one look at each row of one column, the least
that a search without an index does. Words are made up: 50,000 names that some rows share, one that
each row has alone, 20,000 streets; half the values have letters that are not ASCII, and four of ten rows
have ``GmbH``.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from bench_deploy import apply
from figures import Figure, best_of, processor_s
from warehouse import Server, opened

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.search import SearchRequest, search_rows
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state

ROWS: Final = 1_000_000
SEARCHED: Final = "company"
_MORE: Final = 20_000
_REQUESTS: Final = 60
_ENTITY: Final = """
name: company
domain: d
keyColumns: [code]
displayRefColumn: name
search: {enabled: %s}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: name, dataType: string}
  - {name: city, dataType: string}
  - {name: street, dataType: string}
  - {name: email, dataType: string}
  - {name: region, dataType: int}
"""
_PERMISSIONS: Final = b"""
permissions:
  - {users: [few], domains: [d], entities: [company], actions: [read], rowFilterDsl: "[region] = 7"}
"""
_COPY: Final = """
COPY mdm_data.company (_sys_id, code, name, city, street, email, region, _sys_created_at,
     _sys_created_by, _sys_last_modified_at, _sys_last_modified_by) FROM STDIN
"""
_FIRST: Final = [
    "Zürich",
    "Müller",
    "Alpine",
    "Nordic",
    "Société",
    "Baltic",
    "Iberia",
    "Crown",
    "Øresund",
    "Łódź",
    "Atlas",
    "Vienna",
]
_LAST: Final = ["GmbH", "AG", "Ltd", "GmbH", "S.A.", "Inc", "GmbH", "Oy", "GmbH", "B.V."]
_CITIES: Final = ["Berlin", "Zürich", "Genève", "München", "Köln", "Paris", "Málaga", "Kraków"]
_LOOK: Final = "SELECT count(*) FROM mdm_data.company WHERE lower(name) LIKE '%zzzz%'"
_SIZES: Final = """
SELECT pg_relation_size('mdm_data.company__search') / 1e6, pg_table_size('mdm_data.company') / 1e6
"""


def _word(kind: str, number: int, letters: int = 8) -> str:
    digest = hashlib.sha256(f"{kind}{number}".encode()).digest()
    vowels, others = "aeiou", "bcdfghklmnprstvwz"
    return "".join(
        (vowels if at % 2 else others)[byte % (5 if at % 2 else 17)]
        for at, byte in enumerate(digest[:letters])
    )


def _shared(number: int) -> str:
    return _word("shared", number % 50_000)


def word_of_one(number: int) -> str:
    return _word("own", number, letters=10)


def _line(i: int) -> str:
    name = f"{_FIRST[i % 12]} {_shared(i).title()} {word_of_one(i).title()} {_LAST[i % 10]}"
    city = _CITIES[i * 7 % 8] + ("" if i % 3 == 0 else f" {i % 500}")
    street = f"{_word('street', i % 20_000, 9).title()}strasse {i % 120}"
    now = "2026-01-01T00:00:00Z"
    values = (
        f"00000000-0000-7000-8000-{i:012x}",
        f"C{i:07}",
        name,
        city,
        street,
        f"info{i % 1000}@{word_of_one(i)}.example",
        i % 100,
        now,
        "user:a",
        now,
        "user:a",
    )
    return "\t".join(map(str, values)) + "\n"


async def measure(server: Server, *, rows: int = ROWS) -> list[Figure]:
    async with opened(await server.fresh_database()) as conn:
        await apply(conn, search_definitions("false"))
        await fill_search(conn, 0, rows)
        plain_s = await fill_search(conn, rows, rows + _MORE)
        built_s = await _built(conn)
        indexed_s = await fill_search(conn, rows + _MORE, rows + 2 * _MORE)
        await conn.execute("VACUUM ANALYZE mdm_data.company")
        row = await (await conn.execute(_SIZES)).fetchone()
        assert row is not None
        look_s = await best_of(lambda: conn.execute(_LOOK), rounds=3)
        figures = [await _case(conn, name, q, limit, look_s, rows) for name, q, limit in CASES]
        few = "under a row filter of 1 % of the rows, "
        figures += [
            await _case(conn, few + name, q, limit, look_s, rows, user="few")
            for name, q, limit in (
                (*CASES[0][:2], 50.0),
                # The filter has no index, so all 400,000 rows are met.
                (*CASES[4][:2], None),
            )
        ]
    return [
        *figures,
        _told(
            "index of search, built", built_s, "s", f"{row[0]:.0f} MB, its table {row[1]:.0f} MB"
        ),
        _told(
            f"writing {_MORE:,} rows, with the index / without",
            indexed_s / plain_s,
            "ratio",
            f"{(indexed_s - plain_s) / _MORE * 1e6:.0f} µs of processor time more per row",
        ),
    ]


def search_definitions(enabled: str = "true") -> Any:
    return read_tree(
        {
            "mdm.yaml": b"name: bench\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n",
            "entities/company.yaml": (_ENTITY % enabled).encode(),
            "permissions.yaml": _PERMISSIONS,
        }
    )


async def fill_search(conn: Connection, first: int, last: int) -> float:
    """Return the seconds of processor time that PostgreSQL took."""
    started = processor_s(conn.info.backend_pid)
    async with conn.cursor() as cursor, cursor.copy(_COPY) as copy:
        for start in range(first, last, 1_000):
            await copy.write("".join(map(_line, range(start, min(start + 1_000, last)))))
    return processor_s(conn.info.backend_pid) - started


async def _built(conn: Connection) -> float:
    started = time.perf_counter()
    await apply(conn, search_definitions("true"))
    return time.perf_counter() - started


def _inside(i: int) -> str:
    return word_of_one(i)[2:8]


CASES: Final[tuple[tuple[str, Callable[[int], str], float | None], ...]] = (
    ("a word of some rows", _shared, 50.0),
    ("a beginning of four letters", lambda i: _shared(i)[:4], 50.0),
    ("a word of one row", word_of_one, 50.0),
    ("what stands inside a word", _inside, 50.0),
    ("a word of four rows in ten", lambda _: "gmbh", 100.0),
    ("a beginning of one letter", lambda i: "bcdfghklmnprst"[i % 14], None),
    ("three words, all common", lambda i: f"{_FIRST[i % 12]} {_CITIES[i % 8]} gmbh", 100.0),
    ("the end of a word of all rows", lambda _: "strasse", None),
)


async def _case(
    conn: Connection,
    name: str,
    make: Callable[[int], str],
    limit: float | None,
    look_s: float,
    rows: int,
    *,
    user: str = "admin",
) -> Figure:
    asking = await asking_as(conn, user)
    chance = random.Random(name)
    times, before = [], processor_s(conn.info.backend_pid)
    for _ in range(_REQUESTS):
        request = SearchRequest(q=make(chance.randrange(rows)), entity="company")
        started = time.perf_counter()
        await search_rows(conn, asking=asking, request=request)
        times.append(time.perf_counter() - started)
    spent_ms = (processor_s(conn.info.backend_pid) - before) * 1_000 / _REQUESTS
    times.sort()
    p95_s = times[int(len(times) * 0.95)]
    return Figure(
        case=f"search of {rows:,} rows, {name}, p95",
        value=p95_s * 1_000,
        unit="ms",
        limit=limit,
        note=f"median {times[len(times) // 2] * 1_000:.1f} ms, {spent_ms:.1f} ms of it PostgreSQL's"
        f" processor; {p95_s / look_s:.2f} x one look at each row",
    )


async def asking_as(conn: Connection, user: str = "admin") -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name=user, is_global_admin=user == "admin"),
        state=await read_state(conn, schemas=Schemas()),
        schemas=Schemas(),
        now=datetime.now(UTC),
    )


def _told(case: str, value: float, unit: str, note: str) -> Figure:
    return Figure(case=case, value=value, unit=unit, note=note)
