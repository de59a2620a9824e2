"""The plan for a terminal: blocks of lines, what blocks them, what wants a yes, counts at the end.

Reads the same without colour. ``rich`` lays out and paints; it is loaded when a plan is shown, not
before, and is never given text as markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from mdm_gitops.model import ChangeClass, Policy
from mdm_gitops.plan.access_report import Verdict
from mdm_gitops.plan.access_words import (
    MOST_EFFECTS,
    effect_lines,
    test_lines,
    test_summary,
    uncounted_words,
)
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.human import plural, visible
from mdm_gitops.plan.line import Line
from mdm_gitops.plan.outline import Block, Outline, block_facts, outline, summary
from mdm_gitops.plan.plan import CheckResult, Lock, Plan
from mdm_gitops.plan.policy import Unallowed
from mdm_gitops.plan.proof import Proof, proof_words
from mdm_gitops.plan.verdicts import (
    AFTER_FAILURE,
    DRIFT_MEANING,
    DRIFT_WORDS,
    MOST_SAMPLES,
    how_to_find,
    sample_words,
    violation_words,
)
from mdm_gitops.plan.words import Symbol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MIN_WIDTH: Final = 40
_MOST_MESSAGES: Final = 5  # per allowance
_LONGEST_SQL: Final = 400  # characters of a line
_MOST_SQL_LINES: Final = 12
_LOUD: Final = (ChangeClass.BREAKING, ChangeClass.SECURITY_WIDENING, ChangeClass.DESTRUCTIVE)
_STYLES: Final = MappingProxyType(
    {
        Symbol.RENAME: "cyan",
        Symbol.CREATE: "green",
        Symbol.RESTORE: "green",
        Symbol.CHANGE: "yellow",
        Symbol.REMOVE: "red",
    }
)
_CLASS_STYLES: Final = MappingProxyType(
    {
        ChangeClass.SAFE: "green",
        ChangeClass.DATA_DEPENDENT: "cyan",
        ChangeClass.BREAKING: "yellow",
        ChangeClass.SECURITY_WIDENING: "magenta",
        ChangeClass.DESTRUCTIVE: "red",
    }
)
_BLOCKED: Final = "bold red"


class ScriptStatement(Protocol):
    @property
    def sql(self) -> str: ...
    @property
    def lock(self) -> Lock: ...
    @property
    def scans(self) -> bool: ...
    @property
    def transactional(self) -> bool: ...


class ScriptStep(Protocol):
    @property
    def phase(self) -> Phase: ...
    @property
    def title(self) -> str: ...
    @property
    def statements(self) -> Sequence[ScriptStatement]: ...


class Script(Protocol):
    """What ``--explain`` shows of the statements that carry the plan out."""

    @property
    def steps(self) -> Sequence[ScriptStep]: ...


def render_text(
    plan: Plan,
    *,
    colour: bool,
    width: int,
    explain: Script | None = None,
    policy: Policy | None = None,
    proof: Proof | None = None,
) -> str:
    """Return *plan* as text that ends in a line end, at most *width* cells wide.

    With *explain* it shows each change, also those that only follow from others, and the
    statements; these are not broken into lines, but cut. *policy* decides what is listed as
    wanting a yes.
    """
    from rich.console import Console

    target = io.StringIO()
    console = Console(
        file=target,
        width=max(width, _MIN_WIDTH),
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    page = _Page(console)
    if plan.is_empty and not plan.refusals:
        page.say_empty(plan)
    else:
        page.say(plan, outline(plan, policy=policy, everything=explain is not None))
    if explain is not None:
        page.explain(explain)
    if proof is not None:
        page.proof(proof)
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().rstrip().splitlines())


class _Page:
    def __init__(self, console: Console) -> None:
        from rich.table import Table
        from rich.text import Text

        self.console = console
        self.text = Text
        self.table = Table

    # --- parts of the page ---

    def say_empty(self, plan: Plan) -> None:
        compared = plural(plan.entities_total, "entity", "entities")
        words = self.text(f"{_place(plan)}: nothing to do, the warehouse is what Git says")
        self.row(0, words.append(f" ({compared} compared)", style="dim"))
        self.drift(plan)
        self.access(plan)
        self.notes(plan)

    def say(self, plan: Plan, content: Outline) -> None:
        fingerprint = visible(plan.live_fingerprint[:8])
        warehouse = f", warehouse {fingerprint}" if fingerprint else ""
        self.row(0, self.text(_place(plan) + warehouse, style="bold"))
        self.drift(plan)
        for block in content.blocks:
            self.block(block)
        for title, lines in content.sections:
            self.heading(title)
            self.lines(lines)
        self.access(plan)
        self.notes(plan)
        self.unallowed(content.unallowed)
        self.refusals(plan)
        self.console.print()
        style = _BLOCKED if plan.is_blocked else "bold"
        self.row(0, self.text(f"Plan: {summary(content)}", style=style))

    def drift(self, plan: Plan) -> None:
        if not plan.drift:
            return
        self.heading("Drift", DRIFT_MEANING)
        for item in plan.drift:
            said = visible(f"{item.object} {item.message}")
            words = f"{item.entity}: {said}" if item.entity else said
            self.columns(2, self.text(DRIFT_WORDS[item.kind], style="yellow"), 8, self.text(words))

    def block(self, block: Block) -> None:
        title = self.text(f"{block.symbol} {block.title}", style=f"bold {_STYLES[block.symbol]}")
        badge = block.change_class.value
        style = _CLASS_STYLES[block.change_class]
        title.append("  " + (badge.upper() if block.change_class in _LOUD else badge), style=style)
        if block.is_blocked:
            title.append("  BLOCKED", style=_BLOCKED)
        facts = ", ".join(block_facts(block))
        title.append(f"  {facts}" if facts else "", style="dim")
        self.console.print()
        self.row(0, title)
        self.lines(block.lines)

    def lines(self, lines: Sequence[Line]) -> None:
        room = self.console.width * 2 // 5
        fitting = [size for line in lines if (size := self._cells(line.headline)) <= room]
        for line in lines:
            self.line(line, max(fitting, default=room))

    def line(self, line: Line, headline_width: int) -> None:
        mark = self.text(f"{line.symbol} ", style=_STYLES[line.symbol])
        headline = mark + self.text(line.headline)
        said = self.remarks(line)
        if not said:
            self.row(2, headline, hang=2)
        elif self._cells(line.headline) <= headline_width:
            self.columns(2, headline, headline_width + 2, said)
        elif line.detail or line.is_blocked:
            self.row(2, headline, hang=2)
            self.row(6, said)
        else:
            self.row(2, self.text(" · ").join((headline, said)), hang=2)
        for result in line.failed:
            self.failure(result, headline_width + 6)

    def remarks(self, line: Line) -> Text:
        parts: list[Text] = []
        for result in line.failed:
            about = "" if _is_about(line, result) else f"{visible(result.check.column)}: "
            words = f"BLOCKED: {about}{violation_words(result)}"
            parts.append(self.text(words, style=_BLOCKED))
        if line.detail:
            parts.append(self.text(line.detail))
        if line.change_class in _LOUD:
            style = _CLASS_STYLES[line.change_class]
            parts.append(self.text(line.change_class.value, style=style))
        if line.is_proven:
            parts.append(self.text("no row is in the way", style="green"))
        if line.cost:
            parts.append(self.text(line.cost, style="dim"))
        return self.text(" · ").join(parts)

    def failure(self, result: CheckResult, indent: int) -> None:
        shown = result.samples[:MOST_SAMPLES]
        for sample in shown:
            self.row(indent, self.text(sample_words(sample), style="dim"), hang=2)
        more = result.violations - len(shown)
        if more > 0 and shown:
            self.row(indent, self.text(f"and {more:,} more", style="dim"))
        if find := how_to_find(result.check):
            self.row(indent, self.text(f"find them: {find}", style="dim"), hang=2)

    def access(self, plan: Plan) -> None:
        lines = effect_lines(plan.access)
        if lines:
            self.heading("Who gains and loses", "active rows as they are now")
        room = self.console.width * 2 // 5
        names = [f"{line.principal} · {line.entity}: {line.actions}" for line in lines]
        width = max((size for name in names if (size := self._cells(name)) <= room), default=room)
        for name, line in list(zip(names, lines, strict=True))[:MOST_EFFECTS]:
            self.columns(2, self.text(name), width, self.text(line.words))
        if more := uncounted_words(plan.access, hidden=max(len(lines) - MOST_EFFECTS, 0)):
            self.row(2, self.text(more, style="dim"))
        if summary_of_tests := test_summary(plan.access):
            self.heading("Access tests", summary_of_tests)
        for verdict, words in test_lines(plan.access):
            style = _BLOCKED if verdict is Verdict.FAILED else "dim"
            self.columns(2, self.text(verdict.value, style=style), 9, self.text(words))

    def notes(self, plan: Plan) -> None:
        if plan.notes:
            self.heading("Notes")
        for note in plan.notes:
            self.row(2, self.text(visible(note)))

    def unallowed(self, unallowed: Sequence[Unallowed]) -> None:
        if not unallowed:
            return
        self.heading("Wants a yes", "apply asks for it, or takes the options")
        by_flag: dict[str, list[str]] = {}
        for each in unallowed:
            by_flag.setdefault(visible(each.flag), []).append(visible(each.message))
        width = min(max(self._cells(flag) for flag in by_flag), self.console.width // 2)
        for flag, messages in by_flag.items():
            more = len(messages) - _MOST_MESSAGES
            shown = messages[:_MOST_MESSAGES] + ([f"and {more:,} more"] if more > 0 else [])
            for number, message in enumerate(shown):
                label = self.text(flag if number == 0 else "", style="magenta")
                self.columns(2, label, width, self.text(message))

    def refusals(self, plan: Plan) -> None:
        if not plan.refusals:
            return
        self.heading("Refused", "nothing is applied while these stand")
        width = max(self._cells(refusal.code.value) for refusal in plan.refusals)
        for refusal in plan.refusals:
            self.columns(
                2,
                self.text(refusal.code.value, style=_BLOCKED),
                width,
                self.text(visible(refusal.message)),
            )
            if refusal.hint:
                self.row(width + 4, self.text(f"hint: {visible(refusal.hint)}", style="dim"))

    def explain(self, script: Script) -> None:
        self.heading("Steps")
        total = len(script.steps)
        for number, step in enumerate(script.steps, start=1):
            self.row(0, self.text(f"{number}/{total} {_step_words(step)}", style="bold"))
            for statement in step.statements:
                for part in _shortened(statement.sql):
                    self.console.print(self.text(f"    {part}"), soft_wrap=True)
            self.row(4, self.text(f"if it fails: {AFTER_FAILURE[step.phase]}", style="dim"))

    def proof(self, proof: Proof) -> None:
        self.heading("Proof", visible(proof_words(proof)))
        style = _BLOCKED if proof.has_failed else "dim"
        for problem in proof.problems:
            self.row(2, self.text(visible(problem), style=style), hang=2)

    # --- laying out ---

    def heading(self, title: str, remark: str = "") -> None:
        self.console.print()
        words = self.text(title, style="bold")
        self.row(0, words.append(f": {remark}" if remark else "", style="not bold dim"))

    def row(self, indent: int, words: Text, *, hang: int = 0) -> None:
        """Print *words*, their second and later lines *hang* cells further right."""
        from rich.padding import Padding

        if not hang:
            self.console.print(Padding(words, (0, 0, 0, indent)))
            return
        room = max(self.console.width - indent - hang, 10)
        for number, part in enumerate(words.wrap(self.console, room)):
            left = indent + (hang if number else 0)
            self.console.print(Padding(part, (0, 0, 0, left)))

    def columns(self, indent: int, left: Text, width: int, right: Text) -> None:
        grid = self.table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=width, overflow="fold")
        grid.add_column(ratio=1, overflow="fold")
        grid.add_row(left, right)
        from rich.padding import Padding

        self.console.print(Padding(grid, (0, 0, 0, indent)))

    def _cells(self, words: str) -> int:
        return self.text(words).cell_len


def _place(plan: Plan) -> str:
    name = visible(plan.project)
    return f"{name} @ {visible(plan.base_commit[:7])}" if plan.base_commit else name


def _is_about(line: Line, result: CheckResult) -> bool:
    """Whether the line's own words name the column that the check is about."""
    return line.headline.startswith(result.check.column)


def _shortened(sql: str) -> Iterator[str]:
    """Yield the lines of a statement; a seed has one for each row, of which the first are enough."""
    lines = sql.rstrip().splitlines()
    yield from (_cut(line) for line in lines[:_MOST_SQL_LINES])
    if len(lines) > _MOST_SQL_LINES:
        yield f"… {len(lines) - _MOST_SQL_LINES:,} more lines"


def _cut(sql: str) -> str:
    """Bookkeeping writes whole documents; the complete text is what ``--format sql`` is for."""
    shown = visible(sql)
    return shown if len(shown) <= _LONGEST_SQL else f"{shown[:_LONGEST_SQL]}… (cut)"


def _step_words(step: ScriptStep) -> str:
    order = list(Lock)
    lock = max((each.lock for each in step.statements), key=order.index, default=Lock.NONE)
    together = all(each.transactional for each in step.statements)
    parts = [visible(step.title), step.phase.value]
    parts.append("one transaction" if together else "autocommit")
    parts.append("no lock" if lock is Lock.NONE else lock.value)
    parts += ["scan"] if _scans(step.statements) else []
    return " | ".join(parts)


def _scans(statements: Iterable[ScriptStatement]) -> bool:
    return any(statement.scans for statement in statements)
