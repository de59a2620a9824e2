"""Reads of the past against lists in memory: what was there, in which order, seen by whom."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import ListRequest, Page, RowShape, get_row, list_rows
from mdm_gitops.errors import Conflict, InputError, MdmError, NotFound
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.conftest import DatabaseMaker
from tests.integration import by_hand
from tests.support.past import Image, Ledger

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: ref}]
""",
    "entities/region.yaml": b"""
name: region
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Chief, dataType: string}
""",
    "entities/country.yaml": b"""
name: country
domain: ref
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
  - {name: keeper, dataType: string}
""",
    "entities/site.yaml": b"""
name: site
domain: ref
historyEnabled: true
approvalRequired: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: rank, dataType: int}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: region, dataType: string, reference: {entity: region}}
  - {name: owner, dataType: string}
  - {name: secret, dataType: string, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: [reader], domains: [ref], actions: [read]}
  - {users: [anna], domains: [ref], entities: [site], actions: [read], rowFilterDsl: "[owner] = me()"}
  - {users: [anna], domains: [ref], entities: [country], actions: [read], rowFilterDsl: "[keeper] = me()"}
  - {users: [bert], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[country].[keeper] = me()"}
  - {users: [cleo], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[country].[keeper] IS NULL"}
  - {users: [dora], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[region].[Chief] = me()"}
""",
}


def at(tick: float) -> datetime:
    return BEGIN + timedelta(minutes=tick)


def number(n: int) -> str:
    return str(uuid.UUID(int=n))


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await by_hand.deploy(conn, read_tree(FILES))
        yield conn


@pytest.fixture
def sites(conn: AsyncConnection[Any]) -> Ledger:
    return Ledger(conn, "site")


@pytest.fixture
def countries(conn: AsyncConnection[Any]) -> Ledger:
    return Ledger(conn, "country")


async def asking(conn: AsyncConnection[Any], user: str = "root") -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name=user),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=datetime.now(UTC),
    )


async def page(
    conn: AsyncConnection[Any],
    entity: str,
    moment: datetime,
    *,
    user: str = "root",
    state: RowState = RowState.ACTIVE,
    fields: str = "",
    expand: str = "",
    **request: Any,
) -> Page:
    return await list_rows(
        conn,
        asking=await asking(conn, user),
        entity=entity,
        request=ListRequest(
            shape=RowShape(state=state, fields=fields, expand=expand), as_of=moment, **request
        ),
    )


def documents(page: Page) -> list[dict[str, Any]]:
    return [json.loads(row) for row in page.rows]


async def codes(
    conn: AsyncConnection[Any], tick: float, *, entity: str = "site", **request: Any
) -> list[Any]:
    request.setdefault("sort", "code")
    return [row["code"] for row in documents(await page(conn, entity, at(tick), **request))]


# --- random pasts ---------------------------------------------------------------------------------

# A step: what is done, to which of the rows known so far, with which values.
STEP = st.tuples(
    st.sampled_from(
        ("create", "create", "update", "update", "soft_delete", "restore", "hard_delete", "switch")
    ),
    st.sampled_from(("site", "site", "country")),
    st.integers(0, 20),
    st.sampled_from(("A", "B", "C", "D", "E")),
    st.sampled_from((None, 1, 2, 3)),
    st.sampled_from((None, "A", "B", "C", "D", "E")),
)
SORTS = ("", "-_sys_id", "code", "-code", "rank", "-rank", "rank,-code", "-_sys_version,code")


