"""Nothing is lost or there twice (I1, I2, I8) when the network between server and PostgreSQL is cut, and the
service is back within 10 s of the end; where something dead keeps connections open, when a statement would have ended.

The cuts are those of a relay, whose system acknowledges what nobody gets, and of a link between two
networks, where nobody acknowledges anything. Clients and comparison are those of ``test_row_crashes``; here, too,
0 failures in N cuts bounds the failure rate at about 3/N.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from mdm_gitops.warehouse import silence
from mdm_gitops.warehouse.connect import SessionLimits, borrow, connection_pool
from mdm_gitops.warehouse.prepared import Prepared, run_prepared
from mdm_gitops.warehouse.silence import ServerSilent
from tests.acceptance.processes import until
from tests.support.campaign_record import campaign
from tests.support.cluster import Cluster
from tests.support.crash_campaign import Campaign, Fault
from tests.support.crash_server import Server
from tests.support.crash_site import Site, campaign_at, deployed, empty
from tests.support.crash_writers import Keeper
from tests.support.link import Link
from tests.support.link import why_not as link_why_not
from tests.support.oracle import Answer, Refused, Values
from tests.support.relay import Relay, Trouble

pytestmark = pytest.mark.anyio
SOAK_CUTS = 100
BACK_S = 10.0
LOCKS_FREE_S = 15.0
# What a request waits at most: for a connection, and twice for an answer (its own statement waits for one before).
# A connection that a dead relay keeps open is known as such only then.
BOUND_S = 25.0
# Shorter than by default, so that deadlines pass within a cut; the others are as delivered.
SETTINGS = {
    "Mdm__Database__StatementTimeoutSeconds": "3",
    "Mdm__Database__PoolWaitSeconds": "3",
    "Mdm__Database__ConnectTimeoutSeconds": "2",
    "Mdm__Data__ImportTimeoutSeconds": "5",
}


@dataclass(frozen=True)
class Cut:
    name: str
    lasting_s: tuple[float, float]
    begin: Callable[[], None]
    end: Callable[[], None]


def cuts_of(relay: Relay, *kinds: Trouble, lasting_s: tuple[float, float]) -> list[Fault]:
    return [
        Cut(
            kind.value,
            lasting_s,
            lambda kind=kind: relay.trouble(kind),  # type: ignore[misc]
            lambda: relay.trouble(Trouble.NONE),
        )
        for kind in kinds
    ]


@contextmanager
def behind_relay(major: int, folder: Path) -> Iterator[tuple[Site, Relay]]:
    with Cluster(major=major) as cluster, Relay(cluster.url) as relay:
        keys = asyncio.run(deployed(cluster.url))
        with Server(folder, relay.url, **SETTINGS) as server:
            yield Site(cluster, server, keys), relay


@contextmanager
def behind_link(major: int, folder: Path) -> Iterator[tuple[Site, Link]]:
    with Link() as link, Cluster.reached_at(link.database_host, major=major) as cluster:
        keys = asyncio.run(deployed(cluster.url))
        variables = {**SETTINGS, "Mdm__Server__Host": link.own_host}
        with Server(folder, cluster.network_url, within=link.command, **variables) as server:
            yield Site(cluster, server, keys), link


@pytest.fixture(scope="module")
def relayed(
    pg_major: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Relay]]:
    with behind_relay(pg_major, tmp_path_factory.mktemp("relayed")) as found:
        yield found


def test_some_cuts(relayed: tuple[Site, Relay]) -> None:
    site, relay = relayed
    kinds = (Trouble.RESET, Trouble.HELD, Trouble.REFUSED)
    found = _endured(site, cuts_of(relay, *kinds, lasting_s=(0.1, 0.3)), seed=1)
    _holds(found)


async def test_nobody_waits_for_ever_for_a_silent_server(
    relayed: tuple[Site, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, relay = relayed
    monkeypatch.setattr(silence, "_ON_ITS_WAY_S", 0.1)
    limits = SessionLimits(statement_timeout_s=0.2)
    pool = connection_pool(
        relay.url, application_name="test", min_size=3, max_size=3, limits=limits, checked=False
    )
    one = Prepared.of(b"SELECT 1")
    async with asyncio.timeout(60), pool:
        await pool.wait()
        relay.trouble(Trouble.DEAD)
        relay.trouble(Trouble.NONE)
        async with borrow(pool) as conn, borrow(pool) as other:
            with pytest.raises(ServerSilent):
                await run_prepared(conn, one, {})
            with pytest.raises(ServerSilent):
                await other.execute("SELECT 1")
            assert conn.closed and other.closed
        for _ in range(3):  # nor is the third of that time handed out
            async with borrow(pool) as conn:
                await run_prepared(conn, one, {})


_HOLDS_A_LOCK = """
import asyncio, sys
from mdm_gitops.warehouse.connect import connect
async def main():
    async with await connect(sys.argv[1], application_name="holds") as conn, conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(7)")
        if sys.argv[2] == "busy":
            await conn.execute("SELECT pg_sleep(14)")
        await asyncio.sleep(600)
