"""``mdm-gitops plan``: show what apply would change, and what it would cost; change nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli._output import json_option, say, wants_color

if TYPE_CHECKING:
    from mdm_gitops.model import Definitions
    from mdm_gitops.plan.plan import Plan
    from mdm_gitops.warehouse.script import Script

EXIT_CHANGES = 2
EXIT_REFUSED = 3
FORMATS = ("text", "json", "sql", "markdown")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A plan with the script that would carry it out."""

    plan: Plan
    script: Script
    definitions: Definitions


@click.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Save the plan for `apply FILE`.")
@click.option("--target", multiple=True, metavar="ENTITY", help="Only this entity; repeatable.")
@click.option("--explain", is_flag=True, help="Show each step with its lock and its SQL.")
@click.option("--rev", metavar="REV", help="Plan this commit, branch or tag instead of the files.")
@click.option(
    "--against",
    metavar="REV",
    help="Compare with the definitions of REV instead of the warehouse; needs no database.",
)
@click.option(
    "--detailed-exitcode", is_flag=True, help="Exit 2 if there are changes, 3 if blocked."
)
@click.option("--no-color", is_flag=True, help="No colour, also on a terminal.")
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    directory: Path,
    format_: str,
    out: Path | None,
    target: tuple[str, ...],
    explain: bool,
    rev: str | None,
    against: str | None,
    detailed_exitcode: bool,
    no_color: bool,
    as_json: bool,
) -> None:
    """Show what `apply` would change in the warehouse of DIR (default: here).

    Nothing is written, neither to the warehouse nor to the files.
    """
    if against is not None:
        made = between(directory, rev=rev, against=against)
    else:
        made = asyncio.run(make(directory, target=target, rev=rev))
    text = rendered(made, "json" if as_json else format_, explain=explain, color=_color(no_color))
    click.echo(text, nl=not text.endswith("\n"))
    if out is not None:
        if against is not None:
            raise click.UsageError("a plan against a revision cannot be applied; leave --out out")
        _save(made.plan, directory, target, out)
    if detailed_exitcode:
        ctx.exit(_exit_code(made.plan))


def _color(no_color: bool) -> bool:
    wanted = wants_color()
    return not no_color and (sys.stdout.isatty() if wanted is None else wanted)


async def make(directory: Path, *, target: tuple[str, ...] = (), rev: str | None = None) -> Made:
    """Read the definitions of *directory* and plan them against its warehouse."""
    from mdm_gitops.cli._session import session
    from mdm_gitops.warehouse.planning import make_plan
    from mdm_gitops.warehouse.script import build_script

    definitions = _definitions(directory, rev)
    async with session(directory, application_name="mdm-gitops plan", read_only=True) as s:
        made = await make_plan(s.conn, definitions, schemas=s.schemas, target=target)
        script = build_script(made, schemas=s.schemas, actor="")
    return Made(plan=made, script=script, definitions=definitions)


def between(directory: Path, *, rev: str | None, against: str) -> Made:
    """Plan what changes from the revision *against*, as if it were deployed with rows everywhere."""
    from mdm_gitops.cli._session import schemas_of
    from mdm_gitops.plan.structural import structural_plan
    from mdm_gitops.settings import load_settings
    from mdm_gitops.warehouse.script import build_script

    schemas = schemas_of(load_settings(directory))
    new, old = _definitions(directory, rev), _definitions(directory, against)
    made = structural_plan(old, new, data_schema=schemas.data)
    script = build_script(made, schemas=schemas, actor="")
    return Made(plan=made, script=script, definitions=new)


def _definitions(directory: Path, rev: str | None) -> Definitions:
    from mdm_gitops.cli._session import reserved_schemas
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source import read_folder, read_revision

    reserved = reserved_schemas(load_settings(directory))
    if rev is None:
        return read_folder(directory, reserved_schemas=reserved)
    return read_revision(directory, rev, reserved_schemas=reserved)


def rendered(made: Made, format_: str, *, explain: bool, color: bool) -> str:
    """Return the plan as text, JSON, SQL for psql, or the comment of a pull request."""
    policy = made.definitions.project.policy
    if format_ == "json":
        from mdm_gitops.plan.document import to_document

        return json.dumps(to_document(made.plan, policy=policy), indent=2, ensure_ascii=False)
    if format_ == "sql":
        from mdm_gitops.warehouse.psql import to_psql

        return to_psql(made.script)
    if format_ == "markdown":
        from mdm_gitops.plan.markdown import render_markdown
        from mdm_gitops.warehouse.psql import to_psql

        return render_markdown(made.plan, sql=to_psql(made.script), policy=policy)
    from mdm_gitops.plan.text import render_text

    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    steps = made.script if explain else None
    return render_text(made.plan, colour=color, width=width, explain=steps, policy=policy)


def _save(plan: Plan, directory: Path, target: tuple[str, ...], out: Path) -> None:
    from mdm_gitops.plan.saved import SavedPlan

    saved = SavedPlan.of(plan, directory=directory.resolve(), target=target)
    out.write_text(saved.to_text(), encoding="utf-8")
    say(f"saved plan {plan.plan_id} to {out}; apply it with: mdm-gitops apply {out}")


def _exit_code(plan: Plan) -> int:
    if plan.is_blocked:
        return EXIT_REFUSED
    return 0 if plan.is_empty else EXIT_CHANGES
