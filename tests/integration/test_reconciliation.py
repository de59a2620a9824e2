"""The operator among people: plans that wait, modes, windows, suspensions, what is told and by whom.

The operator is a real one on a real repository, the API a real one beside it; they share nothing but
the warehouse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from mdm_operator.state import ConditionType, Outcome
from tests.small_repository import ROWS, SmallRepository
from tests.support.git import git
from tests.support.operating import (
    NOW,
    Client,
    Clock,
    Conn,
    api_beside,
    columns,
    operating,
    outcome_of,
    seeded,
    stands,
    started,
    waiting,
)
from tests.support.serving import add_key

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path) -> SmallRepository:
    return seeded(tmp_path)


@pytest.fixture
async def client(database_url: str, conn: Conn) -> AsyncIterator[Client]:
    async with api_beside(database_url, conn) as client:
        yield client


class TestPlansThatWait:
    async def test_one_is_approved_and_applied_in_the_name_of_who_approved(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.remove_last_column()
            commit = repository.commit()
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
            [line] = await waiting(client)
            assert (line["state"], line["commit"], line["entities"], line["isWider"]) == (
                "waiting",
                commit,
                ["country"],
                False,
            )
            shown = (await client.get(f"/api/v1/plans/{line['id']}")).json()
            assert shown["plan"]["plan_id"] == line["id"]
            assert shown["plan"]["destructive"]
            assert await reconciler.step() is None, "nobody has decided"
            answer = await client.post(
                f"/api/v1/plans/{line['id']}/approve", json={"comment": "looked at"}
            )
            assert answer.json()["state"] == "approved"
            assert await outcome_of(reconciler) is Outcome.APPLIED
            assert await outcome_of(reconciler) is Outcome.IN_SYNC
        assert await columns(conn) == ["code", "_arch_1_name"]
        [past] = (await client.get("/api/v1/plans?state=all")).json()["items"]
        assert (past["state"], past["decidedBy"], past["comment"]) == (
            "applied",
            "apikey:bootstrap",
            "looked at",
        )
        row = await (
            await conn.execute("SELECT actor FROM mdm.deployment ORDER BY deployment_id DESC")
        ).fetchone()
        assert row == ("apikey:bootstrap",)
        actions = (await client.get("/api/v1/audit?action=plan_approved")).json()
        assert actions["totalCount"] == 1
        gone = await client.post(f"/api/v1/plans/{line['id']}/approve")
        assert (gone.status_code, gone.json()["code"]) == (409, "PLAN_STALE")

    async def test_an_approval_is_for_exactly_that_plan(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.remove_last_column()
            repository.commit()
            await reconciler.step()
            [first] = await waiting(client)
            await client.post(f"/api/v1/plans/{first['id']}/approve")
            text = repository.country.read_text()
            repository.write("entities/town.yaml", text.replace("name: country", "name: town"))
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
            [second] = await waiting(client)
            assert second["id"] != first["id"]
            assert second["state"] == "waiting"
            assert await columns(conn) == ["code", "name"]

    async def test_a_rejected_one_stays_rejected_until_something_changes(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.remove_last_column()
            repository.commit()
            await reconciler.step()
            [line] = await waiting(client)
            await client.post(f"/api/v1/plans/{line['id']}/reject", json={"comment": "no"})
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
            [same] = await waiting(client)
            assert (same["id"], same["state"], same["comment"]) == (line["id"], "rejected", "no")
            git(repository.root, "revert", "--no-edit", "HEAD")
            assert await outcome_of(reconciler) is Outcome.IN_SYNC
        assert await waiting(client) == []
        assert await columns(conn) == ["code", "name"]

    async def test_admins_decide_in_their_own_domain(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        permission = (
            "  - users: ['apikey:{}']\n    domains: [{}]\n    entities: []\n    actions: [{}]\n"
        )
        repository.edit(
            "domains:\n  - name: core\n", "domains: [{name: core}, {name: x}]\n", "mdm.yaml"
        )
        repository.write(
            "permissions.yaml",
            "permissions:\n"
            + permission.format("ours", "core", "admin")
            + permission.format("theirs", "x", "admin")
            + permission.format("editor", "core", "write"),
        )
        repository.commit()
        keys = {name: await add_key(conn, name) for name in ("ours", "theirs", "editor")}
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.remove_last_column()
            repository.commit()
            await reconciler.step()
            [line] = await waiting(client, **{"X-API-Key": keys["ours"]})
            path = f"/api/v1/plans/{line['id']}"
            for name in ("theirs", "editor"):
                headers = {"X-API-Key": keys[name]}
                assert await waiting(client, **headers) == []
                for method, end in (("GET", ""), ("POST", "/approve"), ("POST", "/reject")):
                    answer = await client.request(method, path + end, headers=headers)
                    assert answer.json()["code"] == "PLAN_NOT_FOUND"
            repository.edit("actions: [write]", "actions: [write, approve]", "permissions.yaml")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
            assert await waiting(client, **{"X-API-Key": keys["ours"]}) == [], "rights go further"
            assert len(await waiting(client)) == 1

    async def test_rows_that_a_check_found_are_not_kept(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        repository.seed(ROWS)
        repository.commit()
        async with operating(
            repository, database_url, operator={"Mode": "plan-only"}
        ) as reconciler:
            await started(reconciler)
            await conn.execute("UPDATE mdm_data.country SET name = NULL WHERE code = 'DE'")
            repository.edit("  - name: name\n", "  - name: name\n    nullable: false\n")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        rows = await (await conn.execute("SELECT document::text FROM mdm.waiting_plan")).fetchall()
        assert rows
        assert all("samples" not in row[0] for row in rows)


class TestModes:
    async def test_observe_tells_and_does_nothing(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
        repository.add_column("capital")
        repository.write("mdm.yaml", (repository.root / "mdm.yaml").read_text())
        repository.commit()
        await conn.execute("DROP INDEX mdm_data.country__uq_code")
        async with operating(repository, database_url, operator={"Mode": "observe"}) as reconciler:
            assert await outcome_of(reconciler) is Outcome.OUT_OF_SYNC
            assert reconciler.state.is_true(ConditionType.DRIFT_DETECTED)
            assert await waiting(client) == []
        assert await columns(conn) == ["code", "name"]

    async def test_plan_only_asks_for_what_is_safe_too(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(
            repository, database_url, operator={"Mode": "plan-only"}
        ) as reconciler:
            await started(reconciler)
            repository.add_column("capital")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
            [line] = await waiting(client)
            await client.post(f"/api/v1/plans/{line['id']}/approve")
            assert await outcome_of(reconciler) is Outcome.APPLIED
        assert await columns(conn) == ["code", "name", "capital"]

    @pytest.mark.parametrize(
        ("mode", "outcome"),
        [("observe", Outcome.OUT_OF_SYNC), ("plan-only", Outcome.APPROVAL_PENDING)],
    )
    async def test_less_for_one_entity_holds_up_no_other(
        self,
        repository: SmallRepository,
        database_url: str,
        conn: Conn,
        client: Client,
        mode: str,
        outcome: Outcome,
    ) -> None:
        text = repository.country.read_text()
        repository.write("entities/town.yaml", text.replace("name: country", "name: town"))
        project = (repository.root / "mdm.yaml").read_text()
        override = f"reconcile: {{overrides: [{{entities: [country], mode: {mode}}}]}}\n"
        repository.write("mdm.yaml", project + override)
        repository.commit()
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.add_column("capital")
            new = repository.country.read_text()
            repository.write("entities/town.yaml", new.replace("name: country", "name: town"))
            repository.commit()
            assert await outcome_of(reconciler) is outcome
            assert await columns(conn) == ["code", "name"]
            found = await conn.execute("SELECT count(capital) FROM mdm_data.town")
            assert await found.fetchone() == (0,)
            for line in await waiting(client):
                await client.post(f"/api/v1/plans/{line['id']}/approve")
            last = await reconciler.step()
            if mode == "plan-only":
                assert last is not None
                assert last.outcome is Outcome.APPLIED
                assert await columns(conn) == ["code", "name", "capital"]
            else:
                assert await columns(conn) == ["code", "name"]


class TestSuspensions:
    async def test_everything(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            answer = await client.post(
                "/api/v1/reconciliation/suspend", json={"reason": "release freeze"}
            )
            assert answer.json()["suspensions"][0]["reason"] == "release freeze"
            repository.add_column("capital")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.SUSPENDED
            assert await columns(conn) == ["code", "name"]
            assert (await client.post("/api/v1/reconciliation/resume")).json()["suspensions"] == []
            assert await outcome_of(reconciler) is Outcome.APPLIED
            found = await stands(client)
        kinds = [event["kind"] for event in found["events"]]
        assert kinds == ["applied", "resumed", "suspended", "suspended", "in-sync", "applied"]
        actors = {event["actor"] for event in found["events"] if event["kind"] == "resumed"}
        assert actors == {"apikey:bootstrap"}

    async def test_one_entity(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            answer = await client.post("/api/v1/reconciliation/suspend", json={"entity": "contry"})
            assert (answer.status_code, answer.json()["code"]) == (404, "ENTITY_NOT_FOUND")
            await client.post("/api/v1/reconciliation/suspend", json={"entity": "Country"})
            repository.add_column("capital")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.OUT_OF_SYNC
            await client.post("/api/v1/reconciliation/resume", json={"entity": "country"})
            assert await outcome_of(reconciler) is Outcome.APPLIED


class TestWindowsAndAllowances:
    async def test_what_may_go_in_waits_for_its_window(
        self, repository: SmallRepository, database_url: str, conn: Conn
    ) -> None:
        project = (repository.root / "mdm.yaml").read_text()
        window = "reconcile: {windows: [{kind: allow, start: '22:00', end: '06:00'}]}\n"
        repository.write("mdm.yaml", project + window)
        repository.commit()
        clock = Clock()
        async with operating(
            repository, database_url, now=clock, operator={"CheckIntervalSeconds": 0.001}
        ) as reconciler:
            assert await outcome_of(reconciler) is Outcome.APPLIED, "the first is approved"
            repository.add_column("capital")
            repository.commit()
            assert await outcome_of(reconciler) is Outcome.WINDOW_CLOSED
            last = reconciler.state.last
            assert last is not None
            assert "2026-11-20 22:00 UTC" in last.message
            clock.now = NOW + timedelta(hours=10)
            await asyncio.sleep(0.002)
            assert await outcome_of(reconciler) is Outcome.APPLIED
        assert await columns(conn) == ["code", "name", "capital"]

    @pytest.mark.parametrize(
        ("allow", "until", "outcome"),
        [
            ("REMOVES_COLUMN:country", "2026-11-20", Outcome.APPLIED),
            ("REMOVES_COLUMN:country", "2026-11-19", Outcome.APPROVAL_PENDING),
            ("REMOVES_COLUMN:town", "2027-01-01", Outcome.APPROVAL_PENDING),
            ("REMOVES_ENTITY:country", "2027-01-01", Outcome.APPROVAL_PENDING),
        ],
    )
    async def test_a_commit_allows_one_thing_for_a_while(
        self,
        repository: SmallRepository,
        database_url: str,
        allow: str,
        until: str,
        outcome: Outcome,
    ) -> None:
        async with operating(repository, database_url, now=Clock()) as reconciler:
            await started(reconciler)
            repository.remove_last_column()
            line = f'autoApply: [safe]\n  allowances: [{{allow: "{allow}", until: "{until}"}}]'
            repository.edit("autoApply: [safe, data-dependent]", line, "mdm.yaml")
            repository.commit()
            assert await outcome_of(reconciler) is outcome
