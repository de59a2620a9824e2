"""Tiers: which features an installation has. ``Mdm__Tier`` says it once for all who ask.

A tier includes those below it. It says nothing about who asks: a feature above the tier is refused
to a Global Admin too.
"""

from __future__ import annotations

from enum import StrEnum

from mdm_gitops.errors import AccessDenied


class Tier(StrEnum):
    """In ascending order."""

    COMMUNITY = "Community"
    PROFESSIONAL = "Professional"
    ENTERPRISE = "Enterprise"

    def includes(self, needed: Tier) -> bool:
        return _RANK[self] >= _RANK[needed]

    def require(self, needed: Tier, what: str) -> None:
        """Raise AccessDenied (``TIER_REQUIRED``) if *what* is above this tier."""
        if not self.includes(needed):
            raise AccessDenied(
                f"{what} needs the tier {needed.value}, this is {self.value}",
                hint="Mdm__Tier sets the tier of the server",
                code="TIER_REQUIRED",
            )


_RANK = {tier: rank for rank, tier in enumerate(Tier)}
