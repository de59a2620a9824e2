"""Webhooks through the API: commits, secrets shown once, deliveries that can be followed and repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.settings import Settings
from tests.integration.test_api_permissions import root
from tests.support.customers import COUNTRIES, key_of
from tests.support.receivers import fine, receiving, until
from tests.support.served_folder import conn, git
from tests.support.serving import KEY, Client, served

__all__ = ["conn", "root"]
pytestmark = pytest.mark.anyio
PATH = "/api/v1/webhooks"
YAML = """\
# who is told
webhooks:
  # the shop
  - name: shop
    url: https://shop.example.com/hook   # by phone: 555
    secretRef: SHOP_SECRET
"""


@pytest.fixture
async def client(
    database_url: str, conn: AsyncConnection[Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    monkeypatch.setenv("Mdm__Webhooks__Validation", "Strict")
    monkeypatch.setenv("Mdm__Webhooks__AllowedHosts", "127.0.0.1 shop.example.com")
    app = create_app(
        database_url=database_url,
        settings=Settings(),
        definitions=folder_definitions(root, Settings()),
    )
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def test_from_a_subscription_to_a_signed_delivery(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    async with receiving(fine) as [good]:
        answer = await client.post(PATH, json={"name": "crm", "url": good.url})
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert made["commit"] == git(root, "rev-parse", "HEAD")
        assert git(root, "log", "-1", "--format=%an|%s") == "bootstrap|Add webhook crm"
        one = await client.get(answer.headers["Location"])
        assert one.status_code == 200 and "secret" not in one.json()
        assert one.json()["id"] == made["id"] and one.json()["waiting"] == 0
        assert made["signing"] == one.json()["signing"] == "secret"
        row = (await client.post(COUNTRIES, json={"code": "CH"})).json()
        await until(lambda: len(good.got) == 1)
        [(document, headers, body)] = good.got
        assert document["recordId"] == row["_sys_id"] and document["event"] == "data_created"
        assert document["changes"]["code"] == {"old": None, "new": "CH"}
        Verifier(made["secret"]).verify(body, {k.lower(): v for k, v in headers.items()})

        rotated = (await client.post(f"{PATH}/{made['id']}/secret")).json()["secret"]
        await asyncio.sleep(1.3)  # until the dispatcher has looked again
        await client.post(COUNTRIES, json={"code": "DE"})
        await until(lambda: len(good.got) == 2)
        _, headers, body = good.got[1]
        for secret in (made["secret"], rotated):  # for a day both sign
            Verifier(secret).verify(body, {k.lower(): v for k, v in headers.items()})

        trial = await client.post(f"{PATH}/{made['id']}/test")
        assert trial.json()["delivered"] is True and good.got[2][0]["entityName"] == "test"
        again = await client.post(f"{PATH}/{made['id']}/deliveries/1/replay")
        assert again.status_code == 202
        await until(lambda: len(good.got) == 4)
        assert good.got[3][1]["webhook-id"] == good.got[0][1]["webhook-id"]
        back = await client.post(f"{PATH}/{made['id']}/replay", json={"afterId": 0})
        assert back.status_code == 202
        await client.put(f"{PATH}/{made['id']}", json={"url": good.url, "description": "x"})
        await until(lambda: len(good.got) >= 6)
    metrics = (await client.get("/metrics")).text
    assert 'mdm_webhook_deliveries_total{outcome="delivered",webhook="crm"}' in metrics
    async with asyncio.timeout(20):
        while 'mdm_webhook_behind{webhook="crm"} 0.0' not in metrics:  # it is told now and then
            await asyncio.sleep(0.1)
            metrics = (await client.get("/metrics")).text


async def test_what_comes_by_git_is_signed_before_anybody_has_seen_a_secret(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    async with receiving(fine) as [good]:
        text = f"webhooks: [{{name: git, url: {good.url!r}}}]\n"
        assert (await client.post(f"{PATH}/yaml", json={"yaml": text})).status_code == 200
        [listed] = (await client.get(PATH)).json()["items"]
        assert listed["signing"] == "unseen"
        await client.post(COUNTRIES, json={"code": "CH"})
        await until(lambda: len(good.got) == 1)
        [(_, headers, body)] = good.got
        [unseen] = [row[0] for row in await _secrets(conn)]
        Verifier(unseen).verify(body, {k.lower(): v for k, v in headers.items()})

        shown = (await client.post(f"{PATH}/{listed['id']}/secret")).json()["secret"]
        assert (await client.get(f"{PATH}/{listed['id']}")).json()["signing"] == "secret"
        assert await _secrets(conn) == [(shown,)], "the other one was nobody's"

        def is_signed_anew() -> bool:
            _, headers, body = good.got[-1]
            try:
                Verifier(shown).verify(body, {k.lower(): v for k, v in headers.items()})
            except WebhookVerificationError:
                return False
            return " " not in headers["webhook-signature"]

        async with asyncio.timeout(20):
            for number in range(1_000):
                await client.post(COUNTRIES, json={"code": f"C{number}"})
                await until(lambda: len(good.got) >= number + 2)  # noqa: B023
                if is_signed_anew():
                    break


async def _secrets(conn: AsyncConnection[Any]) -> list[Any]:
    return await (await conn.execute("SELECT secret FROM mdm.webhook_secret")).fetchall()


async def test_the_file_keeps_its_other_lines(
    client: Client, conn: AsyncConnection[Any], root: Path
) -> None:
    answer = await client.post(f"{PATH}/yaml", json={"yaml": YAML})
    assert answer.status_code == 200, answer.text
    [shop] = (await client.get(PATH)).json()["items"]
    assert shop["name"] == "shop" and shop["secretRef"] == "SHOP_SECRET"
    assert shop["signing"] == "secretRef"
    answer = await client.post(PATH, json={"name": "b", "url": "http://127.0.0.1:9/x"})
    assert answer.status_code == 201
    assert (root / "webhooks.yaml").read_text().startswith(YAML.rstrip("\n"))
    changed = {
        "url": "https://shop.example.com/new",
        "secretRef": "SHOP_SECRET",
        "is_active": False,
    }
    answer = await client.put(f"{PATH}/{shop['id']}", json=changed)
    assert answer.status_code == 200 and answer.json()["id"] == shop["id"]
    assert answer.json()["is_active"] is False
    text = (root / "webhooks.yaml").read_text()
    assert text.startswith("# who is told\nwebhooks:\n  # the shop\n") and "name: b" in text
    assert (await client.delete(f"{PATH}/{shop['id']}")).status_code == 200
    assert [each["name"] for each in (await client.get(PATH)).json()["items"]] == ["b"]
    assert (await client.get(f"{PATH}/{shop['id']}")).status_code == 404
    exported = (await client.get(f"{PATH}/yaml")).text
    assert "name: b" in exported and "secret" not in exported.lower()
    assert git(root, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"name": "x"}, 400, "REQUEST_INVALID"),
        ({"name": "x", "url": "ftp://shop.example.com"}, 400, "REQUEST_INVALID"),
        ({"name": "x", "url": "https://evil.example.com/"}, 400, "REQUEST_INVALID"),
        ({"name": "x", "url": "https://a:b@shop.example.com/"}, 400, "REQUEST_INVALID"),
        (
            {"name": "x", "url": "https://shop.example.com/", "actions": ["no"]},
            400,
            "REQUEST_INVALID",
        ),
        ({"name": "x", "url": "https://shop.example.com/", "secret": "s"}, 400, "REQUEST_INVALID"),
        (
            {"name": "x", "url": "https://shop.example.com/", "entities": ["no"]},
            422,
            "DEFINITION_INVALID",
        ),
        ({"name": "crm", "url": "https://shop.example.com/"}, 409, "WEBHOOK_EXISTS"),
    ],
)
async def test_what_is_no_subscription(
    client: Client, root: Path, given: dict[str, Any], status: int, code: str
) -> None:
    first = {"name": "crm", "url": "https://shop.example.com/"}
    assert (await client.post(PATH, json=first)).status_code == 201
    head = git(root, "rev-parse", "HEAD")
    answer = await client.post(PATH, json=given)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert git(root, "rev-parse", "HEAD") == head


async def test_webhooks_are_for_a_global_admin(client: Client, conn: AsyncConnection[Any]) -> None:
    somebody = await key_of(conn, "somebody")
    for method, path in (("GET", PATH), ("POST", PATH), ("GET", f"{PATH}/yaml")):
        answer = await client.request(method, path, headers=somebody)
        assert (answer.status_code, answer.json()["code"]) == (403, "ACCESS_DENIED")


async def test_what_was_not_delivered_is_listed(client: Client, conn: AsyncConnection[Any]) -> None:
    made = (await client.post(PATH, json={"name": "down", "url": "http://127.0.0.1:9/x"})).json()
    await client.post(COUNTRIES, json={"code": "CH"})
    url = f"{PATH}/{made['id']}/deliveries"
    async with asyncio.timeout(10):
        while not (await client.get(url)).json()["items"]:  # noqa: ASYNC110 - outside of us
            await asyncio.sleep(0.05)
    [item] = (await client.get(url + "?state=waiting")).json()["items"]
    assert item["attempts"] == 1 and item["lastError"] == "the connection was refused"
    assert item["nextAttemptUtc"] > item["lastAttemptUtc"] and item["id"] == 1
    assert (await client.get(url + "?state=dead")).json()["items"] == []
    assert (await client.get(f"{PATH}/{made['id']}")).json()["failingSinceUtc"] is not None
    assert (await client.post(f"{url}/99/replay")).status_code == 404
    assert (await client.post(f"{url}/x/replay")).status_code == 400
