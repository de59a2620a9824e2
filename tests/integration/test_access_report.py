"""Tests of access and who gains rows, as plans say it: against the rows that requests are answered with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import AsyncConnection

from mdm_gitops.access import principal_named
from mdm_gitops.cli import main
from mdm_gitops.data.access_report import inspector
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.errors import NotFound, PlanRefused
from mdm_gitops.model import Definitions
from mdm_gitops.plan.access_report import AccessEffect, Verdict
from mdm_gitops.plan.document_schema import plan_schema
from mdm_gitops.plan.markdown import render_markdown
from mdm_gitops.plan.plan import Plan, RefusalCode
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.plan.text import render_text
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.store import read_state
from mdm_gitops.warehouse.waiting_plans import find_plan, list_plans
from mdm_operator import Reconciler
from mdm_operator.state import Outcome
from tests.conftest import DatabaseMaker
from tests.integration import by_hand
from tests.integration.test_writes import FILES
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio

PERMISSIONS = """
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: ["group:swiss"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[country] = 'CH'"}
  - {users: [ana], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[email] = me() OR [country].[region] = 'AS'"}
  - {users: [wide], domains: [crm], actions: [read, viewrestricted]}
"""
MORE = PERMISSIONS + "  - {users: [more], domains: [crm], actions: [read]}\n"
# C0 is deleted. CH: 1 2 4 5 7 8; JP, in AS: 3 6. Ana's own is C4.
ROWS = [{"code": f"C{n}", "country": "CH" if n % 3 else "JP", "active": True} for n in range(9)]


def test(name: str, who: str, expect: str, more: str = "") -> str:
    return f"  - {{name: {name}, principal: {who}, entity: customer, expect: {expect}{more}}}\n"


test.__test__ = False  # type: ignore[attr-defined]


def definitions(
    tests: str = "", *, permissions: str = PERMISSIONS, files: Mapping[str, bytes] = FILES
) -> Definitions:
    more = {"permissions.yaml": permissions.encode()}
    if tests:
        more["access-tests.yaml"] = b"tests:\n" + tests.encode()
    return read_tree({**files, **more})


@pytest.fixture(scope="module")
def deployed_url(admin: psycopg.Connection[Any], server_url: str, template: str) -> Iterator[str]:
    """A database with definitions and rows, to which nobody is connected; each test has a copy."""
    maker = DatabaseMaker(admin, server_url, template)
    url = maker()
    asyncio.run(_deploy(url))
    yield url
    maker.drop_all()


async def _deploy(url: str) -> None:
    async with await connect(url, application_name="test") as conn:
        await apply(conn, definitions())
        await by_hand.insert(conn, "country", [{"code": "CH"}, {"code": "JP", "region": "AS"}])
        rows = [{**row, "email": "ana" if row["code"] == "C4" else None} for row in ROWS]
        rows[0]["_sys_is_deleted"] = True
        await by_hand.insert(conn, "customer", rows)


@pytest.fixture
def warehouse_url(make_database: DatabaseMaker, deployed_url: str) -> str:
    return make_database.copy_of(deployed_url)


@pytest.fixture
async def warehouse(warehouse_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(warehouse_url, application_name="test") as conn:
        yield conn


async def planned(conn: AsyncConnection[Any], wanted: Definitions, **more: Any) -> Plan:
    settings = more.pop("settings", Settings())
    target = more.pop("target", ())
    inspect = inspector(settings, **more)
    return await make_plan(conn, wanted, schemas=Schemas(), target=target, inspect=inspect)


def verdicts(plan: Plan) -> dict[str, tuple[str, str]]:
    return {each.name: (each.verdict.value, each.message) for each in plan.access.tests}


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
RENAMED = FILES["entities/customer.yaml"].replace(
    b"{name: segment,", b"{name: part, renamedFrom: segment,"
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


# --- who gains and loses ---


def told(plan: Plan) -> dict[tuple[str, str, str], AccessEffect]:
    return {(e.principal, e.entity, e.action.value): e for e in plan.access.effects}


def numbers(effect: AccessEffect) -> tuple[int, ...]:
    assert effect.rows is not None
    rows = effect.rows
    return (rows.before, rows.after, rows.gained, rows.lost, rows.total)


async def test_a_plan_counts_who_gains_and_loses_rows(warehouse: AsyncConnection[Any]) -> None:
    after = (
        PERMISSIONS.replace("\"[country] = 'CH'\"", "\"[code] IN ('C1', 'C3')\"")
        .replace("[wide]", "[other]")
        .replace("[country].[region] = 'AS'", "[country].[region] = 'EU'")
    )
    wanted = definitions(permissions=after)
    plan = await planned(warehouse, wanted)
    effects = told(plan)
    assert {key: numbers(e) for key, e in effects.items() if e.rows} == {
        ("group:swiss", "customer", "read"): (6, 2, 1, 5, 8),
        ("group:swiss", "customer", "write"): (6, 2, 1, 5, 8),
        ("ana", "customer", "read"): (3, 6, 5, 2, 8),
        ("wide", "customer", "read"): (8, 0, 0, 8, 8),
        ("other", "customer", "read"): (0, 8, 8, 0, 8),
    }
    assert not effects["wide", "customer", "viewrestricted"].has
    assert effects["other", "customer", "viewrestricted"].has
    assert plan.access.uncounted == 0
    text = " ".join(render_text(plan, colour=False, width=100).split())
    assert "group:swiss · customer: read, write gains 1, loses 5 of 8 rows" in text
    assert "wide · customer: read may no longer: 8 of 8 rows" in text
    page = render_markdown(plan)
    assert "| `ana` | `customer` | read | gains 5, loses 2 of 8 rows" in page
    cut = await planned(warehouse, wanted, max_pairs=1)
    assert (len({e.principal for e in cut.access.effects}), cut.access.uncounted) == (1, 3)
    assert "3 further pairs of principal and entity or more: not counted" in render_text(
        cut, colour=False, width=100
    )
    unasked = await planned(warehouse, wanted, effects=False)
    assert unasked.access.effects == () and unasked.plan_id == plan.plan_id


async def test_an_entity_that_opens_or_moves_changes_what_people_reach(
    warehouse: AsyncConnection[Any],
) -> None:
    restricted = FILES["entities/customer.yaml"].replace(
        b"domain: crm\n", b"domain: crm\naccess: {mode: restricted}\n"
    )
    plan = await planned(
        warehouse, definitions(files={**FILES, "entities/customer.yaml": restricted})
    )
    assert {key: numbers(e) for key, e in told(plan).items() if e.rows} == {
        ("root", "customer", "read"): (8, 0, 0, 8, 8),
        ("root", "customer", "write"): (8, 0, 0, 8, 8),
        ("root", "customer", "approve"): (8, 0, 0, 8, 8),
        ("wide", "customer", "read"): (8, 0, 0, 8, 8),
    }


async def test_what_the_plan_itself_takes_away_or_nobody_may_count_is_told_so(
    warehouse: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: data for path, data in FILES.items() if "customer" not in path}
    gone = [each for each in PERMISSIONS.splitlines() if "customer" not in each]
    gone = [each for each in gone if "rowFilterDsl" not in each]
    plan = await planned(warehouse, definitions(permissions="\n".join(gone), files=files))
    assert not [key for key in told(plan) if key[1] == "customer"]  # the entity goes, with its rows
    # Where the tier has no row filters, a filter leaves nothing.
    after = PERMISSIONS.replace('"[email] = me() OR', '"[_sys_created_by] = me() OR')
    community = await planned(
        warehouse, definitions(permissions=after), settings=Settings(Tier="Community")
    )
    assert numbers(told(community)["ana", "customer", "read"]) == (0, 0, 0, 0, 8)
    plan = await planned(warehouse, definitions(permissions=after))
    assert numbers(told(plan)["ana", "customer", "read"]) == (3, 2, 0, 1, 8)
    monkeypatch.setattr("mdm_gitops.data.access_effects._BUDGET_S", -1.0)
    late = await planned(warehouse, definitions(permissions=after))
    assert told(late)["ana", "customer", "read"].reason == "counting took too long"


async def test_a_warehouse_without_a_store_has_nothing_to_judge_by(
    empty_database_url: str,
) -> None:
    async with await connect(empty_database_url, application_name="test") as conn:
        plan = await planned(conn, definitions(test("rows", "wide", "{rows: [C1]}")))
    assert verdicts(plan) == {"rows": ("unchecked", "customer is not deployed yet")}
    assert plan.access.effects == ()


async def test_a_table_that_somebody_changed_by_hand_is_drift_and_no_failure(
    warehouse: AsyncConnection[Any],
) -> None:
    """The plan that sets it right must not fail on the way."""
    await warehouse.execute("ALTER TABLE mdm_data.customer DROP COLUMN email CASCADE")
    wanted = definitions(test("one", "ana", "{count: 3}"), permissions=MORE.replace("AS'", "EU'"))
    plan = await planned(warehouse, wanted)
    assert plan.drift and not plan.refusals
    assert verdicts(plan)["one"] == ("unchecked", "its table is not as it was deployed")
    effects = told(plan)
    assert effects["ana", "customer", "read"].reason == "its table is not as it was deployed"


async def test_an_effect_over_columns_to_come_says_so(warehouse: AsyncConnection[Any]) -> None:
    after = PERMISSIONS.replace("\"[country] = 'CH'\"", '"[part] IS NULL"')
    files = {**FILES, "entities/customer.yaml": RENAMED}
    plan = await planned(warehouse, definitions(permissions=after, files=files))
    effect = told(plan)["group:swiss", "customer", "read"]
    assert effect.rows is None and "not deployed yet" in effect.reason
    assert "other rows (its row filter" in render_text(plan, colour=False, width=120)


async def test_a_plan_without_tests_and_with_the_same_grants_asks_nothing_more(
    warehouse: AsyncConnection[Any],
) -> None:
    inspect, asked = inspector(Settings()), []

    async def watched(conn: Any, drafted: Any, *, schemas: Schemas) -> Any:
        execute, conn.execute = conn.execute, None  # whatever asks, fails
        try:
            report = await inspect(conn, drafted, schemas=schemas)
        finally:
            conn.execute = execute
        asked.append(report)
        return report

    await make_plan(warehouse, definitions(), schemas=Schemas(), inspect=watched)
    assert len(asked) == 1 and asked[0].tests == ()


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


ON_CUSTOMER = "{{users: [ana], domains: [crm], entities: [customer], {}}}"
VARIANTS = (
    "{users: [ana], domains: [crm], actions: [read]}",
    "{users: [ana], domains: [ref], actions: [read]}",
    ON_CUSTOMER.format("actions: [write], rowFilterDsl: \"[country] = 'CH'\""),
    ON_CUSTOMER.format(
        "actions: [read], rowFilterDsl: \"[country].[region] = 'AS' OR [email] = me()\""
    ),
    # Null for all rows but one, for which it is false: nobody is reached.
    ON_CUSTOMER.format("actions: [read], rowFilterDsl: \"[email] <> 'ana'\""),
)


async def test_what_is_gained_and_lost_is_what_lists_show_before_and_after(
    warehouse: AsyncConnection[Any],
) -> None:
    sides = [definitions(permissions=f"permissions:\n  - {each}\n") for each in VARIANTS]
    shown = []
    for side in sides:
        await by_hand.set_grants(warehouse, side)
        shown.append(await listed(warehouse, "ana"))
    assert [len(rows) for rows in shown] == [8, 0, 6, 3, 0]
    for before, had in zip(sides, shown, strict=True):
        await by_hand.set_grants(warehouse, before)
        for after, has in zip(sides, shown, strict=True):
            found = told(await planned(warehouse, after)).get(("ana", "customer", "read"))
            expected = (len(had), len(has), len(has - had), len(had - has), 8)
            assert (numbers(found) if found else None) == (expected if before != after else None)


async def listed(conn: AsyncConnection[Any], name: str) -> set[str]:
    """Return the keys of the customers that a list shows *name*; none where it is refused."""
    state = await read_state(conn, schemas=Schemas())
    asking = Asking(
        principal=principal_named(name), state=state, schemas=Schemas(), now=datetime.now(UTC)
    )
    try:
        page = await list_rows(conn, asking=asking, entity="customer", request=ListRequest())
    except NotFound:
        return set()
    return {json.loads(row)["code"] for row in page.rows}
