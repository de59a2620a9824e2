"""The reconciler and what happens meanwhile: requests, other programs, lost connections, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from mdm_gitops.errors import PartlyApplied, WarehouseError, WarehouseLocked
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import Plan
from mdm_gitops.warehouse.apply import LOCK_PURPOSE, Progress
from mdm_gitops.warehouse.lock import alone
from mdm_operator import run_operator
from mdm_operator.loop import Pace
from mdm_operator.reconcile import Listener
from mdm_operator.sources import Source, Taken
from mdm_operator.state import ConditionType, Outcome, Run
from tests.small_repository import SmallRepository
from tests.support.operating import Conn, Heard, columns, following, one, outcome_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path) -> SmallRepository:
    return SmallRepository(tmp_path)


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


async def test_a_deployment_by_somebody_else_is_noticed_at_once(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url) as reconciler:
        await reconciler.step()
        await reconciler.step()
        assert await reconciler.step() is None
        await conn.execute("DELETE FROM mdm.permission")
        run = await reconciler.step()
        assert run is not None and run.outcome is Outcome.APPROVAL_PENDING


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

    async with following(repository, database_url) as reconciler:
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

    async with following(repository, database_url) as reconciler:
        while await reconciler.step():
            pass
    repository.edit("[read]", "[read, write]", "permissions.yaml")
    async with following(repository, database_url, listener=Asking()) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPROVAL_PENDING
        assert await one(conn, "SELECT handled < requested FROM mdm.reconciliation")
        assert await reconciler.step() is not None
        assert await one(conn, "SELECT handled > 0 FROM mdm.reconciliation")


async def test_another_program_that_applies_is_waited_for(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    async with following(repository, database_url) as reconciler:
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
        following(repository, database_url) as one_of_two,
        following(repository, database_url) as other,
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
    async with following(repository, database_url, listener=heard) as reconciler:
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
    async with following(repository, "postgresql://127.0.0.1:1/none") as reconciler:
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
    async with following(repository, database_url, stop=stop, listener=heard) as reconciler:
        with pytest.raises(PartlyApplied, match="asked to stop before step 2"):
            await reconciler.step()
    assert seen == 1
    assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 0, "the seed is step 2"
    async with following(repository, database_url) as reconciler:
        assert await outcome_of(reconciler) is Outcome.APPLIED
    assert await one(conn, "SELECT count(*) FROM mdm_data.country") == 2


async def test_the_running_operator_follows_an_edit_and_stops_when_told(
    repository: SmallRepository, database_url: str, conn: Conn
) -> None:
    stop, heard = asyncio.Event(), Awaited()
    pace = Pace(interval_s=3600.0)
    async with following(repository, database_url, stop=stop, listener=heard) as reconciler:
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
