"""Permissions, webhooks and the project compared row by row with what is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mdm_gitops.model import Action, Definitions, PermissionGrant, Webhook
from mdm_gitops.plan.changes import (
    AddWebhook,
    Change,
    ChangeProject,
    ChangeWebhook,
    GrantPermission,
    RemoveWebhook,
    RevokePermission,
)
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.fields import document_fields, webhook_fields
from mdm_gitops.plan.plan import Refusal, RefusalCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDiff:
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]


def diff_access(definitions: Definitions, facts: Facts) -> AccessDiff:
    changes = (
        *_project(definitions, facts),
        *_permissions(definitions, facts),
        *_webhooks(definitions, facts),
    )
    return AccessDiff(changes=changes, refusals=tuple(_last_admin(definitions, facts)))


def _project(definitions: Definitions, facts: Facts) -> Iterator[Change]:
    project = definitions.project
    if facts.project is None:
        yield ChangeProject(project=project)
    elif facts.project != project:
        fields = tuple(document_fields(facts.project, project))
        yield ChangeProject(project=project, fields=fields)


def _permissions(definitions: Definitions, facts: Facts) -> Iterator[Change]:
    before, after = set(facts.grants), set(definitions.grants)
    gone, new = before - after, after - before
    for grant in sorted(gone):
        other = _counterpart(grant, among=gone, other_side=new)
        yield RevokePermission(entity=grant.entity, grant=grant, replaced_by=other)
    for grant in sorted(new):
        other = _counterpart(grant, among=new, other_side=gone)
        yield GrantPermission(entity=grant.entity, grant=grant, replaces=other)


def _counterpart(
    grant: PermissionGrant,
    *,
    among: Collection[PermissionGrant],
    other_side: Collection[PermissionGrant],
) -> PermissionGrant | None:
    """Return what *grant* replaces or is replaced by, where that is one for one."""
    return _only_one_like(grant, other_side) if _only_one_like(grant, among) else None


def _only_one_like(
    grant: PermissionGrant, grants: Collection[PermissionGrant]
) -> PermissionGrant | None:
    """Return the grant for the same principal, domain and entity, if there is exactly one."""
    scope = (grant.principal, grant.domain, grant.entity)
    found = [g for g in grants if (g.principal, g.domain, g.entity) == scope]
    return found[0] if len(found) == 1 else None


def _last_admin(definitions: Definitions, facts: Facts) -> Iterator[Refusal]:
    """The guard against locking everybody out: where there was an admin, one must stay."""
    if _admins(facts.grants) and not _admins(definitions.grants):
        yield Refusal(
            code=RefusalCode.LAST_ADMIN,
            entity="",
            message="the last permission with the action admin would be removed",
            hint="Give the action admin to somebody in permissions.yaml",
        )


def _admins(grants: tuple[PermissionGrant, ...]) -> bool:
    return any(Action.ADMIN in grant.actions for grant in grants)


def _webhooks(definitions: Definitions, facts: Facts) -> Iterator[Change]:
    before, after = facts.webhooks, definitions.webhook_by_name
    for name in sorted(before.keys() - after.keys()):
        yield RemoveWebhook(name=name)
    for name in sorted(after.keys() - before.keys()):
        yield AddWebhook(webhook=after[name])
    for name in sorted(after.keys() & before.keys()):
        yield from _changed(before[name], after[name])


def _changed(old: Webhook, new: Webhook) -> Iterator[Change]:
    fields = webhook_fields(old, new)
    if fields:
        yield ChangeWebhook(webhook=new, fields=fields)
