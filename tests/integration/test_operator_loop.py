"""The reconciler on a real PostgreSQL: what goes in, what waits, and what it never does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import PartlyApplied, WarehouseError, WarehouseLocked
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import Plan
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import LOCK_PURPOSE, Progress
from mdm_gitops.warehouse.lock import alone
from mdm_operator import Reconciler, run_operator
from mdm_operator.loop import Pace
from mdm_operator.metrics import Numbers
from mdm_operator.reconcile import Listener
from mdm_operator.sources import Source, Taken
from mdm_operator.state import ConditionType, Outcome, Run
from tests.small_repository import SmallRepository

pytestmark = pytest.mark.anyio

Conn = AsyncConnection[Any]


class Heard(Listener):
    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.plans: list[Plan] = []
        self.runs: list[Run] = []
        self.on_progress = on_progress

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        self.plans.append(plan)

    def progressed(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def finished(self, run: Run) -> None:
        self.runs.append(run)


class Awaited(Heard):
    """Its first two runs that applied something can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def finished(self, run: Run) -> None:
        if run.outcome is not Outcome.APPLIED:
            return
        super().finished(run)
        (self.second if self.first.is_set() else self.first).set()


@pytest.fixture
def repository(tmp_path: Path) -> SmallRepository:
    return SmallRepository(tmp_path)


@asynccontextmanager
async def operating(
    repository: SmallRepository,
    url: str,
    *,
    approve_first: bool = True,
    check_interval_s: float = 3600.0,
    **more: Any,
) -> AsyncIterator[Reconciler]:
    settings = Settings(Operator={"CheckIntervalSeconds": check_interval_s})
    reconciler = Reconciler(
        repository.root, url=url, settings=settings, approve_first=approve_first, **more
    )
    try:
        yield reconciler
    finally:
        await reconciler.aclose()


async def outcome_of(reconciler: Reconciler) -> Outcome:
    run = await reconciler.step()
    assert run is not None, "there was something new"
    return run.outcome


async def one(conn: Conn, query: str) -> Any:
    row = await (await conn.execute(query.encode())).fetchone()
    return row and row[0]


async def columns(conn: Conn) -> list[str]:
    rows = await conn.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'mdm_data'"
        " AND table_name = 'country' AND column_name NOT LIKE '\\_sys%' ORDER BY ordinal_position"
    )
    return [row[0] for row in await rows.fetchall()]


