"""Laws of merges over generated warehouses: what is undone was never done, what is refused changes nothing,
each change of a row is one version and one event, and the past stays what it was."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.merge_steps import MergeRequest
from mdm_gitops.data.merging import Merger
from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.data.unmerging import MergeDecider
from mdm_gitops.errors import Conflict, MdmError, RowRefused
from mdm_gitops.warehouse.connect import ConnectionPool, connect, connection_pool
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store
from tests.support.merging import FILES

ENTITIES: Final = ("company", "contact", "invoice", "order", "profile", "page")
WITH_HISTORY: Final = ("company", "contact", "order", "profile")
CODES: Final = ("A", "B", "C", "D")
# What somebody chooses for the survivor: mostly nothing.
VALUES: Final[list[dict[str, Any]]] = [
    *({}, {}, {}),
    {"Name": "Chosen"},
    {"code": "T"},
    {"vat": "VT"},
    {"parent": None},
    {"rank": -1},
]
Row = dict[str, Any]


# --- warehouses -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Rows per table, and the merges that are tried one after the other."""

    rows: dict[str, list[Row]]
    merges: list[tuple[str, str, dict[str, Any]]]


def world(chance: Random) -> World:
    """Make one of the warehouses; piece by piece Hypothesis would take as long for it as its merges take."""

    def maybe(values: Sequence[Any]) -> Any:
        return chance.choice((None, *values))

    codes = list(CODES[: chance.randint(2, len(CODES))])
    vats = {code: f"V{code}" for code in codes if chance.random() < 0.5}
    company = [
        {
            "code": code,
            "vat": vats.get(code),
            "name": maybe(("Acme", "Acme Ltd")),
            "phone": maybe(("1", "2")),
            "notes": maybe(("a", "bb")),
            "source": maybe(("erp", "web")),
            "rank": maybe((1, 2)),
            "price": maybe(("1.500000", "2.000000")),
            "since": maybe(("2020-01-02T03:04:05.678Z",)),
            "more": maybe(('{"a": 1.50}', "[]")),
            "parent": maybe(codes),
            "secret": maybe(("s", "t")),
        }
        for code in codes
    ]
    contact = [
        {
            "code": f"C{n}",
            "company": maybe(codes),
            "second": maybe(codes),
            "label": f"L{n}" if chance.randint(0, 5) else "main",
            "_sys_is_deleted": chance.randint(0, 4) == 0,
        }
        for n in range(chance.randint(0, 3))
    ]
    invoice = [
        {"code": f"I{n}", "vat": chance.choice(list(vats.values()))}
        for n in range(chance.randint(0, 2) if vats else 0)
    ]
    orders = range(chance.randint(0, 2))
    order = [{"code": f"O{n}", "company": maybe(codes)} for n in orders]
    edit = [
        {"code": f"O{n}", "company": maybe(codes), "of": n if n in orders else None}
        for n in range(chance.randint(0, 3))
    ]
    profiles = chance.sample(codes, chance.randint(0, 2))
    page = [
        {"code": f"P{n}", "profile": chance.choice(profiles)}
        for n in range(chance.randint(0, 1) if profiles else 0)
    ]
    rows = {"company": company, "contact": contact, "invoice": invoice, "order": order}
    rows |= {"edit": edit, "profile": [{"company": code} for code in profiles], "page": page}
    order_of = chance.sample(codes, len(codes))
    # Of two merges the second takes the survivor of the first as its duplicate: a chain.
    steps = list(zip(order_of[1:], order_of, strict=False))[: chance.randint(1, 2)]
    merges = [(survivor, duplicate, chance.choice(VALUES)) for survivor, duplicate in steps]
    return World(rows=_without_clashes(rows), merges=merges)


