"""Each command that speaks to a server, run as a process against one that serves."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import pty
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from mdm_gitops.client.profiles import Profiles
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.waiting_plans import Offer, offer_plan
from tests.acceptance.processes import KEY, PATIENCE_S, PROGRAM, environment, mdm
from tests.conftest import DatabaseMaker
from tests.support.crash_server import Server
from tests.support.providers import AUDIENCE, Provider, running_provider
from tests.support.served_folder import repository
from tests.support.warehouses import opened
from tests.unit.test_cli_mirrors import COMMANDS

PROJECT = """name: lab
apiVersion: mdm-gitops/v1
domains: [{name: ref}, {name: sales}]
"""
COUNTRY = """name: country
domain: ref
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, maxLength: 2, nullable: false}
  - {name: name, dataType: string, autocomplete: true}
  - {name: people, dataType: int, minValue: 0}
"""
CUSTOMER = """name: customer
domain: sales
approvalRequired: true
allowSameAuthorApproval: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: country, dataType: string, reference: {entity: country}}
"""
PLACE = """name: place
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: name, dataType: string}
similarity:
  columns: [{name: name, matchMode: fuzzy}]
"""
PERMISSIONS = "permissions:\n  - {users: [root], domains: ['*'], actions: [admin]}\n"
FILES = {
    "mdm.yaml": PROJECT,
    "entities/country.yaml": COUNTRY,
    "entities/customer.yaml": CUSTOMER,
    "entities/place.yaml": PLACE,
    "permissions.yaml": PERMISSIONS,
}


@dataclass(frozen=True)
class Shell:
    """A person's terminal, or a job's: a folder, variables, and what commands answer."""

    folder: Path
    url: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, *arguments: str | Path, code: int = 0, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PROGRAM, *map(str, arguments)],
            cwd=self.folder,
            env=environment(**{**self.variables, **variables}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str | Path, code: int = 0, **more: Any) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **more).stdout)

    def lines(self, *arguments: str | Path, **more: Any) -> list[list[str]]:
        """Return what is printed where there is no terminal: cells with tabs between them."""
        return [line.split("\t") for line in self(*arguments, **more).stdout.splitlines()]

    def put(self, entity: str, **values: Any) -> dict[str, Any]:
        """Create a row without a command: what a test begins with."""
        answer = httpx2.post(
            f"{self.url}/api/v1/entities/{entity}/data", json=values, headers={"X-API-Key": KEY}
        )
        assert answer.status_code in (201, 202), answer.text
        row: dict[str, Any] = answer.json()
        return row

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@dataclass(frozen=True)
class Site:
    url: str
    database_url: str
    provider: Provider


@pytest.fixture(scope="module")
def site(
    admin: psycopg.Connection[Any],
    server_url: str,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    url = DatabaseMaker(admin, server_url, template)()
    folder = repository(
        tmp_path_factory.mktemp("site") / "lab",
        {path: text.encode() for path, text in FILES.items()},
    )
    allowed = ("--auto-approve", "--allow", "WIDENS_ACCESS:permissions.yaml")
    mdm("apply", folder, *allowed, Mdm__Database__Url=url)
    with running_provider() as provider:
        provider.add_program()
        provider.add_user("root", roles=["mdm-admin"])
        provider.add_user("anna")
        auth = {
            "Mdm__Auth__Issuer": provider.issuer,
            "Mdm__Auth__Audience": AUDIENCE,
        }
        server = Server(folder, url, workers=1, **auth)
        with server:
            yield Site(server.url, url, provider)


@pytest.fixture
def shell(site: Site, tmp_path: Path) -> Shell:
    given = {"MDM_URL": site.url, "MDM_API_KEY": KEY, "MDM_CONFIG_DIR": str(tmp_path / "config")}
    return Shell(tmp_path, site.url, given)


@pytest.fixture
def stranger(site: Site, tmp_path: Path) -> Shell:
    """Somebody with nothing set yet."""
    return Shell(tmp_path, site.url, {"MDM_CONFIG_DIR": str(tmp_path / "config")})


# --- definitions and deployments ------------------------------------------------------------------

PLANET = """name: planet
domain: ref
columns:
  - {name: code, dataType: string, nullable: false, unique: true}
