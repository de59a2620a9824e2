"""The examples are valid, complete, and keep their own rules.

The rules are checked here with Python's own means, apart from the toolkit, so that a fault in the
toolkit's checks cannot hide a fault in the rows.
"""

from __future__ import annotations

import json
import re
import runpy
from collections import Counter
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from mdm_gitops.model import Action, Column, Entity, Permissions, Project, Webhooks
from mdm_gitops.source import read_folder
from mdm_gitops.source.fmt import format_yaml

EXAMPLES = Path(__file__).parents[2] / "examples"

ROWS = {
    ("reference-data", "country"): 249,
    ("reference-data", "subdivision"): 5_046,
    ("reference-data", "currency"): 178,
    ("reference-data", "language"): 7_923,
    ("customer-hub", "sales_region"): 12,
    ("customer-hub", "customer"): 2_000,
    ("customer-hub", "customer_address"): 3_000,
    ("customer-hub", "customer_bank_account"): 1_200,
    ("customer-hub", "product_category"): 40,
    ("customer-hub", "product"): 400,
}
SCHEMA_OF = {
    "mdm.yaml": "project.json",
    "permissions.yaml": "permissions.json",
    "webhooks.yaml": "webhooks.json",
    "access-tests.yaml": "access-tests.json",
}


def example_names() -> list[str]:
    return sorted({example for example, _ in ROWS})


def entities_of(example: str) -> dict[str, Entity]:
    paths = sorted((EXAMPLES / example / "entities").rglob("*.yaml"))
    entities = [Entity.model_validate(_read(path)) for path in paths]
    return {entity.name: entity for entity in entities}


def seed_of(example: str, entity: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (EXAMPLES / example / "seed" / f"{entity}.json").read_text("utf-8")
    )
    return rows


@pytest.mark.parametrize("example", example_names())
def test_example_is_valid_as_a_whole(example: str) -> None:
    definitions = read_folder(EXAMPLES / example)
    counts = {(example, name): len(seed.rows) for name, seed in definitions.seeds.items()}
    assert counts == {place: rows for place, rows in ROWS.items() if place[0] == example}
    assert any(Action.ADMIN in grant.actions for grant in definitions.grants)


@pytest.mark.parametrize("example", example_names())
def test_definitions_have_the_shape_of_the_model(example: str) -> None:
    folder = EXAMPLES / example
    names = [domain.name for domain in Project.model_validate(_read(folder / "mdm.yaml")).domains]
    entities = entities_of(example)
    permissions = Permissions.model_validate(_read(folder / "permissions.yaml"))
    webhooks = Webhooks.model_validate(_read(folder / "webhooks.yaml"))

    assert {entity.domain for entity in entities.values()} == set(names)
    for item in permissions.permissions:
        assert set(item.domains) <= {"*", *names}
        assert set(item.entities) <= set(entities)
    for webhook in webhooks.webhooks:
        assert set(webhook.domains) <= set(names)
        assert set(webhook.entities) <= set(entities)


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("example", example_names())
def test_each_file_has_the_canonical_form(example: str) -> None:
    for path in sorted((EXAMPLES / example).rglob("*.yaml")):
        assert format_yaml(path.read_bytes(), path.name) == path.read_text("utf-8"), path.name


@pytest.mark.parametrize("example", example_names())
def test_each_file_tells_the_editor_its_schema(example: str) -> None:
    for path in sorted((EXAMPLES / example).rglob("*.yaml")):
        first_line = path.read_text("utf-8").partition("\n")[0]
        schema = first_line.removeprefix("# yaml-language-server: $schema=")
        expected = EXAMPLES.parent / "schemas" / SCHEMA_OF.get(path.name, "entity.json")
        assert (path.parent / schema).resolve() == expected, path


@pytest.mark.parametrize(("example", "entity"), ROWS)
def test_seed_has_the_rows_it_is_said_to_have(example: str, entity: str) -> None:
    assert len(seed_of(example, entity)) == ROWS[example, entity]


@pytest.mark.parametrize("example", example_names())
def test_all_seeds_are_counted(example: str) -> None:
    seeds = {path.stem for path in (EXAMPLES / example / "seed").iterdir()}
    assert seeds == {entity for name, entity in ROWS if name == example}


@pytest.mark.parametrize(("example", "entity"), ROWS)
def test_seed_file_has_one_row_per_line(example: str, entity: str) -> None:
    text = (EXAMPLES / example / "seed" / f"{entity}.json").read_text("utf-8")
    lines = text.splitlines()
    assert (lines[0], lines[-1], text[-1]) == ("[", "]", "\n")
    assert len(lines) == ROWS[example, entity] + 2


