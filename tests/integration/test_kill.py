"""A killed apply is followed by a plain one, and all is as if nothing had happened (I3).

The process is killed at every boundary that ``warehouse.fault`` names, at random moments, and by
the server, which ends the session of the applier. The scenario passes through all phases, in both
directions (see ``tests.support.scenario``). 0 failures in N kills bounds the failure rate at about
3/N; the negative control shows that the harness sees a loss.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import Phase
from mdm_gitops.warehouse.script import Script, build_script
from tests.conftest import DatabaseMaker
from tests.support import scenario
from tests.support import warehouses as on
from tests.support.applier import Applier
from tests.support.campaign_record import campaign
from tests.support.warehouse_state import state

RANDOM_KILLS, SOAK_KILLS = 20, 500
ENDED_SESSIONS, SOAK_ENDED_SESSIONS = 5, 100
KILLED = -9
MANY_ROWS = {"customer", "client", "product"}  # tables that are filled in several batches


WANTED = {"a": scenario.a, "b": scenario.b, "c": scenario.c}


@dataclass(frozen=True, kw_only=True)
class Road:
    """One direction: where it begins, what it leads to, and what must be there in the end."""

    wanted: str
    begin: str  # a database to copy
    script: Script
    end: list[str]
    seconds: float  # of an apply that nobody kills


@pytest.fixture(scope="module")
def applier() -> Iterator[Applier]:
    with Applier() as applier:
        yield applier


@pytest.fixture(scope="module")
def databases(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[DatabaseMaker]:
    """Databases that all tests of this module begin with."""
    maker = DatabaseMaker(admin, server_url, template)
    yield maker
    maker.drop_all()


@pytest.fixture(scope="module")
def roads(databases: DatabaseMaker, applier: Applier) -> dict[str, Road]:
    start = databases()
    asyncio.run(_deployed(start))
    there = asyncio.run(_road("b", scenario.b(), start, databases, applier))
    halfway = databases.copy_of(start)
    assert applier.run(halfway, "b") == 0
    asyncio.run(_doing(halfway, scenario.edit))
    back = asyncio.run(_road("a", scenario.a(), halfway, databases, applier))
    return {"there": there, "back": back}


async def _deployed(url: str) -> None:
    async with on.opened(url) as conn:
        await on.apply(conn, scenario.a())
        await scenario.fill(conn)


async def _doing(url: str, action: Callable[[AsyncConnection[Any]], Awaitable[None]]) -> None:
    async with on.opened(url) as conn:
        await action(conn)


async def _road(
    wanted: str, definitions: Definitions, begin: str, databases: DatabaseMaker, applier: Applier
) -> Road:
    copy = databases.copy_of(begin)
    async with on.opened(copy) as conn:
        plan = await on.plan(conn, definitions)
    assert not plan.refusals, plan.refusals
    script = build_script(plan, schemas=on.SCHEMAS, actor="user:test")
    _warm(applier, wanted, begin, databases)
    started = time.monotonic()
    assert applier.run(copy, wanted) == 0
    seconds = time.monotonic() - started
    async with on.opened(copy) as conn:
        return Road(
            wanted=wanted, begin=begin, script=script, end=await state(conn), seconds=seconds
        )


def _warm(applier: Applier, wanted: str, begin: str, databases: DatabaseMaker) -> None:
    """Twice: the text of a statement is proven for all that are like it when it comes again."""
    for _ in range(2):
        applier.warm(databases.copy_of(begin), wanted)


def points(script: Script, *, each: bool) -> Iterator[str]:
    """Yield the points at which a run of *script* is killed.

    A boundary is there as what follows the step before it. Within a transaction PostgreSQL takes
    back what was done, so a few such points are enough to show it; *each* of them is for a soak.
    """
    yield "begin"
    for step in script.steps:
        if each:
            yield f"before-{step.number}"
        batches = [s.batch for s in step.statements if s.batch]
        if batches:
            yield f"batch-{step.number}"
            if batches[0].table in MANY_ROWS:
                yield f"batch-{step.number}#2"
        elif step.phase is Phase.FLIP:
            yield from (f"inside-{step.number}#{n}" for n in (1, 20, len(step.statements)))
        elif step.transactional and (each or step.number % 3 == 0):
            yield f"inside-{step.number}"
        yield f"after-{step.number}"
    yield "end"


def test_the_scenario_passes_through_every_phase(roads: dict[str, Road]) -> None:
    there, back = (roads[name].script for name in ("there", "back"))
    assert {step.phase for step in there.steps} == set(Phase)
    kinds = {statement.transactional for step in there.steps for statement in step.statements}
    assert kinds == {True, False}
    batched = [s.number for s in there.steps if any(each.batch for each in s.statements)]
    assert len(batched) >= 4
    taken = [s for step in back.of(Phase.PREPARE) for s in step.statements if "_arch_" in s.sql]
    assert taken, "going back takes an archive"


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["there", "back"])
def test_killed_at_every_boundary(
    name: str, part: int, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    chosen = list(points(roads[name].script, each=False))[part::PARTS]
    _killed_at(chosen, roads[name], applier, make_database)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["there", "back"])
def test_killed_at_every_point(
    name: str, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    chosen = list(points(roads[name].script, each=True))
    with campaign(f"apply-points-{name}") as record:
        _killed_at(chosen, roads[name], applier, make_database)
        record(kills=len(chosen))


def _killed_at(
    chosen: list[str], road: Road, applier: Applier, make_database: DatabaseMaker
) -> None:
    for point in chosen:
        url = make_database.copy_of(road.begin)
        assert applier.run(url, road.wanted, fault_at=point) == KILLED, point
        assert applier.run(url, road.wanted) == 0, point
        asyncio.run(_as_if_nothing_had_happened(url, road, point))
        make_database.drop_all()


async def _as_if_nothing_had_happened(url: str, road: Road, point: str) -> None:
    async with on.opened(url) as conn:
        assert _difference(await state(conn), road.end) == [], point
        plan = await on.plan(conn, WANTED[road.wanted]())
        assert (plan.changes, plan.drift) == ((), ()), point
        first, *more = await _journal(conn, road)
    if point == "end":
        assert (first, more) == ("succeeded", []), point
    elif point.startswith("after-") and point.endswith(f"-{road.script.steps[-1].number}"):
        assert (first, more) == ("interrupted", []), "all was done, only the journal was behind"
    else:
        assert (first, more) == ("interrupted", ["succeeded"]), point


async def _journal(conn: AsyncConnection[Any], road: Road) -> list[str]:
    """Return how the runs ended, without those that made the database the road begins with."""
    query = "SELECT state FROM mdm.deployment ORDER BY deployment_id OFFSET %s"
    found = await conn.execute(query, [1 if road.wanted == "b" else 2])
    return [row[0] for row in await found.fetchall()]


def _difference(found: list[str], expected: list[str]) -> list[str]:
    gone, new = set(expected) - set(found), set(found) - set(expected)
    lines = [*(f"- {line}" for line in sorted(gone)), *(f"+ {line}" for line in sorted(new))]
    return lines or ([] if found == expected else ["the same facts, not as often"])


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_random_moments_again_and_again(
    part: int, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    _killed_often(RANDOM_KILLS // PARTS, part, roads, applier, make_database)


@pytest.mark.soak
def test_killed_at_random_moments_hundreds_of_times(
    roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    seed = secrets.randbits(32)
    with campaign("apply") as record:
        rounds = _killed_often(SOAK_KILLS, seed, roads, applier, make_database)
        record(kills=SOAK_KILLS, told=f"{rounds} times a plain apply ended what kills had left")


def _killed_often(
    kills: int,
    seed: int,
    roads: dict[str, Road],
    applier: Applier,
    make_database: DatabaseMaker,
) -> int:
    """Kill until *kills* have hit an apply under way; return how often one was then let through."""
    chance, hit, rounds = random.Random(seed), 0, 0
    while hit < kills:
        rounds += 1
        road = chance.choice(list(roads.values()))
        url = make_database.copy_of(road.begin)
        moments = [chance.uniform(0, 1.2 * road.seconds) for _ in range(chance.randint(1, 3))]
        codes = [applier.killed_after(url, road.wanted, moment) for moment in moments]
        assert set(codes) <= {KILLED, 0}, (seed, rounds, codes)
        hit += codes.count(KILLED)
        assert applier.run(url, road.wanted) == 0
        asyncio.run(_is_there(url, road, f"seed {seed}, round {rounds} of {road.wanted}"))
        make_database.drop_all()
    return rounds


@pytest.mark.parametrize("name", ["there", "back"])
@pytest.mark.parametrize(
    "ended", [ENDED_SESSIONS, pytest.param(SOAK_ENDED_SESSIONS, marks=pytest.mark.soak)]
)
def test_the_server_ends_the_session_of_the_applier(
    name: str,
    ended: int,
    roads: dict[str, Road],
    applier: Applier,
    make_database: DatabaseMaker,
    admin: psycopg.Connection[Any],
) -> None:
    chance, road = random.Random(name), roads[name]
    codes = set()
    for number in range(ended):
        url = make_database.copy_of(road.begin)
        applier.start(url, road.wanted)
        _end_sessions(admin, url, after_s=chance.uniform(0.2, 1.0) * road.seconds)
        codes.add(applier.wait())
        assert applier.run(url, road.wanted) == 0
        asyncio.run(_is_there(url, road, f"{name} {number}"))
        make_database.drop_all()
    # Nothing had to be done, no connection, or some of it done: never a traceback.
    assert codes <= {0, 1, 6}, codes


def _end_sessions(admin: psycopg.Connection[Any], url: str, *, after_s: float) -> None:
    time.sleep(after_s)
    database = urlsplit(url).path.removeprefix("/")
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = %s AND application_name = 'applier'",
        [database],
    )


async def _is_there(url: str, road: Road, what: str) -> None:
    async with on.opened(url) as conn:
        assert _difference(await state(conn), road.end) == [], what
        plan = await on.plan(conn, WANTED[road.wanted]())
        assert (plan.changes, plan.drift) == ((), ()), what
        assert "running" not in await _journal(conn, road)


# --- somebody has changed his mind meanwhile ------------------------------------------------------


_SHARE = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])


def _boundaries(script: Script, *phases: Phase) -> list[str]:
    return [f"after-{step.number}" for step in script.steps if step.phase in phases]


@_SHARE
@pytest.mark.parametrize("name", ["there", "back"])
def test_killed_before_the_flip_and_then_withdrawn(
    name: str, every: int, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    """What was being filled is given up without a loss: both ways still lead where they led."""
    road, other = roads[name], roads["back" if name == "there" else "there"]
    for point in _boundaries(road.script, Phase.PREPARE)[::every]:
        url = make_database.copy_of(road.begin)
        asyncio.run(_withdrawn(url, road, other.wanted, point, applier))
        make_database.drop_all()


async def _withdrawn(url: str, road: Road, other: str, point: str, applier: Applier) -> None:
    async with on.opened(url) as conn:
        before = _visible(await state(conn))
    assert applier.run(url, road.wanted, fault_at=point) == KILLED, point
    assert applier.run(url, other) == 0, point
    async with on.opened(url) as conn:
        assert _difference(_visible(await state(conn)), before) == [], point
        plan = await on.plan(conn, WANTED[other]())
        assert (plan.changes, plan.drift) == ((), ()), point
    assert applier.run(url, road.wanted) == 0, point
    async with on.opened(url) as conn:
        assert _difference(_visible(await state(conn)), _visible(road.end)) == [], point


def _visible(facts: list[str]) -> list[str]:
    """Return *facts* without archives: a filling that was given up leaves one more of them."""
    named = {re.sub(r"(_arch_|__archive_|\"archiveNumber\": )\d+", r"\1", fact) for fact in facts}
    kept = (fact for fact in named if not _tells_of_archives(fact))
    return sorted({re.sub(r'"_arch_[^"]*": ("[^"]*"|[^,}]*)(, )?', "", fact) for fact in kept})


def _tells_of_archives(fact: str) -> bool:
    return '"archived"' in fact or '["_arch_' in fact or "looks" in fact or "earlier" in fact


@_SHARE
@pytest.mark.parametrize("wanted", ["a", "c"])
def test_killed_after_the_flip_and_then_something_else(
    wanted: str, every: int, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    road = roads["there"]
    later = (Phase.FLIP, Phase.ENFORCE, Phase.SEED, Phase.LINK, Phase.FINISH)
    fresh = make_database()
    asyncio.run(_applied(fresh, wanted))
    expected = asyncio.run(_catalog(fresh))
    _warm(applier, wanted, roads["back"].begin, make_database)
    for point in _boundaries(road.script, *later)[::every]:
        url = make_database.copy_of(road.begin)
        assert applier.run(url, "b", fault_at=point) == KILLED, point
        assert applier.run(url, wanted) == 0, point
        assert asyncio.run(_catalog(url)) == expected, point
        asyncio.run(_comes_back(url, wanted, road.begin, point, applier))


async def _applied(url: str, wanted: str) -> None:
    async with on.opened(url) as conn:
        await on.apply(conn, WANTED[wanted]())


async def _catalog(url: str) -> dict[str, Any]:
    async with on.opened(url) as conn:
        return await on.catalog(conn)


async def _comes_back(url: str, wanted: str, begin: str, point: str, applier: Applier) -> None:
    async with on.opened(url) as conn:
        plan = await on.plan(conn, WANTED[wanted]())
        assert (plan.changes, plan.drift) == ((), ()), point
    assert applier.run(url, "a") == 0, point
    async with on.opened(begin) as untouched, on.opened(url) as conn:
        assert await _own_rows(conn) == await _own_rows(untouched), point


async def _own_rows(conn: AsyncConnection[Any]) -> dict[str, list[Any]]:
    """Return the rows of A that a person made: the seed has had its say on the others."""
    found = await on.rows(conn, scenario.a())
    return {name: rows for name, rows in found.items() if name != "country"}


# --- the negative control -------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
def test_steps_that_are_not_recorded_lose_archived_values(
    recorded: bool, roads: dict[str, Road], applier: Applier, make_database: DatabaseMaker
) -> None:
    """The harness has teeth: without the record of the prepare phase it finds the loss."""
    road = roads["back"]
    point = f"after-{road.script.of(Phase.PREPARE)[1].number}"
    url = make_database.copy_of(road.begin)
    records = asyncio.run(_records(url))
    assert applier.run(url, road.wanted, fault_at=point) == KILLED
    if not recorded:
        asyncio.run(_put_back(url, records))
    assert applier.run(url, road.wanted) == 0
    lost = [line for line in asyncio.run(_lost(url, road)) if "row" in line]
    assert bool(lost) is not recorded, lost


async def _records(url: str) -> list[Any]:
    async with on.opened(url) as conn:
        found = await conn.execute("SELECT record, state, entity_id FROM mdm.entity")
        return [(Jsonb(record), *rest) for record, *rest in await found.fetchall()]


async def _put_back(url: str, records: list[Any]) -> None:
    async with on.opened(url) as conn, conn.cursor() as cursor:
        update = "UPDATE mdm.entity SET record = %s, state = %s WHERE entity_id = %s"
        await cursor.executemany(update, records)


async def _lost(url: str, road: Road) -> list[str]:
    async with on.opened(url) as conn:
        return _difference(await state(conn), road.end)
