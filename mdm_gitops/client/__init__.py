"""A client of a running server: typed, asynchronous, streaming both ways.

    async with Client("https://mdm.example.com", api_key=key) as mdm:
        async for row in mdm.rows("customer").list(filter="[country] = 'CH'"):
            ...

What the command line asks of a server goes through here, too. Errors are ``mdm_gitops.errors.MdmError``
with the code of the server; nothing here knows of terminals.
"""

from __future__ import annotations

from mdm_gitops.client.client import Client
from mdm_gitops.client.connection import ApiKey, BearerToken, Connection, Credential, NoCredential
from mdm_gitops.client.problems import ApiError
from mdm_gitops.client.profiles import Profile, Profiles
from mdm_gitops.client.retries import Retries
from mdm_gitops.client.transport import Answer, Limits
from mdm_gitops.client.values import (
    BatchOutcome,
    Change,
    Committed,
    ImportOutcome,
    Json,
    Page,
    RowError,
)

__all__ = [
    "Answer",
    "ApiError",
    "ApiKey",
    "BatchOutcome",
    "BearerToken",
    "Change",
    "Client",
    "Committed",
    "Connection",
    "Credential",
    "ImportOutcome",
    "Json",
    "Limits",
    "NoCredential",
    "Page",
    "Profile",
    "Profiles",
    "Retries",
    "RowError",
]
