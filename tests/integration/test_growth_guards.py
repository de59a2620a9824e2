"""Single requests read as many rows of a large entity as of a small one, and send as many statements.

Counted, not timed (``tests.support.meter``). Each case has its negative control: without the indexes it
reads more than it may.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.access.api_keys import digest, generate_key
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.feed import ChangesRequest, number_changes, read_changes
from mdm_gitops.data.rows import ListRequest, RowShape, get_row, list_rows
from mdm_gitops.data.search import SearchRequest, search_rows
from mdm_gitops.data.similar import SimilarRequest, similar_rows
from mdm_gitops.data.writing import RowWriter
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import ConnectionPool, connection_pool
from mdm_gitops.warehouse.store import read_state
from tests.conftest import Prepare
from tests.support import warehouses as on
from tests.support.meter import Cost, cost_of

pytestmark = pytest.mark.anyio

SIZES: Final = {"small": 500, "large": 5_000}
TAKE: Final = 20
PAST: Final = datetime(2025, 1, 1, 12, tzinfo=UTC)
GRANTS: Final = 1_000
MANY: Final = 64
_COLUMNS: Final = [
    {"name": "code", "dataType": "string", "nullable": False},
    {"name": "name", "dataType": "string"},
    {"name": "batch", "dataType": "string", "reference": {"entity": "batch"}},
]
_BATCH: Final = {"name": "batch", "domain": "d", "keyColumns": ["code"], "columns": _COLUMNS[:1]}


def _entity(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "domain": "d",
        "historyEnabled": True,
        "keyColumns": ["code"],
        "search": {"enabled": True},
        "similarity": {"columns": [{"name": "name"}]},
        "columns": _COLUMNS,
    }


def _files() -> dict[str, bytes]:
    granted = [
        {"users": [user], "domains": ["d"], "entities": [name], "actions": ["read"], **more}
        for name in SIZES
        for user, more in (("one", {"rowFilterDsl": "[batch] = 'B7'"}), ("many", {}))
    ]
    project = {"name": "test", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "d"}]}
    documents = {
        "mdm.yaml": project,
        "entities/batch.yaml": _BATCH,
        **{f"entities/{name}.yaml": _entity(name) for name in SIZES},
        "permissions.yaml": {"permissions": granted},
    }
    return {path: json.dumps(document).encode() for path, document in documents.items()}


_ROWS: Final = """
INSERT INTO mdm_data.{table} (_sys_id, code, name, batch, _sys_version, _sys_created_at,
       _sys_created_by, _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted{more})
