"""The short look of a relation: it moves with whatever its description in words moves with."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import AsyncConnection

from tests.support import warehouses as on
from tests.support.repositories import build

pytestmark = pytest.mark.anyio

TABLES = """
CREATE TABLE mdm_data.target (a text NOT NULL, b text NOT NULL);
CREATE UNIQUE INDEX target_a ON mdm_data.target (a);
CREATE UNIQUE INDEX target_b ON mdm_data.target (b);
CREATE TYPE mdm_data.mood AS ENUM ('good');
CREATE TABLE mdm_data.t (
    id uuid CONSTRAINT t_pk PRIMARY KEY, a text, b text, n numeric(10,2) DEFAULT 1, m mdm_data.mood,
    r text CONSTRAINT fk_r REFERENCES mdm_data.target (a) DEFERRABLE,
    CONSTRAINT ck_a CHECK (length(a) <= 5)
);
ALTER TABLE mdm_data.t ADD CONSTRAINT ck_later CHECK (n > 0) NOT VALID;
CREATE INDEX ix_a ON mdm_data.t (a);
CREATE FUNCTION mdm_data.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER tr BEFORE INSERT ON mdm_data.t FOR EACH ROW EXECUTE FUNCTION mdm_data.f();
CREATE VIEW mdm_data.v AS SELECT a FROM mdm_data.t;
"""
BOTH = """
SELECT (SELECT jsonb_object_agg(relation_name, fingerprint) FROM mdm.live_look(ARRAY['mdm_data'])),
       (SELECT jsonb_object_agg(relation_name, objects || jsonb_build_object('kind', kind))
          FROM mdm.live_relation(ARRAY['mdm_data']))
