"""The plan as one comment on a pull request: verdict, table, what blocks, who gains what, the SQL.

The comment starts with a hidden marker, by which the next run finds and replaces it. Nothing that
people wrote is trusted: names stand in code spans, all else is escaped, so it can neither break the
table, nor mention anybody, nor link. A long plan is cut at whole rows, the SQL first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from mdm_gitops.model import Policy
from mdm_gitops.plan.access_report import Verdict
from mdm_gitops.plan.access_words import effect_lines, test_lines, test_summary, uncounted_words
from mdm_gitops.plan.human import visible
from mdm_gitops.plan.line import Line
from mdm_gitops.plan.outline import Outline, outline, summary
from mdm_gitops.plan.plan import CheckResult, Plan
from mdm_gitops.plan.proof import Proof, ProofState, proof_words
from mdm_gitops.plan.verdicts import (
    DRIFT_MEANING,
    DRIFT_WORDS,
    MOST_SAMPLES,
    how_to_find,
    lock_words,
    sample_words,
    violation_words,
)

MAX_LENGTH: Final = 65_000  # GitHub takes 65,536 characters, others more
_ENDING: Final = 1_500  # kept free for the footer and the words about what was cut
_MOST_SQL: Final = 40_000
_LONGEST_CELL: Final = 1_000

_PUNCTUATION: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$:=^])")
_LINKING: Final = re.compile(r"(@|\\#|\\:(?=//)|www)", re.IGNORECASE)  # after the escaping
_SIGNS: Final = re.compile(r"[^\w\s]", re.ASCII)
_RUNS: Final = re.compile("`+")


def marker(project: str) -> str:
    """Return the hidden first line by which a later run knows its own comment."""
    name = re.sub(r"[^\w.-]|--+", "_", project[:100])
    return f"<!-- mdm-gitops plan {name} -->"


def render_markdown(
    plan: Plan, *, sql: str = "", policy: Policy | None = None, proof: Proof | None = None
) -> str:
    """Return *plan* as a comment of at most ``MAX_LENGTH`` characters.

    *sql* is the script of the plan, shown folded up. *policy* decides what wants a yes.
    """
    page = _Page(room=MAX_LENGTH - _ENDING)
    content = outline(plan, policy=policy)
    page.add(marker(plan.project), f"### Plan for {code(plan.project)}", verdict(plan, content))
    if not plan.is_empty:
        header = (
            "| entity | change | class | lock | rows | verdict |",
            "|---|---|---|---|---:|---|",
        )
        page.add_rows("", header, list(_table(content)), "rows")
    if proof is not None:
        page.add_rows("", (), list(_proof(proof)), "problems")
    page.add_rows("#### Blocked", (), list(_blocked(content)), "data checks")
    page.add_rows("#### Refused", (), list(_refused(plan)), "refusals")
    page.add_rows("#### Access, webhooks, seeds", (), list(_sections(content)), "lines")
    page.add_rows("#### Who gains and loses rows", _EFFECT_HEADER, list(_effects(plan)), "effects")
    if more := uncounted_words(plan.access):
        page.add(f"_{escape(more)}_")
    if tests := test_summary(plan.access):
        page.add_rows(
            f"#### Access tests: {tests}", (), list(_tests(plan)) or ["All hold."], "tests"
        )
    page.add_rows("#### Wants a yes", (), list(_unallowed(content)), "lines")
    page.add_rows("#### Drift", (escape(DRIFT_MEANING), ""), list(_drift(plan)), "items")
    page.add_rows("#### Notes", (), [f"- {escape(note)}" for note in plan.notes], "notes")
    if sql.strip():
        page.add(_details(sql, room=min(page.room, _MOST_SQL)))
    page.add(_footer(plan))
    return page.text()


class _Page:
    """Paragraphs under a budget of characters; only ``add`` may overdraw it, for the ending."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.parts: list[str] = []

    def add(self, *parts: str) -> None:
        self.parts += parts
        self.room -= sum(len(part) + 2 for part in parts)

    def add_rows(self, title: str, header: Sequence[str], rows: Sequence[str], noun: str) -> None:
        """Add as many whole *rows* as there is room for, and say how many are missing."""
        if not rows:
            return
        left = self.room - len(title) - sum(len(line) + 1 for line in header) - 100
        kept = []
        for row in rows:
            left -= len(row) + 1
            if left < 0:
                break
            kept.append(row)
        parts = [title] if title else []
        parts += ["\n".join([*header, *kept])] if kept else []
        missing = len(rows) - len(kept)
        parts += [f"_… and {missing:,} more {noun}: see the whole plan_"] if missing else []
        self.add(*parts)

    def text(self) -> str:
        return "\n\n".join(self.parts) + "\n"


# --- parts ----------------------------------------------------------------------------------------


def verdict(plan: Plan, content: Outline) -> str:
    """Return the one line that says whether this may go in."""
    if plan.is_empty and not plan.refusals:
        entities = f"{plan.entities_total:,} entities compared"
        return f"✅ **No changes**: the warehouse is what Git says ({entities})"
    counts = escape(summary(content))
    if plan.is_blocked:
        return f"⛔ **Blocked**: nothing can be applied yet. {counts}"
    if content.unallowed:
        return f"⚠️ **Wants a yes**: the policy does not let all of it in by itself. {counts}"
    return f"✅ **Ready**: the policy lets all of it in. {counts}"


def _table(content: Outline) -> Iterator[str]:
    waiting = {each.item.number for each in content.unallowed if each.item}
    for block in content.blocks:
        for line in block.lines:
            yield _row(block.title, line, _verdict_of(line, waiting))


