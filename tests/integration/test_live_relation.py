"""What PostgreSQL prints of a relation is the same whoever asks, so it can be compared as text."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

pytestmark = pytest.mark.anyio

TABLE = """
CREATE TABLE mdm_data.moment (
    "when" timestamptz DEFAULT '2026-03-29T01:30:00Z',
    pause interval DEFAULT 'P1DT2H',
    CONSTRAINT ck_moment CHECK ("when" >= '1999-12-31T23:00:00Z' AND pause > 'PT0S')
)
"""
LOOK = """
SELECT fingerprint, objects
  FROM mdm.live_look(ARRAY['mdm_data'], ARRAY['moment'])
  JOIN mdm.live_relation(ARRAY['mdm_data'], ARRAY['moment']) USING (schema_name, relation_name)
"""


@pytest.mark.parametrize(
    "setting",
    [
        "timezone = 'Australia/Lord_Howe'",
        "datestyle = 'German, DMY'",
        "intervalstyle = 'sql_standard'",
        "search_path = mdm_data",
        "quote_all_identifiers = on",
    ],
)
async def test_a_session_of_other_settings_sees_the_same(
    conn: AsyncConnection[Any], database_url: str, setting: str
) -> None:
    await conn.execute(TABLE)
    ours = await (await conn.execute(LOOK)).fetchall()
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
        await other.execute(f"SET {setting}")
        theirs = await (await other.execute(LOOK)).fetchall()
    assert theirs == ours
    assert ours[0][1]["columns"]["when"]["default"] == (
        "'2026-03-29 01:30:00+00'::timestamp with time zone"
    )
