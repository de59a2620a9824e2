"""``mdm-gitops apply``: bring the warehouse to what the definitions say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._errors import count_of
from mdm_gitops.cli._folder import FOLDER, refuse_without_files
from mdm_gitops.cli._output import echo_json, json_option, say, wants_color, warn

if TYPE_CHECKING:
    from mdm_gitops.model import Definitions
    from mdm_gitops.plan.plan import Plan
    from mdm_gitops.plan.policy import Allowance
    from mdm_gitops.plan.saved import SavedPlan
    from mdm_gitops.warehouse.apply import Applied, Progress
    from mdm_gitops.warehouse.connect import Connection


@click.command()
@click.argument("source", default=".", type=FOLDER, metavar="[PLAN|DIR]")
@click.option("--auto-approve", is_flag=True, help="Do not ask; hazards still need --allow.")
@click.option("--allow", multiple=True, metavar="CODE:ENTITY", help="Allow a hazard; repeatable.")
@click.option("--target", multiple=True, metavar="ENTITY", help="Only this entity; repeatable.")
@click.option(
    "--dir",
    "moved_to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the definitions of a saved plan are now, if not where it was made.",
)
@click.option(
    "--lock-timeout",
    type=float,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for another program that is applying.",
)
@json_option
@environment_option
def apply(
    source: Path,
    auto_approve: bool,
    allow: tuple[str, ...],
    target: tuple[str, ...],
    moved_to: Path | None,
    lock_timeout: float,
    as_json: bool,
) -> None:
    """Apply the definitions of DIR (default: here), or exactly the saved plan PLAN.

    Shows the plan and asks, on a terminal. With --auto-approve it asks nothing and applies what
    the project's policy lets through; each further hazard must be allowed by its code.
    """
    saved = _saved(source, target)
    if moved_to is not None and saved is None:
        raise click.UsageError("--dir goes with a saved plan; name the folder itself instead")
    directory = (moved_to or _standing(saved)) if saved else source
    chosen = saved.target if saved else target
    applied = asyncio.run(
        _apply(directory, saved, chosen, allow, auto_approve, lock_timeout, as_json)
    )
    _report(applied, as_json=as_json)


def _saved(source: Path, target: tuple[str, ...]) -> SavedPlan | None:
    if not source.is_file():
        return None
    from mdm_gitops.plan.saved import SavedPlan

    if target:
        raise click.UsageError("a saved plan has its own targets; leave --target out")
    return SavedPlan.read(source)


def _standing(saved: SavedPlan) -> Path:
    if not saved.directory.is_dir():
        from mdm_gitops.errors import InputError

        raise InputError(
            f"the saved plan was made in {saved.directory}, which is not there",
            hint="Say where its definitions are now with --dir",
        )
    return saved.directory


async def _apply(
    directory: Path,
    saved: SavedPlan | None,
    target: tuple[str, ...],
    allow: tuple[str, ...],
    auto_approve: bool,
    lock_timeout_s: float,
    as_json: bool,
) -> Applied:
    from mdm_gitops.cli._session import actor, database_identity, reserved_schemas, session
    from mdm_gitops.data.access_report import inspector
    from mdm_gitops.model.environments import in_environment
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source import read_folder
    from mdm_gitops.warehouse.apply import apply_plan
    from mdm_gitops.warehouse.planning import make_plan

    settings = load_settings(directory)
    environment = settings.Environment
    if saved is not None:
        saved.refuse_elsewhere(environment=environment)
    refuse_without_files(directory, settings)
    definitions = in_environment(
        read_folder(directory, reserved_schemas=reserved_schemas(settings)), environment
    )

    async def admit(conn: Connection) -> None:
        if saved is not None:
            database = await database_identity(conn)
            saved.refuse_elsewhere(environment=environment, database=database)

    async with session(directory, application_name="mdm-gitops apply", admit=admit) as s:
        plan = await make_plan(
            s.conn, definitions, schemas=s.schemas, target=target, inspect=inspector(s.settings)
        )
        if saved is not None:
            _refuse_other(plan, saved)
        allowances = _allowances(allow, definitions, plan)
        approved = False
        if not auto_approve and not plan.is_empty and not plan.is_blocked:
            approved = _ask(plan, as_json=as_json)
        with _progress() as tell:
            return await apply_plan(
                s.conn,
                definitions,
                # What nobody was shown binds nobody: another apply may have come first.
                plan if saved is not None or approved else None,
                schemas=s.schemas,
                actor=actor(),
                target=target,
                allowances=allowances,
                approved=approved,
                patience=replace(s.patience, writer_lock_s=lock_timeout_s),
                tell=tell,
                inspect=inspector(s.settings, effects=False),
            )


def _refuse_other(plan: Plan, saved: SavedPlan) -> None:
    if plan.plan_id != saved.plan_id:
        from mdm_gitops.errors import PlanStale

        moved = "definitions" if plan.desired_hash != saved.desired_hash else "warehouse"
        raise PlanStale(
            f"saved plan {saved.plan_id} is out of date: the {moved} moved since it was made",
            hint="Make a new plan with --out and review it",
        )


def _allowances(
    allow: tuple[str, ...], definitions: Definitions, plan: Plan
) -> tuple[Allowance, ...]:
    from mdm_gitops.plan.policy import Allowance, unused

    entities = {*definitions.entities, *(i.change.entity for i in plan.changes if i.change.entity)}
    allowances = tuple(Allowance.parse(text, entities=entities) for text in allow)
    for allowance in unused(plan, allowances):
        warn(f"nothing in this plan asks for --allow {allowance}")
    return allowances


def _ask(plan: Plan, *, as_json: bool) -> bool:
    """Show the plan and ask on the terminal; without one, say what to pass instead."""
    from mdm_gitops.errors import PlanRefused
    from mdm_gitops.plan.text import render_text

    if as_json or not sys.stdin.isatty():
        raise PlanRefused(
            "nobody is here to be asked",
            hint="Pass --auto-approve (and --allow for each hazard), or apply a saved plan on a terminal",
        )
    color = wants_color() is not False and sys.stderr.isatty()
    say(render_text(plan, colour=color, width=100, explain=None))
    if not click.confirm("Apply this plan?", err=True):
        raise PlanRefused("not applied: it was not confirmed", hint="Nothing was changed")
    return True


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on a terminal; elsewhere one line per step."""
    if not sys.stderr.isatty():
        last = 0

        def tell_line(progress: Progress) -> None:
            nonlocal last
            if progress.number != last:
                last = progress.number
                say(f"{progress.number}/{progress.total} {progress.phase.value}: {progress.title}")

        yield tell_line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from mdm_gitops.cli._output import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def tell_bar(progress: Progress) -> None:
            rows = f" ({progress.rows_done:,} rows)" if progress.rows_done else ""
            bar.update(
                task,
                description=f"{progress.phase.value}: {progress.title}{rows}",
                completed=progress.number - 1,
                total=progress.total,
            )

        yield tell_bar


def _report(applied: Applied, *, as_json: bool) -> None:
    plan = applied.plan
    if as_json:
        echo_json(
            {
                "applied": applied.steps > 0,
                "steps": applied.steps,
                "changes": len(plan.changes),
                "planId": plan.plan_id,
                "deploymentId": applied.deployment_id,
                "commit": plan.base_commit,
            }
        )
    elif applied.steps == 0:
        say(f"nothing to do: the warehouse is what {plan.entities_total:,} entities ask for")
    else:
        done = click.style("applied:", fg="green")
        changes, steps = count_of(len(plan.changes), "change"), count_of(applied.steps, "step")
        say(f"{done} {changes} in {steps}, plan {plan.plan_id}")
