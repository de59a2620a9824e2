"""``mdm-gitops up`` as a newcomer has it: one command, everything runs; one signal, nothing does."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.processes import Up, kill_servers_of, mdm, servers_of, until
from tests.small_repository import SmallRepository


@pytest.fixture
def repository(tmp_path: Path, pg_major: int) -> Iterator[SmallRepository]:
    root = tmp_path / "definitions"
    repository = SmallRepository(root)
    repository.write(".env", f"Mdm__Database__EmbeddedMajor={pg_major}\n")
    repository.commit()
    yield repository
    kill_servers_of(root)


def test_once(repository: SmallRepository) -> None:
    root = repository.root
    done = mdm("up", root, "--once", "--json")
    assert json.loads(done.stdout)["outcome"] == "applied"
    assert "PostgreSQL" in done.stderr and "Planned small" in done.stderr
    assert not servers_of(root)
    done = mdm("up", root, "--once", "--json")
    assert json.loads(done.stdout)["outcome"] == "in-sync"
    assert not servers_of(root)


@pytest.mark.parametrize(
    ("edit", "code", "outcome", "words"),
    [
        (
            ("dataType: string\n    nullable", "dataType: strong\n    nullable"),
            1,
            "invalid",
            "did you mean",
        ),
        (("  - name: name\n", "  - name: title\n"), 1, "invalid", "seed/country.json"),
    ],
)
def test_once_with_definitions_that_are_wrong(
    repository: SmallRepository, edit: tuple[str, str], code: int, outcome: str, words: str
) -> None:
    repository.edit(*edit)
    done = mdm("up", repository.root, "--once", "--json", code=code)
    assert json.loads(done.stdout)["outcome"] == outcome
    assert words in done.stderr


def test_once_with_a_change_that_wants_a_person(repository: SmallRepository) -> None:
    mdm("up", repository.root, "--once")
    repository.edit("[read]", "[read, write]", "permissions.yaml")
    done = mdm("up", repository.root, "--once", "--json", code=3)
    assert json.loads(done.stdout)["error"]["code"] == "PLAN_REFUSED"
    assert "group:readers" in done.stderr
    assert f"mdm-gitops apply {repository.root}" in done.stderr


def test_it_serves_follows_edits_and_leaves_nothing_running(repository: SmallRepository) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        numbers = free.getsockname()[1]
    up = Up(
        repository.root, afresh=True, Mdm__Operator__MetricsPort=str(numbers)
    ).wait_until_ready()
    try:
        assert len(servers_of(repository.root)) >= 2
        status, answer = up.get("/api/v1/entities/country/data?sort=-code&fields=code")
        assert (status, [row["code"] for row in answer["items"]]) == (200, ["DE", "CH"])
        assert f"{up.url}/api/v1/entities/country/data" in up.log
        assert str(repository.country) in up.log, "it says which file to edit"

        repository.add_column("capital")
        until(lambda: "capital" in up.get("/api/v1/entities/country/data")[1]["items"][0])

        repository.add_column("flag", "colour: red")
        up.wait_for("unknown key 'colour'")
        assert up.get("/api/v1/entities/country/data")[0] == 200, "the last good one goes on"
        assert up.get("/readyz")[0] == 200
        repository.remove_last_column()
        up.wait_for("in sync:")
        with urllib.request.urlopen(f"http://127.0.0.1:{numbers}/metrics", timeout=60) as answer:
            assert 'mdm_gitops_reconcile_total{result="applied"} 2.0' in answer.read().decode()

        assert up.stop() == 0
        assert "Stopped" in up.log and "Traceback" not in up.log
        assert not servers_of(repository.root)
    finally:
        up.process.kill()


def test_it_starts_with_definitions_that_are_wrong(repository: SmallRepository) -> None:
    repository.add_column("flag", "colour: red")
    up = Up(repository.root).wait_until_ready()
    try:
        assert "unknown key 'colour'" in up.log
        repository.remove_last_column()
        up.wait_for("applied:")
        assert up.get("/api/v1/entities/country/data")[0] == 200
        assert up.stop(signal.SIGINT) == 0
    finally:
        up.process.kill()


def test_kill_9_leaves_no_server_and_loses_nothing(repository: SmallRepository) -> None:
    up = Up(repository.root).wait_until_ready()
    up.process.kill()
    up.process.wait()
    until(lambda: not servers_of(repository.root))
    up = Up(repository.root).wait_until_ready()
    try:
        assert len(up.get("/api/v1/entities/country/data")[1]["items"]) == 2
        assert up.stop() == 0
    finally:
        up.process.kill()
    assert not servers_of(repository.root)


def test_kill_9_of_postgresql_is_survived(repository: SmallRepository) -> None:
    up = Up(repository.root).wait_until_ready()
    try:
        kill_servers_of(repository.root)
        repository.add_column("capital")

        def is_there() -> bool:
            status, answer = up.get("/api/v1/entities/country/data")
            return status == 200 and "capital" in answer["items"][0]

        until(is_there, lambda: up.log, up.process)
        assert up.stop() == 0
    finally:
        up.process.kill()


def test_a_taken_port_is_told_before_anything_starts(repository: SmallRepository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = mdm("up", repository.root, "--port", port, code=1)
    assert port in done.stderr and "hint:" in done.stderr
    assert not (repository.root / ".mdm").exists()


def test_a_folder_without_definitions_is_left_alone(tmp_path: Path) -> None:
    done = mdm("up", tmp_path, code=1)
    assert "there is no mdm.yaml" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_share_the_database(repository: SmallRepository) -> None:
    first = Up(repository.root).wait_until_ready()
    try:
        done = mdm("status", repository.root, "--json")
        assert json.loads(done.stdout)["pending"]["state"] == "in-sync"
        assert first.get("/readyz")[0] == 200, "the other command has not stopped the server"
        assert first.stop() == 0
    finally:
        first.process.kill()


def test_data_and_passwords_stay_out_of_git(repository: SmallRepository) -> None:
    mdm("up", repository.root, "--once")
    repository.commit("everything")
    assert not [name for name in repository.files() if name.startswith(".mdm")]
