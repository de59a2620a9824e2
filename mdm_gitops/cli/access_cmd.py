"""``mdm-gitops access``: who may do what with an entity, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli import LazyGroup
from mdm_gitops.cli._output import echo_json, json_option

if TYPE_CHECKING:
    from mdm_gitops.access import Principal
    from mdm_gitops.access.explain import Explanation, Reason
    from mdm_gitops.data.reach import Reach
    from mdm_gitops.model import Action, Entity

COMMANDS: Final = {
    "explain": (
        "mdm_gitops.cli.access_cmd:explain",
        "Say who may do what with an entity, and why.",
    ),
}


@click.group(cls=LazyGroup, commands_table=COMMANDS)
def access() -> None:
    """Look into permissions as they are deployed."""


@click.command()
@click.option("--user", "name", required=True, help="Principal: ana, group:sales, apikey:shop, ...")
@click.option("--group", "groups", multiple=True, help="A group of the user; may be repeated.")
@click.option("--entity", required=True, help="Name of the entity.")
@click.option(
    "--dir",
    "directory",
    default=".",
    type=click.Path(path_type=Path),
    help="Folder of the definitions (default: here).",
)
@json_option
def explain(name: str, groups: Sequence[str], entity: str, directory: Path, as_json: bool) -> None:
    """Say what a principal may do with an entity, which rows it reaches, and from what it follows.

    The deployed permissions are judged, by the very rules that requests are judged by. Groups come
    from the identity provider, so they are given here.
    """
    from mdm_gitops.access import principal_named

    principal = principal_named(name, groups=groups)
    definition, explanation, reach = asyncio.run(_explained(directory, principal, entity))
    if as_json:
        echo_json(_document(principal, definition, explanation, reach))
    else:
        _show(principal, definition, explanation, reach)


async def _explained(
    directory: Path, principal: Principal, entity: str
) -> tuple[Entity, Explanation, dict[Action, Reach]]:
    from mdm_gitops.access.explain import explain as explain_rights
    from mdm_gitops.cli._session import session
    from mdm_gitops.data.asking import Asking, no_such_entity
    from mdm_gitops.data.reach import count_reach
    from mdm_gitops.model import Action, fold
    from mdm_gitops.warehouse.store import read_state

    async with session(directory, application_name="mdm-gitops access", read_only=True) as s:
        state = await read_state(s.conn, schemas=s.schemas)
        stored = state.entities.get(fold(entity))
        if stored is None:
            raise no_such_entity(entity, state.entities)
        asking = Asking(principal=principal, state=state, schemas=s.schemas, now=datetime.now(UTC))
        reach = {
            action: await count_reach(s.conn, asking=asking, stored=stored, action=action)
            for action in (Action.READ, Action.WRITE, Action.APPROVE)
        }
        return stored.definition, explain_rights(principal, stored.definition, state), reach


def _show(
    principal: Principal, entity: Entity, explanation: Explanation, reach: dict[Action, Reach]
) -> None:
    from mdm_gitops.plan.human import visible

    names = ", ".join(sorted(principal.identities))
    click.echo(visible(f"{principal.actor} and {entity.name} of domain {entity.domain}"))
    click.echo(visible(f"known as {names}"))
    click.echo()
    for action, sentence in explanation.summary.items():
        counted = reach.get(action)
        count = f"  ({counted.rows:,} of {counted.total:,} rows)" if counted else ""
        click.echo(visible(f"{action.value:<15} {sentence}{count}"))
        for reason in explanation.reasons_for(action):
            click.echo(visible(f"{'':<15}   by {_words(reason)}"))
    refused = [reason for reason in explanation.reasons if reason.refused]
    if refused:
        click.echo()
    for reason in refused:
        click.echo(visible(f"without effect: {_words(reason)}: {reason.refused}"))


def _words(reason: Reason) -> str:
    grant = reason.grant
    place = f"{grant.domain}/{grant.entity}" if grant.entity else f"domain {grant.domain}"
    actions = ", ".join(action.value for action in grant.actions)
    where = f" where {grant.row_filter}" if grant.row_filter else ""
    return f"{grant.principal}: {actions} on {place}{where}"


def _document(
    principal: Principal, entity: Entity, explanation: Explanation, reach: dict[Action, Reach]
) -> dict[str, Any]:
    return {
        "principal": principal.actor,
        "identities": sorted(principal.identities),
        "entity": entity.name,
        "domain": entity.domain,
        "actions": {
            action.value: {
                "granted": explanation.rights.may(action),
                "summary": sentence,
                "rowFilters": list(explanation.rights.filters_for(action)),
                "rows": reach[action].rows if action in reach else None,
                "totalRows": reach[action].total if action in reach else None,
                "by": [_words(reason) for reason in explanation.reasons_for(action)],
            }
            for action, sentence in explanation.summary.items()
        },
        "withoutEffect": [
            {"assignment": _words(reason), "reason": reason.refused}
            for reason in explanation.reasons
            if reason.refused
        ],
    }
