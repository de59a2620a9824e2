"""``mdm-gitops plan`` and ``apply`` as processes: exit codes, saved plans, options, formats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mdm_gitops.warehouse.embedded_binaries import find_binaries
from tests.support.program import run
from tests.support.scenario import column, entity, tree

PROGRAM = Path(sys.executable).with_name("mdm-gitops")
COUNTRY = entity("country", column("name"))
POLICY = {"autoApply": ["safe", "data-dependent"]}
SEEDS = {"country": [{"code": "CH", "name": "Switzerland"}]}
Done = subprocess.CompletedProcess[str]


class Repository:
    """A folder of definitions, and the program run in it against the database of the test."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.url = url
        self.write(entity("item", column("name"), column("old")))

    def write(self, *entities: Any, **others: Any) -> None:
        others = {"policy": POLICY, **others}
        files = tree(*entities, **others)
        for path in self.root.rglob("*"):
            if path.suffix in (".yaml", ".json") and ".git" not in path.parts:
                path.unlink()
        for path, content in files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
        kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
        given = {**kept, "Mdm__Database__Url": self.url, **(environment or {})}
        return run(*arguments, cwd=self.root, env=given)

    def applied(self, *arguments: str) -> Done:
        done = self.run("apply", "--auto-approve", *arguments)
        assert done.returncode == 0, done.stderr
        return done

    def plan(self) -> dict[str, Any]:
        done = self.run("plan", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def rows(self, query: str) -> list[Any]:
        with psycopg.connect(self.url) as conn:
            return conn.execute(query.encode()).fetchall()

    def by_hand(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(statement.encode())

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "gc.auto=0"]
        command = ["git", *identity, "-c", "commit.gpgsign=false", *arguments]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path, empty_database_url: str) -> Repository:
    return Repository(tmp_path, empty_database_url)


def is_told(done: Done, code: int, *words: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_from_nothing_to_nothing_to_do(repo: Repository) -> None:
    first = repo.run("plan", "--detailed-exitcode")
    assert (first.returncode, first.stderr) == (2, "")
    assert "item" in first.stdout
    assert repo.rows("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'mdm%'") == [(0,)]
    done = repo.run("apply", "--auto-approve", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["applied"], told["deploymentId"], told["steps"]) == (True, 1, 1)
    assert repo.run("plan", "--detailed-exitcode").returncode == 0
    again = repo.run("apply", "--auto-approve", "--json")
    assert json.loads(again.stdout)["applied"] is False
    assert repo.rows("SELECT state, actor FROM mdm.deployment") == [
        ("succeeded", repo.rows("SELECT actor FROM mdm.deployment")[0][0])
    ]


def test_without_detailed_exitcode_a_plan_is_0(repo: Repository) -> None:
    assert repo.run("plan").returncode == 0


def test_nobody_is_here_to_be_asked(repo: Repository) -> None:
    is_told(repo.run("apply"), 3, "nobody is here to be asked", "hint: Pass --auto-approve")
    assert repo.plan()["changes"]


def test_hazards_need_allowances_also_with_auto_approve(repo: Repository) -> None:
    repo.applied()
    repo.write(entity("item", column("title", renamedFrom="name")))
    refused = repo.run("apply", "--auto-approve")
    is_told(refused, 3, "2 things need a person's consent", "--allow RENAMES_COLUMN:item")
    half = repo.run("apply", "--auto-approve", "--allow", "RENAMES_COLUMN:item", "--json")
    is_told(half, 3)
    assert json.loads(half.stdout)["error"]["code"] == "PLAN_REFUSED"
    repo.applied("--allow", "RENAMES_COLUMN:item", "--allow", "removes_column:*")
    assert repo.plan()["changes"] == []


def test_what_is_blocked_exits_with_3(repo: Repository) -> None:
    repo.write(entity("item", lifecycle={"preventRemove": True}), COUNTRY)
    repo.applied()
    repo.write(COUNTRY)
    is_told(repo.run("plan", "--detailed-exitcode"), 3)
    is_told(repo.run("plan"), 0)
    everything = ("--allow", "REMOVES_ENTITY:*", "--allow", "PRUNE_CAP:*")
    is_told(repo.run("apply", "--auto-approve", *everything), 3, "preventRemove", "hint: ")


def test_the_prune_cap_has_an_allowance(repo: Repository) -> None:
    repo.write(*(entity(name) for name in ("a", "b", "c", "d")))
    repo.applied()
    repo.write(entity("a"), entity("b"))
    consent = ("--allow", "REMOVES_ENTITY:*")
    is_told(repo.run("apply", "--auto-approve", *consent), 3, "--allow PRUNE_CAP:*")
    repo.applied(*consent, "--allow", "PRUNE_CAP:*")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["apply", "--allow", "NONSENSE:item", "--auto-approve"], "names no hazard"),
        (["apply", "--allow", "REMOVES_COLUMN", "--auto-approve"], "does not say for what"),
        (["apply", "--allow", "REMOVES_COLUMN:itm", "--auto-approve"], "did you mean"),
        (["apply", "nowhere"], "nowhere"),
        (["plan", "nowhere"], "nowhere"),
        (["plan", "--rev", "nowhere"], "not a git repository"),
        (["plan", "--target", "itm"], "did you mean 'item'?"),
        (["apply", "--target", "itm", "--auto-approve"], "there is no entity 'itm'"),
        (["apply", "mdm.yaml"], "is not a saved plan"),
        (["plan", "https://me:word@host/hub.git"], "'https://***@host/hub.git' is the address of"),
        (["apply", "git@host:team/hub.git", "--auto-approve"], "clone it and name the clone"),
        (["validate", "ssh://git@host/hub.git"], "commands read a folder"),
    ],
)
def test_what_is_wrong_exits_with_1(arguments: list[str], words: str, repo: Repository) -> None:
    is_told(repo.run(*arguments), 1, words)
    assert repo.rows("SELECT count(*) FROM pg_tables WHERE schemaname = 'mdm_data'") == [(0,)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--format", "html"],
        ["plan", "--nonsense"],
        ["apply", "--lock-timeout", "long"],
        ["apply", ".", "again"],
        ["plan", "--against", "HEAD", "--out", "x"],
        ["apply", ".", "--dir", "."],
    ],
)
def test_wrong_usage_exits_with_64(arguments: list[str], repo: Repository) -> None:
    repo.git("init", "-q")
    repo.git("add", ".")
    repo.git("commit", "-qm", "one")
    is_told(repo.run(*arguments), 64, "error: ")
    assert not (repo.root / "x").exists()


