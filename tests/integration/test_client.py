"""The Python client against a server that listens: every use, retries, bodies that flow, what it never tells."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mdm_api.app import create_app, folder_definitions
from mdm_api.table import OPERATIONS
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.client import ApiError, BearerToken, Change, Client, Limits, Retries
from mdm_gitops.client.retries import asked_wait_s
from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.contract import listening
from tests.support.served_folder import repository
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
KEY = "bootstrap-key-of-the-tests"
GUIDE = Path(__file__).parents[2] / "docs/guides/python-client.md"
FILES = {
    "mdm.yaml": "name: lab\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "entities/country.yaml": (
        "name: country\ndomain: ref\nhistoryEnabled: true\nkeyColumns: [code]\ncolumns:\n"
        "  - {name: code, dataType: string, nullable: false, maxLength: 4}\n"
        "  - {name: name, dataType: string, autocomplete: true}\n"
    ),
    "entities/customer.yaml": (
        "name: customer\ndomain: ref\napprovalRequired: true\nallowSameAuthorApproval: true\n"
        "keyColumns: [code]\ncolumns:\n  - {name: code, dataType: string, nullable: false}\n"
        "  - {name: country, dataType: string, reference: {entity: country}}\n"
    ),
}


class Seen(httpx2.AsyncBaseTransport):
    """The network, with a note of each request that went over it."""

    def __init__(self) -> None:
        self.network = httpx2.AsyncHTTPTransport()
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return await self.network.handle_async_request(request)

    async def aclose(self) -> None:
        await self.network.aclose()


@pytest.fixture
async def url(database_url: str, tmp_path: Path) -> AsyncIterator[str]:
    folder = repository(tmp_path / "lab", {name: text.encode() for name, text in FILES.items()})
    async with await connect(database_url, application_name="test") as conn:
        await apply(conn, read_folder(folder))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    settings = Settings(RateLimit={"Enabled": False})  # type: ignore[arg-type]
    definitions = folder_definitions(folder, settings)
    app = create_app(database_url=database_url, settings=settings, definitions=definitions)
    async with listening(app) as url:
        yield url


async def test_every_use(url: str) -> None:
    """Each operation is asked for by a method of the client; a new one without a method fails."""
    seen = Seen()
    async with Client(url, api_key=KEY, transport=seen) as mdm:
        await use_rows(mdm)
        await use_many_rows(mdm)
        await use_approvals(mdm)
        await use_definitions(mdm)
        await use_access(mdm)
        await use_webhooks(mdm)
        await use_operator_and_packages(mdm)
    used = {(each.method, each.url.path) for each in seen.requests}
    left_out = {
        "patch_data",  # does what PUT does
        "receive_push", "get_health", "get_readiness", "get_metrics", "get_problem",
        "get_openapi", "get_swagger_ui", "get_swagger_file",
        "begin_login", "finish_login", "end_login",
    }  # fmt: skip
    missing = {
        each.operation_id
        for each in OPERATIONS
        if each.operation_id not in left_out
        and not each.operation_id.endswith("_unversioned")
        and not any(
            method == each.method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", each.path), path)
            for method, path in used
        )
    }
    assert missing == set()


async def use_rows(mdm: Client) -> None:
    rows = mdm.rows("country")
    row = await rows.create({"code": "CH", "name": "Schweiz"})
    changed = await rows.update(row["_sys_id"], {"name": "Suisse"}, version=1)
    assert (changed["name"], changed["_sys_version"]) == ("Suisse", 2)
    with pytest.raises(ApiError) as refused:
        await rows.update(row["_sys_id"], {"name": "x"}, version=1)
    assert (refused.value.kind_code, refused.value.status) == ("ROW_VERSION_CONFLICT", 412)
    assert len(refused.value.trace_id) == 32
    assert (await rows.get(row["_sys_id"]))["name"] == "Suisse"
    assert (await rows.delete(row["_sys_id"]))["_sys_state"] == "deleted"  # type: ignore[index]
    assert (await rows.restore(row["_sys_id"]))["_sys_state"] == "active"
    assert [each["version"] for each in (await rows.versions(row["_sys_id"])).items] == [4, 3, 2, 1]
    assert (await rows.restore_version(row["_sys_id"], 1))["name"] == "Schweiz"
    assert (await rows.bounds())["toUtc"]
    assert (await mdm.rows("customer").ref_options("country", "CH"))[0]["value"] == "CH"
    assert [each["value"] for each in await rows.suggestions("name")] == ["Schweiz"]
    assert (await rows.page(count=True, take=1)).total == 1
    await mdm.filters("country").save("mine", filter="[code] = 'CH'")
    assert [each["name"] for each in await mdm.filters("country").list()] == ["mine"]
    assert (await mdm.filters("country").get("mine"))["filter"] == "[code] = 'CH'"
    await mdm.filters("country").delete("mine")
    assert (await mdm.search.data("Schweiz", entity="country"))["total"] == 1
    assert (await mdm.search.entities("country"))["items"][0]["name"] == "country"


async def use_many_rows(mdm: Client) -> None:
    rows = mdm.rows("country")
    done = await rows.import_rows({"code": f"A{n}", "name": "Aland"} for n in range(5))
    assert (done.inserted, done.rejected) == (5, 0)

    async def csv() -> AsyncIterator[bytes]:
        for line in ("code,name\n", "B1,B\n", "toolong,B\n"):
            yield line.encode()

    done = await rows.import_csv(csv, idempotency_key="once")
    assert (done.inserted, done.rejected) == (1, 1)
    assert done.errors[0].code == "ENTITY_VALIDATION_LENGTH"
    assert done.errors_url is not None
    async with rows.import_errors(done.errors_url) as answer:
        assert b"ENTITY_VALIDATION_LENGTH" in await answer.read()
    async with rows.export("xlsx", filter="[code] = 'B1'", fields="code,name") as answer:
        book = await answer.read()
    assert (await rows.import_xlsx(book, mode="upsert")).unchanged == 1
    by_page = [each["code"] async for each in rows.list(filter="[name] = 'Aland'", page_size=2)]
    assert sorted(by_page) == ["A0", "A1", "A2", "A3", "A4"]

    told: list[tuple[int, int]] = []
    action = {"action": "delete", "filter": "[code] IN ('A3', 'A4')", "soft": True}
    seen = await mdm.bulk_actions("country").preview(action)
    assert (seen.match_count, len(seen.sample)) == (2, 2)
    bulk = mdm.bulk_actions("country")
    result = await bulk.execute(action, seen.token, progress=lambda *each: told.append(each))
    assert result["deleted"] == 2 and told[-1] == (2, 2)
    with pytest.raises(ApiError) as stale:
        await bulk.execute(action, seen.token)
    assert stale.value.status == 409

    first, second = [each["_sys_id"] async for each in rows.list(filter="[code] IN ('A0', 'A1')")]
    merges = mdm.merges("country")
    assert (await merges.preview(first, second))["survivor"]["_sys_id"] == first
    merge = (await merges.merge(first, second, values={"name": "One"}))["mergeId"]
    assert [each["mergeId"] async for each in merges.list()] == [merge]
    assert (await merges.get(merge))["state"] == "merged"
    assert (await merges.undo(merge))["state"] == "undone"
    for decide in (merges.approve, merges.reject):
        with pytest.raises(ApiError):
            await decide(merge)

    duplicates = mdm.duplicates("country")
    scan = await duplicates.scan(full=True, min_score=0.1)
    ended = await duplicates.waited(scan["scanId"], pause_s=0.05)
    assert ended["state"] == "done"
    assert (await duplicates.cancel_scan(scan["scanId"]))["state"] == "done"
    await duplicates.dismiss(first, second)
    await duplicates.reopen(first, second)
    assert [each async for each in duplicates.list(min_score=0.1)] != None
    assert "matches" in await duplicates.similar(first, top=3)


async def use_approvals(mdm: Client) -> None:
    rows, approvals = mdm.rows("customer"), mdm.approvals("customer")
    ids = [(await rows.create({"code": f"P{n}"}))["_sys_id"] for n in range(3)]
    assert {each["id"] async for each in approvals.list()} == set(ids)
    assert (await approvals.approve(ids[0], comment="good"))["_sys_state"] == "active"
    await approvals.reject(ids[1], comment="bad")
    await approvals.withdraw(ids[2])
    for name in ("one", "two"):
        await rows.import_rows([{"code": name}], batch_name=name)
    assert {each["batchName"] async for each in approvals.batches()} == {"one", "two"}
    assert (await approvals.approve_batch("one")).approved == 1
    assert (await approvals.reject_batch("two")).rejected == 1


async def use_definitions(mdm: Client) -> None:
    text = "name: planet\ndomain: ref\ncolumns:\n  - {name: code, dataType: string}\n"
    parsed = await mdm.definitions.parse(text)
    assert (await mdm.definitions.validate(text))["valid"] is True
    assert (await mdm.definitions.create(parsed)).commit
    assert (await mdm.definitions.save("planet", text + "displayName: Planet\n")).commit
    assert (await mdm.definitions.update("planet", text)).commit
    assert "planet" in await mdm.definitions.yaml("planet")
    assert [each["name"] for each in await mdm.definitions.list(state="draft")] == ["planet"]
    assert (await mdm.definitions.get("planet"))["status"]["state"] == "draft"
    assert len((await mdm.definitions.summary())["items"]) == 3
    planet = mdm.deployment("planet")
    plan = await planet.preview()
    assert (await planet.deploy(plan_id=plan["plan_id"]))["entity"] == "planet"
    await planet.redeploy()
    assert [each["state"] async for each in planet.history()]
    await planet.remove(allow=["REMOVES_ENTITY:planet"])
    assert (await planet.drop_archives(confirm="planet"))["droppedTables"]
    assert (await mdm.definitions.delete("planet")).commit
    with pytest.raises(ApiError) as wrong:
        await mdm.definitions.validate("name: x y\ndomain: ref\n")
    assert wrong.value.kind_code == "DEFINITION_INVALID" and wrong.value.errors
    assert "currency" in [each["id"] for each in await mdm.common_entities.list()]
    assert (await mdm.common_entities.install("currency", domain="ref")).commit


async def use_access(mdm: Client) -> None:
    assert (await mdm.me())["isGlobalAdmin"] is True
    assert (await mdm.roles())["items"]
    assert (await mdm.permissions.add("ana", "ref", ["read"])).commit
    assert [each["principal"] for each in await mdm.permissions.list()] == ["ana"]
    text = await mdm.permissions.export_yaml()
    assert (await mdm.permissions.import_yaml(text.replace("ana", "bob"))).commit
    made = await mdm.api_keys.create("robot")
    assert made["key"].startswith("mdm_")
    assert "robot" in [each["name"] for each in await mdm.api_keys.list()]
    await mdm.api_keys.revoke("robot")
    assert (await mdm.audit.entries(action="api_key_revoked"))["totalCount"] == 1
    assert (await mdm.changes.page(entity="country"))["entries"]


async def use_webhooks(mdm: Client) -> None:
    made = await mdm.webhooks.create({"name": "erp", "url": "https://erp.example.com/"})
    hook = made["id"]
    assert [each["id"] for each in await mdm.webhooks.list()] == [hook]
    changed = {"name": "erp", "url": "https://erp.example.com/", "is_active": False}
    assert (await mdm.webhooks.update(hook, changed))["is_active"] is False
    assert (await mdm.webhooks.get(hook))["name"] == "erp"
    assert (await mdm.webhooks.test(hook))["delivered"] is False
    assert (await mdm.webhooks.deliveries(hook))["items"] == []
    assert (await mdm.webhooks.replay(hook, after_id=0))["position"] == 0
    last = (await mdm.changes.page(entity="country"))["entries"][-1]["id"]
    await mdm.webhooks.replay_delivery(hook, last)
    assert (await mdm.webhooks.rotate_secret(hook))["secret"] != made["secret"]
    text = await mdm.webhooks.export_yaml()
    await mdm.webhooks.import_yaml(text)
    assert (await mdm.webhooks.delete(hook)).commit


async def use_operator_and_packages(mdm: Client) -> None:
    assert (await mdm.operator.reconcile())["requested"] >= 1
    await mdm.operator.suspend(entity="country", reason="holidays")
    await mdm.operator.resume(entity="country")
    assert (await mdm.operator.status())["requested"] >= 1
    assert await mdm.plans.list() == []
    for ask in (mdm.plans.get, mdm.plans.approve, mdm.plans.reject):
        with pytest.raises(ApiError) as absent:
            await ask("f" * 16)
        assert absent.value.kind_code == "PLAN_NOT_FOUND"
    async with mdm.packages.export(["country"]) as answer:
        package = await answer.read()

    async def anew() -> AsyncIterator[bytes]:
        yield package

    assert (await mdm.packages.deploy(anew, size=len(package)))["success"] is True


# --- the feed -------------------------------------------------------------------------------------


async def test_following_the_feed(url: str) -> None:
    async with Client(url, api_key=KEY) as mdm:
        rows = mdm.rows("country")
        for number in range(3):
            await rows.create({"code": f"F{number}"})
        found: list[Change] = [each async for each in mdm.changes.since(0, page_size=2)]
        assert [each.action for each in found] == ["data_created"] * 3
        feed = mdm.changes.follow(found[-1].id, pause_s=0.02)
        waiting = asyncio.ensure_future(anext(feed))
        row = await rows.create({"code": "F9"})
        assert (await asyncio.wait_for(waiting, 30)).record_id == row["_sys_id"]


# --- patience -------------------------------------------------------------------------------------


class Answers(httpx2.AsyncBaseTransport):
    """A server at its worst: what it answers is a list of statuses, or of errors of the network."""

    def __init__(self, *answers: Any, retry_after: str = "0") -> None:
        self.answers = list(answers)
        self.retry_after = retry_after
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(await request.aread())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        body = b'{"code": "MDM_RATE_LIMIT", "detail": "too many requests", "traceId": "t"}'
        headers = {"Retry-After": self.retry_after} if self.retry_after else {}
        return httpx2.Response(answer, headers=headers, content=b"{}" if answer < 300 else body)


def patient(transport: Answers, **more: Any) -> Client:
    return Client("http://mdm.example", api_key=KEY, transport=transport, **more)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_asked_again(status: int) -> None:
    waited: list[float] = []
    server = Answers(status, status, 200)
    async with patient(server, on_wait=waited.append) as mdm:
        assert await mdm.me() == {}
    assert (len(server.bodies), waited) == (3, [0.0, 0.0])


async def test_a_reset_connection_is_tried_again() -> None:
    server = Answers(httpx2.ReadError("reset"), 200)
    async with patient(server, retries=Retries(first_wait_s=0)) as mdm:
        assert await mdm.me() == {}


@pytest.mark.parametrize(
    ("ask", "tries"),
    [
        (lambda mdm: mdm.rows("x").create({"a": 1}), 1),
        (lambda mdm: mdm.rows("x").import_csv(b"a\n"), 1),
        (lambda mdm: mdm.rows("x").import_csv(b"a\n", idempotency_key="k"), 5),
        (lambda mdm: mdm.rows("x").import_csv(_once(), idempotency_key="k"), 1),
        (lambda mdm: mdm.rows("x").import_csv(_once, idempotency_key="k"), 5),
        (lambda mdm: mdm.rows("x").update("1", {"a": 1}), 5),
        (lambda mdm: mdm.me(), 5),
    ],
)
async def test_only_what_may_be_done_twice_is_tried_again(
    ask: Callable[[Client], Any], tries: int
) -> None:
    server = Answers(*[429] * 9)
    async with patient(server) as mdm:
        with pytest.raises(ApiError) as refused:
            await ask(mdm)
    assert refused.value.kind_code == "MDM_RATE_LIMIT"
    assert len(server.bodies) == tries
    assert len(set(server.bodies)) == 1


async def _once() -> AsyncIterator[bytes]:
    yield b"a\n1\n"


async def test_patience_has_bounds() -> None:
    server = Answers(429, 200, retry_after="3600")
    async with patient(server) as mdm:
        with pytest.raises(ApiError):
            await mdm.me()
    gone = Answers(httpx2.ConnectError("refused"), 200)
    async with patient(gone) as mdm:
        with pytest.raises(MdmError) as away:
            await mdm.me()
    assert (away.value.kind_code, len(gone.bodies)) == ("SERVER_UNREACHABLE", 1)


def test_what_is_waited_for() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert asked_wait_s("7") == 7
    assert asked_wait_s("Thu, 01 Jan 2026 12:00:09 GMT", now=noon) == 9
    assert asked_wait_s("Thu, 01 Jan 2026 11:00:00 GMT", now=noon) == 0
    assert [asked_wait_s(text) for text in ("", "soon", "-1", "²")] == [None] * 4
    waits = [Retries().wait_s(attempt=n, waited_s=0, asked_s=None) for n in (1, 2, 5)]
    assert waits == [0.5, 1.0, None]


async def test_a_server_that_hangs_is_given_up() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        there = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        limits, retries = Limits(read_s=0.1), Retries(attempts=1)
        async with Client(there, limits=limits, retries=retries) as mdm:
            with pytest.raises(MdmError) as hung:
                await mdm.me()
        assert hung.value.kind_code == "SERVER_UNREACHABLE"


# --- what it does not do --------------------------------------------------------------------------


async def test_nothing_secret_is_told() -> None:
    server = Answers(401, 302, 200)
    client = Client("http://mdm.example", token="secret-token", transport=server)
    assert "secret" not in repr(client) + repr(client.connection) + repr(
        BearerToken("secret-token")
    )
    async with client as mdm:
        for _ in range(2):  # a redirect is followed nowhere
            with pytest.raises(MdmError) as refused:
                await mdm.me()
            told = f"{refused.value} {refused.value.hint} {refused.value.details}"
            assert "secret" not in told and "Bearer" not in told


@pytest.mark.parametrize(
    "url",
    ["mdm.example", "ftp://mdm.example", "http://", "http://a:b@mdm.example", "http://x/?q=1"],
)
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(InputError) as refused:
        Client(url, api_key=KEY)
    assert "a:b" not in str(refused.value)


async def test_names_stay_in_their_segment() -> None:
    server = Answers(200)
    seen: list[str] = []

    class Noting(Answers):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            seen.append(request.url.raw_path.decode())
            return await server.handle_async_request(request)

    async with patient(Noting()) as mdm:
        await mdm.rows("a/../b?x=1#y").get("é ü")
        for name in ("", ".", ".."):
            with pytest.raises(InputError):
                await mdm.rows(name).get("1")
        with pytest.raises(InputError):
            await mdm.request("GET", "//evil.example/x")
    assert seen == ["/api/v1/entities/a%2F..%2Fb%3Fx%3D1%23y/data/%C3%A9%20%C3%BC"]


async def test_a_body_that_breaks_off_is_an_error(url: str) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(half, "127.0.0.1", 0) as server:
        there = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(there) as mdm, mdm.rows("x").export() as answer:
            with pytest.raises(MdmError) as broken:
                await answer.read()
    assert broken.value.kind_code == "INTERRUPTED"


# --- the guide ------------------------------------------------------------------------------------


async def test_the_examples_of_the_guide_run(url: str, tmp_path: Path) -> None:
    """Each block of Python in the guide, one after the other, as the body of one program."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    (tmp_path / "countries.csv").write_text("code,name\nNO,Norway\nSE,Sweden\n")
    for number, block in enumerate(blocks, start=1):
        lines = (f"    {line}" for line in block.splitlines())
        program = "async def example(url, key, folder):\n" + "\n".join(lines) + "\n"
        space: dict[str, Any] = {}
        exec(compile(program, f"{GUIDE.name}, block {number}", "exec"), space)  # noqa: S102
        await asyncio.wait_for(space["example"](url, KEY, tmp_path), 60)
    assert (tmp_path / "export.csv").read_text().startswith("code,name")
