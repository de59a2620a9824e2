"""API keys in the store: whose the bootstrap key may not be, and what is noted of their use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access.api_keys import (
    MAX_LENGTH,
    MIN_BOOTSTRAP_LENGTH,
    digest,
    ensure_first_key,
    note_use,
)
from mdm_gitops.access.key_admin import create_key, list_keys, revoke_key
from mdm_gitops.errors import Conflict, NotFound, SettingsError, WarehouseError
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


async def test_without_a_setting_one_key_is_made_up_and_told_once(
    conn: AsyncConnection[Any],
) -> None:
    made = await ensure_first_key(conn, schemas=Schemas())
    assert made is not None and made.startswith("mdm_")
    row = await (
        await conn.execute("SELECT key_sha256, is_global_admin FROM mdm.api_key")
    ).fetchone()
    assert row == (digest(made), True)
    assert await ensure_first_key(conn, schemas=Schemas()) is None


@pytest.mark.parametrize("length", [MIN_BOOTSTRAP_LENGTH - 1, MAX_LENGTH + 1])
async def test_a_first_key_of_no_good_length_is_refused(
    conn: AsyncConnection[Any], length: int
) -> None:
    with pytest.raises(SettingsError, match="must have 20 to"):
        await ensure_first_key(conn, schemas=Schemas(), configured="x" * length)
    cursor = await conn.execute("SELECT count(*) FROM mdm.api_key")
    assert await cursor.fetchone() == (0,)


async def test_a_store_that_does_not_answer_is_an_outage(conn: AsyncConnection[Any]) -> None:
    """What the database says of it stays inside."""
    nowhere, now = Schemas(config="nowhere"), datetime.now(UTC)
    attempts = [
        list_keys(conn, schemas=nowhere),
        create_key(
            conn,
            "a",
            schemas=nowhere,
            actor="user:ann",
            now=now,
            expires_at=None,
            is_global_admin=False,
        ),
        revoke_key(conn, "a", schemas=nowhere, actor="user:ann", now=now, has_other_admins=False),
    ]
    for attempt in attempts:
        with pytest.raises(WarehouseError) as refused:
            await attempt
        assert str(refused.value) == "API keys cannot be read or changed now"


async def test_a_key_is_revoked_once(conn: AsyncConnection[Any]) -> None:
    given: dict[str, Any] = {"schemas": Schemas(), "actor": "user:ann", "now": datetime.now(UTC)}
    await create_key(conn, "a", expires_at=None, is_global_admin=False, **given)
    await create_key(conn, "b", expires_at=None, is_global_admin=True, **given)
    await revoke_key(conn, "a", has_other_admins=False, **given)
    with pytest.raises(Conflict, match="b is the last key of a Global Admin"):
        await revoke_key(conn, "b", has_other_admins=False, **given)
    await revoke_key(conn, "b", has_other_admins=True, **given)
    assert all(key.revoked_at for key in await list_keys(conn, schemas=Schemas()))
    for name in ("a", "nobody", "a\x00"):
        with pytest.raises(NotFound):
            await revoke_key(conn, name, has_other_admins=True, **given)
