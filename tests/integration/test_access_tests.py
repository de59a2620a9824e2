"""Access tests: what a plan, an apply, the operator and a command say of who reaches which rows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from psycopg import AsyncConnection

from mdm_gitops.access import principal_named
from mdm_gitops.cli import main
from mdm_gitops.data.access_report import inspector
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.errors import PlanRefused
from mdm_gitops.plan.access_report import Verdict
from mdm_gitops.plan.document_schema import plan_schema
from mdm_gitops.plan.plan import RefusalCode
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from mdm_gitops.warehouse.waiting_plans import find_plan, list_plans
from mdm_operator import Reconciler
from mdm_operator.state import Outcome
from tests.support import access_lab, by_hand
from tests.support.access_lab import (
    MORE,
    PERMISSIONS,
    RENAMED,
    definitions,
    planned,
    test,
    verdicts,
)
from tests.support.customers import FILES
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
warehouse_url, warehouse = access_lab.warehouse_url, access_lab.warehouse


async def test_a_test_holds_or_says_what_is_otherwise(warehouse: AsyncConnection[Any]) -> None:
    swiss = ", groups: [swiss]"
    tests = {
        "exact": test("exact", "eva", "{rows: [C1, C2, C4, C5, C7, C8]}", swiss),
        "too few": test("too few", "eva", "{rows: [C1, C2]}", swiss),
        "other": test("other", "eva", "{rows: [C1, C2, C3, C5, C7, C8]}", swiss),
        "counted": test("counted", "eva", "{count: 6}", swiss + ", action: write"),
        "miscounted": test("miscounted", "eva", "{count: 1}", swiss),
        "in and out": test("in and out", "eva", "{includes: [C1], excludes: [C3]}", swiss),
        "swapped": test("swapped", "eva", "{includes: [C3, C99], excludes: [C1]}", swiss),
        "gone": test("gone", "eva", "{excludes: [C0, C99]}", swiss),
        "deleted": test("deleted", "wide", "{includes: [C0]}"),
        "mine": test("mine", "ana", "{rows: [C3, C4, C6]}"),
        "all": test("all", "wide", "{all: true, visible: [salary, email]}"),
        "all and one": test("all and one", "wide", "{all: true, includes: [C1]}"),
        "not all": test("not all", "eva", "{all: true, masked: [salary]}", swiss),
        "unmasked": test("unmasked", "wide", "{masked: [salary, email]}"),
        "masked": test("masked", "eva", "{visible: [salary]}", swiss),
        "stranger": test("stranger", "eva", "denied"),
        "not a stranger": test("not a stranger", "eva", "denied", swiss),
        "no row without the action": test("no row without the action", "eva", "{count: 0}"),
        "may": test("may", "wide", "allowed", ", action: viewrestricted"),
        "may not": test("may not", "eva", "allowed", swiss + ", action: approve"),
        "chief": test("chief", "boss", "{all: true, visible: [salary]}", ", roles: [mdm-admin]"),
        "the group itself": test("the group itself", '"group:swiss"', "{count: 6}"),
    }
    plan = await planned(warehouse, definitions("".join(tests.values())))
    assert plan.is_empty and len(plan.access.tests) == len(tests)
    assert verdicts(plan) == {
        "exact": ("passed", ""),
        "too few": ("failed", "4 rows more than expected are reached"),
        "other": ("failed", "row 'C3' is not reached; 1 row more than expected is reached"),
        "counted": ("passed", ""),
        "miscounted": ("failed", "6 rows reached, 1 expected"),
        "in and out": ("passed", ""),
        "swapped": (
            "failed",
            "there is no row 'C99'; row 'C3' is not reached; row 'C1' is reached",
        ),
        "gone": ("passed", "there is no row 'C0', 'C99', so nothing was hidden"),
        "deleted": ("failed", "there is no row 'C0'"),
        "mine": ("passed", ""),
        "all": ("passed", ""),
        "all and one": ("passed", ""),
        "not all": ("failed", "6 of 8 rows reached, all expected"),
        "unmasked": (
            "failed",
            "column salary is shown: viewrestricted is granted; "
            + "column email is shown: it is not classified restricted",
        ),
        "masked": ("failed", "column salary is masked: viewrestricted is not granted"),
        "stranger": ("passed", ""),
        "not a stranger": ("failed", "eva may read rows where ([country] = 'CH')"),
        "no row without the action": ("failed", "eva may not read"),
        "may": ("passed", ""),
        "may not": ("failed", "eva may not approve"),
        "chief": ("passed", ""),
        "the group itself": ("passed", ""),
    }


async def test_a_test_reaches_what_a_list_shows(warehouse: AsyncConnection[Any]) -> None:
    """The rows of each list make a test that holds; with one more or one less it does not."""
    state = await read_state(warehouse, schemas=Schemas())
    tests, expected = [], {}
    people = [("root", ()), ("eva", ("swiss",)), ("ana", ()), ("ana", ("swiss",)), ("wide", ())]
    for number, (name, groups) in enumerate(people):
        who = principal_named(name, groups=groups)
        asking = Asking(principal=who, state=state, schemas=Schemas(), now=datetime.now(UTC))
        page = await list_rows(warehouse, asking=asking, entity="customer", request=ListRequest())
        shown = [json.loads(row)["code"] for row in page.rows]
        assert shown  # else the test below would be about nothing
        belongs = f", groups: {list(groups)}"
        for kind, keys in (("same", shown), ("less", shown[1:]), ("more", [*shown, "C77"])):
            expected[f"{kind} {number}"] = "passed" if kind == "same" else "failed"
            tests.append(test(f"{kind} {number}", name, f"{{rows: {keys}}}", belongs))
    plan = await planned(warehouse, definitions("".join(tests)))
    assert {name: verdict for name, (verdict, _) in verdicts(plan).items()} == expected


async def test_a_failing_test_refuses_the_apply_unless_somebody_allows_it(
    warehouse: AsyncConnection[Any],
) -> None:
    opened = PERMISSIONS.replace("\"[country] = 'CH'\"", '"[active] = true"')
    wanted = definitions(
        test("swiss only", "eva", "{excludes: [C3]}", ", groups: [swiss]"), permissions=opened
    )

    async def attempt(*allow: str) -> None:
        await apply_plan(
            warehouse,
            wanted,
            None,
            schemas=Schemas(),
            actor="user:test",
            approved=True,
            allowances=[Allowance.parse(each) for each in allow],
            inspect=inspector(Settings(), effects=False),
        )

    with pytest.raises(PlanRefused, match=r"'swiss only' fails: row 'C3' is reached \(access-t"):
        await attempt()
    with pytest.raises(PlanRefused):
        await attempt("ACCESS_TEST_FAILED:country")
    before = await read_state(warehouse, schemas=Schemas())
    assert before.grants["group:swiss"][0].row_filter == "[country] = 'CH'"
    await attempt("ACCESS_TEST_FAILED:customer")
    after = await read_state(warehouse, schemas=Schemas())
    assert after.grants["group:swiss"][0].row_filter == "[active] = true"
    # What was allowed once is told by each later plan, until it is set right.
    plan = await planned(warehouse, wanted)
    assert plan.is_empty and [r.code for r in plan.refusals] == [RefusalCode.ACCESS_TEST_FAILED]


CHANGED = FILES["entities/customer.yaml"].replace(
    b"{name: rank, dataType: int", b"{name: rank, dataType: long"
)
REKEYED = (
    FILES["entities/customer.yaml"]
    .replace(b"keyColumns: [code]", b"keyColumns: [email]")
    .replace(
        b"{name: email, dataType: string}", b"{name: email, dataType: string, nullable: false}"
    )
)


@pytest.mark.parametrize(
    ("files", "row_filter", "expect", "reason"),
    [
        ({"entities/customer.yaml": CHANGED}, "[rank] = 7", "{count: 8}", "changes column rank"),
        ({"entities/customer.yaml": CHANGED}, "[country] = 'CH'", "{count: 6}", ""),
        ({"entities/customer.yaml": RENAMED}, "[part] IS NULL", "{count: 8}", "not deployed yet"),
        (
            {"seed/country.json": b'[{"code": "JP", "region": "EU"}]'},
            "[country].[region] = 'AS'",
            "{count: 2}",
            "writes rows of country",
        ),
        (
            {"seed/country.json": b'[{"code": "JP", "region": "EU"}]'},
            "[active] = true",
            "{count: 8}",
            "",
        ),
        (
            {"entities/customer.yaml": REKEYED},
            "[country] = 'CH'",
            "{includes: [ana], excludes: [{email: otto}]}",
            "",
        ),
    ],
    ids=["retyped", "retyped beside", "renamed", "seeded", "seeded beside", "another key"],
)
async def test_what_only_the_apply_brings_is_not_judged_before(
    warehouse: AsyncConnection[Any],
    files: dict[str, bytes],
    row_filter: str,
    expect: str,
    reason: str,
) -> None:
    permissions = f"{PERMISSIONS}  - {{users: [new], domains: [crm], entities: [customer],"
    permissions += f' actions: [read], rowFilterDsl: "{row_filter}"}}\n'
    wanted = definitions(
        test("one", "new", expect), permissions=permissions, files={**FILES, **files}
    )
    verdict, message = verdicts(await planned(warehouse, wanted))["one"]
    assert (verdict, reason in message) == ("unchecked" if reason else "passed", True)


async def test_the_first_plan_judges_what_needs_no_rows_and_the_next_the_rest(
    conn: AsyncConnection[Any],
) -> None:
    tests = test("rows", "eva", "{count: 0}", ", groups: [swiss]") + test("none", "eva", "denied")
    wanted = definitions(tests)
    first = verdicts(await planned(conn, wanted))
    assert first == {"rows": ("unchecked", "customer is not deployed yet"), "none": ("passed", "")}
    await apply(conn, wanted)
    assert verdicts(await planned(conn, wanted))["rows"] == ("passed", "")


async def test_a_targeted_plan_judges_its_entity_under_the_permissions_that_stay(
    warehouse: AsyncConnection[Any],
) -> None:
    tests = test("mine", "ana", "denied") + (
        "  - {name: other, principal: ana, entity: country, expect: denied}\n"
    )
    wanted = definitions(tests, permissions=PERMISSIONS.replace("[ana]", "[otto]"))
    everything = await planned(warehouse, wanted)
    assert {each.verdict for each in everything.access.tests} == {Verdict.PASSED}
    customer = await planned(warehouse, wanted, target=["customer"])
    assert list(verdicts(customer)) == ["mine"] and verdicts(customer)["mine"][0] == "failed"
    access = await planned(warehouse, wanted, target=["@access"])
    assert {each.verdict for each in access.access.tests} == {Verdict.PASSED}


async def test_a_tier_without_row_filters_and_a_slow_count_fail_a_test(
    warehouse: AsyncConnection[Any], warehouse_url: str
) -> None:
    wanted = definitions(test("one", "ana", "{count: 3}"))
    community = await planned(warehouse, wanted, settings=Settings(Tier="Community"))
    assert verdicts(community)["one"][0] == "failed"
    async with await connect(warehouse_url, application_name="test") as other, other.transaction():
        await other.execute("LOCK mdm_data.customer IN ACCESS EXCLUSIVE MODE")
        slow = await planned(
            warehouse,
            replace(wanted, permissions=definitions(permissions=MORE).permissions),
            statement_timeout_s=0.2,
        )
    assert verdicts(slow)["one"] == ("failed", "its rows could not be counted in time")
    [effect] = slow.access.effects
    assert effect.rows is None and effect.reason == "counting took too long"


# --- the commands ---


@pytest.fixture
def folder(
    warehouse_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    monkeypatch.setenv("Mdm__Database__Url", warehouse_url)
    tests = test("rows", "eva", "{count: 6}", ", groups: [swiss]") + test("none", "evi", "denied")
    write(tmp_path, tests)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


async def test_validate_judges_by_the_permissions_and_with_live_by_the_rows(folder: Path) -> None:
    told = await asyncio.to_thread(run, "validate", str(folder))
    assert told.exit_code == 0
    assert "access tests: 1 passed, 0 failed, 1 not judged" in told.stderr
    assert "access-tests.yaml:3:5: no permission names evi, so it can only be denied" in told.stderr
    live = await asyncio.to_thread(run, "validate", str(folder), "--live", "--json")
    found = json.loads(live.stdout)
    assert live.exit_code == 0 and len(found["warnings"]) == 1
    assert [each["verdict"] for each in found["accessTests"]] == ["passed", "passed"]
    file = folder / "access-tests.yaml"
    file.write_text(file.read_text().replace("count: 6", "count: 7"))
    failed = await asyncio.to_thread(run, "validate", str(folder), "--live")
    assert failed.exit_code == 1
    assert failed.stdout.startswith(
        f"{folder}/access-tests.yaml:2:5: access test 'rows' fails: 6 rows reached, 7 expected"
    )
    file.write_text(file.read_text().replace("evi,", "wide,"))
    structural = await asyncio.to_thread(run, "validate", str(folder), "--json")
    found = json.loads(structural.stdout)
    assert structural.exit_code == 1 and not found["valid"]
    assert found["findings"][0]["message"] == "access test 'none' fails: wide may read"


async def test_plan_and_apply_respect_a_failing_test(
    folder: Path, warehouse: AsyncConnection[Any]
) -> None:
    file = folder / "access-tests.yaml"
    file.write_text(file.read_text().replace("count: 6", "count: 7"))
    told = await asyncio.to_thread(run, "plan", str(folder), "--detailed-exitcode", "--json")
    document = json.loads(told.stdout)
    assert told.exit_code == 3 and document["is_blocked"] and document["is_empty"]
    jsonschema.Draft202012Validator(plan_schema()).validate(document)
    assert {each["name"]: each["verdict"] for each in document["access"]["tests"]} == {
        "rows": "failed",
        "none": "passed",
    }
    shown = await asyncio.to_thread(run, "plan", str(folder))
    assert (
        "ACCESS_TEST_FAILED" in shown.stdout and "Access tests: 1 passed, 1 failed" in shown.stdout
    )
    refused = await asyncio.to_thread(run, "apply", str(folder), "--auto-approve", "--json")
    assert refused.exit_code == 3
    assert json.loads(refused.stdout)["error"]["code"] == "PLAN_REFUSED"
    allow = ["--allow", "ACCESS_TEST_FAILED:customer"]
    allowed = await asyncio.to_thread(run, "apply", str(folder), "--auto-approve", *allow)
    assert allowed.exit_code == 0
    # A row more is a test that holds.
    await by_hand.insert(warehouse, "customer", [{"code": "C10", "country": "CH", "active": True}])
    again = await asyncio.to_thread(run, "plan", str(folder), "--detailed-exitcode")
    assert again.exit_code == 0 and "Access tests: 2 passed" in again.stdout


async def test_the_operator_judges_before_it_applies_and_after(
    database_url: str, tmp_path: Path
) -> None:
    """The rows of a first deployment are there only after it; the run that follows judges them."""
    write(tmp_path, test("seeded", "wide", "{rows: [C1]}") + test("none", "eva", "denied"))
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed/customer.json").write_text('[{"code": "C1"}, {"code": "C2"}]')
    reconciler = Reconciler(tmp_path, url=database_url, settings=Settings(), approve_first=True)
    try:
        assert await outcome(reconciler) is Outcome.APPLIED
        assert await outcome(reconciler) is Outcome.BLOCKED
        assert "'seeded' fails: 1 row more than expected" in reconciler.state.history[0].message
        write(tmp_path, test("seeded", "wide", "{rows: [C1, C2]}") + test("none", "eva", "denied"))
        assert await outcome(reconciler) is Outcome.IN_SYNC
        # A permission that breaks a test is not put into effect.
        opened = PERMISSIONS + "  - {users: [eva], domains: [crm], actions: [read]}\n"
        (tmp_path / "permissions.yaml").write_text(opened)
        assert await outcome(reconciler) is Outcome.BLOCKED
        async with await connect(database_url, application_name="test") as conn:
            assert "eva" not in (await read_state(conn, schemas=Schemas())).grants
    finally:
        await reconciler.aclose()


async def test_a_plan_that_waits_for_a_domain_speaks_of_no_other_domains_tests(
    warehouse: AsyncConnection[Any], warehouse_url: str, tmp_path: Path
) -> None:
    other = "  - {name: of country, principal: eva, entity: country, expect: denied}\n"
    write(tmp_path, test("of customer", "wide", "{count: 8}") + other)
    country = FILES["entities/country.yaml"] + b"  - {name: more, dataType: string}\n"
    (tmp_path / "entities/country.yaml").write_bytes(country)
    settings = Settings.model_validate({"Operator": {"Mode": "plan-only"}})
    reconciler = Reconciler(tmp_path, url=warehouse_url, settings=settings)
    try:
        assert await outcome(reconciler) is Outcome.APPROVAL_PENDING
    finally:
        await reconciler.aclose()
    [line] = await list_plans(warehouse, schemas=Schemas())
    waiting = await find_plan(warehouse, line.plan_id, schemas=Schemas())
    assert waiting.document is not None and not waiting.is_wider
    assert [each["name"] for each in waiting.document["access"]["tests"]] == ["of country"]


async def outcome(reconciler: Reconciler) -> Outcome:
    run = await reconciler.step()
    assert run is not None
    return run.outcome


def write(folder: Path, tests: str) -> None:
    files = {**FILES, "permissions.yaml": PERMISSIONS.encode()}
    files["access-tests.yaml"] = b"tests:\n" + tests.encode()
    for path, data in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)


SITE = b"""
name: site
domain: crm
keyColumns: [country, opened, size]
columns:
  - {name: country, dataType: string, nullable: false}
  - {name: opened, dataType: date, nullable: false}
  - {name: size, dataType: decimal, precision: 8, scale: 2, nullable: false}
"""


async def test_a_key_of_several_columns_is_compared_by_its_types(
    conn: AsyncConnection[Any],
) -> None:
    key = "{{country: CH, opened: 2026-03-01, size: {}}}"
    keys = {"equal": "1.5", "equal too": "1.50", "other": "1.504"}
    tests = "".join(
        f"  - {{name: {name}, principal: wide, entity: site,"
        f" expect: {{includes: [{key.format(size)}]}}}}\n"
        for name, size in keys.items()
    )
    wanted = definitions(tests, files={**FILES, "entities/site.yaml": SITE})
    await apply(conn, wanted)
    await by_hand.insert(conn, "site", [{"country": "CH", "opened": "2026-03-01", "size": "1.5"}])
    found = {name: verdict for name, (verdict, _) in verdicts(await planned(conn, wanted)).items()}
    assert found == {"equal": "passed", "equal too": "passed", "other": "failed"}
