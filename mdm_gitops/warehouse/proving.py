"""Prove a plan: carry it out where nothing can break, and look whether it leads where it should.

The very statements that an apply would run are run in a scratch database that holds the structure of
the warehouse and no rows. Then the catalog is compared with that of another scratch database into
which the definitions went at once, and a second plan must find nothing to do. So a step that
PostgreSQL refuses, a change that was forgotten and one that would be planned for ever are seen
before the warehouse is touched. What depends on rows is not proven here: data checks count that.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql

from mdm_gitops.errors import MdmError, PlanStale
from mdm_gitops.model import Definitions, fold
from mdm_gitops.plan.changes import ApplySeed
from mdm_gitops.plan.desired import desired_entities
from mdm_gitops.plan.plan import DriftKind, Plan
from mdm_gitops.plan.proof import Proof, ProofState
from mdm_gitops.warehouse.apply import apply_plan, rehearse
from mdm_gitops.warehouse.catalog import read_facts
from mdm_gitops.warehouse.connect import SessionLimits, connect, in_our_words
from mdm_gitops.warehouse.embedded import acquire_server
from mdm_gitops.warehouse.migrate import migrate, store_exists
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.scratch import scratch_databases
from mdm_gitops.warehouse.structure import copy_structure

_LIMITS: Final = SessionLimits(statement_timeout_s=0, idle_in_transaction_timeout_s=0)
_ACTOR: Final = "system:proof"
_MOST_TOLD: Final = 20
_LIVE: Final = "SELECT schema_name, relation_name, objects FROM {}.live_relation(%s)"
_SCRATCH: Final = "scratch"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the proof is carried out: a server that may be written to, and its name for people."""

    url: str
    name: str


@asynccontextmanager
async def embedded_place(folder: Path, *, major: int, bin_dir: Path | None) -> AsyncIterator[Place]:
    """Have an embedded server of its own below ``.mdm`` of *folder*, removed by its last user."""
    home = _home(folder)
    server = await acquire_server(home, major=major, bin_dir=bin_dir)
    try:
        yield Place(url=server.url, name="an embedded PostgreSQL of its own")
    finally:
        if await server.aclose():
            shutil.rmtree(home, ignore_errors=True)


def _home(folder: Path) -> Path:
    home = folder.resolve() / ".mdm" / _SCRATCH
    home.mkdir(parents=True, exist_ok=True)
    return home


async def prove(
    plan: Plan,
    definitions: Definitions,
    *,
    live: AsyncConnection[Any],
    schemas: Schemas,
    place: Place,
    target: Collection[str] = (),
) -> Proof:
    """Carry out *plan*, which was made on *live*, on *place*.

    Raises:
        PlanStale: the warehouse moved since the plan was made.
        WarehouseError: the scratch databases could not be made.
    """
    why_not = _why_not(plan)
    if why_not:
        return Proof(state=ProofState.NOT_MADE, place=place.name, problems=(why_not,))
    async with _two(place, schemas) as (copy, fresh):
        with in_our_words("copying the structure of the warehouse"):
            await _copy(live, copy, plan, definitions, schemas)
        return await _carried_out(plan, definitions, copy, fresh, schemas, place, target)


async def prove_between(
    plan: Plan, old: Definitions, new: Definitions, *, schemas: Schemas, place: Place
) -> Proof:
    """Carry out the structural *plan* from *old* to *new*, with *old* deployed on *place* first."""
    why_not = _why_not(plan)
    if why_not:
        return Proof(state=ProofState.NOT_MADE, place=place.name, problems=(why_not,))
    async with _two(place, schemas) as (copy, fresh):
        await _deploy(copy, _without_rows(old), schemas)
        return await _carried_out(plan, new, copy, fresh, schemas, place, ())


def _why_not(plan: Plan) -> str:
    if plan.is_blocked:
        return "the plan is blocked, so it cannot be carried out"
    return "" if plan.changes else "the plan is empty, so there is nothing to prove"


@asynccontextmanager
async def _two(
    place: Place, schemas: Schemas
) -> AsyncIterator[tuple[AsyncConnection[Any], AsyncConnection[Any]]]:
    async with scratch_databases(place.url) as make:
        first = await make()
        await (await _open(first, schemas)).close()
        second = await make(like=first)  # cheaper than another store of its own
        async with await _open(first, schemas) as copy, await _open(second, schemas) as fresh:
            yield copy, fresh


async def _open(url: str, schemas: Schemas) -> AsyncConnection[Any]:
    conn = await connect(url, application_name="mdm-gitops proof", limits=_LIMITS)
    try:
        await migrate(conn, config_schema=schemas.config, data_schema=schemas.data)
    except BaseException:
        await conn.close()
        raise
    return conn


async def _copy(
    live: AsyncConnection[Any],
    copy: AsyncConnection[Any],
    plan: Plan,
    definitions: Definitions,
    schemas: Schemas,
) -> None:
    async with live.transaction():
        await live.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if not await store_exists(live, config_schema=schemas.config):
            return  # nothing was ever deployed: the empty store is the copy
        facts = await read_facts(live, definitions, schemas=schemas)
        if facts.live_fingerprint != plan.live_fingerprint:
            raise PlanStale("the warehouse moved while it was copied", hint="make the plan again")
        await copy_structure(live, copy, schemas=schemas, drifted=facts.mismatched)


