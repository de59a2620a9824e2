"""Definitions as frozen values: what a Git commit says the master data looks like.

Pure: nothing here reads a file, a clock or a database.
"""

from __future__ import annotations

from mdm_gitops.model.access import (
    Action,
    EventType,
    PermissionGrant,
    PermissionItem,
    Permissions,
    Webhook,
    Webhooks,
)
from mdm_gitops.model.entity import (
    AccessMode,
    Classification,
    Column,
    ConsumptionView,
    Direction,
    Entity,
    Reference,
    SeedMode,
    UniqueConstraint,
)
from mdm_gitops.model.names import fold
from mdm_gitops.model.project import ChangeClass, Domain, Environment, Policy, Project
from mdm_gitops.model.repository import Definitions, Seed
from mdm_gitops.model.values import DataType, NotOfType, coerce

__all__ = [
    "AccessMode",
    "Action",
    "ChangeClass",
    "Classification",
    "Column",
    "ConsumptionView",
    "DataType",
    "Definitions",
    "Direction",
    "Domain",
    "Entity",
    "Environment",
    "EventType",
    "NotOfType",
    "PermissionGrant",
    "PermissionItem",
    "Permissions",
    "Policy",
    "Project",
    "Reference",
    "Seed",
    "SeedMode",
    "UniqueConstraint",
    "Webhook",
    "Webhooks",
    "coerce",
    "fold",
]
