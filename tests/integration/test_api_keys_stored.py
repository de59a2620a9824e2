"""API keys in the store: whose the bootstrap key may not be, and what is noted of their use."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access.api_keys import digest, ensure_first_key, note_use
from mdm_gitops.errors import SettingsError, WarehouseError
from mdm_gitops.warehouse.names import Schemas

pytestmark = pytest.mark.anyio

ONE = "first-long-bootstrap-key"


async def test_the_key_of_somebody_else_is_refused(conn: AsyncConnection[Any]) -> None:
    await conn.execute(
        "INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by)"
        " VALUES ('import', %s, false, 'user:ann')",
        [digest(ONE)],
    )
    with pytest.raises(SettingsError, match="is the key of another name already"):
        await ensure_first_key(conn, schemas=Schemas(), configured=ONE)


async def test_use_is_noted_to_the_minute(conn: AsyncConnection[Any]) -> None:
    await ensure_first_key(conn, schemas=Schemas(), configured=ONE)

    async def noted() -> Any:
        await note_use(conn, schemas=Schemas(), names=frozenset({"bootstrap", "unknown"}))
        return await (await conn.execute("SELECT xmin, last_used_at FROM mdm.api_key")).fetchone()

    first = await noted()
    assert first is not None
    assert first[1] is not None
    assert await noted() == first
    await conn.execute("UPDATE mdm.api_key SET last_used_at = now() - interval '61 s'")
    assert (await noted())[1] > first[1]


async def test_use_that_cannot_be_noted_is_an_outage(conn: AsyncConnection[Any]) -> None:
    with pytest.raises(WarehouseError, match="the use of API keys could not be recorded"):
        await note_use(conn, schemas=Schemas(config="nowhere"), names=frozenset({"a"}))
