"""``mdm-gitops plan``: show what apply would change, and what it would cost; change nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER, refuse_without_files
from mdm_gitops.cli._output import json_option, say, wants_color
from mdm_gitops.cli._package import folder_of, looks_like_archive, read_package_at

if TYPE_CHECKING:
    from mdm_gitops.model import Definitions
    from mdm_gitops.plan.plan import Plan
    from mdm_gitops.plan.proof import Proof
    from mdm_gitops.settings import Settings
    from mdm_gitops.warehouse.proving import Place
    from mdm_gitops.warehouse.script import Script

EXIT_CHANGES = 2
EXIT_REFUSED = 3
FORMATS = ("text", "json", "sql", "markdown")
PLACES = ("server", "embedded")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A plan with the script that would carry it out."""

    plan: Plan
    script: Script
    definitions: Definitions
    environment: str
    database: str = ""  # whose rows were asked
    proof: Proof | None = None


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
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
@click.option("--with-data", is_flag=True, help="With --against: ask the warehouse's rows too.")
@click.option(
    "--prove", is_flag=True, help="Carry the plan out on a scratch database and look at the result."
)
@click.option(
    "--prove-on",
    type=click.Choice(PLACES),
    help="With --prove: on the warehouse's server, or on an embedded one of its own.",
)
@click.option(
    "--detailed-exitcode", is_flag=True, help="Exit 2 if there are changes, 3 if blocked."
)
@click.option("--no-color", is_flag=True, help="No colour, also on a terminal.")
@json_option
@environment_option
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
    with_data: bool,
    prove: bool,
    prove_on: str | None,
    detailed_exitcode: bool,
    no_color: bool,
    as_json: bool,
) -> None:
    """Show what `apply` would change in the warehouse of DIR (default: here).

    DIR may be a package, which is planned against the warehouse of the current folder. Nothing is written, neither to the warehouse nor to the files. With --prove the exit code is 3
    where the plan does not lead to what the definitions say.
    """
    if looks_like_archive(directory) and (against is not None or out is not None):
        raise click.UsageError("a package has no revisions, and `packages deploy` deploys it")
    if with_data and against is None:
        raise click.UsageError("--with-data goes with --against; without it rows are always asked")
    if target and against is not None:
        raise click.UsageError("a plan against a revision is of all entities; leave --target out")
    place = (prove_on or ("server" if against is None else "embedded")) if prove else None
    if prove_on and not prove:
        raise click.UsageError("--prove-on goes with --prove")
    if against is not None:
        made = asyncio.run(
            between(directory, rev=rev, against=against, with_data=with_data, place=place)
        )
    else:
        made = asyncio.run(make(directory, target=target, rev=rev, place=place))
    text = rendered(made, "json" if as_json else format_, explain=explain, color=_color(no_color))
    click.echo(text, nl=not text.endswith("\n"))
    if out is not None:
        if against is not None:
            raise click.UsageError("a plan against a revision cannot be applied; leave --out out")
        _save(made, directory, target, out)
    if made.proof is not None and made.proof.has_failed:
        ctx.exit(EXIT_REFUSED)
    if detailed_exitcode:
        ctx.exit(_exit_code(made.plan))


def _color(no_color: bool) -> bool:
    wanted = wants_color()
    return not no_color and (sys.stdout.isatty() if wanted is None else wanted)


async def make(
    directory: Path,
    *,
    target: tuple[str, ...] = (),
    rev: str | None = None,
    place: str | None = None,
) -> Made:
    """Read the definitions of *directory*, plan them against its warehouse, prove it on *place*."""
    from mdm_gitops.cli._session import database_identity, session
    from mdm_gitops.data.access_report import inspector
    from mdm_gitops.warehouse.planning import make_plan
    from mdm_gitops.warehouse.script import build_script

    definitions = _definitions(directory, rev)
    folder = folder_of(directory)
    async with session(folder, application_name="mdm-gitops plan", read_only=True) as s:
        made = await make_plan(
            s.conn, definitions, schemas=s.schemas, target=target, inspect=inspector(s.settings)
        )
        script = build_script(made, schemas=s.schemas, actor="")
        database = await database_identity(s.conn)
        proof = None
        if place is not None:
            from mdm_gitops.warehouse.proving import prove

            async with _place(place, folder, s.settings, s.url) as where:
                proof = await prove(
                    made, definitions, live=s.conn, schemas=s.schemas, place=where, target=target
                )
    return Made(
        plan=made,
        script=script,
        definitions=definitions,
        environment=s.settings.Environment,
        database=database,
        proof=proof,
    )


