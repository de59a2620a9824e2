"""A bulk action is what its rows would have become one by one, in the order of their ids."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conftest import DatabaseMaker
from tests.support.bulk import COUNTRIES, PLACES, Bulk, result
from tests.support.importing import good, key_of, served

pytestmark = pytest.mark.anyio
WHO = {"place": ("", "writer", "local", "swiss"), "gated": ("", "writer", "swiss")}
GATED = [
    {"code": f"G{n}", "country": "CH" if n < 4 else "FR", "level": n % 3, "parent": parent}
    for n, parent in enumerate([None, None, "G1", "G1", None, "G4"])
]
OF_GATED: dict[str, list[Any]] = {
    "code": ["G9", "G1", "too long"],
    "country": ["CH", "FR", "XX", None],
    "parent": ["G0", "G1", "G4", "G9", None],
    "email": ["a@b.c", "d@e.f", None],
    "level": [0, 1, 2, -1, None],
    "open": [True, False],
}
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
FILTERS_OF_GATED = ("[level] = 1", "[country] = 'CH'", "[parent] IS NULL", "[code] <> 'G1'")
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
        good(await api.json("gated", GATED, batchName="b"))
        approver = {"X-API-Key": key_of("approver")}
        approve = "/api/v1/entities/gated/approve-batch"
        answer = await api.client.post(approve, json={"batchName": "b"}, headers=approver)
        assert answer.json()["approved"] == len(GATED)
    other = make_database.copy_of(importing_url)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served(url)) for url in (importing_url, other)]
        yield Bulk(clients[0].client), Bulk(clients[1].client)


def action(chance: random.Random, entity: str) -> dict[str, Any]:
    is_gated = entity == "gated"
    values = OF_GATED if is_gated else VALUES
    which: dict[str, Any] = {"filter": chance.choice(FILTERS_OF_GATED if is_gated else FILTERS)}
    if chance.random() < 0.2:
        which = {"all": True}
    if chance.random() < 0.25:
        # Rarely for good, else nothing is left.
        return {"action": "delete", "soft": chance.random() < 0.8, **which}
    names = chance.sample(sorted(values), chance.choice((1, 1, 2, 3)))
    return {"action": "update", "set": {n: chance.choice(values[n]) for n in names}, **which}


async def one_by_one(
    api: Bulk, entity: str, who: str, asked: dict[str, Any]
) -> dict[str, str] | None:
    """Return what became of each row by its id, None if the filter is none."""
    headers = {"X-API-Key": key_of(who)} if who else {}
    path = f"/api/v1/entities/{entity}/data"
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
            same = answer.is_success and answer.json()["_sys_version"] == row["_sys_version"]
            kept = same and answer.status_code != 202  # that is a proposal
        else:
            soft = {"soft": str(asked["soft"]).lower()}
            answer = await api.client.delete(where, params=soft, headers=headers)
            kept = False
        word = "unchanged" if kept else "changed"
        found[row["_sys_id"]] = word if answer.is_success else answer.json()["code"]
    return found


async def in_bulk(api: Bulk, entity: str, who: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    answer = await api.send("preview", entity, who, **asked)
    if answer.status_code != 200:
        return None
    token = answer.json()["previewToken"]
    return result(await api.send("execute", entity, who, previewToken=token, **asked))


async def rows(api: Bulk, entity: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all rows and proposals, without what clocks and names of batches say."""
    left_out = ("_sys_last_modified_at", "_sys_deleted_at", "_sys_submitted_at", "_sys_batch_name")
    return {
        (state, row["_sys_id"]): {k: v for k, v in row.items() if k not in left_out}
        for state in ("all", "pending")
        for row in await api.rows(entity, state=state)
    }


async def decide(api: Bulk, row_ids: list[str]) -> list[tuple[str, str]]:
    approver = {"X-API-Key": key_of("approver")}
    answer = await api.client.post(
        "/api/v1/entities/gated/approve-batch", json={"ids": row_ids}, headers=approver
    )
    return sorted((each["id"], each["status"]) for each in answer.json()["results"])


async def check(twins: tuple[Bulk, Bulk], number: int, seed: int, entity: str = "place") -> int:
    """Do *number* actions on both; return how many were carried out."""
    many, single = twins
    chance = random.Random(seed)
    carried_out = 0
    for _ in range(number):
        who, asked = chance.choice(WHO[entity]), action(chance, entity)
        bulk = await in_bulk(many, entity, who, asked)
        alone = await one_by_one(single, entity, who, asked)
        if bulk is None:
            # Refused as a whole: the filter, or a value that is good for no row.
            assert alone is None or "changed" not in alone.values(), (who, asked, alone)
            continue
        assert alone is not None, (who, asked)
        carried_out += 1
        words = list(alone.values())
        changed = bulk["updated"] + bulk["deleted"] + bulk["pending"]
        assert (changed, bulk["unchanged"]) == (words.count("changed"), words.count("unchanged"))
        refused = {i: code for i, code in alone.items() if code not in ("changed", "unchanged")}
        assert {each["id"]: each["code"] for each in bulk["errors"]} == refused, (who, asked)
        stands = await rows(many, entity)
        assert stands == await rows(single, entity), (who, asked)
        if entity == "gated" and chance.random() < 0.3:
            waiting = [row_id for state, row_id in stands if state == "pending"]
            assert await decide(many, waiting) == await decide(single, waiting)
    return carried_out


async def test_many_at_once_are_what_they_are_one_by_one(twins: tuple[Bulk, Bulk]) -> None:
    assert await check(twins, 40, seed=5) > 15


async def test_proposals_at_once_are_what_they_are_one_by_one(twins: tuple[Bulk, Bulk]) -> None:
    assert await check(twins, 30, seed=6, entity="gated") > 12


@pytest.mark.soak
@pytest.mark.parametrize("entity", sorted(WHO))
@pytest.mark.parametrize("seed", range(6))
async def test_long_sequences(twins: tuple[Bulk, Bulk], seed: int, entity: str) -> None:
    await check(twins, 150, seed, entity)