"""


def test_the_life_of_a_definition(shell: Shell) -> None:
    file = shell.file("planet.yaml", PLANET)
    assert shell.json("entities", "parse", "--file", file)["columns"][0]["nullable"] is False
    assert shell.lines("entities", "validate", "--file", file)[0] == ["valid", "true"]
    done = shell("entities", "create", "--file", file)
    assert "name\tplanet" in done.stdout and "commit " in done.stderr
    assert ["planet", "ref", "draft"] in [
        [line[0], line[2], line[4]] for line in shell.lines("entities", "list")
    ]
    assert ["code", "string", "false", "true", ""] in shell.lines("entities", "show", "planet")
    plan = shell.json("entities", "preview", "planet")
    deployed = shell.json("entities", "deploy", "planet", "--plan-id", plan["plan_id"])
    assert deployed["planId"] == plan["plan_id"]
    changed = shell.file("changed.yaml", PLANET + "  - {name: moons, dataType: int}\n")
    shell("entities", "update", "planet", "--file", changed)
    assert "moons" in shell("entities", "yaml", "planet").stdout
    found = shell.json("entities", "summary", "--state", "changed", "--domain", "ref")
    assert [each["name"] for each in found["items"]] == ["planet"]
    shell("entities", "deploy", "planet")
    assert len(shell.lines("entities", "history", "planet")) == 3

    shell("entities", "save", "planet", "--file", file)
    refused = shell("entities", "deploy", "planet", code=3)
    assert "REMOVES_COLUMN:planet" in refused.stderr
    shell("entities", "redeploy", "planet", "--allow", "REMOVES_COLUMN:planet")
    dropped = shell.json("entities", "drop-archives", "planet", "--yes")
    assert dropped["droppedColumns"]
    removed = shell.json("entities", "delete", "planet", "--yes")
    assert removed["name"] == "planet" and removed["commit"]
    shell("entities", "remove", "planet", "--yes", "--allow", "REMOVES_ENTITY:planet")


def test_what_is_destroyed_needs_a_yes(shell: Shell) -> None:
    done = shell("entities", "drop-archives", "country", code=64)
    assert "needs --yes" in done.stderr
    assert shell.json("entities", "delete", "country", code=64)["error"]["code"] == "USAGE"


# --- rows -----------------------------------------------------------------------------------------


def test_the_life_of_a_row(shell: Shell) -> None:
    row = shell.json("entities", "data", "create", "country", "--set", "code=FR")
    row_id = row["_sys_id"]
    moment = row["_sys_last_modified_at"]
    values = ("--set", "name=France", "--set-json", "people=68000000")
    row = shell.json("entities", "data", "update", "country", row_id, *values)
    assert (row["name"], row["people"], row["_sys_version"]) == ("France", 68_000_000, 2)
    stale = ("--set", "name=x", "--if-version", "1")
    error = shell.json("entities", "data", "update", "country", row_id, *stale, code=1)["error"]
    assert error["code"] == "ROW_VERSION_CONFLICT" and error["traceId"]
    told = shell.lines("entities", "data", "get", "country", row_id)
    assert ["name", "France"] in told
    then = shell.json("entities", "data", "get", "country", row_id, "--as-of-utc", moment)
    assert then["name"] is None

    found = ("entities", "data", "list", "country", "--filter", "[code] = 'FR'", "--fields")
    assert shell.lines(*found, "code,name") == [["code", "name"], ["FR", "France"]]
    shell("entities", "data", "delete", "country", row_id, "--soft", "--yes")
    assert shell.json(*found, "code", "--count")["totalCount"] == 0
    assert shell.json("entities", "data", "restore", "country", row_id)["_sys_state"] == "active"
    versions = shell.lines("entities", "data", "versions", "country", row_id)
    assert [line[0] for line in versions] == ["version", "4", "3", "2", "1"]
    back = shell.json("entities", "data", "restore-version", "country", row_id, "--version", "1")
    assert (back["name"], back["_sys_version"]) == (None, 5)
    assert shell.json("entities", "data", "bounds", "country")["fromUtc"] <= moment
    done = shell("entities", "data", "delete", "country", row_id, "--yes")
    assert (done.stdout, done.stderr) == ("", f"row {row_id} is deleted\n")


def test_values_of_columns(shell: Shell) -> None:
    shell.put("country", code="ES", name="España")
    found = shell.json("entities", "data", "ref-options", "customer", "--column", "country")
    assert "ES" in [each["value"] for each in found["options"]]
    choice = shell.lines("entities", "data", "suggestions", "country", "--column", "name")
    assert "España" in [line[0] for line in choice]
    none = shell("entities", "data", "create", "country", code=64)
    assert "no values are given" in none.stderr


def test_files_of_rows(shell: Shell) -> None:
    rows = [{"code": f"A{number}", "name": "letter"} for number in range(4)]
    file = shell.file("rows.json", json.dumps(rows))
    assert shell.json("entities", "data", "bulk", "country", "--file", file)["inserted"] == 4
    bad = shell.file("rows.csv", "code,name\nA0,zero\nA00,too long\n")
    again = ("--mode", "upsert", "--idempotency-key", "one", "--errors", shell.folder / "bad.csv")
    done = shell.json("entities", "data", "bulk-csv", "country", "--file", bad, *again)
    assert (done["updated"], done["rejected"]) == (1, 1)
    number = done["errorsUrl"].split("/")[-2]
    errors = shell("entities", "data", "import-errors", number).stdout
    assert "ENTITY_VALIDATION_LENGTH" in errors
    assert (shell.folder / "bad.csv").read_text() == errors
    book = shell.folder / "rows.xlsx"
    only = ("--filter", "[code] STARTSWITH 'A'", "--fields", "code,name")
    export = ("entities", "data", "export", "country", *only)
    shell(*export, "--format", "xlsx", "--file", book)
    imported = ("--mode", "upsert", "--file", book)
    assert shell.json("entities", "data", "bulk-xlsx", "country", *imported)["unchanged"] == 4
    assert shell(*export, "--sort", "code").stdout.splitlines()[:2] == ["code,name", "A0,zero"]
    every = shell("entities", "data", "list", "country", "--take", "1", "--all", "--json", *only)
    assert len([json.loads(line) for line in every.stdout.splitlines()]) == 4


def test_many_rows_at_once(shell: Shell) -> None:
    for number in range(5):
        shell.put("country", code=f"B{number}")
    action = ("entities", "data", "bulk-action", "country")
    chosen = ("--filter", "[code] STARTSWITH 'B'")
    values = ("--set", "name=many")
    seen = shell.json(*action, "update", *chosen, *values, "--preview")
    assert seen["matchCount"] == 5
    done = shell.json(*action, "update", *chosen, *values, "--token", seen["previewToken"])
    assert done["updated"] == 5
    assert "needs --yes" in shell(*action, "delete", *chosen, code=64).stderr
    assert ["deleted", "5"] in shell.lines(*action, "delete", *chosen, "--yes")


def test_two_rows_that_are_one(shell: Shell) -> None:
    first, second = (shell.put("country", code=code)["_sys_id"] for code in ("C1", "C2"))
    rows = ("--survivor", first, "--duplicate", second)
    seen = shell.lines("entities", "merges", "preview", "country", *rows, "--set", "name=One")
    assert "One" in next(line for line in seen if line[0] == "name")
    merged = shell.json(
        "entities", "data", "deduplicate", "country", *rows, "--yes", "--set", "name=One"
    )
    assert merged["survivor"]["name"] == "One"
    merge = merged["mergeId"]
    assert merge in [line[0] for line in shell.lines("entities", "merges", "list", "country")]
    assert shell.json("entities", "merges", "show", "country", merge)["state"] == "merged"
    assert shell.json("entities", "merges", "undo", "country", merge)["state"] == "undone"
    for decide in ("approve", "reject"):
        error = shell.json("entities", "merges", decide, "country", merge, code=1)["error"]
        assert error["code"] != "INTERNAL"


def test_rows_that_are_alike(shell: Shell) -> None:
    first, second = (
        shell.put("place", code=code, name=name)["_sys_id"]
        for code, name in (("k1", "Kreuzlingen am See"), ("k2", "Kreuzlingen am Se"))
    )
    like = ("--id", first, "--min-score", "0.1", "--top", "5")
    found = shell.lines("entities", "data", "similar", "place", *like)
    assert second in [line[0] for line in found]

    done = shell.json("entities", "duplicates", "scan", "place", "--full", "--min-score", "0.1")
    assert done["state"] == "done"
    scan = done["scanId"]
    assert ["state", "done"] in shell.lines("entities", "duplicates", "show", "place", scan)
    ended = shell.json("entities", "duplicates", "cancel", "place", scan)
    assert ended["state"] == "done"

    def pairs(*more: str) -> list[set[str]]:
        return [set(line[1:3]) for line in shell.lines(*listed, *more)]

    listed = ("entities", "duplicates", "list", "place", "--min-score", "0.1")
    assert {first, second} in pairs("--all")
    shell("entities", "duplicates", "dismiss", "place", first, second)
    assert {first, second} in pairs("--dismissed")
    done_again = shell("entities", "duplicates", "reopen", "place", first, second)
    assert "may be a pair again" in done_again.stderr


def test_words(shell: Shell) -> None:
    shell.put("place", code="w1", name="Zürichsee Nordufer")
    found = shell.lines("search", "data", "nordufer", "zurich", "--entity", "place")
    assert "«Nordufer»" in found[1][3]
    assert ["country"] in [line[:1] for line in shell.lines("search", "entities", "country")]


# --- approvals ------------------------------------------------------------------------------------


def test_proposals(shell: Shell) -> None:
    first, second, third = (
        shell.put("customer", code=code)["_sys_id"] for code in ("P1", "P2", "P3")
    )
    pending = shell.lines("entities", "pending", "customer", "--count")
    assert {first, second, third} <= {line[0] for line in pending}
    approved = shell.json("entities", "approve", "customer", first, "--comment", "good")
    assert approved["_sys_state"] == "active"
    assert shell.json("entities", "reject", "customer", second, "--comment", "bad")
    done = shell("entities", "withdraw", "customer", third, "--yes")
    assert done.stderr == f"the proposal for {third} is gone\n"


def test_batches_of_proposals(shell: Shell) -> None:
    for name in ("spring", "autumn"):
        file = shell.file("rows.csv", f"code\n{name}1\n{name}2\n")
        batch = ("--file", file, "--batch-name", name)
        assert shell.json("entities", "data", "bulk-csv", "customer", *batch)["pending"] == 2
    assert "spring" in [line[0] for line in shell.lines("entities", "batches", "customer")]
    done = shell.json("entities", "approve-batch", "customer", "--batch-name", "spring")
    assert done["approved"] == 2
    told = shell.lines("entities", "reject-batch", "customer", "--batch-name", "autumn")
    assert ["rejected", "2"] in told


def test_filters(shell: Shell) -> None:
    named = ("--name", "mine", "--filter", "[code] = 'FR'", "--column", "code", "--default")
    saved = shell.json("entities", "filters", "save", "country", *named)
    assert (saved["columns"], saved["isDefault"]) == (["code"], True)
    assert [line[0] for line in shell.lines("entities", "filters", "list", "country")][1:] == [
        "mine"
    ]
    assert shell.json("entities", "filters", "show", "country", "mine")["filter"] == "[code] = 'FR'"
    shell("entities", "filters", "delete", "country", "mine", "--yes")
    assert shell.json("entities", "filters", "show", "country", "mine", code=1)["error"][
        "code"
    ] == ("SAVED_FILTER_NOT_FOUND")


# --- access ---------------------------------------------------------------------------------------


def test_permissions_and_roles(shell: Shell) -> None:
    added = ("--principal", "apikey:reader", "--domain", "ref", "--action", "read")
    assert shell.json("permissions", "add", *added)["commit"]
    assert "apikey:reader" in [line[0] for line in shell.lines("permissions", "list")]
    shell("permissions", "yaml-export", "--file", "all.yaml")
    text = (shell.folder / "all.yaml").read_text()
    assert "apikey:reader" in text
    shell("permissions", "yaml-import", "--file", "all.yaml")  # spelt in another way than before
    assert "already" in shell("permissions", "yaml-import", "--file", "all.yaml").stderr
    assert "Viewer" in [line[0] for line in shell.lines("roles")]


def test_keys(shell: Shell) -> None:
    key = shell.json("api-keys", "create", "--name", "robot", "--global-admin")["key"]
    who = shell.json("whoami", MDM_API_KEY=key)
    assert (who["principal"], who["isGlobalAdmin"], who["url"]) == ("apikey:robot", True, shell.url)
    assert ["robot", "active"] in [line[:2] for line in shell.lines("api-keys", "list")]
    assert shell("api-keys", "revoke", "robot", "--yes").stderr == "robot is revoked\n"
    refused = shell("whoami", MDM_API_KEY=key, code=1)
    assert "error:" in refused.stderr and key not in refused.stderr
    told = shell.lines("audit", "--action", "api_key_revoked", "--take", "5")
    assert told[0][0] == "occurredUtc" and len(told) > 1


def test_subscriptions(shell: Shell, site: Site) -> None:
    given = ("--name", "erp", "--target", "https://erp.example.com/", "--action", "data_created")
    made = shell.json("webhooks", "create", *given)
    assert made["secret"]
    hook = made["id"]
    changed = shell.json("webhooks", "update", hook, "--inactive", "--description", "quiet")
    assert (changed["url"], changed["actions"], changed["is_active"]) == (
        "https://erp.example.com/",
        ["data_created"],
        False,
    )
    assert [line[1] for line in shell.lines("webhooks", "list")][1:] == ["erp"]
    assert ["description", "quiet"] in shell.lines("webhooks", "show", hook)
    assert shell.json("webhooks", "rotate-secret", hook)["secret"] != made["secret"]
    assert shell.json("webhooks", "test", hook)["delivered"] is False
    assert shell.json("webhooks", "deliveries", hook, "--state", "dead")["items"] == []
    assert shell.json("webhooks", "replay-from", hook, "--after-id", "0")["position"] == 0
    row = shell.put("country", code="W1")
    change = shell.json("changes", "--entity", "country", "--take", "500")["entries"][-1]
    assert change["recordId"] == row["_sys_id"]
    done = shell("webhooks", "replay", hook, str(change["id"]))
    assert done.stderr == f"change {change['id']} will be delivered again\n"
    shell("webhooks", "yaml-export", "--file", "hooks.yaml")
    assert "erp.example.com" in (shell.folder / "hooks.yaml").read_text()
    assert "already" in shell("webhooks", "yaml-import", "--file", "hooks.yaml").stderr
    shell("webhooks", "delete", hook, "--yes")


# --- the change feed, the operator, packages ------------------------------------------------------


def test_changes(shell: Shell) -> None:
    shell.put("country", code="X1")
    page = shell.json("changes", "--entity", "country", "--take", "500")
    assert page["entries"][-1]["action"] == "data_created"
    after = str(page["nextAfterId"])
    assert shell("changes", "--after-id", after).stderr == "nothing found\n"
    follower = subprocess.Popen(
        [PROGRAM, "changes", "--follow", "--json", "--after-id", after],
        env=environment(**shell.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stdout and follower.stderr
        assert follower.stderr.readline().startswith("following from")
        row = shell.put("country", code="X2")
        found = json.loads(follower.stdout.readline())
        assert (found["recordId"], found["entityName"]) == (row["_sys_id"], "country")
    finally:
        follower.terminate()
        follower.communicate(timeout=PATIENCE_S)


def test_plans_and_the_operator(shell: Shell, site: Site) -> None:
    async def offer(plan_id: str) -> None:
        made = Offer(
            plan_id=plan_id,
            commit="c" * 40,
            reason="somebody must look",
            document={"changes": [], "refusals": [], "needs_allowance": []},
            entities=frozenset({"country"}),
            domains=frozenset({"ref"}),
            is_wider=False,
            changes=1,
        )
        async with opened(site.database_url) as conn:
            await offer_plan(conn, made, schemas=Schemas())

    there = ("--url", shell.url)
    first, second = "a" * 16, "b" * 16
    asyncio.run(offer(first))
    assert first in shell("plans", "list", *there).stdout
    shell("plans", "approve", first, "--comment", "so it is", *there)
    assert shell.json("plans", "show", first, *there)["comment"] == "so it is"
    asyncio.run(offer(second))
    shell("plans", "reject", second, *there)
    assert f"{second}, rejected" in shell("plans", "show", second, *there).stdout
    assert "asked for a run" in shell("reconcile", "now", *there).stderr
    reason = ("--reason", "holidays")
    shell("reconcile", "suspend", "--entity", "country", *reason, *there)
    assert shell.json("reconcile", "show")["requested"] >= 1
    assert "goes on" in shell("reconcile", "resume", "--entity", "country", *there).stderr


def test_packages_and_common_entities(shell: Shell) -> None:
    package = shell.folder / "all.zip"
    shell("packages", "export", "--file", package, "--entity", "country")
    answer = shell.json("packages", "deploy", "--file", package)
    assert answer["success"] is True
    assert "currency" in [line[0] for line in shell.lines("common-entities", "list")]
    installed = shell.json("common-entities", "install", "currency", "--domain", "ref")
    assert installed["commit"]
    assert shell.json("common-entities", "install", "nothing", code=1)["error"]["code"] == (
        "COMMON_ENTITY_NOT_FOUND"
    )


# --- anything -------------------------------------------------------------------------------------


def test_any_request(shell: Shell) -> None:
    done = shell("api", "GET", "/api/v1/me", "--include")
    assert json.loads(done.stdout)["credential"] == "apiKey"
    assert done.stderr.startswith("HTTP 200\n")
    fields = ("-f", "code=Z1", "-F", "people=7", "-F", "name=null")
    row = json.loads(shell("api", "POST", "entities/country/data", *fields).stdout)
    assert (row["code"], row["people"], row["name"]) == ("Z1", 7, None)
    rows = shell.file("rows.csv", "code\nZ2\nZ3\n")
    bulk = ("entities/country/data/bulk-csv", "--input", rows, "-f", "mode=upsert")
    assert json.loads(shell("api", "POST", *bulk).stdout)["inserted"] == 2
    pages = ("-F", "take=1", "-f", "filter=[code] STARTSWITH 'Z'", "--paginate")
    lines = shell("api", "GET", "entities/country/data", *pages).stdout.splitlines()
    assert [json.loads(line)["code"] for line in lines] == ["Z1", "Z2", "Z3"]
    feed = shell("api", "GET", "changes", "-F", "afterId=0", "-F", "take=2", "--paginate")
    assert len(feed.stdout.splitlines()) > 2
    error = shell("api", "GET", "/api/v1/nothing", "--json", code=1)
    assert json.loads(error.stdout)["error"]["code"] == "NOT_FOUND"
    elsewhere = shell("api", "GET", "https://evil.example/api/v1/me", code=64)
    assert "a whole URL is no PATH" in elsewhere.stderr


def test_who_nobody_is(stranger: Shell) -> None:
    refused = stranger("whoami", "--url", stranger.url, code=1)
    assert "hint:" in refused.stderr
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    away = stranger("entities", "list", "--url", f"http://127.0.0.1:{port}", code=1)
    assert "does not answer" in away.stderr
    wrong = stranger("entities", "list", "--url", "http://anna:secret@host", code=1)
    assert "secret" not in wrong.stderr


# --- profiles and signing in ----------------------------------------------------------------------


def test_profiles(stranger: Shell) -> None:
    stranger("config", "set", "url", stranger.url)
    stranger("config", "set", "key", "-", stdin=f"{KEY}\n")
    secret = stranger.folder / "config" / "credentials.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stranger.json("whoami")["isGlobalAdmin"] is True
    assert stranger("config", "get", "key").stdout == "stored\n"
    assert KEY not in stranger("config", "list", "--json").stdout

    stranger("config", "set", "url", "http://127.0.0.1:9", "--profile", "away")
    stranger("config", "set", "key-env", "AWAY_KEY", "--profile", "away")
    unset = stranger("whoami", "--profile", "away", code=1)
    assert "$AWAY_KEY, which is not set" in unset.stderr
    listed = stranger.json("config", "list")
    assert [each["name"] for each in listed["items"]] == ["away", "default"]
    stranger("config", "use", "away")
    assert stranger("config", "get", "url").stdout == "http://127.0.0.1:9\n"
    stranger("config", "unset", "key-env")
    stranger("config", "remove", "away", "--yes")
    assert "no profile 'away'" in stranger("whoami", "--profile", "away", code=1).stderr
    secret.chmod(0o644)
    assert "can be read by others" in stranger("whoami", code=1).stderr


def test_a_profile_that_is_named_is_meant_with_its_own_key(stranger: Shell) -> None:
    """What stands before what else is held by the unit tests; this is where it meets a server."""
    profiles = Profiles(stranger.folder / "config")
    profiles.set("default", url=stranger.url)
    profiles.store_api_key("default", KEY)
    there = {"MDM_URL": stranger.url, "MDM_API_KEY": "of-somebody-else-0001"}
    assert stranger.json("whoami", code=1, **there)["error"]["code"] == "AUTH_REQUIRED"
    assert stranger.json("whoami", "--profile", "default", **there)["isGlobalAdmin"] is True
    profiles.set("default", url="http://127.0.0.1:9")
    error = stranger.json("whoami", "--url", stranger.url, code=1)["error"]
    assert error["code"] == "AUTH_REQUIRED"  # the key is for its own server only


def begin_login(stranger: Shell, site: Site) -> subprocess.Popen[str]:
    there = ("--url", site.url, "--issuer", site.provider.issuer, "--client-id", "mdm-cli")
    return subprocess.Popen(
        [PROGRAM, "login", "--device", *there],
        env=environment(**stranger.variables),
        stderr=subprocess.PIPE,
        text=True,
    )


def test_signing_in_with_a_code(stranger: Shell, site: Site) -> None:
    process = begin_login(stranger, site)
    assert process.stderr
    code = process.stderr.readline().split()[-1]
    site.provider.answer_device(code, "root")
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    who = stranger.json("whoami")
    assert (who["principal"], who["credential"], who["isGlobalAdmin"]) == (
        "user:root",
        "bearer",
        True,
    )
    file = stranger.folder / "config" / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def tamper(**values: Any) -> dict[str, Any]:
        kept = json.loads(file.read_text())
        before = dict(kept["default"]["tokens"])
        kept["default"]["tokens"].update(values)
        file.write_text(json.dumps(kept))
        return before

    before = tamper(expires_at=time.time() + 5)
    assert stranger.json("whoami")["principal"] == "user:root"  # renewed before its end
    after = tamper(access_token="no.longer.good")
    assert after["refresh_token"] != before["refresh_token"]
    assert stranger.json("whoami")["principal"] == "user:root"  # renewed after a refusal
    stranger("logout")
    assert "not signed in" in stranger("logout").stderr
    assert stranger.json("whoami", code=1)["error"]["code"] == "AUTH_REQUIRED"
    assert "access_token" not in file.read_text()


def test_signing_in_is_refused(stranger: Shell, site: Site) -> None:
    process = begin_login(stranger, site)
    assert process.stderr
    site.provider.answer_device(process.stderr.readline().split()[-1], "root", answer="no")
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1 and "was refused" in said


BROWSER = """import sys, urllib.parse, urllib.request
page = sys.argv[1]
form = urllib.parse.urlencode({"username": "anna", "password": "correct horse"}).encode()
print(urllib.request.urlopen(page, form, timeout=30).read().decode())
"""


def test_signing_in_with_a_browser(stranger: Shell, site: Site) -> None:
    """The browser is a program: it signs in at the provider and is led back to the command's port."""
    browser = stranger.file("browser.py", BROWSER)
    profiles = Profiles(stranger.folder / "config")
    profiles.set("default", url=site.url, issuer=site.provider.issuer, client_id="mdm-cli")
    opened_by = f"{sys.executable} {browser} %s"
    done = stranger("login", "--browser", BROWSER=opened_by)
    assert "signed in" in done.stderr
    assert stranger.json("whoami")["principal"] == "user:anna"


