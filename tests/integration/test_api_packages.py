"""Packages through the API: what is exported is what is deployed elsewhere, all of it or nothing."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_folder
from mdm_gitops.source.package_reader import MANIFEST, read_package
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.served_folder import git
from tests.support.serving import KEY, Client, problem, served
from tests.support.warehouses import plan

pytestmark = pytest.mark.anyio
HUB = Path(__file__).parents[2] / "examples/customer-hub"
EXPORT, DEPLOY = "/api/v1/packages/export", "/api/v1/packages/deploy"
ALL = {"includePermissions": True, "includeWebhooks": True, "includeSeed": True}
TAKE_ALL = {"importPermissions": "true", "importWebhooks": "true", "importSeed": "true"}
TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'mdm_data'::regnamespace AND relkind = 'r'"
)


def repository(root: Path, files: Mapping[str, str]) -> Path:
    root.mkdir(exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    return root


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    paths = [p for p in HUB.rglob("*") if p.suffix in (".yaml", ".json")]
    files = {str(path.relative_to(HUB)): path.read_text() for path in paths}
    return repository(tmp_path / "hub", files)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return repository(tmp_path / "empty", {"README.md": "nothing yet\n"})


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        yield conn


Serve = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Serve]:
    """Serves a repository on the one warehouse of the test."""
    running = []

    async def start(root: Path, **settings: Any) -> Client:
        given = Settings(**settings)
        definitions = folder_definitions(root, given)
        app = served(create_app(database_url=database_url, settings=given, definitions=definitions))
        client = await app.__aenter__()
        client.headers["X-API-Key"] = KEY
        running.append(app)
        return client

    yield start
    for app in running:
        await app.__aexit__(None, None, None)


async def tables(conn: AsyncConnection[Any]) -> set[str]:
    return {row[0] for row in await (await conn.execute(TABLES)).fetchall()}


def upload(data: bytes) -> dict[str, Any]:
    return {"file": ("package.zip", data, "application/zip")}


def changed(data: bytes, change: Callable[[dict[str, bytes]], Any]) -> bytes:
    """The package with other files, and a manifest that fits them."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop(MANIFEST))
    change(files)
    manifest["files"] = {path: sha256(text).hexdigest() for path, text in files.items()}
    for entity in manifest["entities"]:
        path = next(p for p in files if p.endswith(f"/{entity['name']}.yaml"))
        entity["sha256"] = manifest["files"][path]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for path, text in {MANIFEST: json.dumps(manifest).encode(), **files}.items():
            made.writestr(path, text)
    return out.getvalue()


async def test_an_export_deployed_elsewhere_is_an_equal_state(
    serve: Serve, conn: AsyncConnection[Any], hub: Path, empty: Path
) -> None:
    source = await serve(hub)
    exported = await source.post(EXPORT, json=ALL)
    assert exported.status_code == 200 and exported.headers["content-type"] == "application/zip"
    assert 'filename="customer-hub-1.0.0+' in exported.headers["content-disposition"]
    package = read_package(io.BytesIO(exported.content))
    assert package.manifest.source_commit == git(hub, "rev-parse", "HEAD")
    assert package.manifest.exported_by == "apikey:bootstrap"
    definitions = package.definitions()
    assert len((await plan(conn, definitions)).changes) > 10  # the warehouse is empty

    target = await serve(empty)
    answer = await target.post(DEPLOY, files=upload(exported.content), params=TAKE_ALL)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["success"] is True and set(told["deployedEntities"]) == {
        entity.name for entity in definitions.entities.values()
    }
    order = told["deployedEntities"]
    assert order.index("product_category") < order.index("product")
    assert [step["action"] for step in told["log"]] == ["read", "check", "plan", "commit", "deploy"]
    assert (await plan(conn, definitions)).is_empty
    assert (await plan(conn, read_folder(empty))).is_empty
    assert git(empty, "rev-parse", "HEAD") == told["commit"]
    subject = git(empty, "log", "-1", "--format=%an|%s")
    assert subject.startswith("bootstrap|Deploy package customer-hub 1.0.0+")
    assert not (empty / "access-tests.yaml").exists()  # they are about one place
    for path in set(package.files) - {"access-tests.yaml"}:
        assert (empty / path).read_bytes() == (hub / path).read_bytes()
    states = (await target.get("/api/v1/entities/summary")).json()["counts"]
    assert states["deployed"] == len(order) == sum(states.values())


