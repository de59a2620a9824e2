"""``access-tests.yaml``: what is wrong in the file, and what follows from permissions without a row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from mdm_gitops.access.testing import by_principal, judge_structure, strangers, who_asks
from mdm_gitops.cli import main
from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Definitions
from mdm_gitops.plan.document_schema import plan_schema
from mdm_gitops.source import read_tree
from mdm_gitops.source.fmt import format_yaml
from mdm_gitops.source.repository import read_tree_leniently
from mdm_gitops.warehouse.store import StoredKey, StoreState
from tests.support.served_folder import repository

FILES = {
    "mdm.yaml": b"name: t\napiVersion: mdm-gitops/v1\ndomains: [{name: crm}]\n",
    "entities/customer.yaml": b"""
name: customer
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: tax, dataType: string, classification: restricted}
""",
    "entities/site.yaml": b"""
name: site
domain: crm
keyColumns: [country, number]
columns:
  - {name: country, dataType: string, nullable: false}
  - {name: number, dataType: int, nullable: false}
""",
    "entities/log.yaml": b"name: log\ndomain: crm\ncolumns: [{name: text, dataType: string}]\n",
    "permissions.yaml": b"""
permissions:
  - {users: [ana], domains: [crm], actions: [read]}
  - {users: ["group:dach"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[code] = 'C1'"}
  - {users: ["group:privacy"], domains: [crm], actions: [viewrestricted]}
""",
}


def line(expect: str, *, entity: str = "customer", more: str = "", name: str = "t") -> str:
    return f"  - {{name: {name}, principal: ana, entity: {entity}{more}, expect: {expect}}}\n"


def files(*tests: str) -> dict[str, bytes]:
    return {**FILES, "access-tests.yaml": ("tests:\n" + "".join(tests)).encode()}


def findings(*tests: str) -> list[str]:
    with pytest.raises(DefinitionError) as refused:
        read_tree(files(*tests))
    return [str(each).removeprefix("access-tests.yaml:") for each in refused.value.findings]


@pytest.mark.parametrize(
    ("test", "found"),
    [
        (line("{}"), "2:57: nothing is expected"),
        (line("{masked: [tx]}"), "2:67: entity 'customer' has no column 'tx'"),
        (line("denied", entity="custmer"), "2:39: entity 'custmer' does not exist"),
        (line("{rows: [1]}"), "2:65: code 1 is a number, not text; put it in quotes"),
        (line("{rows: [a, a]}"), "2:68: row 'a' is here twice"),
        (line("{rows: [a], count: 1}"), "2:57: rows and count say the same; keep one"),
        (line("{rows: [a], excludes: [b]}"), "2:57: rows says it exactly; leave includes and"),
        (line("{all: true, excludes: [b]}"), "2:57: all rows are expected, so none can be"),
        (line("{includes: [b], excludes: [a, b]}"), "2:87: 'b' is in both includes and excludes"),
        (line("{masked: [tax], visible: [tax]}"), "2:83: 'tax' is in both masked and visible"),
        (line("{count: 1}", more=", action: admin"), "2:72: admin reaches no rows of its own"),
        (line("{masked: [tax]}", more=", action: write"), "2:72: columns are masked for the"),
        (line("{includes: [a]}", entity="log"), "2:64: entity 'log' has no keyColumns; use count"),
        (line("{includes: [a]}", entity="site"), "2:65: a row of 'site' has a key of several"),
        (line("{includes: [{country: CH}]}", entity="site"), "2:65: a row of 'site' is named by"),
        (
            line("{includes: [{country: CH, number: x}]}", entity="site"),
            "2:65: number 'x' is not an int",
        ),
        (line("denied", name="' '"), "2:12: test has no name"),
        (line("denied") + line("denied"), "3:12: test 't' is here twice"),
        (line("denied", more=", groups: ['group:x']"), "2:58: group 'group:x' is written without"),
        (line("denied", more=", groups: [' x']"), "2:58: group ' x' has white space"),
        (line("denied").replace("ana", "' '"), "2:26: principal ' ' is empty"),
        (line("forbidden"), "2:57: expect must be a mapping, found text 'forbidden'"),
        (line("{count: -1}"), "2:65: count must be at least 0"),
        (line("{rows: 5}"), "2:64: rows must be a list"),
        (line("{cuont: 5}"), "2:58: unknown key 'cuont' in expect"),
        ("  - {name: t}\n", "2:5: key 'principal' is missing in test 't'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(test: str, found: str) -> None:
    assert any(each.startswith(found) for each in findings(test)), findings(test)


def test_a_key_is_named_in_any_order_and_case() -> None:
    read_tree(files(line("{rows: [{NUMBER: 1, country: CH}]}", entity="SITE")))


def test_an_entity_that_cannot_be_read_is_told_of_once() -> None:
    broken = {
        **files(line("denied")),
        "entities/customer.yaml": b"name: [",
        "permissions.yaml": b"",
    }
    with pytest.raises(DefinitionError) as refused:
        read_tree(broken)
    assert {each.location.path for each in refused.value.findings} == {
        "entities/customer.yaml",
        "permissions.yaml",
    }


def test_a_key_of_an_entity_that_is_wrong_itself_is_no_crash() -> None:
    wrong = FILES["entities/customer.yaml"].replace(b"[code]", b"[cod]")
    with pytest.raises(DefinitionError, match="cod"):
        read_tree({**files(line("{rows: [a]}")), "entities/customer.yaml": wrong})


def test_a_server_goes_on_with_tests_that_are_wrong() -> None:
    """They only refuse plans, so they take nothing else away; and what goes takes its tests along."""
    definitions, found = read_tree_leniently(files(line("denied", entity="nothing")))
    assert [each.rule for each in found] == ["unknown-entity"]
    assert len(definitions.entities) == 3 and definitions.access_tests.tests == ()
    wrong = {**files(line("denied"), line("denied", entity="log", name="l"))}
    wrong["entities/customer.yaml"] = FILES["entities/customer.yaml"] + b"  - {name: 5}\n"
    wrong["permissions.yaml"] = b"permissions: []\n"
    definitions, _ = read_tree_leniently(wrong)
    assert [test.name for test in definitions.access_tests.tests] == ["l"]
    assert str(definitions.test_places["l"]) == "access-tests.yaml:3:5"


def test_tests_are_part_of_what_definitions_mean() -> None:
    one, other = read_tree(files(line("denied"))), read_tree(files(line("allowed")))
    assert one.content_hash != other.content_hash
    assert read_tree(FILES).content_hash not in (one.content_hash, other.content_hash)


def test_the_canonical_form_orders_keys_and_keeps_comments() -> None:
    text = b"tests:\n  - {expect: denied, name: n, entity: e, principal: p} # why\n"
    assert format_yaml(text, "access-tests.yaml") == (
        "tests:\n  - {name: n, principal: p, entity: e, expect: denied}  # why\n"
    )


# --- what follows from permissions alone ---


def judged(*tests: str) -> list[tuple[str, str]]:
    results = judge_structure(read_tree(files(*tests)), admin_role="chief")
    return [(each.verdict.value, each.message) for each in results]


IN_DACH = ", groups: [dach]"


@pytest.mark.parametrize(
    ("test", "verdict", "message"),
    [
        (line("allowed"), "passed", ""),
        (line("denied"), "failed", "ana may read"),
        (line("denied", more=", action: write"), "passed", ""),
        (line("allowed", more=", action: write"), "failed", "ana may not write"),
        (line("{count: 0}", more=", action: write"), "failed", "ana may not write"),
        (
            line("denied", more=IN_DACH + ", action: write"),
            "failed",
            "ana may write rows where ([code] = 'C1')",
        ),
        (line("{all: true}"), "passed", ""),
        (line("{all: true}", more=IN_DACH), "unchecked", "it asks for rows"),
        (line("{all: true, includes: [C1]}"), "unchecked", "it asks for rows"),
        (line("{count: 1}"), "unchecked", "it asks for rows"),
        (line("{masked: [tax], visible: [code]}"), "passed", ""),
        (
            line("{masked: [code], visible: [tax]}"),
            "failed",
            "column code is shown: it is not classified restricted; "
            + "column tax is masked: viewrestricted is not granted",
        ),
        (
            line("{masked: [tax], count: 1}", more=", groups: [privacy]"),
            "failed",
            "column tax is shown: viewrestricted is granted",
        ),
        (line("{visible: [tax], all: true}", more=", roles: [chief]"), "passed", ""),
        (line("denied", more=", roles: [other], action: admin"), "passed", ""),
    ],
)
def test_permissions_alone_decide(test: str, verdict: str, message: str) -> None:
    assert judged(test) == [(verdict, message)]


def test_results_name_their_place() -> None:
    [one, other] = judge_structure(
        read_tree(files(line("denied"), line("allowed", name="o"))), admin_role="chief"
    )
    assert (one.place, other.place) == ("access-tests.yaml:2:5", "access-tests.yaml:3:5")
    assert (one.name, one.principal, one.entity, one.action.value) == (
        "t",
        "ana",
        "customer",
        "read",
    )


def test_a_principal_that_no_permission_names_is_noticed() -> None:
    tests = [
        line("denied", name="known"),
        line("denied", name="slip").replace("ana", "anna"),
        line("denied", name="member", more=IN_DACH).replace("ana", "eva"),
        line("allowed", name="boss", more=", roles: [chief]").replace("ana", "boss"),
        line("denied", name="key").replace("ana", "'apikey:ana'"),
    ]
    definitions: Definitions = read_tree(files(*tests))
    assert [t.name for t in strangers(definitions, admin_role="chief")] == ["slip", "key"]


def test_an_api_key_is_a_global_admin_if_it_was_made_so() -> None:
    definitions = read_tree(files(line("allowed").replace("ana", "'apikey:root'")))
    [test] = definitions.access_tests.tests

    def state(**keys: bool) -> StoreState:
        made = {
            name.encode(): StoredKey(
                name=name, is_global_admin=admin, expires_at=datetime(2030, 1, 1, tzinfo=UTC)
            )
            for name, admin in keys.items()
        }
        return StoreState(
            revision=1,
            entities={},
            removed=(),
            grants=by_principal(definitions.grants),
            keys=made,
        )

    assert who_asks(test, admin_role="chief", state=state(root=True)).is_global_admin
    assert not who_asks(test, admin_role="chief", state=state(root=False, o=True)).is_global_admin


def test_a_plan_between_commits_judges_without_a_database(tmp_path: Path) -> None:
    root = repository(tmp_path, files(line("denied", more=", action: write")))
    opened = FILES["permissions.yaml"].replace(b"actions: [read]", b"actions: [write]")
    (root / "permissions.yaml").write_bytes(opened)
    told = CliRunner().invoke(main, ["plan", str(root), "--against", "HEAD", "--json"])
    document = json.loads(told.stdout)
    assert [each["code"] for each in document["refusals"]] == ["ACCESS_TEST_FAILED"]
    assert document["access"]["tests"][0]["message"] == "ana may write"
    jsonschema.Draft202012Validator(plan_schema()).validate(document)
