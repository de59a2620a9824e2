"""What a commit changes, planned between two sets of definitions: one edit each, and all it does."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import ApplySeed, SeedCounts
from mdm_gitops.plan.structural import deployed, structural_plan
from tests.support.scenario import Documents, column, definitions, entity, grant, webhook
from tests.support.simulated import told

VIEW = {"schema": "lab_views", "name": "item_v"}


def item(*columns: Documents, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields))


def price(precision: int) -> Documents:
    return column("price", "decimal", precision=precision, scale=2, minValue=0)


def viewed(**fields: Any) -> dict[str, Any]:
    return {"consumption": {"views": [{**VIEW, **fields}]}}


def refers(to: str, **fields: Any) -> Documents:
    return column("o", reference={"entity": to, **fields})


CASES = [
    pytest.param(
        item(historyEnabled=True),
        item(column("note"), historyEnabled=True),
        ["add-column item column=(note text) main_table=item satellite_tables=item__history"],
        id="new-column",
    ),
    pytest.param(
        item(),
        item(column("rank", "int", nullable=False, default=3)),
        ["add-column item column=(rank integer not null default 3) main_table=item"],
        id="new-required-column",
    ),
    pytest.param(
        item(column("rank", "int", nullable=False, default=3)),
        item(),
        [
            (
                "remove-column item column=rank archived_as=_arch_1_rank main_table=item tables=item"
                " had_not_null=True had_default=True"
            )
        ],
        id="removed-column",
    ),
    pytest.param(
        item(column("mail", unique=True, maxLength=9)),
        item(column("email", unique=True, maxLength=9, renamedFrom="mail")),
        [
            "rename-column item column=mail>email tables=item",
            (
                "rename-object item table=item object_kind=constraint"
                " rename=ck_mail_length>ck_email_length"
            ),
            "rename-object item table=item object_kind=index rename=item__uq_mail>item__uq_email",
        ],
        id="renamed-column-takes-its-rules-along",
    ),
    pytest.param(
        item(column("a"), column("b", "int")),
        item(column("b", renamedFrom="a"), column("a", "int", renamedFrom="b")),
        [
            "rename-column item column=a>_aside_a>b tables=item",
            "rename-column item column=b>_aside_b>a tables=item",
        ],
        id="columns-exchange-names",
    ),
    pytest.param(
        item(price(8)),
        item(price(12)),
        [
            (
                "widen-column item column=price old_type=numeric(8,2) new_type=numeric(12,2)"
                " tables=item"
            ),
            "drop-check item table=item check=ck_price_range column=price rule=range",
            (
                "add-check item table=item check=(ck_price_range (Decimal('0'), None))"
                " column_type=numeric(12,2) online=True"
                " replaces=(ck_price_range (Decimal('0'), None))"
            ),
        ],
        id="more-digits-prove-the-rules-again",
    ),
    pytest.param(
        item(column("rank", nullable=False, default="1"), approvalRequired=True),
        item(column("rank", "int", nullable=False, default=1), approvalRequired=True),
        [
            (
                "retype-column item column=rank source=rank archived_as=_arch_1_rank old_type=text"
                " new=(rank integer not null default 1) main_table=item tables=item,item__edit"
                " had_not_null=True had_default=True"
                " filling=(rank into _new_rank in item: item,item__edit)"
            ),
            "set-required item table=item column=rank online=True",
            "set-default item table=item column=(rank integer not null default 1)",
        ],
        id="another-type",
    ),
    pytest.param(
        item(column("note")),
        item(column("note", nullable=False)),
        ["set-required item table=item column=note online=True"],
        id="required",
    ),
    pytest.param(
        item(column("note", nullable=False)),
        item(column("note")),
        ["drop-required item table=item column=note"],
        id="no-longer-required",
    ),
    pytest.param(
        item(column("note", default="x")),
        item(column("note", default="y")),
        ["set-default item table=item column=(note text default y)"],
        id="another-default",
    ),
    pytest.param(
        item(column("note", default="x")),
        item(column("note")),
        ["drop-default item table=item column=note"],
        id="no-default",
    ),
    pytest.param(
        item(column("note", maxLength=9)),
        item(column("note", maxLength=5)),
        [
            "drop-check item table=item check=ck_note_length column=note rule=length",
            (
                "add-check item table=item check=(ck_note_length 5) column_type=text online=True"
                " replaces=(ck_note_length 9)"
            ),
        ],
        id="another-limit",
    ),
    pytest.param(
        item(column("note", maxLength=9)),
        item(column("note")),
        ["drop-check item table=item check=ck_note_length column=note rule=length"],
        id="no-limit",
    ),
    pytest.param(
        item(column("a"), column("b")),
        item(column("a"), column("b"), uniqueConstraints=[{"name": "both", "columns": ["a", "b"]}]),
        ["add-index item table=item index=(unique item__uqs_both on a,b) online=True"],
        id="unique-together",
    ),
    pytest.param(
        item(column("a", unique=True)),
        item(column("a")),
        ["drop-index item table=item index=(unique item__uq_a on a)"],
        id="no-longer-unique",
    ),
    pytest.param(
        item(column("o")),
        item(refers("item")),
        [
            "add-index item table=item index=(item__ix_o on o) online=True",
            "add-foreign-key item table=item foreign_key=(o to item.code) online=True",
        ],
        id="refers-to-itself",
    ),
    pytest.param(
        item(refers("item")),
        item(column("o")),
        [
            "drop-index item table=item index=(item__ix_o on o)",
            "drop-foreign-key item table=item foreign_key=(o to item.code)",
        ],
        id="refers-no-longer",
    ),
    pytest.param(
        definitions(entity("one", column("k")), entity("two", column("o"))),
        definitions(
            entity("one", column("k", unique=True)), entity("two", refers("one", column="k"))
        ),
        [
            "add-index one table=one index=(unique one__uq_k on k) online=True",
            "add-index two table=two index=(two__ix_o on o) online=True",
            "add-foreign-key two table=two foreign_key=(o to one.k) online=True",
        ],
        id="refers-to-what-becomes-unique",
    ),
    pytest.param(
        definitions(entity("one", column("k", unique=True))),
        definitions(entity("one"), entity("two", refers("one"))),
        [
            "remove-column one column=k archived_as=_arch_1_k main_table=one tables=one",
            "drop-index one table=one index=(unique one__uq_k on _arch_1_k)",
            "create-entity two tables=two",
            "add-index two table=two index=(unique two__uq_code on code) online=False",
            "add-index two table=two index=(two__ix_o on o) online=False",
            "add-foreign-key two table=two foreign_key=(o to one.code) online=False",
        ],
        id="new-entity-beside-an-old-one",
    ),
    pytest.param(
        definitions(entity("one", column("k"))),
        definitions(
            entity("one", column("k", unique=True)), entity("two", refers("one", column="k"))
        ),
        [
            "add-index one table=one index=(unique one__uq_k on k) online=True",
            "create-entity two tables=two",
            "add-index two table=two index=(unique two__uq_code on code) online=False",
            "add-index two table=two index=(two__ix_o on o) online=False",
            "add-foreign-key two table=two foreign_key=(o to one.k) online=True",
        ],
        id="new-entity-waits-for-an-index",
    ),
    pytest.param(
        item(),
        item(historyEnabled=True),
        [
            "add-satellite item role=history table=item__history",
            "add-index item table=item__history index=(item__history__ix_code on code) online=False",
        ],
        id="history",
    ),
    pytest.param(
        item(historyEnabled=True),
        item(),
        [
            "remove-satellite item role=history table=item__history>item__archive_1_h",
            (
                "rename-object item table=item__archive_1_h object_kind=constraint"
                " rename=item__history__pk>item__archive_1_h__pk"
            ),
            "drop-index item table=item__history index=(item__history__ix_code on code)",
        ],
        id="no-history",
    ),
    pytest.param(
        item(**viewed()),
        item(),
        ["drop-view item schema=lab_views name=item_v"],
        id="no-view",
    ),
    pytest.param(
        item(**viewed()),
        item(**viewed(includeDeleted=True)),
        [
            "drop-view item schema=lab_views name=item_v",
            "create-view item view=lab_views.item_v",
        ],
        id="another-view",
    ),
    pytest.param(
        item(column("a"), **viewed(columns=["code"])),
        item(column("b", renamedFrom="a"), **viewed(columns=["code"])),
        [
            "rename-column item column=a>b tables=item",
            "drop-view item schema=lab_views name=item_v again=True",
            "create-view item view=lab_views.item_v again=True",
        ],
        id="view-over-a-move",
    ),
    pytest.param(
        item(column("a"), **viewed()),
        item(column("a", maxLength=3), **viewed()),
        ["add-check item table=item check=(ck_a_length 3) column_type=text online=True"],
        id="view-over-a-rule-stays",
    ),
    pytest.param(
        item(column("a")),
        item(column("a", displayName="A"), displayName="Item"),
        [
            (
                "change-definition item fields=FieldChange(path='displayName', old=None, new='Item'),"
                "FieldChange(path='columns.a.displayName', old=None, new='A')"
            )
        ],
        id="display-names",
    ),
    pytest.param(
        item(column("secret", classification="restricted")),
        item(column("open", renamedFrom="secret")),
        [
            "rename-column item column=secret>open tables=item",
            (
                "change-definition item fields=FieldChange(path='columns.open.classification',"
                " old='restricted', new='internal') widens_access=True"
            ),
        ],
        id="unmasked-under-a-new-name",
    ),
    pytest.param(
        item(column("name")),
        item(column("Name")),
        ["change-definition item fields="],
        id="case-of-a-name-has-no-physical-form",
    ),
    pytest.param(
        definitions(entity("one"), entity("two", column("x"))),
        definitions(
            entity("two", renamedFrom="one"), entity("one", column("x"), renamedFrom="two")
        ),
        [
            "rename-entity one old_entity=two tables=two>_aside_two>one",
            (
                "rename-object one table=one object_kind=constraint"
                " rename=two__pk>_aside_two__pk>one__pk"
            ),
            (
                "rename-object one table=one object_kind=index"
                " rename=two__uq_code>_aside_two__uq_code>one__uq_code"
            ),
            "rename-entity two old_entity=one tables=one>_aside_one>two",
            (
                "rename-object two table=two object_kind=constraint"
                " rename=one__pk>_aside_one__pk>two__pk"
            ),
            (
                "rename-object two table=two object_kind=index"
                " rename=one__uq_code>_aside_one__uq_code>two__uq_code"
            ),
        ],
        id="entities-exchange-names",
    ),
    pytest.param(
        definitions(entity("one"), entity("two", refers("one"))),
        definitions(entity("two", refers("one")), entity("one", column("k"), keyColumns=["code"])),
        ["add-column one column=(k text) main_table=one"],
        id="a-target-that-grows-leaves-its-references",
    ),
    pytest.param(
        definitions(entity("one", column("k", nullable=False)), entity("two", refers("one"))),
        definitions(
            entity("one", column("k", nullable=False), keyColumns=["k"]),
            entity("two", refers("one")),
        ),
        [
            "drop-index one table=one index=(unique one__uq_code on code)",
            "add-index one table=one index=(unique one__uq_k on k) online=True",
            "change-definition one fields=FieldChange(path='keyColumns', old=['code'], new=['k'])",
            "drop-foreign-key two table=two foreign_key=(o to one.code)",
            "add-foreign-key two table=two foreign_key=(o to one.k) online=True",
        ],
        id="another-key-moves-the-references",
    ),
    pytest.param(
        item(),
        definitions(entity("item"), permissions=[grant("ann", "read")], webhooks=[webhook("hook")]),
        [
            (
                "grant-permission grant=PermissionGrant(principal='ann', domain='lab', entity='',"
                " actions=(<Action.READ: 'read'>,), row_filter='')"
            ),
            (
                "add-webhook webhook=name='hook' url='https://example.com/x' domains=() entities=()"
                " actions=(<EventType.CREATED: 'data_created'>,) description=None is_active=True"
                " secret_ref=None"
            ),
        ],
        id="access-and-webhooks",
    ),
]


@pytest.mark.parametrize(("old", "new", "changes"), CASES)
def test_changes_between_two_definitions(
    old: Definitions, new: Definitions, changes: list[str]
) -> None:
    plan = structural_plan(old, new)
    assert [told(item.change) for item in plan.changes] == changes
    assert [item.number for item in plan.changes] == list(range(1, len(changes) + 1))
    assert (plan.checks, plan.drift, plan.refusals) == ((), (), ())


@pytest.mark.parametrize(("old", "new", "changes"), CASES)
def test_what_is_deployed_needs_no_plan(
    old: Definitions, new: Definitions, changes: list[str]
) -> None:
    assert structural_plan(new, new).changes == ()
    assert structural_plan(old, old).plan_id != structural_plan(old, new).plan_id


def test_all_tables_are_taken_to_hold_rows() -> None:
    facts = deployed(item(historyEnabled=True, **viewed()), data_schema="rows")
    assert set(facts.relations) == {
        ("rows", "item"),
        ("rows", "item__history"),
        ("lab_views", "item_v"),
    }
    assert facts.filled == {"item", "item__history"}
    assert [record.entity_id for record in facts.records] == [1]


OLD_ROWS = [{"code": "a", "n": 1}, {"code": "b", "n": 2}, {"code": "gone"}]
NEW_ROWS = [{"code": "a", "n": 1}, {"code": "b", "n": 3}, {"code": "c"}, {"code": "d"}]


@pytest.mark.parametrize(
    ("old", "counts"),
    [
        ({}, SeedCounts(inserted=4)),
        ({"item": OLD_ROWS}, SeedCounts(inserted=2, updated=1, unchanged=1)),
    ],
)
def test_seed_files_are_compared_with_each_other(
    old: dict[str, list[Documents]], counts: SeedCounts
) -> None:
    def seeded(seeds: dict[str, list[Documents]]) -> Definitions:
        return definitions(entity("item", column("n", "int")), seeds=seeds)

    plan = structural_plan(seeded(old), seeded({"item": NEW_ROWS}))
    [change] = [item.change for item in plan.changes]
    assert isinstance(change, ApplySeed)
    assert change.counts == counts
    assert structural_plan(seeded(old), seeded(old)).is_empty
