"""An installed common entity becomes its newer version; local changes are kept, or named as conflicts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mdm_gitops.source import common_entities as catalogue
from mdm_gitops.source.common_upgrade import Former
from mdm_gitops.source.repository import parse_entity
from tests.support import served_folder as folders
from tests.support.served_folder import git, repository
from tests.support.serving import Client, problem

pytestmark = pytest.mark.anyio
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}, {name: geography}]\n"
}
COMMON = "/api/v1/common-entities"
SHIPPED = Path(__file__).parents[2] / "examples/reference-data"

conn, client = folders.conn, folders.client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "definitions", FILES)


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A catalogue in which currency has version 1.1.0, and knows what 1.0.0 was. It is used once
    ``catalogue.common_entities`` is asked again."""
    folder = tmp_path / "newer"
    shutil.copytree(SHIPPED, folder)
    definition, seed = folder / "entities/currency.yaml", folder / "seed/currency.json"
    former = Former.of(parse_entity(definition.read_bytes()), json.loads(seed.read_bytes()))
    (folder / "former").mkdir(exist_ok=True)
    (folder / "former/currency-1.0.0.json").write_bytes(former.written())
    text = definition.read_text().replace("version: 1.0.0", "version: 1.1.0")
    text = text.replace("English name; not unique", "Name in English; not unique")
    text += (
        "  - name: minor_units\n    displayName: Minor units\n    dataType: int\n    minValue: 0\n"
    )
    definition.write_text(text)
    rows = {row["code"]: row for row in json.loads(seed.read_bytes())}
    rows["EUR"]["name"] = "The euro"
    rows["CHF"]["minor_units"] = 2
    del rows["BTN"]
    rows["ZZY"] = {"code": "ZZY", "numeric_code": "998", "name": "New one"}
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows.values())
    seed.write_text(f"[\n{lines}\n]\n")
    monkeypatch.setattr(catalogue, "_PLACES", (folder,))
    yield folder
    catalogue.common_entities.cache_clear()


async def listed(client: Client, name: str = "currency") -> dict[str, Any]:
    items = (await client.get(COMMON)).json()["items"]
    return next(item for item in items if item["id"] == name)


def edit(root: Path, path: str, *changes: tuple[str, str]) -> None:
    text = (root / path).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (root / path).write_text(text)
    git(root, "commit", "-qam", "by hand")


async def test_a_newer_version_keeps_what_was_changed_here(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch, newer: Path
) -> None:
    with monkeypatch.context() as before:
        before.setattr(catalogue, "_PLACES", (SHIPPED,))
        catalogue.common_entities.cache_clear()
        assert (await listed(client))["installedVersion"] is None
        done = await client.post(f"{COMMON}/currency/install", json={"domain": "ref"})
        assert done.json()["installed"] == ["currency"] and done.json()["upgraded"] == []
        state = await listed(client)
        assert (state["installedVersion"], state["changedLocally"], state["upgradable"]) == (
            "1.0.0",
            False,
            False,
        )
        assert (await client.post("/api/v1/entities/currency/deploy")).status_code == 200
        again = await client.post(f"{COMMON}/currency/install")
        assert problem(again) == (409, "ENTITY_EXISTS")
    definition, seed = "entities/currency.yaml", "seed/currency.json"
    edit(
        root,
        definition,
        ("    maxLength: 100\n", "    maxLength: 120   # ours are longer\n"),
        ("displayName: Currency\n", "displayName: Money\n"),
    )
    euro = next(line for line in (root / seed).read_text().splitlines() if '"EUR"' in line)
    edit(
        root,
        seed,
        ('"Swiss Franc"', '"Franken"'),
        (euro, euro.replace('"Euro"', '"EURO"')),
        ("[\n", '[\n{"code": "XOX", "numeric_code": "001", "name": "Ours"},\n'),
    )
    catalogue.common_entities.cache_clear()
    state = await listed(client)
    assert (state["version"], state["installedVersion"]) == ("1.1.0", "1.0.0")
    assert state["changedLocally"] and state["upgradable"]

    refused = await client.post(f"{COMMON}/currency/install")
    assert problem(refused) == (409, "COMMON_ENTITY_CONFLICT")
    assert refused.json()["conflicts"] == ['row "CHF" of the seed', 'row "EUR" of the seed']
    assert git(root, "log", "-1", "--format=%s").strip() == "by hand"

    edit(root, seed, ('"EURO"', '"Euro"'), ('"Franken"', '"Swiss Franc"'))
    done = await client.post(f"{COMMON}/currency/install")
    assert done.status_code == 201, done.text
    assert done.json()["installed"] == [] and done.json()["upgraded"] == ["currency"]
    assert git(root, "log", "-1", "--format=%s").strip() == "Upgrade common entities: currency"
    text = (root / definition).read_text()
    for part in (
        "maxLength: 120   # ours are longer",
        "displayName: Money",
        'version: "1.1.0"',
        "domain: ref",
        "Name in English; not unique",
        "name: minor_units",
    ):
        assert part in text, part
    rows = {row["code"]: row for row in json.loads((root / seed).read_text())}
    assert "XOX" in rows and "ZZY" in rows and "BTN" not in rows
    assert rows["EUR"]["name"] == "The euro" and rows["CHF"]["minor_units"] == 2
    state = await listed(client)
    assert (state["installedVersion"], state["changedLocally"], state["upgradable"]) == (
        "1.1.0",
        True,
        False,
    )
    assert (await client.post("/api/v1/entities/currency/deploy")).status_code == 200
    params = {"filter": "[code] IN ('CHF', 'XOX')", "sort": "code"}
    page = (await client.get("/api/v1/entities/currency/data", params=params)).json()
    assert [row["minor_units"] for row in page["items"]] == [2, None]


