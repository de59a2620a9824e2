"""Nothing is lost or there twice (I1, I2, I8) when the disk of PostgreSQL is full, and the service writes again
within 10 s after there is room, without anybody starting it again.

A ballast takes the last byte of a small file system that holds data and write-ahead log, and whatever becomes
free, under load. Where the log cannot grow PostgreSQL ends itself; then it is started again when there is room,
as a supervisor does. Clients and comparison are those of ``test_row_crashes``; 0 failures in N fills bounds
the failure rate at about 3/N.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support import small_disk
from tests.support.campaign_record import campaign
from tests.support.cluster import Cluster
from tests.support.crash_campaign import Campaign
from tests.support.crash_server import Server
from tests.support.crash_site import Site, campaign_at, deployed, empty
from tests.support.small_disk import SmallDisk
from tests.support.wire import Reply, Wire

SOAK_FILLS = 30
BACK_S = 10.0
MEGABYTES = 160
PART = "/api/v1/entities/part/data"
# A log in small pieces needs a new one soon, and none can be had.
SMALL_PIECES = ("--wal-segsize=1",)
LITTLE_LOG = {"min_wal_size": "2MB", "max_wal_size": "20MB"}


class Full:
    """The disk is full for a while."""

    name = "disk full"
    lasting_s = (0.2, 3.0)

    def __init__(self, disk: SmallDisk, cluster: Cluster) -> None:
        self._disk = disk
        self._cluster = cluster
        self.restarts = 0

    def begin(self) -> None:
        self._disk.fill()

    def end(self) -> None:
        self._disk.free()
        self.restarts += self._cluster.start_if_ended()


class FullLog(Full):
    """The disk is full, and the write-ahead log has used what it had before."""

    def begin(self) -> None:
        super().begin()
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self._cluster.url, autocommit=True) as conn,
        ):
            for _ in range(MEGABYTES):
                conn.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")


@contextmanager
def site_on_small_disk(
    major: int, folder: Path, init: Sequence[str] = (), **settings: str
) -> Iterator[tuple[Site, SmallDisk]]:
    with (
        SmallDisk(megabytes=MEGABYTES) as disk,
        Cluster(major=major, folder=disk.folder, init=init, **settings) as cluster,
    ):
        keys = asyncio.run(deployed(cluster.url))
        with Server(folder, cluster.url) as server:
            yield Site(cluster, server, keys), disk


@pytest.fixture(scope="module")
def place(
    pg_major: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, SmallDisk]]:
    if reason := small_disk.why_not():
        pytest.skip(reason)
    with site_on_small_disk(pg_major, tmp_path_factory.mktemp("full")) as found:
        yield found


def test_writes_are_refused_clearly_and_reads_go_on(place: tuple[Site, SmallDisk]) -> None:
    site, disk = place
    with psycopg.connect(site.cluster.url, autocommit=True) as conn:
        # So that the log has room and the tables have none.
        conn.execute("SELECT pg_switch_wal()")
        conn.execute("CREATE TABLE public.first_in_a_new_piece ()")

    async def tried() -> list[Reply]:
        wire = Wire(site.server.url, site.keys["ann"])
        lines = "".join(f"full-{n},{'x' * 1_000},1\n" for n in range(4_000))
        body = f"code,note,level\n{lines}".encode()
        path, csv = f"{PART}/bulk-csv", "text/csv"
        disk.fill()
        refused = await wire.request("POST", path, body, Content_Type=csv)
        read = await wire.request("GET", PART)
        disk.free()
        written = await wire.request("POST", path, body, Content_Type=csv)
        await wire.close()
        return [refused, read, written]

    refused, read, written = asyncio.run(tried())
    assert (refused.status, refused.code) == (503, "WAREHOUSE_FULL"), site.cluster.log
    assert int(refused.headers["retry-after"]) > 0
    assert b"extend" not in refused.body and b"device" not in refused.body
    assert (read.status, read.json()["items"]) == (200, []), "half of an import is none"
    assert written.json()["inserted"] == 4_000


def test_a_fill_loses_nothing(place: tuple[Site, SmallDisk]) -> None:
    site, disk = place
    found = _endured(site, Full(disk, site.cluster), fills=1, seed=1)
    _holds(found)


@pytest.mark.soak
def test_thirty_fills(place: tuple[Site, SmallDisk], pg_major: int, tmp_path: Path) -> None:
    with campaign("disk-full") as record:
        site, disk = place
        full = Full(disk, site.cluster)
        first = _endured(site, full, fills=SOAK_FILLS // 2)
        with site_on_small_disk(pg_major, tmp_path / "log", SMALL_PIECES, **LITTLE_LOG) as (
            other,
            small,
        ):
            of_log = FullLog(small, other.cluster)
            second = _endured(other, of_log, fills=SOAK_FILLS - SOAK_FILLS // 2)
        both = (first, second)
        worst = max(itertools.chain(*(each.recoveries_s["disk full"] for each in both)))
        record(
            fills=sum(each.kills["disk full"] for each in both),
            writes=sum(each.counts["acknowledged"] for each in both),
            told=f"writes again within {worst:.1f} s at most; PostgreSQL ended itself"
            f" {full.restarts + of_log.restarts} times and was started again",
        )
        for each in both:
            _holds(each)
        assert of_log.restarts, "the log was never full"


def _endured(site: Site, full: Full, *, fills: int, seed: int | None = None) -> Campaign:
    empty(site.cluster)

    async def endure() -> Campaign:
        found = await campaign_at(site, seed=secrets.randbits(64) if seed is None else seed)
        await found.endure([full] * fills)
        return found

    return asyncio.run(endure())


def _holds(found: Campaign) -> None:
    told = f"seed {found.seed}: {found.kills}, {found.counts}, recoveries {found.recoveries_s}"
    print(told)
    assert not found.broken, f"{told}\n{found.broken[0]}"
    assert found.counts["acknowledged"] > 5 * sum(found.kills.values()), told
    assert all(max(each) < BACK_S for each in found.recoveries_s.values()), told
