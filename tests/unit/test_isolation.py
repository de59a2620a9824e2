"""One bad file holds up its own entity, whatever it is that is wrong with it, and removes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree, read_tree_over

FILES: Mapping[str, bytes] = {
    "mdm.yaml": b"name: x\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n",
    "entities/country.yaml": b"""
name: country
domain: d
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
""",
    "entities/city.yaml": b"""
name: city
domain: d
columns:
  - {name: country, dataType: string, reference: {entity: country}}
""",
    "entities/colour.yaml": b"name: colour\ndomain: d\ncolumns:\n  - {name: hue, dataType: int}\n",
    "permissions.yaml": b"""
permissions:
  - {users: [ana], domains: [d], entities: [country, colour], actions: [read]}
""",
    "seed/country.json": b'[{"code": "CH"}]',
}
DEPLOYED = read_tree(FILES)


def with_(path: str, data: bytes) -> tuple[Definitions, int]:
    files = {**FILES, path: data, "entities/colour.yaml": COLOUR}
    definitions, findings = read_tree_over(files, DEPLOYED.entities)
    return definitions, len(findings)


COLOUR = b"name: colour\ndomain: d\ncolumns:\n  - {name: hue, dataType: int}\n  - {name: n, dataType: int}\n"


def test_without_findings_it_is_what_the_files_say() -> None:
    assert read_tree_over(FILES, {})[0].content_hash == DEPLOYED.content_hash


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("entities/country.yaml", b"name: ["),
        ("entities/country.yaml", b"\xff\xfe"),
        ("entities/country.yaml", b"name: country\ndomain: d\ncolumns: []\n"),
        ("entities/land.yaml", FILES["entities/country.yaml"]),
        ("entities/city.yaml", b"name: city\ndomain: nowhere\ncolumns: [{name: a, dataType: int}]"),
        ("seed/country.json", b"[{]"),
        ("entities/new.yaml", b"name: ["),
    ],
    ids=["syntax", "not text", "no columns", "twice", "no domain", "seed", "new"],
)
def test_what_is_bad_stays_and_what_is_good_goes_on(path: str, data: bytes) -> None:
    definitions, findings = with_(path, data)
    assert findings
    assert [column.name for column in definitions.entities["colour"].columns] == ["hue", "n"]
    for name in ("country", "city"):
        assert definitions.entities[name] == DEPLOYED.entities[name]
    assert definitions.grants == DEPLOYED.grants
    assert set(definitions.entities) == set(DEPLOYED.entities)


def test_who_refers_to_what_is_bad_waits_with_it() -> None:
    files = {
        **FILES,
        "entities/country.yaml": b"name: [",
        "entities/city.yaml": b"""
name: city
domain: d
columns:
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: size, dataType: int}
""",
    }
    definitions, _ = read_tree_over(files, DEPLOYED.entities)
    assert definitions.entities["city"] == DEPLOYED.entities["city"]


def test_a_broken_new_name_removes_nothing() -> None:
    files = {path: data for path, data in FILES.items() if "colour" not in path}
    files["entities/color.yaml"] = b"name: color\nrenamedFrom: colour\ncolumns: ["
    files["permissions.yaml"] = b"permissions: []\n"
    definitions, _ = read_tree_over(files, DEPLOYED.entities)
    assert "colour" in definitions.entities


def test_a_sound_new_name_goes_in_beside_a_broken_file() -> None:
    files = {path: data for path, data in FILES.items() if "colour" not in path}
    files["entities/color.yaml"] = COLOUR.replace(b"colour", b"color\nrenamedFrom: colour")
    files["permissions.yaml"] = b"permissions: []\n"
    files["entities/city.yaml"] = b"["
    definitions, _ = read_tree_over(files, DEPLOYED.entities)
    assert set(definitions.entities) == {"country", "city", "color"}


@pytest.mark.parametrize("path", ["mdm.yaml", "permissions.yaml"])
def test_what_holds_for_all_holds_up_all(path: str) -> None:
    with pytest.raises(DefinitionError):
        read_tree_over({**FILES, path: b"["}, DEPLOYED.entities)


def test_sound_files_that_do_not_go_with_what_is_deployed() -> None:
    """The key that a broken entity refers to, as deployed, is gone in the new file."""
    country = b"name: country\ndomain: d\nkeyColumns: [iso]\ncolumns:\n  - {name: iso, dataType: int, nullable: false}\n"
    files = {**FILES, "entities/country.yaml": country, "entities/city.yaml": b"["}
    files.pop("seed/country.json")
    deployed = {
        **DEPLOYED.entities,
        "city": read_tree(
            {
                **FILES,
                "entities/city.yaml": FILES["entities/city.yaml"].replace(
                    b"entity: country", b"entity: country, column: code"
                ),
            }
        ).entities["city"],
    }
    with pytest.raises(DefinitionError):
        read_tree_over(files, deployed)