@pytest.mark.parametrize(("example", "entity"), ROWS)
def test_each_row_keeps_the_rules_of_its_columns(example: str, entity: str) -> None:
    columns = {column.name: column for column in entities_of(example)[entity].columns}
    for row in seed_of(example, entity):
        assert set(row) <= set(columns), row
        for column in columns.values():
            assert why_wrong(column, row.get(column.name)) == "", (column.name, row)


def why_wrong(column: Column, value: Any) -> str:
    if value is None:
        return "" if column.nullable or column.default is not None else "is missing"
    if type(value) is not JSON_TYPE[column.data_type]:
        return "has the wrong type"
    if isinstance(value, str) and (value != value.strip() or not value):
        return "is empty or has space around it"
    if column.max_length is not None and len(value) > column.max_length:
        return "is too long"
    if column.pattern is not None and not re.fullmatch(column.pattern, value):
        return "does not fit the pattern"
    if column.allowed_values and value not in column.allowed_values:
        return "is not allowed"
    return _why_out_of_range(column, value)


JSON_TYPE: dict[str, Any] = {
    "string": str,
    "text": str,
    "int": int,
    "long": int,
    "decimal": str,
    "bool": bool,
    "date": str,
    "datetime": str,
    "guid": str,
    "json": dict,
}


ORDERED: dict[str, Any] = {
    "int": int,
    "long": int,
    "decimal": Decimal,
    "date": date.fromisoformat,
}


def _why_out_of_range(column: Column, value: Any) -> str:
    as_ordered = ORDERED.get(column.data_type)
    if as_ordered is None:
        return ""
    typed = as_ordered(value)
    if column.min_value is not None and typed < as_ordered(str(column.min_value)):
        return "is too small"
    if column.max_value is not None and typed > as_ordered(str(column.max_value)):
        return "is too large"
    if column.precision is not None:
        digits = len(typed.as_tuple().digits)
        places = -typed.as_tuple().exponent
        if digits > column.precision or places > (column.scale or 0):
            return "has too many digits"
    return ""


@pytest.mark.parametrize(("example", "entity"), ROWS)
def test_keys_are_unique(example: str, entity: str) -> None:
    definition = entities_of(example)[entity]
    sets = [definition.key_columns]
    sets += [(column.name,) for column in definition.columns if column.unique]
    sets += [constraint.columns for constraint in definition.unique_constraints]
    rows = seed_of(example, entity)
    for columns in sets:
        values = [tuple(row.get(column) for column in columns) for row in rows]
        counted = Counter(value for value in values if None not in value)
        assert [value for value, times in counted.items() if times > 1] == [], columns


@pytest.mark.parametrize(("example", "entity"), ROWS)
def test_references_meet_a_row(example: str, entity: str) -> None:
    entities = entities_of(example)
    for column in entities[entity].columns:
        if column.reference is None:
            continue
        target = entities[column.reference.entity]
        key = column.reference.column or target.key_columns[0]
        present = {row[key] for row in seed_of(example, target.name)}
        used = {row.get(column.name) for row in seed_of(example, entity)} - {None}
        assert used - present == set(), column.name


@pytest.mark.parametrize(("entity", "rows"), [("unit_of_measure", 2_136), ("time_zone", 598)])
def test_optional_code_lists_keep_their_rules(entity: str, rows: int) -> None:
    definition = entities_of("reference-data/optional")[entity]
    found = seed_of("reference-data/optional", entity)
    [key] = definition.key_columns
    assert len(found) == rows == len({row[key] for row in found})
    assert [row[key] for row in found] == sorted(row[key] for row in found)
    columns = {column.name: column for column in definition.columns}
    for row in found:
        assert set(row) <= set(columns), row
        wrong = {name: why_wrong(column, row.get(name)) for name, column in columns.items()}
        assert not any(wrong.values()), (wrong, row)


def test_a_time_zone_leads_to_a_country_and_to_a_zone_that_is_no_alias() -> None:
    countries = {row["code"] for row in seed_of("reference-data", "country")}
    zones = {row["name"]: row for row in seed_of("reference-data/optional", "time_zone")}
    for zone in zones.values():
        assert zone.get("country") in {None, *countries}
        if "alias_of" in zone:
            assert "alias_of" not in zones[zone["alias_of"]]


def test_refreshing_optional_lists_only_copies() -> None:
    script = runpy.run_path(str(EXAMPLES / "reference-data/optional/refresh_seeds.py"))
    unit = {"CommonCode": "X1", "Name": " a  b ", "Symbol": "", "Status": "D"}
    unit |= {"LevelAndCategory": "2.0", "Description": "", "ConversionFactor": " "}
    assert list(script["units"]([unit])) == [
        {"code": "X1", "name": "a b", "status": "deprecated", "level": "2"}
    ]
    table, links = "#c\nCH\t+4723+00832\tE/Z\tall\n", "R x\nL E/Z E/V\n"
    found = {row["name"]: row for row in script["zones"](["E/Z", "E/V"], table, links)}
    place = {"country": "CH", "coordinates": "+4723+00832", "comment": "all"}
    assert found == {"E/Z": {"name": "E/Z", **place}, "E/V": {"name": "E/V", "alias_of": "E/Z"}}
    with pytest.raises(SystemExit, match="'E/V' is not in the list"):
        list(script["zones"](["E/Z"], table, links))


