"""Clients that write while processes are killed under them, and the comparison after each kill.

A ``Campaign`` runs writers (``crash_writers``), kills, lets everything come to rest, and compares all
tables with what the writers know: rows, versions, proposals and events, to the letter. Who owns a row
is told by its code, which begins with the owner's name.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from tests.support.cluster import Cluster
from tests.support.crash_server import Server
from tests.support.oracle import Column, Entity, Event, Kind

_COLUMNS = (
    Column(name="code", required=True, pattern="[a-z0-9-]+", max_length=40),
    Column(name="note"),
    Column(name="level", kind=Kind.INT, minimum=0, maximum=9),
)
THING = Entity(name="thing", columns=_COLUMNS, history=True)
TALLY = Entity(
    name="tally", columns=(*_COLUMNS[:2], Column(name="total", kind=Kind.INT)), history=True
)
PART = Entity(name="part", columns=_COLUMNS, history=True)
CLAIM = Entity(name="claim", columns=_COLUMNS, history=True, approval=True)
ENTITIES = {entity.name: entity for entity in (THING, TALLY, PART, CLAIM)}
RECOVERY_S = 60.0


@dataclass
class Table:
    """What the database holds for one owner."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    proposals: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)  # since the last look


class Broken(Exception):
    """An invariant does not hold; the text begins with its name."""


class Owner(Protocol):
    name: str

    def verify(self, table: Table) -> None:
        """Raise Broken if *table* is not what the owner knows."""


class Client(Protocol):
    name: str
    busy: asyncio.Lock
    counts: Counter[str]

    async def step(self) -> None: ...

    async def close(self) -> None: ...


class Fault(Protocol):
    """Something that goes wrong for a while, and is over afterwards."""

    name: str
    lasting_s: tuple[float, float]  # at least, at most

    def begin(self) -> None: ...

    def end(self) -> None: ...


