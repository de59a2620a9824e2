"""``mdm-gitops db`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.program import run


def _db(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, *rest = arguments
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
    return run("db", command, "--dir", folder, *rest, env={**kept, **environment})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("definitions")
    started = _db(folder, "start", "--port", "0")
    assert started.returncode == 0, started.stderr
    yield folder
    assert _db(folder, "stop").stderr == "stopped\n"


def _status(folder: Path) -> dict[str, object]:
    answer: dict[str, object] = json.loads(_db(folder, "status", "--json").stdout)
    return answer


def test_it_starts_tells_and_stops(tmp_path: Path) -> None:
    assert _status(tmp_path) == {
        "running": False,
        "kept": False,
        "postgresql": None,
        "port": None,
        "data": str(tmp_path / ".mdm" / "postgres"),
    }
    not_running = _db(tmp_path, "url")
    assert (not_running.returncode, not_running.stdout) == (1, "")
    assert not_running.stderr == (
        "error: the embedded PostgreSQL is not running\n"
        "hint: start it with mdm-gitops db start\n"
    )  # fmt: skip
    started = _db(tmp_path, "start")
    assert started.stdout == ""
    assert started.stderr == "PostgreSQL 18 runs on a private socket, until db stop\n"
    assert _status(tmp_path)["kept"] is True
    assert _db(tmp_path, "url", "--tcp").returncode == 1
    assert _db(tmp_path, "stop").stderr == "stopped\n"
    assert _db(tmp_path, "stop").stderr == "not running\n"
    assert _status(tmp_path)["running"] is False


def test_both_addresses_work(running: Path) -> None:
    for options in ([], ["--tcp"]):
        address = _db(running, "url", *options).stdout.strip()
        with psycopg.connect(address) as conn:
            assert conn.execute("SELECT current_user").fetchone() == ("mdm",)
    assert urlsplit(address).hostname == "127.0.0.1"
    assert urlsplit(address).port == _status(running)["port"]


def test_psql_gets_the_arguments_and_gives_its_exit_code(running: Path) -> None:
    answer = _db(running, "psql", "--", "-Atc", "SHOW search_path", "-c", "SELECT 6 * 7")
    assert (answer.returncode, answer.stdout) == (0, "mdm_data,mdm,public\n42\n")
    failed = _db(running, "psql", "--", "-v", "ON_ERROR_STOP=1", "-c", "SELECT 1 / 0")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "division by zero" in failed.stderr
    boss = _db(running, "psql", "--superuser", "--", "-Atc", "SHOW is_superuser")
    assert boss.stdout == "on\n"


def test_no_command_line_shows_the_password(running: Path) -> None:
    password = urlsplit(json.loads(_db(running, "url", "--json").stdout)["url"]).password
    assert password
    seen = _db(running, "psql", "--", "-c", r"\! ps -ewwo args=")
    assert "psql --dbname=user=mdm dbname=mdm host=" in seen.stdout
    assert password not in seen.stdout


def test_a_dump_brings_the_data_back(running: Path, tmp_path: Path) -> None:
    text = "ä 'quoted' \\ 😀"
    table = f"CREATE TABLE public.t AS SELECT $${text}$$ AS c"
    assert _db(running, "psql", "--", "-c", table).returncode == 0
    target = tmp_path / "backup.sql"
    assert _db(running, "dump", "--file", str(target), "--", "--table=public.t").returncode == 0
    assert (
        _db(running, "psql", "--", "-c", "DROP TABLE public.t", "-f", str(target)).returncode == 0
    )
    assert _db(running, "psql", "--", "-Atc", "SELECT c FROM public.t").stdout == f"{text}\n"
    to_stdout = _db(running, "dump", "--", "--table=public.t", "--data-only")
    assert text.replace("\\", "\\\\") in to_stdout.stdout


def test_a_failed_dump_leaves_the_old_one(running: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.sql"
    target.write_text("the old one")
    assert _db(running, "dump", "--file", str(target), "--", "--table=absent").returncode == 1
    assert target.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [target]


def test_with_a_url_it_opens_that_server_and_manages_none(
    tmp_path: Path, database_url: str
) -> None:
    setting = {"Mdm__Database__Url": database_url}
    assert _db(tmp_path, "url", **setting).stdout == f"{database_url}\n"
    counted = _db(tmp_path, "psql", "--", "-Atc", "SELECT count(*) FROM entity", **setting)
    assert (counted.returncode, counted.stdout) == (0, "0\n")
    assert "CREATE TABLE mdm.entity" in _db(tmp_path, "dump", **setting).stdout
    for command in ("start", "stop", "status"):
        refused = _db(tmp_path, command, **setting)
        assert refused.returncode == 1
        assert "Mdm__Database__Url names another server" in refused.stderr
    assert not (tmp_path / ".mdm").exists()


def test_a_wrong_setting_is_told_before_anything_starts(tmp_path: Path) -> None:
    refused = _db(tmp_path, "start", Mdm__Databse__Url="x")
    assert refused.stderr == (
        "error: there is no setting Mdm__Databse__Url (in the environment)\n"
        "hint: did you mean Mdm__Database__Url?\n"
    )
    assert not (tmp_path / ".mdm").exists()
