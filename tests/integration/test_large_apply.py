"""A step of many statements: sent in few messages, taken back whole, told by its own error."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import PlanRefused, WarehouseError
from tests.support import warehouses as on
from tests.support.many import many

pytestmark = pytest.mark.anyio

COUNT = 60  # entities with two tables and more than 200 statements, so several go into one message
RAISING = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.name = '{name}' THEN
        RAISE EXCEPTION 'no %', NEW.name USING ERRCODE = '{code}', HINT = '{hint}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON mdm.entity FOR EACH ROW EXECUTE FUNCTION public.refuse();
"""


async def _scalar(conn: AsyncConnection[Any], query: str) -> Any:
    row = await (await conn.execute(query.encode())).fetchone()
    return row and row[0]


async def test_many_statements_do_what_each_does(conn: AsyncConnection[Any]) -> None:
    definitions = many(COUNT)
    await on.apply(conn, definitions)
    plan = await on.plan(conn, definitions)
    assert (plan.changes, plan.drift) == ((), ())
    assert await _scalar(conn, "SELECT count(*) FROM mdm.entity WHERE state = 'deployed'") == COUNT


@pytest.mark.parametrize("name", ["e0", f"e{COUNT // 2}", f"e{COUNT - 1}"])
async def test_the_error_is_that_of_the_statement_and_nothing_is_left(
    conn: AsyncConnection[Any], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    await conn.execute(RAISING.format(name=name, code="P0001", hint="").encode())
    with pytest.raises(PlanRefused, match=f"failed: no {name}$"):
        await on.apply(conn, many(COUNT))
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'mdm_data'::regnamespace"
    assert await _scalar(conn, tables) == 0
    assert await _scalar(conn, "SELECT count(*) FROM mdm.entity") == 0
    assert await _scalar(conn, "SELECT string_agg(state, ' ') FROM mdm.deployment") == "failed"
    assert capfd.readouterr().err == ""


async def test_a_server_with_too_few_locks_is_told_apart(conn: AsyncConnection[Any]) -> None:
    hint = 'You might need to increase "max_locks_per_transaction".'
    await conn.execute(RAISING.format(name="e1", code="53200", hint=hint).encode())
    with pytest.raises(WarehouseError, match="cannot lock so many tables") as caught:
        await on.apply(conn, many(2))
    assert "max_locks_per_transaction" in caught.value.hint
    assert await _scalar(conn, "SELECT count(*) FROM mdm.entity") == 0
