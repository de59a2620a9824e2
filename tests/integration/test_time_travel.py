"""Reads of the past, one thing each: what was there, in which order, seen by whom."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import ListRequest, RowShape, get_row, list_rows
from mdm_gitops.errors import Conflict, InputError, MdmError
from tests.conftest import Prepare
from tests.support import by_hand
from tests.support.past import Ledger
from tests.support.time_travel import (
    BEGIN,
    SCHEMAS,
    asking,
    at,
    codes,
    documents,
    number,
    page,
    prepare,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(prepare)


@pytest.fixture
def sites(conn: AsyncConnection[Any]) -> Ledger:
    return Ledger(conn, "site")


@pytest.fixture
def countries(conn: AsyncConnection[Any]) -> Ledger:
    return Ledger(conn, "country")


async def _site(sites: Ledger, n: int, code: str, tick: float, **values: Any) -> str:
    await sites.create(number(n), {"code": code, **values}, at(tick))
    return number(n)


async def _country(countries: Ledger, n: int, code: str, tick: float, **values: Any) -> str:
    await countries.create(number(n), {"code": code, **values}, at(tick))
    return number(n)


async def test_a_version_holds_from_its_beginning_to_before_its_end(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    row_id = await _site(sites, 1, "A", 1, rank=1)
    await sites.update(row_id, at(2), rank=2)
    await sites.hard_delete(row_id, at(3))
    instant = timedelta(microseconds=1)
    for moment, ranks in (
        (BEGIN, []),
        (at(1) - instant, []),
        (at(1), [1]),
        (at(2) - instant, [1]),
        (at(2), [2]),
        (at(3) - instant, [2]),
        (at(3), []),
    ):
        got = documents(await page(conn, "site", moment))
        assert [row["rank"] for row in got] == ranks, moment


async def test_a_row_of_the_past_looks_as_it_looked_then(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    row_id = await _site(sites, 1, "A", 1, rank=1, secret="x")
    await sites.soft_delete(row_id, at(2))
    await sites.restore(row_id, at(3))
    [row] = documents(await page(conn, "site", at(2.5), state=RowState.DELETED))
    assert row == {
        "_sys_id": row_id,
        "code": "A",
        "rank": 1,
        "country": None,
        "region": None,
        "owner": None,
        "secret": "x",
        "_sys_version": 2,
        "_sys_created_at": "2026-01-01T00:01:00Z",
        "_sys_created_by": "user:past",
        "_sys_last_modified_at": "2026-01-01T00:02:00Z",
        "_sys_last_modified_by": "user:past2",
        "_sys_is_deleted": True,
        "_sys_deleted_at": "2026-01-01T00:02:00Z",
        "_sys_state": "deleted",
    }
    assert await codes(conn, 2.5) == []
    assert await codes(conn, 3) == ["A"]
    short = await page(conn, "site", at(1), fields="rank,code")
    assert short.rows[0] == b'{"rank":1,"code":"A"}'


async def test_what_was_written_without_history_counts_back(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    sites.keeps = False
    first = await _site(sites, 1, "A", 1, rank=1)
    await sites.update(first, at(2), rank=2)
    sites.keeps = True
    await sites.update(first, at(4), rank=4)
    sites.keeps = False
    await sites.update(first, at(6), rank=6)
    await sites.update(first, at(7), rank=7)
    sites.keeps = True
    await sites.update(first, at(9), rank=9)
    ranks = {
        tick: [row["rank"] for row in documents(await page(conn, "site", at(tick)))]
        for tick in (0.5, 1, 3.9, 4, 6.5, 8.9, 9, 10)
    }
    # Rank 1 and 6 were never kept: what replaced them stands for the whole time.
    assert ranks == {0.5: [], 1: [2], 3.9: [2], 4: [7], 6.5: [7], 8.9: [7], 9: [9], 10: [9]}


async def test_a_cursor_belongs_to_its_moment(conn: AsyncConnection[Any], sites: Ledger) -> None:
    for n, code in enumerate("ABC", start=1):
        await _site(sites, n, code, n)
    first = await page(conn, "site", at(3), take=1)
    rest = await page(conn, "site", at(3), after=first.next_after or "")
    assert [row["code"] for row in documents(rest)] == ["B", "C"]
    with pytest.raises(InputError, match="another moment"):
        await page(conn, "site", at(4), after=first.next_after or "")
    with pytest.raises(InputError, match="another moment"):
        who = await asking(conn)
        request = ListRequest(after=first.next_after or "")
        await list_rows(conn, asking=who, entity="site", request=request)


async def test_a_page_goes_on_behind_values_that_were_not_there_then(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    """A column that is required today may have had no value: old versions are not backfilled."""
    for n, code in enumerate(["A", None, "C", None], start=1):
        row_id = await _site(sites, n, f"X{n}", 1)
        await sites.update(row_id, at(2), code=f"Y{n}")
        await conn.execute(
            "UPDATE mdm_data.site__history SET code = %s WHERE _sys_id = %s", [code, row_id]
        )
    for sort, expected in (("code", ["A", "C", None, None]), ("-code", [None, None, "C", "A"])):
        assert await codes(conn, 1, sort=sort) == expected
        walked, after = [], ""
        for _ in expected:
            part = await page(conn, "site", at(1), sort=sort, take=1, after=after)
            walked += [row["code"] for row in documents(part)]
            after = part.next_after or ""
        assert walked == expected


@pytest.mark.parametrize("entity", ["site", "country"])
async def test_what_cannot_be_asked_of_the_past(conn: AsyncConnection[Any], entity: str) -> None:
    with pytest.raises(InputError, match="in the future"):
        await page(conn, entity, datetime.now(UTC) + timedelta(minutes=5))
    with pytest.raises(InputError, match="proposals have no past"):
        await page(conn, entity, BEGIN, state=RowState.PENDING)
    with pytest.raises(Conflict, match="region keeps no history") as caught:
        await page(conn, "region", BEGIN)
    assert caught.value.kind_code == "HISTORY_NOT_ENABLED"
    assert (await page(conn, entity, datetime(1, 1, 1, tzinfo=UTC), count=True)).total == 0


async def test_the_clock_of_the_rows_says_what_is_future(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    """A server whose own clock is behind answers for moments that rows have all the same."""
    await _site(sites, 1, "A", 1)
    who = Asking(
        principal=Principal(kind=PrincipalKind.USER, name="root"),
        state=(await asking(conn)).state,
        schemas=SCHEMAS,
        now=BEGIN - timedelta(days=1),
    )
    got = await list_rows(conn, asking=who, entity="site", request=ListRequest(as_of=at(1)))
    assert len(got.rows) == 1


async def test_references_lead_to_the_rows_of_then(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    swiss = await _country(countries, 101, "CH", 1, name="Old")
    gone = await _country(countries, 102, "DD", 1, name="Gone")
    await _site(sites, 1, "A", 2, country="CH")
    await _site(sites, 2, "B", 2, country="DD")
    await countries.update(swiss, at(3), name="New")
    await countries.update(swiss, at(4), code="SZ")
    await countries.hard_delete(gone, at(4))

    async def names(tick: float, **request: Any) -> list[Any]:
        got = documents(
            await page(conn, "site", at(tick), sort="code", expand="country", **request)
        )
        return [row["_expanded"]["country"] and row["_expanded"]["country"]["Name"] for row in got]

    assert await names(2) == ["Old", "Gone"]
    assert await names(3) == ["New", "Gone"]
    assert await names(4) == [None, None], "nobody relinked them here"
    assert await codes(conn, 2, filter="[country].[Name] = 'Old'") == ["A"]
    assert await codes(conn, 3, filter="[country].[Name] = 'Old'") == []
    assert await codes(conn, 3, filter="[country].[Name] IN ('New', 'Gone')") == ["A", "B"]
    assert await codes(conn, 4, filter="[country].[Name] IS NULL") == ["A", "B"]
    counted = await page(conn, "site", at(3), filter="[country].[Name] = 'Gone'", count=True)
    assert (counted.total, documents(counted)[0]["code"]) == (1, "B")


async def _expanded(conn: AsyncConnection[Any], tick: float) -> list[Any]:
    """Return the name of the country of each site, by the site's code."""
    got = documents(await page(conn, "site", at(tick), sort="code", expand="country"))
    return [row["_expanded"]["country"] and row["_expanded"]["country"]["Name"] for row in got]