def _without_clashes(rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    seen = set()
    for row in rows["contact"]:
        while (row["company"], row["label"]) in seen:
            row["label"] += "'"
        seen.add((row["company"], row["label"]))
    return rows


# --- the warehouse that all cases share -----------------------------------------------------------


@dataclass
class Bench:
    conn: AsyncConnection[Any]
    pool: ConnectionPool
    asking: Asking
    seen: Counter[str] = field(default_factory=Counter)

    async def fill(self, world: World) -> dict[str, UUID]:
        """Put the rows of *world* in place of those of the case before; return the companies."""
        ids: dict[str, UUID] = {}
        tables = [f'mdm_data."{name}"' for name in ENTITIES]
        tables += [f"mdm_data.{name}__history" for name in WITH_HISTORY]
        tables += ["mdm_data.order__edit", "mdm.merge", "mdm.event", "mdm.change_set"]
        orders: dict[int, UUID] = {}
        async with self.conn.transaction(), self.conn.pipeline():
            await self.conn.execute("SET CONSTRAINTS ALL DEFERRED")
            for table in tables:
                await self.conn.execute(f"DELETE FROM {table}".encode())
            for name in ENTITIES:
                for row in world.rows[name]:
                    row_id = uuid4()
                    await self._insert(name, row_id, row)
                    if name == "company":
                        ids[row["code"]] = row_id
                    elif name == "order":
                        orders[len(orders)] = row_id
            for row in world.rows["edit"]:
                await self._propose(orders.get(row["of"]), row)
        return ids

    async def _insert(self, table: str, row_id: UUID, row: Row) -> None:
        given = {"_sys_id": row_id, **row}
        given |= {"_sys_version": 1, "_sys_created_by": "t", "_sys_last_modified_by": "t"}
        columns = ", ".join(f'"{name}"' for name in given)
        holders = ", ".join("%s" for _ in given)
        await self.conn.execute(
            f'INSERT INTO mdm_data."{table}" ({columns}, _sys_created_at, _sys_last_modified_at)'
            f" VALUES ({holders}, clock_timestamp(), clock_timestamp())".encode(),
            list(given.values()),
        )

    async def _propose(self, row_id: UUID | None, row: Row) -> None:
        operation, base = ("update", 1) if row_id else ("create", None)
        await self.conn.execute(
            "INSERT INTO mdm_data.order__edit (_sys_id, code, company, _sys_base_version,"
            " _sys_operation, _sys_state, _sys_submitted_at, _sys_submitted_by)"
            " VALUES (%s, %s, %s, %s, %s, 'pending', clock_timestamp(), 't')",
            [row_id or uuid4(), row["code"], row["company"], base, operation],
        )

    async def look(self) -> dict[str, Any]:
        """Return what people see: rows and proposals without versions, who wrote them and when."""
        own = [
            f"SELECT '{name}', _sys_id::text, to_jsonb(t) FROM mdm_data.\"{name}\" t"
            for name in (*ENTITIES, "order__edit")
        ]
        cursor = await self.conn.execute(" UNION ALL ".join(own).encode())
        kept = ("_sys_is_deleted", "_sys_operation", "_sys_state")
        return {
            f"{table} {row_id}": {
                name: value
                for name, value in row.items()
                if not name.startswith("_sys_") or name in kept
            }
            for table, row_id, row in await cursor.fetchall()
        }

    async def bases_hold(self) -> bool:
        """Whether each proposal for a row still rests on its present version."""
        cursor = await self.conn.execute(
            'SELECT count(*) FROM mdm_data.order__edit e JOIN mdm_data."order" o USING (_sys_id)'
            " WHERE e._sys_base_version <> o._sys_version"
        )
        return await cursor.fetchone() == (0,)

    async def versions(self) -> dict[str, int]:
        own = [f'SELECT _sys_id::text, _sys_version FROM mdm_data."{name}"' for name in ENTITIES]
        cursor = await self.conn.execute(" UNION ALL ".join(own).encode())
        return dict(await cursor.fetchall())

    async def events(self) -> Counter[str]:
        cursor = await self.conn.execute(
            "SELECT e.record_id::text FROM mdm.event e JOIN mdm.change_set s ON s.key = e.change_set"
            " WHERE e.action <> 'data_edited'"
        )
        return Counter(row_id for (row_id,) in await cursor.fetchall())

    async def closed(self) -> set[str]:
        """Return the closed versions, each as one text."""
        own = [f"SELECT to_jsonb(h)::text FROM mdm_data.{name}__history h" for name in WITH_HISTORY]
        cursor = await self.conn.execute(" UNION ALL ".join(own).encode())
        return {text for (text,) in await cursor.fetchall()}

    async def past(self, moment: datetime) -> list[list[Any]]:
        """Return the rows as of *moment*, as a list of the API answers them."""
        found = []
        for name in ("company", "contact", "order"):
            request = ListRequest(take=100, as_of=moment)
            page = await list_rows(self.conn, asking=self.asking, entity=name, request=request)
            found.append([json.loads(row) for row in page.rows])
        return found

    async def now(self) -> datetime:
        found = await (await self.conn.execute("SELECT clock_timestamp()")).fetchone()
        assert found is not None
        return datetime.fromisoformat(found[0].isoformat())


async def opened(url: str) -> Bench:
    conn = await connect(url, application_name="test")
    pool = connection_pool(url, application_name="test", min_size=1, max_size=2)
    await pool.open()
    state = await Store(schemas=Schemas()).current(conn)
    principal = Principal(kind=PrincipalKind.USER, name="tester", is_global_admin=True)
    asking = Asking(principal=principal, state=state, schemas=Schemas(), now=datetime.now(UTC))
    return Bench(conn=conn, pool=pool, asking=asking)


# --- the law --------------------------------------------------------------------------------------


async def holds(bench: Bench, world: World) -> None:
    ids = await bench.fill(world)
    merger, decider = Merger(bench.pool), MergeDecider(bench.pool)
    moment = await bench.now()
    stages: list[tuple[Any, Any, UUID]] = []
    for survivor, duplicate, values in world.merges:
        before = (await bench.look(), await bench.versions(), await bench.closed())
        request = MergeRequest(
            survivor_id=ids[survivor], duplicate_id=ids[duplicate], values=values
        )
        first = await bench.past(moment) if not stages else stages[0][1]
        try:
            merged = await merger.merge(bench.asking, "company", request)
        except (Conflict, RowRefused) as refused:
            bench.seen[refused.kind_code] += 1
            after = (await bench.look(), await bench.versions(), await bench.closed())
            assert after == before, "a merge that is refused changes nothing"
            break
        bench.seen["merged"] += 1
        stages.append((before, first, merged.merge_id))
        await _is_merged(bench, ids, (survivor, duplicate), before, merged.relinked)
        assert await bench.past(moment) == first, "the past is what it was"
    bench.seen["chains"] += len(stages) == 2
    for (rows, _, closed), first, merge_id in reversed(stages):
        merged_rows = await bench.closed()
        await decider.undo(bench.asking, "company", merge_id)
        assert await bench.look() == rows, "what is undone was never done"
        assert await bench.closed() >= merged_rows >= closed, "history is never written again"
        assert await bench.past(moment) == first
        assert await bench.bases_hold()
    await _each_change_is_told_once(bench)


async def _is_merged(
    bench: Bench, ids: dict[str, UUID], pair: tuple[str, str], before: Any, relinked: Any
) -> None:
    survivor, duplicate = (str(ids[code]) for code in pair)
    rows, old = await bench.look(), before[0]
    gone = rows[f"company {duplicate}"]
    kept = rows[f"company {survivor}"]
    assert gone["_sys_is_deleted"]
    was = {**old[f"company {duplicate}"], "_sys_is_deleted": True}
    assert _only_renamed(gone, was, kept, old, survivor)
    counted: Counter[str] = Counter()
    for name, row in rows.items():
        table, _, row_id = name.partition(" ")
        if row_id in (survivor, duplicate):
            continue
        columns = {"company": ["parent"], "contact": ["company", "second"], "invoice": ["vat"]}
        columns |= {"order": ["company"], "order__edit": ["company"], "profile": ["company"]}
        for column in columns.get(table, []):
            assert row[column] is None or row[column] != gone["vat" if column == "vat" else "code"]
        if (
            row != old[name]
            and table != "page"
            and not _only_renamed(row, old[name], kept, old, survivor)
        ):
            counted[{"company": "Company"}.get(table, table)] += 1
    counted.pop("order__edit", None)
    assert dict(counted) == relinked
    bench.seen["relinked"] += sum(counted.values())


def _only_renamed(row: Row, was: Row, kept: Row, old: Any, survivor: str) -> bool:
    """Whether a row changed because the survivor's own key did, which counts as no relink."""
    before = old[f"company {survivor}"]
    names = {before["code"]: kept["code"], before["vat"]: kept["vat"]}
    keys = ("company", "second", "parent", "vat")
    return row == {n: names.get(v, v) if n in keys and v else v for n, v in was.items()}


async def _each_change_is_told_once(bench: Bench) -> None:
    """I2: as many events as versions were made, of each row."""
    versions = await bench.versions()
    changes = {row_id: version - 1 for row_id, version in versions.items() if version > 1}
    assert await bench.events() == changes


def _run(url: str, cases: int, *, law: Any = holds) -> Counter[str]:
    """Hold *law* in as many warehouses, the same in each run."""
    with asyncio.Runner() as runner:
        bench = runner.run(opened(url))

        @settings(
            max_examples=cases,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # a number has nothing that could be left out of it
            suppress_health_check=list(HealthCheck),
        )
        @given(number=st.integers(0, 2**64 - 1))
        def checked(number: int) -> None:
            made = world(Random(number))
            note(f"{made}")
            runner.run(law(bench, made))

        try:
            checked()
        finally:
            runner.run(_closed(bench))
        return bench.seen


async def _closed(bench: Bench) -> None:
    await bench.pool.close()
    await bench.conn.close()


def test_merge_then_undo_is_the_identity(merging_url: str) -> None:
    _hold(merging_url, 500)


@pytest.mark.soak
def test_the_same_of_many(merging_url: str) -> None:
    _hold(merging_url, 5_000)


def _hold(url: str, cases: int) -> None:
    seen = _run(url, cases)
    # It was about something: each outcome has occurred.
    expected = ("merged", "chains", "relinked", "MERGE_LINK_REFUSED", "MERGE_REFERENCE_NO_VALUE")
    assert all(seen[name] for name in (*expected, "ENTITY_VALIDATION_RANGE")), seen


def test_the_law_is_broken_where_links_are_forgotten(merging_url: str) -> None:
    """Negative control: without what the merge has noted, the undo does not give the links back."""

    async def forgetful(bench: Bench, world: World) -> None:
        sql = """CREATE OR REPLACE FUNCTION mdm.forget() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RETURN NULL; END $$;
            CREATE OR REPLACE TRIGGER forget BEFORE INSERT ON mdm.merge_link
            FOR EACH ROW EXECUTE FUNCTION mdm.forget()"""
        await bench.conn.execute(sql.encode())
        await holds(bench, world)

    with pytest.raises((AssertionError, MdmError)):
        _run(merging_url, 100, law=forgetful)


@pytest.fixture(autouse=True)
def _names_are_those_of_the_files() -> Iterator[None]:
    assert {f"entities/{name}.yaml" for name in ENTITIES} <= set(FILES)
    yield
