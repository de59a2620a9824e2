"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: ref}, {name: hr}]
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import ListRequest, Page, RowShape, get_row, list_rows
from mdm_gitops.errors import FilterError, InputError, MdmError
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.conftest import Prepare
from tests.support import by_hand
from tests.support.countries import COUNTRIES, FILES, PEOPLE

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def rows(conn: AsyncConnection[Any]) -> None:
    """Put two entities and their rows into a warehouse."""
    await by_hand.deploy(conn, read_tree(FILES))
    await by_hand.insert(conn, "country", COUNTRIES)
    await by_hand.insert(conn, "person", PEOPLE)


@pytest.fixture(scope="module")
def shared_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(rows)


@pytest.fixture(scope="module")
async def conn(shared_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection as the server has it, to a warehouse that all tests read and none changes."""
    async with await connect(shared_url, application_name="test") as conn:
        yield conn


@pytest.fixture
async def own(copy_of: Callable[[Prepare], str]) -> AsyncIterator[AsyncConnection[Any]]:
    """The same in a warehouse of this test, which may change it."""
    async with await connect(copy_of(rows), application_name="test") as conn:
        yield conn


async def asking(conn: AsyncConnection[Any], user: str = "root") -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name=user),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=NOW,
    )


async def page(
    conn: AsyncConnection[Any],
    entity: str,
    *,
    user: str = "root",
    state: RowState = RowState.ACTIVE,
    fields: str = "",
    expand: str = "",
    **request: Any,
) -> Page:
    shape = RowShape(state=state, fields=fields, expand=expand)
    return await list_rows(
        conn,
        asking=await asking(conn, user),
        entity=entity,
        request=ListRequest(shape=shape, **request),
    )


def values(page: Page, name: str) -> list[Any]:
    return [json.loads(row)[name] for row in page.rows]


async def test_a_row_has_the_spelling_and_the_exact_values_of_its_definition(
    conn: AsyncConnection[Any],
) -> None:
    got = await page(conn, "COUNTRY", take=1, filter="[code] = 'CH'")
    assert '"area":41285.00,"people":1152921504606846977,' in got.rows[0].decode()
    row = json.loads(got.rows[0])
    assert UUID(row.pop("_sys_id"))
    assert row == {
        "code": "CH",
        "Name": "Switzerland",
        "area": 41285.00,
        "people": 2**60 + 1,
        "member_since": "2002-09-10",
        "checked_at": "2024-05-06T07:08:09.12Z",
        "active": True,
        "extra": {"a": [1.5, None]},
        "_sys_version": 1,
        "_sys_created_at": "2024-01-02T03:04:05Z",
        "_sys_created_by": "system:test",
        "_sys_last_modified_at": "2024-01-02T03:04:05.25Z",
        "_sys_last_modified_by": "system:test",
        "_sys_is_deleted": False,
        "_sys_deleted_at": None,
        "_sys_state": "active",
    }


@pytest.mark.parametrize(
    ("request_", "codes"),
    [
        pytest.param({}, ["CH", "DE", "FR", "IT"], id="sort-of-the-definition"),
        pytest.param({"sort": "-code"}, ["IT", "FR", "DE", "CH"], id="descending"),
        pytest.param({"sort": "name"}, ["DE", "IT", "CH", "FR"], id="nulls-last-ascending"),
        pytest.param({"sort": "-NAME"}, ["FR", "CH", "IT", "DE"], id="nulls-first-descending"),
        pytest.param({"sort": "area,-code"}, ["FR", "IT", "CH", "DE"], id="mixed"),
        pytest.param({"state": RowState.DELETED}, ["AT"], id="deleted"),
        pytest.param({"state": RowState.ALL}, ["AT", "CH", "DE", "FR", "IT"], id="all"),
        pytest.param({"state": RowState.PENDING}, [], id="no-approval-nothing-pending"),
        pytest.param({"skip": 1, "take": 2}, ["DE", "FR"], id="skip-and-take"),
        pytest.param({"skip": 9}, [], id="beyond-the-end"),
        pytest.param({"filter": "[area] > 41285"}, ["DE"], id="filter"),
        pytest.param({"filter": "[_sys_version] = 4", "state": RowState.ALL}, ["AT"], id="system"),
        pytest.param({"filter": "  "}, ["CH", "DE", "FR", "IT"], id="blank-filter"),
    ],
)
async def test_which_rows_in_which_order(
    conn: AsyncConnection[Any], request_: dict[str, Any], codes: list[str]
) -> None:
    assert values(await page(conn, "country", **request_), "code") == codes


@pytest.mark.parametrize("state", list(RowState))
async def test_total_counts_what_the_pages_show(
    conn: AsyncConnection[Any], state: RowState
) -> None:
    got = await page(conn, "country", state=state, count=True, take=1, filter="[code] <> 'DE'")
    everything = await page(conn, "country", state=state, filter="[code] <> 'DE'")
    assert got.total == len(everything.rows)
    assert everything.total is None


@pytest.mark.parametrize(
    "sort",
    ["", "code", "-code", "name", "-name", "area,-name", "-area,name", "name,area", "-name,-area",
     "active", "-active,code", "member_since", "-checked_at", "_sys_id", "-_sys_id", "-people,code",
     "_sys_deleted_at,-name"],
)  # fmt: skip
@pytest.mark.parametrize("take", [1, 2, 3])
async def test_cursors_walk_through_all_rows_once_and_in_order(
    conn: AsyncConnection[Any], sort: str, take: int
) -> None:
    given: dict[str, Any] = {"sort": sort, "state": RowState.ALL}
    whole = values(await page(conn, "country", **given), "code")
    walked: list[str] = []
    after = ""
    while True:
        part = await page(conn, "country", take=take, after=after, **given)
        walked += values(part, "code")
        assert part.has_more == (part.next_after is not None)
        if part.next_after is None:
            break
        after = part.next_after
    assert walked == whole
    assert len(walked) == 5


async def test_a_cursor_works_without_the_sort_columns_in_the_answer(
    conn: AsyncConnection[Any],
) -> None:
    first = await page(conn, "country", sort="-checked_at,area,people", fields="code", take=3)
    assert [json.loads(row) for row in first.rows] == [{"code": c} for c in ("FR", "IT", "DE")]
    rest = await page(
        conn, "country", sort="-checked_at,area,people", fields="code", after=first.next_after
    )
    assert values(rest, "code") == ["CH"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"take": 0}, "take must be 1 to 1000"),
        ({"take": 1001}, "take must be 1 to 1000"),
        ({"skip": -1}, "skip must be"),
        ({"sort": "cod"}, "sort names column 'cod', which country does not have"),
        ({"sort": "code,CODE"}, "sort names column 'code' twice"),
        ({"sort": "extra"}, "'extra' is json, which has no order"),
        ({"fields": "code,nmae"}, "fields names column 'nmae', which country does not have"),
        ({"expand": "code"}, "expand names 'code', which is no reference column"),
        ({"after": "x"}, "after is not a cursor"),
        ({"after": "WzFd"}, "after is not a cursor"),
        ({"after": "\u00e9"}, "after is not a cursor"),
        ({"after": "W" * 20_000}, "after is not a cursor"),
        ({"after": "WyJhYmMiLDFd"}, "after was made for another entity, state or sort"),
    ],
)
async def test_wrong_requests_say_what_is_wrong(
    conn: AsyncConnection[Any], request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        await page(conn, "country", **request_)
    assert message in str(caught.value)


async def test_a_cursor_is_bound_to_its_sort_and_its_types(conn: AsyncConnection[Any]) -> None:
    import base64

    token = (await page(conn, "country", take=1)).next_after or ""
    with pytest.raises(InputError, match="another entity, state or sort"):
        await page(conn, "country", sort="-code", after=token)
    content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    for forged in ([content[0], 1, content[2]], [content[0], "CH", "no-guid"], [content[0], None, content[2]]):  # fmt: skip
        text = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
        with pytest.raises(InputError, match="is not a cursor"):
            await page(conn, "country", after=text)


async def test_expanded_references_stand_beside_the_values(conn: AsyncConnection[Any]) -> None:
    got = await page(conn, "person", sort="login", expand="country,boss", fields="login,country")
    rows = [json.loads(row) for row in got.rows]
    assert [(r["login"], r["country"]) for r in rows] == [
        ("anna", "CH"), ("bert", "DE"), ("cleo", "XX")]  # fmt: skip
    assert rows[0]["_expanded"]["country"]["Name"] == "Switzerland"
    assert rows[0]["_expanded"]["boss"] is None
    assert rows[1]["_expanded"]["boss"]["login"] == "anna"
    assert rows[2]["_expanded"]["country"] is None, "a dangling reference is null"


async def test_expanding_shows_no_more_than_the_caller_may_see(conn: AsyncConnection[Any]) -> None:
    got = await page(conn, "person", user="swiss", sort="login", expand="country,boss")
    rows = [json.loads(row) for row in got.rows]
    assert [r["_expanded"]["country"] and r["_expanded"]["country"]["code"] for r in rows] == [
        "CH", None, None]  # fmt: skip
    assert rows[1]["_expanded"]["boss"]["salary"] == "***"
    without_right = await page(conn, "person", user="hr", expand="country")
    assert [v["country"] for v in values(without_right, "_expanded")] == [None, None, None]


async def test_masked_values_are_in_no_byte_of_the_answer(conn: AsyncConnection[Any]) -> None:
    masked = await page(conn, "person", user="reader", sort="login")
    assert values(masked, "salary") == ["***", "***", "***"]
    assert values(await page(conn, "person", user="hr", sort="login"), "salary") == [100, 200, 300]


@pytest.mark.parametrize(
    "request_",
    [
        {"sort": "salary"},
        {"sort": "login,-SALARY"},
        {"filter": "[salary] > 150"},
        {"filter": "[login] = 'x' OR [SALARY] IS NULL"},
        {"filter": "[boss].[salary] > 150"},
    ],
)
async def test_masked_columns_neither_sort_nor_filter(
    conn: AsyncConnection[Any], request_: dict[str, str]
) -> None:
    with pytest.raises(MdmError) as caught:
        await page(conn, "person", user="reader", **request_)
    assert caught.value.kind_code == "COLUMN_RESTRICTED"
    assert await page(conn, "person", user="hr", **request_)


async def test_row_filters_hold_for_lists_counts_and_single_rows(
    conn: AsyncConnection[Any],
) -> None:
    got = await page(conn, "country", user="swiss", count=True, state=RowState.ALL)
    assert (values(got, "code"), got.total) == (["CH"], 1)
    got = await page(conn, "country", user="swiss", filter="[code] = 'DE' OR [code] = 'CH'")
    assert values(got, "code") == ["CH"]
    ids = values(await page(conn, "country", sort="code"), "_sys_id")
    who = await asking(conn, "swiss")
    shape = RowShape(state=RowState.ALL)
    found = await get_row(conn, asking=who, entity="country", row_id=UUID(ids[0]), shape=shape)
    assert (json.loads(found.body)["code"], found.version) == ("CH", 1)
    absent = UUID(int=7)
    messages = []
    for row_id in (UUID(ids[1]), absent):
        with pytest.raises(MdmError) as caught:
            await get_row(conn, asking=who, entity="country", row_id=row_id, shape=shape)
        assert caught.value.kind_code == "ROW_NOT_FOUND"
        messages.append(str(caught.value).replace(str(row_id), "ID"))
    assert messages[0] == messages[1]


async def test_a_filter_follows_references_only_to_rows_that_are_seen(
    conn: AsyncConnection[Any],
) -> None:
    by_name = "[country].[name] = 'Germany'"
    assert values(await page(conn, "person", filter=by_name), "login") == ["bert"]
    assert values(await page(conn, "person", user="swiss", filter=by_name), "login") == []
    with pytest.raises(MdmError) as caught:
        await page(conn, "person", user="hr", filter=by_name)
    assert caught.value.kind_code == "ACCESS_DENIED"


async def test_a_row_filter_holds_for_references_to_the_entity_itself(
    own: AsyncConnection[Any],
) -> None:
    await own.execute("UPDATE mdm_data.person SET boss = 'bert' WHERE login = 'anna'")
    definitions = read_tree({
        **FILES,
        "permissions.yaml": b"""
permissions:
  - {users: [anna], domains: [hr], entities: [person], actions: [read],
     rowFilterDsl: "[login] = me()"}
""",
    })  # fmt: skip
    await by_hand.set_grants(own, definitions)
    assert values(await page(own, "person", user="anna"), "login") == ["anna"]
    probe = "[boss].[login] LIKE 'b%'"
    assert values(await page(own, "person", user="anna", filter=probe), "login") == []


@pytest.mark.parametrize("user", ["nobody", "hr"])
async def test_an_entity_one_may_not_read_is_as_absent_as_one_that_is_not_there(
    conn: AsyncConnection[Any], user: str
) -> None:
    errors = []
    for name in ("country", "countri"):
        with pytest.raises(MdmError) as caught:
            await page(conn, name, user=user)
        errors.append((caught.value.kind_code, str(caught.value).replace(name, "X"),
                       caught.value.hint))  # fmt: skip
    assert errors[0] == errors[1] == ("ENTITY_NOT_FOUND", "there is no entity 'X'", "")


async def test_hints_come_from_what_is_visible(conn: AsyncConnection[Any]) -> None:
    with pytest.raises(MdmError) as caught:
        await page(conn, "countri", user="reader")
    assert caught.value.hint == "did you mean 'country'?"


async def test_proposals_look_like_rows(own: AsyncConnection[Any]) -> None:
    ids = values(await page(own, "person", sort="login"), "_sys_id")
    await own.execute(
        "INSERT INTO mdm_data.person__edit (_sys_id, login, salary, _sys_base_version,"
        " _sys_operation, _sys_state, _sys_submitted_at, _sys_submitted_by) VALUES"
        " (%s, 'anna', 111, 1, 'update', 'pending', '2025-01-01Z', 'user:x'),"
        " (%s, 'bert', 1, 1, 'update', 'rejected', '2025-01-01Z', 'user:x'),"
        " (mdm.uuid_v7(), NULL, 5, NULL, 'create', 'pending', '2025-01-01Z', 'user:y')",
        ids[:2],
    )
    got = await page(own, "person", state=RowState.PENDING, sort="login", count=True)
    assert got.total == 2
    first, second = (json.loads(row) for row in got.rows)
    assert (first["_sys_id"], first["salary"], first["_sys_version"]) == (ids[0], 111, 1)
    assert first["_sys_created_by"] == "system:test"
    assert first["_sys_operation"] == "update"
    assert (second["_sys_version"], second["_sys_created_by"]) == (0, "user:y")
    assert {first["_sys_state"], second["_sys_state"]} == {"pending"}
    token = (await page(own, "person", state=RowState.PENDING, sort="-login", take=1)).next_after
    rest = await page(own, "person", state=RowState.PENDING, sort="-login", after=token or "")
    assert values(rest, "login") == ["anna"]
    approved = await page(own, "person", sort="login", take=1)
    assert values(approved, "salary") == [100]


async def test_me_is_the_caller_in_a_kept_statement(own: AsyncConnection[Any]) -> None:
    definitions = read_tree({
        **FILES,
        "permissions.yaml": b"""
permissions:
  - {users: [anna, bert], domains: [hr], entities: [person], actions: [read],
     rowFilterDsl: "[login] = me()"}
""",
    })  # fmt: skip
    await by_hand.set_grants(own, definitions)
    state = (await asking(own)).state
    for login in ("anna", "bert", "anna"):
        who = Asking(
            principal=Principal(kind=PrincipalKind.USER, name=login),
            state=state,
            schemas=SCHEMAS,
            now=NOW,
        )
        got = await list_rows(own, asking=who, entity="person", request=ListRequest())
        assert values(got, "login") == [login]


async def test_a_stale_state_is_noticed_in_the_statement_itself(
    own: AsyncConnection[Any],
) -> None:
    who = await asking(own, "reader")
    await list_rows(own, asking=who, entity="country", request=ListRequest())
    await own.execute("DELETE FROM mdm.permission WHERE principal = 'reader'")
    for request in (ListRequest(), ListRequest(filter="[code] = 'nowhere'")):
        with pytest.raises(StateMoved):
            await list_rows(own, asking=who, entity="country", request=request)
    await own.execute("ALTER TABLE mdm_data.country RENAME TO other")
    with pytest.raises(StateMoved):
        await list_rows(own, asking=who, entity="country", request=ListRequest())


async def test_filter_errors_come_with_their_position(conn: AsyncConnection[Any]) -> None:
    with pytest.raises(FilterError) as caught:
        await page(conn, "country", filter="[code] = ")
    assert caught.value.position == 9