async def between(
    directory: Path,
    *,
    rev: str | None,
    against: str,
    with_data: bool = False,
    place: str | None = None,
) -> Made:
    """Plan what changes from the revision *against*, as if it were deployed with rows everywhere.

    *with_data*: with the rows that the warehouse of *directory* has.
    """
    from mdm_gitops.cli._session import schemas_of, session
    from mdm_gitops.plan.structural import structural_plan
    from mdm_gitops.settings import load_settings
    from mdm_gitops.warehouse.comparing import plan_between
    from mdm_gitops.warehouse.locate import warehouse_url
    from mdm_gitops.warehouse.proving import prove_between
    from mdm_gitops.warehouse.script import build_script

    settings = load_settings(directory)
    schemas = schemas_of(settings)
    new, old = _definitions(directory, rev), _definitions(directory, against)
    made = structural_plan(old, new, data_schema=schemas.data)
    proof = None
    if place is not None:
        async with AsyncExitStack() as stack:
            url = ""
            if place == "server":
                url = await stack.enter_async_context(warehouse_url(directory, settings))
            where = await stack.enter_async_context(_place(place, directory, settings, url))
            proof = await prove_between(made, old, new, schemas=schemas, place=where)
    if with_data:
        async with session(directory, application_name="mdm-gitops plan", read_only=True) as s:
            made = await plan_between(s.conn, old, new, schemas=schemas)
    made = _judged(made, new, settings)
    script = build_script(made, schemas=schemas, actor="")
    return Made(
        plan=made, script=script, definitions=new, environment=settings.Environment, proof=proof
    )


def _judged(plan: Plan, definitions: Definitions, settings: Settings) -> Plan:
    """Judge the tests of access as far as permissions alone decide them."""
    if not definitions.access_tests.tests:
        return plan
    from mdm_gitops.access.testing import judge_structure
    from mdm_gitops.plan.access_report import AccessReport
    from mdm_gitops.plan.build import with_access

    tests = judge_structure(definitions, admin_role=settings.Auth.AdminRole)
    return with_access(plan, AccessReport(tests=tests))


@asynccontextmanager
async def _place(kind: str, directory: Path, settings: Settings, url: str) -> AsyncIterator[Place]:
    from mdm_gitops.warehouse.proving import Place, embedded_place

    if kind == "server":
        yield Place(url=url, name="a scratch database beside the warehouse")
        return
    database = settings.Database
    async with embedded_place(
        directory, major=database.EmbeddedMajor, bin_dir=database.EmbeddedBin
    ) as where:
        yield where


def _definitions(directory: Path, rev: str | None) -> Definitions:
    from mdm_gitops.cli._session import reserved_schemas
    from mdm_gitops.model.environments import in_environment
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source import read_folder, read_revision

    settings = load_settings(folder_of(directory))
    reserved = reserved_schemas(settings)
    if looks_like_archive(directory):
        found = read_package_at(directory, rev=rev, reserved_schemas=reserved)
    elif rev is None:
        refuse_without_files(directory, settings)
        found = read_folder(directory, reserved_schemas=reserved)
    else:
        found = read_revision(directory, rev, reserved_schemas=reserved)
    return in_environment(found, settings.Environment)


def document(made: Made) -> dict[str, Any]:
    """Return the plan, and its proof where there is one, as JSON values."""
    from mdm_gitops.plan.document import to_document

    return to_document(made.plan, policy=made.definitions.project.policy, proof=made.proof)


def rendered(made: Made, format_: str, *, explain: bool, color: bool) -> str:
    """Return the plan as text, JSON, SQL for psql, or the comment of a pull request."""
    policy = made.definitions.project.policy
    if format_ == "json":
        return json.dumps(document(made), indent=2, ensure_ascii=False)
    if format_ == "sql":
        from mdm_gitops.warehouse.psql import to_psql

        return to_psql(made.script)
    if format_ == "markdown":
        from mdm_gitops.plan.markdown import render_markdown
        from mdm_gitops.warehouse.psql import to_psql

        return render_markdown(made.plan, sql=to_psql(made.script), policy=policy, proof=made.proof)
    from mdm_gitops.plan.text import render_text

    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    steps = made.script if explain else None
    return render_text(
        made.plan, colour=color, width=width, explain=steps, policy=policy, proof=made.proof
    )


def _save(made: Made, directory: Path, target: tuple[str, ...], out: Path) -> None:
    from mdm_gitops.plan.saved import SavedPlan

    saved = SavedPlan.of(
        made.plan,
        directory=directory.resolve(),
        target=target,
        environment=made.environment,
        database=made.database,
    )
    out.write_text(saved.to_text(), encoding="utf-8")
    where = f" --env {made.environment}" if made.environment else ""
    say(f"saved plan {saved.plan_id} to {out}; apply it with: mdm-gitops apply {out}{where}")


def _exit_code(plan: Plan) -> int:
    if plan.is_blocked:
        return EXIT_REFUSED
    return 0 if plan.is_empty else EXIT_CHANGES
