"""``mdm-gitops audit`` and ``mdm-gitops roles``: who did what, and what roles there are."""

from __future__ import annotations

from typing import Final

from mdm_gitops.cli._mirror import SKIP, TAKE, Option, mirror, option

FROM_UTC: Final = option("--from-utc", "From this moment on, as 2026-01-31T00:00:00Z.")
TO_UTC: Final = option("--to-utc", "Up to this moment.")
_OPTIONS: Final[tuple[Option, ...]] = (
    option("--entity", "Only of this entity.", sends="entityName"),
    option("--user", "Only what this principal did."),
    option("--action", "Only this action, such as data_updated or deployed."),
    option("--record-id", "Only of this row."),
    FROM_UTC,
    TO_UTC,
    SKIP,
    TAKE,
)

audit = mirror(
    "audit",
    "GET",
    "/audit",
    "Show who did what, newest first. For Global Admins.",
    *_OPTIONS,
    items="entries",
    columns=("occurredUtc", "user", "action", "entityName", "recordId"),
)

roles = mirror(
    "roles",
    "GET",
    "/roles",
    "List the roles that permissions are made of.",
    items="items",
    columns=("name", "action", "grants", "description"),
)
