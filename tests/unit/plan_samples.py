"""A believable edit of examples/customer-hub as a plan made by hand, and one change of each class.

Shared by the tests of how a plan reads; nothing here is computed by what those tests look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import (
    Action,
    EventType,
    PermissionGrant,
    Project,
    Seed,
    SeedMode,
    Webhook,
)
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.access_report import (
    AccessEffect,
    AccessReport,
    RowChange,
    TestResult,
    Verdict,
)
from mdm_gitops.plan.hazards import TableSize, assess
from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    View,
    satellite,
)
from mdm_gitops.plan.plan import (
    CheckResult,
    DataCheck,
    DriftItem,
    DriftKind,
    Plan,
    PlannedChange,
    Refusal,
    RefusalCode,
    Violation,
)

CUSTOMER = ("customer", "customer__edit", "customer__history")
SIZES: Mapping[str, TableSize] = {
    "customer": TableSize(rows=2_000, size_bytes=1_300_000),
    "customer__edit": TableSize(rows=12, size_bytes=98_304),
    "customer__history": TableSize(rows=3_100, size_bytes=2_400_000),
    "product": TableSize(rows=12_400_000, size_bytes=9_800_000_000),
    "product__history": TableSize(rows=400, size_bytes=200_000),
    "product_category": TableSize(rows=40, size_bytes=32_768),
    "sales_region": TableSize(rows=12, size_bytes=32_768),
    "empty": TableSize(rows=0, size_bytes=8_192),
}


def column(name: str, type_: str = "text", **more: Any) -> PhysicalColumn:
    return PhysicalColumn(name=name, type=type_, **more)


def table(name: str, *columns: PhysicalColumn) -> Table:
    every = (column("_sys_id", "uuid", not_null=True), *columns)
    return Table(
        name=name,
        role=Role.MAIN,
        columns=MappingProxyType({each.name: each for each in every}),
        primary_key=("_sys_id",),
        primary_key_name=f"{name}__pk",
    )


def unique(table_name: str, *columns: str) -> Index:
    return Index(name=f"{table_name}__uq_{columns[0]}", columns=columns, unique=True)


def plain_index(table_name: str, name: str) -> Index:
    return Index(name=f"{table_name}__ix_{name}", columns=(name,), unique=False)


def key(name: str, target: str, target_column: str) -> ForeignKey:
    return ForeignKey(
        name=f"fk_{name}", column=name, target_table=target, target_column=target_column
    )


def rule(name: str, kind: RuleKind, argument: Any) -> Check:
    return Check(name=f"ck_{name}_{kind}", column=name, rule=kind, argument=argument)


def grant(
    principal: str,
    *actions: Action,
    domain: str = "customer",
    entity: str = "customer",
    row_filter: str = "",
) -> PermissionGrant:
    return PermissionGrant(
        principal=principal,
        domain=domain,
        entity=entity,
        actions=tuple(sorted(actions)),
        row_filter=row_filter,
    )


def webhook(**more: Any) -> Webhook:
    written = {"name": "crm", "url": "https://hooks.example.com/crm", "entities": ["customer"]}
    return Webhook.model_validate(written | more)


def view(name: str, *columns: str) -> View:
    return View(
        schema="consumption",
        name=name,
        table=name,
        columns=tuple((each, each) for each in columns),
        include_deleted=False,
    )


def planned(*every: c.Change) -> tuple[PlannedChange, ...]:
    return tuple(
        PlannedChange(number=number, change=change, assessment=assess(change, sizes=SIZES))
        for number, change in enumerate(every, start=1)
    )


def plan(every: Sequence[c.Change], **more: Any) -> Plan:
    facts: dict[str, Any] = {
        "project": "customer-hub",
        "base_commit": "4f1c2ab9d0e7",
        "desired_hash": "d" * 64,
        "live_fingerprint": "9b3e1d0744aa",
        "entities_total": 6,
        "plan_id": "0f3a6c1be2d4958817aa",
    }
    return Plan(changes=planned(*every), **(facts | more))


def customer_hub_changes() -> tuple[c.Change, ...]:
    """Return the edit: a supplier entity, a rename, a retype, new rules, access, hooks, seeds."""
    old_rating = rule("rating", RuleKind.RANGE, (1, 5))
    supplier = table(
        "supplier",
        column("code", not_null=True),
        column("name", not_null=True),
        column("region"),
        column("rating", "integer"),
    )
    return (
        # customer
        c.DropView(entity="customer", schema="consumption", name="customer", again=True),
        c.RenameColumn(
            entity="customer", column=c.Rename(old="phone", new="telephone"), tables=CUSTOMER
        ),
        c.RenameObject(
            entity="customer",
            table="customer",
            object_kind=c.ObjectKind.CONSTRAINT,
            rename=c.Rename(old="ck_phone_pattern", new="ck_telephone_pattern"),
        ),
        c.RemoveColumn(
            entity="customer",
            column="notes",
            archived_as="_arch_3_notes",
            main_table="customer",
            tables=CUSTOMER,
        ),
        c.DropCheck(
            entity="customer",
            table="customer",
            check="ck_notes_length",
            column="notes",
            rule="length",
        ),
        c.AddColumn(
            entity="customer",
            column=column("vat_id"),
            main_table="customer",
            satellite_tables=CUSTOMER[1:],
        ),
        c.AddCheck(
            entity="customer",
            table="customer",
            check=rule("vat_id", RuleKind.PATTERN, "[A-Z]{2}[0-9]{9}"),
            column_type="text",
            online=True,
        ),
        c.AddIndex(
            entity="customer", table="customer", index=unique("customer", "vat_id"), online=True
        ),
        c.SetRequired(entity="customer", table="customer", column="email", online=True),
        c.AddCheck(
            entity="customer",
            table="customer",
            check=rule("rating", RuleKind.RANGE, (1, 10)),
            column_type="integer",
            online=True,
            replaces=old_rating,
        ),
        c.DropCheck(
            entity="customer",
            table="customer",
            check="ck_rating_range",
            column="rating",
            rule="range",
        ),
        c.CreateView(entity="customer", view=view("customer", "customer_number"), again=True),
        c.ChangeDefinition(
            entity="customer",
            fields=(
                c.FieldChange(
                    path="columns.birth_date.classification",
                    old="restricted",
                    new="confidential",
                ),
                c.FieldChange(path="displayName", old="Customer", new="Client"),
            ),
            widens_access=True,
        ),
        # product
        c.RetypeColumn(
            entity="product",
            column="weight_g",
            source="weight_g",
            archived_as="_arch_4_weight_g",
            old_type="bigint",
            new=column("weight_g", "integer"),
            main_table="product",
            tables=("product", "product__history"),
            filling=c.Filling(
                entity="product",
                source="weight_g",
                target="_new_weight_g",
                taken_from=None,
                exists=False,
                tables=("product", "product__history"),
            ),
        ),
        c.DropCheck(
            entity="product",
            table="product",
            check="ck_weight_g_range",
            column="weight_g",
            rule="range",
        ),
        c.AddCheck(
            entity="product",
            table="product",
            check=rule("weight_g", RuleKind.RANGE, (0, None)),
            column_type="integer",
            online=True,
        ),
        # product_category
        c.RemoveEntity(
            entity="product_category",
            archive_number=5,
            tables=(c.Rename(old="product_category", new="product_category__archive_5"),),
        ),
        c.DropIndex(
            entity="product_category",
            table="product_category",
            index=unique("product_category", "code"),
        ),
        # supplier
        c.CreateEntity(entity="supplier", tables=(supplier, satellite(supplier, Role.HISTORY))),
        c.AddIndex(
            entity="supplier", table="supplier", index=unique("supplier", "code"), online=False
        ),
        c.AddIndex(
            entity="supplier",
            table="supplier",
            index=plain_index("supplier", "region"),
            online=False,
        ),
        c.AddForeignKey(
            entity="supplier",
            table="supplier",
            foreign_key=key("region", "sales_region", "code"),
            online=False,
        ),
        # access, webhooks, seeds
        c.RevokePermission(
            entity="customer",
            grant=grant(
                "group:sales-emea",
                Action.READ,
                Action.WRITE,
                row_filter="[region].[area] = 'EMEA'",
            ),
        ),
        c.GrantPermission(
            entity="customer", grant=grant("group:sales-emea", Action.READ, Action.WRITE)
        ),
        c.RevokePermission(grant=grant("group:interns", Action.READ, domain="product", entity="")),
        c.GrantPermission(
            grant=grant("group:buyers", Action.READ, Action.WRITE, domain="*", entity="")
        ),
        c.ChangeWebhook(
            webhook=webhook(),
            fields=(c.FieldChange(path="is_active", old=False, new=True),),
        ),
        seed_change(
            "sales_region",
            c.SeedCounts(
                inserted=3, updated=2, unchanged=243, left_alone=1, left_alone_keys=("DACH",)
            ),
        ),
    )


def seed_change(entity: str, counts: c.SeedCounts, mode: SeedMode = SeedMode.UPSERT) -> c.ApplySeed:
    return c.ApplySeed(
        entity=entity,
        seed=Seed.of(entity, ({"code": "DACH"},)),
        mode=mode,
        table=entity,
        history_table=None,
        key_columns=("code",),
        columns=(column("code"),),
        user_columns=(c.UserColumn(name="code", shown="code"),),
        counts=counts,
        group=1,
    )


def access_report() -> AccessReport:
    """Return a report with each kind of line in it: rows gained, an action gained, tests."""
    gains = RowChange(before=5, after=8, gained=3, lost=0, total=9)
    ana, buyers = {"principal": "ana", "entity": "customer"}, {"principal": "group:buyers"}
    test: dict[str, Any] = {"place": "access-tests.yaml:3:1", "action": Action.READ, **ana}
    return AccessReport(
        effects=(
            AccessEffect(**ana, action=Action.READ, had=True, has=True, rows=gains),
            AccessEffect(**buyers, entity="product", action=Action.WRITE, had=False, has=True),
        ),
        tests=(
            TestResult(**test, name="reads", verdict=Verdict.PASSED),
            TestResult(**test, name="no secrets", verdict=Verdict.FAILED, message="ana sees [x]"),
            TestResult(**test, name="new rows", verdict=Verdict.UNCHECKED, message="not there"),
        ),
        uncounted=4,
    )


def customer_hub_plan() -> Plan:
    every = customer_hub_changes()
    email = DataCheck(
        violation=Violation.IS_NULL,
        entity="customer",
        column="email",
        table="customer",
        columns=("email",),
    )
    weight = DataCheck(
        violation=Violation.CANNOT_BE_CAST,
        entity="product",
        column="weight_g",
        table="product",
        columns=("weight_g",),
        casts={"weight_g": ("bigint", "integer")},
    )
    samples = tuple(
        {"_sys_id": f"01937c5e-0000-7000-8000-00000000000{n}", "email": None} for n in range(1, 6)
    )
    return plan(
        every,
        checks=(
            CheckResult(check=email, violations=167, samples=samples, changes=(9,)),
            CheckResult(check=weight, violations=0, changes=(14,)),
        ),
        drift=(
            DriftItem(
                kind=DriftKind.STRANGE,
                entity="customer",
                object="index customer_tmp_idx on customer",
                message="was added by hand",
            ),
            DriftItem(
                kind=DriftKind.ALTERED,
                entity="product",
                object="column product.currency",
                message="has lost its default",
            ),
        ),
        refusals=(
            Refusal(
                code=RefusalCode.DATA_CHECK_FAILED,
                entity="customer",
                message="customer: 167 rows are null in email",
                hint="Fill them first, or leave the column nullable",
            ),
        ),
        notes=("view reporting.client_list of others reads customer",),
    )


PRICE = Decimal("9.50")
EVENT = EventType.CREATED
PROJECT = Project.model_validate({"name": "customer-hub", "apiVersion": "mdm-gitops/v1"})
