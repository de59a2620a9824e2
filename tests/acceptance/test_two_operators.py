"""Two operators, one of them paused in the middle of its work and resumed: never two appliers.

Somebody reads a table and does not end, so whoever applies stands in the queue for it and can be
seen there. Which backend began which step, and in which order, a trigger of the test writes down.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.processes import PROGRAM, environment, mdm, until
from tests.small_repository import SmallRepository

LEASE_S = "4"
LOG = """
CREATE TABLE public.steps (number bigint GENERATED ALWAYS AS IDENTITY, pid integer);
CREATE FUNCTION public.note_step() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO public.steps (pid) VALUES (pg_backend_pid()); RETURN NULL; END $$;
CREATE TRIGGER note_step AFTER INSERT ON mdm.deployment_step
    FOR EACH ROW EXECUTE FUNCTION public.note_step();
"""
IN_THE_QUEUE = """
SELECT DISTINCT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE a.application_name = 'mdm-gitops operator' AND a.datname = current_database()
   AND l.relation = 'mdm_data.country'::regclass AND l.mode = 'AccessExclusiveLock'
"""
# An operator whose locks always say yes: both that of the leader and that of apply.
UNLOCKED = """
import sys
import mdm_gitops.warehouse.lock as lock
import mdm_gitops.warehouse.leadership as leadership

async def yes(conn, key):
    return True

lock.try_lock = leadership.try_lock = yes
from mdm_gitops.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def repository(tmp_path: Path, database_url: str) -> SmallRepository:
    repository = SmallRepository(tmp_path / "definitions")
    repository.write("mdm.toml", f"[Database]\nUrl = {json.dumps(database_url)}\n")
    repository.commit()
    mdm("up", repository.root, "--once")
    return repository


class Operators:
    def __init__(self, repository: SmallRepository, *command: str) -> None:
        self.repository, self.command = repository, command or (PROGRAM,)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        folder = self.repository.root.parent
        with (folder / f"out{number}").open("w") as out, (folder / f"err{number}").open("w") as err:
            process = subprocess.Popen(
                [*self.command, "operator", str(self.repository.root), "--json"],
                env=environment(
                    Mdm__Operator__LeaseSeconds=LEASE_S,
                    Mdm__Operator__IntervalSeconds="0.2",
                    Mdm__Operator__FirstRetrySeconds="0.2",
                    Mdm__Operator__MaxRetrySeconds="0.5",
                    Mdm__Apply__LockRetries="1000",
                ),
                stdout=out,
                stderr=err,
            )
        self.processes.append(process)
        return process

    def said(self, number: int) -> str:
        return (self.repository.root.parent / f"err{number}").read_text()


@contextmanager
def operators(repository: SmallRepository, *command: str) -> Iterator[Operators]:
    running = Operators(repository, *command)
    try:
        yield running
    finally:
        for process in running.processes:
            process.kill()
            process.wait()


@contextmanager
def watching(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


def sessions(conn: psycopg.Connection[Any]) -> list[int]:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'mdm-gitops operator'"
        " AND datname = current_database() ORDER BY pid"
    )
    return [row[0] for row in conn.execute(query).fetchall()]


def in_the_queue(conn: psycopg.Connection[Any]) -> list[int]:
    return [row[0] for row in conn.execute(IN_THE_QUEUE).fetchall()]


def test_one_paused_and_resumed(repository: SmallRepository, database_url: str) -> None:
    with operators(repository) as running, watching(database_url) as conn:
        first = running.start()
        until(lambda: len(sessions(conn)) == 1, lambda: running.said(0), first)
        [pid] = sessions(conn)
        second = running.start()
        until(lambda: len(sessions(conn)) == 2, lambda: running.said(1), second)
        conn.execute(LOG.encode())
        seen: set[int] = set()
        with psycopg.connect(database_url) as reader:
            reader.execute("SELECT * FROM mdm_data.country")
            repository.add_column("capital")
            until(lambda: bool(in_the_queue(conn)), lambda: running.said(0), first)
            first.send_signal(signal.SIGSTOP)  # in the middle of its apply
            assert in_the_queue(conn) in ([pid], [])

            def taken_over() -> bool:
                waiting = in_the_queue(conn)
                assert len(waiting) <= 1, "two appliers"
                seen.update(waiting)
                return bool(seen - {pid})

            until(taken_over, lambda: running.said(1), second)
            assert pid not in sessions(conn), "its session has been ended"
            first.send_signal(signal.SIGCONT)
        columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'capital'"
        until(lambda: conn.execute(columns).fetchone() == (1,), lambda: running.said(1), second)
        until(lambda: len(sessions(conn)) == 2, lambda: running.said(0), first)
        done = "SELECT count(*) FROM mdm.deployment WHERE state = 'succeeded'"
        until(lambda: conn.execute(done).fetchone() == (2,), lambda: running.said(1), second)
        rows = conn.execute("SELECT pid FROM public.steps ORDER BY number").fetchall()
        appliers = list(dict.fromkeys(row[0] for row in rows))
        order = [row[0] for row in rows]
        assert order == sorted(order, key=appliers.index), "each works in one go"
        assert appliers[0] == pid
        assert appliers[-1] != pid
        assert first.poll() is None
        assert second.poll() is None


def test_without_the_locks_there_are_two(repository: SmallRepository, database_url: str) -> None:
    """The negative control: the same view shows two appliers where nothing keeps them apart."""
    command = (sys.executable, "-c", UNLOCKED)
    with operators(repository, *command) as running, watching(database_url) as conn:
        for number in range(2):
            process = running.start()
            until(
                lambda number=number: len(sessions(conn)) == number + 1,  # type: ignore[misc]
                lambda number=number: running.said(number),  # type: ignore[misc]
                process,
            )
        with psycopg.connect(database_url) as reader:
            reader.execute("SELECT * FROM mdm_data.country")
            repository.add_column("capital")
            until(lambda: len(in_the_queue(conn)) == 2, lambda: running.said(0) + running.said(1))
