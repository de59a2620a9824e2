"""Who is asking, and what that principal may do.

Everything that shows or changes something asks ``rights_of`` and nothing else.
"""

from __future__ import annotations

from mdm_gitops.access.principal import Principal, PrincipalKind
from mdm_gitops.access.rights import NO_RIGHTS, Rights, rights_of

__all__ = ["NO_RIGHTS", "Principal", "PrincipalKind", "Rights", "rights_of"]
