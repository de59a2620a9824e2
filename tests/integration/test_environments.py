"""Environments of ``mdm.yaml``: overlays, ``--env``, and the comparison of two of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from mdm_api.app import folder_definitions
from mdm_api.deployer import WarehouseDeployer
from mdm_gitops.cli import main as program
from mdm_gitops.cli._environment import enter, url_of
from mdm_gitops.errors import DefinitionError, InputError
from mdm_gitops.model.environments import in_environment, without_overlays
from mdm_gitops.model.project import ReconcileMode
from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.source import read_tree
from tests.conftest import DatabaseMaker
from tests.support import program as forked
from tests.support.scenario import column, entity, tree, webhook

ENVIRONMENTS: list[dict[str, Any]] = [
    {"name": "staging", "databaseUrlRef": "STAGING_URL"},
    {
        "name": "production",
        "databaseUrlRef": "PRODUCTION_URL",
        "policy": {"autoApply": []},
        "reconcile": {"mode": "plan-only"},
        "webhooks": [
            {"name": "erp", "url": "https://erp.example.com/hook", "secretRef": "ERP_SECRET"},
            {"name": "shop", "is_active": False},
        ],
    },
]
WEBHOOKS = [webhook("erp"), webhook("shop")]


def files(*entities: Any, environments: Any = ENVIRONMENTS, **others: Any) -> dict[str, bytes]:
    found = tree(*entities, webhooks=WEBHOOKS, **others)
    project = json.loads(found["mdm.yaml"]) | {"environments": environments}
    return found | {"mdm.yaml": json.dumps(project).encode()}


def write(folder: Path, *entities: Any) -> None:
    for path, content in files(*entities).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


def run(
    folder: Path, *arguments: str, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
    return forked.run(*arguments, cwd=folder, env=kept | variables, code=code)


# --- overlays ---


def test_an_overlay_replaces_what_it_names_and_nothing_else() -> None:
    base = read_tree(files(entity("item")))
    there = in_environment(base, "production")
    assert base.project.policy.auto_apply != there.project.policy.auto_apply == ()
    assert there.project.reconcile.mode is ReconcileMode.PLAN_ONLY
    erp, shop = (there.webhook_by_name[name] for name in ("erp", "shop"))
    assert (erp.url, erp.secret_ref, erp.is_active) == (
        "https://erp.example.com/hook",
        "ERP_SECRET",
        True,
    )
    assert (shop.url, shop.is_active) == ("https://example.com/x", False)
    assert there.entities == base.entities
    assert without_overlays(there, "production", like=base).webhooks == base.webhooks
    assert in_environment(base, "staging").webhooks == base.webhooks
    assert in_environment(base, "") is base


def test_an_environment_that_is_not_there_is_told_with_its_neighbour() -> None:
    with pytest.raises(InputError) as caught:
        in_environment(read_tree(files(entity("item"))), "prodution")
    assert "production" in caught.value.hint


@pytest.mark.parametrize(
    ("environment", "rule"),
    [
        ({"name": "has space"}, "bad-name"),
        ({"name": "a", "webhooks": [{"name": "earp"}]}, "unknown-webhook"),
        ({"name": "a", "webhooks": [{"name": "erp"}, {"name": "erp"}]}, "duplicate-name"),
        ({"name": "a", "webhooks": [{"name": "erp", "url": "ftp://x"}]}, "bad-url"),
        ({"name": "a", "webhooks": [{"name": "erp", "secretRef": " "}]}, "bad-reference"),
        ({"name": "a", "webhooks": [{"name": "erp", "is_active": "no"}]}, ""),
        ({"name": "a", "databaseUrlRef": "postgresql://u:p@h/d"}, "bad-reference"),
    ],
)
def test_a_wrong_overlay_is_a_finding(environment: Mapping[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_tree(files(entity("item"), environments=[environment]))
    assert rule in caught.value.findings[0].rule
    assert caught.value.findings[0].location.path == "mdm.yaml"


# --- which database ---


def test_the_address_comes_from_the_variable_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, entity("item"))
    monkeypatch.delenv("PRODUCTION_URL", raising=False)
    with pytest.raises(InputError) as caught:
        url_of(tmp_path, "production")
    assert "PRODUCTION_URL" in str(caught.value)
    (tmp_path / ".env").write_text("PRODUCTION_URL=postgresql://from-a-file\n")
    assert url_of(tmp_path, "production") == "postgresql://from-a-file"
    monkeypatch.setenv("PRODUCTION_URL", "postgresql://from-the-environment")
    monkeypatch.setenv("MDM__DATABASE__URL", "postgresql://another")
    monkeypatch.setenv("Mdm__Database__Url", "postgresql://another")
    monkeypatch.setenv("Mdm__Environment", "")
    enter(tmp_path, "production")
    settings = load_settings(tmp_path)
    assert settings.Environment == "production"
    assert settings.Database.Url is not None
    assert settings.Database.Url.get_secret_value() == "postgresql://from-the-environment"
    assert url_of(tmp_path / "nothing-here", "production") is None


@pytest.mark.parametrize(
    "command",
    ["plan", "apply", "revert", "status", "drift", "validate", "operator", "serve", "up"],
)
def test_commands_can_be_told_their_environment(command: str) -> None:
    found = program.get_command(click.Context(program), command)
    assert found is not None
    (option,) = [each for each in found.params if each.name == "environment"]
    assert (option.opts, option.envvar) == (["--env"], "MDM_ENV")


# --- programs ---


@pytest.mark.anyio
async def test_what_the_api_puts_into_effect_has_the_overlays(
    database_url: str, tmp_path: Path
) -> None:
    write(tmp_path, entity("item"))
    settings = Settings(Environment="production")
    deployer = WarehouseDeployer(
        url=database_url, settings=settings, definitions=folder_definitions(tmp_path, settings)
    )
    await deployer.apply_access(actor="user:test")
    with psycopg.connect(database_url) as conn:
        found = conn.execute("SELECT definition->>'url' FROM mdm.webhook WHERE name = 'erp'")
        assert found.fetchone() == ("https://erp.example.com/hook",)
    written = (tmp_path / "webhooks.yaml").read_text()
    assert "erp.example.com" not in written


def test_each_command_goes_by_its_environment(tmp_path: Path, make_database: DatabaseMaker) -> None:
    urls = {
        "STAGING_URL": make_database(store=False),
        "PRODUCTION_URL": make_database(store=False),
        # What holds without --env must not be touched with it.
        "Mdm__Database__Url": "postgresql://nobody@127.0.0.1:1/none",
    }
    write(tmp_path, entity("item", column("name")))
    run(tmp_path, "validate", "--env", "elsewhere", code=1)
    for name in ("staging", "production"):
        allow = ("--allow", "SENDS_DATA_OUT:*", "--allow", "SAFE:*")
        run(tmp_path, "apply", "--auto-approve", *allow, MDM_ENV=name, **urls)
        with psycopg.connect(urls[f"{name.upper()}_URL"]) as conn:
            found = conn.execute(
                "SELECT name, definition->>'url', definition->>'is_active' FROM mdm.webhook"
            ).fetchall()
        there = name == "production"
        assert sorted(found) == [
            ("erp", "https://erp.example.com/hook" if there else "https://example.com/x", None),
            ("shop", "https://example.com/x", "false" if there else None),
        ]
    same = json.loads(run(tmp_path, "diff", "staging", "production", "--json", **urls).stdout)
    assert (same["same"], same["promotion"]["changes"]) == (True, [])
    write(tmp_path, entity("item", column("name", maxLength=9)), entity("more"))
    waiting = json.loads(run(tmp_path, "status", "--env", "production", "--json", **urls).stdout)
    assert waiting["pending"]["state"] == "needs-approval"  # nothing goes in by itself
    run(tmp_path, "apply", "--env", "staging", "--auto-approve", **urls)
    with psycopg.connect(urls["PRODUCTION_URL"], autocommit=True) as conn:
        conn.execute("ALTER TABLE mdm_data.item ADD COLUMN by_hand int")
    shown = run(
        tmp_path, "diff", "staging", "production", "--detailed-exitcode", **urls, code=2
    ).stdout
    assert "If production got what staging has:" in shown
    assert "more" in shown and "name" in shown
    assert "erp.example.com" not in shown
    told = json.loads(run(tmp_path, "diff", "staging", "production", "--json", **urls).stdout)
    staging, production = told["environments"]
    assert [side["entities"] for side in told["environments"]] == [2, 1]
    assert [staging["drift"], production["drift"]] == [0, 1]
    assert staging["pending"]["summary"] == "nothing"
    assert production["pending"]["changes"] > 0
    assert {c["entity"] for c in told["promotion"]["changes"]} == {"item", "more"}
    done = run(tmp_path, "operator", "--once", "--json", "--env", "production", **urls)
    assert "as the mode says" in json.loads(done.stdout)["message"]


def test_a_saved_plan_is_for_the_environment_it_was_made_for(
    tmp_path: Path, make_database: DatabaseMaker
) -> None:
    """Both databases are empty and both environments define the same: only the names differ."""
    urls = {
        "STAGING_URL": make_database(store=False),
        "PRODUCTION_URL": make_database(store=False),
        "Mdm__Database__Url": make_database(store=False),
    }
    others = [
        {"name": name, "databaseUrlRef": f"{name.upper()}_URL"}
        for name in ("staging", "production")
    ]
    for path, content in files(entity("item"), environments=others).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    made = run(tmp_path, "plan", "--out", "the.plan", "--env", "staging", **urls)
    assert "apply the.plan --env staging" in made.stderr
    apply = ("apply", "the.plan", "--auto-approve", "--allow", "SENDS_DATA_OUT:*")
    for more, words in (
        (("--env", "production"), "and this is for environment production"),
        ((), "and this is for no environment"),
    ):
        told = run(tmp_path, *apply, *more, code=4, **urls)
        assert f"was made for environment staging, {words}" in told.stderr
    elsewhere = urls | {"STAGING_URL": urls["PRODUCTION_URL"]}
    told = run(tmp_path, *apply, "--env", "staging", code=4, **elsewhere)
    assert "was made for another database" in told.stderr
    for url in urls.values():
        with psycopg.connect(url) as conn:
            found = conn.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'mdm%'")
            assert found.fetchone() == (0,), "nothing was touched"
    run(tmp_path, *apply, MDM_ENV="staging", **urls)
    with psycopg.connect(urls["STAGING_URL"]) as conn:
        assert conn.execute("SELECT name FROM mdm.entity").fetchall() == [("item",)]
