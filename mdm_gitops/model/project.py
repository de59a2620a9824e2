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


class CommittedAllowance(Definition):
    """What a commit allows beyond the policy: one hazard of one subject, until a day has ended."""

    allow: Annotated[str, Field(pattern=r"^[A-Z_]+:[A-Za-z][A-Za-z0-9_.]*$")]
    until: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]  # its last day, UTC
    reason: str | None = None


class Policy(Definition):
    """What may be applied without a person looking at it, and how much may vanish at once."""

    auto_apply: Annotated[
        tuple[Annotated[ChangeClass, Field(strict=False)], ...], Field(strict=False)
    ] = (ChangeClass.SAFE, ChangeClass.DATA_DEPENDENT)
    max_removed_entities: Annotated[int, Field(ge=0)] = 5
    max_removed_percent: Annotated[int, Field(ge=0, le=100)] = 30
    allowances: Annotated[tuple[CommittedAllowance, ...], Field(strict=False)] = ()


class ReconcileMode(StrEnum):
    """What the operator does by itself, from most to least; the order is part of the meaning."""

    HEAL = "heal"  # applies what the policy lets in, and sets drift right
    PLAN_ONLY = "plan-only"  # every plan waits for a person
    OBSERVE = "observe"  # looks and tells


class ModeOverride(Definition):
    entities: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    mode: Annotated[ReconcileMode, Field(strict=False)]


class WindowKind(StrEnum):
    ALLOW = "allow"  # where there is one, nothing is applied outside of all of them
    DENY = "deny"  # nothing is applied inside, whatever is allowed


class Weekday(StrEnum):
    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


ClockTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class SyncWindow(Definition):
    """From *start* up to *end*; it goes past midnight where *end* is not later."""

    kind: Annotated[WindowKind, Field(strict=False)]
    days: Annotated[tuple[Annotated[Weekday, Field(strict=False)], ...], Field(strict=False)] = ()
    start: ClockTime
    end: ClockTime
    timezone: str = "UTC"


class Reconcile(Definition):
    """How the operator keeps the warehouse what the definitions say."""

    mode: Annotated[ReconcileMode, Field(strict=False)] = ReconcileMode.HEAL
    overrides: Annotated[tuple[ModeOverride, ...], Field(strict=False)] = ()
    windows: Annotated[tuple[SyncWindow, ...], Field(strict=False)] = ()


class WebhookOverlay(Definition):
    """What one environment has otherwise of the webhook *name*; what is absent stays as it is."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    url: Annotated[str, Field(min_length=1, max_length=2_048)] | None = None
    secret_ref: Annotated[str, Field(max_length=200)] | None = None
    is_active: Annotated[bool | None, Field(alias="is_active")] = None


class Environment(Definition):
    """One place the definitions run in. ``databaseUrlRef`` names an environment variable."""

    name: str
    description: str | None = None
    database_url_ref: str | None = None
    policy: Policy | None = None
    reconcile: Reconcile | None = None
    webhooks: Annotated[tuple[WebhookOverlay, ...], Field(strict=False)] = ()


class Project(Definition, defer_build=False):
    name: str
    api_version: Literal["mdm-gitops/v1"]
    description: str | None = None
    domains: Annotated[tuple[Domain, ...], Field(strict=False)] = ()
    policy: Policy = Policy()
    reconcile: Reconcile = Reconcile()
    environments: Annotated[tuple[Environment, ...], Field(strict=False)] = ()
