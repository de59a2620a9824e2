"""Read what a plan must know of the warehouse, in a constant number of queries.

First the cheap question, for all entities at once: whose definition or look differs from what was
last deployed? Only of those the rest is read. Nothing here decides anything; the answer is
``plan.facts.Facts``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from psycopg import AsyncConnection, sql

from mdm_gitops.model import Action, Definitions, Entity, PermissionGrant, Project, Webhook, fold
from mdm_gitops.plan.desired import DesiredEntity, desired_entities
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.hazards import TableSize
from mdm_gitops.plan.live import LiveRelation
from mdm_gitops.plan.physical import Role, table_name
from mdm_gitops.plan.recorded import (
    Counters,
    EntityState,
    RecordedEntity,
    from_document,
)
from mdm_gitops.warehouse.migrate import store_exists
from mdm_gitops.warehouse.names import Schemas

Key = tuple[str, str]  # schema, relation

_STORED = """
SELECT jsonb_build_object(
    'entities', (SELECT coalesce(jsonb_agg(jsonb_build_array(name, state, desired_hash)), '[]')
                   FROM {config}.entity WHERE state <> 'removed'),
    'permissions', (SELECT coalesce(jsonb_agg(to_jsonb(p)), '[]') FROM {config}.permission p),
    'webhooks', (SELECT coalesce(jsonb_object_agg(name, definition), '{{}}') FROM {config}.webhook),
    'project', (SELECT definition FROM {config}.project),
    'seeds', (SELECT coalesce(jsonb_object_agg(e.name, s.content_hash), '{{}}')
                FROM {config}.seed s JOIN {config}.entity e USING (entity_id)
               WHERE e.state <> 'removed'),
    'counters', (SELECT jsonb_object_agg(name, value) FROM {config}.counter),
    'view_schemas', (SELECT coalesce(jsonb_agg(DISTINCT schema_name), '[]')
                       FROM {config}.deployed_relation))
"""

_LOOKS = """
SELECT coalesce(l.schema_name, d.schema_name), coalesce(l.relation_name, d.relation_name),
       l.fingerprint, l.fingerprint IS NOT DISTINCT FROM d.fingerprint
  FROM {config}.live_look(%(schemas)s::text[]) l
  FULL JOIN {config}.deployed_relation d
    ON (l.schema_name, l.relation_name) = (d.schema_name, d.relation_name)
 ORDER BY 1, 2
"""

# The definition is most of a record, and that of an unchanged entity is known.
_RECORDS = """
SELECT CASE WHEN state <> 'removed' AND name = ANY (%(known)s::text[])
            THEN record - 'definition' ELSE record END
  FROM {config}.entity ORDER BY entity_id
"""

_RELATIONS = """
SELECT l.schema_name, l.relation_name, l.kind, l.objects, d.objects
  FROM {config}.live_relation(%(schemas)s::text[], %(names)s::text[]) l
  LEFT JOIN {config}.deployed_relation d
    ON (l.schema_name, l.relation_name) = (d.schema_name, d.relation_name)
"""

_SIZES = """
SELECT c.relname, greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relname = ANY (%(names)s::text[]) AND c.relkind = 'r'
"""

_DEPENDENTS = """
SELECT DISTINCT t.relname, vn.nspname || '.' || v.relname
  FROM pg_depend d
  JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
  JOIN pg_class v ON v.oid = r.ev_class
  JOIN pg_namespace vn ON vn.oid = v.relnamespace
  JOIN pg_class t ON t.oid = d.refobjid AND d.refclassid = 'pg_class'::regclass
  JOIN pg_namespace tn ON tn.oid = t.relnamespace
 WHERE tn.nspname = %(schema)s AND t.relname = ANY (%(names)s::text[]) AND v.oid <> t.oid
   AND NOT EXISTS (SELECT FROM {config}.deployed_relation k
                    WHERE (k.schema_name, k.relation_name) = (vn.nspname, v.relname))
 ORDER BY 1, 2
"""

_STRANGERS = """
SELECT c.relname::text, c.relkind::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

# Counting stops early: above this PostgreSQL's own estimate is good enough.
_COUNT_UP_TO = 10_000