# --- on a terminal --------------------------------------------------------------------------------


def on_terminal(shell: Shell, *arguments: str, types: str = "") -> tuple[int, str]:
    """Run a command on a terminal where somebody types; return its code and what was shown."""
    ours, theirs = pty.openpty()
    given = environment(**{**shell.variables, "TERM": "xterm", "COLUMNS": "100"})
    process = subprocess.Popen(
        [PROGRAM, *arguments],
        env={name: value for name, value in given.items() if name != "NO_COLOR"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, types.encode())
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    return process.wait(PATIENCE_S), shown.decode()


def test_a_table_steers_no_terminal(shell: Shell) -> None:
    """What others wrote is shown, but is not obeyed."""
    evil = "x\x1b]0;owned\x07\x9b31mred\u202e"
    values = json.dumps({"code": "t1", "name": evil})
    row = shell.json("entities", "data", "create", "place", "--file", "-", stdin=values)
    listed = ("entities", "data", "list", "place", "--filter", "[code] = 't1'")
    code, shown = on_terminal(shell, *listed)
    assert code == 0 and "\x1b[1m" in shown  # the heading is bold, so this was a table
    assert "owned" in shown and "red" in shown
    for sign in ("\x1b]", "\x9b", "\u202e"):
        assert sign not in shown
    code, shown = on_terminal(shell, "entities", "data", "get", "place", row["_sys_id"])
    assert code == 0 and "owned" in shown and "\x1b]" not in shown
    assert "\x1b" not in shell(*listed).stdout
    assert shell.json(*listed)["items"][0]["name"] == evil  # as data it is what it is


def test_a_terminal_is_asked(shell: Shell) -> None:
    row = shell.put("place", code="t2")["_sys_id"]
    delete = ("entities", "data", "delete", "place", row)
    code, shown = on_terminal(shell, *delete, types="n\n")
    assert code == 1 and f"Delete row {row} of place?" in shown and "aborted" in shown
    code, shown = on_terminal(shell, *delete, types="y\n")
    assert code == 0 and f"row {row} is deleted" in shown
    assert shell.json("entities", "data", "get", "place", row, code=1)["error"]["code"] == (
        "ROW_NOT_FOUND"
    )


# --- all of them ----------------------------------------------------------------------------------

LOCAL = {
    "init", "validate", "fmt", "schema", "plan", "apply", "revert", "status", "drift", "diff", "up",
    "serve", "operator", "db", "access", "completion",
}  # fmt: skip


def run_here() -> set[str]:
    """Return the commands that this file runs, by the texts its calls begin with."""
    found = set()
    tree = ast.parse(Path(__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Tuple | ast.List):
            parts = node.args if isinstance(node, ast.Call) else node.elts
            words = [each.value for each in parts if isinstance(each, ast.Constant)]
            texts = [each for each in words if isinstance(each, str)]
            found |= {" ".join(texts[:count]) for count in (1, 2, 3)}
    return found


def test_each_remote_command_is_run_here() -> None:
    remote = {path for path in COMMANDS if path.split()[0] not in LOCAL}
    assert len(remote) > 80
    worked_out = {
        "plans approve",
        "plans reject",
        "entities merges approve",
        "entities merges reject",
    }
    assert remote - run_here() - worked_out == set()