class Lab:
    """One warehouse for all examples; its clock goes one tick further with each step."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._open(url))
        self.ledgers = {name: Ledger(self.conn, name) for name in ("site", "country")}

    async def _open(self, url: str) -> None:
        self.conn = await connect(url, application_name="test")
        await by_hand.deploy(self.conn, read_tree(FILES))
        self.asking = await asking(self.conn)

    def close(self) -> None:
        self._runner.run(self.conn.close())
        self._runner.close()

    def run(self, steps: list[Any], *, switches: bool) -> None:
        self._runner.run(self._run(steps, switches=switches))

    async def _run(self, steps: list[Any], *, switches: bool) -> None:
        for ledger in self.ledgers.values():
            await ledger.empty()
            ledger.keeps = True
        self.rows_at: list[dict[str, list[Image]]] = [{"site": [], "country": []}]
        for tick, step in enumerate(steps, start=1):
            await self._do(tick, *step, switches=switches)
            self.rows_at.append({n: each.all_present() for n, each in self.ledgers.items()})
        for tick in range(len(steps) + 1):
            for offset in (-0.5, 0.0) if tick % 3 else (0.0,):
                await self._compare(tick + offset, known=not switches)

    async def _do(
        self,
        tick: int,
        what: str,
        name: str,
        pick: int,
        code: str,
        rank: int | None,
        country: str | None,
        *,
        switches: bool,
    ) -> None:
        ledger = self.ledgers[name]
        present = ledger.all_present()
        values: dict[str, Any] = {"code": code}
        values |= (
            {"rank": rank, "country": country} if name == "site" else {"Name": f"{code}{tick}"}
        )
        values = {key.lower(): value for key, value in values.items()}
        if what == "switch":
            ledger.keeps = ledger.keeps != switches
        elif what == "create":
            # Identifiers do not follow the order of creation here.
            if code not in {each.values["code"] for each in present}:
                await ledger.create(number((tick * 7919) % 1009), values, at(tick))
        elif present:
            row = present[pick % len(present)]
            if code in {each.values["code"] for each in present if each is not row}:
                del values["code"]
            match what:
                case "update":
                    await ledger.update(row.row_id, at(tick), **values)
                case "soft_delete" if not row.deleted:
                    await ledger.soft_delete(row.row_id, at(tick))
                case "restore" if row.deleted:
                    await ledger.restore(row.row_id, at(tick))
                case "hard_delete":
                    await ledger.hard_delete(row.row_id, at(tick))

    async def _compare(self, tick: float, *, known: bool) -> None:
        moment = at(tick)
        expected = {name: list(each.as_of(moment)) for name, each in self.ledgers.items()}
        if known:
            # Nothing is missing: then it is what was there after the last step before.
            then = self.rows_at[int(max(tick, 0))]
            assert {n: _keys(rows) for n, rows in then.items()} == {
                n: _keys(rows) for n, rows in expected.items()
            }
        await self._compare_lists(moment, expected, SORTS[int(2 * tick) % len(SORTS)])
        await self._compare_filters(moment, expected)
        await self._compare_rows(moment, expected["site"])

    async def _compare_lists(
        self, moment: datetime, expected: dict[str, list[Image]], sort: str
    ) -> None:
        for state in (RowState.ACTIVE, RowState.DELETED, RowState.ALL):
            images = [each for each in expected["site"] if _is_in(each, state)]
            images = _sorted(images, sort)
            found = await self._list(moment, sort=sort, state=state, count=True, take=1000)
            assert found.total == len(images)
            assert [_seen(row) for row in documents(found)] == [_image(each) for each in images]
            for row, image in zip(documents(found), images, strict=True):
                key = image.values["country"]
                target = self._by_key("country", expected["country"], key)
                shown = row["_expanded"]["country"]
                assert (shown and (shown["_sys_id"], shown["_sys_version"])) == (
                    target and (target.row_id, target.number)
                )
        for by in (sort, ""):  # read in the order of an index, too
            ids = [each.row_id for each in _sorted(images, by)]
            await self._compare_pages(moment, ids, by, state)

    async def _compare_pages(
        self, moment: datetime, ids: list[str], sort: str, state: RowState
    ) -> None:
        walked: list[str] = []
        after: str | None = ""
        while after is not None:
            part = await self._list(moment, sort=sort, state=state, after=after, take=2)
            walked += [row["_sys_id"] for row in documents(part)]
            after = part.next_after
        assert walked == ids
        skipped = await self._list(moment, sort=sort, state=state, skip=1, take=2)
        assert [row["_sys_id"] for row in documents(skipped)] == ids[1:3]

    async def _compare_filters(self, moment: datetime, expected: dict[str, list[Image]]) -> None:
        images = expected["site"]
        names = {each.values["code"]: each.values["name"] for each in expected["country"]}
        by_rank = await self._list(moment, filter="[rank] >= 2", state=RowState.ALL, count=True)
        assert {row["_sys_id"] for row in documents(by_rank)} == {
            each.row_id for each in images if (each.values["rank"] or 0) >= 2
        }
        assert by_rank.total == len(by_rank.rows)
        if len(names) == len(expected["country"]):  # else two had one key, as far as is known
            found = await self._list(
                moment, filter="[country].[Name] LIKE 'A%'", state=RowState.ALL
            )
            assert {row["_sys_id"] for row in documents(found)} == {
                each.row_id
                for each in images
                if names.get(each.values["country"], "").startswith("A")
            }

    async def _compare_rows(self, moment: datetime, expected: list[Image]) -> None:
        there = {each.row_id: each for each in expected}
        for row_id in self.ledgers["site"].versions:
            if row_id in there:
                row = await self._get(row_id, moment)
                assert _seen(json.loads(row.body)) == _image(there[row_id])
                assert row.version == there[row_id].number
            else:
                with pytest.raises(NotFound):
                    await self._get(row_id, moment)

    def _by_key(self, name: str, expected: list[Image], key: str | None) -> Image | None:
        """Where versions are missing two rows may have had a key: today's holder is preferred, then
        whose version is the older one."""
        today = {
            each.row_id for each in self.ledgers[name].all_present() if each.values["code"] == key
        }
        found = [each for each in expected if each.values["code"] == key]
        return min(found, key=lambda each: (each.row_id not in today, each.modified), default=None)

    async def _list(self, moment: datetime, *, state: RowState, **request: Any) -> Page:
        shape = RowShape(state=state, expand="country")
        return await list_rows(
            self.conn,
            asking=self.asking,
            entity="site",
            request=ListRequest(shape=shape, as_of=moment, **request),
        )

    async def _get(self, row_id: str, moment: datetime) -> Any:
        return await get_row(
            self.conn,
            asking=self.asking,
            entity="site",
            row_id=UUID(row_id),
            shape=RowShape(state=RowState.ALL),
            as_of=moment,
        )


def _keys(images: list[Image]) -> set[tuple[str, int]]:
    return {(each.row_id, each.number) for each in images}


def _is_in(image: Image, state: RowState) -> bool:
    return state is RowState.ALL or image.deleted == (state is RowState.DELETED)


def _image(image: Image) -> tuple[Any, ...]:
    values = image.values
    state = "deleted" if image.deleted else "active"
    return (image.row_id, image.number, values["code"], values["rank"], values["country"], state)


def _seen(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        row[n] for n in ("_sys_id", "_sys_version", "code", "rank", "country", "_sys_state")
    )


def _sorted(images: list[Image], sort: str) -> list[Image]:
    """Nulls are greater than all else."""
    keys = [key for key in sort.split(",") if key]
    if "_sys_id" not in sort:
        keys.append("-_sys_id" if keys and keys[-1].startswith("-") else "_sys_id")
    for key in reversed(keys):
        name = key.lstrip("-")
        images = sorted(images, key=lambda each: _value(each, name), reverse=key[0] == "-")
    return images


def _value(image: Image, name: str) -> tuple[bool, Any]:
    own = {"_sys_id": image.row_id, "_sys_version": image.number}
    value = own.get(name, image.values.get(name))
    return (value is None, value)


@pytest.fixture
def lab(make_database: DatabaseMaker) -> Any:
    lab = Lab(make_database())
    yield lab
    lab.close()


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("switches", [False, True], ids=["kept", "with-gaps"])
def test_the_past_is_what_was_there(lab: Lab, switches: bool) -> None:
    @_settings(12)
    @given(st.lists(STEP, min_size=4, max_size=16))
    def hold(steps: list[Any]) -> None:
        lab.run(steps, switches=switches)

    hold()


@pytest.mark.soak
@pytest.mark.parametrize("switches", [False, True], ids=["kept", "with-gaps"])
def test_the_past_is_what_was_there_of_many(lab: Lab, switches: bool) -> None:
    @settings(_settings(1_500), derandomize=False)
    @given(st.lists(STEP, min_size=4, max_size=30))
    def hold(steps: list[Any]) -> None:
        lab.run(steps, switches=switches)

    hold()


# --- one thing each -------------------------------------------------------------------------------


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