@dataclass(frozen=True, kw_only=True)
class _Looks:
    fingerprints: Mapping[Key, str]
    mismatched: frozenset[Key]

    def digest(self, stored: Mapping[str, Any]) -> str:
        parts = [*(f"{s}.{r}={f}" for (s, r), f in self.fingerprints.items())]
        parts += [f"{e[0]}:{e[1]}:{e[2]}" for e in sorted(stored["entities"])]
        parts += sorted(str(sorted(p.items())) for p in stored["permissions"])
        parts += [f"{name}:{webhook}" for name, webhook in sorted(stored["webhooks"].items())]
        parts += [str(sorted(stored["seeds"].items())), str(sorted(stored["counters"].items()))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


async def read_facts(
    conn: AsyncConnection[Any], definitions: Definitions, *, schemas: Schemas
) -> Facts:
    """Return what the plan of *definitions* must know. The caller holds a consistent snapshot."""
    if not await store_exists(conn, config_schema=schemas.config):
        return await _without_store(conn, schemas)
    stored = await _one(conn, _STORED, schemas, {})
    view_schemas = {fold(v.view_schema) for e in definitions.entities.values() for v in _views(e)}
    all_schemas = sorted({schemas.data, *stored["view_schemas"], *view_schemas})
    looks = await _looks(conn, schemas, all_schemas)
    desired = desired_entities(definitions)
    unchanged = _unchanged(desired, stored["entities"], looks, schemas.data)
    facts = _stored_facts(stored, looks, unchanged, schemas)
    if len(unchanged) == len(desired) == len(stored["entities"]):
        return facts
    definitions_known = {name: desired[name].entity for name in unchanged}
    records = await _records(conn, schemas, definitions_known)
    return await _with_details(conn, facts, records, desired, all_schemas, schemas)


async def _without_store(conn: AsyncConnection[Any], schemas: Schemas) -> Facts:
    """Return the facts of a warehouse that nothing was ever deployed to.

    They equal those of an empty store, so that a plan made now is still the plan after the first
    apply has made one. What stands in the data schema is somebody else's.
    """
    cursor = await conn.execute(_STRANGERS, {"schema": schemas.data})
    found = {
        (schemas.data, name): LiveRelation(schema=schemas.data, name=name, kind=kind, objects={})
        for name, kind in await cursor.fetchall()
    }
    empty: dict[str, Any] = {"entities": (), "permissions": (), "webhooks": {}, "seeds": {}}
    empty["counters"] = {"archive": 0, "entity": 0}
    looks = _Looks(
        fingerprints=MappingProxyType(dict.fromkeys(found, "")), mismatched=frozenset(found)
    )
    return Facts(
        data_schema=schemas.data,
        relations=MappingProxyType(found),
        mismatched=looks.mismatched,
        live_fingerprint=looks.digest(empty),
    )


def _views(entity: Entity) -> Sequence[Any]:
    return entity.consumption.views


async def _one(
    conn: AsyncConnection[Any], query: str, schemas: Schemas, parameters: Mapping[str, Any]
) -> Any:
    row = await (await conn.execute(_formatted(query, schemas), parameters)).fetchone()
    assert row is not None
    return row[0]


def _formatted(query: str, schemas: Schemas) -> sql.Composed:
    return sql.SQL(query).format(config=sql.Identifier(schemas.config))


async def _looks(
    conn: AsyncConnection[Any], schemas: Schemas, all_schemas: Sequence[str]
) -> _Looks:
    cursor = await conn.execute(_formatted(_LOOKS, schemas), {"schemas": list(all_schemas)})
    rows = await cursor.fetchall()
    return _Looks(
        fingerprints=MappingProxyType({(s, r): f for s, r, f, _ in rows if f is not None}),
        mismatched=frozenset((s, r) for s, r, _, same in rows if not same),
    )


def _unchanged(
    desired: Mapping[str, DesiredEntity],
    stored: Iterable[tuple[str, str, str]],
    looks: _Looks,
    data_schema: str,
) -> frozenset[str]:
    deployed = {name: digest for name, state, digest in stored if state == EntityState.DEPLOYED}
    return frozenset(
        name
        for name, item in desired.items()
        if deployed.get(name) == item.desired_hash
        and not any(key in looks.mismatched for key in _relation_keys(item.entity, data_schema))
    )


def _relation_keys(entity: Entity, data_schema: str) -> list[Key]:
    roles = [Role.MAIN]
    roles += [Role.EDIT] if entity.approval_required else []
    roles += [Role.HISTORY] if entity.history_enabled else []
    tables = [(data_schema, table_name(entity.folded, role)) for role in roles]
    return [*tables, *((fold(v.view_schema), fold(v.name)) for v in _views(entity))]


def _stored_facts(
    stored: Mapping[str, Any], looks: _Looks, unchanged: frozenset[str], schemas: Schemas
) -> Facts:
    project = stored["project"]
    return Facts(
        data_schema=schemas.data,
        unchanged=unchanged,
        mismatched=looks.mismatched,
        grants=tuple(sorted(_grant(row) for row in stored["permissions"])),
        webhooks=MappingProxyType(
            {name: Webhook.model_validate(w) for name, w in stored["webhooks"].items()}
        ),
        project=Project.model_validate(project) if project else None,
        seeds=MappingProxyType(stored["seeds"]),
        counters=Counters(**stored["counters"]),
        live_fingerprint=looks.digest(stored),
    )


def _grant(row: Mapping[str, Any]) -> PermissionGrant:
    return PermissionGrant(
        principal=row["principal"],
        domain=row["domain"],
        entity=row["entity"],
        actions=tuple(Action(action) for action in row["actions"]),
        row_filter=row["row_filter"],
    )


async def _records(
    conn: AsyncConnection[Any], schemas: Schemas, known: Mapping[str, Entity]
) -> tuple[RecordedEntity, ...]:
    """Return all records; *known* definitions, by name, are what the records of these hold."""
    cursor = await conn.execute(_formatted(_RECORDS, schemas), {"known": list(known)})
    return tuple(_record(row[0], known) for row in await cursor.fetchall())


def _record(document: Mapping[str, Any], known: Mapping[str, Entity]) -> RecordedEntity:
    whole = "definition" in document
    return from_document(document, definition=None if whole else known[document["name"]])


async def _with_details(
    conn: AsyncConnection[Any],
    facts: Facts,
    records: tuple[RecordedEntity, ...],
    desired: Mapping[str, DesiredEntity],
    all_schemas: Sequence[str],
    schemas: Schemas,
) -> Facts:
    names = _names_to_read(facts, records, desired)
    relations = await _relations(conn, schemas, all_schemas, names)
    tables = [n for (s, n), r in relations.items() if s == schemas.data and r.is_table]
    sizes = await read_sizes(conn, schemas, tables)
    return Facts(
        data_schema=facts.data_schema,
        records=records,
        unchanged=facts.unchanged,
        relations=MappingProxyType(relations),
        mismatched=facts.mismatched,
        sizes=MappingProxyType(sizes),
        filled=frozenset(name for name, size in sizes.items() if size.rows),
        grants=facts.grants,
        webhooks=facts.webhooks,
        project=facts.project,
        seeds=facts.seeds,
        counters=facts.counters,
        live_fingerprint=facts.live_fingerprint,
        dependents=await _dependents(conn, schemas, tables),
    )


def _names_to_read(
    facts: Facts, records: Iterable[RecordedEntity], desired: Mapping[str, DesiredEntity]
) -> set[str]:
    """Return the relations of all entities that are not unchanged, as they are and as wanted."""
    names: set[str] = set()
    for record in records:
        if record.name not in facts.unchanged:
            names.update(record.table_names)
            names.update(fold(view.name) for view in _views(record.definition))
            # The target of a foreign key may stand in an entity that itself does not change.
            names.update(table_name(entity, Role.MAIN) for entity, _ in record.targets.values())
    for name, item in desired.items():
        if name not in facts.unchanged:
            names.update(n for _, n in _relation_keys(item.entity, facts.data_schema))
            names.update(table_name(entity, Role.MAIN) for entity, _ in item.targets.values())
    return names


async def _relations(
    conn: AsyncConnection[Any], schemas: Schemas, all_schemas: Sequence[str], names: Collection[str]
) -> dict[Key, LiveRelation]:
    parameters = {"schemas": list(all_schemas), "names": sorted(names)}
    cursor = await conn.execute(_formatted(_RELATIONS, schemas), parameters)
    return {
        (schema, name): LiveRelation(
            schema=schema, name=name, kind=kind, objects=objects, recorded=recorded or {}
        )
        for schema, name, kind, objects, recorded in await cursor.fetchall()
    }


async def read_sizes(
    conn: AsyncConnection[Any], schemas: Schemas, tables: Sequence[str]
) -> dict[str, TableSize]:
    """Return rows and bytes of *tables*, which must be there."""
    if not tables:
        return {}
    parameters = {"schema": schemas.data, "names": list(tables)}
    estimated = await (await conn.execute(_SIZES, parameters)).fetchall()
    counted = dict(await (await conn.execute(_count_query(schemas, tables))).fetchall())
    return {
        name: TableSize(rows=_rows(counted[name], estimate), size_bytes=size)
        for name, estimate, size in estimated
    }


def _rows(counted: int, estimate: int) -> int:
    return counted if counted <= _COUNT_UP_TO else max(counted, estimate)


def _count_query(schemas: Schemas, tables: Sequence[str]) -> sql.Composed:
    one = sql.SQL("SELECT {name}, (SELECT count(*) FROM (SELECT FROM {table} LIMIT {limit}) t)")
    return sql.SQL(" UNION ALL ").join(
        one.format(
            name=sql.Literal(name),
            table=sql.Identifier(schemas.data, name),
            limit=sql.Literal(_COUNT_UP_TO + 1),
        )
        for name in tables
    )


async def _dependents(
    conn: AsyncConnection[Any], schemas: Schemas, tables: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    parameters = {"schema": schemas.data, "names": list(tables)}
    cursor = await conn.execute(_formatted(_DEPENDENTS, schemas), parameters)
    found: dict[str, tuple[str, ...]] = {}
    for table, view in await cursor.fetchall():
        found[table] = (*found.get(table, ()), view)
    return MappingProxyType(found)
