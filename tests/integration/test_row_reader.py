"""Rows that are asked for at the same moment are read together, and each caller gets what it may see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from mdm_gitops.data.asking import StateMoved
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.row_reader import RowReader
from mdm_gitops.data.rows import ListRequest, Row, RowShape, get_row, list_rows
from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.warehouse.connect import Connection, connect
from tests.conftest import Prepare
from tests.integration.test_rows import asking, page, rows, values
from tests.support.countries import COUNTRIES

pytestmark = pytest.mark.anyio
ALL = RowShape(state=RowState.ALL)
T = TypeVar("T")


@pytest.fixture
def url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(rows)


@pytest.fixture
async def conn(url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(url, application_name="test") as conn:
        yield conn


class Counting:
    """Gives the one connection to one reader at a time, and counts how often."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._lock = asyncio.Lock()
        self.times = 0

    async def __call__(self, work: Callable[[Connection], Awaitable[T]], /) -> T:
        async with self._lock:
            self.times += 1
            return await work(self._conn)


async def _ids(conn: AsyncConnection[Any]) -> dict[str, UUID]:
    got = await page(conn, "country", sort="code", state=RowState.ALL)
    return dict(zip(values(got, "code"), map(UUID, values(got, "_sys_id")), strict=True))


async def _alone(conn: AsyncConnection[Any], who: Any, row_id: UUID) -> Row | None:
    try:
        return await get_row(conn, asking=who, entity="country", row_id=row_id, shape=ALL)
    except MdmError as error:
        assert error.kind_code == "ROW_NOT_FOUND"
        return None


async def test_each_caller_gets_what_it_would_have_got_alone(conn: AsyncConnection[Any]) -> None:
    ids = [*(await _ids(conn)).values(), UUID(int=7)]
    callers = [await asking(conn, user) for user in ("root", "reader", "swiss")]
    wanted = [(who, row_id) for _ in range(8) for who in callers for row_id in ids]
    connection = Counting(conn)
    reader = RowReader(connection)
    got = await asyncio.gather(
        *(
            reader.get(who, entity="country", row_id=str(row_id), shape=ALL)
            for who, row_id in wanted
        )
    )
    assert got == [await _alone(conn, who, row_id) for who, row_id in wanted]
    assert sum(row is not None for row in got) == 8 * (2 * len(COUNTRIES) + 1)
    assert connection.times == len(callers), "one statement for all who have the same rights"


async def test_shapes_are_not_mixed(conn: AsyncConnection[Any]) -> None:
    ids = await _ids(conn)
    who = await asking(conn, "root")
    reader = RowReader(Counting(conn))
    shapes = [RowShape(state=RowState.ALL, fields=fields) for fields in ("code", "code,area", "")]
    rows = await asyncio.gather(
        *(reader.get(who, entity="country", row_id=str(ids["CH"]), shape=shape) for shape in shapes)
    )
    members = [list(json.loads(row.body)) for row in rows if row is not None]
    assert members[:2] == [["code"], ["code", "area"]]
    assert len(members[2]) > 10


async def test_nothing_is_answered_from_a_state_that_has_passed(
    conn: AsyncConnection[Any],
) -> None:
    ids = await _ids(conn)
    who = await asking(conn, "root")
    reader = RowReader(Counting(conn))
    await conn.execute("UPDATE mdm.revision SET value = value + 1")
    outcomes = await asyncio.gather(
        *(
            reader.get(who, entity="country", row_id=str(row_id), shape=ALL)
            for row_id in ids.values()
        ),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [StateMoved] * len(ids)


async def test_an_entity_that_is_hidden_is_as_absent(conn: AsyncConnection[Any]) -> None:
    reader = RowReader(Counting(conn))
    with pytest.raises(MdmError) as caught:
        who = await asking(conn, "nobody")
        await reader.get(who, entity="country", row_id=str(UUID(int=7)), shape=ALL)
    assert caught.value.kind_code == "ENTITY_NOT_FOUND"


# --- lists ----------------------------------------------------------------------------------------


async def test_callers_of_the_same_list_share_it_and_each_gets_its_own_rights(
    conn: AsyncConnection[Any],
) -> None:
    callers = [await asking(conn, user) for user in ("root", "reader", "swiss")]
    requests = [ListRequest(), ListRequest(sort="-code"), ListRequest(filter="[code] = 'CH'")]
    wanted = [(who, request) for _ in range(8) for who in callers for request in requests]
    connection = Counting(conn)
    reader = RowReader(connection)
    got = await asyncio.gather(
        *(reader.list(who, entity="country", request=request) for who, request in wanted)
    )
    alone = [
        await list_rows(conn, asking=who, entity="country", request=request)
        for who, request in wanted
    ]
    assert got == alone
    assert got[0] != got[2 * len(requests)], "rights make a difference"
    assert connection.times == len(callers) * len(requests), "one statement for all who may share"


class Holding:
    """Runs what it is given at once, and hands out no result before the gate is open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ran = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self, work: Callable[[Connection], Awaitable[T]], /) -> T:
        async with await connect(self._url, application_name="test") as conn:
            result = await work(conn)
            self.ran.set()
            await self.gate.wait()
            return result


async def test_a_list_is_never_older_than_the_question(
    conn: AsyncConnection[Any], url: str
) -> None:
    """Who asks after a write was acknowledged sees it, also while a statement for the same list is under way."""
    who = await asking(conn, "root")
    request = ListRequest(filter="[code] = 'CH'")
    connection = Holding(url)
    reader = RowReader(connection)
    before = reader.list(who, entity="country", request=request)
    await connection.ran.wait()
    await conn.execute("UPDATE mdm_data.country SET name = 'Helvetia' WHERE code = 'CH'")
    after = reader.list(who, entity="country", request=request)
    connection.gate.set()
    assert b"Helvetia" in (await after).joined
    assert b"Helvetia" not in (await before).joined, "to join that one would have been to see less"


async def test_a_list_fails_for_all_who_asked_for_it(conn: AsyncConnection[Any]) -> None:
    who = await asking(conn, "root")
    reader = RowReader(Counting(conn))
    request = ListRequest(sort="nothing")
    outcomes = await asyncio.gather(
        *(reader.list(who, entity="country", request=request) for _ in range(3)),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [InputError] * 3
