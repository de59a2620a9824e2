from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mdm_gitops.errors import DefinitionError, InputError
from mdm_gitops.source import (
    Entry,
    check_entity_in,
    parse_entity,
    read_folder,
    read_tree,
    read_tree_leniently,
)
from mdm_gitops.source.tree import is_of_interest

GOOD: dict[str, bytes] = {
    "mdm.yaml": b"name: demo\napiVersion: mdm-gitops/v1\ndomains:\n  - name: sales\n",
    "entities/country.yaml": b"""\
name: country
domain: sales
keyColumns: [code]
columns:
  - name: code
    dataType: string
    nullable: false
  - name: area
    dataType: decimal
""",
    "entities/deep/er/Customer.yaml": b"""\
name: Customer
domain: sales
columns:
  - {name: country, dataType: string, reference: {entity: country}}
""",
    "permissions.yaml": b"""\
permissions:
  - users: [bob]
    domains: [sales]
    entities: [customer]
    actions: [read]
    rowFilterDsl: "[country] = 'CH'"
""",
    "webhooks.yaml": b"webhooks:\n  - name: w\n    url: https://x.test/\n",
    "seed/country.json": b'[{"code": "CH", "area": 41285.50},\n {"CODE": "DE"}]',
    "README.md": b"\xff not read",
    ".mdm/secret.yaml": b"\xff not read",
    "entities/.hidden.yaml": b"\xff not read",
    "entities/notes.md": b"\xff not read",
}
FILTER_FINDING = (
    "permissions.yaml:6:19: row filter is wrong for entity 'Customer', character 1:"
    " entity 'Customer' has no column 'contry'"
)


def findings_of(files: dict[str, bytes]) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        read_tree(files)
    return [str(finding) for finding in caught.value.findings]


