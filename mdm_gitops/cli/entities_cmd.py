"""``mdm-gitops entities``: definitions, deployments, proposals and rows of a running server."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import (
    COMMENT,
    SKIP,
    TAKE,
    Input,
    Kind,
    Place,
    member,
    mirror,
    option,
)

_STATES: Final = ("draft", "deployed", "changed", "removed", "failed")
_DOMAIN: Final = option("--domain", "Only entities of this domain.")
_STATE: Final = option("--state", "Only entities in this state.", choices=_STATES)
_ALLOW: Final = member(
    "--allow",
    "What a person allows, as REMOVES_COLUMN:customer. Repeatable.",
    kind=Kind.LIST,
    metavar="CODE:ENTITY",
)
_PLAN_ID: Final = member(
    "--plan-id", "Only if the plan is still the one that `preview` showed.", metavar="ID"
)
_IF_MATCH: Final = option(
    "--if-match",
    "Only if the definition still has this ETag.",
    sends="If-Match",
    place=Place.HEADER,
    metavar="ETAG",
)
_BATCH: Final = (
    member("--batch-name", "All proposals of this batch."),
    member("--id", "This one. Repeatable.", sends="ids", kind=Kind.LIST, metavar="ID"),
    COMMENT,
)
_PROPOSAL: Final = (
    "id",
    "operation",
    "state",
    "submittedBy",
    "submittedAt",
    "batchName",
    "isStale",
)
_ENTITY: Final = (
    "name",
    "displayName",
    "domain",
    "version",
    "state=status.state",
    "commit",
    "branch",
)
_DEPLOYED: Final = ("entity", "planId", "deploymentId", "steps", "changes")

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "data": ("mdm_gitops.cli.entities_data_cmd:data", "Read and write rows."),
    "duplicates": (
        "mdm_gitops.cli.entities_duplicates_cmd:duplicates",
        "Find rows that may mean the same.",
    ),
    "merges": ("mdm_gitops.cli.entities_merges_cmd:merges", "Look at merges, and undo them."),
    "filters": ("mdm_gitops.cli.entities_filters_cmd:filters", "Keep filters by name."),
}

DEFINITIONS: Final = (
    mirror(
        "list",
        "GET",
        "/entities",
        "List definitions.",
        _DOMAIN,
        _STATE,
        items="items",
        columns=("name", "displayName", "domain", "version", "state=status.state"),
    ),
    mirror(
        "summary",
        "GET",
        "/entities/summary",
        "List entities in short, with what is deployed of each.",
        _DOMAIN,
        _STATE,
        items="items",
        columns=(
            "name",
            "domain",
            "version",
            "state",
            "deployed=deployedVersion",
            "columns=columnCount",
            "history=historyEnabled",
            "approval=approvalRequired",
        ),
    ),
    mirror(
        "show",
        "GET",
        "/entities/{name}",
        "Show one definition with its columns; --json has all of it.",
        columns=(
            "name",
            "displayName",
            "domain",
            "description",
            "version",
            "state=status.state",
            "deployed=status.deployedVersion",
            "keyColumns",
            "history=historyEnabled",
            "approval=approvalRequired",
        ),
        parts={"columns": ("name", "dataType", "nullable", "unique", "refersTo=reference.entity")},
    ),
    mirror("yaml", "GET", "/entities/{name}/yaml", "Print one definition as YAML.", is_text=True),
    mirror(
        "parse",
        "POST",
        "/entities/parse-yaml",
        "Show what a definition file says, with what it leaves to defaults.",
        reads=Input.DEFINITION,
    ),
    mirror(
        "validate",
        "POST",
        "/entities/validate",
        "Check a definition file among the definitions of the server.",
        reads=Input.DEFINITION,
        columns=("valid", "name=definition.name"),
    ),
    mirror(
        "create",
        "POST",
        "/entity-create",
        "Create a definition from a file, as a commit. `deploy` makes its tables.",
        reads=Input.DEFINITION,
        columns=_ENTITY,
    ),
    mirror(
        "save",
        "POST",
        "/entities/{name}",
        "Create or change a definition from a file, as a commit.",
        _IF_MATCH,
        reads=Input.DEFINITION,
        columns=_ENTITY,
    ),
    mirror(
        "update",
        "PUT",
        "/entities/{name}",
        "Change a definition from a file, as a commit.",
        _IF_MATCH,
        reads=Input.DEFINITION,
        columns=_ENTITY,
    ),
    mirror(
        "delete",
        "DELETE",
        "/entities/{name}",
        "Remove a definition, as a commit. Rows stay until `remove`, and then in the archive.",
        _IF_MATCH,
        asks="Remove the definition {name}?",
    ),
)

DEPLOYMENT: Final = (
    mirror(
        "preview",
        "GET",
        "/entities/{name}/deploy/preview",
        "Show the plan of deploying an entity; --json has all of it.",
        columns=("plan_id", "project", "summary=summary.text"),
        parts={
            "changes": ("number", "class", "headline", "detail"),
            "refusals": ("message",),
            "needs_allowance": ("message", "allow"),
        },
        is_long=True,
    ),
    mirror(
        "deploy",
        "POST",
        "/entities/{name}/deploy",
        "Bring the warehouse to what the definition says.",
        _ALLOW,
        _PLAN_ID,
        columns=_DEPLOYED,
        is_long=True,
    ),
    mirror(
        "redeploy",
        "POST",
        "/entities/{name}/redeploy",
        "Deploy once more, and set right what was changed by hand.",
        _ALLOW,
        _PLAN_ID,
        columns=_DEPLOYED,
        is_long=True,
    ),
    mirror(
        "remove",
        "POST",
        "/entities/{name}/deploy/remove",
        "Take an entity out of the warehouse, into its archive.",
        _ALLOW,
        asks="Take {name} with all its rows out of the warehouse, into the archive?",
        columns=_DEPLOYED,
        is_long=True,
    ),
    mirror(
        "drop-archives",
        "POST",
        "/entities/{name}/deploy/drop-archive-tables",
        "Destroy what the archive has of an entity. Nothing brings it back.",
        asks="Destroy all archived rows and columns of {name} for good?",
        fixed=lambda names: {"confirm": names["name"]},
        columns=("entity", "droppedTables", "droppedColumns"),
        is_long=True,
    ),
    mirror(
        "history",
        "GET",
        "/entities/{name}/deploy/history",
        "List the deployments of an entity, newest first.",
        SKIP,
        TAKE,
        items="items",
        columns=("id", "state", "actor", "startedUtc", "finishedUtc", "commit"),
    ),
)

APPROVALS: Final = (
    mirror(
        "pending",
        "GET",
        "/entities/{name}/pending",
        "List proposals: changes that wait for a second person.",
        option("--state", "In this state; pending.", choices=("pending", "rejected", "all")),
        option("--batch-name", "Only of this batch."),
        option("--filter", "Only rows that pass this filter.", metavar="FILTER"),
        option("--sort", "Columns to sort by, - before one for descending.", metavar="NAMES"),
        SKIP,
        TAKE,
        option("--after", "Go on from here; the page before says it.", metavar="CURSOR"),
        option("--count", "Count all of them, too.", kind=Kind.FLAG),
        items="items",
        columns=_PROPOSAL,
    ),
    mirror(
        "batches",
        "GET",
        "/entities/{name}/pending/batches",
        "List batches of proposals.",
        SKIP,
        TAKE,
        items="items",
        columns=("batchName", "count", "submittedBy", "submittedAt", "creates", "updates", "stale"),
    ),
    mirror(
        "approve",
        "POST",
        "/entities/{name}/approve/{id}",
        "Approve a proposal.",
        COMMENT,
        member(
            "--submitted-at",
            "Only if it is still the one submitted at this moment.",
            metavar="MOMENT",
        ),
    ),
    mirror(
        "reject",
        "POST",
        "/entities/{name}/reject/{id}",
        "Reject a proposal; its author may change it and propose again.",
        COMMENT,
    ),
    mirror(
        "approve-batch",
        "POST",
        "/entities/{name}/approve-batch",
        "Approve many proposals: those of a batch, or by their ids.",
        *_BATCH,
        columns=("approved", "rejected", "failed"),
        is_long=True,
    ),
    mirror(
        "reject-batch",
        "POST",
        "/entities/{name}/reject-batch",
        "Reject many proposals: those of a batch, or by their ids.",
        *_BATCH,
        columns=("approved", "rejected", "failed"),
        is_long=True,
    ),
    mirror(
        "withdraw",
        "DELETE",
        "/entities/{name}/pending/{id}",
        "Take a proposal back.",
        asks="Take the proposal for {id} back?",
        done="the proposal for {id} is gone",
    ),
)


@click.group(
    cls=LazyGroup,
    commands_table=COMMANDS,
    commands=(*DEFINITIONS, *DEPLOYMENT, *APPROVALS),
    context_settings=CONTEXT,
)
def entities() -> None:
    """Work with entities on a running server: definitions, deployments, proposals and rows."""
