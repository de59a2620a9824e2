"""A plan between two sets of definitions, without a database: what a commit changes by itself.

The older definitions are taken as deployed, exactly and with rows in every table, so each change
shows what it would cost at its worst; how many rows break a rule is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.values import to_json_value
from mdm_gitops.plan.build import Draft, complete, draft
from mdm_gitops.plan.changes import SeedCounts
from mdm_gitops.plan.desired import DesiredEntity, desired_entities
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.hazards import TableSize
from mdm_gitops.plan.live import LiveRelation
from mdm_gitops.plan.physical import Table, View
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.recorded import Counters, EntityState, RecordedEntity
from mdm_gitops.plan.table_moves import created

_SOME_ROWS = TableSize(rows=1, size_bytes=0)


def structural_plan(old: Definitions, new: Definitions, *, data_schema: str = "mdm_data") -> Plan:
    """Return what changes from *old* to *new*."""
    drafted = structural_draft(old, new, data_schema=data_schema)
    unasked = replace(drafted, checks=(), sizes=MappingProxyType({}))
    return complete(unasked, results=(), seed_counts=seed_differences(old, unasked))


def structural_draft(
    old: Definitions,
    new: Definitions,
    *,
    data_schema: str = "mdm_data",
    sizes: Mapping[str, TableSize] = MappingProxyType({}),
) -> Draft:
    """Return the plan from *old* to *new* with its questions to rows; *sizes* are those known."""
    unchanged = _unchanged(desired_entities(old), desired_entities(new))
    facts = deployed(old, data_schema=data_schema, unchanged=unchanged)
    known = {**facts.sizes, **{name: s for name, s in sizes.items() if name in facts.sizes}}
    filled = frozenset(name for name, size in known.items() if size.rows)
    return draft(new, replace(facts, sizes=MappingProxyType(known), filled=filled))


def seed_differences(old: Definitions, drafted: Draft) -> Mapping[str, SeedCounts]:
    """Compare seed files with each other, since no rows are there to be compared with."""
    new = drafted.definitions
    return {name: _seed_difference(old, new, name) for name in drafted.seed_questions}


def _unchanged(
    old: Mapping[str, DesiredEntity], new: Mapping[str, DesiredEntity]
) -> frozenset[str]:
    both = old.keys() & new.keys()
    return frozenset(name for name in both if old[name].desired_hash == new[name].desired_hash)


def deployed(
    definitions: Definitions, *, data_schema: str, unchanged: frozenset[str] = frozenset()
) -> Facts:
    """Return the facts of a warehouse in which *definitions* have just been deployed.

    Nothing is told of the tables of *unchanged* entities, as when a live warehouse is read.
    """
    desired = desired_entities(definitions)
    relations: dict[tuple[str, str], LiveRelation] = {}
    for entity in desired.values():
        if entity.name not in unchanged:
            relations.update(_relations(entity, data_schema))
    tables = [name for schema, name in relations if schema == data_schema]
    return Facts(
        data_schema=data_schema,
        unchanged=unchanged,
        records=tuple(
            _deployed_record(entity, number) for number, entity in enumerate(desired.values(), 1)
        ),
        relations=MappingProxyType(relations),
        sizes=MappingProxyType(dict.fromkeys(tables, _SOME_ROWS)),
        filled=frozenset(tables),
        grants=definitions.grants,
        webhooks=definitions.webhook_by_name,
        project=definitions.project,
        seeds=MappingProxyType({n: s.content_hash for n, s in definitions.seeds.items()}),
        counters=Counters(entity=len(desired)),
        live_fingerprint=definitions.content_hash[:16],
    )


def _deployed_record(entity: DesiredEntity, number: int) -> RecordedEntity:
    """Return the record of *entity*, with the renames that its directives tell of."""
    record = created(entity, entity_id=number)
    former = {c.folded: fold(c.renamed_from) for c in entity.entity.columns if c.renamed_from}
    columns = (
        replace(c, former_names=(former[c.name],)) if c.name in former else c
        for c in record.columns
    )
    renamed_from = entity.entity.renamed_from
    return replace(
        record,
        state=EntityState.DEPLOYED,
        columns=tuple(columns),
        former_names=(fold(renamed_from),) if renamed_from else (),
    )


def _relations(entity: DesiredEntity, data_schema: str) -> Mapping[tuple[str, str], LiveRelation]:
    relations = {}
    for table in entity.physical.tables.values():
        objects = table_objects(table, data_schema)
        relations[data_schema, table.name] = LiveRelation(
            schema=data_schema, name=table.name, kind="r", objects=objects, recorded=objects
        )
    for view in entity.physical.views:
        text = _view_objects(view)
        relations[view.key] = LiveRelation(
            schema=view.schema, name=view.name, kind="v", objects=text, recorded=text
        )
    return relations


def table_objects(table: Table, schema: str) -> Mapping[str, Any]:
    """Describe *table* as the store's function would; expressions only have to equal themselves."""
    constraints: dict[str, Any] = {
        table.primary_key_name: {"kind": "p", "columns": list(table.primary_key)}
    }
    for check in table.checks:
        definition = repr((check.rule, check.argument))
        constraints[check.name] = {
            "kind": "c",
            "columns": [check.column],
            "validated": True,
            "definition": definition,
        }
    for key in table.foreign_keys:
        constraints[key.name] = {
            "kind": "f",
            "columns": [key.column],
            "validated": True,
            "deferrable": True,
            "deferred": False,
            "actions": "aas",
            "target_schema": schema,
            "target_table": key.target_table,
            "target_columns": [key.target_column],
        }
    return {
        "columns": {
            column.name: {
                "type": column.type,
                "not_null": column.not_null,
                "default": None if column.default is None else str(to_json_value(column.default)),
            }
            for column in table.columns.values()
        },
        "constraints": constraints,
        "indexes": {
            index.name: {
                "unique": index.unique,
                "valid": True,
                "plain": True,
                "columns": list(index.columns),
                "definition": repr(index),
            }
            for index in table.indexes
        },
        "triggers": {},
    }


def _view_objects(view: View) -> Mapping[str, Any]:
    return {"view": repr(view)}


def _seed_difference(old: Definitions, new: Definitions, name: str) -> SeedCounts:
    """Compare two seed files row by row; rows are the same when all that they say is the same."""
    before = old.seeds.get(name)
    entity = new.entities[name]
    keys = [entity.column_by_name[key.lower()].name for key in entity.key_columns]
    known = {tuple(row.get(k) for k in keys): dict(row) for row in before.rows} if before else {}
    inserted = updated = unchanged = 0
    for row in new.seeds[name].rows:
        was = known.get(tuple(row.get(key) for key in keys))
        inserted += was is None
        updated += was is not None and was != dict(row)
        unchanged += was == dict(row)
    return SeedCounts(inserted=inserted, updated=updated, unchanged=unchanged)
