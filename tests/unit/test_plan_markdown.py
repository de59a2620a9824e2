"""The plan as a comment on a pull request: complete, escaped, and never too long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdm_gitops.model import ChangeClass, Policy
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.access_report import AccessReport
from mdm_gitops.plan.markdown import MAX_LENGTH, code, escape, marker, render_markdown
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.plan import Plan, Refusal, RefusalCode
from mdm_gitops.plan.proof import Proof, ProofState
from tests.unit.plan_changes import CHANGES, check
from tests.unit.plan_samples import access_report, customer_hub_plan, plan, rule, webhook

GOLDEN = Path(__file__).with_name("plan_customer_hub.md.txt")
EVIL = "@all #1 https://evil.example www.evil.example | `x` <b> </details> *a* [a](b) -->\n\n# x"


def test_an_edit_of_customer_hub_reads_like_this() -> None:
    sql = "BEGIN;\nALTER TABLE customer RENAME COLUMN phone TO telephone;\nCOMMIT;\n"
    assert render_markdown(customer_hub_plan(), sql=sql) == GOLDEN.read_text(encoding="utf-8")


def test_an_empty_plan() -> None:
    assert render_markdown(plan([])) == (
        "<!-- mdm-gitops plan customer-hub -->\n\n"
        "### Plan for `customer-hub`\n\n"
        "✅ **No changes**: the warehouse is what Git says (6 entities compared)\n\n"
        "<sub>plan `0f3a6c1be2d4958817aa` · base commit `4f1c2ab9d0e7` ·"
        " live fingerprint `9b3e1d0744aa`</sub>\n"
    )


REFUSED = (Refusal(code=RefusalCode.LAST_ADMIN, entity="", message="no"),)
VERDICTS = [
    (plan([CHANGES["add-column"]]), "✅ **Ready**"),
    (plan([CHANGES["rename-column"]]), "⚠️ **Wants a yes**"),
    (plan([CHANGES["add-column"]], refusals=REFUSED), "⛔ **Blocked**"),
    (plan([], refusals=REFUSED), "⛔ **Blocked**"),
]


@pytest.mark.parametrize(("value", "verdict"), VERDICTS)
def test_the_verdict_is_the_third_paragraph(value: Plan, verdict: str) -> None:
    paragraphs = render_markdown(value).split("\n\n")
    assert paragraphs[2].startswith(verdict)


def test_the_policy_decides_the_verdict() -> None:
    everything = Policy(auto_apply=tuple(ChangeClass))
    assert "**Ready**" in render_markdown(plan([CHANGES["rename-column"]]), policy=everything)


def test_who_gains_and_loses_and_what_the_tests_of_access_say() -> None:
    page = render_markdown(plan([CHANGES["add-column"]], access=access_report()))
    assert page[page.index("#### Who") : page.index("<sub>")].split("\n") == [
        "#### Who gains and loses rows",
        "",
        "| principal | entity | actions | effect |",
        "|---|---|---|---|",
        "| `ana` | `customer` | read | gains 3 of 9 rows \\(5 before, 8 after\\) |",
        "| `group:buyers` | `product` | write | may now |",
        "",
        "_4 further pairs of principal and entity or more\\: not counted_",
        "",
        "#### Access tests: 1 passed, 1 failed, 1 not checkable before the apply",
        "",
        "- ⛔ failed: no secrets\\: ana sees \\[x\\] \\(access\\-tests\\.yaml\\:3\\:1\\)",
        "- – unchecked: new rows\\: not there",
        "",
        "",
    ]


def test_tests_of_access_that_all_hold_are_one_line() -> None:
    held = AccessReport(tests=access_report().tests[:1])
    page = render_markdown(plan([CHANGES["add-column"]], access=held))
    assert "#### Access tests: 1 passed\n\nAll hold.\n" in page
    assert "Who gains" not in page


@pytest.mark.parametrize(
    ("state", "mark"),
    [(ProofState.PROVEN, "✅"), (ProofState.FAILED, "⛔"), (ProofState.NOT_MADE, "–")],
)
def test_a_proof_is_told_with_its_problems(state: ProofState, mark: str) -> None:
    proof = Proof(state=state, place="a copy", problems=("<b>",))
    page = render_markdown(plan([]), proof=proof)
    assert f"\n\n{mark} **Proof**: " in page
    assert "\n- &lt;b\\>\n" in page


def test_the_marker_says_whose_comment_it_is_and_cannot_be_broken_out_of() -> None:
    assert marker("customer-hub") == "<!-- mdm-gitops plan customer-hub -->"
    assert marker("a --> <script>") == "<!-- mdm-gitops plan a_____script_ -->"
    assert render_markdown(plan([])).startswith(marker("customer-hub") + "\n")


ESCAPED = [
    ("plain text, with words", "plain text, with words"),
    ("a|b", r"a\|b"),
    (r"a\|b", r"a\\\|b"),
    ("<b>&amp;", r"&lt;b\>&amp;amp;"),
    ("*a* _b_ [c](d) `e` # f", r"\*a\* \_b\_ \[c\](d) \`e\` \#<!-- --> f".replace("(d)", r"\(d\)")),
    ("@bob", "@<!-- -->bob"),
    ("https://x.y", r"https\:<!-- -->//x\.y"),
    ("WWW.x", r"WWW<!-- -->\.x"),
    ("a\n\n# b", r"a\\n\\n\#<!-- --> b"),
]


@pytest.mark.parametrize(("text", "escaped"), ESCAPED)
def test_escaping(text: str, escaped: str) -> None:
    assert escape(text) == escaped


SPANS = [
    ("", False, ""),
    (" ", False, ""),
    ("a", False, "`a`"),
    ("a`b", False, "``a`b``"),
    ("`a``", False, "``` `a`` ```"),
    ("a|b", False, "`a|b`"),
    (r"a\|`*", True, "<code>a&#92;&#124;&#96;&#42;</code>"),
    ("a@b", True, "`a@b`"),
    ("a\nb", False, r"`a\nb`"),
]


@pytest.mark.parametrize(("text", "in_table", "span"), SPANS)
def test_code_spans(text: str, in_table: bool, span: str) -> None:
    assert code(text, in_table=in_table) == span


def test_nothing_that_people_wrote_breaks_out() -> None:
    every = (
        c.AddWebhook(webhook=webhook(name=EVIL, description=EVIL)),
        check(rule("name", RuleKind.PATTERN, EVIL)),
        c.ChangeDefinition(
            entity="customer", fields=(c.FieldChange(path="displayName", old="", new=EVIL),)
        ),
    )
    refusal = Refusal(code=RefusalCode.LAST_ADMIN, entity="", message=EVIL, hint=EVIL)
    value = plan(every, project=EVIL, notes=(EVIL,), refusals=(refusal,))
    text = render_markdown(value, sql=f"SELECT '{EVIL}';\n```\n````")
    outside = re.sub(r"(?s)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # without spans and fences
    assert "@all" not in outside
    assert "https://evil" not in outside
    assert "<b>" not in outside
    assert outside.count("</details>") == 1
    assert outside.count("\n# ") == 0
    for row in (line for line in text.splitlines() if line.startswith("| `customer`")):
        assert len(re.findall(r"(?<!\\)\|", row)) == 7


def test_a_long_plan_is_cut_at_whole_rows() -> None:
    names = [f"entity_{n:04}" for n in range(2_000)]
    every = [
        c.RemoveColumn(
            entity=name,
            column="notes",
            archived_as="_arch_3_notes",
            main_table=name,
            tables=(name,),
        )
        for name in names
    ]
    text = render_markdown(plan(every, notes=("n" * 900,) * 500), sql="SELECT 1;\n" * 50_000)
    assert len(text) <= MAX_LENGTH
    rows = [line for line in text.splitlines() if line.startswith("| `entity_")]
    assert all(row.endswith(" |") for row in rows)
    assert f"_… and {2_000 - len(rows):,} more rows: see the whole plan_" in text
    assert text.rstrip().endswith("</sub>")


def test_long_sql_is_cut_at_whole_lines_and_the_rest_stays() -> None:
    text = render_markdown(plan([CHANGES["add-column"]]), sql="SELECT '12345';\n" * 50_000)
    assert len(text) <= MAX_LENGTH
    shown = text.count("SELECT '12345';\n")
    assert shown > 2_000
    assert f"_… and {50_000 - shown:,} more lines: see the plan in format sql_" in text
    assert text.count("```") == 2


def test_every_cell_of_the_worst_kind_still_fits() -> None:
    every = [
        c.ChangeDefinition(
            entity="customer",
            fields=(c.FieldChange(path="displayName", old="@" * 5_000, new="@" * 5_000),),
        )
    ] * 200
    notes = ("@" * 5_000,) * 50
    text = render_markdown(plan(every, notes=notes, project="@" * 5_000))
    assert len(text) <= MAX_LENGTH
