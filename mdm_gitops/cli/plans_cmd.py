"""``mdm-gitops plans``: plans of the operator that wait for a person, and the person's word on them.

They are those of the warehouse of a folder, or those of a server where an option names one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli import LazyGroup
from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, say, tell
from mdm_gitops.cli._remote import Remote, remote_options

if TYPE_CHECKING:
    from mdm_gitops.warehouse.waiting_plans import WaitingPlan

COMMANDS: Final = {
    "list": ("mdm_gitops.cli.plans_cmd:list_plans", "List plans that wait."),
    "show": ("mdm_gitops.cli.plans_cmd:show", "Show one of them."),
    "approve": ("mdm_gitops.cli.plans_cmd:approve", "Let the operator apply it."),
    "reject": ("mdm_gitops.cli.plans_cmd:reject", "Refuse it until something changes."),
}
_DIRECTORY: Final = click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
_COMMENT: Final = click.option("--comment", default="", help="Why.")


@click.group(cls=LazyGroup, commands_table=COMMANDS)
def plans() -> None:
    """Look at plans of the operator that wait for a person, and decide them.

    Without --url, --api-key or --profile they are those of the warehouse of DIR.
    """


@click.command(name="list")
@_DIRECTORY
@click.option("--all", "ended", is_flag=True, help="Those of the past, too.")
@remote_options
@json_option
@environment_option
def list_plans(directory: Path, ended: bool, as_json: bool, remote: Remote) -> None:
    """List the plans that wait in the warehouse of DIR (default: here), newest first."""
    if remote.is_named:
        found = asyncio.run(_listed_there(remote, ended))
    else:
        found = [_document(each) for each in asyncio.run(_listed(directory, ended))]
    if as_json:
        echo_json({"items": found})
        return
    for each in found:
        commit = (each["commit"] or "")[:7]
        click.echo(f"{each['id']}  {each['state']:<10}  {commit:<7}  {each['reason']}")
    if not found:
        say("no plan waits")


@click.command()
@click.argument("plan_id", metavar="ID")
@_DIRECTORY
@remote_options
@json_option
@environment_option
def show(plan_id: str, directory: Path, as_json: bool, remote: Remote) -> None:
    """Show a plan as it was when it was made."""
    if remote.is_named:
        told = asyncio.run(_found_there(remote, plan_id))
    else:
        plan = asyncio.run(_found(directory, plan_id))
        told = {**_document(plan), "plan": plan.document}
    if as_json:
        echo_json(told)
        return
    commit = (told["commit"] or "no commit")[:12]
    click.echo(f"{told['id']}, {told['state']}, {commit}: {told['reason']}")
    document = told.get("plan") or {}
    for change in document.get("changes", ()):
        click.echo(f"  {change['number']}. [{change['class']}] {_words(change)}")
    for refusal in document.get("refusals", ()):
        click.echo(f"  refused: {refusal['message']}")
    for each in document.get("needs_allowance", ()):
        click.echo(f"  consent: {each['message']} ({each['allow']})")


@click.command()
@click.argument("plan_id", metavar="ID")
@_DIRECTORY
@_COMMENT
@remote_options
@json_option
@environment_option
def approve(plan_id: str, directory: Path, comment: str, remote: Remote, as_json: bool) -> None:
    """Approve a plan: the operator applies it if it is still exactly that plan."""
    _decided(remote, directory, plan_id, approve=True, comment=comment)
    told = f"plan {plan_id} is approved; the operator applies it if nothing has changed meanwhile"
    tell(told, as_json=as_json, id=plan_id, state="approved")


@click.command()
@click.argument("plan_id", metavar="ID")
@_DIRECTORY
@_COMMENT
@remote_options
@json_option
@environment_option
def reject(plan_id: str, directory: Path, comment: str, remote: Remote, as_json: bool) -> None:
    """Reject a plan: it is not offered again until definitions or warehouse change."""
    _decided(remote, directory, plan_id, approve=False, comment=comment)
    tell(f"plan {plan_id} is rejected", as_json=as_json, id=plan_id, state="rejected")


def _decided(remote: Remote, directory: Path, plan_id: str, *, approve: bool, comment: str) -> None:
    if remote.is_named:
        asyncio.run(_decide_there(remote, plan_id, approve=approve, comment=comment))
    else:
        asyncio.run(_decide(directory, plan_id, approve=approve, comment=comment))


async def _listed_there(remote: Remote, ended: bool) -> list[dict[str, Any]]:
    async with remote.client() as client:
        return await client.plans.list(state="all" if ended else "open")


async def _found_there(remote: Remote, plan_id: str) -> dict[str, Any]:
    async with remote.client() as client:
        return await client.plans.get(plan_id)


async def _decide_there(remote: Remote, plan_id: str, *, approve: bool, comment: str) -> None:
    async with remote.client() as client:
        decide = client.plans.approve if approve else client.plans.reject
        await decide(plan_id, comment=comment or None)


async def _listed(directory: Path, ended: bool) -> tuple[WaitingPlan, ...]:
    from mdm_gitops.cli._session import session
    from mdm_gitops.warehouse import waiting_plans

    async with session(directory, application_name="mdm-gitops plans") as s:
        return await waiting_plans.list_plans(s.conn, schemas=s.schemas, ended=ended)


async def _found(directory: Path, plan_id: str) -> WaitingPlan:
    from mdm_gitops.cli._session import session
    from mdm_gitops.warehouse.waiting_plans import find_plan

    async with session(directory, application_name="mdm-gitops plans") as s:
        return await find_plan(s.conn, plan_id, schemas=s.schemas)


async def _decide(directory: Path, plan_id: str, *, approve: bool, comment: str) -> None:
    from mdm_gitops.cli._session import actor, session
    from mdm_gitops.data import audit
    from mdm_gitops.warehouse.waiting_plans import decide_plan, find_plan

    async with session(directory, application_name="mdm-gitops plans") as s, s.conn.transaction():
        plan = await find_plan(s.conn, plan_id, schemas=s.schemas)
        who = actor()
        await decide_plan(
            s.conn, plan, schemas=s.schemas, approve=approve, actor=who, comment=comment
        )
        await audit.record(
            s.conn,
            schemas=s.schemas,
            actor=who,
            action="plan_approved" if approve else "plan_rejected",
            entities=plan.entities,
            commit=plan.commit,
            details={"planId": plan.plan_id, **({"comment": comment} if comment else {})},
        )


def _document(plan: WaitingPlan) -> dict[str, Any]:
    from mdm_gitops.model.values import to_json_value

    return {
        "id": plan.plan_id,
        "state": plan.state,
        "commit": plan.commit,
        "reason": plan.reason,
        "entities": list(plan.entities),
        "changes": plan.changes,
        "createdUtc": to_json_value(plan.created_at),
        "decidedBy": plan.decided_by,
        "comment": plan.comment,
    }


def _words(change: dict[str, Any]) -> str:
    return str(change.get("headline") or change.get("kind"))
