"""Soft-deleted rows go for good when ``deletedRetentionDays`` are over, and no other ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.expiry import remove_deleted
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply, plan

pytestmark = pytest.mark.anyio
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: lab}]\n",
    "entities/kind.yaml": b"""
name: kind
domain: lab
historyEnabled: true
deletedRetentionDays: 30
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: parent, dataType: string, reference: {entity: kind}}
""",
    "entities/kept.yaml": b"""
name: kept
domain: lab
keyColumns: [code]
columns: [{name: code, dataType: string, nullable: false}]
""",
    "entities/asked.yaml": b"""
name: asked
domain: lab
approvalRequired: true
allowSameAuthorApproval: true
deletedRetentionDays: 30
keyColumns: [code]
columns: [{name: code, dataType: string, nullable: false}]
""",
}

SETTINGS = Settings(RateLimit=RateLimitSettings(Enabled=False))


async def prepare(conn: AsyncConnection[Any]) -> None:
    await apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)


class Lab:
    def __init__(self, url: str, client: Client, conn: AsyncConnection[Any]) -> None:
        self.url = url
        self.client = client
        self.conn = conn

    async def send(self, method: str, path: str, document: Any = None) -> Any:
        path = f"/api/v1/entities/{path}"
        answer = await self.client.request(
            method, path, headers={"X-API-Key": KEY}, json=document or {}
        )
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def row(self, entity: str, code: str, *, deleted_days: int = 0, **values: str) -> str:
        """Create a row, and delete it softly so many days ago."""
        created = await self.send("POST", f"{entity}/data", {"code": code, **values})
        row_id = str(created["_sys_id"])
        if entity == "asked":
            await self.send("POST", f"{entity}/approve/{row_id}")
        if deleted_days:
            await self.send("DELETE", f"{entity}/data/{row_id}?soft=true")
            if entity == "asked":
                await self.send("POST", f"{entity}/approve/{row_id}")
            await self.conn.execute(
                f"UPDATE mdm_data.{entity} SET _sys_deleted_at = now() - make_interval(days => %s)"
                " WHERE _sys_id = %s".encode(),
                [deleted_days, row_id],
            )
        return row_id

    async def expire(self, batch: int = 500) -> int:
        state = await Store(schemas=Schemas()).current(self.conn)
        now = datetime.now(UTC)
        return await remove_deleted(self.conn, schemas=Schemas(), state=state, now=now, batch=batch)

    async def codes(self, entity: str) -> list[str]:
        query = f"SELECT code FROM mdm_data.{entity} ORDER BY code".encode()
        return [row[0] for row in await (await self.conn.execute(query)).fetchall()]


@pytest.fixture
async def lab(copy_of: Callable[..., str]) -> AsyncIterator[Lab]:
    url = copy_of(prepare)
    app = create_app(database_url=url, settings=SETTINGS)
    app.state.services.expiry.done_at = time.monotonic()  # nobody but the test does it
    async with await connect(url, application_name="test") as conn, served(app) as client:
        yield Lab(url, client, conn)


@pytest.mark.parametrize("batch", [1, 500])
async def test_only_what_is_old_and_deleted_goes(lab: Lab, batch: int) -> None:
    await lab.row("kind", "a-active")
    await lab.row("kind", "b-young", deleted_days=29)
    for code in ("c-old", "d-old", "e-old"):
        await lab.row("kind", code, deleted_days=31)
    await lab.row("kept", "f-kept", deleted_days=4_000)
    assert await lab.expire(batch) == 3
    assert await lab.codes("kind") == ["a-active", "b-young"]
    assert await lab.codes("kept") == ["f-kept"]
    assert await lab.expire(batch) == 0


async def test_it_is_told_as_a_deletion_by_the_service(lab: Lab) -> None:
    row_id = await lab.row("kind", "old", deleted_days=31)
    await lab.expire()
    cursor = await lab.conn.execute(
        "SELECT e.record_id::text, e.action, coalesce(e.actor, s.actor), e.old ->> 'code', e.detail"
        " FROM mdm.event e JOIN mdm.change_set s ON s.key = e.change_set ORDER BY s.seq DESC LIMIT 1"
    )
    told = ("data_deleted", "system:retention", "old", {"retentionDays": 30})
    assert await cursor.fetchone() == (row_id, *told)
    cursor = await lab.conn.execute(
        "SELECT _sys_action FROM mdm_data.kind__history ORDER BY _sys_version"
    )
    assert await cursor.fetchall() == [("data_soft_deleted",), ("data_deleted",)]


async def test_what_is_referred_to_stays_as_long_as_that(lab: Lab) -> None:
    await lab.row("kind", "parent", deleted_days=31)
    await lab.conn.execute("UPDATE mdm_data.kind SET _sys_is_deleted = false")
    child = await lab.row("kind", "child", parent="parent")
    await lab.conn.execute("UPDATE mdm_data.kind SET _sys_is_deleted = true WHERE code = 'parent'")
    assert await lab.expire() == 0
    await lab.send("DELETE", f"kind/data/{child}")
    assert await lab.expire() == 1
    assert await lab.codes("kind") == []


async def test_what_a_proposal_waits_for_stays_until_it_is_decided(lab: Lab) -> None:
    restoring = await lab.row("asked", "restoring", deleted_days=31)
    await lab.row("asked", "old", deleted_days=31)
    await lab.send("POST", f"asked/data/{restoring}/restore")
    assert await lab.expire() == 1
    assert await lab.codes("asked") == ["restoring"]
    await lab.send("POST", f"asked/approve/{restoring}")
    assert await lab.expire() == 0


async def test_a_plan_that_lets_rows_go_sooner_wants_a_yes(lab: Lab) -> None:
    kept = FILES["entities/kept.yaml"]
    sooner = {**FILES, "entities/kept.yaml": kept + b"deletedRetentionDays: 5\n"}
    made = await plan(lab.conn, read_tree(sooner))
    [change] = [each for each in made.changes if each.change.entity == "kept"]
    hazards = [(hazard.code.value, hazard.message) for hazard in change.assessment.hazards]
    assert hazards == [("DELETES_ROWS", "deleted rows of kept go for good after 5 days")]


async def test_what_is_restored_at_the_same_moment_stays(lab: Lab) -> None:
    row_id = await lab.row("kind", "old", deleted_days=31)
    async with await connect(lab.url, application_name="restoring") as other:
        async with other.transaction():
            await other.execute(
                "UPDATE mdm_data.kind SET _sys_is_deleted = false, _sys_version = _sys_version + 1"
            )
            expiring = asyncio.create_task(lab.expire())
            await _until_somebody_waits(other)
        assert await expiring == 0
    assert (await lab.send("GET", f"kind/data/{row_id}"))["_sys_state"] == "active"


async def _until_somebody_waits(conn: AsyncConnection[Any]) -> None:
    query = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while not (await conn.execute(query)).rowcount:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def test_a_server_does_it_by_itself(lab: Lab) -> None:
    await lab.row("kind", "old", deleted_days=31)
    await lab.row("kind", "young", deleted_days=29)
    async with served(create_app(database_url=lab.url, settings=SETTINGS)):
        async with asyncio.timeout(60):
            while await lab.codes("kind") != ["young"]:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
