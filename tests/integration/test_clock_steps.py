"""Nothing is lost, there twice or out of order (I1, I2, I5, I8) when somebody sets the clock, forth and back,
of the server, of PostgreSQL or of both, under load.

Their clock is shifted by a library loaded before theirs, while they run. Beside the comparison of
``test_row_crashes``, versions must follow each other without gap or overlap, and the ids of the feed the order of
commits. 0 failures in N steps bounds the failure rate at about 3/N.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.processes import until
from tests.support import shifted_clock
from tests.support.campaign_record import campaign
from tests.support.cluster import Cluster
from tests.support.crash_campaign import ENTITIES, Campaign
from tests.support.crash_server import Server
from tests.support.crash_site import Site, campaign_at, deployed, empty
from tests.support.shifted_clock import ShiftedClock
from tests.support.wire import Wire

HOUR, DAY = 3_600, 86_400
TO_2038 = 2**31 + DAY - int(time.time())  # a time of 32 bits has overflowed
STEPS = (HOUR, -HOUR, 2 * DAY, -2 * DAY, TO_2038, -TO_2038)
BACK_S = 10.0
OF_SERVER, OF_POSTGRES, OF_BOTH = "server", "postgres", "both"
_INVERTED = """
SELECT count(*) FROM (
  SELECT since, until, lead(since) OVER w AS next FROM (
    SELECT _sys_id, _sys_version, _sys_valid_from AS since, _sys_valid_to AS until
      FROM mdm_data.{name}__history
    UNION ALL
    SELECT _sys_id, _sys_version, _sys_last_modified_at, 'infinity' FROM mdm_data.{name}) v
  WINDOW w AS (PARTITION BY _sys_id ORDER BY _sys_version)) versions
 WHERE since >= until OR next < until
"""
_OUT_OF_ORDER = """
SELECT count(*) FROM (
  SELECT e.record_id, e.version, lag(e.version) OVER (PARTITION BY e.record_id ORDER BY s.seq, e.ordinal)
         AS before
    FROM mdm.change_set s JOIN mdm.event e ON e.change_set = s.key WHERE e.version IS NOT NULL) told
 WHERE version < before  -- what is proposed has the version that it is to change
