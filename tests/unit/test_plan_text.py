"""The plan as a person reads it in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mdm_gitops.model import ChangeClass, Policy
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.access_report import AccessReport
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.plan import DriftItem, DriftKind, Lock, Plan, Refusal, RefusalCode
from mdm_gitops.plan.proof import Proof, ProofState
from mdm_gitops.plan.text import render_text
from tests.unit.plan_changes import CHANGES
from tests.unit.plan_samples import access_report, customer_hub_plan, plan, webhook

GOLDEN = Path(__file__).with_name("plan_customer_hub.txt")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def shown(value: Plan, *, width: int = 100, policy: Policy | None = None) -> str:
    return render_text(value, colour=False, width=width, policy=policy)


def test_an_edit_of_customer_hub_reads_like_this() -> None:
    assert shown(customer_hub_plan()) == GOLDEN.read_text(encoding="utf-8")


def test_colour_adds_nothing_but_colour() -> None:
    coloured = render_text(customer_hub_plan(), colour=True, width=100)
    assert coloured != shown(customer_hub_plan())
    plain = [line.rstrip() for line in _ANSI.sub("", coloured).splitlines()]
    assert plain == shown(customer_hub_plan()).splitlines()


@pytest.mark.parametrize("width", [1, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(customer_hub_plan(), width=width).splitlines()
    assert max(map(len, lines)) <= max(width, 40)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_word_is_lost_in_a_narrow_terminal(width: int) -> None:
    def letters(text: str) -> str:
        return "".join(sorted(re.sub(r"[\s·]", "", text)))  # the dot only joins

    assert letters(shown(customer_hub_plan(), width=width)) == letters(shown(customer_hub_plan()))


def test_an_empty_plan_says_so_in_one_line() -> None:
    assert shown(plan([])) == (
        "customer-hub @ 4f1c2ab: nothing to do, the warehouse is what Git says (6 entities compared)\n"
    )


def test_an_empty_plan_of_a_plain_folder_that_has_one_entity() -> None:
    assert shown(plan([], base_commit=None, entities_total=1)) == (
        "customer-hub: nothing to do, the warehouse is what Git says (1 entity compared)\n"
    )


def test_what_is_not_ours_is_shown_even_if_there_is_nothing_to_do() -> None:
    item = DriftItem(
        kind=DriftKind.STRANGE, entity="", object="table x", message="was added by hand"
    )
    assert shown(plan([], drift=(item,), notes=("look here",))).splitlines()[1:] == [
        "",
        "Drift: changed by hand; what Git asks for is set right, what is not ours is left alone",
        "  not ours  table x was added by hand",
        "",
        "Notes",
        "  look here",
    ]


def test_a_plan_that_is_refused_without_a_change() -> None:
    refusal = Refusal(
        code=RefusalCode.RENAME_UNMATCHED,
        entity="customer",
        message="renamedFrom: client matches nothing",
        hint="did you mean 'clients'?",
    )
    assert shown(plan([], refusals=(refusal,))).splitlines()[1:] == [
        "",
        "Refused: nothing is applied while these stand",
        "  RENAME_UNMATCHED  renamedFrom: client matches nothing",
        "                    hint: did you mean 'clients'?",
        "",
        "Plan: no change; 1 refused",
    ]


def test_a_refusal_may_have_nothing_to_hint_at() -> None:
    refused = Refusal(code=RefusalCode.LAST_ADMIN, entity="", message="nobody could do it again")
    assert shown(plan([], refusals=(refused, refused))).splitlines()[3:6] == [
        "  LAST_ADMIN  nobody could do it again",
        "  LAST_ADMIN  nobody could do it again",
        "",
    ]


def test_who_gains_and_loses_and_what_the_tests_of_access_say() -> None:
    text = shown(plan([CHANGES["add-column"]], access=access_report()))
    assert text[text.index("Who gains") :].splitlines() == [
        "Who gains and loses: active rows as they are now",
        "  ana · customer: read           gains 3 of 9 rows (5 before, 8 after)",
        "  group:buyers · product: write  may now",
        "  4 further pairs of principal and entity or more: not counted",
        "",
        "Access tests: 1 passed, 1 failed, 1 not checkable before the apply",
        "  failed     no secrets: ana sees [x] (access-tests.yaml:3:1)",
        "  unchecked  new rows: not there",
        "",
        "Plan: 1 to change",
    ]


def test_tests_of_access_that_all_hold_are_one_line() -> None:
    held = AccessReport(tests=access_report().tests[:1])
    text = shown(plan([CHANGES["add-column"]], access=held))
    assert text.endswith("\n\nAccess tests: 1 passed\n\nPlan: 1 to change\n")
    assert "Who gains" not in text


@pytest.mark.parametrize(
    ("proof", "lines"),
    [
        (
            Proof(state=ProofState.PROVEN, place="a copy", steps=2, statements=1, relations=3),
            [
                (
                    "Proof: carried out on a copy: 2 steps with 1 statement ran, 3 relations came out as"
                    " the definitions ask for, a second plan is empty"
                )
            ],
        ),
        (
            Proof(state=ProofState.FAILED, place="a copy", problems=("no [b]x[/b]\x1b",)),
            [
                "Proof: carried out on a copy, this plan does not lead where it should",
                "  no [b]x[/b]\\x1b",
            ],
        ),
    ],
)
def test_a_proof_is_told_with_its_problems(proof: Proof, lines: list[str]) -> None:
    text = render_text(plan([]), colour=False, width=200, proof=proof)
    assert text[text.index("Proof") :].splitlines() == lines


def test_what_people_wrote_cannot_draw_on_the_screen() -> None:
    evil = c.AddWebhook(webhook=webhook(name="[bold]x[/bold]\x1b[2J\u202e:smile:"))
    text = shown(plan([evil], project="a\nb\x07"))
    assert "a\\nb\\x07 @ 4f1c2ab" in text
    assert "[bold]x[/bold]\\x1b[2J\\u202e:smile:" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


def test_the_policy_decides_what_wants_a_yes() -> None:
    value = plan([CHANGES["rename-column"]])
    breaking = Policy(auto_apply=(ChangeClass.SAFE, ChangeClass.BREAKING))
    assert "--allow RENAMES_COLUMN:customer" in shown(value)
    assert "--allow" not in shown(value, policy=breaking)


def test_a_long_list_of_the_same_hazard_is_cut() -> None:
    text = shown(plan([CHANGES["rename-column"]] * 8))
    assert text.count("programs that name column phone") == 5
    assert "and 3 more" in text


@dataclass(frozen=True)
class Statement:
    sql: str
    lock: Lock = Lock.ACCESS_EXCLUSIVE
    scans: bool = False
    transactional: bool = True


@dataclass(frozen=True)
class Step:
    phase: Phase
    title: str
    statements: Sequence[Statement]


@dataclass(frozen=True)
class Script:
    steps: Sequence[Step]


def test_explaining_shows_the_statements_and_what_only_follows() -> None:
    index = "CREATE UNIQUE INDEX CONCURRENTLY " + "x" * 80
    script = Script(
        steps=(
            Step(
                Phase.FLIP,
                "brief changes",
                (Statement("ALTER TABLE a\n  RENAME TO b;"), Statement("SELECT 1")),
            ),
            Step(
                Phase.ENFORCE,
                "build an index",
                (Statement(index, Lock.SHARE_UPDATE_EXCLUSIVE, scans=True, transactional=False),),
            ),
            Step(Phase.SEED, "rows", (Statement("INSERT '\x1b'", Lock.NONE),)),
        )
    )
    text = render_text(
        plan([CHANGES["rename-object index"]]), colour=False, width=80, explain=script
    )
    assert "  » index customer__uq_a → customer__uq_b\n      follows the rename\n" in text
    assert text[text.index("Steps") :].splitlines() == [
        "Steps",
        "1/3 brief changes | flip | one transaction | ACCESS EXCLUSIVE",
        "    ALTER TABLE a",
        "      RENAME TO b;",
        "    SELECT 1",
        "    if it fails: nothing of it stays",
        "2/3 build an index | enforce | autocommit | SHARE UPDATE EXCLUSIVE | scan",
        f"    {index}",
        "    if it fails: what was done stays, new rows already obey; the next apply goes",
        "    on",
        "3/3 rows | seed | one transaction | no lock",
        "    INSERT '\\x1b'",
        "    if it fails: no row of this step is written; the next apply goes on",
    ]


def test_a_statement_that_writes_a_whole_document_is_cut() -> None:
    step = Step(Phase.FLIP, "record", (Statement("x" * 500),))
    text = render_text(plan([]), colour=False, width=80, explain=Script(steps=(step,)))
    assert f"\n    {'x' * 400}… (cut)\n" in text


def test_a_statement_of_many_lines_is_cut() -> None:
    seed = Statement("\n".join(f"row {number}" for number in range(2_013)))
    step = Step(Phase.SEED, "rows", (seed,))
    text = render_text(plan([]), colour=False, width=80, explain=Script(steps=(step,)))
    assert "\n    row 11\n    … 2,001 more lines\n" in text
    assert "row 12" not in text


def test_importing_it_does_not_load_rich() -> None:
    code = "import sys, mdm_gitops.plan.text; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
