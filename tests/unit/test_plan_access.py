"""Permissions, webhooks and the project against what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import pytest

from mdm_gitops.model import PermissionGrant, Project, Webhook
from mdm_gitops.plan.access import diff_access
from mdm_gitops.plan.facts import Facts
from tests.support.scenario import Documents, definitions, entity, grant, webhook
from tests.support.simulated import told


def on(entity_name: str, *actions: str, user: str = "ann", row_filter: str = "") -> Documents:
    found = {"users": [user], "domains": ["lab"], "entities": [entity_name]}
    return {
        **found,
        "actions": list(actions),
        **({"rowFilterDsl": row_filter} if row_filter else {}),
    }


def stored(permissions: Sequence[Documents]) -> tuple[PermissionGrant, ...]:
    return definitions(entity("item"), entity("other"), permissions=list(permissions)).grants


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([grant("ann", "read")], [grant("ann", "read")], []),
        ([], [grant("ann", "read")], ["grant ann  read"]),
        ([grant("ann", "read")], [], ["revoke ann  read"]),
        (
            [grant("ann", "read")],
            [grant("ann", "write")],
            ["revoke ann  read, then write", "grant ann  write, before read"],
        ),
        (
            [on("item", "read")],
            [on("other", "read")],
            ["revoke ann item read", "grant ann other read"],
        ),
        (
            [on("item", "read", row_filter="[code] = 'a'")],
            [on("item", "read", row_filter="[code] = 'b'"), on("item", "write")],
            ["revoke ann item read", "grant ann item read", "grant ann item write"],
        ),
        (
            [on("item", "read"), on("item", "write")],
            [on("item", "approve")],
            ["revoke ann item read", "revoke ann item write", "grant ann item approve"],
        ),
    ],
    ids=["same", "new", "gone", "other", "moved", "one-for-two", "two-for-one"],
)
def test_permissions(before: list[Documents], after: list[Documents], changes: list[str]) -> None:
    wanted = definitions(entity("item"), entity("other"), permissions=after)
    facts = Facts(data_schema="d", grants=stored(before), project=wanted.project)
    found = []
    for change in diff_access(wanted, facts).changes:
        text = f"{change.kind.split('-')[0]} {_words(change.grant)}"
        other = getattr(change, "replaced_by", None)
        text += f", then {_verbs(other)}" if other else ""
        other = getattr(change, "replaces", None)
        found.append(text + (f", before {_verbs(other)}" if other else ""))
    assert found == changes


def _words(grant: PermissionGrant) -> str:
    return f"{grant.principal} {grant.entity} {_verbs(grant)}"


def _verbs(grant: PermissionGrant) -> str:
    return "+".join(action.value for action in grant.actions)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ([grant("root", "admin")], [], True),
        ([grant("root", "admin")], [grant("root", "write", "approve")], True),
        ([grant("root", "admin")], [grant("ann", "read", "admin")], False),
        ([], [grant("ann", "read")], False),
        ([grant("ann", "read")], [], False),
    ],
)
def test_the_last_admin_stays(
    before: list[Documents], after: list[Documents], refused: bool
) -> None:
    wanted = definitions(entity("item"), entity("other"), permissions=after)
    found = diff_access(wanted, Facts(data_schema="d", grants=stored(before))).refusals
    assert [refusal.code.value for refusal in found] == ["LAST_ADMIN"] * refused


def hooks(*documents: Documents) -> MappingProxyType[str, Webhook]:
    found = definitions(entity("item"), webhooks=list(documents)).webhook_by_name
    return MappingProxyType(dict(found))


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([webhook("a")], [webhook("a")], []),
        ([webhook("a"), webhook("b")], [webhook("c")], ["remove a", "remove b", "add c"]),
        ([webhook("a")], [webhook("a", is_active=False)], ["change a: is_active"]),
        (
            [webhook("a"), webhook("b")],
            [webhook("b", description="x", url="https://example.com/y")],
            ["remove a", "change b: url description"],
        ),
    ],
)
def test_webhooks(before: list[Documents], after: list[Documents], changes: list[str]) -> None:
    wanted = definitions(entity("item"), webhooks=after)
    facts = Facts(data_schema="d", webhooks=hooks(*before), project=wanted.project)
    found = []
    for change in diff_access(wanted, facts).changes:
        name = getattr(change, "name", None) or change.webhook.name
        paths = " ".join(field.path for field in getattr(change, "fields", ()))
        found.append(f"{change.kind.split('-')[0]} {name}" + (f": {paths}" if paths else ""))
    assert found == changes


@pytest.mark.parametrize(
    ("stored_project", "paths"),
    [
        (None, [[]]),
        (definitions(entity("item")).project, []),
        (definitions(entity("item"), policy={"maxRemovedEntities": 1}).project, [["policy"]]),
    ],
    ids=["first", "same", "other"],
)
def test_the_project(stored_project: Project | None, paths: list[list[str]]) -> None:
    found = diff_access(
        definitions(entity("item")), Facts(data_schema="d", project=stored_project)
    ).changes
    assert [told(change).split()[0] for change in found] == ["change-project"] * len(paths)
    assert [[field.path for field in change.fields] for change in found] == paths