"""


@dataclass(frozen=True)
class Clocks:
    server: ShiftedClock
    postgres: ShiftedClock

    def set(self, whose: str, seconds: int) -> None:
        """Set the clock of *whose*; that of the other is right again."""
        self.server.set(seconds if whose in (OF_SERVER, OF_BOTH) else 0)
        self.postgres.set(seconds if whose in (OF_POSTGRES, OF_BOTH) else 0)


class Step:
    """Somebody sets a clock wrong, and back again."""

    lasting_s = (0.2, 1.5)

    def __init__(self, clocks: Clocks, whose: str, seconds: int) -> None:
        self.name = f"{whose} by {seconds / HOUR:+.0f} h"
        self._clocks, self._whose, self._seconds = clocks, whose, seconds

    def begin(self) -> None:
        self._clocks.set(self._whose, self._seconds)

    def end(self) -> None:
        self._clocks.set(self._whose, 0)


@contextmanager
def with_clocks(major: int, folder: Path) -> Iterator[tuple[Site, Clocks]]:
    # PostgreSQL is another user, who does not get into the folders of tests.
    with tempfile.TemporaryDirectory(prefix="mdm-clock-") as name:
        place = Path(name)
        place.chmod(0o755)
        library = shifted_clock.build(place)
        clocks = Clocks(
            ShiftedClock(library, place / "server"), ShiftedClock(library, place / "postgres")
        )
        environment = {**os.environ, **clocks.postgres.variables}
        with Cluster(major=major, environment=environment) as cluster:
            keys = asyncio.run(deployed(cluster.url))
            variables = clocks.server.variables
            with Server(folder, cluster.url, workers=2, **variables) as server:
                yield Site(cluster, server, keys), clocks


@pytest.fixture(scope="module")
def clocked(
    pg_major: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Clocks]]:
    if reason := shifted_clock.why_not():
        pytest.skip(reason)
    with with_clocks(pg_major, tmp_path_factory.mktemp("clocked")) as found:
        yield found


def test_clocks_are_really_set(clocked: tuple[Site, Clocks]) -> None:
    site, clocks = clocked
    with psycopg.connect(site.cluster.url, autocommit=True) as conn:
        query = "SELECT extract(epoch FROM clock_timestamp() - %s::timestamptz)::float8"
        before = conn.execute("SELECT clock_timestamp()").fetchone()
        clocks.set(OF_POSTGRES, 2 * DAY)
        row = conn.execute(query, before).fetchone()
        clocks.set(OF_POSTGRES, 0)
    assert row is not None and row[0] > 2 * DAY

    async def date() -> str:
        wire = Wire(site.server.url, site.keys["ann"])
        reply = await wire.request("GET", "/api/v1/entities/thing/data")
        await wire.close()
        assert reply.status == 200
        return reply.headers["date"]

    clocks.set(OF_SERVER, TO_2038)
    until(lambda: " 2038 " in asyncio.run(date()))  # made once a second
    clocks.set(OF_SERVER, 0)


def test_some_steps(clocked: tuple[Site, Clocks]) -> None:
    site, clocks = clocked
    found = _endured(site, [Step(clocks, OF_BOTH, seconds) for seconds in (HOUR, -2 * DAY)], seed=1)
    _holds(site, found)


@pytest.mark.soak
def test_all_steps_of_all_clocks(clocked: tuple[Site, Clocks]) -> None:
    with campaign("clock-steps") as record:
        site, clocks = clocked
        faults = [
            Step(clocks, whose, seconds)
            for whose in (OF_SERVER, OF_POSTGRES, OF_BOTH)
            for seconds in STEPS
        ]
        found = _endured(site, faults)
        worst = max(itertools.chain(*found.recoveries_s.values()))
        record(
            steps=2 * sum(found.kills.values()),  # there and back
            writes=found.counts["acknowledged"],
            told=f"by 1 h, 2 days and to 2038, forth and back; answers within {worst:.1f} s at most",
        )
        _holds(site, found)


_TAKES_THE_CLOCK = """
CREATE FUNCTION public.mischief() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  NEW._sys_last_modified_at := clock_timestamp(); RETURN NEW; END $$;
CREATE TRIGGER mischief BEFORE UPDATE ON mdm_data.thing FOR EACH ROW EXECUTE FUNCTION public.mischief()
"""


@pytest.mark.soak
def test_versions_that_take_the_clock_as_it_is_are_seen(clocked: tuple[Site, Clocks]) -> None:
    site, clocks = clocked
    with psycopg.connect(site.cluster.url, autocommit=True) as conn:
        conn.execute(_TAKES_THE_CLOCK)
        try:
            _endured(site, [Step(clocks, OF_POSTGRES, 2 * DAY)], seed=2)
        finally:
            conn.execute("DROP FUNCTION public.mischief() CASCADE")
    assert _inverted(site) > 0
    empty(site.cluster)


def _endured(site: Site, faults: Sequence[Step], *, seed: int | None = None) -> Campaign:
    empty(site.cluster)

    async def endure() -> Campaign:
        found = await campaign_at(site, seed=secrets.randbits(64) if seed is None else seed)
        await found.endure(faults)
        return found

    return asyncio.run(endure())


def _holds(site: Site, found: Campaign) -> None:
    told = f"seed {found.seed}: {found.kills}, {found.counts}, recoveries {found.recoveries_s}"
    print(told)
    assert not found.broken, f"{told}\n{found.broken[0]}"
    assert found.counts["acknowledged"] > 5 * sum(found.kills.values()), told
    assert all(max(each) < BACK_S for each in found.recoveries_s.values()), told
    assert _inverted(site) == 0, told
    with psycopg.connect(site.cluster.url) as conn:
        assert conn.execute(_OUT_OF_ORDER).fetchone() == (0,), told


def _inverted(site: Site) -> int:
    """Return how many versions end before they begin, or overlap with the next."""
    with psycopg.connect(site.cluster.url) as conn:
        rows = [conn.execute(_INVERTED.format(name=name).encode()).fetchone() for name in ENTITIES]
    return sum(row[0] for row in rows if row)