def write(root: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def test_a_tree_of_files_becomes_definitions() -> None:
    definitions = read_tree(GOOD, commit="abc")
    assert list(definitions.entities) == ["country", "customer"]
    assert definitions.commit == "abc"
    assert definitions.seeds["country"].rows == (
        {"code": "CH", "area": definitions.seeds["country"].rows[0]["area"]},
        {"code": "DE"},
    )
    assert str(definitions.seeds["country"].rows[0]["area"]) == "41285.50"
    assert definitions.grants[0].row_filter == "[country] = 'CH'"
    assert definitions.webhook_by_name["w"].is_active


def test_a_folder_reads_like_the_same_files_in_memory(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    definitions = read_folder(tmp_path)
    assert definitions.content_hash == read_tree(GOOD).content_hash
    assert definitions.commit is None


def test_all_findings_of_all_files_come_at_once_in_file_order() -> None:
    files = GOOD | {
        "entities/country.yaml": b"""\
name: country
domain: sals
keyColumns: [cod]
historyEnabled: yes
columns:
  - name: code
    datatype: string
    maxLength: '2'
    pattern: 5
    classification: secret
""",
        "entities/b.yaml": b"""\
name: b
domain: sale
columns:
  - {name: x, dataType: string, reference: {entity: cuntry}}
  - {name: y, dataType: string, reference: {entity: country}}
""",
        "entities/c.yaml": b"a: b: c",
        "mdm.yml": b"",
        "webhooks.yaml": b"webhooks:\n  - name: w\n    url: ftp://x.test/\n    entities: [c, nil]\n",
        "permissions.yaml": GOOD["permissions.yaml"].replace(b"[country]", b"[contry]"),
        "seed/customer.json": b'[{"country": "CH"},\n {"contry": "DE"}]',
        "seed/nobody.json": b"[]",
        "seed/country.csv": b"",
    }
    assert findings_of(files) == [
        "entities/b.yaml:2:9: domain 'sale' is not in mdm.yaml",
        "entities/b.yaml:4:53: entity 'cuntry' does not exist",
        "entities/c.yaml:1:5: not valid YAML: mapping values are not allowed in this context",
        "entities/country.yaml:4:17: historyEnabled must be true or false, found text 'yes'",
        "entities/country.yaml:6:5: key 'dataType' is missing in column 'code'",
        "entities/country.yaml:7:5: unknown key 'datatype' in column 'code'",
        "entities/country.yaml:8:16: maxLength must be a whole number, found text '2'",
        "entities/country.yaml:9:14: pattern must be text, found number 5",
        "entities/country.yaml:10:21: classification 'secret' is not known",
        "mdm.yml: is not read; its name must be mdm.yaml",
        FILTER_FINDING,
        "seed/country.csv: is not read; files in seed end in .json",
        "seed/customer.json:1:1: entity 'Customer' has no keyColumns, so it cannot be seeded",
        "seed/customer.json:2:3: row 2: entity 'Customer' has no column 'contry'",
        "seed/nobody.json: entity 'nobody' does not exist",
        "webhooks.yaml:3:10: url must start with https:// or http://",
        "webhooks.yaml:4:19: entity 'nil' does not exist",
    ]


@pytest.mark.parametrize(
    ("path", "data", "says", "hint"),
    [
        ("mdm.yaml", b"", "mdm.yaml: file is empty", ""),
        ("mdm.yaml", b"- a\n", "the file must be a mapping, found a list", ""),
        ("mdm.yaml", b"name: x\napiVersion: v2\n", "apiVersion 'v2' is not known", "mdm-gitops/v1"),
        ("mdm.yaml", b"name: x\n", "key 'apiVersion' is missing in the file", ""),
        (
            "mdm.yaml",
            GOOD["mdm.yaml"] + b"policy: {maxRemovedPercent: 101}\n",
            "mdm.yaml:5:29: maxRemovedPercent must be at most 100",
            "",
        ),
        ("permissions.yaml", b"permissions:\n", "permissions must be a list, found nothing", ""),
        (
            "permissions.yaml",
            b"permissions:\n  - users: bob\n    domains: [sales]\n    actions: [red]\n",
            "users must be a list, found text 'bob'",
            "write a list: ['bob']",
        ),
        (
            "permissions.yaml",
            b"permissions:\n  - users: []\n    domains: [sales]\n    actions: [red]\n",
            "users must have at least 1 items",
            "",
        ),
        (
            "webhooks.yaml",
            b"webhooks:\n  - {name: w, url: 'https://x.test', isActive: true}\n",
            "unknown key 'isActive' in webhook 'w'",
            "did you mean 'is_active'?",
        ),
        (
            "entities/e.yaml",
            b"name: e\ndomain: sales\nversion: 1.10\ncolumns: []\n",
            "entities/e.yaml:3:10: version must be text, found number 1.1",
            'put it in quotes: "1.1"',
        ),
        (
            "entities/e.yaml",
            b"name: e\ndomain: sales\nhistory_enabled: true\ncolumns: [{name: a, dataType: int}]\n",
            "unknown key 'history_enabled'",
            "did you mean 'historyEnabled'?",
        ),
        (
            "entities/e.yaml",
            b"name: e\ndomain: sales\ncolumns: [{name: a, dataType: integer}]\n",
            "entities/e.yaml:3:31: dataType 'integer' is not known",
            "did you mean 'int'?",
        ),
        (
            "entities/e.yaml",
            b"name: e\ndomain: sales\ncolumns: [{name: a, dataType: string, maxLength: 3.0}]\n",
            "maxLength 3.0 is not right",
            "",
        ),
        (
            "entities/e.yaml",
            b"name: f\ndomain: sales\ncolumns: [{name: a, dataType: int}]\n",
            "entities/e.yaml:1:7: entity 'f' is not in a file of its name",
            "rename the file to f.yaml",
        ),
        (
            "entities/country2.yaml",
            GOOD["entities/country.yaml"],
            "1:7: entity 'country' is already defined in entities/country.yaml",
            "",
        ),
        ("entities/x.yml", b"", "is not read; files in entities end in .yaml", ""),
        ("seed/a/b.json", b"[]", "seeds have no sub-folders", ""),
        ("seed/Country.json", b"[]", "is already the seed of that entity", ""),
        ("seed/country.json", b"[{}]", "row 1: code is missing, but required", ""),
        ("seed/country.json", b'[{"code": "\\ud800"}]', "half of a surrogate pair", ""),
        ("entities/a\nb.yaml", b"", "characters that cannot be shown", ""),
        ("entities/../../x.yaml", b"", "is not a plain relative path", ""),
    ],
)
def test_one_wrong_file(path: str, data: bytes, says: str, hint: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_tree(GOOD | {path: data})
    finding = caught.value.findings[0]
    assert says in "\n".join(map(str, caught.value.findings))
    assert hint in finding.hint or hint in "\n".join(f.hint for f in caught.value.findings)
    assert finding.location.path in (path.replace("\n", "\\n"), "seed/country.json")


def test_without_mdm_yaml_there_is_no_project() -> None:
    assert findings_of({"entities/e.yaml": b"x: 1"})[-1] == (
        "mdm.yaml: there is no mdm.yaml in this folder"
    )
    assert "mdm.yaml" in findings_of({})[0]


def test_a_bad_value_in_row_4711_is_named_with_its_line() -> None:
    rows = [f'{{"code": "c{number}", "area": {number}.5}}' for number in range(1, 6001)]
    rows[4710] = '{"code": "c4711", "area": "many"}'
    files = GOOD | {"seed/country.json": ("[\n" + ",\n".join(rows) + "\n]").encode()}
    assert findings_of(files) == [
        "seed/country.json:4712:27: row 4711: area 'many' is not a decimal number"
    ]


def test_of_a_great_many_findings_the_first_hundred_are_listed() -> None:
    rows = ",\n".join('{"code": 5}' for _ in range(5000))
    findings = findings_of(GOOD | {"seed/country.json": f"[{rows}]".encode()})
    assert len(findings) == 101
    assert findings[-1].endswith("4900 more findings in this file are not listed")


@pytest.mark.parametrize("name", ["mdm.yaml", "entities", "entities/link.yaml", "seed"])
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, {path: data for path, data in GOOD.items() if not path.startswith(name)})
    outside.write_bytes(GOOD["mdm.yaml"])
    (root / name).symlink_to(outside)
    with pytest.raises(DefinitionError) as caught:
        read_folder(root)
    assert f"{name}: is a symbolic link; links are not followed" in map(str, caught.value.findings)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    os.mkfifo(tmp_path / "entities" / "pipe.yaml")
    with pytest.raises(DefinitionError, match=r"pipe.yaml: is neither a file nor a folder"):
        read_folder(tmp_path)


def test_a_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with (tmp_path / "seed" / "country.json").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    (tmp_path / "entities" / "big.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(DefinitionError) as caught:
        read_folder(tmp_path)
    assert list(map(str, caught.value.findings)) == [
        "entities/big.yaml: has 1,048,577 bytes, at most 1,048,576 are allowed",
        "seed/country.json: has 67,108,865 bytes, at most 67,108,864 are allowed",
    ]


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_folder(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        read_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read_is_told(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (tmp_path / "webhooks.yaml").chmod(0)
    with pytest.raises(DefinitionError, match=r"webhooks.yaml: cannot be read"):
        read_folder(tmp_path)


class Fading:
    """A tree whose files vanish between listing and reading, as those of a busy folder do."""

    def entries(self) -> Iterator[Entry]:
        yield from (Entry(path=path) for path in GOOD if is_of_interest(path))

    def read(self, path: str) -> bytes:
        if path == "mdm.yaml":
            return GOOD[path]
        raise FileNotFoundError(2, "No such file or directory", path)


def test_files_that_vanish_while_reading_are_told() -> None:
    with pytest.raises(DefinitionError) as caught:
        read_tree(Fading())
    assert list(map(str, caught.value.findings)) == [
        f"{path}: cannot be read: No such file or directory"
        for path in sorted(GOOD)
        if is_of_interest(path) and path.endswith((".yaml", ".json")) and path != "mdm.yaml"
    ]


def test_a_tree_of_too_many_files_is_not_read() -> None:
    files = {f"entities/e{number}.yaml": b"" for number in range(20_001)}
    assert findings_of(files | GOOD) == ["entities: more than 20,000 definition files"]


def test_two_hundred_broken_repositories_are_read_or_refused() -> None:
    dice = random.Random(4)
    for _ in range(200):
        files = dict(GOOD)
        for _ in range(dice.randint(1, 4)):
            path = dice.choice([path for path in files if path.endswith((".yaml", ".json"))])
            data = bytearray(files[path] or b" ")
            start = dice.randrange(len(data))
            data[start : start + dice.randint(0, 9)] = dice.randbytes(dice.randint(0, 2)) + (
                dice.choice([b"", b"[", b"}", b"'", b": ", b"\n", b"- ", b"null", b"&a", b"9" * 50])
            )
            files[path] = bytes(data)
        try:
            read_tree(files)
        except DefinitionError as exc:
            assert all(finding.message and finding.location.path for finding in exc.findings)


def test_broken_entities_and_what_needs_them_are_left_out() -> None:
    third = b"name: third\ndomain: sales\ncolumns:\n  - {name: a, dataType: int}\n"
    permission = b"""\
  - users: [eve]
    domains: [sales]
    entities: [country, third]
    actions: [read]
  - users: [all]
    domains: [sales]
    actions: [read]
"""
    files = GOOD | {
        "entities/country.yaml": GOOD["entities/country.yaml"] + b"    scale: 3\n",
        "entities/third.yaml": third,
        "permissions.yaml": GOOD["permissions.yaml"] + permission,
    }
    definitions, findings = read_tree_leniently(files)
    assert list(definitions.entities) == ["third"]
    assert dict(definitions.seeds) == {}
    assert [(g.principal, g.entity) for g in definitions.grants] == [("all", ""), ("eve", "third")]
    assert [(finding.location.path, finding.rule) for finding in findings] == [
        ("entities/country.yaml", "scale-without-precision"),
        ("entities/deep/er/Customer.yaml", "left-out"),
    ]


def test_a_broken_seed_leaves_its_entity_alone() -> None:
    definitions, findings = read_tree_leniently(GOOD | {"seed/country.json": b"{"})
    assert list(definitions.entities) == ["country", "customer"]
    assert dict(definitions.seeds) == {}
    assert len(findings) == 1


@pytest.mark.parametrize("path", ["mdm.yaml", "permissions.yaml", "webhooks.yaml"])
def test_what_holds_for_all_entities_is_never_read_in_part(path: str) -> None:
    with pytest.raises(DefinitionError):
        read_tree_leniently(GOOD | {path: b"x: 1\n"})


def test_an_entity_alone_is_checked_as_far_as_it_can_be() -> None:
    text = GOOD["entities/deep/er/Customer.yaml"].decode()
    assert parse_entity(text).name == "Customer"
    with pytest.raises(DefinitionError, match=r"<body>:2:1: unknown key 'domian'"):
        parse_entity(text.replace("domain", "domian: x\ndomain"))
    with pytest.raises(DefinitionError, match=r"surrogate|UTF-8"):
        parse_entity("name: \ud800")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("entity: country", "entity: contry", "'contry' does not exist"),
        ("domain: sales", "domain: sale", "domain 'sale' is not in mdm.yaml"),
    ],
)
def test_an_entity_is_checked_among_the_others(old: str, new: str, says: str) -> None:
    definitions = read_tree(GOOD)
    text = GOOD["entities/deep/er/Customer.yaml"].decode()
    assert check_entity_in(definitions, text).name == "Customer"
    with pytest.raises(DefinitionError, match=says):
        check_entity_in(definitions, text.replace(old, new))


def test_a_view_of_another_entity_is_not_taken_over() -> None:
    view = b"consumption: {views: [{schema: s, name: v}]}\n"
    files = GOOD | {"entities/country.yaml": GOOD["entities/country.yaml"] + view}
    text = GOOD["entities/deep/er/Customer.yaml"] + view
    with pytest.raises(DefinitionError, match=r"already a view of entity 'country'"):
        check_entity_in(read_tree(files), text)


def test_a_thousand_entities_are_read_within_seconds() -> None:
    columns = "".join(
        f"  - name: column_{n}\n    dataType: string\n    maxLength: 100\n" for n in range(15)
    )
    files: dict[str, Any] = {"mdm.yaml": GOOD["mdm.yaml"]}
    for n in range(1000):
        files[f"entities/e{n}.yaml"] = f"name: e{n}\ndomain: sales\ncolumns:\n{columns}".encode()
    started = time.process_time()
    assert len(read_tree(files).entities) == 1000
    assert time.process_time() - started < 5
