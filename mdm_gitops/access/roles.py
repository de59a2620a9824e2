"""The levels of permission that people speak of, in the words that permissions are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mdm_gitops.model import Action
from mdm_gitops.model.access import granted_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    name: str
    action: Action  # what a permission row holds
    description: str

    @property
    def grants(self) -> tuple[Action, ...]:
        """Return all that the action lets somebody do, in the order of ``Action``."""
        granted = granted_by((self.action,))
        return tuple(action for action in Action if action in granted)


ROLES: Final = (
    Role(
        name="Viewer",
        action=Action.READ,
        description="Reads rows and definitions within the granted scope.",
    ),
    Role(
        name="Editor",
        action=Action.WRITE,
        description="Creates, changes and deletes rows within the granted scope.",
    ),
    Role(
        name="Approver",
        action=Action.APPROVE,
        description="Approves and rejects proposed changes of entities that need approval.",
    ),
    Role(
        name="Admin",
        action=Action.ADMIN,
        description="Manages definitions, deployments and permissions within the granted scope.",
    ),
    Role(
        name="Restricted viewer",
        action=Action.VIEWRESTRICTED,
        description="Sees restricted columns in clear; reads nothing by this alone.",
    ),
)