class Campaign:
    """``broken`` holds what did not hold; then nothing goes on."""

    def __init__(
        self, cluster: Cluster, server: Server, keys: dict[str, str], *, seed: object
    ) -> None:
        self.cluster = cluster
        self.server = server
        self.keys = keys
        self.seed = seed
        self.clients: list[Client] = []
        self.owners: list[Owner] = []
        self.broken: list[str] = []
        self.kills: Counter[str] = Counter()
        self.recoveries_s: dict[str, list[float]] = {}
        self.answers = 0
        self.longest_s = 0.0  # that a request has waited for an answer of whatever kind
        self._chance = random.Random(f"{seed}")
        self._go = asyncio.Event()
        self._seq = 0
        self._conn: psycopg.AsyncConnection[dict[str, Any]] | None = None
        self._asking = asyncio.Lock()

    @property
    def counts(self) -> Counter[str]:
        return sum((client.counts for client in self.clients), Counter[str]())

    def note_answer(self) -> None:
        self.answers += 1

    async def run(self, kills: int, victims: Sequence[str]) -> None:
        """Kill *victims* (``postgres``, ``worker``, ``both``) in turn, *kills* times, under load."""
        await self._suffer([partial(self._kill, victims[n % len(victims)]) for n in range(kills)])

    async def endure(self, faults: Sequence[Fault]) -> None:
        """Let *faults* happen one after the other under load."""
        await self._suffer([partial(self._let_happen, fault) for fault in faults])

    async def _suffer(self, injections: Sequence[Callable[[], Awaitable[None]]]) -> None:
        (last,) = await self.ask("SELECT coalesce(max(seq), 0) AS seq FROM mdm.change_set")
        self._seq = last["seq"]
        self._go.set()
        tasks = [asyncio.create_task(self._work(client)) for client in self.clients]
        try:
            await self._answered(len(tasks))
            for inject in injections:
                await asyncio.sleep(self._chance.uniform(0.0, 0.1))
                await inject()
                await self._stand_still()
                if self.broken:
                    return
        finally:
            self._go.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self.clients:
                await client.close()
            await self._hang_up()

    async def _work(self, client: Client) -> None:
        while True:
            await self._go.wait()
            async with client.busy:
                try:
                    await client.step()
                except Broken as broken:
                    self.broken.append(f"{client.name}: {broken}")
                    return
                except Exception as error:  # the harness itself is wrong, or a table
                    self.broken.append(f"{client.name}: {error!r}")
                    raise

    async def _kill(self, victim: str) -> None:
        self.kills[victim] += 1
        began = time.monotonic()
        if victim != "postgres":
            self.server.kill_worker(self._chance)
        if victim != "worker":
            await asyncio.to_thread(self.cluster.kill)
            await asyncio.to_thread(self.cluster.start)
        await self._recovered(victim, began)

    async def _let_happen(self, fault: Fault) -> None:
        self.kills[fault.name] += 1
        await asyncio.to_thread(fault.begin)
        try:
            await asyncio.sleep(self._chance.uniform(*fault.lasting_s))
        finally:
            await asyncio.to_thread(fault.end)
        await self._recovered(fault.name, time.monotonic())

    async def _recovered(self, name: str, began: float) -> None:
        # As many answers as there can be under way, and one more: it answers again.
        await self._answered(len(self.clients) + 1)
        self.recoveries_s.setdefault(name, []).append(time.monotonic() - began)

    async def _answered(self, number: int) -> None:
        """Wait until so many more requests have been answered."""
        wanted, deadline = self.answers + number, time.monotonic() + RECOVERY_S
        while self.answers < wanted and not self.broken:
            if time.monotonic() > deadline or not self.server.is_running:
                self.broken.append(f"the server does not answer\n{self.server.log[-3000:]}")
                return
            await asyncio.sleep(0.01)

    # --- looking ---

    async def _stand_still(self) -> None:
        """Let all requests end, compare everything, and go on."""
        self._go.clear()
        for client in self.clients:
            async with client.busy:
                pass
        if not self.broken:
            await self._verify()
        self._go.set()

    async def _verify(self) -> None:
        tables = await self._tables()
        for owner in self.owners:
            try:
                owner.verify(tables.pop(owner.name, Table()))
            except Broken as broken:
                self.broken.append(f"{owner.name}: {broken}")
        if tables:
            self.broken.append(f"I2: rows or events of nobody: {tables}")

    async def _tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        touched: set[str] = set()
        for event in await self._new_events():
            table = tables.setdefault(owner_of((event.new or event.old or {})["code"]), Table())
            table.events.setdefault(event.row, []).append(event)
            touched.add(event.row)
        for entity in ENTITIES.values():
            for row in await self.ask(f"SELECT * FROM mdm_data.{entity.name}"):
                tables.setdefault(owner_of(row["code"]), Table()).rows[str(row["_sys_id"])] = row
            for row in await self._versions(entity.name, touched):
                versions = tables.setdefault(owner_of(row["code"]), Table()).versions
                versions.setdefault(str(row["_sys_id"]), []).append(row)
            for row in await self._proposals(entity):
                table = tables.setdefault(owner_of(row["code"]), Table())
                table.proposals[str(row["_sys_id"])] = row
        return tables

    async def _versions(self, name: str, rows: Iterable[str]) -> list[dict[str, Any]]:
        query = (
            f"SELECT * FROM mdm_data.{name}__history WHERE _sys_id = ANY (%s::uuid[])"
            " ORDER BY _sys_id, _sys_version"
        )
        return await self.ask(query, [list(rows)])

    async def _proposals(self, entity: Entity) -> list[dict[str, Any]]:
        if not entity.approval:
            return []
        return await self.ask(f"SELECT * FROM mdm_data.{entity.name}__edit")

    async def _new_events(self) -> list[Event]:
        """Return the events since the last look, in their order."""
        query = """SELECT s.seq, t.name, e.record_id::text AS row, e.action, e.version, e.old, e.new,
                          coalesce(e.actor, s.actor) AS actor
                     FROM mdm.change_set s JOIN mdm.event e ON e.change_set = s.key
                     JOIN mdm.entity t ON t.entity_id = e.entity_id
                    WHERE s.seq > %s ORDER BY s.seq, e.ordinal"""
        found = await self.ask(query, [self._seq])
        self._seq = max([self._seq, *(row["seq"] for row in found)])
        names = ("name", "row", "action", "actor", "version", "old", "new")
        return [Event(*(row[name] for name in names)) for row in found]

    async def settled(self) -> None:
        """Wait until what a killed process had sent to the database is done or gone."""
        await asyncio.sleep(0.05)
        query = (
            "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND state <> 'idle' AND xact_start < %s AND pid <> pg_backend_pid()"
        )
        (now,) = await self.ask("SELECT clock_timestamp() AS now")
        while await self.ask(query, [now["now"]]):  # noqa: ASYNC110 - outside
            await asyncio.sleep(0.01)

    async def ask(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Ask the database itself, however often it goes away."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            try:
                return await self._ask(query, values)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.02)

    async def _ask(self, query: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Ask through one connection, as long as it holds: a client that asks waits for the others."""
        async with self._asking:
            try:
                if self._conn is None:
                    self._conn = await psycopg.AsyncConnection.connect(
                        self.cluster.url, autocommit=True, row_factory=dict_row
                    )
                cursor = await self._conn.execute(query.encode(), values)
                return await cursor.fetchall()
            except BaseException:
                await self._hang_up()
                raise

    async def _hang_up(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()


def owner_of(code: str) -> str:
    return code.partition("-")[0]
