"""``mdm-gitops webhooks``: subscriptions of a running server and what became of their deliveries."""

from __future__ import annotations

from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import Kind, Option, member, mirror, option, take
from mdm_gitops.cli.shared_yaml_cmd import export_command, import_command

_ACTIONS: Final = (
    "data_created",
    "data_updated",
    "data_soft_deleted",
    "data_deleted",
    "data_restored",
    "data_edited",
    "data_rejected",
)
_MEMBERS: Final = ("name", "url", "domains", "entities", "actions", "description", "is_active")


def _subscription(*, is_new: bool) -> tuple[Option, ...]:
    return (
        member("--name", "What people call it.", required=is_new),
        member("--target", "Where deliveries go.", sends="url", metavar="URL", required=is_new),
        member("--domain", "Only this domain. Repeatable.", sends="domains", kind=Kind.LIST),
        member("--entity", "Only this entity. Repeatable.", sends="entities", kind=Kind.LIST),
        member(
            "--action",
            "Only this event. Repeatable.",
            sends="actions",
            kind=Kind.LIST,
            choices=_ACTIONS,
        ),
        member("--description", "What it is for."),
        member("--active/--inactive", "Whether it is served.", sends="is_active", kind=Kind.FLAG),
        member(
            "--secret-ref",
            "Variable or file of the server that has the secret; else the server makes one.",
            metavar="NAME",
        ),
    )


def _kept(present: Any) -> dict[str, Any]:
    """What a subscription has and keeps if the command says nothing else."""
    return {name: present[name] for name in (*_MEMBERS, "secretRef")}


COMMANDS: Final = (
    mirror(
        "list",
        "GET",
        "/webhooks",
        "List subscriptions.",
        items="items",
        columns=("id", "name", "url", "active=is_active", "behind", "waiting", "dead"),
    ),
    mirror("show", "GET", "/webhooks/{id}", "Show one subscription."),
    mirror(
        "create",
        "POST",
        "/webhooks",
        "Subscribe, as a commit. The secret that is shown is shown this once.",
        *_subscription(is_new=True),
    ),
    mirror(
        "update",
        "PUT",
        "/webhooks/{id}",
        "Change a subscription, as a commit. What is not given stays as it is.",
        *_subscription(is_new=False),
        present=_kept,
    ),
    mirror(
        "delete",
        "DELETE",
        "/webhooks/{id}",
        "Unsubscribe, as a commit.",
        asks="Remove webhook {id}? What it has not delivered yet is not delivered.",
    ),
    mirror("test", "POST", "/webhooks/{id}/test", "Send one test delivery, and say how it went."),
    mirror(
        "deliveries",
        "GET",
        "/webhooks/{id}/deliveries",
        "List what was not delivered.",
        option("--state", "Only deliveries in this state.", choices=("waiting", "dead", "blocked")),
        option("--after", "Only changes after this one.", kind=Kind.NUMBER, minimum=0),
        take(500),
        items="items",
        columns=("id", "recordId", "state", "attempts", "lastStatus", "lastError"),
    ),
    mirror(
        "replay",
        "POST",
        "/webhooks/{id}/deliveries/{n}/replay",
        "Deliver one change again; `deliveries` names it.",
        done="change {n} will be delivered again",
    ),
    mirror(
        "replay-from",
        "POST",
        "/webhooks/{id}/replay",
        "Deliver all changes again from a place of the change log.",
        member(
            "--after-id",
            "Changes after this one.",
            kind=Kind.NUMBER,
            minimum=0,
            required=True,
        ),
    ),
    mirror(
        "rotate-secret",
        "POST",
        "/webhooks/{id}/secret",
        "Make a new secret; the one before stays good for a while.",
    ),
    export_command("webhooks"),
    import_command("webhooks"),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def webhooks() -> None:
    """Subscribe to changes on a running server, and look after the deliveries."""
