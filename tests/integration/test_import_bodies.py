"""Bodies that cannot be read: each is told by its line and its cause, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gzip
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connect
from tests.conftest import Prepare
from tests.support.importing import Importing, counts, deploy, good, reasons, refusal, served

pytestmark = pytest.mark.anyio
HEAD = "code,Name,note\n"


@pytest.fixture
async def conn(importing_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(importing_url, application_name="test") as conn:
        yield conn


@pytest.fixture
async def api(importing_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Importing]:
    async with served(importing_url) as api:
        yield api


@pytest.fixture(scope="module")
def unchanged_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    """A warehouse for the tests whose imports are refused, each of which leaves it as it is."""
    return shared_copy_of(deploy)


@pytest.fixture(scope="module")
async def unchanged(unchanged_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(unchanged_url, application_name="test") as conn:
        yield conn


@pytest.fixture(scope="module")
async def refusing(unchanged_url: str) -> AsyncIterator[Importing]:
    async with served(unchanged_url) as api:
        yield api


async def _left(conn: AsyncConnection[Any]) -> tuple[int, ...]:
    """Count everything that an import writes."""
    names = ("mdm_data.place", "mdm.event", "mdm.change_set", "mdm.import", "mdm.import_error")
    found = []
    for name in (*names, "mdm.idempotency_key"):
        cursor = await conn.execute(f"SELECT count(*) FROM {name}".encode())
        found.append((await cursor.fetchone() or (0,))[0])
    return tuple(found)


# (name, body, line of the problem or None, part of what is said)
UNREADABLE: list[tuple[str, bytes, int | None, str]] = [
    ("empty", b"", None, "it is empty"),
    ("blank", b" \n\r\n ", None, "empty"),
    ("no header", b"\nZH1,a,b\n", 1, "header is empty"),
    ("header without names", b",,\nZH1,a,b\n", 1, "header is empty"),
    ("a name is missing", b"code,,note\nZH1,a,b\n", 1, "column 2 of the header has no name"),
    ("a column twice", b"code,Name,CODE\nZH1,a,b\n", 1, "twice, once as 'code'"),
    ("name and display name", b"Place code,Name,code\n", 1, "twice"),
    ("UTF-16", "code,Name\nZH1,a\n".encode("utf-16"), 1, "UTF-16"),
    ("UTF-32", "code,Name\nZH1,a\n".encode("utf-32"), 1, "UTF-16 or UTF-32"),
    ("compressed", gzip.compress(HEAD.encode()), None, "compressed"),
    ("archive", b"PK\x03\x04rest of it", None, "workbook"),
    ("not UTF-8 in the header", "code,Näme\n".encode("latin-1"), 1, "header is not UTF-8"),
    ("not UTF-8", HEAD.encode() + "ZH1,a,ä\n".encode("latin-1"), 2, "not UTF-8"),
    ("cut UTF-8", HEAD.encode() + "ZH1,a,b\nZH2,a,ä\n".encode()[:-2] + b"\n", 3, "not UTF-8"),
    ("surrogate", HEAD.encode() + b"ZH1,a,\xed\xa0\x80\n", 2, "not UTF-8"),
    ("NUL", HEAD.encode() + b"ZH1,a,b\nZH2,a\0,b\n", 3, "NUL"),
    ("NUL in the header", b"code,Na\0me\nZH1,a\n", 1, "NUL"),
    ("too many values", (HEAD + "ZH1,a,b\nZH2,a,b,c\n").encode(), 3, "more values"),
    ("too few values", (HEAD + "ZH1,a,b\nZH2,a\n").encode(), 3, "fewer values"),
    ("an empty line inside", (HEAD + "ZH1,a,b\n\nZH2,a,b\n").encode(), 3, "fewer values"),
    ("an open quotation", (HEAD + 'ZH1,a,"b\nZH2,a,b\n').encode(), None, "not closed"),
    ("an open header", b'code,"Name\nZH1,a\n', 1, "header is not closed"),
    ("a quote inside", (HEAD + 'ZH1,a,b\nZH2,5" pipe,b\nZH3,6" pipe,b\n').encode(), 3, "inside"),
    ("text after a quote", (HEAD + 'ZH1,"a"b,c\n').encode(), 2, "follows a closing quote"),
    ("LF after CRLF", b"code,Name,note\r\nZH1,a,b\r\nZH2,a,b\nZH3,a,b\r\n", 3, "ends differently"),
    ("CR among LF", b"code,Name,note\nZH1,a,b\nZH2,a\rb,c\n", 3, "ends differently"),
    ("LF after a CRLF header", b"code,Name,note\r\nZH1,a,b\nZH2,a,b\n", 2, "ends differently"),
    ("another separator", b"code;Name;note\nZH1;a;b\n", 1, "one column only"),
]


@pytest.mark.parametrize(
    ("body", "line", "said"), [c[1:] for c in UNREADABLE], ids=[c[0] for c in UNREADABLE]
)
async def test_csv_that_cannot_be_read(
    refusing: Importing, unchanged: AsyncConnection[Any], body: bytes, line: int | None, said: str
) -> None:
    before = await _left(unchanged)
    answer = await refusing.csv("place", body, headers={"Idempotency-Key": "k"})
    assert refusal(answer) == (400, "IMPORT_UNREADABLE")
    problem = answer.json()
    assert said in problem["detail"], problem
    if line is not None:
        assert problem["line"] == line and f"line {line}:" in problem["detail"], problem
    assert "psycopg" not in answer.text and "COPY" not in answer.text
    assert await _left(unchanged) == before


async def test_the_place_is_right_after_values_with_line_ends(api: Importing) -> None:
    body = 'code,"Name",note\nZH1,a,"one\ntwo\nthree"\nZH2,"a\nb",c\nZH3,a\n'
    answer = await api.csv("place", body)
    assert answer.json()["line"] == 7


HEADERS: list[tuple[str, str, str, str]] = [
    ("code,Nmae\n", "ENTITY_VALIDATION_UNKNOWN_COLUMN", "'Nmae'", "did you mean 'Name'?"),
    ("code,Name,_sys_id\n", "ENTITY_VALIDATION_SYSTEM_COLUMN", "_sys_id", "leave"),
    ("code,note\n", "ENTITY_VALIDATION_REQUIRED_FIELD", "lacks Name", "upsert"),
]


@pytest.mark.parametrize(("header", "code", "said", "hint"), HEADERS)
async def test_headers_that_do_not_fit(
    refusing: Importing, header: str, code: str, said: str, hint: str
) -> None:
    answer = await refusing.csv("place", header + "x,y\n")
    assert refusal(answer) == (400, code)
    assert said in answer.json()["detail"] and hint in answer.json()["hint"]


async def test_a_display_name_of_two_columns(api: Importing) -> None:
    answer = await api.csv("loose", "Label\nx\n")
    assert refusal(answer) == (400, "IMPORT_UNREADABLE")
    assert answer.json()["hint"] == "write in the header a or b"


# --- what can be read -----------------------------------------------------------------------------

READABLE: list[tuple[str, bytes, dict[str, Any]]] = [
    ("plain", b"code,Name,note\nZH1,a,b\n", {}),
    ("no end of line", b"code,Name,note\nZH1,a,b", {}),
    ("CRLF", b"code,Name,note\r\nZH1,a,b\r\n", {}),
    ("CR", b"code,Name,note\rZH1,a,b\r", {}),
    ("BOM", "\ufeffcode,Name,note\nZH1,a,b\n".encode(), {}),
    ("BOM and quotes", '\ufeff"code","Name","note"\n"ZH1","a","b"\n'.encode(), {}),
    ("empty lines at the end", b"code,Name,note\nZH1,a,b\n\n\r\n\n", {}),
    ("display name in any case", b"PLACE CODE,name,NOTE\nZH1,a,b\n", {}),
    ("spaces around names", b" code , Name,note \nZH1,a,b\n", {}),
    ("semicolons", b"code;Name;note\nZH1;a;b\n", {"sep": ";"}),
    ("tabs", b"code\tName\tnote\nZH1\ta\tb\n", {"sep": "\t"}),
    ("tabs by name", b"code\tName\tnote\nZH1\ta\tb\n", {"sep": "tab"}),
    ("pipes and single quotes", b"code|Name|note\nZH1|'a'|'b'\n", {"sep": "|", "quote": "'"}),
]


@pytest.mark.parametrize(("body", "query"), [c[1:] for c in READABLE], ids=[c[0] for c in READABLE])
async def test_csv_that_can_be_read(api: Importing, body: bytes, query: dict[str, Any]) -> None:
    assert counts(await api.csv("place", body, **query)) == {"received": 1, "inserted": 1}
    [row] = await api.rows("place")
    assert (row["code"], row["Name"], row["note"]) == ("ZH1", "a", "b")


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        ("iso-8859-1", "latin-1", "Zürich ÿ"),
        ("windows-1252", "cp1252", "Zürich € “quoted”"),
        ("UTF-8", "utf-8", "Łódź 東京 🚢"),
        ('"latin1"', "latin-1", "Genève"),
    ],
)
async def test_encodings(api: Importing, charset: str, codec: str, text: str) -> None:
    body = f"code,Name,note\nZH1,a,{text}\n".encode(codec)
    good(await api.csv("place", body, charset=charset))
    [row] = await api.rows("place")
    assert row["note"] == text


async def test_encodings_that_are_not_read(api: Importing) -> None:
    for charset in ("utf-16", "koi8-r", "nonsense", "utf-8-sig"):
        answer = await api.csv("place", HEAD, charset=charset)
        assert refusal(answer) == (415, "MEDIA_TYPE_UNSUPPORTED"), charset
    answer = await api.csv("place", HEAD.encode() + b"ZH1,a,\x81\n", charset="windows-1252")
    assert refusal(answer) == (400, "IMPORT_UNREADABLE") and answer.json()["line"] == 2


async def test_media_types(api: Importing) -> None:
    for kind, media_type in (
        ("bulk", "text/csv"),
        ("bulk-csv", "application/json"),
        ("bulk-csv", ""),
        ("bulk-xlsx", "text/csv"),
    ):
        answer = await api.post(kind, "place", HEAD, media_type=media_type)
        assert refusal(answer) == (415, "MEDIA_TYPE_UNSUPPORTED")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sep", "ab"),
        ("sep", "a"),
        ("sep", "\n"),
        ("sep", "é"),
        ("sep", "\\"),
        ("quote", "xy"),
        ("quote", ","),
    ],
)
async def test_signs_that_cannot_be(refusing: Importing, name: str, value: str) -> None:
    answer = await refusing.csv("place", HEAD, **{name: value})
    assert refusal(answer) == (400, "REQUEST_INVALID")


async def test_a_line_of_backslash_and_point_is_a_value(api: Importing) -> None:
    """To older servers it is the end of all data, unless it stands in quotes."""
    answer = await api.csv("loose", 'a\nx\n\\.\ny\n"in\n\\.\nside"\n\\.\n')
    assert counts(answer) == {"received": 5, "inserted": 5}
    found = [row["a"] for row in await api.rows("loose", sort="_sys_id")]
    assert found == ["x", "\\.", "y", "in\n\\.\nside", "\\."]


async def test_pieces_of_any_size(api: Importing) -> None:
    body = (HEAD + 'ZH1,"a ""b""\n",ü\r' + 'ZH2,"",""\n').replace("\r", "\n").encode()

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    for size in (1, 2, 3, 7):
        assert counts(await api.csv("place", pieces(size), dryRun="true")) == {
            "received": 2,
            "inserted": 2,
        }


async def test_large_values(api: Importing) -> None:
    long, too_long = "x" * 1_048_576, "y" * 10_485_760
    body = f"code,Name,note,email\nZH1,a,{long},\nZH2,a,{too_long},\nZH3,a,,{'k' * 2_001}\n"
    answer = await api.csv("place", body)
    assert reasons(answer) == [(2, "note", "LENGTH"), (3, "email", "LENGTH")]
    assert counts(answer) == {"received": 3, "inserted": 1, "rejected": 2}
    assert len(answer.content) < 10_000
    rows = [
        {"code": "ZH4", "Name": "a", "note": too_long},
        {"code": "ZH5", "Name": "a", "note": long},
    ]
    assert reasons(await api.json("place", rows)) == [(1, "note", "LENGTH")]
    answer = await api.csv("place", f"code,Name,note\nZH6,a,{'z' * 17_000_000}\n")
    assert refusal(answer) == (400, "IMPORT_UNREADABLE")
    answer = await api.csv("place", f'code,Name,note\nZH6,a,"{"z " * 9_000_000}"\n')
    assert refusal(answer) == (400, "IMPORT_UNREADABLE")


# --- JSON -----------------------------------------------------------------------------------------

BAD_JSON: list[tuple[str, bytes, int | None, str]] = [
    ("empty", b"", None, "it is empty"),
    ("an object", b'{"code": "ZH1"}', 1, "'{' stands where [ should stand"),
    ("a text", b'"x"', 1, "stands where ["),
    ("no end", b'[{"code": "ZH1"}', 1, "it ends where"),
    ("no end of a row", b'[\n{"code": "ZH1"', 2, "row 1 is not valid JSON"),
    ("a comma too many", b'[{"code": "ZH1"},]', 1, "']' stands where a row"),
    ("no comma", b'[{"code": "ZH1"} {"code": "ZH2"}]', 1, "'{' stands where , or ]"),
    ("something after", b"[] []", 1, "nothing more"),
    ("no object", b'[{"code": "ZH1"},\n 5]', 2, "row 2 is no object"),
    ("null", b"[null]", 1, "row 1 is no object"),
    ("a name twice", b'[{"code": "a", "code": "b"}]', 1, "row 1: the body has member 'code' twice"),
    ("NaN", b'[{"level": NaN}]', 1, "row 1: NaN is not JSON"),
    ("Infinity", b'[{"level": -Infinity}]', 1, "not JSON"),
    ("many digits", b'[{"level": ' + b"9" * 50 + b"}]", 1, "more than 40 digits"),
    ("a huge number", b'[{"price": 1e999999}]', 1, "out of all proportion"),
    ("NUL", b'[{"code": "a\\u0000b"}]', 1, "NUL"),
    ("half a pair", b'[{"code": "\\ud83d"}]', 1, "surrogate"),
    ("not UTF-8", b'[{"code": "\n\xff"}]', 2, "not UTF-8"),
    ("a control character", b'[{"code": "a\nb"}]', 1, "row 1 is not valid JSON"),
    ("UTF-16", '[{"code": "a"}]'.encode("utf-16"), 1, "UTF-16"),
    ("too deep", b'[{"extra": ' + b"[" * 40 + b"]" * 40 + b"}]", 1, "deeper"),
    ("far too deep", b'[{"extra": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]", 1, "deeper"),
    ("single quotes", b"[{'code': 'a'}]" + b" " * 100, 1, "row 1 is not valid JSON"),
]


@pytest.mark.parametrize(
    ("body", "line", "said"), [c[1:] for c in BAD_JSON], ids=[c[0] for c in BAD_JSON]
)
async def test_json_that_cannot_be_read(
    refusing: Importing, unchanged: AsyncConnection[Any], body: bytes, line: int | None, said: str
) -> None:
    before = await _left(unchanged)
    answer = await refusing.json("place", body)
    assert refusal(answer) == (400, "IMPORT_UNREADABLE")
    assert said in answer.json()["detail"], answer.text
    assert answer.json().get("line") == line
    assert await _left(unchanged) == before


async def test_json_in_pieces(api: Importing) -> None:
    body = '\ufeff [ {"code":"ZH1","Name":"ü \\"x\\" \\ud83d\\udea2","extra":[{"a":[]}]} ,\n{"code":"ZH2","Name":"b"}]\n'.encode()

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    for size in (1, 3, 10, 1000):
        answer = await api.post(
            "bulk", "place", pieces(size), media_type="application/json", dryRun="true"
        )
        assert counts(answer) == {"received": 2, "inserted": 2}


# --- workbooks ------------------------------------------------------------------------------------


async def test_a_workbook_from_an_export_comes_back_equal(api: Importing) -> None:
    rows = [
        {"code": "ZH1", "Name": "=1+1", "price": 12.5, "level": 3, "big": 9007199254740993, "open": False,
         "since": "2020-02-29", "seen": "2024-05-06T07:08:09Z", "extra": {"a": 1}, "note": "a\nb",
         "token": "0f8fad5b-d9cb-469f-a165-70867728950e"},
        {"code": "ZH2", "Name": "'x", "seen": "2024-01-01T00:00:00Z", "note": "  spaces  "},
        {"code": "ZH3", "Name": "007", "note": "true", "price": 0.1},
    ]  # fmt: skip
    good(await api.json("place", rows))
    before = await api.rows("place", sort="code")
    book = await api.client.get("/api/v1/entities/place/data/export", params={"format": "xlsx"})
    for row in before:
        await api.client.delete(f"/api/v1/entities/place/data/{row['_sys_id']}")
    answer = await api.post("bulk-xlsx", "place", book.content, media_type=XLSX)
    assert counts(answer) == {"received": 3, "inserted": 3}, answer.text
    own = (
        "code",
        "Name",
        "price",
        "level",
        "big",
        "open",
        "since",
        "seen",
        "extra",
        "note",
        "token",
    )
    after = await api.rows("place", sort="code")
    assert [[row[n] for n in own] for row in after] == [[row[n] for n in own] for row in before]


XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


async def test_files_that_are_no_workbooks(api: Importing, conn: AsyncConnection[Any]) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("hello.txt", "x")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("xl/worksheets/sheet1.xml", bytes(1_000_000))
        # Only the table of contents is asked: nothing of it is unpacked to find out.
        zipped.filelist[0].file_size = 3 * 1024**3
    before = await _left(conn)
    for body in (b"", b"code,Name\n", b"PK\x03\x04broken", archive.getvalue(), bomb.getvalue()):
        answer = await api.post("bulk-xlsx", "place", body, media_type=XLSX)
        assert refusal(answer) == (400, "IMPORT_UNREADABLE"), answer.text
        assert "Traceback" not in answer.text and "calamine" not in answer.text
        assert ("too large when unpacked" in answer.text) == (body == bomb.getvalue())
    assert await _left(conn) == before


# --- limits, and clients that leave ---------------------------------------------------------------


async def test_a_body_has_a_limit(importing_url: str, conn: AsyncConnection[Any]) -> None:
    settings = Settings(RateLimit={"Enabled": False}, Data={"MaxImportBytes": 2_000})  # type: ignore[arg-type]
    async with served(importing_url, settings) as api:
        body = HEAD + "ZH1,a,b\n" * 300
        assert refusal(await api.csv("place", body)) == (413, "BODY_TOO_LARGE")

        async def undeclared() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 100):
                yield body[start : start + 100].encode()

        assert refusal(await api.csv("place", undeclared())) == (413, "BODY_TOO_LARGE")
        assert await api.rows("place") == []


async def test_a_client_that_falls_silent(importing_url: str, conn: AsyncConnection[Any]) -> None:
    settings = Settings(RateLimit={"Enabled": False}, Data={"ImportIdleSeconds": 0.2})  # type: ignore[arg-type]
    async with served(importing_url, settings) as api:

        async def silent() -> AsyncIterator[bytes]:
            yield b"code,Name\nZH1,a\n"
            await asyncio.sleep(5)
            yield b"ZH2,b\n"

        answer = await api.csv("place", silent())
        assert refusal(answer) == (400, "IMPORT_UNREADABLE")
        assert await api.rows("place") == []
