"""The operator as a service: where it reads from, what it tells whom, who wakes it, and which one leads.

The operator is a real one on a real repository, the API a real one beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mdm_gitops.warehouse.apply import LOCK_PURPOSE
from mdm_gitops.warehouse.lock import alone
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.reconciliation import listen
from mdm_operator.state import ConditionType, Outcome
from tests.small_repository import SmallRepository
from tests.support.git import git
from tests.support.operating import (
    SECRET,
    Client,
    Conn,
    api_beside,
    columns,
    make_key,
    operating,
    outcome_of,
    seeded,
    stands,
    started,
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
