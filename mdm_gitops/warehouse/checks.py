"""Asks the live rows whether they would break the new rules of a plan.

Nothing is written, and few questions are asked: what judges single rows of one table is counted in
one scan, and examples are looked up only where a count is not zero. All of it sees the same moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from mdm_gitops.plan.plan import CheckResult, DataCheck
from mdm_gitops.warehouse.ddl.questions import CheckQuery, check_sql, counts_sql, is_of_one_row
from mdm_gitops.warehouse.names import Schemas

__all__ = ["CheckQuery", "check_sql", "run_checks"]


async def run_checks(
    conn: AsyncConnection[Any],
    checks: Sequence[DataCheck],
    *,
    schemas: Schemas,
    statement_timeout_s: float | None = None,
) -> dict[DataCheck, CheckResult]:
    """Return the result of each check, in their order.

    Inside a transaction of the caller, its snapshot and limits hold; else one is opened, read-only
    and with *statement_timeout_s* as the limit of each question.
    """
    asked = [check for check in checks if check.fixed_count is None]
    counts = {check: check.fixed_count or 0 for check in checks}
    samples: dict[DataCheck, tuple[Mapping[str, Any], ...]] = {}
    if asked:
        async with _snapshot(conn, statement_timeout_s):
            counts |= await _counts(conn, asked, schemas)
            for check in asked:
                if counts[check]:
                    samples[check] = await _samples(conn, check, schemas)
    return {
        check: CheckResult(check=check, violations=count, samples=samples.get(check, ()))
        for check, count in counts.items()
    }


@asynccontextmanager
async def _snapshot(
    conn: AsyncConnection[Any], statement_timeout_s: float | None
) -> AsyncIterator[None]:
    if conn.info.transaction_status is not TransactionStatus.IDLE:
        yield
        return
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if statement_timeout_s is not None:
            limit_ms = round(statement_timeout_s * 1000)
            await conn.execute(f"SET LOCAL statement_timeout = {limit_ms}")
        yield


async def _counts(
    conn: AsyncConnection[Any], checks: Sequence[DataCheck], schemas: Schemas
) -> dict[DataCheck, int]:
    """Ask all tables one after the other; a table is scanned once for all its single rows."""
    alone = sorted(filter(is_of_one_row, checks), key=lambda check: check.table)
    questions = [
        (members, counts_sql(members, schemas=schemas))
        for members in (list(group) for _, group in groupby(alone, key=lambda c: c.table))
    ]
    questions += [
        ([check], check_sql(check, schemas=schemas).count_sql)
        for check in checks
        if not is_of_one_row(check)
    ]
    counts: dict[DataCheck, int] = {}
    for members, query in questions:
        row = await (await conn.execute(query)).fetchone()
        assert row is not None, "a count is always one row"
        counts |= dict(zip(members, row, strict=True))
    return counts


async def _samples(
    conn: AsyncConnection[Any], check: DataCheck, schemas: Schemas
) -> tuple[Mapping[str, Any], ...]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(check_sql(check, schemas=schemas).sample_sql)
        return tuple(await cursor.fetchall())
