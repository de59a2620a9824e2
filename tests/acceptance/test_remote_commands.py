"""Each command that speaks to a server, run as a process against one that serves."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import socket
import subprocess
from pathlib import Path

from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.waiting_plans import Offer, offer_plan
from tests.acceptance import test_remote_profiles
from tests.acceptance.processes import PATIENCE_S, PROGRAM, environment
from tests.acceptance.site import Shell, Site
from tests.support.warehouses import opened
from tests.unit.test_cli_mirrors import COMMANDS

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


# --- all of them ----------------------------------------------------------------------------------

LOCAL = {
    "init", "validate", "fmt", "schema", "plan", "apply", "revert", "status", "drift", "diff", "up",
    "serve", "operator", "db", "access", "completion",
}  # fmt: skip


def run_here() -> set[str]:
    """Return the commands that these files run, by the texts their calls begin with."""
    found = set()
    trees = [
        ast.parse(Path(file).read_text()) for file in (__file__, test_remote_profiles.__file__)
    ]
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
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
