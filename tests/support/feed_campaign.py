"""Writers and readers of a change feed at the same time, and what a feed must hold afterwards.

Sixteen writers change few rows in transactions of several events, some of which pause while they hold
their rows, pause before they commit, or are rolled back; some are thrown out by the server. Readers
page by id meanwhile. How a change is logged and how a page is read is the ``Feed``, so that a naive
one can be put under the very same load: it must be found wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg import AsyncConnection

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.connect import connect

RECORDS = 80
Change = tuple[UUID, int]  # a record and the version that a change gave it

_TABLE = f"""
CREATE TABLE mdm_data.campaign (record_id uuid PRIMARY KEY, version int NOT NULL DEFAULT 0);
INSERT INTO mdm_data.campaign SELECT gen_random_uuid() FROM generate_series(1, {RECORDS});
"""


class Feed(Protocol):
    is_gapless: bool

    async def prepare(self, conn: AsyncConnection[Any]) -> None: ...

    async def begin(self, conn: AsyncConnection[Any]) -> int:
        """Do what a transaction may do before it holds a row, and return what ``log`` needs of it."""

    async def log(self, conn: AsyncConnection[Any], changes: Sequence[Change], begun: int) -> None:
        """Log *changes* in the transaction that made them, which holds their rows."""

    async def page(self, conn: AsyncConnection[Any], after: int, take: int) -> list[int]:
        """Return the next ids behind *after*."""

    async def changes(self, conn: AsyncConnection[Any]) -> dict[int, Change]:
        """Return what each id of the feed stands for, when all is over."""


@dataclass
class Findings:
    lost: int = 0
    twice: int = 0
    invented: int = 0
    inverted: int = 0  # a version of a record that came after a later one
    gaps: int = 0

    @property
    def is_clean(self) -> bool:
        return self == Findings()


@dataclass
class Outcome:
    committed: set[Change] = field(default_factory=set)
    doubtful: set[Change] = field(default_factory=set)  # the connection died in the commit
    counts: Counter[str] = field(default_factory=Counter)
    seen: list[list[int]] = field(default_factory=list)  # the ids that each reader saw, in order
    meaning: dict[int, Change] = field(default_factory=dict)

    def judge(self, ids: list[int], *, gapless: bool) -> Findings:
        """Compare what one reader saw with what was committed."""
        changes = [self.meaning[each] for each in ids]
        seen = Counter(changes)
        found = Findings(
            lost=len(self.committed - seen.keys()),
            twice=sum(count - 1 for count in seen.values()) + len(ids) - len(set(ids)),
            invented=len(seen.keys() - self.committed - self.doubtful),
            gaps=len(set(range(1, max(ids, default=0) + 1)) - set(ids)) if gapless else 0,
        )
        versions: dict[UUID, int] = defaultdict(int)
        for record, version in changes:
            found.inverted += version < versions[record]
            versions[record] = max(version, versions[record])
        return found


@dataclass
class Campaign:
    url: str
    feed: Feed
    seed: int
    writers: int = 16
    readers: int = 2
    seconds: float = 3.0
    kills_per_second: float = 0.0
    pause_s: float = 0.01  # at most, of a reader who has found nothing new
    deployers: int = 0  # of subscriptions, which number changes inside of their transactions

    async def run(self) -> Outcome:
        outcome = Outcome()
        async with await connect(self.url, application_name="campaign") as conn:
            await conn.execute(_TABLE)
            await self.feed.prepare(conn)
            rows = await (await conn.execute("SELECT record_id FROM mdm_data.campaign")).fetchall()
            records = sorted(row[0] for row in rows)
            writing, reading = asyncio.Event(), asyncio.Event()
            chance = random.Random(self.seed)
            read = [
                asyncio.create_task(self._read(random.Random(chance.random()), reading))
                for _ in range(self.readers)
            ]
            write = [
                asyncio.create_task(
                    self._write(random.Random(chance.random()), records, outcome, writing)
                )
                for _ in range(self.writers)
            ]
            write += [
                asyncio.create_task(self._deploy(random.Random(n), outcome, writing))
                for n in range(self.deployers)
            ]
            await self._disturb(conn, chance, outcome)
            writing.set()
            await asyncio.gather(*write)
            reading.set()
            outcome.seen = list(await asyncio.gather(*read))
            outcome.meaning = await self.feed.changes(conn)
        return outcome

    async def _disturb(
        self, conn: AsyncConnection[Any], chance: random.Random, outcome: Outcome
    ) -> None:
        """Let the time go by, and throw out a writer or a reader now and then."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        while (left := end - loop.time()) > 0:
            if not self.kills_per_second:
                await asyncio.sleep(left)
                continue
            await asyncio.sleep(min(left, chance.expovariate(self.kills_per_second)))
            cursor = await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'campaign %'"
                " ORDER BY random() LIMIT 1"
            )
            outcome.counts["killed"] += cursor.rowcount

    async def _connected(self, name: str) -> AsyncConnection[Any]:
        """Connect; who is thrown out at the door comes back."""
        while True:
            try:
                return await connect(self.url, application_name=name)
            except WarehouseError:
                await asyncio.sleep(0.01)

    # --- writers ---

    async def _write(
        self,
        chance: random.Random,
        records: Sequence[UUID],
        outcome: Outcome,
        stop: asyncio.Event,
    ) -> None:
        conn = await self._connected("campaign writer")
        while not stop.is_set():
            changes: list[Change] = []
            try:
                is_kept = await self._transaction(conn, chance, records, changes)
                outcome.committed.update(changes if is_kept else ())
                outcome.counts["committed" if is_kept else "rolled back"] += 1
            except psycopg.errors.DeadlockDetected:
                outcome.counts["deadlocks"] += 1
            except psycopg.OperationalError:
                outcome.doubtful.update(changes)
                await conn.close()
                conn = await self._connected("campaign writer")
        await conn.close()

    async def _transaction(
        self,
        conn: AsyncConnection[Any],
        chance: random.Random,
        records: Sequence[UUID],
        changes: list[Change],
    ) -> bool:
        """Change rows and log it; return whether it was committed."""
        chosen = chance.sample(records, chance.choice((1, 1, 1, 2, 3)))
        if chance.random() < 0.9:
            chosen.sort()  # the others run into deadlocks at times
        chosen += chosen[: chance.random() < 0.1]  # the same row twice
        is_slow, is_void = chance.random() < 0.04, chance.random() < 0.06
        async with conn.transaction(force_rollback=is_void):
            begun = await self.feed.begin(conn)
            for record in chosen:
                row = await (
                    await conn.execute(
                        "UPDATE mdm_data.campaign SET version = version + 1"
                        " WHERE record_id = %s RETURNING version",
                        [record],
                    )
                ).fetchone()
                assert row is not None
                changes.append((record, row[0]))
                if is_slow:
                    await asyncio.sleep(chance.random() * 0.1)
            await self.feed.log(conn, changes, begun)
            if is_slow or chance.random() < 0.04:
                await asyncio.sleep(chance.random() * 0.2)
        return not is_void

    async def _deploy(self, chance: random.Random, outcome: Outcome, stop: asyncio.Event) -> None:
        """Subscribe in transactions that go on for a while afterwards, and may be rolled back."""
        conn = await self._connected("deployer")
        while not stop.is_set():
            is_void = chance.random() < 0.3
            async with conn.transaction(force_rollback=is_void):
                await conn.execute("SELECT pg_current_xact_id()")  # its DDL has drawn one
                await asyncio.sleep(chance.random() * 0.05)
                await conn.execute(
                    "INSERT INTO mdm.webhook (name, definition)"
                    " SELECT gen_random_uuid()::text, '{\"is_active\": false}'"
                )
                await asyncio.sleep(chance.random() * 0.1)
            outcome.counts["deployments rolled back" if is_void else "deployments"] += 1
            await asyncio.sleep(chance.random() * 0.1)
        await conn.close()

    # --- readers ---

    async def _read(self, chance: random.Random, stop: asyncio.Event) -> list[int]:
        seen: list[int] = []
        conn = await self._connected("campaign reader")
        while True:
            is_last = stop.is_set()
            try:
                page = await self.feed.page(conn, seen[-1] if seen else 0, chance.randint(1, 200))
            except (WarehouseError, psycopg.OperationalError):
                await conn.close()
                conn = await self._connected("campaign reader")
                continue
            seen += page
            if not page:
                if is_last:
                    await conn.close()
                    return seen
                await asyncio.sleep(chance.random() * self.pause_s)