async def test_a_key_belongs_to_whoever_had_it_then(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    first = await _country(countries, 101, "X", 1, name="first")
    second = await _country(countries, 102, "Y", 1, name="second")
    await _site(sites, 1, "A", 1, country="X")
    await _site(sites, 2, "B", 1, country="Y")
    await _site(sites, 3, "C", 1, country="Z")
    await countries.update(first, at(2), code="Z")
    await countries.update(second, at(3), code="X")
    await countries.update(first, at(4), code="Y")
    assert await _expanded(conn, 1) == ["first", "second", None]
    assert await _expanded(conn, 2) == [None, "second", "first"]
    assert await _expanded(conn, 3) == ["second", None, "first"]
    assert await _expanded(conn, 4) == ["second", "first", None]


async def test_where_two_rows_may_have_had_a_key_the_older_version_counts(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    known = await _country(countries, 101, "K", 1, name="known")
    guessed = await _country(countries, 102, "Z", 2, name="guessed")
    await _site(sites, 1, "A", 1, country="K")
    await countries.update(known, at(5), code="M")
    countries.keeps = False
    await countries.update(guessed, at(6), code="K")
    countries.keeps = True
    await countries.update(guessed, at(8), code="W")
    assert await _expanded(conn, 3) == ["known"]
    assert await _expanded(conn, 6) == ["guessed"]


async def test_references_to_an_entity_without_history_lead_to_what_is_there_now(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    """If it was there by then: a row that is younger cannot have been meant."""
    await by_hand.insert(
        conn,
        "region",
        [
            {"code": "N", "chief": "x", "_sys_created_at": at(1), "_sys_last_modified_at": at(9)},
            {"code": "S", "chief": "y", "_sys_created_at": at(5), "_sys_last_modified_at": at(5)},
        ],
    )
    await _site(sites, 1, "A", 2, region="N")
    await _site(sites, 2, "B", 2, region="S")
    for tick, chiefs in ((3, ["x", None]), (5, ["x", "y"])):
        got = documents(await page(conn, "site", at(tick), sort="code", expand="region"))
        shown = [row["_expanded"]["region"] for row in got]
        assert [row and row["Chief"] for row in shown] == chiefs
    assert await codes(conn, 3, filter="[region].[Chief] <> ''") == ["A"]


# --- who sees it ----------------------------------------------------------------------------------


async def test_a_row_filter_is_judged_on_the_values_of_then(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    mine = await _site(sites, 1, "A", 1, owner="anna")
    other = await _site(sites, 2, "B", 1, owner="bert")
    await sites.update(mine, at(2), owner="bert")
    await sites.update(other, at(3), owner="anna")
    await sites.hard_delete(other, at(5))
    seen = {tick: await codes(conn, tick, user="anna") for tick in (1, 2, 3, 5)}
    assert seen == {1: ["A"], 2: [], 3: ["B"], 5: []}
    counted = await page(conn, "site", at(1), user="anna", count=True, state=RowState.ALL)
    assert counted.total == 1
    assert await codes(conn, 1, user="anna", filter="[code] <> ''") == ["A"]

    async def one(row_id: str, tick: float, user: str) -> str:
        try:
            found = await get_row(
                conn,
                asking=await asking(conn, user),
                entity="site",
                row_id=UUID(row_id),
                shape=RowShape(state=RowState.ALL),
                as_of=at(tick),
            )
        except MdmError as error:
            return str(error).replace(row_id, "ID")
        return str(json.loads(found.body)["code"])

    assert await one(mine, 1, "anna") == "A"
    hidden, absent = await one(mine, 2, "anna"), await one(number(99), 2, "anna")
    assert hidden == absent == "site has no row ID"
    assert await one(mine, 2, "root") == "A"


async def test_a_row_filter_follows_references_to_the_rows_of_now(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    """Nobody gets back into view by asking for the past what was taken away since."""
    swiss = await _country(countries, 101, "CH", 1, keeper="bert")
    await _country(countries, 102, "DE", 1, keeper="other")
    await _site(sites, 1, "A", 2, country="CH")
    await _site(sites, 2, "B", 2, country="DE")
    assert await codes(conn, 2, user="bert") == ["A"]
    await countries.update(swiss, at(3), keeper="somebody else")
    now = await list_rows(
        conn, asking=await asking(conn, "bert"), entity="site", request=ListRequest()
    )
    assert now.rows == []
    assert await codes(conn, 2, user="bert") == []
    assert await codes(conn, 2, user="reader") == ["A", "B"]


async def test_a_reference_that_leads_nowhere_lets_nothing_through(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    """``[country].[keeper] IS NULL`` must not be true because the country is gone."""
    swiss = await _country(countries, 101, "CH", 1, keeper="bert")
    await _country(countries, 102, "DE", 1)
    for n, (code, country) in enumerate((("A", "CH"), ("B", "DE"), ("C", None)), start=1):
        await _site(sites, n, code, 2, country=country)
    assert await codes(conn, 2, user="cleo") == ["B", "C"]
    site = number(1)
    await sites.hard_delete(site, at(3))
    await countries.hard_delete(swiss, at(4))
    assert await codes(conn, 2, user="cleo") == ["B", "C"]
    assert await codes(conn, 2, user="reader") == ["A", "B", "C"]
    shown = await codes(conn, 2, user="root", filter="[country].[keeper] IS NULL")
    assert shown == ["B", "C"], "a filter of one's own sees the country of then"


async def test_a_row_filter_needs_no_history_where_it_leads(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    regions = [{"code": "N", "chief": "dora"}, {"code": "S", "chief": "else"}]
    await by_hand.insert(conn, "region", regions)
    await _site(sites, 1, "A", 1, region="N")
    await _site(sites, 2, "B", 1, region="S")
    assert await codes(conn, 1, user="dora") == ["A"]


async def test_rows_referred_to_are_seen_as_of_then_by_who_may(
    conn: AsyncConnection[Any], sites: Ledger, countries: Ledger
) -> None:
    swiss = await _country(countries, 101, "CH", 1, name="Old", keeper="anna")
    await countries.update(swiss, at(3), name="New", keeper="bert")
    await _site(sites, 1, "A", 2, country="CH", owner="anna")
    for tick, name in ((2, "Old"), (3, None)):
        [row] = documents(await page(conn, "site", at(tick), user="anna", expand="country"))
        country = row["_expanded"]["country"]
        assert (country and country["Name"]) == name
        probe = "[country].[Name] LIKE '%'"
        assert await codes(conn, tick, user="anna", filter=probe) == (["A"] if name else [])


async def test_restricted_columns_are_as_closed_in_the_past(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    row_id = await _site(sites, 1, "A", 1, secret="hidden")
    await sites.update(row_id, at(2), secret="also")
    for tick in (1, 2):
        got = await page(conn, "site", at(tick), user="reader")
        assert documents(got)[0]["secret"] == "***"
        assert b"hidden" not in got.rows[0] and b"also" not in got.rows[0]
    for request in ({"sort": "secret"}, {"filter": "[secret] = 'hidden'"}):
        with pytest.raises(MdmError) as caught:
            await page(conn, "site", at(1), user="reader", **request)
        assert caught.value.kind_code == "COLUMN_RESTRICTED"
        assert (await page(conn, "site", at(1), **request)).rows


async def test_a_page_of_the_past_proves_its_state_too(
    conn: AsyncConnection[Any], sites: Ledger
) -> None:
    await _site(sites, 1, "A", 1)
    who = await asking(conn, "reader")
    request = ListRequest(as_of=at(1))
    assert (await list_rows(conn, asking=who, entity="site", request=request)).rows
    await conn.execute("DELETE FROM mdm.permission WHERE principal = 'reader'")
    with pytest.raises(StateMoved):
        await list_rows(conn, asking=who, entity="site", request=request)
