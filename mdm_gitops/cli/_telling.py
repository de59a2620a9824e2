"""What a person reads while the operator works in the foreground: plans, steps, what stands in the way."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from mdm_gitops.cli._errors import show_finding
from mdm_gitops.cli._output import program, say, wants_color
from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Definitions
from mdm_gitops.plan.outline import outline, summary
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.text import render_text
from mdm_gitops.source.git import DIRTY
from mdm_gitops.warehouse.apply import Progress
from mdm_operator.reconcile import Listener
from mdm_operator.state import Outcome, Run


class Telling(Listener):
    """Tells on stderr. The first plan, which holds everything, is told by its counts alone."""

    def __init__(self, directory: Path, *, brief_first: bool) -> None:
        self._directory = directory
        self._brief = brief_first
        self._plan: Plan | None = None
        self._definitions: Definitions | None = None
        self._step = 0
        self._last: Run | None = None

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        self._plan, self._definitions, self._step = plan, definitions, 0
        if self._brief and plan.changes and not plan.is_blocked:
            counts = summary(outline(plan, policy=definitions.project.policy))
            say(f"Planned {_name(plan)}: {counts}")

    def progressed(self, progress: Progress) -> None:
        if progress.number != self._step:
            self._step = progress.number
            if self._step == 1 and not self._brief:
                self._show_plan()
            say(f"  {progress.number}/{progress.total} {progress.phase.value}: {progress.title}")

    def finished(self, run: Run) -> None:
        match run.outcome:
            case Outcome.IN_SYNC | Outcome.APPLIED:
                self._tell_good(run)
            case Outcome.INVALID:
                self._tell_invalid(run)
            case Outcome.BLOCKED | Outcome.APPROVAL_PENDING:
                self._tell_waiting(run)
            case Outcome.REFUSED:
                self._waiting(run.message, run.error.hint if run.error else "")
            case Outcome.WINDOW_CLOSED | Outcome.OUT_OF_SYNC | Outcome.SUSPENDED:
                say(f"{click.style('waiting:', fg='yellow', bold=True)} {run.message}")
            case Outcome.FAILED:
                return  # the loop's log tells it, with the cause
        self._plan, self._brief, self._last = None, False, run

    def _tell_good(self, run: Run) -> None:
        if run.outcome is Outcome.IN_SYNC and self._was_good_with(run.drift):
            return
        mark = click.style("applied:" if run.outcome is Outcome.APPLIED else "in sync:", fg="green")
        commit = f", {commit_words(run.commit)}" if run.commit else ""
        say(f"{mark} {run.message}{commit} ({run.duration_s:.1f} s)")
        if run.drift:
            self._show_drift()

    def _was_good_with(self, drift: int | None) -> bool:
        last = self._last
        return last is not None and last.outcome.is_good and last.drift == drift

    def _tell_invalid(self, run: Run) -> None:
        prefix = "" if str(self._directory) == "." else f"{self._directory}/"
        if isinstance(run.error, DefinitionError):
            for finding in run.error.findings:
                show_finding(finding, prefix=prefix, err=True)
        else:
            say(run.message)
        self._waiting("the definitions are not valid", "correct them; they are being watched")

    def _tell_waiting(self, run: Run) -> None:
        self._show_plan()
        if run.outcome is Outcome.BLOCKED:
            hint = run.error.hint if run.error else ""
            self._waiting(run.message, hint or "nothing was changed")
        else:
            here = (self._directory / "mdm.yaml").exists()
            what = f"{'apply' if here else 'plans list'} {self._directory}"
            hint = f"to allow it, run in another terminal: {program()} {what}"
            self._waiting(run.message, hint)

    def _waiting(self, why: str, hint: str) -> None:
        say(f"{click.style('waiting:', fg='yellow', bold=True)} {why}")
        say(f"{click.style('hint:', fg='cyan')} {hint}")

    def _show_plan(self) -> None:
        if self._plan is not None and self._definitions is not None:
            color = wants_color()
            text = render_text(
                self._plan,
                colour=sys.stderr.isatty() if color is None else color,
                width=min(shutil.get_terminal_size((100, 24)).columns, 120),
                policy=self._definitions.project.policy,
            )
            say(text.rstrip("\n"))

    def _show_drift(self) -> None:
        for item in self._plan.drift if self._plan else ():
            owner = f"{item.entity}: " if item.entity else ""
            say(f"  drift: {owner}{item.object} {item.message}")


def commit_words(commit: str) -> str:
    """Return ``commit 4f1c2ab``, and whether files differ from it."""
    clean = commit.removesuffix(DIRTY)
    return f"commit {clean[:7]}" + (" and edits" if commit != clean else "")


def _name(plan: Plan) -> str:
    return f"{plan.project}, {commit_words(plan.base_commit)}" if plan.base_commit else plan.project