SELECT rpad(lpad(to_hex(n), 12, '0') || '7000800000000000', 32, '0')::uuid, 'T' || lpad(n::text, 8, '0'),
       md5(n::text), 'B' || n % ({count} / 50), {version}, '2025-01-01Z', 'test', '{at}', 'test',
       false{values} FROM generate_series(1, {count}) n"""
_PAST: Final = {
    "version": 1,
    "at": "2025-01-01Z",
    "more": ", _sys_valid_from, _sys_valid_to, _sys_action",
    "values": ", '2025-01-01Z', '2025-01-02Z', 'data_updated'",
}
_EVENTS: Final = """
WITH s AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor)
  SELECT nextval('mdm.change_set_key'), 100, now(), 'test' FROM generate_series(1, {count} / 100)
  RETURNING key)
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, new)
SELECT key, n, (SELECT entity_id FROM mdm.entity WHERE name = '{name}'), gen_random_uuid(),
       'data_created', 1, '{{"code":"T"}}' FROM s, generate_series(0, 99) n"""
_GRANTED: Final = f"""
INSERT INTO mdm.permission (principal, domain, entity, actions, row_filter)
SELECT 'u' || n, 'd', 'small', '{{read}}', '' FROM generate_series(1, {GRANTS}) n"""
_BATCHES: Final = """
INSERT INTO mdm_data.batch (_sys_id, code, _sys_created_at, _sys_created_by, _sys_last_modified_at,
       _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'B' || n, now(), 'test', now(), 'test' FROM generate_series(0, 500) n"""


async def filled(conn: AsyncConnection[Any]) -> None:
    """Two entities that differ in the number of their rows: 50 rows share a batch in both."""
    await on.apply(conn, read_tree(_files()))
    await conn.execute(_BATCHES)
    await conn.execute(_GRANTED)
    await conn.execute(_ADD_KEY, [digest(KEY)])
    now = {"version": 2, "at": "2025-01-02Z", "more": "", "values": ""}
    for name, count in SIZES.items():
        await conn.execute(_ROWS.format(table=name, count=count, **now))
        await conn.execute(_ROWS.format(table=f"{name}__history", count=count, **_PAST))
        await conn.execute(_EVENTS.format(count=count, name=name))
    while await number_changes(conn, schemas=on.SCHEMAS):
        pass
    await conn.execute("VACUUM ANALYZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    conn: AsyncConnection[Any]
    writer: RowWriter

    async def asking(self, user: str = "") -> Asking:
        return Asking(
            principal=Principal(
                kind=PrincipalKind.USER, name=user or "root", is_global_admin=not user
            ),
            state=await read_state(self.conn, schemas=on.SCHEMAS),
            schemas=on.SCHEMAS,
            now=datetime.now(UTC),
        )


@asynccontextmanager
async def _lab(url: str) -> AsyncIterator[Lab]:
    async with connection_pool(url, application_name="test", max_size=1, checked=False) as pool:
        async with pool.connection() as conn:
            pass  # the only one; nobody else uses it while it is measured
        writer = RowWriter(pool)
        yield Lab(conn=conn, writer=writer)
        await writer.aclose()


@pytest.fixture
async def lab(shared_copy: str) -> AsyncIterator[Lab]:
    async with _lab(shared_copy) as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_copy(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(filled)


_DROPPED: Final = """
DO $$ DECLARE each record; BEGIN
  FOR each IN SELECT conrelid::regclass AS of, conname FROM pg_constraint
    WHERE contype = 'p' AND connamespace IN ('mdm'::regnamespace, 'mdm_data'::regnamespace)
  LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', each.of, each.conname); END LOOP;
  FOR each IN SELECT indexrelid::regclass AS of FROM pg_index JOIN pg_class c ON c.oid = indexrelid
    WHERE relnamespace = 'mdm_data'::regnamespace
  LOOP EXECUTE format('DROP INDEX %s CASCADE', each.of); END LOOP;
END $$"""


@pytest.fixture(scope="module")
async def without_indexes(shared_copy_of: Callable[[Prepare], str]) -> str:
    url = shared_copy_of(filled)
    async with on.opened(url) as conn:
        await conn.execute(_DROPPED)
        await conn.execute("ANALYZE")
    return url


# --- the cases ------------------------------------------------------------------------------------

Work = Callable[[], Awaitable[object]]


def _row_id(name: str) -> UUID:
    return UUID(hex=f"{SIZES[name] // 2:012x}7000800000000000".ljust(32, "0"))


async def _listed(lab: Lab, name: str, *, user: str = "", **asked: Any) -> Work:
    asking = await lab.asking(user)
    request = ListRequest(take=TAKE, **asked)

    async def run() -> None:
        page = await list_rows(lab.conn, asking=asking, entity=name, request=request)
        assert len(page.rows) == TAKE

    return run


async def _deep(lab: Lab, name: str) -> Work:
    before = ListRequest(skip=SIZES[name] * 9 // 10, take=1)
    found = await list_rows(lab.conn, asking=await lab.asking(), entity=name, request=before)
    return await _listed(lab, name, after=found.next_after)


async def _by_id(lab: Lab, name: str) -> Work:
    asking, row_id, shape = await lab.asking(), _row_id(name), RowShape()
    return lambda: get_row(lab.conn, asking=asking, entity=name, row_id=row_id, shape=shape)


async def _past_by_id(lab: Lab, name: str) -> Work:
    asking, row_id, shape = await lab.asking(), _row_id(name), RowShape()
    return lambda: get_row(
        lab.conn, asking=asking, entity=name, row_id=row_id, shape=shape, as_of=PAST
    )


async def _last_changes(lab: Lab, name: str) -> Work:
    """The end of the feed, once among a tenth of the changes, once among all."""
    after = SIZES["small"] - TAKE if name == "small" else sum(SIZES.values()) - 200
    return await _changes(lab, after)


async def _first_changes(lab: Lab, name: str) -> Work:
    return await _changes(lab, 0 if name == "small" else SIZES["small"])


async def _changes(lab: Lab, after: int) -> Work:
    asking = await lab.asking()

    async def run() -> None:
        page = await read_changes(
            lab.conn, asking=asking, request=ChangesRequest(after=after, take=TAKE)
        )
        assert page.count == TAKE

    return run


async def _created(lab: Lab, name: str) -> Work:
    asking = await lab.asking()
    numbers = iter(range(100))

    async def run() -> None:
        row = {"code": f"{name}{next(numbers)}", "batch": "B400"}
        await lab.writer.create(asking, name, row)

    return run


async def _updated(lab: Lab, name: str) -> Work:
    asking, numbers = await lab.asking(), iter(range(100))
    return lambda: lab.writer.update(asking, name, _row_id(name), {"name": str(next(numbers))})


async def _searched(lab: Lab, name: str) -> Work:
    asking = await lab.asking()
    named = (await _name_of(lab, name))[:12]

    async def run() -> None:
        request = SearchRequest(q=named, entity=name)
        assert (await search_rows(lab.conn, asking=asking, request=request)).found

    return run


async def _similar(lab: Lab, name: str) -> Work:
    asking = await lab.asking()
    named = await _name_of(lab, name)

    async def run() -> None:
        request = SimilarRequest(values={"name": named})
        found = await similar_rows(lab.conn, asking=asking, entity=name, request=request)
        assert found.found

    return run


async def _name_of(lab: Lab, name: str) -> str:
    query = f"SELECT md5('{SIZES[name] // 3}')"
    row = await (await lab.conn.execute(query.encode())).fetchone()
    assert row is not None
    return str(row[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    work: Callable[[Lab, str], Awaitable[Work]]
    statements: int
    rows: int  # at most, of any size


# One row of each statement is the revision.
CASES: Final = {
    "read by id": Case(work=_by_id, statements=1, rows=3),
    "read by id, as of": Case(work=_past_by_id, statements=1, rows=6),
    "first page": Case(work=_listed, statements=1, rows=TAKE + 3),
    "page far back": Case(work=_deep, statements=1, rows=TAKE + 3),
    "filtered by a reference": Case(
        work=lambda lab, name: _listed(lab, name, filter="[batch] = 'B7'"), statements=1, rows=150
    ),
    "row filter on a reference": Case(
        work=lambda lab, name: _listed(lab, name, user="one"), statements=1, rows=150
    ),
    "first page, one of many grants": Case(
        work=lambda lab, name: _listed(lab, name, user="many"), statements=1, rows=TAKE + 3
    ),
    "first page of the past": Case(
        work=lambda lab, name: _listed(lab, name, as_of=PAST), statements=1, rows=8 * TAKE
    ),
    "first changes": Case(work=_first_changes, statements=1, rows=300),
    "last changes": Case(work=_last_changes, statements=1, rows=300),
    "create": Case(work=_created, statements=1, rows=20),
    "update": Case(work=_updated, statements=1, rows=20),
    "search": Case(work=_searched, statements=4, rows=200),
    "similar": Case(work=_similar, statements=2, rows=200),
}


@pytest.mark.parametrize("name", CASES)
async def test_it_costs_the_same_whatever_the_number_of_rows(lab: Lab, name: str) -> None:
    case = CASES[name]
    found = {size: await _cost(lab, case, size) for size in SIZES}
    assert {cost.statements for cost in found.values()} == {case.statements}, found
    assert found["large"].rows <= case.rows, found


async def _cost(lab: Lab, case: Case, size: str) -> Cost:
    return await cost_of(lab.conn, await case.work(lab, size))


@pytest.mark.parametrize("name", CASES)
async def test_without_its_index_it_costs_more(without_indexes: str, name: str) -> None:
    """The negative control: the guard sees what it is there to see."""
    async with _lab(without_indexes) as lab:
        found = await _cost(lab, CASES[name], "large")
    assert found.rows > CASES[name].rows, found


async def test_writes_that_arrive_together_share_a_statement(lab: Lab) -> None:
    asking = await lab.asking()

    async def together() -> None:
        rows = ({"code": f"{datetime.now(UTC)}{n}", "batch": "B7"} for n in range(MANY))
        await asyncio.gather(*(lab.writer.create(asking, "large", row) for row in rows))

    found = await cost_of(lab.conn, together)
    assert found.statements <= 3, found
    assert found.rows <= 20 * MANY


async def test_a_check_of_rights_asks_nobody_whatever_the_number_of_grants(lab: Lab) -> None:
    asking = await lab.asking("many")
    assert sum(map(len, asking.state.grants.values())) > GRANTS

    async def check() -> None:
        for stored in asking.state.entities.values():
            asking.rights(stored.definition)

    assert await cost_of(lab.conn, check) == Cost(statements=0, rows=0)


# --- whole requests -------------------------------------------------------------------------------

KEY: Final = generate_key()
_ADD_KEY: Final = """
INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by)
VALUES ('root', %s, true, 'test')"""
_DATA: Final = "/api/v1/entities/large/data"
REQUESTS: Final = {
    "read by id": ("GET", f"{_DATA}/{_row_id('large')}"),
    "list": ("GET", f"{_DATA}?take=20"),
    "changes": ("GET", "/api/v1/changes?afterId=0&take=20"),
    "create": ("POST", _DATA),
    "update": ("PUT", f"{_DATA}/{_row_id('large')}"),
}


async def _only_connection(pool: ConnectionPool) -> AsyncConnection[Any]:
    """Return the one of *pool* when the chores that an application begins with are done."""
    seen, asked = -1, 0
    while seen != asked or not pool.get_stats()["pool_available"]:
        await asyncio.sleep(0.2)
        seen, asked = asked, pool.get_stats()["requests_num"]
    async with pool.connection() as conn:
        return conn


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_needs_few_statements(shared_copy: str, name: str) -> None:
    settings = Settings.model_validate({"Database": {"PoolMinSize": 1, "PoolMaxSize": 1}})
    app = create_app(database_url=shared_copy, settings=settings)
    method, path = REQUESTS[name]
    numbers = iter(range(100))
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://mdm.example") as client,
    ):
        conn = await _only_connection(app.state.services.pool)

        async def ask() -> None:
            row = (
                {"code": f"H{name}{next(numbers)}"}
                if method == "POST"
                else {"name": f"{next(numbers)}"}
            )
            body = None if method == "GET" else row
            answer = await client.request(method, path, headers={"X-API-Key": KEY}, json=body)
            assert answer.is_success, answer.text

        found = await cost_of(conn, ask)
        await conn.execute("UPDATE mdm.revision SET value = value + 1")  # as a deployment does
        control = await cost_of(conn, ask, warm_ups=0)
    assert control.statements > 2, "it reads the state of the store anew"
    assert found.statements <= 2, "its own, and one for the revision of the store"
    assert found.rows <= 300