async def _carried_out(
    plan: Plan,
    definitions: Definitions,
    copy: AsyncConnection[Any],
    fresh: AsyncConnection[Any],
    schemas: Schemas,
    place: Place,
    target: Collection[str],
) -> Proof:
    wanted = _without_rows(definitions)
    try:
        steps, statements = await rehearse(copy, _structural(plan), schemas=schemas, actor=_ACTOR)
    except (MdmError, psycopg.Error) as error:
        problem = f"it stopped: {error}"
        return Proof(state=ProofState.FAILED, place=place.name, problems=(problem,))
    await _deploy(fresh, wanted, schemas)
    second = await make_plan(copy, wanted, schemas=schemas, target=target)
    keys = _relations(wanted, schemas, target)
    problems = [
        *_left_to_do(second),
        *_differences(
            await _catalog(copy, keys, schemas), await _catalog(fresh, keys, schemas), second
        ),
    ]
    return Proof(
        state=ProofState.FAILED if problems else ProofState.PROVEN,
        place=f"{place.name} (PostgreSQL {await _version(copy)})",
        steps=steps,
        statements=statements,
        relations=len(keys),
        problems=_shortened(problems),
    )


async def _deploy(conn: AsyncConnection[Any], definitions: Definitions, schemas: Schemas) -> None:
    await apply_plan(conn, definitions, None, schemas=schemas, actor=_ACTOR, approved=True)


def _without_rows(definitions: Definitions) -> Definitions:
    """Seed rows may refer to rows that only the warehouse has."""
    return replace(definitions, seeds=MappingProxyType({}))


def _structural(plan: Plan) -> Plan:
    kept = tuple(item for item in plan.changes if not isinstance(item.change, ApplySeed))
    return replace(plan, changes=kept)


async def _version(conn: AsyncConnection[Any]) -> str:
    row = await (await conn.execute("SELECT current_setting('server_version')")).fetchone()
    return str(row[0]).split()[0] if row else ""


# --- what came out --------------------------------------------------------------------------------


def _left_to_do(second: Plan) -> Iterator[str]:
    if second.changes:
        kinds = ", ".join(dict.fromkeys(item.change.kind for item in second.changes))
        yield f"a second plan is not empty but would again do: {kinds}"
    for refusal in second.refusals:
        yield f"a second plan is refused: {refusal.message}"
    for item in second.drift:
        if item.kind is not DriftKind.STRANGE:
            yield f"{item.entity} has drifted by it: {item.object} {item.message}"


Catalog = Mapping[tuple[str, str], Mapping[str, Any]]


def _relations(
    definitions: Definitions, schemas: Schemas, target: Collection[str]
) -> frozenset[tuple[str, str]]:
    meant = {fold(name) for name in target}
    keys: set[tuple[str, str]] = set()
    for name, entity in desired_entities(definitions).items():
        if not meant or name in meant:
            keys |= {(schemas.data, table.name) for table in entity.physical.tables.values()}
            keys |= {view.key for view in entity.physical.views}
    return frozenset(keys)


async def _catalog(
    conn: AsyncConnection[Any], keys: Collection[tuple[str, str]], schemas: Schemas
) -> Catalog:
    query = sql.SQL(_LIVE).format(sql.Identifier(schemas.config))
    cursor = await conn.execute(query, [sorted({schema for schema, _ in keys})])
    return {
        (schema, name): objects
        for schema, name, objects in await cursor.fetchall()
        if (schema, name) in keys
    }


def _differences(found: Catalog, wanted: Catalog, second: Plan) -> Iterator[str]:
    strange = [item.object for item in second.drift if item.kind is DriftKind.STRANGE]
    for key in sorted(wanted):
        name = ".".join(key)
        if key not in found:
            yield f"{name} is not there"
            continue
        for kind, objects in wanted[key].items():
            yield from _different(name, kind, found[key].get(kind), objects, strange)


def _different(
    name: str, kind: str, found: Any, wanted: Any, strange: Collection[str]
) -> Iterator[str]:
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping):
        if found != wanted:
            yield f"{name}: its {kind} is another than a new one would have"
        return
    word = kind.removesuffix("s") if kind != "indexes" else "index"
    for each in sorted(wanted.keys() | found.keys()):
        if each not in found:
            yield f"{name}: {word} {each} is missing"
        elif each in wanted:
            if found[each] != wanted[each]:
                yield f"{name}: {word} {each} is another than a new one would be"
        elif not each.startswith("_arch_") and not any(each in words for words in strange):
            yield f"{name}: {word} {each} is too much"


def _shortened(problems: list[str]) -> tuple[str, ...]:
    more = len(problems) - _MOST_TOLD
    return (*problems[:_MOST_TOLD], *((f"and {more:,} more",) if more > 0 else ()))
