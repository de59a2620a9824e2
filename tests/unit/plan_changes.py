"""One change of each class and its notable variants, with names that tests go by."""

from __future__ import annotations

from typing import Any

from mdm_gitops.model import Action, SeedMode
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.physical import Check, Role, RuleKind, satellite
from tests.unit.plan_samples import (
    CUSTOMER,
    PRICE,
    PROJECT,
    column,
    grant,
    key,
    plain_index,
    rule,
    seed_change,
    table,
    unique,
    view,
    webhook,
)

_HUB = table("customer", column("code", not_null=True), column("name"))
_TWO = ("customer", "customer__history")
FILTER = "[region] = 'DACH'"


def _rename(old: str, new: str) -> c.Rename:
    return c.Rename(old=old, new=new)


def _retype(**more: Any) -> c.RetypeColumn:
    facts: dict[str, Any] = {
        "entity": "customer",
        "column": "weight",
        "source": "weight",
        "archived_as": "_arch_4_weight",
        "old_type": "bigint",
        "new": column("weight", "integer"),
        "main_table": "customer",
        "tables": _TWO,
    }
    return c.RetypeColumn(**(facts | more))


def _filling(**more: Any) -> c.Filling:
    facts: dict[str, Any] = {
        "entity": "customer",
        "source": "weight",
        "target": "_new_weight",
        "taken_from": None,
        "exists": False,
        "tables": _TWO,
    }
    return c.Filling(**(facts | more))


def check(new: Check, *, online: bool = True, replaces: Check | None = None) -> c.AddCheck:
    return c.AddCheck(
        entity="customer",
        table="customer",
        check=new,
        column_type="text",
        online=online,
        replaces=replaces,
    )


def _on(kind: type[c.Change], **facts: Any) -> Any:
    return kind(entity="customer", **facts)