def _row(title: str, line: Line, said: str) -> str:
    items = [item.assessment for item in line.items]
    rows = max((item.rows for item in items), default=0)
    detail = ", ".join(part for part in (line.detail, line.cost) if part)
    headline = code(f"{line.symbol} {line.headline}", in_table=True)
    cells = (
        code(title, in_table=True),
        f"{headline} {escape(detail)}".rstrip(),
        line.change_class.value,
        lock_words(item.lock for item in items) or "–",
        f"{rows:,}" if rows else "–",
        said,
    )
    return f"| {' | '.join(cells)} |"


def _verdict_of(line: Line, waiting: AbstractSet[int]) -> str:
    if line.is_blocked:
        return "⛔ " + "; ".join(escape(violation_words(result)) for result in line.failed)
    if not line.is_quiet and any(item.number in waiting for item in line.items):
        return "⚠️ wants a yes"
    return "✅ no row is in the way" if line.is_proven else "✅"


def _blocked(content: Outline) -> Iterator[str]:
    for block in content.blocks:
        for line in block.lines:
            for result in line.failed:
                yield _failure(block.entity, line, result)


def _failure(entity: str, line: Line, result: CheckResult) -> str:
    place = f"- {code(entity)} {code(line.headline)}: **{escape(violation_words(result))}**"
    lines = [place]
    lines += (f"  - {code(sample_words(sample))}" for sample in result.samples[:MOST_SAMPLES])
    if find := how_to_find(result.check):
        kind, _, text = find.partition(" ")
        lines.append(f"  - find them by {kind}: {code(text)}")
    return "\n".join(lines)


def _refused(plan: Plan) -> Iterator[str]:
    for refusal in plan.refusals:
        hint = f" ({escape(refusal.hint)})" if refusal.hint else ""
        yield f"- **{refusal.code.value}** {escape(refusal.message)}{hint}"


def _sections(content: Outline) -> Iterator[str]:
    for title, lines in content.sections:
        for line in lines:
            loud = f" **{line.change_class.value}**" if line.change_class.value != "safe" else ""
            detail = f" {escape(line.detail)}" if line.detail else ""
            yield f"- {title}: {code(f'{line.symbol} {line.headline}')}{detail}{loud}"


_EFFECT_HEADER: Final = ("| principal | entity | actions | effect |", "|---|---|---|---|")


def _effects(plan: Plan) -> Iterator[str]:
    for line in effect_lines(plan.access):
        who, entity = code(line.principal, in_table=True), code(line.entity, in_table=True)
        yield f"| {who} | {entity} | {line.actions} | {escape(line.words)} |"


def _tests(plan: Plan) -> Iterator[str]:
    for verdict, words in test_lines(plan.access):
        mark = "⛔" if verdict is Verdict.FAILED else "–"
        yield f"- {mark} {verdict.value}: {escape(words)}"


def _unallowed(content: Outline) -> Iterator[str]:
    messages: dict[str, list[str]] = {}
    for each in content.unallowed:
        messages.setdefault(each.flag, []).append(each.message)
    for flag, said in messages.items():
        more = f" and {len(said) - 1:,} more" if len(said) > 1 else ""
        yield f"- {code(flag)} {escape(said[0])}{more}"


def _drift(plan: Plan) -> Iterator[str]:
    for item in plan.drift:
        entity = f"{code(item.entity)} " if item.entity else ""
        yield f"- {entity}{DRIFT_WORDS[item.kind]}: {escape(f'{item.object} {item.message}')}"


def _proof(proof: Proof) -> Iterator[str]:
    sign = {ProofState.PROVEN: "✅", ProofState.FAILED: "⛔", ProofState.NOT_MADE: "–"}[proof.state]
    yield f"{sign} **Proof**: {escape(proof_words(proof))}"
    yield from (f"- {escape(problem)}" for problem in proof.problems)


def _details(sql: str, *, room: int) -> str:
    lines = sql.strip("\n").splitlines()
    kept, used = [], 300
    for line in lines:
        shown = visible(line.replace("\t", "    "))
        used += len(shown) + 1
        if used > room:
            break
        kept.append(shown)
    fence = "`" * max(3, 1 + max((len(run) for run in _RUNS.findall("\n".join(kept))), default=0))
    cut = len(lines) - len(kept)
    more = f"\n\n_… and {cut:,} more lines: see the plan in format sql_" if cut else ""
    body = "\n".join((f"{fence}sql", *kept, fence))
    return f"<details><summary>SQL</summary>\n\n{body}{more}\n\n</details>"


def _footer(plan: Plan) -> str:
    facts = (
        ("plan", plan.plan_id),
        ("base commit", plan.base_commit or "none"),
        ("live fingerprint", plan.live_fingerprint),
    )
    return "<sub>" + " · ".join(f"{name} {code(value)}" for name, value in facts) + "</sub>"


# --- escaping -------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Return *text* so that Markdown shows it as it is; nothing in it mentions, links or formats.

    An empty comment after ``@``, ``#`` and inside addresses keeps forges from making links of them.
    """
    safe = _shortened(text).replace("&", "&amp;").replace("<", "&lt;")
    return _LINKING.sub(r"\1<!-- -->", _PUNCTUATION.sub(r"\\\1", safe))


def code(text: str, *, in_table: bool = False) -> str:
    """Return *text* as a code span, whatever backticks are in it; "" for no text.

    *in_table*: a bar would end the cell even inside a span (and a backslash before it has two
    readings), so there it is written in HTML, every sign as a number.
    """
    shown = _shortened(text)
    if not shown.strip():
        return ""
    if in_table and "|" in shown:
        return f"<code>{_SIGNS.sub(lambda found: f'&#{ord(found[0])};', shown)}</code>"
    fence = "`" * (1 + max((len(run) for run in _RUNS.findall(shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _shortened(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= _LONGEST_CELL else shown[: _LONGEST_CELL - 1] + "…"