async def test_the_first_deployment_goes_in_and_then_there_is_nothing_to_do(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    heard = Heard()
    async with operating(repository, database_url, listener=heard) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPLIED
        assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 2
        assert await outcome_of(reconciler) is Outcome.IN_SYNC, "looked at once more"
        assert await reconciler.step() is None
    assert [run.outcome for run in heard.runs] == [Outcome.APPLIED, Outcome.IN_SYNC]
    assert await one(conn, "SELECT actor FROM mdm.deployment") == "system:operator"


async def test_without_that_permission_the_policy_holds_from_the_start(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with operating(repository, database_url, approve_first=False) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        assert reconciler.state.is_true(ConditionType.APPROVAL_PENDING)
    assert await one(conn, "SELECT count(*) FROM mdm.entity") == 0


async def test_only_an_untouched_warehouse_is_the_first(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with operating(repository, database_url) as reconciler:
        await reconciler.step()
        repository.edit("[read]", "[read, write]", "permissions.yaml")
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        last = reconciler.state.last
        assert last is not None and last.error is not None
        assert "--allow WIDENS_ACCESS:permissions.yaml" in last.error.hint
    assert await one(conn, "SELECT actions FROM mdm.permission") == ["read"]


async def test_commits_are_told(repository: SmallRepository, database_url: str, conn: Conn) -> None:
    first = repository.commit()
    async with operating(repository, database_url) as reconciler:
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
    async with operating(repository, database_url) as reconciler:
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
    async with operating(repository, database_url, check_interval_s=0.01) as reconciler:
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
    async with operating(repository, database_url) as reconciler:
        await reconciler.step()
        damage(repository)
        assert await outcome_of(reconciler) is Outcome.INVALID
    assert await columns(conn) == ["code", "name"]
    assert await one(conn, "SELECT count(*) FROM mdm.deployment") == 1


async def test_rows_in_the_way_block_until_they_are_corrected(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with operating(repository, database_url, check_interval_s=0.01) as reconciler:
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
    async with operating(repository, database_url, check_interval_s=0.01) as reconciler:
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

    async with operating(
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


async def test_a_deployment_by_somebody_else_is_noticed_at_once(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with operating(repository, database_url) as reconciler:
        await reconciler.step()
        await reconciler.step()
        assert await reconciler.step() is None
        await conn.execute("DELETE FROM mdm.permission")
        run = await reconciler.step()
        assert run is not None and run.outcome is Outcome.APPROVAL_PENDING


async def test_nothing_new_is_cheap_whatever_the_number_of_entities(
    repository: SmallRepository, database_url: str
) -> None:
    for number in range(60):
        name = f"e{number}"
        text = repository.country.read_text().replace("name: country", f"name: {name}")
        repository.write(f"entities/{name}.yaml", text)
    repository.commit()
    async with operating(repository, database_url) as reconciler:
        await reconciler.step()
        await reconciler.step()
        best_s = 1.0
        for _ in range(5):
            started = time.perf_counter()
            assert await reconciler.step() is None
            best_s = min(best_s, time.perf_counter() - started)
    assert best_s < 0.5


ASK: Final = b"UPDATE mdm.reconciliation SET requested = requested + 1"


@dataclass
class Meanwhile:
    """The source, and something that happens once right after it was looked at."""

    source: Source
    happens: Callable[[], None]
    times: int = 0

    @property
    def watched(self) -> Path | None:
        return self.source.watched

    def take(self) -> Taken:
        taken = self.source.take()
        self.times += 1
        if self.times == 1:
            self.happens()
        return taken

    def judge(self, taken: Taken, *, accepted: str | None) -> str:
        return self.source.judge(taken, accepted=accepted)

    def read(self, taken: Taken, deployed: Any, *, reserved: Any) -> Any:
        return self.source.read(taken, deployed, reserved=reserved)


async def test_a_request_is_handled_by_what_was_looked_at_after_it(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    def asked_with_something_new() -> None:
        repository.add_column("capital")
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute(ASK)

    async with operating(repository, database_url) as reconciler:
        while await reconciler.step():
            pass
        reconciler.source = Meanwhile(reconciler.source, asked_with_something_new)
        await reconciler.step()
        assert "capital" not in await columns(conn), "it was looked at before"
        assert await one(conn, "SELECT handled < requested FROM mdm.reconciliation")
        await reconciler.step()
        assert "capital" in await columns(conn)
        assert await one(conn, "SELECT handled = requested FROM mdm.reconciliation")


async def test_what_is_asked_for_during_a_run_is_done_by_the_next(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    class Asking(Listener):
        def planned(self, plan: Plan, definitions: Definitions) -> None:
            with psycopg.connect(database_url, autocommit=True) as other:
                other.execute(ASK)

    async with operating(repository, database_url) as reconciler:
        while await reconciler.step():
            pass
    repository.edit("[read]", "[read, write]", "permissions.yaml")
    async with operating(repository, database_url, listener=Asking()) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        assert await one(conn, "SELECT handled < requested FROM mdm.reconciliation")
        assert await reconciler.step() is not None
        assert await one(conn, "SELECT handled > 0 FROM mdm.reconciliation")


async def test_another_program_that_applies_is_waited_for(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with operating(repository, database_url) as reconciler:
        await reconciler.step()
        repository.add_column("capital")
        async with alone(conn, purpose=LOCK_PURPOSE, schema="mdm", timeout_s=0, doing="testing"):
            with pytest.raises(WarehouseLocked):
                await reconciler.step()
            assert reconciler.state.is_true(ConditionType.RECONCILING)
            assert not reconciler.state.is_true(ConditionType.READY)
        assert await outcome_of(reconciler) is Outcome.APPLIED


async def test_two_operators_do_the_work_once(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with (
        operating(repository, database_url) as one_of_two,
        operating(repository, database_url) as other,
    ):
        ended = await asyncio.gather(one_of_two.step(), other.step(), return_exceptions=True)
        assert sum(isinstance(each, Run) for each in ended) >= 1
        for each in (one_of_two, other):
            while (run := await each.step()) is not None:
                assert run.outcome is Outcome.IN_SYNC
    assert await one(conn, "SELECT count(*) FROM mdm.deployment WHERE state = 'succeeded'") == 1


async def test_a_lost_connection_is_an_outage_and_made_again(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    ours = "application_name = 'mdm-gitops operator' AND datname = current_database()"
    kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}"

    async def lose(progress: Progress) -> None:
        await conn.execute(kill.encode())

    killed: list[asyncio.Task[None]] = []
    heard = Heard(lambda progress: killed.append(asyncio.create_task(lose(progress))))
    async with operating(repository, database_url, listener=heard) as reconciler:
        with pytest.raises((WarehouseError, PartlyApplied)):
            await reconciler.step()
        await asyncio.gather(*killed)
        heard.on_progress = None
        assert await outcome_of(reconciler) is Outcome.APPLIED
        await reconciler.step()
        assert await reconciler.step() is None
        await conn.execute(kill.encode())
        await asyncio.sleep(0.1)
        assert await outcome_of(reconciler) is Outcome.IN_SYNC, "connected again by itself"


async def test_no_server_is_told_in_one_sentence(repository: SmallRepository) -> None:
    async with operating(repository, "postgresql://127.0.0.1:1/none") as reconciler:
        with pytest.raises(WarehouseError):
            await reconciler.step()
        last = reconciler.state.last
        assert last is not None and last.outcome is Outcome.FAILED
        assert last.error is not None and last.error.kind_code == "WAREHOUSE_UNAVAILABLE"


async def test_stop_ends_an_apply_between_two_steps(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    stop, seen = asyncio.Event(), 0

    def at_first_step(progress: Progress) -> None:
        nonlocal seen
        seen = progress.number
        stop.set()

    heard = Heard(at_first_step)
    async with operating(repository, database_url, stop=stop, listener=heard) as reconciler:
        with pytest.raises(PartlyApplied, match="asked to stop before step 2"):
            await reconciler.step()
    assert seen == 1
    assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 0, "the seed is step 2"
    async with operating(repository, database_url) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPLIED
    assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 2


async def test_the_running_operator_follows_an_edit_and_stops_when_told(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    stop, heard = asyncio.Event(), Awaited()
    pace = Pace(interval_s=3600.0)
    async with operating(repository, database_url, stop=stop, listener=heard) as reconciler:
        running = asyncio.create_task(run_operator(reconciler, pace=pace, stop=stop))
        async with asyncio.timeout(20):
            await heard.first.wait()
            await asyncio.sleep(0.5)  # until the system watches
            repository.add_column("capital")
            await heard.second.wait()
            stop.set()
            await running
    assert [run.outcome for run in heard.runs] == [Outcome.APPLIED, Outcome.APPLIED]
    assert await columns(conn) == ["code", "name", "capital"]