@pytest.mark.parametrize("command", [["plan"], ["apply", "--auto-approve"]])
def test_a_folder_whose_definitions_are_fetched_is_told_from_one_without_any(
    command: list[str], repo: Repository
) -> None:
    fetched = {"Mdm__Source__Url": "https://git.example.com/hub.git"}
    assert repo.run("plan", environment=fetched).returncode == 0, "files that are here are read"
    (repo.root / "mdm.yaml").unlink()
    is_told(repo.run(*command), 1, "there is no mdm.yaml in this folder", "mdm-gitops init")
    told = "are fetched from https://git.example.com/hub.git; this command reads a folder"
    is_told(repo.run(*command, environment=fetched), 1, told, "clone it and name the clone")


def test_a_warehouse_that_is_not_there_exits_with_1(repo: Repository) -> None:
    nowhere = {"Mdm__Database__Url": "postgresql://x:secret@127.0.0.1:1/x"}
    done = repo.run("plan", environment=nowhere)
    is_told(done, 1, "cannot connect to PostgreSQL at 127.0.0.1:1")
    assert "secret" not in done.stderr


# --- saved plans ----------------------------------------------------------------------------------


def saved(repo: Repository, *arguments: str) -> Path:
    done = repo.run("plan", "--out", "the.plan", *arguments)
    is_told(done, 0, "saved plan", "mdm-gitops apply the.plan")
    return repo.root / "the.plan"


def test_a_saved_plan_is_applied_once(repo: Repository) -> None:
    saved(repo)
    repo.applied("the.plan")
    assert repo.plan()["changes"] == []
    is_told(repo.run("apply", "the.plan", "--auto-approve"), 4, "is out of date", "hint: ")


@pytest.mark.parametrize("what", ["definitions", "warehouse"])
def test_a_saved_plan_is_stale_when_something_moved(what: str, repo: Repository) -> None:
    repo.applied()
    repo.write(entity("item", column("name"), column("old"), column("new")))
    saved(repo)
    if what == "definitions":
        repo.write(entity("item", column("name"), column("old"), column("other")))
    else:
        repo.by_hand("ALTER TABLE mdm_data.item ADD mine int")
    done = repo.run("apply", "the.plan", "--auto-approve")
    is_told(done, 4, f"the {what} moved since it was made")
    assert repo.rows("SELECT count(*) FROM mdm.deployment") == [(1,)]