async def test_what_both_changed_in_the_definition_is_named(
    client: Client, root: Path, monkeypatch: pytest.MonkeyPatch, newer: Path
) -> None:
    with monkeypatch.context() as before:
        before.setattr(catalogue, "_PLACES", (SHIPPED,))
        catalogue.common_entities.cache_clear()
        await client.post(f"{COMMON}/currency/install", json={"domain": "ref"})
    catalogue.common_entities.cache_clear()
    edit(root, "entities/currency.yaml", ("English name; not unique", "Our name; not unique"))
    refused = await client.post(f"{COMMON}/currency/install")
    assert problem(refused) == (409, "COMMON_ENTITY_CONFLICT")
    assert refused.json()["conflicts"] == ["columns.name.description"]
    # A version that was never one of the catalogue is somebody's own.
    edit(root, "entities/currency.yaml", ("version: 1.0.0", "version: 7.0.0"))
    state = await listed(client)
    assert state["installed"] and state["installedVersion"] is None and not state["upgradable"]
    assert problem(await client.post(f"{COMMON}/currency/install")) == (409, "ENTITY_EXISTS")
    # The seed was taken away on purpose, so none comes back.
    edit(
        root,
        "entities/currency.yaml",
        ("version: 7.0.0", "version: 1.0.0"),
        ("Our name; not", "English name; not"),
    )
    git(root, "rm", "-q", "seed/currency.json")
    git(root, "commit", "-qm", "no rows")
    assert (await client.post(f"{COMMON}/currency/install")).status_code == 201
    assert not (root / "seed/currency.json").exists()
    assert '"1.1.0"' in (root / "entities/currency.yaml").read_text()


async def test_time_zones_and_units_come_with_all_their_rows(client: Client) -> None:
    done = await client.post(f"{COMMON}/time_zone/install")
    assert done.json()["installed"] == ["country", "time_zone"], done.text
    done = await client.post(f"{COMMON}/unit_of_measure/install", json={"domain": "ref"})
    assert done.status_code == 201, done.text
    for name in ("country", "time_zone", "unit_of_measure"):
        answer = await client.post(f"/api/v1/entities/{name}/deploy")
        assert answer.status_code == 200, answer.text
        state = await listed(client, name)
        assert state["source"] and state["licence"] and state["changedLocally"] is False
        page = await client.get(f"/api/v1/entities/{name}/data", params={"count": "true"})
        assert page.json()["totalCount"] == state["rows"]
    zone = {"filter": "[name] = 'Africa/Accra'"}
    [row] = (await client.get("/api/v1/entities/time_zone/data", params=zone)).json()["items"]
    assert (row["country"], row["alias_of"]) == ("GH", "Africa/Abidjan")
    unit = {"filter": "[code] = 'KGM'", "fields": "name,symbol,status"}
    [row] = (await client.get("/api/v1/entities/unit_of_measure/data", params=unit)).json()["items"]
    assert row == {"name": "kilogram", "symbol": "kg", "status": "active"}