SMALL = {
    "mdm.yaml": "name: small\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "entities/country.yaml": """\
name: country
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
""",
    "entities/city.yaml": """\
name: city
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: country, dataType: string, reference: {entity: country}}
""",
    "seed/country.json": '[{"code": "CH"}]\n',
    "seed/city.json": '[{"code": "ZRH", "country": "CH"}]\n',
}


@pytest.fixture
async def small(serve: Serve, tmp_path: Path) -> bytes:
    client = await serve(repository(tmp_path / "small", SMALL))
    exported = await client.post(EXPORT, json=ALL)
    assert exported.status_code == 200, exported.text
    return exported.content


def no_such_country(files: dict[str, bytes]) -> None:
    files["seed/city.json"] = b'[{"code": "ZRH", "country": "XX"}]\n'


def broken(files: dict[str, bytes]) -> None:
    files["entities/city.yaml"] += b"  - {name: x, dataType: colour}\n"


def guarded(files: dict[str, bytes]) -> None:
    files["mdm.yaml"] += b"policy: {autoApply: []}\n"


async def test_a_package_that_fails_leaves_nothing(
    serve: Serve, conn: AsyncConnection[Any], small: bytes, empty: Path
) -> None:
    client = await serve(empty)
    head, before = git(empty, "rev-parse", "HEAD"), await tables(conn)
    cases: dict[Any, tuple[tuple[int, str], list[str]]] = {
        broken: ((422, "DEFINITION_INVALID"), []),
        guarded: ((409, "PLAN_REFUSED"), ["read", "check"]),
        # Is seen when the rows are written, after the tables are there.
        no_such_country: (
            (409, "PLAN_REFUSED"),
            ["read", "check", "plan", "commit", "take back", "take back"],
        ),
    }
    for change, (expected, actions) in cases.items():
        answer = await client.post(DEPLOY, files=upload(changed(small, change)), data=TAKE_ALL)
        assert problem(answer) == expected, answer.text
        assert [step["action"] for step in answer.json().get("log", [])] == actions
        assert git(empty, "rev-parse", "HEAD") == head
        assert git(empty, "status", "--porcelain") == "" and not (empty / "entities").exists()
        assert await tables(conn) == before
        stored = await (await conn.execute("SELECT count(*) FROM mdm.entity")).fetchone()
        assert stored == (0,)
    done = await client.post(DEPLOY, files=upload(small), data=TAKE_ALL)  # the control
    assert done.status_code == 200, done.text
    assert await tables(conn) > before and git(empty, "rev-parse", "HEAD") == done.json()["commit"]
    again = await client.post(DEPLOY, files=upload(small), data=TAKE_ALL)
    assert again.status_code == 200 and again.json()["commit"] is None
    # What was deployed is exported as the same files, time after time as the same bytes.
    exports = [(await client.post(EXPORT, json=ALL)).content for _ in range(2)]
    assert exports[0] == exports[1]
    packages = [read_package(io.BytesIO(data)) for data in (small, exports[0])]
    assert packages[0].files == packages[1].files


async def test_what_is_there_and_differs(
    serve: Serve, conn: AsyncConnection[Any], small: bytes, tmp_path: Path
) -> None:
    mine = {
        **SMALL,
        "entities/country.yaml": "# mine\n"
        + SMALL["entities/country.yaml"]
        + "  - {name: label, dataType: string}\n",
    }
    mine.pop("entities/city.yaml"), mine.pop("seed/city.json")
    root = repository(tmp_path / "mine", mine)
    client = await serve(root)
    assert (await client.post("/api/v1/entities/country/deploy")).status_code == 200
    head = git(root, "rev-parse", "HEAD")
    answer = await client.post(DEPLOY, files=upload(small))
    assert problem(answer) == (409, "PACKAGE_CONFLICT")
    assert answer.json()["conflicts"] == ["entity country"]
    over = {"overwriteExisting": "true"}
    answer = await client.post(DEPLOY, files=upload(small), params=over)
    assert problem(answer) == (409, "PLAN_REFUSED") and "REMOVES_COLUMN" in answer.json()["hint"]
    assert git(root, "rev-parse", "HEAD") == head
    allow = {**over, "allow": "REMOVES_COLUMN:country"}
    answer = await client.post(DEPLOY, files=upload(small), data=allow)
    assert answer.status_code == 200, answer.text
    assert answer.json()["deployedEntities"] == ["country", "city"]
    assert not (root / "seed/city.json").exists()  # importSeed was not asked for


async def test_forms_that_are_no_upload(serve: Serve, small: bytes, empty: Path) -> None:
    client = await serve(empty)
    boundary = {"Content-Type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="p"\r\n\r\nPK'
    cases: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"json": {}}, (415, "MEDIA_TYPE_UNSUPPORTED")),
        (
            {"content": b"", "headers": {"Content-Type": "multipart/form-data"}},
            (415, "MEDIA_TYPE_UNSUPPORTED"),
        ),
        ({"content": b"", "headers": boundary}, (400, "REQUEST_INVALID")),
        ({"content": part, "headers": boundary}, (400, "REQUEST_INVALID")),
        ({"content": part + b"\r\n--x--", "headers": boundary}, (400, "PACKAGE_UNREADABLE")),
        ({"content": b"--x\r\nnonsense", "headers": boundary}, (400, "REQUEST_INVALID")),
        ({"files": {"other": ("p", small)}}, (400, "REQUEST_INVALID")),
        ({"files": [("file", ("p", small)), ("file", ("p", small))]}, (400, "REQUEST_INVALID")),
        ({"files": upload(small), "data": {"colour": "1"}}, (400, "REQUEST_INVALID")),
        ({"files": upload(small), "data": {"importSeed": "perhaps"}}, (400, "REQUEST_INVALID")),
        (
            {
                "files": upload(small),
                "data": {"importSeed": "true"},
                "params": {"importSeed": "true"},
            },
            (400, "REQUEST_INVALID"),
        ),
        ({"files": upload(small), "data": {"allow": "x" * 5000}}, (400, "REQUEST_INVALID")),
        ({"files": upload(small[:-40])}, (400, "PACKAGE_UNREADABLE")),
        (
            {"files": upload(changed(small, lambda f: f.update({"../a": b""})))},
            (400, "PACKAGE_UNSAFE"),
        ),
    ]
    for given, expected in cases:
        answer = await client.post(DEPLOY, **given)
        assert problem(answer) == expected, (given.get("data"), answer.text)
    for body in ({"entityNames": "a"}, {"includeSeed": 1}, {"version": 1}, {"colour": 1}):
        assert problem(await client.post(EXPORT, json=body)) == (400, "REQUEST_INVALID")
    assert problem(await client.post(EXPORT)) == (422, "DEFINITION_INVALID")  # nothing is there


async def test_a_package_can_be_proposed(serve: Serve, small: bytes, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(remote))
    first = repository(tmp_path / "first", {"mdm.yaml": SMALL["mdm.yaml"]})
    git(first, "push", "-q", str(remote), "main")
    (tmp_path / "server").mkdir()
    client = await serve(tmp_path / "server", Source={"Url": f"file://{remote}"})
    answer = await client.post(DEPLOY, files=upload(small), data=TAKE_ALL)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["branch"].startswith("mdm/deploy-package-small-") and not told["deployedEntities"]
    assert (
        git(remote, "show", f"{told['branch']}:seed/city.json") == SMALL["seed/city.json"].strip()
    )
    with_remote = await client.post(EXPORT, json={"entityNames": []})
    assert read_package(io.BytesIO(with_remote.content)).manifest.entities == ()


async def test_consent_is_given_for_the_package_alone(
    serve: Serve, small: bytes, tmp_path: Path
) -> None:
    """A permission that somebody pushed and nobody has approved does not come in beside a package."""
    pushed = "permissions:\n  - {users: [eve], domains: [ref], actions: [admin]}\n"
    root = repository(
        tmp_path / "mine", {"mdm.yaml": SMALL["mdm.yaml"], "permissions.yaml": pushed}
    )
    client = await serve(root)
    head = git(root, "rev-parse", "HEAD")
    answer = await client.post(DEPLOY, files=upload(small), data=TAKE_ALL)
    assert problem(answer) == (409, "PLAN_REFUSED") and "permissions.yaml" in answer.json()["hint"]
    assert git(root, "rev-parse", "HEAD") == head
    text = changed(small, lambda files: files.update({"permissions.yaml": pushed.encode()}))
    assert (await client.post(DEPLOY, files=upload(text), data=TAKE_ALL)).status_code == 200