asyncio.run(main())
"""
_LOCKED = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"


@pytest.mark.soak
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_locks_of_a_session_that_was_cut_off_are_freed(pg_major: int, state: str) -> None:
    if reason := link_why_not():
        pytest.skip(reason)
    with Link() as link, Cluster.reached_at(link.database_host, major=pg_major) as cluster:
        program = [*link.command, sys.executable, "-c", _HOLDS_A_LOCK, cluster.network_url, state]
        with (
            subprocess.Popen(program) as holder,
            psycopg.connect(cluster.url, autocommit=True) as conn,
        ):
            try:
                until(lambda: conn.execute(_LOCKED).fetchone() is not None, process=holder)
                link.cut()
                began = time.monotonic()
                until(lambda: conn.execute(_LOCKED).fetchone() is None)
                assert time.monotonic() - began < LOCKS_FREE_S
            finally:
                holder.kill()


@pytest.mark.soak
def test_a_client_that_believes_what_nobody_answered_is_seen(
    relayed: tuple[Site, Relay],
) -> None:
    site, relay = relayed
    empty(site.cluster)
    refused = cuts_of(relay, Trouble.REFUSED, lasting_s=(0.3, 0.5))

    async def endure() -> Campaign:
        found = await campaign_at(site, seed=1)
        for client in found.clients:
            if isinstance(client, Keeper):
                _believe(client)
        await found.endure(refused * 3)
        return found

    found = asyncio.run(endure())
    assert any(": I1: " in each for each in found.broken), found.broken


def _believe(keeper: Keeper) -> None:
    async def look(row_id: str, document: Values | None, request: Callable[[str], Answer]) -> None:
        with suppress(Refused):  # what would have been refused anyway
            request(row_id or str(uuid.uuid4()))

    keeper._look_what_became = look  # type: ignore[method-assign]


@pytest.mark.soak
def test_a_hundred_cuts_of_all_kinds(
    relayed: tuple[Site, Relay], pg_major: int, tmp_path: Path
) -> None:
    if reason := link_why_not():
        pytest.skip(reason)
    with campaign("network-cuts") as record:
        site, relay = relayed
        kinds = [kind for kind in Trouble if kind is not Trouble.NONE]
        through_relay = _endured(
            site, _times(7 * SOAK_CUTS // 10, cuts_of(relay, *kinds, lasting_s=(0.3, 6.0)))
        )
        with behind_link(pg_major, tmp_path / "linked") as (other, link):
            over_link = _endured(other, _times(3 * SOAK_CUTS // 10, _cuts_of_link(link)))
        both = (through_relay, over_link)
        times = [item for found in both for item in found.recoveries_s.items()]
        worst = max(max(each) for name, each in times if name != Trouble.DEAD)
        dead = max(max(each) for name, each in times if name == Trouble.DEAD)
        record(
            cuts=sum(sum(found.kills.values()) for found in both),
            writes=sum(found.counts["acknowledged"] for found in both),
            told=f"back within {worst:.1f} s at most, {dead:.1f} s where a dead relay kept the connections"
            f" open; no request waited longer than {max(found.longest_s for found in both):.1f} s",
        )
        for found in both:
            _holds(found)


def _cuts_of_link(link: Link) -> list[Fault]:
    begins = {
        "link cut": link.cut,
        "link cut to the server": link.cut_asking,
        "link cut from the server": link.cut_answers,
    }
    return [Cut(name, (0.5, 11.0), begin, link.mend) for name, begin in begins.items()]


def _times(number: int, faults: Sequence[Fault]) -> list[Fault]:
    return list(itertools.islice(itertools.cycle(faults), number))


def _endured(site: Site, faults: Sequence[Fault], *, seed: int | None = None) -> Campaign:
    empty(site.cluster)

    async def endure() -> Campaign:
        found = await campaign_at(site, seed=secrets.randbits(64) if seed is None else seed)
        await found.endure(faults)
        return found

    return asyncio.run(endure())


def _holds(found: Campaign) -> None:
    told = (
        f"seed {found.seed}: {found.kills}, {found.counts}, longest {found.longest_s:.1f} s,"
        f" recoveries {found.recoveries_s}"
    )
    print(told)
    assert not found.broken, f"{told}\n{found.broken[0]}"
    assert found.counts["acknowledged"] > 5 * sum(found.kills.values()), told
    assert found.counts["in doubt"], told
    for name, each in found.recoveries_s.items():
        assert max(each) < (BOUND_S if name == Trouble.DEAD else BACK_S), told
    assert found.longest_s < BOUND_S, told
