"""Make a plan against a live warehouse: read, compare, ask the rows, put together.

Everything is read in one snapshot, so a plan never mixes two states. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from psycopg import AsyncConnection

from mdm_gitops.errors import InputError
from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.plan.access_report import NO_REPORT, AccessReport
from mdm_gitops.plan.build import ACCESS, Draft, complete, draft
from mdm_gitops.plan.changes import SeedCounts
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.plan import CheckResult, DataCheck, Plan
from mdm_gitops.plan.saved_filters import OwnedFilter, asks_about, notes_on_saved_filters
from mdm_gitops.plan.seeds import SeedQuestion
from mdm_gitops.warehouse.catalog import read_facts
from mdm_gitops.warehouse.connect import in_our_words
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.saved_filters import read_saved_filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What is known of a plan before its access is looked at. *target* holds folded names."""

    draft: Draft
    target: frozenset[str]
    seeded: frozenset[str]  # entities whose rows this plan writes

    @property
    def definitions(self) -> Definitions:
        return self.draft.definitions

    @property
    def changes_access(self) -> bool:
        """Whether permissions are put into effect; else those that are deployed stay."""
        return not self.target or ACCESS in self.target

    def is_meant(self, entity: str) -> bool:
        return not self.target or entity in self.target

    @property
    def touches_rights(self) -> bool:
        """Whether anybody can gain or lose anything, by grants or by what an entity lets reach it."""
        facts = self.draft.facts
        if self.changes_access and set(facts.grants) != set(self.definitions.grants):
            return True
        before = {record.entity_id: record.definition for record in facts.records}
        for record in self.draft.records:
            old, new = before.get(record.entity_id), record.definition
            if old is not None and (old.domain, old.access) != (new.domain, new.access):
                return True
        return False


class Inspect(Protocol):
    """Says what a plan does to access. It is handed down: the layers above evaluate permissions."""

    async def __call__(
        self, conn: AsyncConnection[Any], drafted: Drafted, *, schemas: Schemas
    ) -> AccessReport: ...


async def make_plan(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    *,
    schemas: Schemas,
    target: Collection[str] = (),
    statement_timeout_s: float = 300.0,
    inspect: Inspect | None = None,
) -> Plan:
    """Return what would change if *definitions* were applied now; *target* limits it to entities.

    *conn* must be in autocommit mode; *statement_timeout_s* bounds each question to the rows.
    *inspect* (``data.access_report``) judges the tests of access and counts who gains and loses rows.

    Raises:
        InputError: *target* names no entity that is defined or deployed.
        WarehouseError: the server was lost, too slow, or did not let us look.
    """
    with in_our_words("planning"):
        drafted, results, counts, saved, access = await _asked(
            conn, definitions, schemas, target, statement_timeout_s, inspect
        )
    notes = (*drafted.notes, *notes_on_saved_filters(drafted, saved))
    return complete(
        replace(drafted, notes=notes), results=results, seed_counts=counts, access=access
    )


async def _asked(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    schemas: Schemas,
    target: Collection[str],
    statement_timeout_s: float,
    inspect: Inspect | None,
) -> tuple[Draft, list[CheckResult], Mapping[str, SeedCounts], list[OwnedFilter], AccessReport]:
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await conn.execute(f"SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}")
        facts = await read_facts(conn, definitions, schemas=schemas)
        _must_be_known(target, definitions, facts)
        drafted = draft(definitions, facts, target=target)
        results = await _checked(conn, [check for check, _ in drafted.checks], schemas)
        counts = await _seed_counts(conn, drafted.seed_questions, schemas)
        saved = await read_saved_filters(conn, asks_about(drafted), schemas=schemas)
        access = NO_REPORT
        if inspect is not None:  # last, because it sets a time limit of its own
            access = await inspect(conn, _drafted(drafted, counts, target), schemas=schemas)
    return drafted, results, counts, saved, access


def _drafted(draft: Draft, counts: Mapping[str, SeedCounts], target: Collection[str]) -> Drafted:
    questions = draft.seed_questions
    seeded = (name for name in questions if questions[name].is_needed(counts[name]))
    return Drafted(
        draft=draft, target=frozenset(fold(name) for name in target), seeded=frozenset(seeded)
    )


def _must_be_known(target: Collection[str], definitions: Definitions, facts: Facts) -> None:
    known = {*definitions.entities, *(record.name for record in facts.records), ACCESS}
    for name in target:
        if fold(name) not in known:
            raise InputError(f"there is no entity {name!r}", hint=did_you_mean(name, sorted(known)))


async def _checked(
    conn: AsyncConnection[Any], checks: Sequence[DataCheck], schemas: Schemas
) -> list[CheckResult]:
    if not checks:
        return []
    from mdm_gitops.warehouse.checks import run_checks  # imports sqlglot, which takes 0.1 s

    found = await run_checks(conn, checks, schemas=schemas)
    return [found[check] for check in checks]


async def _seed_counts(
    conn: AsyncConnection[Any], questions: Mapping[str, SeedQuestion], schemas: Schemas
) -> dict[str, SeedCounts]:
    if not questions:
        return {}
    from mdm_gitops.warehouse.seed_counts import count_seed  # imports sqlglot

    return {
        name: await count_seed(conn, question, schemas=schemas)
        for name, question in questions.items()
    }
