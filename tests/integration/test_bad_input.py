"""Hostile and broken definitions through the command line: each is told with its place, and nothing
in the warehouse changes. One table; the words of single rules are tested where they are made.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.program import run
from tests.support.scenario import column, entity, tree

ITEM = "entities/item.yaml"
SEED = "seed/item.json"
GOOD = tree(entity("item", column("name"), column("size", "int")), seeds={"item": [{"code": "a"}]})
HEAD = "name: item\ndomain: lab\nkeyColumns: [code]\n"
COLUMNS = HEAD + "columns:\n  - name: code\n    dataType: string\n    nullable: false\n"


def named(name: str) -> bytes:
    return json.dumps(entity(name), indent=1).encode()


def patterned(pattern: str) -> bytes:
    text = json.dumps(pattern)
    return (COLUMNS + f"  - name: p\n    dataType: string\n    pattern: {text}\n").encode()


def seeded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# file -> bytes; the place that the error names; a part of what it says
YAML = {
    "anchors that multiply": (
        b"a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b]\n",
        f"{ITEM}:1:4",
    ),
    "merge keys": (b"name: item\nx: &x {a: 1}\n<<: *x\n", f"{ITEM}:2:4"),
    "100,000 opening brackets": (b"name: " + b"[" * 100_000, f"{ITEM}:1:"),
    "100,000 opening braces": (b"name: " + b"{a: " * 100_000, f"{ITEM}:1:"),
    "a tag that makes objects": (
        b"name: !!python/object/apply:os.system ['true']\n",
        f"{ITEM}:1:7",
    ),
    "a duplicate key": ((HEAD + "name: other\n").encode(), f"{ITEM}:4:1"),
    "a boolean where a name belongs": (HEAD.replace("lab", "true").encode(), f"{ITEM}:2:9"),
    "an unknown key": ((COLUMNS + "columnz: []\n").encode(), f"{ITEM}:8:1"),
    "a tab": (b"name: item\n\tdomain: lab\n", f"{ITEM}:2:1"),
    "a NUL": (b"name: it\0em\n", f"{ITEM}:1:"),
    "bytes that are no UTF-8": (b"name: caf\xe9\n", f"{ITEM}:1:"),
    "two documents": (b"name: item\n---\nname: other\n", f"{ITEM}:2:1"),
    "an open quote": (b'name: "item\n', f"{ITEM}:"),
    "nothing": (b"", f"{ITEM}"),
    "a list": (b"- name: item\n", f"{ITEM}:1:1"),
    "2 MB of it": (b"name: item\n" + b"# " + b"x" * 2_000_000, f"{ITEM}"),
}
PATTERNS = {
    "a look-ahead": (patterned("(?=a)b"), f"{ITEM}:10:14"),
    "a back reference": (patterned(r"(a)\1"), f"{ITEM}:10:14"),
    "repetition of repetition": (patterned("(a{1,200}){1,200}"), f"{ITEM}:10:14"),
    "a pattern of 513 characters": (patterned("a" * 513), f"{ITEM}:10:14"),
    "an open group": (patterned("(a"), f"{ITEM}:10:14"),
    "a recursion": (patterned("(?R)"), f"{ITEM}:10:14"),
}
NAMES = {
    "an injection": ('x"; DROP TABLE mdm.entity; --', f"{ITEM}:2:10"),
    "64 characters": ("a" * 64, f"{ITEM}:2:10"),
    "49 characters": ("a" * 49, f"{ITEM}:2:10"),
    "nothing": ("", f"{ITEM}:2:10"),
    "an underscore first": ("_sys_x", f"{ITEM}:2:10"),
    "two underscores": ("item__history", f"{ITEM}:2:10"),
    "a digit first": ("1item", f"{ITEM}:2:10"),
    "a Cyrillic twin": ("\u0456tem", f"{ITEM}:2:10"),
    "full width": ("\uff49tem", f"{ITEM}:2:10"),
    "a combining mark": ("ite\u0301m", f"{ITEM}:2:10"),
    "a space": ("it em", f"{ITEM}:2:10"),
    "a path": ("../item", f"{ITEM}:2:10"),
    "a line break": ("item\n", f"{ITEM}:2:10"),
}
SEEDS = {
    "not a number": (seeded('[\n {"code": "a", "size": NaN}\n]'), f"{SEED}:2:"),
    "an endless number": (seeded('[\n {"code": "a", "size": 1e400}\n]'), f"{SEED}:2:"),
    "5,000 digits": (seeded('[\n {"code": "a", "size": ' + "9" * 5_000 + "}\n]"), f"{SEED}:2:"),
    "a NUL": (seeded('[\n {"code": "a\\u0000"}\n]'), f"{SEED}:2:"),
    "half a character": (seeded('[\n {"code": "\\ud800"}\n]'), f"{SEED}:2:"),
    "100,000 brackets": (seeded("[" * 100_000), f"{SEED}:1:"),
    "a duplicate key": (seeded('[\n {"code": "a", "code": "b"}\n]'), f"{SEED}:2:"),
    "the same row twice": (seeded('[\n {"code": "a"},\n {"code": "a"}\n]'), f"{SEED}:3:"),
    "an unknown column": (seeded('[\n {"code": "a", "nam": "x"}\n]'), f"{SEED}:2:"),
    "no key": (seeded('[\n {"name": "x"}\n]'), f"{SEED}:2:"),
    "a word for a number": (seeded('[\n {"code": "a", "size": "seven"}\n]'), f"{SEED}:2:"),
    "no list": (seeded('{"code": "a"}'), f"{SEED}:1:"),
    "half a file": (seeded('[{"code": "a"'), f"{SEED}:1:"),
}
CASES = [
    *(pytest.param({ITEM: c}, p, id=f"yaml: {name}") for name, (c, p) in YAML.items()),
    *(pytest.param({ITEM: c}, p, id=f"pattern: {name}") for name, (c, p) in PATTERNS.items()),
    *(pytest.param({ITEM: named(n)}, p, id=f"name: {w}") for w, (n, p) in NAMES.items()),
    *(pytest.param({SEED: c}, p, id=f"seed: {name}") for name, (c, p) in SEEDS.items()),
    pytest.param(
        {"entities/ITEM.yaml": named("ITEM")}, "entities/", id="names that differ in case"
    ),
    pytest.param({"mdm.yaml": b"name: x\n"}, "mdm.yaml:1:1", id="a project without a version"),
    pytest.param(
        {
            "permissions.yaml": b"permissions:\n  - users: [a]\n    domains: [nope]\n    actions: [read]\n"
        },
        "permissions.yaml:3:15",
        id="permissions on what is not there",
    ),
    pytest.param(
        {"webhooks.yaml": b"webhooks:\n  - name: w\n    url: file:///etc/passwd\n"},
        "webhooks.yaml:3:10",
        id="a webhook to a file",
    ),
]


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def apply(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
    return run("apply", "--auto-approve", folder, env={**kept, "Mdm__Database__Url": url})


@pytest.mark.parametrize(("files", "place"), CASES)
def test_it_is_told_with_its_place_and_changes_nothing(
    files: dict[str, bytes], place: str, tmp_path: Path
) -> None:
    """The definitions are read before the server is asked: there need not even be one."""
    write(tmp_path, {**GOOD, **files})
    done = apply(tmp_path, "postgresql://nobody@127.0.0.1:1/nowhere")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert place in done.stderr, done.stderr[:2_000]
    assert done.stderr.rstrip().splitlines()[-1].endswith("in the definitions"), done.stderr[-500:]
    assert len(done.stderr) < 20_000
    assert not re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", done.stderr)


def _link(folder: Path) -> None:
    (folder / ITEM).unlink()
    (folder / ITEM).symlink_to("/etc/passwd")


def _link_folder(folder: Path) -> None:
    (folder / "entities" / "more").symlink_to("/etc")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "entities" / "pipe.yaml")


@pytest.mark.parametrize("trick", [_link, _link_folder, _fifo])
def test_what_is_no_file_of_the_folder_is_not_read(
    trick: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path, GOOD)
    trick(tmp_path)
    done = apply(tmp_path, "postgresql://nobody@127.0.0.1:1/nowhere")
    assert done.returncode == 1
    assert "root:" not in done.stderr
    assert "entities/" in done.stderr


def test_one_bad_file_among_good_ones_keeps_all_of_it_back(
    tmp_path: Path, database_url: str
) -> None:
    write(tmp_path, GOOD)
    assert apply(tmp_path, database_url).returncode == 0
    before = _deployed(database_url)
    changed = entity("item", column("name"), column("size", "int"), column("new"))
    write(tmp_path, tree(changed, entity("other")))
    write(tmp_path, {"entities/bad.yaml": b"name: [\n"})
    done = apply(tmp_path, database_url)
    assert done.returncode == 1
    assert "entities/bad.yaml:" in done.stderr
    assert _deployed(database_url) == before


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    bad = {f"entities/bad{n}.yaml": b"name: [\n" for n in range(5)}
    write(tmp_path, {**GOOD, **bad, SEED: b"[", "permissions.yaml": b"permissions: 7\n"})
    done = apply(tmp_path, "postgresql://nobody@127.0.0.1:1/nowhere")
    for path in (*bad, SEED, "permissions.yaml"):
        assert f"{path}:" in done.stderr


_DEPLOYED = """
SELECT (SELECT jsonb_agg(e) FROM mdm.entity e),
       (SELECT jsonb_agg(d) FROM mdm.deployed_relation d),
       (SELECT count(*) FROM mdm.deployment)
"""


def _deployed(url: str) -> object:
    with psycopg.connect(url) as conn:
        return conn.execute(_DEPLOYED).fetchone()
