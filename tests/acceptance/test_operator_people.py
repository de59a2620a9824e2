"""People and probes beside an operator that runs: plans, suspensions, the status, its own port."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.acceptance.processes import mdm, until
from tests.acceptance.test_operator_cmd import Operator
from tests.small_repository import SmallRepository


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def repository(tmp_path: Path, database_url: str, port: int) -> SmallRepository:
    repository = SmallRepository(tmp_path / "definitions")
    lines = [
        "[Database]",
        f"Url = {json.dumps(database_url)}",
        "[Operator]",
        f"MetricsPort = {port}",
        "[Source]",
        'Revision = "main"',
    ]
    repository.write("mdm.toml", "\n".join(lines) + "\n")
    repository.commit()
    return repository


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_day(repository: SmallRepository, port: int) -> None:
    home = repository.root
    operator = Operator(home)
    try:
        operator.wait_for("approval-pending")
        [plan] = json.loads(mdm("plans", "list", home, "--json").stdout)["items"]
        shown = mdm("plans", "show", plan["id"], home).stdout
        assert "consent: " in shown
        approved = mdm("plans", "approve", plan["id"], home, "--comment", "the first one", "--json")
        assert json.loads(approved.stdout) == {"id": plan["id"], "state": "approved"}
        operator.wait_for("applied")  # by the notification: the interval is 30 s
        assert "does not wait any more" in mdm("plans", "reject", plan["id"], home, code=4).stderr
        suspended = mdm("reconcile", "suspend", home, "--reason", "freeze", "--json")
        assert json.loads(suspended.stdout) == {"entity": None, "suspended": True}
        operator.wait_for("suspended")
        status = mdm("status", home).stdout
        assert "suspended: everything by " in status
        assert "freeze" in status
        document = json.loads(mdm("status", home, "--json").stdout)
        assert document["operator"]["history"][0]["outcome"] == "suspended"
        mdm("reconcile", "resume", home)
        operator.wait_for("in-sync")
        assert json.loads(mdm("reconcile", "now", home, "--json").stdout)["requested"] > 0
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ready\n")
        assert get(port, "/else")[0] == 404
        until(lambda: 'condition{type="Ready"} 1.0' in get(port, "/metrics")[1])
        numbers = get(port, "/metrics")[1]
        assert 'mdm_gitops_reconcile_total{result="applied"} 1.0' in numbers
        assert "mdm_gitops_leader 1.0" in numbers
        assert "Traceback" not in operator.err.read_text()
    finally:
        operator.process.kill()
        operator.process.wait()
