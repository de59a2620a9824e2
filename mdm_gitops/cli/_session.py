"""What every command that needs the warehouse shares: a session with it, and who is acting."""

from __future__ import annotations

import getpass
import os

from mdm_gitops.warehouse.session import (
    Session,
    database_identity,
    patience_of,
    reserved_schemas,
    schemas_of,
    session,
)

__all__ = [
    "Session",
    "actor",
    "database_identity",
    "patience_of",
    "reserved_schemas",
    "schemas_of",
    "session",
]


def actor() -> str:
    """Return who applies, for the journal: ``user:<name>`` of the machine, or what CI says."""
    name = os.environ.get("MDM_ACTOR")
    if name:
        return name
    try:
        return f"user:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"user:{os.getuid()}"
