"""``mdm-gitops diff``: what two environments have deployed, and what promoting would change."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mdm_gitops.cli._errors import count_of
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, wants_color

if TYPE_CHECKING:
    from mdm_gitops.model import Definitions
    from mdm_gitops.plan.plan import Plan
    from mdm_gitops.settings import Settings
    from mdm_gitops.warehouse.deployed import Deployed

EXIT_DIFFERENT = 2


@dataclass(frozen=True, kw_only=True)
class Side:
    """One environment: what stands there, and what the definitions in the folder would change."""

    name: str
    deployed: Deployed
    pending: Plan


@click.command()
@click.argument("one", metavar="ENV-A")
@click.argument("other", metavar="ENV-B")
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 if they differ.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context,
    one: str,
    other: str,
    directory: Path,
    detailed_exitcode: bool,
    as_json: bool,
) -> None:
    """Compare what is deployed in two environments of mdm.yaml in DIR (default: here).

    Shows for each its commit, drift and what waits for it in DIR, and then what would change in
    ENV-B if it got what ENV-A has. What mdm.yaml says of ENV-B itself (webhooks, policy) is no
    difference. Nothing is written.
    """
    sides, promotion, seeds = asyncio.run(_compare(directory, one, other))
    same = promotion.is_empty and not seeds
    if as_json:
        echo_json(_document(sides, promotion, seeds, same=same))
    else:
        click.echo("\n".join(_page(sides, promotion, seeds)).rstrip())
    if detailed_exitcode and not same:
        ctx.exit(EXIT_DIFFERENT)


async def _compare(
    directory: Path, one: str, other: str
) -> tuple[tuple[Side, Side], Plan, tuple[str, ...]]:
    from mdm_gitops.cli._session import reserved_schemas, schemas_of
    from mdm_gitops.model.environments import environment_of, in_environment, without_overlays
    from mdm_gitops.plan.structural import structural_plan
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source import read_folder

    settings = load_settings(directory)
    wanted = read_folder(directory, reserved_schemas=reserved_schemas(settings))
    for name in (one, other):
        environment_of(wanted.project, name)
    a, b = [await _side(directory, settings, wanted, name) for name in (one, other)]
    base = _with_environments(a.deployed.definitions, wanted)
    overlaid = in_environment(without_overlays(base, one, like=wanted), other)
    promotion = structural_plan(
        _with_environments(b.deployed.definitions, wanted, like=overlaid),
        overlaid,
        data_schema=schemas_of(settings).data,
    )
    seeds = tuple(sorted(_different(a.deployed.seeds, b.deployed.seeds)))
    return (a, b), promotion, seeds


def _with_environments(
    deployed: Definitions, wanted: Definitions, *, like: Definitions | None = None
) -> Definitions:
    """Return *deployed* with the environments and, with *like*, the policy that hold here and now.

    Both are the same file's; what was deployed with an older one is no difference of definitions.
    """
    from dataclasses import replace

    own: dict[str, Any] = {"environments": wanted.project.environments}
    if like is not None:
        own |= {"policy": like.project.policy, "reconcile": like.project.reconcile}
    return replace(deployed, project=deployed.project.model_copy(update=own))


async def _side(directory: Path, settings: Settings, wanted: Definitions, name: str) -> Side:
    from mdm_gitops.cli._environment import url_of
    from mdm_gitops.cli._session import schemas_of
    from mdm_gitops.model.environments import in_environment
    from mdm_gitops.warehouse.deployed import read_deployed
    from mdm_gitops.warehouse.locate import warehouse_url
    from mdm_gitops.warehouse.planning import make_plan
    from mdm_gitops.warehouse.session import open_connection

    schemas = schemas_of(settings)
    async with warehouse_url(directory, settings, url=url_of(directory, name)) as url:
        conn = await open_connection(
            url, settings, application_name="mdm-gitops diff", read_only=True
        )
        async with conn:
            deployed = await read_deployed(conn, schemas=schemas)
            pending = await make_plan(conn, in_environment(wanted, name), schemas=schemas)
    return Side(name=name, deployed=deployed, pending=pending)


def _different(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name in {*one, *other} if one.get(name) != other.get(name))


# --- telling ---


def _document(
    sides: tuple[Side, Side], promotion: Plan, seeds: tuple[str, ...], *, same: bool
) -> dict[str, Any]:
    from mdm_gitops.plan.document import to_document

    return {
        "same": same,
        "environments": [_side_document(side) for side in sides],
        "seeds": list(seeds),
        "promotion": to_document(promotion),
    }


def _side_document(side: Side) -> dict[str, Any]:
    deployed = side.deployed
    return {
        "name": side.name,
        "commit": deployed.commit,
        "deployedUtc": deployed.deployed_at,
        "deployedBy": deployed.actor,
        "entities": len(deployed.definitions.entities),
        "permissions": len(deployed.definitions.grants),
        "webhooks": len(deployed.definitions.webhooks.webhooks),
        "drift": deployed.drift,
        "pending": {
            "changes": len(side.pending.changes),
            "blocked": side.pending.is_blocked,
            "summary": _pending_words(side),
        },
    }


def _pending_words(side: Side) -> str:
    from mdm_gitops.plan.outline import outline, summary

    if side.pending.is_empty:
        return "nothing"
    blocked = "blocked: " if side.pending.is_blocked else ""
    return blocked + summary(outline(side.pending))


def _page(sides: tuple[Side, Side], promotion: Plan, seeds: tuple[str, ...]) -> Iterator[str]:
    rows = [("", *(side.name for side in sides))]
    rows += [(label, *(words(side) for side in sides)) for label, words in _FACTS.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for number, row in enumerate(rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield click.style("  ".join(cells).rstrip(), bold=number == 0)
    yield ""
    one, other = (side.name for side in sides)
    if seeds:
        yield f"Seed files differ: {', '.join(seeds)}"
    if promotion.is_empty:
        yield f"{one} and {other} have the same definitions deployed"
        return
    yield f"If {other} got what {one} has:"
    yield ""
    yield from _plan_text(promotion).splitlines()


def _plan_text(promotion: Plan) -> str:
    from mdm_gitops.plan.text import render_text

    wanted = wants_color()
    colour = sys.stdout.isatty() if wanted is None else wanted
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    return render_text(promotion, colour=colour, width=width)


def _deployed_words(side: Side) -> str:
    moment = side.deployed.deployed_at
    if moment is None:
        return "never"
    return f"{moment:%Y-%m-%d %H:%M} UTC by {side.deployed.actor}"


_FACTS: Mapping[str, Callable[[Side], str]] = {
    "commit": lambda side: (side.deployed.commit or "none")[:12],
    "deployed": _deployed_words,
    "entities": lambda side: f"{len(side.deployed.definitions.entities):,}",
    "drift": lambda side: (
        count_of(side.deployed.drift, "difference") if side.deployed.drift else "none"
    ),
    "pending": _pending_words,
}
