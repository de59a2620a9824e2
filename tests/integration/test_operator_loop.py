"""The reconciler on a real PostgreSQL: what goes in, what waits, and what it never does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mdm_gitops.errors import WarehouseLocked
from mdm_gitops.warehouse.apply import LOCK_PURPOSE
from mdm_gitops.warehouse.lock import alone
from mdm_operator.metrics import Numbers
from mdm_operator.state import ConditionType, Outcome
from tests.small_repository import SmallRepository
from tests.support.operating import Conn, Heard, columns, following, one, outcome_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path) -> SmallRepository:
    return SmallRepository(tmp_path)


async def test_the_first_deployment_goes_in_and_then_there_is_nothing_to_do(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    heard = Heard()
    async with following(repository, database_url, listener=heard) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPLIED
        assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 2
        assert await outcome_of(reconciler) is Outcome.IN_SYNC, "looked at once more"
        assert await reconciler.step() is None
    assert [run.outcome for run in heard.runs] == [Outcome.APPLIED, Outcome.IN_SYNC]
    assert await one(conn, "SELECT actor FROM mdm.deployment") == "system:operator"


async def test_without_that_permission_the_policy_holds_from_the_start(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url, approve_first=False) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        assert reconciler.state.is_true(ConditionType.APPROVAL_PENDING)
    assert await one(conn, "SELECT count(*) FROM mdm.entity") == 0


async def test_only_an_untouched_warehouse_is_the_first(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        repository.edit("[read]", "[read, write]", "permissions.yaml")
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        last = reconciler.state.last
        assert last is not None and last.error is not None
        assert "--allow WIDENS_ACCESS:permissions.yaml" in last.error.hint
    assert await one(conn, "SELECT actions FROM mdm.permission") == ["read"]


async def test_commits_are_told(repository: SmallRepository, database_url: str, conn: Conn) -> None:
    first = repository.commit()
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        assert reconciler.state.applied_commit == first
        repository.add_column("capital")
        await reconciler.step()
        assert reconciler.state.applied_commit == f"{first}+dirty"
        assert await one(conn, "SELECT commit_id FROM mdm.entity") == f"{first}+dirty"
        second = repository.commit()
        assert await outcome_of(reconciler) is Outcome.IN_SYNC
        assert reconciler.state.applied_commit == second
        repository.edit("dataType: string\n    nullable", "dataType: strong\n    nullable")
        third = repository.commit()
        assert await outcome_of(reconciler) is Outcome.INVALID
    state = reconciler.state
    assert (state.attempted_commit, state.applied_commit) == (second, second)
    assert third not in (first, second)


async def test_a_broken_file_holds_up_its_own_entity_until_it_is_corrected(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        good = repository.country.read_text()
        repository.write("entities/city.yaml", good.replace("name: country", "name: city"))
        repository.write("entities/country.yaml", good + "  - name: [")
        assert await outcome_of(reconciler) is Outcome.INVALID
        assert reconciler.state.is_true(ConditionType.STALLED)
        assert await outcome_of(reconciler) is Outcome.INVALID, "city went in: looked at once more"
        assert await reconciler.step() is None, "the same broken file is not read again"
        assert await columns(conn) == ["code", "name"], "what was deployed last stays"
        assert await one(conn, "SELECT to_regclass('mdm_data.city') IS NOT NULL")
        repository.write("entities/country.yaml", good)
        repository.add_column("capital")
        assert await outcome_of(reconciler) is Outcome.APPLIED
    assert await columns(conn) == ["code", "name", "capital"]


@pytest.mark.parametrize("broken", ["mdm.yaml", "entities/country.yaml"])
async def test_drift_is_set_right_while_what_is_newer_cannot_be_used(
    repository: SmallRepository, database_url: str, conn: Conn, broken: str
) -> None:
    async with following(repository, database_url, check_interval_s=0.01) as reconciler:
        await reconciler.step()
        repository.write(broken, "name: [")
        await conn.execute("DROP INDEX mdm_data.country__uq_code")
        assert await outcome_of(reconciler) is Outcome.INVALID
        assert await one(conn, "SELECT to_regclass('mdm_data.country__uq_code') IS NOT NULL")
        assert await one(conn, "SELECT count(*) FROM mdm.permission") == 1
        assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 2
        await asyncio.sleep(0.02)
        assert await outcome_of(reconciler) is Outcome.INVALID
        last = reconciler.state.last
        assert last is not None
        assert (last.healed, last.drift) == (0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda repository: (repository.root / "mdm.yaml").unlink(),
        lambda repository: (repository.root / "mdm.yaml").write_bytes(b"\xff\xfe\x00"),
        lambda repository: repository.seed([{"code": "CH"}, {"code": "CH"}]),
        lambda repository: repository.write("entities/country.yaml", "a: &a [*a]"),
        lambda repository: (repository.root / ".git").write_text("gitdir: /nowhere"),
        lambda repository: (repository.root / "entities" / "x.yaml").symlink_to("/etc/passwd"),
    ],
    ids=["no project", "not text", "key twice", "a ring of anchors", "no repository", "a link"],
)
async def test_no_repository_ends_the_operator_or_changes_anything(
    repository: SmallRepository,
    database_url: str,
    conn: Conn,
    damage: Callable[[SmallRepository], object],
) -> None:
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        damage(repository)
        assert await outcome_of(reconciler) is Outcome.INVALID
    assert await columns(conn) == ["code", "name"]
    assert await one(conn, "SELECT count(*) FROM mdm.deployment") == 1


async def test_rows_in_the_way_block_until_they_are_corrected(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url, check_interval_s=0.01) as reconciler:
        await reconciler.step()
        await conn.execute("UPDATE mdm_data.country SET name = NULL WHERE code = 'DE'")
        repository.edit("  - name: name\n", "  - name: name\n    nullable: false\n")
        assert await outcome_of(reconciler) is Outcome.BLOCKED
        last = reconciler.state.last
        assert last is not None and "1 row" in last.message
        await conn.execute("UPDATE mdm_data.country SET name = 'x' WHERE code = 'DE'")
        await asyncio.sleep(0.02)
        assert await outcome_of(reconciler) is Outcome.APPLIED, "no file had to change"


async def test_drift_is_set_right_and_strangers_are_left_alone(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url, check_interval_s=0.01) as reconciler:
        await reconciler.step()
        await conn.execute("DROP INDEX mdm_data.country__uq_code")
        await conn.execute("ALTER TABLE mdm_data.country ADD COLUMN note text")
        assert await outcome_of(reconciler) is Outcome.APPLIED
        assert await one(conn, "SELECT to_regclass('mdm_data.country__uq_code') IS NOT NULL")
        assert reconciler.state.is_true(ConditionType.DRIFT_DETECTED)
        last = reconciler.state.last
        assert last is not None and last.drift == 1
        assert await outcome_of(reconciler) is Outcome.IN_SYNC
        assert "note" in await columns(conn)
        await conn.execute("ALTER TABLE mdm_data.country DROP COLUMN note")
        await asyncio.sleep(0.02)
        assert await outcome_of(reconciler) is Outcome.IN_SYNC
        assert not reconciler.state.is_true(ConditionType.DRIFT_DETECTED)


async def test_numbers_follow_what_happens(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    numbers = Numbers()

    async with following(
        repository, database_url, check_interval_s=0.01, listener=numbers
    ) as reconciler:

        def shown(name: str) -> float | None:
            lines = numbers.text(reconciler).decode().splitlines()
            return next(
                (float(line[len(name) :]) for line in lines if line.startswith(f"{name} ")), None
            )

        assert shown("mdm_gitops_last_success_timestamp_seconds") == 0
        await reconciler.step()
        assert shown('mdm_gitops_reconcile_total{result="applied"}') == 1
        assert shown("mdm_gitops_reconcile_duration_seconds_count") == 1
        assert shown('mdm_gitops_condition{type="Ready"}') == 1
        assert (shown("mdm_gitops_last_success_timestamp_seconds") or 0) > time.time() - 3600
        await conn.execute("DROP INDEX mdm_data.country__uq_code")
        await conn.execute("ALTER TABLE mdm_data.country ADD COLUMN note text")
        await reconciler.step()
        assert shown('mdm_gitops_drift{entity="country"}') == 2, "when it was found"
        assert shown("mdm_gitops_healed_total") == 1
        await reconciler.step()
        assert shown('mdm_gitops_drift{entity="country"}') == 1, "the stranger"
        assert shown('mdm_gitops_condition{type="DriftDetected"}') == 1
        await conn.execute("ALTER TABLE mdm_data.country DROP COLUMN note")
        await asyncio.sleep(0.02)  # longer than the interval of checks
        await reconciler.step()
        assert shown('mdm_gitops_drift{entity="country"}') is None
        repository.add_column("flag", "colour: red")
        await conn.execute("DROP INDEX mdm_data.country__uq_code")
        assert await outcome_of(reconciler) is Outcome.INVALID
        assert shown("mdm_gitops_healed_total") == 2, "while the commit waits"
        assert shown('mdm_gitops_condition{type="Stalled"}') == 1
        repository.remove_last_column()
        repository.add_column("capital")
        async with alone(conn, purpose=LOCK_PURPOSE, schema="mdm", timeout_s=0, doing="testing"):
            with pytest.raises(WarehouseLocked):
                await reconciler.step()
        assert shown("mdm_gitops_lock_retries_total") == 1
        assert shown('mdm_gitops_reconcile_total{result="failed"}') == 1


async def test_nothing_new_is_cheap_whatever_the_number_of_entities(
    repository: SmallRepository, database_url: str
) -> None:
    for number in range(60):
        name = f"e{number}"
        text = repository.country.read_text().replace("name: country", f"name: {name}")
        repository.write(f"entities/{name}.yaml", text)
    repository.commit()
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        await reconciler.step()
        best_s = 1.0
        for _ in range(5):
            started = time.perf_counter()
            assert await reconciler.step() is None
            best_s = min(best_s, time.perf_counter() - started)
    assert best_s < 0.5
