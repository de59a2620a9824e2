"""The versions of one row, the bounds of the past, and a version taken out to be written again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from mdm_gitops.data.asking import StateMoved
from mdm_gitops.data.versions import (
    VersionPage,
    list_versions,
    time_travel_bounds,
    version_values,
)
from mdm_gitops.errors import Conflict, InputError, MdmError
from tests.conftest import Prepare
from tests.support.past import Ledger
from tests.support.time_travel import asking, at, number, prepare

pytestmark = pytest.mark.anyio
ROW = number(1)


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(prepare)


@pytest.fixture
def sites(conn: AsyncConnection[Any]) -> Ledger:
    return Ledger(conn, "site")


async def versions(
    conn: AsyncConnection[Any], row_id: str = ROW, *, user: str = "root", **paging: int
) -> VersionPage:
    return await list_versions(
        conn, asking=await asking(conn, user), entity="site", row_id=UUID(row_id), **paging
    )


def told(page: VersionPage) -> list[tuple[Any, ...]]:
    """Version, minutes of begin and end, who and what made it, the code it has."""
    found = []
    for item in map(json.loads, page.items):
        begin, end = (text and text[14:16] for text in (item["validFrom"], item["validTo"]))
        who = item["changedBy"].removeprefix("user:past")
        found.append((item["version"], begin, end, who, item["action"], item["row"]["code"]))
    return found


async def test_each_version_says_what_made_it_and_how_long_it_held(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await sites.create(ROW, {"code": "A"}, at(1))
    assert told(await versions(conn)) == [(1, "01", None, "1", "data_created", "A")]
    await sites.update(ROW, at(2), code="B")
    await sites.soft_delete(ROW, at(3))
    await sites.restore(ROW, at(4))
    expected = [
        (4, "04", None, "4", "data_restored", "B"),
        (3, "03", "04", "3", "data_soft_deleted", "B"),
        (2, "02", "03", "2", "data_updated", "B"),
        (1, "01", "02", "1", "data_created", "A"),
    ]
    assert told(await versions(conn)) == expected
    await sites.hard_delete(ROW, at(5))
    expected[0] = (4, "04", "05", "4", "data_restored", "B")
    assert told(await versions(conn)) == expected


async def test_a_version_is_the_whole_row(conn: AsyncConnection[Any], sites: Ledger) -> None:
    await sites.create(ROW, {"code": "A", "rank": 1}, at(1))
    await sites.soft_delete(ROW, at(2))
    newest, oldest = (json.loads(item) for item in (await versions(conn)).items)
    assert list(newest) == ["version", "validFrom", "validTo", "changedBy", "action", "row"]
    assert newest["validFrom"] == "2026-01-01T00:02:00Z"
    assert newest["row"]["_sys_state"] == "deleted"
    assert newest["row"]["_sys_deleted_at"] == "2026-01-01T00:02:00Z"
    assert oldest["row"] == {
        "_sys_id": ROW,
        "code": "A",
        "rank": 1,
        "country": None,
        "region": None,
        "owner": None,
        "secret": None,
        "_sys_version": 1,
        "_sys_created_at": "2026-01-01T00:01:00Z",
        "_sys_created_by": "user:past",
        "_sys_last_modified_at": "2026-01-01T00:01:00Z",
        "_sys_last_modified_by": "user:past1",
        "_sys_is_deleted": False,
        "_sys_deleted_at": None,
        "_sys_state": "active",
    }


async def test_versions_that_were_not_kept_are_bridged(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    sites.keeps = False
    await sites.create(ROW, {"code": "A"}, at(1))
    await sites.update(ROW, at(2), code="B")
    sites.keeps = True
    assert told(await versions(conn)) == [(2, "01", None, "2", "data_created", "B")]
    await sites.update(ROW, at(3), code="C")
    sites.keeps = False
    await sites.update(ROW, at(4), code="D")
    await sites.soft_delete(ROW, at(5))
    sites.keeps = True
    await sites.restore(ROW, at(6))
    sites.keeps = False
    await sites.soft_delete(ROW, at(7))
    await sites.restore(ROW, at(8))
    assert told(await versions(conn)) == [
        (8, "06", None, "8", "data_restored", "D"),
        (5, "03", "06", "5", "data_soft_deleted", "D"),
        (2, "01", "03", "2", "data_created", "B"),
    ]


async def test_versions_come_in_pages(conn: AsyncConnection[Any], sites: Ledger) -> None:
    await sites.create(ROW, {"code": "A"}, at(1))
    for tick in range(2, 6):
        await sites.update(ROW, at(tick), rank=tick)
    numbers = []
    for skip in (0, 2, 4):
        page = await versions(conn, skip=skip, take=2)
        numbers.append([version for version, *_ in told(page)])
        assert (page.total, page.has_more) == (5, skip < 4)
    assert numbers == [[5, 4], [3, 2], [1]]
    beyond = await versions(conn, skip=5)
    assert (list(beyond.items), beyond.total, beyond.has_more) == ([], 5, False)
    for wrong in ({"take": 0}, {"take": 1001}, {"skip": -1}):
        with pytest.raises(InputError):
            await versions(conn, **wrong)


async def test_each_version_is_seen_by_whom_its_own_values_let_through(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await sites.create(ROW, {"code": "A", "owner": "else"}, at(1))
    await sites.update(ROW, at(2), owner="anna")
    await sites.update(ROW, at(3), owner="else")
    await sites.update(ROW, at(4), owner="anna", code="B")
    await sites.update(ROW, at(5), owner="else")
    page = await versions(conn, user="anna")
    # Where a version begins and what made it is its own; nothing of those between is told.
    assert told(page) == [
        (4, "04", "05", "4", "data_updated", "B"),
        (2, "02", "03", "2", "data_updated", "A"),
    ]
    assert page.total == 2
    assert b"else" not in b"".join(page.items)
    assert (await versions(conn)).total == 5


@pytest.mark.parametrize("user", ["anna", "bert", "cleo"])
async def test_a_row_without_a_visible_version_is_as_absent_as_any(
    conn: AsyncConnection[Any], sites: Ledger, user: str
) -> None:
    await Ledger(conn, "country").create(number(101), {"code": "CH", "keeper": "x"}, at(1))
    await sites.create(ROW, {"code": "A", "owner": "else", "country": "CH"}, at(1))
    await sites.update(ROW, at(2), rank=2)
    errors = []
    for row_id in (ROW, number(99)):
        for ask in (versions(conn, row_id, user=user), _values(conn, 1, row_id, user=user)):
            with pytest.raises(MdmError) as caught:
                await ask
            assert caught.value.kind_code == "ROW_NOT_FOUND"
            errors.append(str(caught.value).replace(row_id, "ID"))
    assert len(set(errors)) == 1
    assert (await versions(conn)).total == 2


async def test_a_row_filter_on_versions_follows_references_to_the_rows_of_now(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    countries = Ledger(conn, "country")
    await countries.create(number(101), {"code": "CH", "keeper": "bert"}, at(1))
    await countries.create(number(102), {"code": "DE", "keeper": "else"}, at(1))
    await sites.create(ROW, {"code": "A", "country": "CH"}, at(2))
    await sites.update(ROW, at(3), country="DE")
    assert [version for version, *_ in told(await versions(conn, user="bert"))] == [1]
    await countries.update(number(101), at(4), keeper="else")
    await countries.update(number(102), at(4), keeper="bert")
    assert [version for version, *_ in told(await versions(conn, user="bert"))] == [2]


async def test_restricted_values_are_masked_in_versions(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await sites.create(ROW, {"code": "A", "secret": "hidden"}, at(1))
    await sites.update(ROW, at(2), secret="also")
    page = await versions(conn, user="reader")
    assert [json.loads(item)["row"]["secret"] for item in page.items] == ["***", "***"]
    assert b"hidden" not in b"".join(page.items) and b"also" not in b"".join(page.items)
    clear = await versions(conn)
    assert [json.loads(item)["row"]["secret"] for item in clear.items] == ["also", "hidden"]


async def test_no_versions_without_history(conn: AsyncConnection[Any]) -> None:
    who = await asking(conn)
    for ask in (
        list_versions(conn, asking=who, entity="region", row_id=UUID(ROW)),
        version_values(conn, asking=who, entity="region", row_id=UUID(ROW), version=1),
        time_travel_bounds(conn, asking=who, entity="region"),
    ):
        with pytest.raises(Conflict) as caught:
            await ask
        assert caught.value.kind_code == "HISTORY_NOT_ENABLED"


async def test_the_state_of_the_store_must_still_hold(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await sites.create(ROW, {"code": "A"}, at(1))
    who = await asking(conn, "reader")
    await conn.execute("DELETE FROM mdm.permission WHERE principal = 'reader'")
    for ask in (
        list_versions(conn, asking=who, entity="site", row_id=UUID(ROW)),
        version_values(conn, asking=who, entity="site", row_id=UUID(ROW), version=1),
        time_travel_bounds(conn, asking=who, entity="site"),
    ):
        with pytest.raises(StateMoved):
            await ask


# --- a version to be written again ----------------------------------------------------------------


async def _values(
    conn: AsyncConnection[Any], version: int, row_id: str = ROW, *, user: str = "root"
) -> Any:
    return await version_values(
        conn, asking=await asking(conn, user), entity="site", row_id=UUID(row_id), version=version
    )


async def test_the_values_of_a_version(conn: AsyncConnection[Any], sites: Ledger) -> None:
    await sites.create(ROW, {"code": "A", "rank": 7, "secret": "hidden"}, at(1))
    await sites.soft_delete(ROW, at(2))
    await sites.restore(ROW, at(3))
    await sites.update(ROW, at(4), rank=None)
    first = await _values(conn, 1)
    assert first.texts == {
        "code": "A",
        "rank": "7",
        "country": None,
        "region": None,
        "owner": None,
        "secret": "hidden",
    }
    assert not first.is_deleted
    assert (await _values(conn, 2)).is_deleted
    assert (await _values(conn, 4)).texts["rank"] is None
    with pytest.raises(MdmError) as caught:
        await _values(conn, 5)
    assert caught.value.kind_code == "VERSION_NOT_FOUND"
    await sites.hard_delete(ROW, at(5))
    assert (await _values(conn, 1)).texts["rank"] == "7"


async def test_a_hidden_version_of_a_visible_row_is_as_absent_as_any(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await sites.create(ROW, {"code": "A", "owner": "else"}, at(1))
    await sites.update(ROW, at(2), owner="anna")
    assert (await _values(conn, 2, user="anna")).texts["owner"] == "anna"
    for version in (1, 7):
        with pytest.raises(MdmError) as caught:
            await _values(conn, version, user="anna")
        assert str(caught.value) == f"row {ROW} of site has no version {version}"


# --- bounds ---------------------------------------------------------------------------------------


async def _bounds(conn: AsyncConnection[Any], user: str = "root") -> tuple[Any, datetime]:
    found = await time_travel_bounds(conn, asking=await asking(conn, user), entity="site")
    document = json.loads(found)
    assert list(document) == ["fromUtc", "toUtc"]
    return document["fromUtc"], datetime.fromisoformat(document["toUtc"])


async def test_the_past_begins_with_the_first_row_that_one_may_see(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    before = datetime.now(UTC)
    first, now = await _bounds(conn)
    assert first is None
    assert before <= now <= datetime.now(UTC)
    await sites.create(number(1), {"code": "A", "owner": "else"}, at(1))
    await sites.create(number(2), {"code": "B", "owner": "anna"}, at(2))
    await sites.create(number(3), {"code": "C", "owner": "anna"}, at(3))
    await sites.update(number(3), at(4), rank=1)
    assert (await _bounds(conn))[0] == "2026-01-01T00:01:00Z"
    assert (await _bounds(conn, "anna"))[0] == "2026-01-01T00:02:00Z"
    await sites.hard_delete(number(2), at(5))
    assert (await _bounds(conn, "anna"))[0] == "2026-01-01T00:02:00Z", "it was there"
    assert (await _bounds(conn, "dora"))[0] is None
