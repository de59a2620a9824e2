"""``mdm.yaml``: the project's name, its domains, and the policy of what may be applied how.

Environments are overlays of the same values; which one is used is chosen on the command line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from mdm_gitops.model.base import Definition

API_VERSION = "mdm-gitops/v1"


class Domain(Definition):
    name: str
    display_name: str | None = None
    description: str | None = None


class ChangeClass(StrEnum):
    """How much a change can hurt, from least to most; the order is part of the meaning."""

    SAFE = "safe"
    DATA_DEPENDENT = "data-dependent"  # fails if live rows break the new rule
    BREAKING = "breaking"  # clients that name the old thing stop working
    SECURITY_WIDENING = "security-widening"  # somebody sees or may do more than before
    DESTRUCTIVE = "destructive"  # data leaves the visible tables (into an archive)


class Policy(Definition):
    """What may be applied without a person looking at it, and how much may vanish at once."""

    auto_apply: Annotated[
        tuple[Annotated[ChangeClass, Field(strict=False)], ...], Field(strict=False)
    ] = (ChangeClass.SAFE, ChangeClass.DATA_DEPENDENT)
    max_removed_entities: Annotated[int, Field(ge=0)] = 5
    max_removed_percent: Annotated[int, Field(ge=0, le=100)] = 30


class Environment(Definition):
    """One place the definitions run in. ``databaseUrlRef`` names an environment variable."""

    name: str
    description: str | None = None
    database_url_ref: str | None = None
    policy: Policy | None = None


class Project(Definition):
    name: str
    api_version: Literal["mdm-gitops/v1"]
    description: str | None = None
    domains: Annotated[tuple[Domain, ...], Field(strict=False)] = ()
    policy: Policy = Policy()
    environments: Annotated[tuple[Environment, ...], Field(strict=False)] = ()
