"""``status`` and ``drift`` as processes: what they tell, in words and in JSON, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.processes import mdm
from tests.small_repository import SmallRepository


class Warehouse:
    """A small repository and a database for it."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self.repository = SmallRepository(root)
        self.commit = self.repository.commit()

    def run(self, command: str, *options: str, code: int = 0) -> Any:
        root = self.repository.root
        return mdm(command, root, *options, code=code, Mdm__Database__Url=self.url)

    def json(self, command: str) -> Any:
        return json.loads(self.run(command, "--json").stdout)

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(statement.encode())


@pytest.fixture
def warehouse(tmp_path: Path, database_url: str) -> Warehouse:
    return Warehouse(tmp_path, database_url)


@pytest.fixture
def deployed(warehouse: Warehouse) -> Warehouse:
    warehouse.run("up", "--once")
    return warehouse


def test_status_before_anything(warehouse: Warehouse) -> None:
    found = warehouse.json("status")
    assert found["entities"] == [
        {
            "name": "country",
            "domain": "core",
            "state": "draft",
            "commit": None,
            "deployedUtc": None,
            "lastDeployment": None,
        }
    ]
    assert found["deployments"] == []
    assert found["definitions"] == {"project": "small", "commit": warehouse.commit, "findings": 0}
    assert found["pending"]["state"] == "needs-approval"
    assert found["drift"] == 0
    assert set(found["versions"]) == {"mdmGitops", "postgresql", "store"}


def test_status_of_what_is_deployed(deployed: Warehouse) -> None:
    found = deployed.json("status")
    entity, deployment = found["entities"][0], found["deployments"][0]
    assert (entity["state"], entity["commit"]) == ("deployed", deployed.commit)
    assert entity["lastDeployment"] == deployment
    assert (deployment["state"], deployment["actor"]) == ("succeeded", "system:operator")
    assert deployment["durationMs"] >= 0
    assert found["pending"] == {"state": "in-sync", "changes": 0, "summary": "", "refusals": []}
    told = deployed.run("status").stdout
    for words in ("small, ", deployed.commit[:7], "country", "deployed", "system:operator"):
        assert words in told
    assert "Next:  nothing" in told and "Drift: none" in told


def test_status_tells_what_would_come_next(deployed: Warehouse) -> None:
    deployed.repository.add_column("capital")
    found = deployed.json("status")
    assert found["pending"]["state"] == "ready"
    assert found["pending"]["summary"] == "1 to change"
    assert found["definitions"]["commit"] == f"{deployed.commit}+dirty"
    assert found["entities"][0]["state"] == "changed"

    deployed.sql("UPDATE mdm_data.country SET name = NULL")
    deployed.repository.edit("  - name: name\n", "  - name: name\n    nullable: false\n")
    found = deployed.json("status")
    assert found["pending"]["state"] == "blocked"
    assert "2 rows" in found["pending"]["refusals"][0]
    assert f"Next:  blocked: {found['pending']['refusals'][0]}" in deployed.run("status").stdout


def test_status_with_definitions_that_are_wrong(deployed: Warehouse) -> None:
    deployed.repository.add_column("capital", "colour: red")
    found = deployed.json("status")
    assert found["pending"] == {"state": "invalid"}
    assert found["definitions"]["findings"] == 1
    assert found["entities"][0]["commit"] == deployed.commit
    assert "1 finding in the definitions (mdm-gitops validate" in deployed.run("status").stdout


def test_status_with_a_project_that_is_wrong(deployed: Warehouse) -> None:
    deployed.repository.write("mdm.yaml", "name: [")
    found = deployed.json("status")
    assert found["pending"] == {"state": "invalid"}
    assert [entity["name"] for entity in found["entities"]] == ["country"]


def test_no_drift(deployed: Warehouse) -> None:
    done = deployed.run("drift", "--detailed-exitcode")
    assert (done.stdout, done.stderr) == ("", "no drift: everything is as it was deployed\n")
    assert deployed.json("drift") == {"drift": []}


def test_drift_of_each_kind(deployed: Warehouse) -> None:
    deployed.sql(
        "DROP INDEX mdm_data.country__uq_code; ALTER TABLE mdm_data.country ADD COLUMN note text;"
        " ALTER TABLE mdm_data.country ALTER COLUMN code DROP NOT NULL"
    )
    done = deployed.run("drift", "--detailed-exitcode", code=2)
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == [
        "altered",
        "missing",
        "not",
    ]
    assert "3 differences; `mdm-gitops apply` sets 2 right" in done.stderr
    deployed.run("drift")
    found = {(item["kind"], item["object"]) for item in deployed.json("drift")["drift"]}
    assert found == {
        ("missing", "index country__uq_code"),
        ("altered", "column country.code"),
        ("strange", "column country.note"),
    }
    assert deployed.json("status")["drift"] == 3
    deployed.run("apply", "--auto-approve")
    assert not [item for item in deployed.json("drift")["drift"] if item["kind"] != "strange"]
    with psycopg.connect(deployed.url) as conn:
        row = conn.execute("SELECT count(note) FROM mdm_data.country").fetchone()
    assert row == (0,), "what is not ours is still there"


def test_drift_is_about_what_was_deployed_and_not_about_the_files(deployed: Warehouse) -> None:
    deployed.repository.add_column("capital")
    assert deployed.json("drift") == {"drift": []}
    deployed.repository.write("mdm.yaml", "name: [")
    deployed.sql("DROP INDEX mdm_data.country__uq_code")
    assert len(deployed.json("drift")["drift"]) == 1


@pytest.mark.parametrize("command", ["status", "drift"])
def test_no_server(warehouse: Warehouse, command: str) -> None:
    warehouse.url = "postgresql://nobody:secret@127.0.0.1:1/none"
    done = warehouse.run(command, "--json", code=1)
    assert json.loads(done.stdout)["error"]["code"] == "WAREHOUSE_UNAVAILABLE"
    assert "secret" not in done.stdout + done.stderr
