"""Laws of imports: each row of a file is accounted for once (I8), a large file comes out as it went in,
imports at the same time never mix, and what is kept of imports is forgotten in time."""

from __future__ import annotations

import asyncio
import random
import string
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from mdm_gitops.data.idempotency import forget_answers
from mdm_gitops.data.import_errors import remove_old_imports
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.importing import FILES, Importing, as_csv, counts, good, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
COUNTRIES = [{"code": c, "name": c} for c in ("CH", "FR")]


@pytest.fixture
async def conn(importing_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(importing_url, application_name="test") as conn:
        yield conn


@pytest.fixture
async def api(importing_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Importing]:
    async with served(importing_url) as api:
        good(await api.json("country", COUNTRIES))
        yield api


# --- I8: every row of a file is accounted for exactly once ----------------------------------------

# Of each column: values that are good, and values that are not.
_VALUES: dict[str, tuple[list[str], list[str]]] = {
    "Name": (["a", "Zürich, Nord", 'the "old" one', "two\nlines"], ["", "x" * 21]),
    "country": (["CH", "FR", ""], ["XX"]),
    "email": (["", "", "", "a@x", "b@x", "c@x"], []),
    "kind": (["port", "rail", ""], ["ship"]),
    "price": (["1.00", "0", ""], ["-1", "1.234", "abc", "123456789"]),
    "level": (["1", "9", ""], ["10", "1.5", " 1"]),
    "open": (["true", "FALSE"], ["yes", ""]),
    "since": (["2020-02-29", ""], ["1999-12-31", "2021-02-29"]),
}
_HEADER = ("code", *_VALUES)


@st.composite
def _rows(draw: st.DrawFn) -> list[list[str]]:
    rows = []
    for _ in range(draw(st.integers(min_value=1, max_value=14))):
        row = [draw(st.sampled_from(["AA1", "AA2", "AA3", "AA4", "AA5", "AA6", "aa7", ""]))]
        broken = draw(st.sampled_from([None, None, None, *_VALUES]))
        for name, (fine, wrong) in _VALUES.items():
            row.append(draw(st.sampled_from((name == broken and wrong) or fine)))
        rows.append(row)
    return rows


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_every_row_of_a_file_is_accounted_for_once(
    importing_url: str, runner: asyncio.Runner
) -> None:
    """I8: created + updated + unchanged + rejected are the rows; a rejected one has code, row, column."""
    context = served(importing_url)
    api = runner.run(context.__aenter__())
    runner.run(api.json("country", COUNTRIES))
    seen: Counter[str] = Counter()

    @settings(
        max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(rows=_rows(), mode=st.sampled_from(["insert", "upsert"]), is_json=st.booleans())
    def law(rows: list[list[str]], mode: str, is_json: bool) -> None:
        seen.update(runner.run(_accounted(api, rows, mode, is_json)))

    try:
        law()
    finally:
        runner.run(context.__aexit__(None, None, None))
    # It was about something: each outcome has occurred.
    assert all(seen[name] for name in ("inserted", "updated", "unchanged", "rejected")), seen


async def _accounted(
    api: Importing, rows: list[list[str]], mode: str, is_json: bool
) -> dict[str, int]:
    before = await _stored(api)
    if is_json:
        objects = [dict(zip(_HEADER, (v or None for v in row), strict=True)) for row in rows]
        answer = good(await api.json("place", objects, mode=mode))
    else:
        answer = good(await api.csv("place", as_csv(_HEADER, rows), mode=mode))
    after = await _stored(api)
    assert answer["received"] == len(rows)
    told = [error["row"] for error in answer["errors"]]
    assert told == sorted(told) and set(told) <= set(range(1, len(rows) + 1))
    for error in answer["errors"]:
        assert error["code"] and error["message"] and error["column"] in _HEADER
    assert answer["rejected"] == len(set(told))
    # The rows of which nothing is told are those that are there now, once each.
    taken = [row[0] for number, row in enumerate(rows, start=1) if number not in told]
    assert len(taken) == len(set(taken)) and set(taken) <= set(after)
    assert set(after) == set(before) | set(taken)
    assert answer["inserted"] == len(set(taken) - set(before))
    assert answer["updated"] + answer["unchanged"] == len(set(taken) & set(before))
    changed = [code for code in before if after[code] != before[code]]
    assert len(changed) == answer["updated"] and set(changed) <= set(taken)
    return {name: answer[name] for name in ("inserted", "updated", "unchanged", "rejected")}


async def _stored(api: Importing) -> dict[str, int]:
    return {row["code"]: row["_sys_version"] for row in await api.rows("place")}


# --- a large file ---------------------------------------------------------------------------------

_ROWS = 100_000
_LOCODE = b"""
name: locode
domain: geo
keyColumns: [country, location]
columns:
  - {name: change, dataType: string}
  - {name: country, dataType: string, nullable: false, maxLength: 2, pattern: "[A-Z]{2}"}
  - {name: location, dataType: string, nullable: false, maxLength: 4, pattern: "[A-Z0-9]{4}"}
  - {name: name, dataType: string, nullable: false}
  - {name: plainName, dataType: string}
  - {name: subdivision, dataType: string}
  - {name: functions, dataType: string}
  - {name: status, dataType: string}
  - {name: changed, dataType: string}
  - {name: iata, dataType: string}
  - {name: coordinates, dataType: string}
  - {name: remarks, dataType: text}
"""
_NAMES = ("Zürich", "Łódź", "São João d'El-Rei", "Ærø", "Þórshöfn", "Đà Nẵng", "Αθήνα", "'s-Heer")
_NAMES += ('Mine "Nord"', "Rock Island, IL", "Foo/Bar (Baz)", "Ends with spaces  ", "a;b|c", "\\.")
_REMARKS = (None,) * 12 + ("", "+ see AQ", "=ref", "'quoted", "two\nlines", "a\r\nb", "tab\there")


def _locodes(rows: int) -> Iterator[list[str | None]]:
    """Yield rows shaped as those of the UN's list of places, always the same ones."""
    chance, letters = random.Random(7), string.ascii_uppercase + string.digits
    for number in range(rows):
        country = f"{letters[number // 26**3 % 26]}{letters[number // 26**2 % 26]}"
        place = f"{letters[number // 26 % 26]}{letters[number % 26]}{letters[number // 26**4]}X"
        name = f"{chance.choice(_NAMES)}{number % 977 or ''}"
        yield [
            chance.choice(("", None, None, "+", "X", "|", "¦")),
            country,
            place,
            name,
            name.encode("ascii", "ignore").decode() or None,
            chance.choice((None, "ZH", "75", "ENG")),
            chance.choice(("1-------", "--34-6--", "0-------")),
            chance.choice(("AI", "RL", "QQ")),
            f"{chance.randrange(100):02}{chance.randrange(1, 13):02}",
            chance.choice((None, None, "ZRH")),
            chance.choice((None, "4722N 00832E", "-")),
            chance.choice(_REMARKS),
        ]


def _field(value: str | None, *, always: bool) -> str:
    if value is None:
        return ""
    quoted = always or not value or any(sign in value for sign in ',"\n\r')
    return '"' + value.replace('"', '""') + '"' if quoted else value


async def test_a_list_of_100_000_places_comes_out_as_it_went_in(
    api: Importing, conn: AsyncConnection[Any]
) -> None:
    await apply(conn, read_tree({**FILES, "entities/locode.yaml": _LOCODE}))
    header = _LOCODE.decode().split("name: ")[2:]
    names = ",".join(each.partition(",")[0] for each in header)
    chance, rows = random.Random(8), list(_locodes(_ROWS))
    lines = [",".join(_field(v, always=chance.random() < 0.1) for v in row) for row in rows]
    given = (names + "\r\n" + "\r\n".join(lines) + "\r\n").encode()
    # What stands for itself in a file of ours is written as an export writes it.
    assert counts(await api.csv("locode", _escaped(names, rows))) == {
        "received": _ROWS,
        "inserted": _ROWS,
    }
    # New ids follow the order of the file.
    exported = await api.client.get("/api/v1/entities/locode/data/export?sort=_sys_id")
    assert exported.status_code == 200
    assert exported.content.split(b"\n") == _escaped(names, rows).split(b"\n")
    # The same values in other clothes: CRLF, and quotes where none are needed.
    again = await api.csv("locode", given, mode="upsert")
    assert counts(again) == {"received": _ROWS, "unchanged": _ROWS}


def _escaped(names: str, rows: list[list[str | None]]) -> bytes:
    """Return the file as an export writes it: with a sign before what a spreadsheet would run."""
    lines = [names]
    for row in rows:
        cells = ("'" + v if v and v[0] in "=+-@\t\r\n'" else v for v in row)
        lines.append(",".join(_field(cell, always=False) for cell in cells))
    return ("\n".join(lines) + "\n").encode()


# --- at the same time -----------------------------------------------------------------------------


@pytest.mark.parametrize("entities", [["place"], ["place", "node", "loose", "gated"]], ids=len)
async def test_sixteen_imports_at_once_do_not_mix(
    api: Importing, conn: AsyncConnection[Any], entities: list[str]
) -> None:
    """Each answer is that of its own file, each file is one change set, and nobody waits for ever."""
    chance = random.Random(3)
    files = [(entities[n % len(entities)], n, chance.sample(range(60), 40)) for n in range(16)]

    async def send(entity: str, number: int, codes: list[int]) -> dict[str, Any]:
        return good(await _send_marked(api, entity, number, codes))

    answers = await asyncio.gather(*(send(*file) for file in files))
    for (entity, number, codes), answer in zip(files, answers, strict=True):
        assert answer["received"] == len(codes)
        # One row of each file is wrong, and it is that one that is told.
        wrong = [] if entity == "loose" else [codes.index(min(codes)) + 1]
        assert [error["row"] for error in answer["errors"]] == wrong, (entity, number)
    sets = await conn.execute(
        "SELECT e.change_set, count(*), min(e.new::text), max(c.events), count(DISTINCT mark)"
        " FROM mdm.event e JOIN mdm.change_set c ON c.key = e.change_set"
        " CROSS JOIN LATERAL (SELECT substring(e.new::text FROM 'file-[0-9]+-') AS mark) m"
        " WHERE e.new::text LIKE '%file-%' GROUP BY 1"
    )
    found = await sets.fetchall()
    assert len(found) == 16, found
    assert all(count == events and marks == 1 for _, count, _, events, marks in found), found
    written = sum(a["inserted"] + a["updated"] + a["pending"] for a in answers)
    assert written == sum(count for _, count, *_ in found)
    if entities == ["place"]:
        await _hold_chain(api, conn, answers)


async def _send_marked(api: Importing, entity: str, number: int, codes: list[int]) -> Any:
    """Send a file all of whose rows say from which file they are; the least code is a wrong row."""
    mark = f"file-{number}-"
    if entity == "loose":
        return await api.csv("loose", "a,b\n" + "".join(f"{mark},{c}\n" for c in codes))
    if entity == "place":
        least = min(codes)
        rows = "".join(f"AA{c},{mark},{'XX' if c == least else 'CH'}\n" for c in codes)
        return await api.csv("place", "code,Name,country\n" + rows, mode="upsert")
    if entity == "node":
        wrong = min(codes)
        rows = [
            {"code": f"{mark}{c}", "parent": "none" if c == wrong else f"{mark}{codes[n - 1]}"}
            for n, c in enumerate(codes)
        ]
        first = codes.index(wrong)
        following = (first + 1) % len(codes)
        rows[following]["parent"] = None  # type: ignore[assignment]
        return await api.json("node", rows)
    rows_of = "".join(
        f"{c:02}{number:02},{'XX' if c == min(codes) else 'CH'},{mark}{c}\n" for c in codes
    )
    return await api.csv("gated", "code,country,email\n" + rows_of)


async def _hold_chain(
    api: Importing, conn: AsyncConnection[Any], answers: list[dict[str, Any]]
) -> None:
    """Each version of a row follows from the one before it, and none was lost."""
    rows = await api.rows("place")
    assert sum(answer["inserted"] for answer in answers) == len(rows)
    events = await conn.execute(
        "SELECT e.record_id::text, e.version, e.old ->> 'Name', e.new ->> 'Name' FROM mdm.event e"
        " JOIN mdm.change_set c ON c.key = e.change_set WHERE e.new::text LIKE '%file-%'"
        " ORDER BY c.seq, e.ordinal"
    )
    last: dict[str, tuple[int, str | None]] = {}
    for record, version, old, new in await events.fetchall():
        assert last.get(record, (0, None)) == (version - 1, old)
        last[record] = (version, new)
    assert {r["_sys_id"]: (r["_sys_version"], r["Name"]) for r in rows} == last


# --- what is kept ---------------------------------------------------------------------------------


async def test_old_imports_and_answers_are_forgotten(
    api: Importing, conn: AsyncConnection[Any]
) -> None:
    """Errors are kept for ``ImportErrorRetentionDays``, answers for ``IdempotencyHours``, no longer."""
    old = await api.csv("place", "code,Name\nzh1,a\n", headers={"Idempotency-Key": "old"})
    young = await api.csv("place", "code,Name\nzh2,a\n", headers={"Idempotency-Key": "young"})
    before = datetime.now(UTC) - timedelta(days=8)
    import_id = good(old)["errorsUrl"].split("/")[-2]
    await conn.execute(
        "UPDATE mdm.import SET finished_at = %s WHERE import_id = %s", [before, import_id]
    )
    await conn.execute("UPDATE mdm.idempotency_key SET created_at = %s WHERE key = 'old'", [before])
    assert await remove_old_imports(conn, schemas=Schemas(), days=9) == 0
    assert await remove_old_imports(conn, schemas=Schemas(), days=7) == 2  # a line and its import
    assert await forget_answers(conn, schemas=Schemas(), hours=24) == 1
    assert (await api.client.get(old.json()["errorsUrl"])).status_code == 404
    assert (await api.client.get(young.json()["errorsUrl"])).status_code == 200
    # A key that is forgotten may be used for something else; the other one may not.
    for key, status in (("old", 200), ("young", 422)):
        answer = await api.csv("place", "code,Name\nZH3,a\n", headers={"Idempotency-Key": key})
        assert answer.status_code == status, key
    kept = await conn.execute("SELECT count(*) FROM mdm.import_error")
    assert await kept.fetchone() == (1,)
