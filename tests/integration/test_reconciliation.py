"""The operator among people: plans that wait, modes, windows, suspensions, what is told and by whom.

The operator is a real one on a real repository, the API a real one beside it; they share nothing but
the warehouse.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import LOCK_PURPOSE
from mdm_gitops.warehouse.lock import alone
from mdm_gitops.warehouse.migrate import migrate
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.reconciliation import listen
from mdm_operator import Reconciler
from mdm_operator.state import ConditionType, Outcome
from tests.integration.test_api_basics import KEY, add_key, served
from tests.small_repository import ROWS, SmallRepository

pytestmark = pytest.mark.anyio

Conn = AsyncConnection[Any]
Client = httpx2.AsyncClient
SECRET = "the secret of the hook"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday


@pytest.fixture
def repository(tmp_path: Path) -> SmallRepository:
    repository = SmallRepository(tmp_path)
    repository.seed([{"code": "CH"}, {"code": "DE"}])  # so that the name can go
    repository.commit()
    return repository


@pytest.fixture
async def client(database_url: str, conn: Conn) -> AsyncIterator[Client]:
    await migrate(conn, config_schema="mdm", data_schema="mdm_data")
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    settings = Settings(Source={"HookSecret": SECRET})
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@asynccontextmanager
async def operating(
    repository: SmallRepository, url: str, *, source: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Reconciler]:
    operator = {"CheckIntervalSeconds": 3600.0, **more.pop("operator", {})}
    settings = Settings(Operator=operator, Source=source or {"Revision": "main"})
    reconciler = Reconciler(repository.root, url=url, settings=settings, approve_first=True, **more)
    try:
        yield reconciler
    finally:
        await reconciler.aclose()


async def outcome_of(reconciler: Reconciler) -> Outcome:
    run = await reconciler.step()
    assert run is not None, "there was something new"
    return run.outcome


async def columns(conn: Conn) -> list[str]:
    rows = await conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'mdm_data.country'::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_sys%' ORDER BY attnum"
    )
    return [row[0] for row in await rows.fetchall()]


async def waiting(client: Client, **headers: str) -> list[dict[str, Any]]:
    answer = await client.get("/api/v1/plans", headers=headers)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def stands(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/v1/reconciliation")).json()
    return found


async def started(reconciler: Reconciler) -> None:
    assert await outcome_of(reconciler) is Outcome.APPLIED
    assert await outcome_of(reconciler) is Outcome.IN_SYNC


def git(folder: Path, *arguments: str) -> str:
    options = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ("git", *options, *arguments), cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_key(path: Path) -> None:
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)), check=True)


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


class TestSources:
    async def test_a_remote_and_a_past_that_somebody_rewrote(
        self, tmp_path: Path, repository: SmallRepository, database_url: str, conn: Conn
    ) -> None:
        bare = tmp_path.parent / f"{tmp_path.name}-remote.git"
        git(tmp_path, "clone", "--quiet", "--bare", str(repository.root), str(bare))
        git(tmp_path, "remote", "add", "origin", str(bare))
        source = {"Url": f"file://{bare}", "Branch": "main"}
        async with operating(repository, database_url, source=source) as reconciler:
            await started(reconciler)
            repository.add_column("capital")
            good = repository.commit()
            git(tmp_path, "push", "--quiet", "origin", "main")
            assert await outcome_of(reconciler) is Outcome.APPLIED
            assert reconciler.state.applied_commit == good
            git(tmp_path, "reset", "--quiet", "--hard", "HEAD~1")
            repository.add_column("other")
            other = repository.commit()
            git(tmp_path, "push", "--quiet", "--force", "origin", "main")
            await conn.execute("DROP INDEX mdm_data.country__uq_code")
            assert await outcome_of(reconciler) is Outcome.REFUSED
            last = reconciler.state.last
            assert last is not None and last.error is not None
            assert last.error.kind_code == "SOURCE_REWOUND"
            assert last.healed == 1, "what is deployed is kept"
            assert await columns(conn) == ["code", "name", "capital"]
        allowed = {**source, "AllowRewind": True}
        async with operating(repository, database_url, source=allowed) as reconciler:
            assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING, "capital would go"
            assert reconciler.state.observed_commit == other
            assert reconciler.state.applied_commit == good, "restored from the warehouse"

    async def test_who_did_not_sign_is_not_followed(
        self, tmp_path: Path, repository: SmallRepository, database_url: str, conn: Conn
    ) -> None:
        key = tmp_path.parent / f"{tmp_path.name}-key"
        make_key(key)
        allowed = tmp_path.parent / f"{tmp_path.name}-allowed"
        allowed.write_text(f"ana@example.com {key.with_suffix('.pub').read_text()}")
        sign = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key}", "commit", "--quiet", "-S")
        source = {"Revision": "main", "AllowedSigners": str(allowed)}
        async with operating(repository, database_url, source=source) as reconciler:
            assert await outcome_of(reconciler) is Outcome.REFUSED
            assert not reconciler.state.is_true(ConditionType.SOURCE_VERIFIED)
            git(tmp_path, *sign, "--allow-empty", "-m", "signed")
            await started(reconciler)
            assert reconciler.state.is_true(ConditionType.SOURCE_VERIFIED)
            repository.add_column("capital")
            repository.commit("unsigned")
            assert await outcome_of(reconciler) is Outcome.REFUSED
            assert await columns(conn) == ["code", "name"]
            git(tmp_path, *sign, "--allow-empty", "-m", "signed")
            assert await outcome_of(reconciler) is Outcome.APPLIED, "its signer vouches for both"
            last = reconciler.state.last
            assert last is not None
            assert last.signer == "ana@example.com"

    async def test_a_table_that_is_locked_does_not_hide_why_a_commit_waits(
        self, repository: SmallRepository, database_url: str, conn: Conn
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            repository.write("mdm.yaml", "name: [")
            repository.commit()
            await conn.execute("DROP INDEX mdm_data.country__uq_code")
            async with alone(
                conn, purpose=LOCK_PURPOSE, schema="mdm", timeout_s=0, doing="testing"
            ):
                assert await outcome_of(reconciler) is Outcome.INVALID
            last = reconciler.state.last
            assert last is not None
            assert (last.healed, last.drift) == (0, 1)

    async def test_a_remote_that_is_away_changes_nothing(
        self, repository: SmallRepository, database_url: str, client: Client
    ) -> None:
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
        source = {"Url": "file:///nowhere/at/all.git", "Branch": "main"}
        async with operating(repository, database_url, source=source) as reconciler:
            with pytest.raises(Exception, match="does not appear to be a git repository"):
                await reconciler.step()
        found = await stands(client)
        assert found["history"][0]["code"] == "SOURCE_UNAVAILABLE"
        assert found["appliedCommit"], "and what was applied is still known"


class TestTelling:
    async def test_what_is_shown_to_whom(
        self, repository: SmallRepository, database_url: str, conn: Conn, client: Client
    ) -> None:
        reader = await add_key(conn, "reader")
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
        found = await stands(client)
        head = git(repository.root, "rev-parse", "HEAD")
        assert found["observedCommit"] == found["appliedCommit"] == found["acceptedCommit"] == head
        ready = next(each for each in found["conditions"] if each["type"] == "Ready")
        assert ready["status"]
        assert "1 entity" in ready["message"]
        answer = await client.get("/api/v1/reconciliation", headers={"X-API-Key": reader})
        assert set(answer.json()) == {
            "mode",
            "heartbeatUtc",
            "observedCommit",
            "attemptedCommit",
            "appliedCommit",
            "conditions",
            "requested",
            "handled",
            "isSuspended",
        }
        assert "message" not in json.dumps(answer.json())

    async def test_a_request_is_heard_at_once_and_handled_by_the_next_run(
        self, repository: SmallRepository, database_url: str, client: Client
    ) -> None:
        heard, stop = asyncio.Event(), asyncio.Event()
        ear = asyncio.create_task(listen(database_url, heard.set, schemas=Schemas(), stop=stop))
        async with operating(repository, database_url) as reconciler:
            await started(reconciler)
            async with asyncio.timeout(20):
                await heard.wait()  # connected
                heard.clear()
                answer = await client.post("/api/v1/reconcile")
                await heard.wait()
            number = answer.json()["requested"]
            assert (await stands(client))["handled"] < number
            assert await outcome_of(reconciler) is Outcome.IN_SYNC, "looked, though nothing is new"
            assert (await stands(client))["handled"] == number
        stop.set()
        await ear


class TestHooks:
    def github(self, body: bytes, secret: str = SECRET) -> dict[str, str]:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": "push"}

    async def test_who_knows_the_secret_wakes_the_operator(self, client: Client) -> None:
        body = b'{"ref": "refs/heads/main"}'
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        right = [
            self.github(body),
            {"X-Gitea-Signature": digest, "X-Gitea-Event": "push"},
            {"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Push Hook"},
        ]
        for number, headers in enumerate(right, start=1):
            del_key = {"X-API-Key": ""}
            answer = await client.post(
                "/api/v1/hooks/git", content=body, headers={**del_key, **headers}
            )
            assert (answer.status_code, answer.json()) == (202, {"requested": number})

    async def test_nobody_else_does(self, client: Client) -> None:
        body = b"{}"
        wrong = [
            {},
            self.github(body, "another"),
            self.github(b"other body"),
            {"X-Hub-Signature-256": "sha256="},
            {"X-Gitlab-Token": SECRET[:-1]},
            {"X-Gitlab-Token": ""},
            {"X-Gitea-Signature": SECRET},
        ]
        for headers in wrong:
            answer = await client.post("/api/v1/hooks/git", content=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "AUTH_REQUIRED")
        assert (await stands(client))["requested"] == 0

    async def test_what_is_no_push_is_seen_and_that_is_all(self, client: Client) -> None:
        body = b"{}"
        headers = {**self.github(body), "X-GitHub-Event": "ping"}
        answer = await client.post("/api/v1/hooks/git", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"requested": None})

    async def test_a_body_without_end_is_not_read(self, client: Client) -> None:
        answer = await client.post("/api/v1/hooks/git", content=b"x" * (5 * 1024 * 1024 + 1))
        assert answer.status_code == 413


class TestLeading:
    async def test_one_works_and_the_next_takes_over_when_it_falls_silent(
        self, repository: SmallRepository, database_url: str
    ) -> None:
        lease = {"operator": {"LeaseSeconds": 3.0}, "among_several": True}
        async with (
            operating(repository, database_url, **lease) as first,
            operating(repository, database_url, **lease) as second,
        ):
            assert await outcome_of(first) is Outcome.APPLIED
            assert await second.step() is None
            assert second.is_standing_by
            async with asyncio.timeout(30):  # the first says nothing any more
                while (run := await second.step()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert run.outcome is Outcome.IN_SYNC
            assert await first.step() is None
            assert first.is_standing_by, "its session was ended, and the lock is the other's"

    async def test_who_has_nothing_to_do_still_speaks(
        self, repository: SmallRepository, database_url: str, conn: Conn
    ) -> None:
        said = (
            "SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'mdm-gitops operator'"
        )
        lease = {"operator": {"LeaseSeconds": 4.0}, "among_several": True}
        stop = asyncio.Event()
        async with operating(repository, database_url, **lease) as leader:
            await started(leader)
            moments = {await (await conn.execute(said.encode())).fetchone()}
            keeping = asyncio.create_task(
                leader.leadership.keep(lambda: leader.connection, stop=stop)
            )
            async with asyncio.timeout(30):
                while len(moments) < 3:
                    await asyncio.sleep(0.1)
                    moments.add(await (await conn.execute(said.encode())).fetchone())
            stop.set()
            await keeping
            assert not leader.is_standing_by
