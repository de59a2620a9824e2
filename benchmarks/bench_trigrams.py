"""Search beside the extension pg_trgm, on the same rows: is there a search that it would make faster?

Wants a server that offers the extension, which the embedded one does not: its URL, with a role that may create
databases and extensions, is read from ``MDM_BENCH_TRIGRAM_URL``. The trigrams get the better of it:
the text of each row stands folded and with its words cut in a narrow table beside, so that their index does
neither when it is built nor when it looks at a row again. Both sides are asked for the same three kinds,
whole words first, in one statement, with the same bound, and what they find is ranked in the same way.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import uuid4

from bench_deploy import apply
from bench_search import CASES, asking_as, fill_search, search_definitions
from figures import Figure
from warehouse import Server, opened

from mdm_gitops.data.search import DEFAULT_TAKE, OF_ONE, SearchRequest, search_rows
from mdm_gitops.data.search_rank import Candidate, rank
from mdm_gitops.data.search_words import typed_words
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.connect import Connection

URL_VARIABLE: Final = "MDM_BENCH_TRIGRAM_URL"
_REQUESTS: Final = 30
_EXTENSION: Final = "CREATE EXTENSION pg_trgm SCHEMA public"
# ASCII borders alone: the made-up names have no others.
_TEXTS: Final = """
CREATE TABLE public.texts AS
SELECT _sys_id AS id, regexp_replace(
         mdm.fold(concat_ws(' ', '', code, name, city, street, email, '')), '[^[:alnum:]]', ' ', 'g') AS text
  FROM mdm_data.company
"""
_INDEX: Final = "CREATE INDEX texts_text ON public.texts USING gin (text public.gin_trgm_ops)"
_SIZES: Final = """
SELECT pg_relation_size('mdm_data.company__search') / 1e6, pg_relation_size('public.texts_text') / 1e6
"""
_FOUND: Final = """
SELECT t._sys_id, ARRAY[t.code, t.name, t.city, t.street, t.email], t.name, json_build_object('code', t.code)::text
  FROM ({}) found JOIN mdm_data.company t ON t._sys_id = found.id WHERE NOT t._sys_is_deleted
"""
_STEADY: Final = "SET LOCAL enable_seqscan = off; SET LOCAL max_parallel_workers_per_gather = 0"


async def measure(rows: int) -> list[Figure]:
    """Return the time of each kind of search, as so many times that of the trigrams."""
    async with _database(os.environ[URL_VARIABLE]) as url, opened(url) as conn:
        await apply(conn, search_definitions("false"))
        await fill_search(conn, 0, rows)
        words_s = await _seconds(apply(conn, search_definitions("true")))
        await conn.execute(_EXTENSION)
        await conn.execute(_TEXTS)
        trigrams_s = await _seconds(conn.execute(_INDEX))
        await conn.execute("VACUUM ANALYZE mdm_data.company, public.texts")
        row = await (await conn.execute(_SIZES)).fetchone()
        assert row is not None
        figures = [await _case(conn, name, q, rows) for name, q, _ in CASES]
    return [
        *figures,
        Figure(
            case=f"index of search over {rows:,} rows / that of pg_trgm, built",
            value=words_s / trigrams_s,
            unit="ratio",
            note=f"{words_s:.0f} and {trigrams_s:.0f} s; {row[0]:.0f} and {row[1]:.0f} MB; the second over text"
            " that was folded and cut before",
        ),
    ]


@asynccontextmanager
async def _database(url: str) -> AsyncIterator[str]:
    """Lend a database that is gone afterwards: the server is not ours."""
    server = Server(url, prefix=f"bench_{uuid4().hex}")
    try:
        yield await server.fresh_database()
    finally:
        await server.drop_databases()


async def _seconds(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def _case(conn: Connection, name: str, make: Callable[[int], str], rows: int) -> Figure:
    asking = await asking_as(conn)
    entity = asking.state.entities["company"].definition
    chance = random.Random(name)
    ours, theirs = [], []
    for _ in range(_REQUESTS):
        q = make(chance.randrange(rows))
        request = SearchRequest(q=q, entity="company")
        words = typed_words(q)
        ours.append(await _seconds(search_rows(conn, asking=asking, request=request)))
        theirs.append(await _seconds(_by_trigrams(conn, entity, words)))
    middle, other = statistics.median(ours), statistics.median(theirs)
    return Figure(
        case=f"search of {rows:,} rows, {name} / by pg_trgm",
        value=middle / other,
        unit="ratio",
        note=f"medians {middle * 1_000:.1f} and {other * 1_000:.1f} ms",
    )


async def _by_trigrams(conn: Connection, entity: Entity, words: Sequence[str]) -> None:
    bound = OF_ONE.candidates
    few = f"(SELECT count(*) FROM {{}}) <= {bound}"
    kinds = {
        "whole": ("% {} %", "true"),
        "head": ("% {}%", few.format("whole")),
        "inside": ("%{}%", f"{few.format('whole')} AND {few.format('head')}"),
    }
    values: dict[str, Any] = {}
    parts = []
    for kind, (pattern, condition) in kinds.items():
        matches = []
        for number, word in enumerate(words):
            values[f"{kind}{number}"] = pattern.format(word)
            matches.append(f"text LIKE %({kind}{number})s")
        parts.append(
            f"{kind} AS MATERIALIZED (SELECT id FROM public.texts WHERE {' AND '.join(matches)}"
            f" AND {condition} LIMIT {bound + 1})"
        )
    found = " UNION ".join(f"SELECT id FROM {kind}" for kind in kinds)
    async with conn.transaction():
        await conn.execute(_STEADY)
        statement = f"WITH {', '.join(parts)} {_FOUND.format(found)}"
        records = await (await conn.execute(statement.encode(), values)).fetchall()
    candidates = (
        Candidate(entity=entity, row_id=row_id, texts=texts, label=label, key=key)
        for row_id, texts, label, key in records
    )
    for ranked in rank(list(candidates), words)[:DEFAULT_TAKE]:
        ranked.shown(words)