"""
MOVING = {
    "ALTER TABLE mdm_data.t ADD COLUMN c text": {"t"},
    "ALTER TABLE mdm_data.t RENAME COLUMN b TO c": {"t"},
    "ALTER TABLE mdm_data.t RENAME COLUMN a TO c": {"t", "v"},
    "ALTER TABLE mdm_data.t DROP COLUMN b": {"t"},
    "ALTER TABLE mdm_data.t ALTER COLUMN b SET NOT NULL": {"t"},
    "ALTER TABLE mdm_data.t ALTER COLUMN b SET DEFAULT 'x'": {"t"},
    "ALTER TABLE mdm_data.t ALTER COLUMN n SET DEFAULT 2": {"t"},
    "ALTER TABLE mdm_data.t ALTER COLUMN n DROP DEFAULT": {"t"},
    "ALTER TABLE mdm_data.t ALTER COLUMN n TYPE numeric(12,2)": {"t"},
    "ALTER TYPE mdm_data.mood RENAME TO humour": {"t"},
    "ALTER TABLE mdm_data.t ADD COLUMN g int GENERATED ALWAYS AS IDENTITY": {"t"},
    "ALTER TABLE mdm_data.t DROP CONSTRAINT ck_a": {"t"},
    "ALTER TABLE mdm_data.t RENAME CONSTRAINT ck_a TO ck_b": {"t"},
    "ALTER TABLE mdm_data.t DROP CONSTRAINT ck_a, ADD CONSTRAINT ck_a CHECK (length(a) <= 6)": {
        "t"
    },
    "ALTER TABLE mdm_data.t VALIDATE CONSTRAINT ck_later": {"t"},
    "ALTER TABLE mdm_data.t ALTER CONSTRAINT fk_r DEFERRABLE INITIALLY DEFERRED": {"t"},
    "ALTER TABLE mdm_data.t ALTER CONSTRAINT fk_r NOT DEFERRABLE": {"t"},
    "ALTER TABLE mdm_data.t DROP CONSTRAINT t_pk": {"t"},
    "ALTER TABLE mdm_data.t RENAME CONSTRAINT t_pk TO other_pk": {"t"},
    "ALTER TABLE mdm_data.target RENAME TO aim": {"target", "aim", "t"},
    "ALTER TABLE mdm_data.target RENAME COLUMN a TO c": {"target", "t"},
    "ALTER TABLE mdm_data.t DROP CONSTRAINT fk_r,"
    " ADD CONSTRAINT fk_r FOREIGN KEY (r) REFERENCES mdm_data.target (b) DEFERRABLE": {"t"},
    "ALTER TABLE mdm_data.t DROP CONSTRAINT fk_r, ADD CONSTRAINT fk_r FOREIGN KEY (r)"
    " REFERENCES mdm_data.target (a) ON DELETE CASCADE DEFERRABLE": {"t"},
    "DROP INDEX mdm_data.ix_a": {"t"},
    "ALTER INDEX mdm_data.ix_a RENAME TO ix_b": {"t"},
    "ALTER INDEX mdm_data.ix_a SET (fillfactor = 50)": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (b)": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (a DESC)": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (lower(a))": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (a) WHERE n > 1": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t USING hash (a)": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (a) INCLUDE (n)": {"t"},
    "DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (a text_pattern_ops)": {"t"},
    'DROP INDEX mdm_data.ix_a; CREATE INDEX ix_a ON mdm_data.t (a COLLATE "C")': {"t"},
    "DROP INDEX mdm_data.target_a CASCADE;"
    " CREATE UNIQUE INDEX target_a ON mdm_data.target (a) NULLS NOT DISTINCT": {"target", "t"},
    "ALTER TABLE mdm_data.t DISABLE TRIGGER tr": {"t"},
    "ALTER TRIGGER tr ON mdm_data.t RENAME TO tr2": {"t"},
    "DROP TRIGGER tr ON mdm_data.t": {"t"},
    "CREATE OR REPLACE VIEW mdm_data.v AS SELECT a FROM mdm_data.t WHERE n > 1": {"v"},
    "DROP VIEW mdm_data.v; CREATE TABLE mdm_data.v (a text)": {"v"},
    "DROP VIEW mdm_data.v": {"v"},
    "CREATE TABLE mdm_data.new ()": {"new"},
    # Two changes that make up for each other where only names and numbers are counted:
    "ALTER TABLE mdm_data.t RENAME a TO c; ALTER TABLE mdm_data.t RENAME b TO a;"
    " ALTER TABLE mdm_data.t RENAME c TO b": {"t", "v"},
}


async def _looks(conn: AsyncConnection[Any]) -> tuple[dict[str, str], dict[str, Any]]:
    row = await (await conn.execute(BOTH)).fetchone()
    assert row is not None
    return row[0], row[1]


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


async def test_the_look_moves_with_the_description(conn: AsyncConnection[Any]) -> None:
    await conn.execute(TABLES)
    looks, words = await _looks(conn)
    for change, relations in MOVING.items():
        async with conn.transaction(force_rollback=True):
            await conn.execute(change)
            new_looks, new_words = await _looks(conn)
        assert _differing(words, new_words) == relations, change
        assert _differing(looks, new_looks) == relations, change


async def test_the_look_of_named_relations_is_that_of_all(conn: AsyncConnection[Any]) -> None:
    await conn.execute(TABLES)
    looks, _ = await _looks(conn)
    query = (
        "SELECT relation_name, fingerprint FROM mdm.live_look(ARRAY['mdm_data'], ARRAY['t', 'x'])"
    )
    assert await (await conn.execute(query)).fetchall() == [("t", looks["t"])]


async def test_looks_that_moved_alone_make_neither_plan_nor_drift(
    conn: AsyncConnection[Any],
) -> None:
    """As after a restore into a server that stores expressions in another way."""
    definitions = build(
        {
            "alpha": {
                "name": "alpha",
                "domain": "lab",
                "historyEnabled": True,
                "keyColumns": ["code"],
                "columns": [
                    {"name": "code", "dataType": "string", "nullable": False, "maxLength": 5},
                    {"name": "other", "dataType": "string", "reference": {"entity": "alpha"}},
                ],
                "consumption": {"views": [{"schema": "lab_views", "name": "alpha"}]},
            }
        }
    )
    assert definitions is not None
    await on.apply(conn, definitions)
    await conn.execute("UPDATE mdm.deployed_relation SET fingerprint = 'of another server'")
    plan = await on.plan(conn, definitions)
    assert (plan.changes, plan.drift, plan.refusals) == ((), (), ())