def test_a_tampered_plan_does_no_more_than_the_plan_that_is_made_again(repo: Repository) -> None:
    """The file carries nothing that is run, so what a reader was shown cannot be exchanged."""
    file = saved(repo)
    document = json.loads(file.read_text())
    document["plan"]["changes"] = []
    file.write_text(json.dumps({**document, "planId": "0" * 20}))
    is_told(repo.run("apply", "the.plan", "--auto-approve"), 4, "is out of date")
    for broken in ({**document, "format": "x"}, {"format": document["format"]}, []):
        file.write_text(json.dumps(broken))
        is_told(repo.run("apply", "the.plan", "--auto-approve"), 1, "is not a saved plan")
    file.write_text("[" * 100_000)
    is_told(repo.run("apply", "the.plan", "--auto-approve"), 1, "is not a saved plan")
    assert repo.rows("SELECT count(*) FROM pg_tables WHERE schemaname = 'mdm_data'") == [(0,)]


def test_a_saved_plan_keeps_its_target(repo: Repository) -> None:
    repo.write(entity("item"), COUNTRY)
    saved(repo, "--target", "Item")
    is_told(repo.run("apply", "the.plan", "--target", "item"), 64, "its own targets")
    repo.applied("the.plan")
    assert repo.rows("SELECT name FROM mdm.entity") == [("item",)]


# --- options --------------------------------------------------------------------------------------


def test_a_target_is_deployed_alone(repo: Repository) -> None:
    city = entity("city", column("country", reference={"entity": "country"}))
    repo.write(city, COUNTRY, entity("item"))
    alone = repo.run("apply", "--auto-approve", "--target", "city")
    is_told(alone, 3, "city refers to country, which is not deployed")
    repo.applied("--target", "city", "--target", "country")
    assert repo.rows("SELECT name FROM mdm.entity ORDER BY 1") == [("city",), ("country",)]


def test_a_revision_is_planned_and_compared(repo: Repository) -> None:
    repo.git("init", "-q")
    repo.git("add", ".")
    repo.git("commit", "-qm", "one")
    repo.write(entity("item", column("name"), column("old"), column("new")))
    assert "new" not in repo.run("plan", "--rev", "HEAD").stdout
    against = repo.run("plan", "--against", "HEAD", "--json", "--detailed-exitcode")
    assert against.returncode == 2, against.stderr
    changes = json.loads(against.stdout)["changes"]
    assert [change["kind"] for change in changes] == ["add-column"]
    nothing = {"Mdm__Database__Url": "postgresql://x@127.0.0.1:1/x"}
    assert repo.run("plan", "--against", "HEAD", environment=nothing).returncode == 0
    repo.git("add", ".")
    repo.git("commit", "-qm", "two")
    done = repo.run("plan", "--against", "HEAD~1", "--rev", "HEAD", "--json")
    assert [c["kind"] for c in json.loads(done.stdout)["changes"]] == ["add-column"]
    assert repo.run("plan", "--against", "HEAD", "--detailed-exitcode").returncode == 0


def test_a_revert_is_compared_as_the_revert_that_it_is(repo: Repository) -> None:
    repo.git("init", "-q")
    repo.write(entity("thing", column("title", renamedFrom="name"), renamedFrom="item"))
    repo.git("add", ".")
    repo.git("commit", "-qm", "renamed")
    repo.write(entity("item", column("name")))
    done = repo.run("plan", "--against", "HEAD", "--json")
    kinds = {change["kind"] for change in json.loads(done.stdout)["changes"]}
    assert {"rename-entity", "rename-column"} <= kinds
    assert not kinds & {"create-entity", "remove-entity", "add-column", "remove-column"}


def test_the_applied_commit_is_recorded(repo: Repository) -> None:
    repo.git("init", "-q")
    repo.git("add", ".")
    repo.git("commit", "-qm", "one")
    done = repo.run("apply", "--auto-approve", "--json")
    commit = json.loads(done.stdout)["commit"]
    assert len(commit) == 40
    assert repo.rows("SELECT commit_id FROM mdm.entity") == [(commit,)]
    repo.run("apply", "--auto-approve", environment={"MDM_ACTOR": "user:ci"})
    assert repo.rows("SELECT commit_id FROM mdm.deployment") == [(commit,)]


