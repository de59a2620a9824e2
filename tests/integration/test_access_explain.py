"""``mdm-gitops access explain``: by the rules that requests are judged by, with the rows counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg import AsyncConnection

from mdm_gitops.cli import main
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from tests.support import by_hand
from tests.support.customers import FILES
from tests.support.warehouses import apply

RESTRICTED = FILES["entities/country.yaml"].replace(
    b"domain: ref\n", b"domain: ref\naccess: {mode: restricted}\n"
)
PERMISSIONS = b"""
permissions:
  - {users: [ana], domains: [crm], actions: [read]}
  - {users: [sales], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[country] = 'CH'"}
  - {users: [ana], domains: [ref], actions: [admin]}
  - {users: ["apikey:shop"], domains: ["*"], actions: [read]}
"""


@pytest.fixture
def folder(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import asyncio

    async def prepare() -> None:
        conn: AsyncConnection[Any]
        async with await connect(database_url, application_name="test") as conn:
            files = {**FILES, "permissions.yaml": PERMISSIONS, "entities/country.yaml": RESTRICTED}
            await apply(conn, read_tree(files))
            await by_hand.insert(conn, "country", [{"code": "CH"}, {"code": "DE"}])
            rows = [{"code": f"C{n}", "country": "CH" if n % 3 else "DE"} for n in range(9)]
            await by_hand.insert(conn, "customer", [{**row, "active": True} for row in rows])

    asyncio.run(prepare())
    monkeypatch.setenv("Mdm__Database__Url", database_url)
    return tmp_path


def explained(folder: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        main, ["access", "explain", *arguments, "--dir", str(folder), "--json"]
    )
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_entity_row_narrows_what_its_action_reaches(folder: Path) -> None:
    found = explained(folder, "--user", "ana", "--group", "sales", "--entity", "customer")
    assert found["identities"] == ["ana", "group:sales", "sales", "user:ana"]
    read, write = found["actions"]["read"], found["actions"]["write"]
    assert (read["rows"], read["totalRows"], read["rowFilters"]) == (6, 9, ["[country] = 'CH'"])
    assert write["granted"] and write["rows"] == 6
    assert write["by"] == ["sales: write on crm/customer where [country] = 'CH'"]
    assert not found["actions"]["approve"]["granted"] and found["actions"]["approve"]["rows"] == 0


def test_without_the_group_the_domain_row_holds(folder: Path) -> None:
    found = explained(folder, "--user", "user:ana", "--entity", "customer")
    assert found["actions"]["read"]["summary"] == "all rows"
    assert found["actions"]["read"]["rows"] == 9 and not found["actions"]["write"]["granted"]


def test_a_group_by_itself_has_what_its_rows_give(folder: Path) -> None:
    found = explained(folder, "--user", "group:sales", "--entity", "customer")
    assert found["actions"]["write"]["rows"] == 6 and not found["actions"]["approve"]["granted"]


def test_a_row_without_effect_says_why(folder: Path) -> None:
    found = explained(folder, "--user", "ana", "--entity", "country")
    assert not any(action["granted"] for action in found["actions"].values())
    reasons = {each["assignment"]: each["reason"] for each in found["withoutEffect"]}
    assert reasons["ana: admin on domain ref"].startswith("country is restricted")
    assert reasons["ana: read on domain crm"] == "country belongs to domain ref"


def test_a_key_is_not_a_user_of_its_name(folder: Path) -> None:
    key = explained(folder, "--user", "apikey:shop", "--entity", "customer")
    user = explained(folder, "--user", "shop", "--entity", "customer")
    assert key["actions"]["read"]["granted"] and not user["actions"]["read"]["granted"]


def test_it_is_told_in_words_and_names_what_is_not_there(folder: Path) -> None:
    told = CliRunner().invoke(
        main,
        ["access", "explain", "--user", "ana", "--entity", "country", "--dir", str(folder)],
    )
    assert told.exit_code == 0
    assert "read            no: nothing grants it  (0 of 2 rows)" in told.stdout
    assert "without effect: ana: admin on domain ref: country is restricted" in told.stdout
    unknown = CliRunner().invoke(
        main, ["access", "explain", "--user", "ana", "--entity", "contry", "--dir", str(folder)]
    )
    assert unknown.exit_code == 1 and "did you mean 'country'" in unknown.stderr
