"""``mdm-gitops operator`` as a process: one run with an exit code, or many until a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.processes import PROGRAM, environment, mdm, until
from tests.small_repository import SmallRepository


@pytest.fixture
def repository(tmp_path: Path, database_url: str) -> SmallRepository:
    repository = SmallRepository(tmp_path / "definitions")
    repository.write("mdm.toml", f"[Database]\nUrl = {json.dumps(database_url)}\n")
    repository.commit()
    return repository


class Operator:
    def __init__(self, folder: Path) -> None:
        self.out, self.err = folder.parent / "out", folder.parent / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [PROGRAM, "operator", str(folder), "--json"],
                env=environment(),
                stdout=out,
                stderr=err,
            )

    def outcomes(self) -> list[str]:
        return [json.loads(line)["outcome"] for line in self.out.read_text().splitlines()]

    def wait_for(self, outcome: str) -> None:
        until(lambda: outcome in self.outcomes(), self.err.read_text, self.process)

    def end(self, sign: signal.Signals) -> int:
        self.process.send_signal(sign)
        return self.process.wait(30)


@contextmanager
def operating(repository: SmallRepository) -> Iterator[Operator]:
    operator = Operator(repository.root)
    try:
        yield operator
    finally:
        operator.process.kill()
        operator.process.wait()


@contextmanager
def reading(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody reads the rows in a transaction that does not end: no ALTER TABLE gets past it."""
    with psycopg.connect(url) as conn:
        conn.execute("SELECT * FROM mdm_data.country")
        yield conn


def test_once_obeys_the_policy_from_the_start(repository: SmallRepository) -> None:
    done = mdm("operator", repository.root, "--once", "--json", code=3)
    run = json.loads(done.stdout)
    assert (run["outcome"], run["code"]) == ("approval-pending", "PLAN_REFUSED")
    assert "--allow WIDENS_ACCESS:permissions.yaml" in run["hint"]
    mdm("apply", repository.root, "--auto-approve", "--allow", "WIDENS_ACCESS:permissions.yaml")
    done = mdm("operator", repository.root, "--once", "--json")
    assert json.loads(done.stdout)["outcome"] == "in-sync"


def test_once_with_definitions_that_are_wrong(repository: SmallRepository) -> None:
    repository.add_column("flag", "colour: red")
    done = mdm("operator", repository.root, "--once", code=1)
    assert "entities/country.yaml:" in done.stderr
    assert "unknown key 'colour'" in done.stderr


def test_no_folder(tmp_path: Path) -> None:
    assert "is not a folder" in mdm("operator", tmp_path / "none", code=1).stderr


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_follows_edits_until_a_signal(repository: SmallRepository, sign: signal.Signals) -> None:
    mdm("up", repository.root, "--once")
    with operating(repository) as operator:
        operator.wait_for("in-sync")
        time.sleep(0.5)  # until the system watches
        repository.add_column("capital")
        operator.wait_for("applied")
        assert operator.end(sign) == 0
        assert "Traceback" not in operator.err.read_text()
    assert operator.outcomes() == ["in-sync", "applied"]


def test_a_second_signal_does_not_wait(repository: SmallRepository, database_url: str) -> None:
    mdm("up", repository.root, "--once")
    repository.add_column("capital")
    with reading(database_url), operating(repository) as operator:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with psycopg.connect(database_url, autocommit=True) as conn:
            until(lambda: conn.execute(waiting).fetchone() != (0,))
        operator.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert operator.process.poll() is None, "the step under way is not given up at once"
        assert operator.end(signal.SIGTERM) == 130
        assert "Traceback" not in operator.err.read_text()
    mdm("up", repository.root, "--once")
    with psycopg.connect(database_url) as conn:
        assert conn.execute("SELECT count(capital) FROM mdm_data.country").fetchone() == (0,)