def test_the_sql_is_what_psql_can_run(repo: Repository, pg_major: int) -> None:
    repo.applied()
    repo.write(entity("item", column("name", maxLength=9), column("old"), unique_name()), COUNTRY)
    script = repo.run("plan", "--format", "sql")
    assert script.returncode == 0, script.stderr
    psql = find_binaries(major=pg_major).program("psql")
    piped = subprocess.run(
        [psql, "-X", "-q", repo.url], input=script.stdout, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (piped.returncode, piped.stderr) == (0, "")
    assert repo.plan()["changes"] == []
    assert repo.rows("SELECT state FROM mdm.deployment ORDER BY 1") == [("succeeded",)] * 2


def unique_name() -> dict[str, Any]:
    return column("key", unique=True)


def test_formats_and_explain(repo: Repository) -> None:
    text = repo.run("plan", "--explain", "--no-color").stdout
    assert "CREATE TABLE" in text and "\x1b" not in text
    markdown = repo.run("plan", "--format", "markdown").stdout
    assert "<details>" in markdown and "```sql" in markdown
    assert repo.run("plan", "--format", "json").stdout == repo.run("plan", "--json").stdout


# --- others at work -------------------------------------------------------------------------------

QUICK = {"Mdm__Apply__LockTimeoutSeconds": "0.2", "Mdm__Apply__LockRetries": "0"}


def test_another_applier_exits_with_5(repo: Repository) -> None:
    repo.applied()
    repo.write(entity("item", column("name"), column("old"), column("new")))
    with psycopg.connect(repo.url, autocommit=True) as other:
        from mdm_gitops.warehouse.lock import lock_key

        other.execute("SELECT pg_advisory_lock(%s)", [lock_key("apply", "mdm")])
        is_told(repo.run("apply", "--auto-approve"), 5, "another program is applying a plan")
        waited = repo.run("apply", "--auto-approve", "--lock-timeout", "0.3")
        is_told(waited, 5, "still was after 0 s")
        is_told(repo.run("plan"), 0)
    repo.applied("--lock-timeout", "5")


def test_a_locked_table_exits_with_5(repo: Repository) -> None:
    repo.applied()
    repo.write(entity("item", column("name"), column("old"), column("new")))
    with psycopg.connect(repo.url) as other:
        other.execute("LOCK TABLE mdm_data.item IN ACCESS SHARE MODE")
        done = repo.run("apply", "--auto-approve", environment=QUICK)
        is_told(done, 5, "a table stayed locked", "hint: Look for long transactions")
    repo.applied()


def test_partly_applied_exits_with_6_and_goes_on(repo: Repository) -> None:
    repo.write(COUNTRY, entity("item"), seeds=SEEDS)
    repo.applied()
    more = {"country": [{"code": "CH", "name": "Schweiz"}]}
    repo.write(COUNTRY, entity("item", column("new")), seeds=more)
    with psycopg.connect(repo.url) as other:
        other.execute("SELECT FROM mdm_data.country FOR UPDATE")
        done = repo.run("apply", "--auto-approve", "--json", environment=QUICK)
    is_told(done, 6, "1 of 2 steps ran, then seed country: a table stayed locked")
    assert json.loads(done.stdout)["error"]["code"] == "PARTLY_APPLIED"
    left = repo.plan()["changes"]
    assert [change["kind"] for change in left] == ["apply-seed"]
    repo.applied()
    assert repo.plan()["changes"] == []
    assert repo.rows("SELECT name FROM mdm_data.country") == [("Schweiz",)]


def test_a_killed_apply_is_followed_by_a_plain_one(repo: Repository) -> None:
    repo.applied()
    repo.write(entity("item", column("name", maxLength=5), column("old")), COUNTRY)
    killed = repo.run("apply", "--auto-approve", environment={"MDM_FAULT_AT": "after-1"})
    assert killed.returncode == -9
    assert repo.rows("SELECT state FROM mdm.deployment ORDER BY 1") == [
        ("running",),
        ("succeeded",),
    ]
    repo.applied("--lock-timeout", "5")
    states = repo.rows("SELECT state FROM mdm.deployment ORDER BY deployment_id")
    assert states[1] == ("interrupted",)
    assert repo.plan()["changes"] == []