def test_a_subdivision_belongs_to_the_country_of_its_code_and_of_its_parent() -> None:
    rows = {row["code"]: row for row in seed_of("reference-data", "subdivision")}
    for row in rows.values():
        assert row["country"] == row["code"][:2]
        assert row["country"] == rows[row.get("parent", row["code"])]["country"]


@pytest.mark.parametrize(
    ("parent", "completed"), [("AZ-NX", "AZ-NX"), ("NX", "AZ-NX"), (None, None)]
)
def test_refreshing_writes_parents_in_full(parent: str | None, completed: str | None) -> None:
    script = runpy.run_path(str(EXAMPLES / "reference-data" / "refresh_seeds.py"))
    row = {"code": "AZ-BAB", "name": "Babək", "type": "Rayon"}
    rows = script["with_country_and_parent"](
        [row if parent is None else row | {"parent": parent}, {"code": "AZ-NX"}]
    )
    assert rows[0].get("parent") == completed
    assert rows[0]["country"] == "AZ"


def test_refreshing_stops_at_a_parent_that_is_not_there() -> None:
    script = runpy.run_path(str(EXAMPLES / "reference-data" / "refresh_seeds.py"))
    with pytest.raises(SystemExit, match="AZ-BAB: parent 'ZZ' is not in the list"):
        script["with_country_and_parent"]([{"code": "AZ-BAB", "parent": "ZZ"}])


def hub() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "customer-hub" / "generate_seeds.py"))


def test_generating_gives_the_committed_seeds_byte_for_byte() -> None:
    script = hub()
    written = {entity: script["as_lines"](rows) for entity, rows in script["all_seeds"]().items()}
    folder = EXAMPLES / "customer-hub" / "seed"
    committed = {path.stem: path.read_bytes().decode() for path in folder.iterdir()}
    assert set(written) == set(committed)
    for entity, text in written.items():
        assert text == committed[entity], f"run generate_seeds.py: {entity} differs"


@pytest.mark.parametrize(
    ("country", "number", "check_digits"),
    [
        ("GB", "WEST12345698765432", "82"),  # the examples that the standard's registry prints
        ("DE", "370400440532013000", "89"),
    ],
)
def test_account_numbers_have_the_check_digits_of_the_standard(
    country: str, number: str, check_digits: str
) -> None:
    assert hub()["iban_check_digits"](country, number) == check_digits


@pytest.mark.parametrize(("digits", "check_digit"), [("400638133393", "1"), ("629104150021", "3")])
def test_article_numbers_have_the_check_digit_of_the_standard(
    digits: str, check_digit: str
) -> None:
    assert hub()["gtin_check_digit"](digits) == check_digit


def test_invented_customers_cannot_be_taken_for_real_ones() -> None:
    for row in seed_of("customer-hub", "customer"):
        assert row.get("email", "@example.com").endswith("@example.com")
        assert row.get("phone", "+999").startswith("+999")
    for row in seed_of("customer-hub", "customer_bank_account"):
        assert row["iban"].startswith("ZZ")


def test_an_address_lies_in_the_country_of_its_customer() -> None:
    customers = {row["customer_number"]: row for row in seed_of("customer-hub", "customer")}
    for row in seed_of("customer-hub", "customer_address"):
        assert row["country"] == customers[row["customer"]]["country"]
        assert row["valid_from"] <= row.get("valid_to", "9999-12-31")


def test_no_customer_owns_itself_over_any_number_of_steps() -> None:
    rows = {row["customer_number"]: row for row in seed_of("customer-hub", "customer")}
    for row in rows.values():
        seen = {row["customer_number"]}
        while "parent" in row:
            row = rows[row["parent"]]
            assert row["customer_number"] not in seen
            seen.add(row["customer_number"])


def test_the_numbers_that_the_docs_name() -> None:
    countries = seed_of("reference-data", "country")
    currencies = Counter(row["name"] for row in seed_of("reference-data", "currency"))
    customers = seed_of("customer-hub", "customer")
    assert sum(len(row["name"]) > 40 for row in countries) == 2
    assert [name for name, times in currencies.items() if times == 2] == ["Bolívar Soberano"]
    assert sum("email" not in row for row in customers) == 177
    assert len({row["country"] for row in customers}) == 30
    assert max(row["weight_g"] for row in seed_of("customer-hub", "product")) < 2**31
