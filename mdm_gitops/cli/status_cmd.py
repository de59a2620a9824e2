"""``mdm-gitops status``: what is deployed, from which commit, by whom, and what would come next.

One document is made; ``--json`` prints it, else it is laid out for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._errors import count_of
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option
from mdm_gitops.errors import DefinitionError, Finding, Location, MdmError

if TYPE_CHECKING:
    from mdm_gitops.access.catalog import Catalog, DesiredView
    from mdm_gitops.cli._session import Session
    from mdm_gitops.warehouse.status import DeploymentLine

_RECENT: Final = 5
Document = dict[str, Any]


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@json_option
@environment_option
def status(directory: Path, as_json: bool) -> None:
    """Show what is deployed in the warehouse of DIR (default: here), and how it stands to the files.

    Nothing is written. Exits with 0 whatever there is to tell.
    """
    document = asyncio.run(read_status(directory))
    if as_json:
        echo_json(document)
    else:
        click.echo("\n".join(_page(document, directory)))


async def read_status(directory: Path) -> Document:
    """Return the whole answer as JSON can hold it."""
    from mdm_gitops.cli._session import session

    view = _read_definitions(directory)
    async with session(directory, application_name="mdm-gitops status") as s:
        return await _ask(s, view)


def _read_definitions(directory: Path) -> DesiredView:
    """Read what is sound of the files: what is deployed is told also when some are broken."""
    from mdm_gitops.access.catalog import DesiredView
    from mdm_gitops.cli._session import reserved_schemas
    from mdm_gitops.model.environments import in_environment
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source import Tree, folder_tree, read_tree_leniently
    from mdm_gitops.source.git import commit_of
    from mdm_gitops.source.origin import origin_of

    settings = load_settings(directory)
    reserved = reserved_schemas(settings)
    origin = origin_of(directory, settings)
    tree: Tree
    if origin is None:
        tree = folder_tree(directory)
        commit = commit_of(directory)
    else:
        try:
            commit = origin.newest()
            tree = origin.tree(commit)
        except MdmError as error:  # what is deployed is told also while the remote is away
            return DesiredView.broken((_unreachable(error),))
    try:
        definitions, findings = read_tree_leniently(tree, commit=commit, reserved_schemas=reserved)
    except DefinitionError as error:
        return DesiredView.broken(error.findings)
    return DesiredView.of(in_environment(definitions, settings.Environment), findings)


def _unreachable(error: MdmError) -> Finding:
    message = f"the definitions cannot be had: {error}"
    return Finding(rule="not-readable", message=message, location=Location("mdm.yaml"))


async def _ask(s: Session, view: DesiredView) -> Document:
    from mdm_gitops import __version__
    from mdm_gitops.access.catalog import build_catalog
    from mdm_gitops.access.principal import Principal, PrincipalKind
    from mdm_gitops.warehouse.status import last_deployments, read_versions, recent_deployments
    from mdm_gitops.warehouse.store import read_state

    state = await read_state(s.conn, schemas=s.schemas)
    last = await last_deployments(s.conn, schemas=s.schemas)
    versions = await read_versions(s.conn, schemas=s.schemas)
    recent = await recent_deployments(s.conn, schemas=s.schemas, take=_RECENT)
    everybody = Principal(kind=PrincipalKind.SERVICE, name="status", is_global_admin=True)
    ended = {name: line.state for name, line in last.items()}
    catalog = build_catalog(state, view, principal=everybody, last_deployments=ended)
    return {
        "versions": {
            "mdmGitops": __version__,
            "postgresql": versions.server,
            "store": versions.store,
        },
        "definitions": {
            "project": view.definitions.project.name if view.definitions else None,
            "commit": view.definitions.commit if view.definitions else None,
            "findings": len(view.findings),
        },
        "entities": list(_entities(catalog, last)),
        **await _plan(s, view),
        "deployments": [_deployment(line) for line in recent],
        "operator": await _operator(s),
    }


async def _operator(s: Session) -> Document:
    """How the operator stands, wherever it runs."""
    from mdm_gitops.model.values import to_json_value
    from mdm_gitops.warehouse.reconciliation import read_reconciliation
    from mdm_gitops.warehouse.waiting_plans import list_plans

    found = await read_reconciliation(s.conn, schemas=s.schemas, events=10)
    waiting = await list_plans(s.conn, schemas=s.schemas)
    return {
        "name": found.operator,
        "source": found.source,
        "mode": found.mode,
        "heartbeatUtc": to_json_value(found.heartbeat_at) if found.heartbeat_at else None,
        "acceptedCommit": found.accepted_commit,
        **found.state,
        "suspended": [
            {"entity": each.scope or None, "by": each.suspended_by, "reason": each.reason}
            for each in found.suspensions
        ],
        "plans": [
            {"id": each.plan_id, "state": each.state, "reason": each.reason} for each in waiting
        ],
        "events": [
            {
                "occurredUtc": to_json_value(each.occurred_at),
                "kind": each.kind,
                "commit": each.commit,
                "message": each.message,
            }
            for each in found.events
        ],
    }


def _entities(catalog: Catalog, last: Mapping[str, DeploymentLine]) -> Iterator[Document]:
    from mdm_gitops.model.values import to_json_value

    for name, entry in catalog.entries.items():
        line = last.get(name)
        stored = entry.stored
        yield {
            "name": entry.definition.name,
            "domain": entry.definition.domain,
            "state": entry.state.value,
            "commit": stored.commit if stored else None,
            "deployedUtc": to_json_value(stored.deployed_at) if stored else None,
            "lastDeployment": _deployment(line) if line else None,
        }


def _deployment(line: DeploymentLine) -> Document:
    from mdm_gitops.model.values import to_json_value

    finished = line.finished_at
    return {
        "id": line.deployment_id,
        "state": line.state,
        "commit": line.commit,
        "actor": line.actor,
        "entities": line.entities,
        "startedUtc": to_json_value(line.started_at),
        "durationMs": round((finished - line.started_at).total_seconds() * 1000)
        if finished
        else None,
        "error": line.error,
    }


async def _plan(s: Session, view: DesiredView) -> Document:
    """What would come next, and drift; the deployed definitions stand in for broken ones."""
    from mdm_gitops.plan.outline import outline, summary
    from mdm_gitops.plan.policy import refused_hazards
    from mdm_gitops.warehouse.planning import make_plan
    from mdm_gitops.warehouse.store import read_state

    definitions = view.definitions if not view.findings else None
    if definitions is None:
        deployed = (await read_state(s.conn, schemas=s.schemas)).definitions
        plan = await make_plan(s.conn, deployed, schemas=s.schemas)
        return {"pending": {"state": "invalid"}, "drift": len(plan.drift)}
    plan = await make_plan(s.conn, definitions, schemas=s.schemas)
    policy = definitions.project.policy
    waiting = refused_hazards(plan, policy=policy)
    state = "in-sync" if plan.is_empty else "needs-approval" if waiting else "ready"
    return {
        "pending": {
            "state": "blocked" if plan.is_blocked else state,
            "changes": len(plan.changes),
            "summary": summary(outline(plan, policy=policy)) if plan.changes else "",
            "refusals": [refusal.message for refusal in plan.refusals],
        },
        "drift": len(plan.drift),
    }


# --- for a person ---


def _page(document: Document, directory: Path) -> Iterator[str]:
    here = "" if str(directory) == "." else f" {directory}"
    versions, definitions = document["versions"], document["definitions"]
    yield click.style(_title(definitions, directory), bold=True)
    yield (
        f"mdm-gitops {versions['mdmGitops']}, PostgreSQL {versions['postgresql']},"
        f" store version {versions['store']}"
    )
    yield ""
    yield from _entity_table(document["entities"])
    yield from _deployment_table(document["deployments"])
    yield from _operator_page(document["operator"])
    yield f"Next:  {_pending_words(document, here)}"
    drift = document["drift"]
    yield (
        f"Drift: {count_of(drift, 'difference')} (mdm-gitops drift{here})"
        if drift
        else "Drift: none"
    )


def _operator_page(operator: Document) -> Iterator[str]:
    """Nothing where no operator ever ran."""
    if operator["heartbeatUtc"] is None:
        return
    yield (
        f"Operator {operator['name']}, {operator['mode']},"
        f" last heard of {_moment(operator['heartbeatUtc'])}"
    )
    yield f"  source: {operator['source']}"
    for each in operator["suspended"]:
        why = f": {each['reason']}" if each["reason"] else ""
        yield f"  suspended: {each['entity'] or 'everything'} by {each['by']}{why}"
    last = next(iter(operator.get("history", ())), None)
    if last is not None:
        yield f"  last run: {last['outcome']} {_commit(last['commit'])}: {last['message']}"
    for each in operator["plans"]:
        yield f"  plan {each['id']} {each['state']}: {each['reason']}"
    yield ""


def _title(definitions: Document, directory: Path) -> str:
    name = definitions["project"] or str(directory.resolve())
    return f"{name}, {_commit(definitions['commit'])}" if definitions["commit"] else name


def _entity_table(entities: Sequence[Document]) -> Iterator[str]:
    if not entities:
        yield "no entities"
        yield ""
        return
    rows = [
        (
            each["name"],
            each["state"],
            _commit(each["commit"]),
            _moment(each["deployedUtc"]),
            each["lastDeployment"]["actor"] if each["lastDeployment"] else "",
        )
        for each in entities
    ]
    yield from _table(("entity", "state", "from", "deployed", "by"), rows)


def _deployment_table(deployments: Sequence[Document]) -> Iterator[str]:
    rows = [
        (
            f"#{each['id']}",
            each["state"],
            _commit(each["commit"]),
            _moment(each["startedUtc"]),
            each["actor"],
            "" if each["durationMs"] is None else f"{each['durationMs'] / 1000:.1f} s",
        )
        for each in deployments
    ]
    if rows:
        yield from _table(("deployment", "ended", "from", "started", "by", "took"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)).rstrip()

    yield click.style(line(head), dim=True)
    yield from (line(row) for row in rows)
    yield ""


def _pending_words(document: Document, here: str) -> str:
    pending = document["pending"]
    match pending["state"]:
        case "invalid":
            findings = count_of(document["definitions"]["findings"], "finding")
            return f"{findings} in the definitions (mdm-gitops validate{here})"
        case "in-sync":
            return "nothing, the warehouse is what the definitions say"
        case "blocked":
            return f"blocked: {pending['refusals'][0]} (mdm-gitops plan{here})"
        case "needs-approval":
            return f"{pending['summary']}; wants a yes (mdm-gitops apply{here})"
        case _:
            return f"{pending['summary']} (mdm-gitops apply{here})"


def _commit(commit: str | None) -> str:
    if commit is None:
        return ""
    from mdm_gitops.source.git import DIRTY

    clean = commit.removesuffix(DIRTY)
    return clean[:7] + ("+" if commit != clean else "")


def _moment(text: str | None) -> str:
    return f"{text[:10]} {text[11:16]} UTC" if text else ""
