"""The requests of ``bench_requests`` beside a peer that people would take instead: Directus on two processes.

Both have the same rows in twelve columns on the same PostgreSQL, check keys and values and log who changed
what. Ours evaluates permissions for each request; theirs are an administrator's, who needs none, but under
the row filter. Both get the same load from the same clients, in turns, and of each the best turn is told;
the peer has one turn more at first, which is not counted, while it makes its machine code.
The peer comes from ``peer_install`` and is set up by ``peer_directus``. Not one of the benchmarks that run
without being asked for: ``make bench-peer``.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import load
import peer_directus as directus
from bench_deploy import apply
from bench_requests import DATA, FILTER, RIGHTS, ROW, api_key, fill
from figures import Figure
from locations import FILES
from peer_install import DIRECTUS, installed
from served import serving
from warehouse import Server, opened

from mdm_gitops.source import read_tree

ROWS: Final = 100_000
CLIENTS: Final = 64
ROWS_OF_A_LIST: Final = 100
_PEER_FILTER: Final = '{"_and":[{"country":{"_eq":"C5"}},{"kind":{"_eq":"port"}}]}'
_CHOSEN: Final = "list 100, filter on two columns and sort"
_UNDER_FILTER: Final = "list 100 under a row filter"
_NUMBERS: Final = 1_000_000  # of codes, for each turn
_OUR_IDS: Final = b"SELECT _sys_id::text FROM mdm_data.location ORDER BY random() LIMIT 20000"
_PEER_IDS: Final = b"SELECT id::text FROM public.location ORDER BY random() LIMIT 20000"
_UNLOGGED: Final = b"""
SELECT count(*), count(*) FILTER (WHERE r.id IS NULL)
FROM public.location l
LEFT JOIN public.directus_revisions r
    ON r.collection = 'location' AND r.item = l.id::text AND r.data ->> 'code' = l.code
WHERE l.code LIKE 'A%'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one of the two is asked; the load chooses among *paths*."""

    paths: Sequence[str]
    method: str = "GET"
    body: str = ""
    is_filtered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    least: float  # ours by theirs
    ours: Request
    theirs: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A running server with the headers of its users."""

    name: str
    address: str
    editor: Mapping[str, str]
    filtered: Mapping[str, str]
    letter: str  # of the codes it makes
    is_ours: bool = True

    async def load(self, case: Case, *, seconds: float, turn: int) -> load.Seen:
        asked = case.ours if self.is_ours else case.theirs
        job = load.Job(
            address=self.address,
            headers=self.filtered if asked.is_filtered else self.editor,
            clients=CLIENTS,
            seconds=seconds,
            method=asked.method,
            paths=asked.paths,
            body=asked.body.replace("{letter}", self.letter),
            first=turn * _NUMBERS,
        )
        seen = await asyncio.to_thread(load.run, job)  # so that an interrupt is heard
        assert not seen.failed, f"{seen.failed} of {case.name}, {self.name}: {seen.sample}"
        assert seen.per_s, f"no answer: {case.name}, {self.name}"
        return seen

    def rows(self, case: Case) -> list[dict[str, Any]]:
        """Return the rows of a list as they are answered."""
        asked = case.ours if self.is_ours else case.theirs
        headers = self.filtered if asked.is_filtered else self.editor
        request = urllib.request.Request(self.address + asked.paths[0], headers=dict(headers))
        with urllib.request.urlopen(request, timeout=60) as answer:
            return list(json.loads(answer.read())["items" if self.is_ours else "data"])


async def measure(server: Server, folder: Path, *, is_full: bool) -> list[Figure]:
    seconds, turns = (5.0, 3) if is_full else (4.0, 2)
    place = await directus.prepared(installed(), server.url, folder, rows=ROWS)
    url = await _prepared(server)
    cases = _cases(await _ids(url, _OUR_IDS), await _ids(place.url, _PEER_IDS))
    figures = []
    async with _contenders(place, url) as (peer, *ours):
        _compare(cases, ours[0], peer)
        for case in cases:
            figures += await _figures(case, peer, ours, seconds=seconds, turns=turns)
    await _check_log(place.url)
    return figures


@asynccontextmanager
async def _contenders(place: directus.Place, url: str) -> AsyncIterator[list[Contender]]:
    """Yield the peer, and ours with one worker and with two; all of them run all the time."""
    async with directus.running(place) as address:
        peer = Contender(
            name=f"Directus {DIRECTUS}, {directus.PROCESSES} processes",
            address=address,
            editor={"Authorization": f"Bearer {directus.ADMINISTRATOR}"},
            filtered={"Authorization": f"Bearer {directus.FILTERED}"},
            letter="A",
            is_ours=False,
        )
        with serving(url) as (address, _), serving(url, workers=2) as (address_of_two, _):
            one = Contender(
                name="1 worker",
                address=address,
                editor={"X-API-Key": api_key(address, "editor")},
                filtered={"X-API-Key": api_key(address, "filtered")},
                letter="A",
            )
            two = replace(one, name="2 workers", address=address_of_two, letter="B")
            yield [peer, one, two]


