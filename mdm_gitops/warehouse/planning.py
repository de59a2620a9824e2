"""Make a plan against a live warehouse: read, compare, ask the rows, put together.

Everything is read in one snapshot, so a plan never mixes two states. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.errors import InputError
from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.plan.build import ACCESS, Draft, complete, draft
from mdm_gitops.plan.changes import SeedCounts
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.plan import CheckResult, Plan
from mdm_gitops.plan.saved_filters import OwnedFilter, asks_about, notes_on_saved_filters
from mdm_gitops.plan.seeds import SeedQuestion
from mdm_gitops.warehouse.catalog import read_facts
from mdm_gitops.warehouse.checks import run_checks
from mdm_gitops.warehouse.connect import in_our_words
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.saved_filters import read_saved_filters
from mdm_gitops.warehouse.seed_counts import count_seed


async def make_plan(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    *,
    schemas: Schemas,
    target: Collection[str] = (),
    statement_timeout_s: float = 300.0,
) -> Plan:
    """Return what would change if *definitions* were applied now; *target* limits it to entities.

    *conn* must be in autocommit mode; *statement_timeout_s* bounds each question to the rows.

    Raises:
        InputError: *target* names no entity that is defined or deployed.
        WarehouseError: the server was lost, too slow, or did not let us look.
    """
    with in_our_words("planning"):
        drafted, results, counts, saved = await _asked(
            conn, definitions, schemas, target, statement_timeout_s
        )
    notes = (*drafted.notes, *notes_on_saved_filters(drafted, saved))
    return complete(replace(drafted, notes=notes), results=results, seed_counts=counts)


async def _asked(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    schemas: Schemas,
    target: Collection[str],
    statement_timeout_s: float,
) -> tuple[Draft, list[CheckResult], Mapping[str, SeedCounts], list[OwnedFilter]]:
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await conn.execute(f"SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}")
        facts = await read_facts(conn, definitions, schemas=schemas)
        _must_be_known(target, definitions, facts)
        drafted = draft(definitions, facts, target=target)
        checks = [check for check, _ in drafted.checks]
        found = await run_checks(conn, checks, schemas=schemas)
        counts = await _seed_counts(conn, drafted.seed_questions, schemas)
        saved = await read_saved_filters(conn, asks_about(drafted), schemas=schemas)
    return drafted, [found[check] for check in checks], counts, saved


def _must_be_known(target: Collection[str], definitions: Definitions, facts: Facts) -> None:
    known = {*definitions.entities, *(record.name for record in facts.records), ACCESS}
    for name in target:
        if fold(name) not in known:
            raise InputError(f"there is no entity {name!r}", hint=did_you_mean(name, sorted(known)))


async def _seed_counts(
    conn: AsyncConnection[Any], questions: Mapping[str, SeedQuestion], schemas: Schemas
) -> dict[str, SeedCounts]:
    return {
        name: await count_seed(conn, question, schemas=schemas)
        for name, question in questions.items()
    }