EMPTY: dict[str, Any] = {"entity": "empty", "table": "empty"}
CHANGES: dict[str, c.Change] = {
    "create-entity": _on(c.CreateEntity, tables=(_HUB, satellite(_HUB, Role.HISTORY))),
    "rename-entity": _on(
        c.RenameEntity,
        old_entity="client",
        tables=(_rename("customer", "client"), _rename("customer__edit", "client__edit")),
    ),
    "rename-entity reverted": _on(
        c.RenameEntity, old_entity="client", tables=(_rename("client", "customer"),), reverted=True
    ),
    "remove-entity": _on(
        c.RemoveEntity,
        archive_number=3,
        tables=(
            _rename("customer", "customer__archive_3"),
            _rename("customer__history", "customer__archive_3_h"),
        ),
    ),
    "restore-entity": _on(
        c.RestoreEntity, archive_number=3, tables=(_rename("customer__archive_3", "customer"),)
    ),
    "add-satellite approval": _on(c.AddSatellite, role=Role.EDIT, table=satellite(_HUB, Role.EDIT)),
    "add-satellite history": _on(
        c.AddSatellite, role=Role.HISTORY, table=satellite(_HUB, Role.HISTORY)
    ),
    "remove-satellite approval": _on(
        c.RemoveSatellite,
        role=Role.EDIT,
        table=_rename("customer__edit", "customer__archive_4_e"),
    ),
    "remove-satellite approval, nothing pending": _on(
        c.RemoveSatellite, role=Role.EDIT, table=_rename("empty", "customer__archive_4_e")
    ),
    "remove-satellite history": _on(
        c.RemoveSatellite,
        role=Role.HISTORY,
        table=_rename("customer__history", "customer__archive_4_h"),
    ),
    "remove-satellite history, of unknown size": _on(
        c.RemoveSatellite, role=Role.HISTORY, table=_rename("new", "customer__archive_4_h")
    ),
    "restore-satellite approval": _on(
        c.RestoreSatellite,
        role=Role.EDIT,
        table=_rename("customer__archive_4_e", "customer__edit"),
    ),
    "restore-satellite history": _on(
        c.RestoreSatellite,
        role=Role.HISTORY,
        table=_rename("customer__archive_4_h", "customer__history"),
    ),
    "add-column": _on(c.AddColumn, column=column("vat_id"), main_table="customer"),
    "add-column required with default": _on(
        c.AddColumn,
        column=column("price", "numeric(8,2)", not_null=True, default=PRICE),
        main_table="customer",
    ),
    "add-column required": _on(
        c.AddColumn, column=column("vat_id", not_null=True), main_table="customer"
    ),
    "add-column required, no rows": c.AddColumn(
        entity="empty", column=column("vat_id", not_null=True), main_table="empty"
    ),
    "add-column to satellites only": _on(
        c.AddColumn,
        column=column("vat_id"),
        main_table=None,
        satellite_tables=("customer__history",),
    ),
    "rename-column": _on(c.RenameColumn, column=_rename("phone", "telephone"), tables=CUSTOMER),
    "rename-column reverted": _on(
        c.RenameColumn, column=_rename("telephone", "phone"), tables=CUSTOMER, reverted=True
    ),
    "remove-column": _on(
        c.RemoveColumn,
        column="notes",
        archived_as="_arch_3_notes",
        main_table="customer",
        tables=CUSTOMER,
    ),
    "restore-column": _on(
        c.RestoreColumn,
        column="notes",
        archived_as="_arch_3_notes",
        type="text",
        tables=CUSTOMER,
    ),
    "widen-column": _on(
        c.WidenColumn,
        column="price",
        old_type="numeric(8,2)",
        new_type="numeric(10,2)",
        tables=CUSTOMER,
    ),
    "retype-column": _retype(filling=_filling()),
    "retype-column resumed": _retype(filling=_filling(exists=True)),
    "retype-column, no rows": _retype(),
    "retype-column back": _retype(
        filling=_filling(taken_from="_arch_2_weight"),
        restored_from="_arch_2_weight",
        chain=("integer", "bigint"),
    ),
    "retype-column onto a removed one": _retype(
        filling=_filling(taken_from="_arch_2_weight"),
        restored_from="_arch_2_weight",
        keep_archived_where_null=True,
    ),
    "abandon-filling": _on(
        c.AbandonFilling,
        column="weight",
        target="_new_weight",
        archived_as="_arch_5_weight",
        tables=_TWO,
    ),
    "set-required": _on(c.SetRequired, table="customer", column="email", online=True),
    "set-required, no rows": c.SetRequired(**EMPTY, column="email", online=False),
    "drop-required": _on(c.DropRequired, table="customer", column="email"),
    "set-default": _on(c.SetDefault, table="customer", column=column("status", default="prospect")),
    "drop-default": _on(c.DropDefault, table="customer", column="status"),
    "add-check pattern": check(rule("gtin", RuleKind.PATTERN, "[0-9]{13}")),
    "add-check allowed": check(rule("status", RuleKind.ALLOWED, ("active", "closed"))),
    "add-check many allowed": check(rule("rank", RuleKind.ALLOWED, tuple(range(1, 16)))),
    "add-check at least": check(rule("rating", RuleKind.RANGE, (1, None))),
    "add-check at most": check(rule("price", RuleKind.RANGE, (None, PRICE))),
    "add-check range": check(rule("rating", RuleKind.RANGE, (1, 5))),
    "add-check length": check(rule("name", RuleKind.LENGTH, 40)),
    "add-check, no rows": c.AddCheck(
        **EMPTY, check=rule("name", RuleKind.LENGTH, 40), column_type="text", online=False
    ),
    "add-check wider": check(
        rule("name", RuleKind.LENGTH, 60), replaces=rule("name", RuleKind.LENGTH, 40)
    ),
    "add-check narrower": check(
        rule("name", RuleKind.LENGTH, 20), replaces=rule("name", RuleKind.LENGTH, 40)
    ),
    "add-check one value more": check(
        rule("status", RuleKind.ALLOWED, ("active", "closed", "blocked")),
        replaces=rule("status", RuleKind.ALLOWED, ("active", "closed")),
    ),
    "add-check one value less": check(
        rule("status", RuleKind.ALLOWED, ("active",)),
        replaces=rule("status", RuleKind.ALLOWED, ("active", "closed")),
    ),
    "drop-check": _on(
        c.DropCheck, table="customer", check="ck_name_length", column="name", rule="length"
    ),
    "drop-check changed by hand": _on(c.DropCheck, table="customer", check="ck_name_length"),
    "validate-check": _on(c.ValidateCheck, table="customer", check="ck_name_length"),
    "add-index unique": _on(
        c.AddIndex, table="customer", index=unique("customer", "code"), online=True
    ),
    "add-index unique set": _on(
        c.AddIndex, table="customer", index=unique("customer", "country", "tax_id"), online=True
    ),
    "add-index unique, no rows": c.AddIndex(**EMPTY, index=unique("empty", "code"), online=False),
    "add-index unique, new table": c.AddIndex(
        entity="new", table="new", index=unique("new", "code"), online=False
    ),
    "add-index": _on(
        c.AddIndex, table="customer", index=plain_index("customer", "region"), online=True
    ),
    "add-index rebuilt": _on(
        c.AddIndex, table="customer", index=unique("customer", "code"), online=True, rebuild=True
    ),
    "drop-index unique": _on(c.DropIndex, table="customer", index=unique("customer", "code")),
    "drop-index unique set": _on(
        c.DropIndex, table="customer", index=unique("customer", "country", "tax_id")
    ),
    "drop-index": _on(c.DropIndex, table="customer", index=plain_index("customer", "region")),
    "add-foreign-key": _on(
        c.AddForeignKey,
        table="customer",
        foreign_key=key("region", "sales_region", "code"),
        online=True,
    ),
    "add-foreign-key, new table": c.AddForeignKey(
        entity="new",
        table="new",
        foreign_key=key("region", "sales_region", "code"),
        online=False,
    ),
    "add-foreign-key, both new": c.AddForeignKey(
        entity="new", table="new", foreign_key=key("other", "newer", "code"), online=False
    ),
    "drop-foreign-key": _on(
        c.DropForeignKey, table="customer", foreign_key=key("region", "sales_region", "code")
    ),
    "validate-foreign-key": _on(c.ValidateForeignKey, table="customer", foreign_key="fk_region"),
    "rename-object constraint": _on(
        c.RenameObject,
        table="customer",
        object_kind=c.ObjectKind.CONSTRAINT,
        rename=_rename("ck_a_length", "ck_b_length"),
    ),
    "rename-object index": _on(
        c.RenameObject,
        table="customer",
        object_kind=c.ObjectKind.INDEX,
        rename=_rename("customer__uq_a", "customer__uq_b"),
    ),
    "create-view": _on(c.CreateView, view=view("customer", "code", "name")),
    "create-view again": _on(c.CreateView, view=view("customer", "code"), again=True),
    "drop-view": _on(c.DropView, schema="consumption", name="customer"),
    "drop-view again": _on(c.DropView, schema="consumption", name="customer", again=True),
    "change-definition": _on(
        c.ChangeDefinition,
        fields=(
            c.FieldChange(path="displayName", old="Customer", new="Client"),
            c.FieldChange(path="columns.code.ui", old=None, new={"message": "Six digits"}),
            c.FieldChange(
                path="similarity",
                old={"topN": 10, "minScore": 0.3},
                new={"topN": 5, "minScore": 0.3},
            ),
            c.FieldChange(path="aliases", old=["client"], new=[]),
            c.FieldChange(
                path="similarity.columns",
                old=[{"name": name} for name in ("name", "email", "phone", "birth_date", "city")],
                new=[{"name": name} for name in ("name", "email", "mobile", "birth_date", "city")],
            ),
        ),
    ),
    "change-definition unmasked": _on(
        c.ChangeDefinition,
        fields=(
            c.FieldChange(path="columns.iban.classification", old="restricted", new="confidential"),
        ),
        widens_access=True,
    ),
    "change-definition opened": _on(
        c.ChangeDefinition,
        fields=(c.FieldChange(path="access", old={"mode": "restricted"}, new={"mode": "open"}),),
    ),
    "change-definition masked": _on(
        c.ChangeDefinition,
        fields=(
            c.FieldChange(path="columns.iban.classification", old="confidential", new="restricted"),
        ),
    ),
    "change-definition own changes approved": _on(
        c.ChangeDefinition,
        fields=(c.FieldChange(path="allowSameAuthorApproval", old=False, new=True),),
    ),
    "finish-entity": _on(c.FinishEntity),
    "change-project": c.ChangeProject(
        project=PROJECT,
        fields=(
            c.FieldChange(
                path="policy",
                old={"autoApply": ["safe", "data-dependent"], "maxRemovedEntities": 5},
                new={"autoApply": ["safe"], "maxRemovedEntities": 5},
            ),
        ),
    ),
    "change-project first": c.ChangeProject(project=PROJECT),
    "grant-permission": c.GrantPermission(grant=grant("group:buyers", Action.READ, Action.WRITE)),
    "grant-permission domain": c.GrantPermission(
        grant=grant("group:buyers", Action.READ, entity="")
    ),
    "grant-permission everywhere": c.GrantPermission(
        grant=grant("group:mdm-admins", Action.ADMIN, domain="*", entity="")
    ),
    "grant-permission filtered": c.GrantPermission(
        grant=grant("group:dach", Action.READ, Action.VIEWRESTRICTED, row_filter=FILTER)
    ),
    "grant-permission narrower": c.GrantPermission(
        grant=grant("group:dach", Action.READ, row_filter=FILTER),
        replaces=grant("group:dach", Action.READ, Action.APPROVE),
    ),
    "grant-permission unfiltered": c.GrantPermission(
        grant=grant("group:dach", Action.READ),
        replaces=grant("group:dach", Action.READ, row_filter=FILTER),
    ),
    "grant-permission other filter": c.GrantPermission(
        grant=grant("group:dach", Action.READ, Action.WRITE, row_filter="[region] = 'UK'"),
        replaces=grant("group:dach", Action.READ, row_filter=FILTER),
    ),
    "revoke-permission": c.RevokePermission(grant=grant("group:buyers", Action.READ)),
    "revoke-permission filtered": c.RevokePermission(
        grant=grant("group:dach", Action.READ, row_filter=FILTER)
    ),
    "add-webhook": c.AddWebhook(webhook=webhook(actions=["data_created", "data_updated"])),
    "add-webhook of a domain": c.AddWebhook(webhook=webhook(entities=[], domains=["sales"])),
    "add-webhook of everything": c.AddWebhook(webhook=webhook(entities=[])),
    "add-webhook switched off": c.AddWebhook(webhook=webhook(is_active=False)),
    "change-webhook address": c.ChangeWebhook(
        webhook=webhook(),
        fields=(
            c.FieldChange(
                path="url", old="https://old.example.com/", new="https://hooks.example.com/crm"
            ),
        ),
    ),
    "change-webhook switched on": c.ChangeWebhook(
        webhook=webhook(), fields=(c.FieldChange(path="is_active", old=False, new=True),)
    ),
    "change-webhook switched off": c.ChangeWebhook(
        webhook=webhook(is_active=False),
        fields=(c.FieldChange(path="is_active", old=True, new=False),),
    ),
    "change-webhook wider": c.ChangeWebhook(
        webhook=webhook(),
        fields=(c.FieldChange(path="entities", old=["product"], new=["product", "customer"]),),
    ),
    "change-webhook all": c.ChangeWebhook(
        webhook=webhook(entities=[]),
        fields=(c.FieldChange(path="entities", old=["product"], new=[]),),
    ),
    "change-webhook narrower": c.ChangeWebhook(
        webhook=webhook(),
        fields=(c.FieldChange(path="entities", old=[], new=["customer"]),),
    ),
    "change-webhook narrower from some": c.ChangeWebhook(
        webhook=webhook(),
        fields=(c.FieldChange(path="entities", old=["customer", "product"], new=["customer"]),),
    ),
    "change-webhook described": c.ChangeWebhook(
        webhook=webhook(),
        fields=(c.FieldChange(path="description", old=None, new="To the CRM"),),
    ),
    "remove-webhook": c.RemoveWebhook(name="crm"),
    "apply-seed": seed_change(
        "sales_region",
        c.SeedCounts(inserted=3, updated=2, unchanged=243, left_alone=1, left_alone_keys=("DACH",)),
    ),
    "apply-seed enforced": seed_change(
        "sales_region", c.SeedCounts(updated=2, unchanged=10), SeedMode.ENFORCE
    ),
    "apply-seed many left alone": seed_change(
        "sales_region",
        c.SeedCounts(inserted=1_200, left_alone=7, left_alone_keys=("A", "B")),
    ),
    "apply-seed idle": seed_change("sales_region", c.SeedCounts(unchanged=12)),
}