def _cases(ours: Sequence[str], theirs: Sequence[str]) -> list[Case]:
    items = directus.ITEMS
    created = json.dumps({"code": "{letter}{n}", **ROW})
    updated = '{"city": "Bern {n}", "amount": 1}'
    rows = [f"{DATA}/{each}" for each in ours]
    peer_rows = [f"{items}/{each}" for each in theirs]
    listed = f"{items}?limit=100"
    return [
        Case(
            name="read by id",
            least=24,
            ours=Request(paths=rows),
            theirs=Request(paths=peer_rows),
        ),
        Case(
            name="list 100",
            least=6.5,
            ours=Request(paths=[DATA]),
            theirs=Request(paths=[listed]),
        ),
        Case(
            name=_CHOSEN,
            least=3.5,
            ours=Request(paths=[f"{DATA}?filter={quote(FILTER)}&sort=-amount"]),
            theirs=Request(paths=[f"{listed}&filter={quote(_PEER_FILTER)}&sort=-amount"]),
        ),
        Case(
            name=_UNDER_FILTER,
            least=5.5,
            ours=Request(paths=[DATA], is_filtered=True),
            theirs=Request(paths=[listed], is_filtered=True),
        ),
        Case(
            name="create",
            least=30,
            ours=Request(paths=[DATA], method="POST", body=created),
            theirs=Request(paths=[items], method="POST", body=created),
        ),
        Case(
            name="update",
            least=27,
            ours=Request(paths=rows, method="PUT", body=updated),
            theirs=Request(paths=peer_rows, method="PATCH", body=updated),
        ),
    ]


async def _figures(
    case: Case, peer: Contender, ours: Sequence[Contender], *, seconds: float, turns: int
) -> list[Figure]:
    await peer.load(case, seconds=seconds, turn=turns)
    contenders = (peer, *ours)
    seen: dict[str, list[load.Seen]] = {each.name: [] for each in contenders}
    for turn in range(turns):
        for each in contenders:
            seen[each.name].append(await each.load(case, seconds=seconds, turn=turn))
    best = {name: max(found, key=lambda one: one.per_s) for name, found in seen.items()}
    theirs = best[peer.name]
    return [
        Figure(
            case=f"{case.name}, {CLIENTS} clients, {each.name} / {peer.name}",
            value=best[each.name].per_s / theirs.per_s,
            unit="ratio",
            limit=case.least if each is ours[0] else None,
            is_floor=True,
            note=f"{_told(best[each.name])} to {_told(theirs)}",
        )
        for each in ours
    ]


def _told(seen: load.Seen) -> str:
    return f"{seen.per_s:,.0f}/s (median {seen.median_ms:.1f} ms, p99 {seen.p99_ms:.1f} ms)"


# --- that both do the same ------------------------------------------------------------------------


def _compare(cases: Sequence[Case], ours: Contender, peer: Contender) -> None:
    """Refuse to measure where the two do not see the same rows."""
    by_name = {case.name: case for case in cases}
    chosen, filtered = by_name[_CHOSEN], by_name[_UNDER_FILTER]
    mine, theirs = ours.rows(chosen), peer.rows(chosen)
    assert [row["code"] for row in mine] == [row["code"] for row in theirs], "other rows"
    for rows in (mine, ours.rows(filtered), peer.rows(filtered)):
        assert len(rows) == ROWS_OF_A_LIST, f"{len(rows)} rows"
    for row in (*ours.rows(filtered), *peer.rows(filtered)):
        assert row["country"] in ("C1", "C2", "C3") and row["active"], row


async def _check_log(url: str) -> None:
    """Refuse figures of a peer that did not log each row it wrote."""
    async with opened(url) as conn:
        row = await (await conn.execute(_UNLOGGED)).fetchone()
    assert row is not None
    created, unlogged = row
    assert created, "the peer created nothing"
    assert not unlogged, f"the peer did not log {unlogged} of {created} rows it created"


# --- ours -----------------------------------------------------------------------------------------


async def _prepared(server: Server) -> str:
    """Return the URL of a database with the rows, which came in by the API."""
    url = await server.fresh_database()
    files = {name: text.encode() for name, text in FILES.items()}
    async with opened(url) as conn:
        await apply(conn, read_tree({**files, "permissions.yaml": RIGHTS.encode()}))
    with serving(url) as (address, _):
        fill(address, ROWS)
    async with opened(url) as conn:
        await conn.execute(b"VACUUM ANALYZE mdm_data.location")
    return url


async def _ids(url: str, query: bytes) -> list[str]:
    async with opened(url) as conn:
        return [found for (found,) in await (await conn.execute(query)).fetchall()]
