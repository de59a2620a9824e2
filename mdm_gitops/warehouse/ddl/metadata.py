"""What the config store must say of a deployment, as statements of the same transaction.

Records, counters, permissions, webhooks, project, and the look of each relation that was touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlglot import exp

from mdm_gitops.model import PermissionGrant, Webhook
from mdm_gitops.plan.changes import (
    AddWebhook,
    ChangeProject,
    ChangeWebhook,
    FinishEntity,
    GrantPermission,
    Phase,
    RemoveWebhook,
    RevokePermission,
    Step,
)
from mdm_gitops.plan.plan import Lock
from mdm_gitops.plan.recorded import Counters, EntityState, RecordedEntity, to_document
from mdm_gitops.warehouse.ddl import trees
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.ddl.trees import Tree, column, identifier, jsonb, render, template, text
from mdm_gitops.warehouse.names import Schemas

BEGIN: Final = "begin"  # the group of statements with which a column under way comes into being


def noted(tree: Tree, title: str, *, phase: Phase = Phase.FLIP) -> Statement:
    """Return a statement on the config store; in the flip it belongs to the last step."""
    return Statement(
        phase=phase,
        step=Step.METADATA if phase is Phase.FLIP else None,
        sql=render(tree),
        title=title,
        lock=Lock.ROW_EXCLUSIVE,
    )


def upsert(
    schemas: Schemas, table: str, values: Mapping[str, Tree], *, key: Sequence[str] | None
) -> exp.Insert:
    """Return an INSERT of one row that replaces the row with the same *key*.

    Without a key the whole row is one, and a row that is there already stays.
    """
    names = [identifier(name) for name in values]
    updated = [
        exp.EQ(this=column(name), expression=column(name, of="EXCLUDED"))
        for name in values
        if key is not None and name not in key
    ]
    conflict = exp.OnConflict(
        conflict_keys=[trees.ascending(column(name)) for name in key or ()],
        action=exp.Var(this="DO UPDATE" if updated else "DO NOTHING"),
        expressions=updated,
    )
    return exp.Insert(
        this=exp.Schema(this=trees.table(schemas.config, table), expressions=names),
        expression=exp.Values(expressions=[exp.Tuple(expressions=list(values.values()))]),
        conflict=conflict,
    )


def _delete(schemas: Schemas, table: str, where: Mapping[str, Tree]) -> exp.Delete:
    conditions = [exp.EQ(this=column(name), expression=value) for name, value in where.items()]
    return exp.Delete(
        this=trees.table(schemas.config, table), where=exp.Where(this=trees.both(conditions))
    )


# --- access, webhooks, project --------------------------------------------------------------------


def grant_permission(change: GrantPermission, schemas: Schemas) -> Iterator[Statement]:
    tree = upsert(schemas, "permission", _grant_values(change.grant), key=None)
    yield noted(tree, f"grant {_spoken(change.grant)}")


def revoke_permission(change: RevokePermission, schemas: Schemas) -> Iterator[Statement]:
    tree = _delete(schemas, "permission", _grant_values(change.grant))
    yield noted(tree, f"revoke {_spoken(change.grant)}")


def _grant_values(grant: PermissionGrant) -> dict[str, Tree]:
    return {
        "principal": text(grant.principal),
        "domain": text(grant.domain),
        "entity": text(grant.entity),
        "actions": trees.text_array(action.value for action in grant.actions),
        "row_filter": text(grant.row_filter),
    }


def _spoken(grant: PermissionGrant) -> str:
    where = grant.entity or f"domain {grant.domain}"
    return f"{', '.join(grant.actions)} on {where} to {grant.principal}"


def save_webhook(change: AddWebhook | ChangeWebhook, schemas: Schemas) -> Iterator[Statement]:
    webhook: Webhook = change.webhook
    values = {"name": text(webhook.name), "definition": jsonb(webhook.to_document())}
    yield noted(upsert(schemas, "webhook", values, key=("name",)), f"save webhook {webhook.name}")


def remove_webhook(change: RemoveWebhook, schemas: Schemas) -> Iterator[Statement]:
    tree = _delete(schemas, "webhook", {"name": text(change.name)})
    yield noted(tree, f"remove webhook {change.name}")


def change_project(change: ChangeProject, schemas: Schemas) -> Iterator[Statement]:
    values = {
        "singleton": exp.Boolean(this=True),
        "definition": jsonb(change.project.to_document()),
    }
    tree = upsert(schemas, "project", values, key=("singleton",))
    yield noted(tree, "save the project")


def project_commit(commit: str | None, schemas: Schemas) -> Statement:
    tree = exp.Update(
        this=trees.table(schemas.config, "project"),
        expressions=[exp.EQ(this=column("commit_id"), expression=_or_null(commit))],
    )
    return noted(tree, "note the commit")


def _or_null(value: str | None) -> Tree:
    return exp.Null() if value is None else text(value)


# --- entities -------------------------------------------------------------------------------------


def free_names(entity_ids: Iterable[int], schemas: Schemas) -> Statement:
    """Let the entities step aside, so that their records may trade names with each other."""
    tree = exp.Update(
        this=trees.table(schemas.config, "entity"),
        expressions=[
            exp.EQ(this=column("name"), expression=template("'#' || :i", i=column("entity_id")))
        ],
        where=exp.Where(this=_has_id(entity_ids)),
    )
    return noted(tree, "free the names of the entities")


def _has_id(entity_ids: Iterable[int]) -> Tree:
    ids = [trees.number(entity_id) for entity_id in entity_ids]
    return exp.In(this=column("entity_id"), expressions=ids)


def save_record(
    record: RecordedEntity, schemas: Schemas, *, commit: str | None, phase: Phase = Phase.FLIP
) -> Statement:
    """Write the whole record. Outside the flip the definition is still the one deployed before,
    and so are its commit and its time."""
    values: dict[str, Tree] = {
        "entity_id": trees.number(record.entity_id),
        "name": text(record.name),
        "state": text(record.state.value),
        "desired_hash": text(record.desired_hash),
        "prevent_remove": exp.Boolean(this=record.definition.lifecycle.prevent_remove),
        "record": jsonb(to_document(record)),
    }
    if phase is Phase.FLIP:
        values |= {"commit_id": _or_null(commit), "deployed_at": exp.CurrentTimestamp()}
    tree = upsert(schemas, "entity", values, key=("entity_id",))
    return noted(tree, f"record {record.name}", phase=phase)


def save_counters(
    counters: Counters, schemas: Schemas, *, phase: Phase = Phase.FLIP
) -> Iterator[Statement]:
    """A number that was given out is never given out again, so counters only grow."""
    for name, value in (("entity", counters.entity), ("archive", counters.archive)):
        highest = exp.Greatest(
            this=column("value"), expressions=[trees.number(value)], ignore_nulls=True
        )
        tree = exp.Update(
            this=trees.table(schemas.config, "counter"),
            expressions=[exp.EQ(this=column("value"), expression=highest)],
            where=exp.Where(this=exp.EQ(this=column("name"), expression=text(name))),
        )
        yield noted(tree, f"count up to {name} {value}", phase=phase)


def finish_entity(change: FinishEntity, schemas: Schemas) -> Iterator[Statement]:
    by_name = exp.EQ(this=column("name"), expression=text(change.entity))
    yield noted(_deployed(by_name, schemas), f"mark {change.entity} as deployed")


def finish_entities(entity_ids: Iterable[int], schemas: Schemas) -> Statement:
    tree = _deployed(_has_id(entity_ids), schemas)
    return noted(tree, "mark the entities as deployed", phase=Phase.FINISH)


def _deployed(which: Tree, schemas: Schemas) -> exp.Update:
    state = EntityState.DEPLOYED.value
    record = template(
        "JSONB_SET(:record, CAST('{state}' AS TEXT[]), :state)",
        record=column("record"),
        state=jsonb(state),
    )
    deploying = exp.EQ(this=column("state"), expression=text(EntityState.DEPLOYING.value))
    return exp.Update(
        this=trees.table(schemas.config, "entity"),
        expressions=[
            exp.EQ(this=column("state"), expression=text(state)),
            exp.EQ(this=column("record"), expression=record),
            exp.EQ(this=column("deployed_at"), expression=exp.CurrentTimestamp()),
        ],
        where=exp.Where(this=trees.both([which, deploying])),
    )


# --- relations ------------------------------------------------------------------------------------


Relations = Sequence[tuple[str, str]]


def remember(relations: Relations, schemas: Schemas, *, phase: Phase) -> Statement:
    given = [trees.text_array(each) for each in zip(*relations, strict=True)]
    call = exp.Dot(
        this=identifier(schemas.config),
        expression=exp.Anonymous(this=identifier("remember_relation"), expressions=given),
    )
    names = ", ".join(name for _, name in relations)
    return noted(exp.select(call), f"note how {names} look now", phase=phase)


def look_again(relations: Relations, schemas: Schemas, *, phase: Phase) -> Statement:
    """Let the next plan see that they are not as deployed: something strange stands there."""
    tree = exp.Update(
        this=trees.table(schemas.config, "deployed_relation"),
        expressions=[exp.EQ(this=column("fingerprint"), expression=text(""))],
        where=exp.Where(this=_is_one_of(relations)),
    )
    names = ", ".join(name for _, name in relations)
    return noted(tree, f"note that {names} is not only ours", phase=phase)


def forget(relations: Relations, schemas: Schemas) -> Statement:
    tree = exp.Delete(
        this=trees.table(schemas.config, "deployed_relation"),
        where=exp.Where(this=_is_one_of(relations)),
    )
    return noted(tree, "forget the names that are gone")


def _is_one_of(relations: Relations) -> Tree:
    pairs = [exp.Tuple(expressions=[text(schema), text(name)]) for schema, name in relations]
    place = exp.Tuple(expressions=[column("schema_name"), column("relation_name")])
    return exp.In(this=place, expressions=pairs)


def entity_id_of(entity: str, schemas: Schemas) -> Tree:
    """Return the id of the entity of that name as an expression."""
    return _of_entity(entity, schemas, column("entity_id")).subquery()


def _of_entity(entity: str, schemas: Schemas, *selected: Tree) -> exp.Select:
    return (
        exp.select(*selected)
        .from_(trees.table(schemas.config, "entity"))
        .where(
            exp.EQ(this=column("name"), expression=text(entity)),
            exp.NEQ(this=column("state"), expression=text(EntityState.REMOVED.value)),
        )
    )


def seeded(entity: str, content_hash: str, schemas: Schemas) -> Statement:
    """Note the seed file that was applied last; the entity is found by its name."""
    source = _of_entity(
        entity, schemas, column("entity_id"), text(content_hash), exp.CurrentTimestamp()
    )
    names = ("entity_id", "content_hash", "applied_at")
    updated = [
        exp.EQ(this=column(name), expression=column(name, of="EXCLUDED")) for name in names[1:]
    ]
    tree = exp.Insert(
        this=exp.Schema(
            this=trees.table(schemas.config, "seed"), expressions=[identifier(n) for n in names]
        ),
        expression=source,
        conflict=exp.OnConflict(
            conflict_keys=[trees.ascending(column("entity_id"))],
            action=exp.Var(this="DO UPDATE"),
            expressions=updated,
        ),
    )
    return noted(tree, f"note the seed of {entity}", phase=Phase.SEED)


def deployment(
    *, plan_id: str, commit: str | None, actor: str, entities: Iterable[str], schemas: Schemas
) -> str:
    """Return the INSERT that notes a deployment which somebody ran by hand."""
    row: dict[str, Tree] = {
        "plan_id": text(plan_id),
        "commit_id": _or_null(commit),
        "actor": text(actor),
        "state": text("succeeded"),
        "entities": trees.text_array(entities),
        "summary": jsonb({"byHand": True}),
        "finished_at": exp.CurrentTimestamp(),
    }
    names = [identifier(name) for name in row]
    tree = exp.Insert(
        this=exp.Schema(this=trees.table(schemas.config, "deployment"), expressions=names),
        expression=exp.Values(expressions=[exp.Tuple(expressions=list(row.values()))]),
    )
    return render(tree)
