"""A bulk action is what its rows would have become one by one, in the order of their ids."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conftest import DatabaseMaker
from tests.integration.test_bulk_actions import COUNTRIES, PLACES, Bulk, result
from tests.support.importing import good, key_of, served

pytestmark = pytest.mark.anyio
WHO = ("", "writer", "local", "swiss")
VALUES: dict[str, list[Any]] = {
    "code": ["CH900", "FR900", "bad"],
    "Name": ["n", "m", "a name that is much too long", None],
    "country": ["CH", "FR", "IT", "XX", None],
    "email": ["a@b.c", "d@e.f", None],
    "kind": ["port", "rail", "ship", None],
    "price": [1, "2.50", -1, "x", None],
    "level": [0, 1, 9, 10, None],
    "slot": [1, 2, 3, None],
    "open": [True, False, None, "maybe"],
    "extra": [{"a": 1}, [1, 2], None],
    "note": ["", "x", None],
}
FILTERS = (
    "[level] = 1",
    "[country] = 'CH'",
    "[country].[name] = 'France'",
    "[code] LIKE 'CH%'",
    "[slot] IS NULL",
    "[email] IS NOT NULL OR [level] > 1",
    "[nothing] = 1",
)


@pytest.fixture
async def twins(
    importing_url: str, make_database: DatabaseMaker
) -> AsyncIterator[tuple[Bulk, Bulk]]:
    """Two warehouses with the same rows."""
    async with served(importing_url) as api:
        good(await api.json("country", COUNTRIES))
        good(await api.json("place", PLACES))
    other = make_database.copy_of(importing_url)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served(url)) for url in (importing_url, other)]
        yield Bulk(clients[0].client), Bulk(clients[1].client)


def action(chance: random.Random) -> dict[str, Any]:
    which: dict[str, Any] = {"filter": chance.choice(FILTERS)}
    if chance.random() < 0.2:
        which = {"all": True}
    if chance.random() < 0.25:
        # Rarely for good, else nothing is left.
        return {"action": "delete", "soft": chance.random() < 0.8, **which}
    names = chance.sample(sorted(VALUES), chance.choice((1, 1, 2, 3)))
    return {"action": "update", "set": {n: chance.choice(VALUES[n]) for n in names}, **which}


async def one_by_one(api: Bulk, who: str, asked: dict[str, Any]) -> dict[str, str] | None:
    """Return what became of each row by its id, None if the filter is none."""
    headers = {"X-API-Key": key_of(who)} if who else {}
    path = "/api/v1/entities/place/data"
    page = await api.client.get(
        path, params={"filter": asked.get("filter", ""), "take": 1000}, headers=headers
    )
    if page.status_code != 200:
        return None
    found = {}
    for row in sorted(page.json()["items"], key=lambda row: row["_sys_id"]):
        where = f"{path}/{row['_sys_id']}"
        if asked["action"] == "update":
            answer = await api.client.put(where, json=asked["set"], headers=headers)
            kept = answer.is_success and answer.json()["_sys_version"] == row["_sys_version"]
        else:
            soft = {"soft": str(asked["soft"]).lower()}
            answer = await api.client.delete(where, params=soft, headers=headers)
            kept = False
        word = "unchanged" if kept else "changed"
        found[row["_sys_id"]] = word if answer.is_success else answer.json()["code"]
    return found


async def in_bulk(api: Bulk, who: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    answer = await api.send("preview", "place", who, **asked)
    if answer.status_code != 200:
        return None
    token = answer.json()["previewToken"]
    return result(await api.send("execute", "place", who, previewToken=token, **asked))


async def rows(api: Bulk) -> dict[str, dict[str, Any]]:
    clocks = ("_sys_last_modified_at", "_sys_deleted_at")
    found = await api.rows("place", state="all")
    return {r["_sys_id"]: {k: v for k, v in r.items() if k not in clocks} for r in found}


async def check(twins: tuple[Bulk, Bulk], number: int, seed: int) -> int:
    """Do *number* actions on both; return how many were carried out."""
    many, single = twins
    chance = random.Random(seed)
    carried_out = 0
    for _ in range(number):
        who, asked = chance.choice(WHO), action(chance)
        bulk, alone = await in_bulk(many, who, asked), await one_by_one(single, who, asked)
        if bulk is None:
            # Refused as a whole: the filter, or a value that is good for no row.
            assert alone is None or "changed" not in alone.values(), (who, asked, alone)
            continue
        assert alone is not None, (who, asked)
        carried_out += 1
        words = list(alone.values())
        changed = bulk["updated"] + bulk["deleted"]
        assert (changed, bulk["unchanged"]) == (words.count("changed"), words.count("unchanged"))
        refused = {i: code for i, code in alone.items() if code not in ("changed", "unchanged")}
        assert {each["id"]: each["code"] for each in bulk["errors"]} == refused, (who, asked)
        assert await rows(many) == await rows(single), (who, asked)
    return carried_out


async def test_many_at_once_are_what_they_are_one_by_one(twins: tuple[Bulk, Bulk]) -> None:
    assert await check(twins, 60, seed=5) > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
async def test_long_sequences(twins: tuple[Bulk, Bulk], seed: int) -> None:
    await check(twins, 150, seed)
