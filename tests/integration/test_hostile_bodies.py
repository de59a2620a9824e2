"""Bodies that break parsers, sent to every operation that reads one: refused, never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.operations import YAML
from mdm_api.table import OPERATIONS
from tests.integration.test_api_access_table import (
    _AUTHORS,
    client,
    conn,
    request_for,
    root,
)
from tests.support.serving import KEY, Client

pytestmark = pytest.mark.anyio
__all__ = ("client", "conn", "root")

WHOLE = {
    "100,000 brackets": b"[" * 100_000,
    "100,000 objects": b'{"code":' * 100_000,
    "a list 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "not UTF-8": b'{"code": "\xff\xfe"}',
    "a byte order mark": b'\xef\xbb\xbf{"code": "C1"}',
    "a raw NUL": b'{"code": "\x00"}',
    "nothing": b"",
    "null": b"null",
    "the same member twice": b'{"code": "C1", "code": "C2"}',
    "a name with NUL": b'{"\\u0000": 1}',
    "a name that is a lone surrogate": b'{"\\ud800": 1}',
}
VALUES = {
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "more than a double": b"1e400",
    "more than a numeric": b"1e131072",
    "a numeric of 131,072 digits": b"1e131071",
    "the smallest fraction": b"1e-999999",
    "5,000 digits": b"9" * 5_000,
    "NUL": b'"\\u0000"',
    "a lone surrogate": b'"\\ud800"',
    "two surrogates the wrong way round": b'"\\udc00\\ud800"',
    "40 deep": b"[" * 40 + b"]" * 40,
    "a text of 200,000": b'"' + b"x" * 200_000 + b'"',
    "members twice, inside": b'{"a": 1, "a": 2}',
}
# What takes the entity or the rights away comes last.
_LAST = ("deploy", "redeploy", "deploy/remove", "drop-archive-tables", "permissions/yaml")
_READ = [
    f"{each.method} {each.path}"
    for each in OPERATIONS
    if each.body is not None and "application/json" in each.body.schemas
]


def hostile(given: Any) -> dict[str, bytes]:
    """Return all hostile bodies made from one that is right."""
    made = dict(WHOLE)
    for name, value in VALUES.items():
        if isinstance(given, dict):
            more = ("credit", "extra", "rank") if {"code", "rank"} & set(given) else ()
            for member in (*given, *more):
                text = json.dumps({**given, member: "@@"}).encode()
                made[f"{name} as {member}"] = text.replace(b'"@@"', value)
        made[f"{name} alone"] = value
        if not isinstance(given, dict):
            made[f"{name} in a list"] = b"[" + value + b"]"
            made[f"{name} as a row"] = b'[{"code": ' + value + b"}]"
    return made


_READ_YAML = [
    f"{each.method} {each.path}"
    for each in OPERATIONS
    if each.body is not None and YAML in each.body.schemas
]
_MERGES = b"".join(
    b"m%d: &m%d {<<: [%s]}\n" % (n, n, b", ".join([b"*m%d" % (n - 1)] * 9)) for n in range(1, 999)
)
FILES = {
    "merge bomb": b"m0: &m0 {a: 1}\n" + _MERGES,
    "laughing": b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n",
    "100,000 brackets": b"[" * 100_000,
    "100,000 dashes": b"- " * 100_000,
    "100,000 maps": b"{a: " * 100_000,
    "an anchor": b"name: &x y\ncopy: *x\n",
    "a Python object": b"!!python/object/apply:os.system [true]\n",
    "a tag of its own": b"name: !secret x\n",
    "the same key twice": b"name: a\nname: b\n",
    "two documents": b"name: a\n---\nname: b\n",
    "not UTF-8": b"name: \xff\xfe\n",
    "a raw NUL": b"name: a\x00b\n",
    "a word that was a truth value": b"no\n",
    "nothing": b"",
}


async def test_no_yaml_breaks_anything(client: Client, conn: AsyncConnection[Any]) -> None:
    _AUTHORS["conn"] = conn
    headers = {"X-API-Key": KEY, "Content-Type": YAML}
    assert len(_READ_YAML) >= 3 and len(FILES) >= 12
    answers = {}
    for operation in sorted(_READ_YAML):
        method, path, _ = await request_for(client, operation)
        for name, content in FILES.items():
            answer = await client.request(method, path, headers=headers, content=content)
            answers[operation, name] = answer.status_code
    assert {each: code for each, code in answers.items() if not 400 <= code < 500} == {}
    # The worker is as it was before.
    right = b"name: t\ndomain: d\ncolumns: [{name: code, dataType: string}]\n"
    path = "/api/v1/entities/parse-yaml"
    answer = await client.post(path, headers=headers, content=right)
    assert answer.status_code == 200, answer.text


async def test_no_body_breaks_anything(client: Client, conn: AsyncConnection[Any]) -> None:
    _AUTHORS["conn"] = conn
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    wrong, sent, refused, done = [], 0, 0, 0
    for operation in sorted(_READ, key=lambda line: (line.endswith(_LAST), line)):
        method, path, right = await request_for(client, operation)
        for name, content in hostile(right.get("json")).items():
            answer = await client.request(method, path, headers=headers, content=content)
            sent += 1
            refused += 400 <= answer.status_code < 500
            if answer.status_code >= 500:
                wrong.append(f"{operation}, {name}: {answer.text[:200]}")
        answer = await client.request(method, path, headers=headers, **right)
        done += answer.status_code < 300
        if answer.status_code >= 500:
            wrong.append(f"{operation}, right: {answer.text[:200]}")
    assert not wrong, "\n" + "\n".join(wrong)
    assert sent > 30 * len(_READ) and refused > 0.9 * sent
    assert done > len(_READ) / 2, "the right bodies reach the work"
