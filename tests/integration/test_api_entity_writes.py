"""Entities through the API: minimal commits by their caller, checked as a whole, by who may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.settings import Settings
from tests.support import served_folder as folders
from tests.support.customers import key_of
from tests.support.served_folder import git, repository
from tests.support.serving import KEY, Client, problem, served

pytestmark = pytest.mark.anyio
E = "/api/v1/entities"
YAML = {"Content-Type": "application/yaml"}
COUNTRY = """\
# where somebody lives
name: country   # short
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}   # the key

  # as people say
  - name: label
    dataType: string
"""
FILES = {
    "mdm.yaml": "name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}, {name: hr}]\n",
    "entities/base/country.yaml": COUNTRY,
    "entities/person.yaml": """\
name: person
domain: hr
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: home, dataType: string, reference: {entity: country}}
""",
    "seed/country.json": '[{"code": "CH", "label": "Switzerland"}]\n',
    "permissions.yaml": """\
permissions:
  - {users: ["apikey:ref"], domains: [ref], actions: [admin]}
  - {users: ["apikey:hr"], domains: [hr], actions: [admin]}
  - {users: ["apikey:reader"], domains: ["*"], actions: [read]}
""",
}
LEAF = {
    "name": "leaf",
    "domain": "ref",
    "keyColumns": ["code"],
    "columns": [{"name": "code", "dataType": "string", "nullable": False}],
}

conn, client = folders.conn, folders.client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path, {path: text.encode() for path, text in FILES.items()})


async def state(client: Client, name: str) -> str | None:
    items = (await client.get(f"{E}/summary")).json()["items"]
    return next((item["state"] for item in items if item["name"] == name), None)


async def test_from_draft_to_removed(client: Client, root: Path) -> None:
    """The whole life of an entity; its state is what lists say at each moment."""
    made = await client.post("/api/v1/entity-create", json=LEAF)
    assert made.status_code == 201, made.text
    assert made.json()["commit"] == git(root, "rev-parse", "HEAD")
    assert made.headers["Location"] == f"{E}/leaf" and made.json()["status"]["state"] == "draft"
    assert git(root, "log", "-1", "--format=%an|%s") == "bootstrap|Define leaf"
    assert git(root, "show", "--name-only", "--format=", "HEAD") == "entities/base/leaf.yaml"
    assert await state(client, "leaf") == "draft"
    assert (await client.get(f"{E}/leaf/data")).status_code == 409  # saved is not deployed
    assert (await client.post(f"{E}/leaf/deploy")).status_code == 200
    assert await state(client, "leaf") == "deployed"
    wider = {**LEAF, "columns": [*LEAF["columns"], {"name": "note", "dataType": "text"}]}
    changed = await client.put(f"{E}/leaf", json=wider)
    assert changed.status_code == 200 and changed.json()["status"]["state"] == "changed"
    assert git(root, "log", "-1", "--format=%s") == "Change leaf: +note"
    assert (await client.post(f"{E}/leaf/deploy")).status_code == 200
    gone = await client.delete(f"{E}/leaf")
    assert gone.status_code == 200 and gone.json()["state"] == "changed"
    assert not (root / "entities/base/leaf.yaml").exists()
    assert (await client.delete(f"{E}/leaf")).status_code == 404
    assert (await client.post(f"{E}/leaf/deploy/remove")).status_code in (200, 409)
    removed = await client.post(f"{E}/leaf/deploy/remove", json={"allow": ["REMOVES_ENTITY:leaf"]})
    assert await state(client, "leaf") == "removed", removed.text
    assert (await client.post(f"{E}/leaf", json=wider)).status_code == 201  # it comes back
    assert git(root, "status", "--porcelain") == ""


async def test_only_what_differs_is_written(client: Client, root: Path) -> None:
    document = (await client.get(f"{E}/country")).json()
    document["columns"][1]["maxLength"] = 60
    document["description"] = "Where somebody lives"
    answer = await client.put(f"{E}/country", json=document)
    assert answer.status_code == 200, answer.text
    lines = git(root, "show", "--format=", "--unified=0", "HEAD").splitlines()
    assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "+description: Where somebody lives",
        "+    maxLength: 60",
    ]
    assert answer.json()["description"] == document["description"]
    again = await client.put(f"{E}/country", json=document)
    assert (again.status_code, again.json()["commit"]) == (200, None)
    # YAML that somebody wrote is taken as it is where there is no file yet.
    text = "# mine\nname: mine\ndomain: hr\ncolumns: [{name: a, dataType: int}]\n"
    assert (await client.post(f"{E}/mine", content=text, headers=YAML)).status_code == 201
    assert (root / "entities/mine.yaml").read_text() == text


async def test_a_renamed_entity_takes_file_and_seed_along(client: Client, root: Path) -> None:
    given = (await client.get(f"{E}/country")).json()
    refused = await client.put(f"{E}/country", json={**given, "name": "land"})
    assert problem(refused) == (400, "REQUEST_INVALID")
    renamed = {**given, "name": "land", "renamedFrom": "country"}
    refused = await client.put(f"{E}/country", json=renamed)
    assert problem(refused) == (422, "DEFINITION_INVALID")  # person refers to it
    assert refused.json()["errors"][0]["file"] == "entities/person.yaml"
    assert refused.json()["errors"][0]["line"] == 6
    person = (await client.get(f"{E}/person")).json()
    person["columns"][1].pop("reference")
    assert (await client.put(f"{E}/person", json=person)).status_code == 200
    assert (await client.put(f"{E}/country", json=renamed)).status_code == 200
    assert git(root, "show", "--name-only", "--no-renames", "--format=", "HEAD").split() == [
        *("entities/base/country.yaml", "entities/base/land.yaml"),
        *("seed/country.json", "seed/land.json"),
    ]
    assert (root / "seed/land.json").read_text() == FILES["seed/country.json"]
    assert "# as people say" in (root / "entities/base/land.yaml").read_text()


async def test_what_somebody_else_committed_is_not_overwritten(client: Client, root: Path) -> None:
    first = await client.get(f"{E}/country")
    etag = {"If-Match": first.headers["ETag"]}
    one, two = first.json(), first.json()
    one["description"], two["description"] = "one", "two"
    done = await client.put(f"{E}/country", json=one, headers=etag)
    assert done.status_code == 200 and done.headers["ETag"] != etag["If-Match"]
    for answer in (
        await client.put(f"{E}/country", json=two, headers=etag),
        await client.post(f"{E}/country", json=two, headers=etag),
        await client.delete(f"{E}/country", headers=etag),
    ):
        assert problem(answer) == (412, "DEFINITION_CHANGED")
    assert "description: one" in (root / "entities/base/country.yaml").read_text()
    fresh = {"If-Match": done.headers["ETag"]}
    assert (await client.put(f"{E}/country", json=two, headers=fresh)).status_code == 200
    wrong = await client.put(f"{E}/country", json=two, headers={"If-Match": '"v3"'})
    assert problem(wrong) == (400, "REQUEST_INVALID")


async def test_what_is_refused_leaves_no_commit(client: Client, root: Path) -> None:
    head = git(root, "rev-parse", "HEAD")
    column = {"name": "code", "dataType": "string", "nullable": False}
    cases: list[tuple[str, str, Any, tuple[int, str]]] = [
        ("POST", "/api/v1/entity-create", {**LEAF, "name": "country"}, (409, "ENTITY_EXISTS")),
        ("POST", "/api/v1/entity-create", {**LEAF, "domain": "x"}, (422, "DEFINITION_INVALID")),
        ("POST", "/api/v1/entity-create", {**LEAF, "color": 1}, (422, "DEFINITION_INVALID")),
        ("POST", "/api/v1/entity-create", [], (400, "REQUEST_INVALID")),
        ("POST", f"{E}/tree", LEAF, (400, "REQUEST_INVALID")),
        ("PUT", f"{E}/tree", LEAF, (404, "ENTITY_NOT_FOUND")),
        ("DELETE", f"{E}/tree", None, (404, "ENTITY_NOT_FOUND")),
        ("DELETE", f"{E}/country", None, (422, "DEFINITION_INVALID")),
        (
            "PUT",
            f"{E}/person",
            {
                "domain": "hr",
                "keyColumns": ["code"],
                "columns": [
                    column,
                    {"name": "x", "dataType": "string", "reference": {"entity": "y"}},
                ],
            },
            (422, "DEFINITION_INVALID"),
        ),
    ]
    for method, path, body, expected in cases:
        answer = await client.request(method, path, json=body)
        assert problem(answer) == expected, (path, answer.text)
    assert git(root, "rev-parse", "HEAD") == head and git(root, "status", "--porcelain") == ""


async def test_who_may_and_what_it_learns(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    head = git(root, "rev-parse", "HEAD")
    keys = {name: await key_of(conn, name) for name in ("ref", "hr", "reader", "nobody")}
    person = (await client.get(f"{E}/person")).json()
    free = {**person, "columns": person["columns"][:1]}
    cases: list[tuple[str, str, str, Any, int]] = [
        ("reader", "POST", "/api/v1/entity-create", LEAF, 403),
        ("nobody", "POST", "/api/v1/entity-create", LEAF, 403),
        ("ref", "POST", "/api/v1/entity-create", {**LEAF, "domain": "hr"}, 403),
        # A reference to what one may not see is one to what is not there.
        ("hr", "PUT", f"{E}/person", person, 422),
        ("reader", "PUT", f"{E}/person", free, 403),
        ("ref", "PUT", f"{E}/person", free, 404),
        ("hr", "PUT", f"{E}/person", {**free, "domain": "ref"}, 403),
        ("ref", "DELETE", f"{E}/person", None, 404),
        # Rows go where the name goes, so the name has to be one's own.
        ("hr", "POST", f"{E}/mine", {**free, "name": "mine", "renamedFrom": "country"}, 403),
        ("hr", "POST", f"{E}/mine", {**free, "name": "mine", "renamedFrom": "nothing"}, 403),
        ("hr", "POST", "/api/v1/entity-create", {**free, "name": "country"}, 409),
    ]
    for caller, method, path, body, status in cases:
        answer = await client.request(method, path, json=body, headers=keys[caller])
        assert answer.status_code == status, (caller, method, path, answer.text)
    refused = await client.delete(f"{E}/country", headers=keys["ref"])
    assert problem(refused) == (422, "DEFINITION_INVALID")
    assert "person" not in refused.text and "elsewhere" in refused.text
    assert git(root, "rev-parse", "HEAD") == head
    assert (await client.put(f"{E}/person", json=free, headers=keys["hr"])).status_code == 200
    assert (await client.post(f"{E}/leaf", json=LEAF, headers=keys["ref"])).status_code == 201


async def test_a_former_entity_is_not_brought_back_by_others(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    assert (await client.delete(f"{E}/person")).status_code == 200
    allow = {"allow": ["REMOVES_ENTITY:person"]}
    assert (await client.post(f"{E}/person/deploy/remove", json=allow)).status_code == 200
    ref = await key_of(conn, "ref")
    taken = {**LEAF, "name": "person"}
    answer = await client.post("/api/v1/entity-create", json=taken, headers=ref)
    assert problem(answer) == (409, "ENTITY_EXISTS")
    hr = await key_of(conn, "hr")
    back = {**LEAF, "name": "person", "domain": "hr"}
    assert (await client.post(f"{E}/person", json=back, headers=hr)).status_code == 201


async def test_writers_at_once_lose_nothing(client: Client, root: Path) -> None:
    """Eight entities and one contested one: each answer says what happened, and history agrees."""
    etag = (await client.get(f"{E}/country")).headers["ETag"]
    contested = (await client.get(f"{E}/country")).json()
    answers = await asyncio.gather(
        *(client.post(f"{E}/leaf{n}", json={**LEAF, "name": f"leaf{n}"}) for n in range(8)),
        *(
            client.put(
                f"{E}/country",
                json={**contested, "description": f"by {n}"},
                headers={"If-Match": etag},
            )
            for n in range(4)
        ),
    )
    statuses = [answer.status_code for answer in answers]
    assert statuses[:8] == [201] * 8 and sorted(statuses[8:]) == [200, 412, 412, 412]
    commits = {answer.json()["commit"] for answer in answers if answer.status_code < 300}
    assert commits < set(git(root, "log", "--format=%H").splitlines()) and len(commits) == 9
    assert len(list((root / "entities/base").glob("leaf*.yaml"))) == 8
    assert git(root, "status", "--porcelain") == ""


async def test_a_server_that_does_not_write(database_url: str, conn: Any, root: Path) -> None:
    settings = Settings(Repository={"WriteMode": "readonly"})
    definitions = folder_definitions(root, settings)
    app = create_app(database_url=database_url, settings=settings, definitions=definitions)
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        answer = await client.post("/api/v1/entity-create", json=LEAF)
        assert problem(answer) == (409, "DEFINITIONS_IN_GIT")


async def test_common_entities_come_with_what_they_need(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    common = "/api/v1/common-entities"
    items = {item["id"]: item for item in (await client.get(common)).json()["items"]}
    assert items["language"]["rows"] == 7923 and items["subdivision"]["dependencies"] == ["country"]
    assert all(
        "iso-codes" in items[i]["source"] and items[i]["licence"].startswith("LGPL")
        for i in ("country", "subdivision", "currency", "language")
    )
    assert items["country"]["installed"]  # there is one of its name
    missing = await client.post(f"{common}/moon/install")
    assert problem(missing) == (404, "COMMON_ENTITY_NOT_FOUND")
    assert problem(await client.post(f"{common}/country/install")) == (409, "ENTITY_EXISTS")
    ref, hr = await key_of(conn, "ref"), await key_of(conn, "hr")
    for headers, body in ((ref, {}), (ref, {"domain": "hr"}), (hr, {"domain": "ref"})):
        refused = await client.post(f"{common}/currency/install", json=body, headers=headers)
        assert problem(refused) == (403, "ACCESS_DENIED")
    done = await client.post(f"{common}/currency/install", json={"domain": "ref"}, headers=ref)
    assert done.status_code == 201, done.text
    assert done.json()["installed"] == ["currency"]
    assert git(root, "show", "--name-only", "--format=%an", "HEAD").split() == [
        *("ref", "entities/base/currency.yaml", "seed/currency.json"),
    ]
    assert "domain: ref" in (root / "entities/base/currency.yaml").read_text()
    assert (await client.post(f"{E}/currency/deploy")).status_code == 200
    page = await client.get(f"{E}/currency/data?count=true&take=1")
    assert page.json()["totalCount"] == items["currency"]["rows"]
    # A Global Admin gets the domain along.
    assert (await client.post(f"{common}/language/install")).status_code == 201
    assert "linguistics" in (root / "mdm.yaml").read_text()
