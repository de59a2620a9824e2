"""Permissions through the API: shown as deployed, changed as commits, in effect at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.settings import Settings
from tests.support import by_hand
from tests.support import served_folder as folders
from tests.support.customers import FILES, key_of
from tests.support.served_folder import git, repository
from tests.support.serving import KEY, Client, served

pytestmark = pytest.mark.anyio
PATH = "/api/v1/permissions"
GRANT: dict[str, Any] = {
    "principal": "apikey:new",
    "domain": "crm",
    "entity": "customer",
    "actions": ["read"],
}

conn, client = folders.conn, folders.client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path, FILES)


@pytest.fixture
def database_url(customers_url: str) -> str:
    """A warehouse in which *root* has been applied already, so that doing it again costs nothing."""
    return customers_url


async def test_an_assignment_is_a_commit_and_holds_at_once(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    new = await key_of(conn, "new")
    data = "/api/v1/entities/customer/data"
    assert (await client.get(data, headers=new)).status_code == 404
    answer = await client.post(PATH, json={**GRANT, "rowFilterDsl": "[country] = 'CH'"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["commit"] == git(root, "rev-parse", "HEAD")
    assert git(root, "log", "-1", "--format=%an|%s") == "bootstrap|Permit read to apikey:new"
    assert (await client.get(data, headers=new)).status_code == 200
    before, after = (
        FILES["permissions.yaml"].decode().rstrip(),
        (root / "permissions.yaml").read_text(),
    )
    assert after.startswith(before) and git(root, "status", "--porcelain") == ""
    [mine] = [i for i in (await client.get(PATH)).json()["items"] if i["principal"] == "apikey:new"]
    assert mine == {**GRANT, "rowFilterDsl": "[country] = 'CH'"}
    # Once more is no further commit.
    again = await client.post(PATH, json={**GRANT, "rowFilterDsl": "[country] = 'CH'"})
    assert (again.status_code, again.json()["commit"]) == (200, None)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({**GRANT, "actions": ["fly"]}, 400),
        ({**GRANT, "actions": []}, 400),
        ({**GRANT, "principal": 5}, 400),
        ({**GRANT, "more": 1}, 400),
        ({**GRANT, "entity": "nothing"}, 422),
        ({**GRANT, "domain": "nothing"}, 422),
        ({**GRANT, "rowFilterDsl": "[colour] = 1"}, 422),
        ({**GRANT, "entity": None, "rowFilterDsl": "[code] = 'x'"}, 422),
    ],
)
async def test_what_is_no_assignment_is_no_commit(
    client: Client, root: Path, given: dict[str, Any], status: int
) -> None:
    head = git(root, "rev-parse", "HEAD")
    answer = await client.post(PATH, json=given)
    assert answer.status_code == status, answer.text
    assert git(root, "rev-parse", "HEAD") == head and git(root, "status", "--porcelain") == ""


async def test_export_and_import_are_the_identity(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    async def stored() -> list[Any]:
        cursor = await conn.execute("SELECT * FROM mdm.permission ORDER BY 1, 2, 3, 4, 5")
        return await cursor.fetchall()

    before = await stored()
    text = (await client.get(f"{PATH}/yaml")).text
    yaml = {"Content-Type": "application/yaml"}
    answer = await client.post(f"{PATH}/yaml", content=text, headers=yaml)
    assert answer.status_code == 200, answer.text
    assert await stored() == before and (root / "permissions.yaml").read_text() == text
    answer = await client.post(
        f"{PATH}/yaml",
        content="permissions:\n  - {users: [ana], domains: ['*'], actions: [admin]}\n",
        headers=yaml,
    )
    assert answer.status_code == 200
    assert [(row[0], row[1]) for row in await stored()] == [("ana", "*")]


async def test_the_last_admin_cannot_be_taken_away(client: Client, root: Path) -> None:
    head = git(root, "rev-parse", "HEAD")
    answer = await client.post(f"{PATH}/yaml", json={"yaml": "permissions: []\n"})
    assert (answer.status_code, answer.json()["code"]) == (409, "PLAN_REFUSED")
    assert git(root, "rev-parse", "HEAD") == head


async def test_what_breaks_a_test_of_access_is_no_commit(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    crm = await key_of(conn, "crm")
    admin = {"principal": "apikey:crm", "domain": "crm", "actions": ["admin"]}
    assert (await client.post(PATH, json=admin)).status_code == 201
    tests = [
        "{name: reads not, principal: 'apikey:new', entity: country, expect: denied}",
        "{name: sees two, principal: 'apikey:new', entity: customer, expect: {count: 2}}",
    ]
    text = "\n".join(f"  - {each}" for each in tests)
    (root / "access-tests.yaml").write_text(f"tests:\n{text}\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "tests")
    head = git(root, "rev-parse", "HEAD")
    await by_hand.insert(conn, "customer", [{"code": f"C{n}", "active": True} for n in range(3)])
    wide: dict[str, Any] = {**GRANT, "entity": None, "domain": "*"}
    for given in (wide, GRANT):
        answer = await client.post(PATH, json=given)
        assert (answer.status_code, answer.json()["code"]) == (409, "PLAN_REFUSED"), answer.text
        assert "access test" in answer.json()["detail"]
        assert git(root, "rev-parse", "HEAD") == head
    # A domain's admin is not told of tests, which may be about what that admin may not know.
    answer = await client.post(PATH, json=GRANT, headers=crm)
    assert (answer.status_code, answer.json()["code"]) == (409, "PLAN_REFUSED")
    assert "sees two" not in answer.text and "3 rows" not in answer.text
    # The same right over the rows that the test expects.
    answer = await client.post(PATH, json={**GRANT, "rowFilterDsl": "[code] <> 'C0'"})
    assert answer.status_code == 201, answer.text
    # A test that fails since rows moved is no matter of webhooks, which give nobody a right.
    await conn.execute("UPDATE mdm_data.customer SET code = 'C9' WHERE code = 'C0'")
    webhook = {"name": "w", "url": "https://example.com/hook", "is_active": False}
    answer = await client.post("/api/v1/webhooks", json=webhook)
    assert answer.status_code == 201, answer.text


async def test_an_admin_administers_its_own_scope_and_no_more(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    crm, one = await key_of(conn, "crm"), await key_of(conn, "one")
    for given in (
        {"principal": "apikey:crm", "domain": "crm", "actions": ["admin"]},
        {"principal": "apikey:one", "domain": "crm", "entity": "customer", "actions": ["admin"]},
    ):
        assert (await client.post(PATH, json=given)).status_code == 201
    cases = [
        (crm, GRANT, 201),
        (crm, {**GRANT, "principal": "x", "entity": None}, 201),
        (crm, {**GRANT, "domain": "ref", "entity": "country"}, 403),
        (crm, {**GRANT, "domain": "*", "entity": None}, 403),
        (crm, {**GRANT, "domain": "*"}, 403),
        (one, {**GRANT, "principal": "y"}, 201),
        (one, {**GRANT, "entity": None}, 403),
        (await key_of(conn, "reader"), GRANT, 403),
        (await key_of(conn, "nobody"), GRANT, 403),
    ]
    for headers, given, status in cases:
        answer = await client.post(PATH, json=given, headers=headers)
        assert answer.status_code == status, (given, answer.text)
    for headers, domains in ((crm, {"crm"}), (one, {"crm"})):
        items = (await client.get(PATH, headers=headers)).json()["items"]
        assert {item["domain"] for item in items} == domains
        answer = await client.post(
            f"{PATH}/yaml", json={"yaml": "permissions: []"}, headers=headers
        )
        assert answer.status_code == 403
    assert {i["entity"] for i in (await client.get(PATH, headers=one)).json()["items"]} == {
        "customer"
    }
    assert (await client.get(PATH, headers=await key_of(conn, "other"))).status_code == 403


async def test_without_a_repository_nothing_is_written(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        answer = await client.post(PATH, json=GRANT)
    assert (answer.status_code, answer.json()["code"]) == (409, "DEFINITIONS_IN_GIT")
