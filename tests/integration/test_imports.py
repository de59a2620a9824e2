"""Imports: each rule, row by row, over HTTP against a real warehouse. Who may is ``test_imports_governed``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.warehouse.connect import connect
from tests.support.importing import (
    COUNTRIES,
    Importing,
    counts,
    good,
    reasons,
    recorded_events,
    refusal,
    served,
)

pytestmark = pytest.mark.anyio
GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
async def conn(importing_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(importing_url, application_name="test") as conn:
        yield conn


@pytest.fixture
async def api(importing_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Importing]:
    async with served(importing_url) as api:
        good(await api.json("country", COUNTRIES))
        yield api


async def test_rows_of_csv_become_rows(api: Importing) -> None:
    answer = await api.csv(
        "place",
        "code,Name,country,price,level,open,since,seen,extra,note\n"
        'ZH1,Zürich,CH,12.50,3,false,2020-02-29,2024-05-06T07:08:09Z,"{""a"": 1}","two\nlines"\n'
        'GE2,Genève,CH,,,TRUE,,,,""\n',
    )
    assert counts(answer) == {"received": 2, "inserted": 2}
    first, second = await api.rows("place", sort="-code")
    assert first["code"] == "ZH1"
    assert (first["Name"], first["price"], first["level"], first["open"]) == (
        "Zürich",
        12.5,
        3,
        False,
    )
    assert first["seen"] == "2024-05-06T07:08:09Z" and first["extra"] == {"a": 1}
    assert first["note"] == "two\nlines" and second["note"] == ""
    assert second["price"] is None and second["_sys_version"] == 1
    assert second["_sys_created_by"] == "apikey:bootstrap"


async def test_each_rule_has_its_code(api: Importing) -> None:
    header = "code,Name,country,kind,price,level,since\n"
    rows = [
        "ZH1,good,CH,port,1.00,1,2020-01-01",
        "zh1,pattern,CH,,,,",
        ",required,CH,,,,",
        "ZH4,reference,XX,,,,",
        "ZH5,allowed,CH,ship,,,",
        "ZH6,range,CH,,-1,10,1999-12-31",
        "ZH7,type,CH,,abc,1.5,2020-02-30",
        "ZH8,a name that is longer than allowed,CH,,,,",
        "ZH1,again,CH,,,,",
    ]
    answer = await api.csv("place", header + "\n".join(rows))
    assert reasons(answer) == [
        (2, "code", "PATTERN"),
        (3, "code", "REQUIRED_FIELD"),
        (4, "country", "REFERENCE"),
        (5, "kind", "ALLOWED_VALUE"),
        (6, "price", "RANGE"),
        (6, "level", "RANGE"),
        (6, "since", "RANGE"),
        (7, "price", "TYPE"),
        (7, "level", "TYPE"),
        (7, "since", "TYPE"),
        (8, "Name", "LENGTH"),
        (9, "code", "UNIQUE"),
    ]
    assert counts(answer) == {"received": 9, "inserted": 1, "rejected": 8}


async def test_absent_columns_get_their_default_or_keep_their_value(api: Importing) -> None:
    good(await api.csv("place", "code,Name\nZH1,first\n"))
    [row] = await api.rows("place")
    assert row["open"] is True and row["level"] is None
    answer = await api.csv("place", "code,level\nZH1,4\n", mode="upsert")
    assert counts(answer) == {"received": 1, "updated": 1}
    [row] = await api.rows("place")
    assert (row["Name"], row["level"], row["_sys_version"]) == ("first", 4, 2)


async def test_an_empty_field_is_null_and_two_quotes_are_an_empty_text(api: Importing) -> None:
    good(await api.csv("place", 'code,Name,note,email\nZH1,a,"",\nZH2,b,,""\n'))
    found = {row["code"]: (row["note"], row["email"]) for row in await api.rows("place")}
    assert found == {"ZH1": ("", None), "ZH2": (None, "")}


async def test_what_an_export_has_neutralised_is_restored(api: Importing) -> None:
    texts = ["=1+1", "+x", "-x", "@x", "'=", "'", "'x", "\t=", "＝1", "plain"]
    rows = [{"code": f"ZH{n}", "Name": f"n{n}", "note": text} for n, text in enumerate(texts)]
    good(await api.json("place", rows))
    exported = await api.client.get(
        "/api/v1/entities/place/data/export", params={"fields": "code,Name,note"}
    )
    for row in await api.rows("place"):
        await api.client.delete(f"/api/v1/entities/place/data/{row['_sys_id']}")
    good(await api.csv("place", exported.content))
    found = {row["code"]: row["note"] for row in await api.rows("place")}
    assert found == {row["code"]: row["note"] for row in rows}


# --- insert and upsert ----------------------------------------------------------------------------


async def test_insert_refuses_keys_that_are_there(api: Importing) -> None:
    good(await api.csv("place", "code,Name\nZH1,a\nZH2,b\n"))
    rows = {row["code"]: row for row in await api.rows("place")}
    deleted = rows["ZH2"]["_sys_id"]
    await api.client.delete(f"/api/v1/entities/place/data/{deleted}", params={"soft": "true"})
    answer = await api.csv("place", "code,Name\nZH1,c\nZH2,d\nZH3,e\nZH3,f\n")
    assert reasons(answer) == [
        (1, "code", "UNIQUE"),
        (2, "code", "ROW_KEY_DELETED"),
        (4, "code", "UNIQUE"),
    ]
    messages = [error["message"] for error in answer.json()["errors"]]
    assert messages == [
        "code 'ZH1' is taken by another row",
        "code 'ZH2' belongs to a deleted row of place",
        "code 'ZH3' stands in row 3 already",
    ]
    assert {row["code"]: row["Name"] for row in await api.rows("place")} == {"ZH1": "a", "ZH3": "e"}


async def test_upsert_updates_inserts_and_leaves_alone(api: Importing, conn: Any) -> None:
    good(await api.csv("place", "code,Name,level\nZH1,a,1\nZH2,b,2\nZH3,c,3\n"))
    [third] = await api.rows("place", filter="[code] = 'ZH3'")
    await api.client.delete(
        f"/api/v1/entities/place/data/{third['_sys_id']}", params={"soft": "true"}
    )
    before = await recorded_events(conn)
    answer = await api.csv(
        "place",
        "code,Name,level\nZH1,a,1\nZH2,B,2\nZH3,C,3\nZH4,d,4\nZH2,again,\n,nokey,\n",
        mode="upsert",
    )
    assert counts(answer) == {
        "received": 6,
        "inserted": 1,
        "updated": 1,
        "unchanged": 1,
        "rejected": 3,
    }
    assert reasons(answer) == [
        (3, "code", "ROW_KEY_DELETED"),
        (5, "code", "UNIQUE"),
        (6, "code", "REQUIRED_FIELD"),
    ]
    rows = {row["code"]: (row["Name"], row["_sys_version"]) for row in await api.rows("place")}
    assert rows == {"ZH1": ("a", 1), "ZH2": ("B", 2), "ZH4": ("d", 1)}
    new = (await recorded_events(conn))[len(before) :]
    assert [
        (e["action"], e["version"], (e["old"] or {}).get("Name"), e["new"]["Name"]) for e in new
    ] == [
        ("data_updated", 2, "b", "B"),
        ("data_created", 1, None, "d"),
    ]


async def test_an_import_is_one_change_set_with_history(api: Importing, conn: Any) -> None:
    good(await api.csv("place", "code,Name\nZH1,a\nZH2,b\nzh3,bad\n"))
    good(await api.csv("place", "code,Name\nZH2,B\nZH1,a\nZH9,z\n", mode="upsert"))
    events = [each for each in await recorded_events(conn) if each["new"].get("Name")]
    events = [each for each in events if "continent" not in each["new"]]
    first, second = events[:2], events[2:]
    assert [(e["ordinal"], e["events"], e["action"]) for e in first] == [
        (0, 2, "data_created"),
        (1, 2, "data_created"),
    ]
    assert [(e["ordinal"], e["events"], e["action"]) for e in second] == [
        (0, 2, "data_updated"),
        (1, 2, "data_created"),
    ]
    history = await conn.execute(
        "SELECT h.name, h._sys_version, h._sys_action, h._sys_valid_from = m._sys_created_at,"
        " h._sys_valid_to = m._sys_last_modified_at"
        " FROM mdm_data.place__history h JOIN mdm_data.place m USING (_sys_id)"
    )
    assert await history.fetchall() == [("b", 1, "data_updated", True, True)]
    changes = await api.client.get("/api/v1/changes", params={"entity": "place", "afterId": 0})
    assert changes.json()["totalCount"] == 4


async def test_new_ids_follow_the_order_of_the_file(api: Importing) -> None:
    good(await api.csv("place", "code,Name\n" + "".join(f"ZH{n},x\n" for n in range(50, 0, -1))))
    rows = await api.rows("place", sort="_sys_id")
    assert [row["code"] for row in rows] == [f"ZH{n}" for n in range(50, 0, -1)]
    assert all(row["_sys_id"][14] == "7" and row["_sys_id"][19] in "89ab" for row in rows)


async def test_key_columns_may_be_any_unique_ones(api: Importing) -> None:
    good(await api.csv("place", "code,Name,email,country,slot\nZH1,a,a@x,CH,1\nZH2,b,b@x,CH,2\n"))
    answer = await api.csv("place", "email,Name\na@x,A\n", mode="upsert", keyColumns="EMAIL")
    assert counts(answer) == {"received": 1, "updated": 1}
    answer = await api.csv(
        "place", "country,slot,Name\nCH,2,B\n", mode="upsert", keyColumns="slot, country"
    )
    assert counts(answer) == {"received": 1, "updated": 1}
    # What has no key of its own is rejected: it could be any row, or a new one each time.
    answer = await api.csv("place", "email,Name\n,A\n", mode="upsert", keyColumns="email")
    assert reasons(answer) == [(1, "code", "REQUIRED_FIELD"), (1, "email", "REQUIRED_FIELD")]
    for names, parameter in (
        ("Name", "keyColumns"),
        ("nope", "keyColumns"),
        ("extra", "keyColumns"),
    ):
        answer = await api.csv("place", "code,Name,extra\n", mode="upsert", keyColumns=names)
        assert refusal(answer) == (400, "REQUEST_INVALID")
        assert answer.json()["parameter"] == parameter
    answer = await api.csv("place", "Name\nx\n", mode="upsert")
    assert refusal(answer) == (400, "REQUEST_INVALID") and "code" in answer.json()["detail"]
    answer = await api.csv("loose", "a\nx\n", mode="upsert")
    assert refusal(answer) == (400, "REQUEST_INVALID")


async def test_unique_values_among_updates(api: Importing) -> None:
    good(await api.csv("place", "code,Name,email\nZH1,a,a@x\nZH2,b,b@x\nZH3,c,c@x\nZH4,d,\n"))
    answer = await api.csv(
        "place",
        "code,email\nZH1,b@x\nZH3,new@x\nZH4,new@x\n",
        mode="upsert",
    )
    assert reasons(answer) == [(1, "email", "UNIQUE"), (3, "email", "UNIQUE")]
    assert counts(answer) == {"received": 3, "updated": 1, "rejected": 2}


async def test_a_file_has_no_moments_in_which_values_are_free(api: Importing) -> None:
    """What another row has when the import begins is taken, whatever the file does to that row: so
    the order of rows in a file does not decide what is written."""
    good(await api.csv("place", "code,Name,email\nZH1,a,a@x\nZH2,b,b@x\n"))
    for text in ("ZH1,c@x\nZH2,a@x\n", "ZH2,a@x\nZH1,c@x\n"):
        answer = await api.csv("place", f"code,email\n{text}", mode="upsert", dryRun="true")
        assert [error["code"] for error in answer.json()["errors"]] == ["ENTITY_VALIDATION_UNIQUE"]
        assert counts(answer) == {"received": 2, "updated": 1, "rejected": 1}


async def test_a_repeated_key_is_told_also_where_the_first_row_gave_way(api: Importing) -> None:
    good(await api.csv("place", "code,Name\nZH1,a\nZH2,b\n"))
    answer = await api.csv("place", "code,email\nZH1,e@x\nZH2,e@x\nZH2,free@x\n", mode="upsert")
    assert reasons(answer) == [(2, "email", "UNIQUE"), (3, "code", "UNIQUE")]
    assert counts(answer) == {"received": 3, "updated": 1, "rejected": 2}


async def test_a_rejected_row_is_in_nobodys_way(api: Importing) -> None:
    good(await api.csv("place", "code,Name,email\nZH9,z,taken@x\n"))
    answer = await api.csv(
        "place", "code,Name,email\nZH1,a,taken@x\nZH1,b,free@x\nZH1,c,\nZH2,d,free@x\n"
    )
    assert reasons(answer) == [
        (1, "email", "UNIQUE"),
        (3, "code", "UNIQUE"),
        (4, "email", "UNIQUE"),
    ]
    assert counts(answer) == {"received": 4, "inserted": 1, "rejected": 3}


# --- references -----------------------------------------------------------------------------------


async def test_rows_may_refer_to_rows_of_the_same_file(api: Importing) -> None:
    answer = await api.csv(
        "node",
        "code,parent,rank\nleaf,mid,1\nmid,root,2\nroot,,3\nself,self,4\nlost,nowhere,5\n"
        "child,lost,6\ngrandchild,child,7\ntwin,root,1\nofTwin,twin,8\n",
    )
    assert counts(answer) == {"received": 9, "inserted": 4, "rejected": 5}
    assert reasons(answer) == [
        (5, "parent", "REFERENCE"),
        (6, "parent", "REFERENCE"),
        (7, "parent", "REFERENCE"),
        (8, "rank", "UNIQUE"),
        (9, "parent", "REFERENCE"),
    ]
    assert counts(await api.csv("node", "code,parent\nnew,leaf\n")) == {
        "received": 1,
        "inserted": 1,
    }


async def test_changing_a_key_that_rows_refer_to_takes_them_along(
    api: Importing, conn: Any
) -> None:
    good(await api.csv("node", "code,parent,rank\nroot,,1\na,root,2\nb,root,3\n"))
    answer = await api.csv("node", "rank,code\n1,ROOT\n", mode="upsert", keyColumns="rank")
    assert counts(answer) == {"received": 1, "updated": 1}
    rows = {row["code"]: (row["parent"], row["_sys_version"]) for row in await api.rows("node")}
    assert rows == {"ROOT": (None, 2), "a": ("ROOT", 2), "b": ("ROOT", 2)}
    events = [e for e in await recorded_events(conn) if e["detail"]]
    assert [e["detail"] for e in events] == [{"relinkedFrom": "root"}] * 2


# --- JSON -----------------------------------------------------------------------------------------


async def test_json_and_csv_say_the_same_of_the_same_values(api: Importing) -> None:
    header = [
        "code",
        "Name",
        "country",
        "email",
        "kind",
        "price",
        "level",
        "open",
        "since",
        "seen",
        "token",
    ]
    rows = [
        ["ZH1", "a", "CH", "a@x", "port", "1.00", "1", "true", "2020-01-01", "2020-01-01", GUID],
        ["zh2", None, "XX", "a@x", "ship", "-1", "10", "maybe", "1999-01-01", "25:00", "no"],
        ["ZH3", "b" * 21, None, "b@x", None, "1.234", "1.5", "", "2020-02-30", "2020-13-01", ""],
        ["ZH4", "c", "FR", "b@x", "", "1e3", "+1", "FALSE", "", None, None],
        ["ZH1", "d", None, None, None, None, None, "false", None, None, None],
        [None, None, None, None, None, "123456789", "99999999999", None, None, None, None],
    ]
    as_text = await api.csv("place", _quoted(header, rows), dryRun="true")
    as_json = await api.json(
        "place", [dict(zip(header, row, strict=True)) for row in rows], dryRun="true"
    )
    assert reasons(as_text) == reasons(as_json)
    assert counts(as_text) == counts(as_json) == {"received": 6, "inserted": 1, "rejected": 5}
    assert await api.rows("place") == []


def _quoted(header: list[str], rows: list[list[str | None]]) -> str:
    lines = [",".join(header)]
    lines += [",".join("" if cell is None else f'"{cell}"' for cell in row) for row in rows]
    return "\n".join(lines)


async def test_json_values_of_their_own_kinds(api: Importing) -> None:
    rows: list[dict[str, Any]] = [
        {
            "code": "ZH1",
            "Name": "a",
            "price": 12.5,
            "level": 3,
            "open": False,
            "extra": {"a": [1, None]},
        },
        {"CODE": "ZH2", "name": "b", "price": 1, "big": 9007199254740993, "extra": "text"},
        {"code": "ZH3", "Name": "tab\tand\\back\nslash", "extra": None},
        {"code": "ZH4"},
        {"code": 5, "Name": "c"},
        {"code": "ZH6", "Name": "d", "nope": 1},
        {"code": "ZH7", "Name": "e", "_sys_version": 1},
        {"code": "ZH8", "Name": "f", "NAME": "g"},
        {"code": "ZH9", "Name": "h", "level": True, "open": 1, "since": 2020},
        {},
    ]
    answer = await api.json("place", rows)
    assert reasons(answer) == [
        (4, "Name", "REQUIRED_FIELD"),
        (5, "code", "TYPE"),
        (6, "nope", "UNKNOWN_COLUMN"),
        (7, "_sys_version", "SYSTEM_COLUMN"),
        (8, "Name", "UNKNOWN_COLUMN"),
        (9, "level", "TYPE"),
        (9, "open", "TYPE"),
        (9, "since", "TYPE"),
        (10, "code", "REQUIRED_FIELD"),
        (10, "Name", "REQUIRED_FIELD"),
    ]
    found = {row["code"]: row for row in await api.rows("place")}
    assert found["ZH1"]["extra"] == {"a": [1, None]} and found["ZH1"]["open"] is False
    assert found["ZH2"]["big"] == 9007199254740993 and found["ZH2"]["extra"] == "text"
    assert found["ZH2"]["open"] is True
    assert found["ZH3"]["Name"] == "tab\tand\\back\nslash"


async def test_json_rows_may_give_different_columns(api: Importing) -> None:
    good(
        await api.json(
            "place", [{"code": "ZH1", "Name": "a", "level": 1}, {"code": "ZH2", "Name": "b"}]
        )
    )
    answer = await api.json(
        "place",
        [{"code": "ZH1", "level": None}, {"code": "ZH2", "level": 2}, {"code": "ZH3", "Name": "c"}],
        mode="upsert",
    )
    assert counts(answer) == {"received": 3, "updated": 2, "inserted": 1}
    found = {row["code"]: (row["Name"], row["level"]) for row in await api.rows("place")}
    assert found == {"ZH1": ("a", None), "ZH2": ("b", 2), "ZH3": ("c", None)}
