"""Why a principal may, or may not, do something with an entity: each assignment with what it does here.

Pure; it judges by ``rights`` and adds only the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdm_gitops.access.principal import Principal
from mdm_gitops.access.rights import Rights, rights_of
from mdm_gitops.model import AccessMode, Action, Entity, PermissionGrant
from mdm_gitops.model.access import ALL_DOMAINS, granted_by
from mdm_gitops.warehouse.store import StoreState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One assignment of one of the principal's names. *refused* says why it does nothing here."""

    grant: PermissionGrant
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    rights: Rights
    reasons: tuple[Reason, ...]
    summary: Mapping[Action, str]  # for each action one sentence

    def reasons_for(self, action: Action) -> tuple[Reason, ...]:
        """Return the assignments that give *action*."""
        return tuple(
            reason
            for reason in self.reasons
            if not reason.refused and action in granted_by(reason.grant.actions)
        )


def explain(principal: Principal, entity: Entity, state: StoreState) -> Explanation:
    """Return what *principal* may do with *entity*, and from what it follows."""
    rights = rights_of(principal, entity, state)
    grants = sorted(
        {grant for name in principal.identities for grant in state.grants.get(name, ())}
    )
    reasons = tuple(
        Reason(grant=grant, refused=_why_not(grant, entity))
        for grant in grants
        if not grant.entity or grant.entity == entity.folded
    )
    summary = {action: _sentence(principal, rights, action) for action in Action}
    return Explanation(rights=rights, reasons=reasons, summary=summary)


def _why_not(grant: PermissionGrant, entity: Entity) -> str:
    if grant.domain not in (entity.domain, ALL_DOMAINS):
        return f"{entity.name} belongs to domain {entity.domain}"
    if not grant.entity and entity.access.mode is AccessMode.RESTRICTED:
        return f"{entity.name} is restricted: only its own assignments reach it"
    return ""


def _sentence(principal: Principal, rights: Rights, action: Action) -> str:
    if principal.is_global_admin:
        return "all rows, as a Global Admin"
    if not rights.may(action):
        return "no: nothing grants it"
    filters = rights.filters_for(action)
    if not filters:
        return "all rows"
    return "rows where " + " or ".join(f"({text})" for text in filters)
