"""Who is asking, what that principal may do, and which tier the installation is.

Everything that shows or changes something asks ``rights_of`` and nothing else.
"""

from __future__ import annotations

from mdm_gitops.access.principal import Principal, PrincipalKind, principal_named
from mdm_gitops.access.rights import NO_RIGHTS, Rights, may_administer, rights_of
from mdm_gitops.access.tier import Tier

__all__ = [
    "NO_RIGHTS",
    "Principal",
    "PrincipalKind",
    "Rights",
    "Tier",
    "may_administer",
    "principal_named",
    "rights_of",
]
