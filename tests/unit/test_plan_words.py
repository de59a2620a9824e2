"""How each class of change reads, whatever the format."""

from __future__ import annotations

from typing import get_args

import pytest

from mdm_gitops.model import SeedMode
from mdm_gitops.plan import changes
from mdm_gitops.plan.words import Symbol, field_words, seed_words, word
from tests.unit.plan_changes import CHANGES
from tests.unit.plan_samples import webhook

WORDS = {
    "create-entity": "+ customer: new, 2 columns",
    "rename-entity": "» client → customer: renamed in 2 tables, rows kept",
    "rename-entity reverted": "» client → customer: an earlier rename is taken back: renamed in 1 table, rows kept",
    "remove-entity": "- customer: kept as archive 3, comes back with git revert",
    "restore-entity": "↺ customer: comes back from archive 3 with its rows",
    "add-satellite approval": "+ approval: changes wait for an approver from now on",
    "add-satellite history": "+ history: each version of a row is kept from now on",
    "remove-satellite approval": "- approval: changes take effect at once; what is pending is set aside in customer__archive_4_e",
    "remove-satellite approval, nothing pending": "- approval: changes take effect at once; what is pending is set aside in customer__archive_4_e",
    "remove-satellite history": "- history: no further versions; earlier ones stay in customer__archive_4_h, come back with git revert",
    "remove-satellite history, of unknown size": "- history: no further versions; earlier ones stay in customer__archive_4_h, come back with git revert",
    "restore-satellite approval": "↺ approval: changes wait again; what was set aside comes back",
    "restore-satellite history": "↺ history: versions are kept again; the archived ones come back",
    "add-column": "+ vat_id: text",
    "add-column required with default": "+ price: decimal(8,2), required, default 9.50",
    "add-column required": "+ vat_id: text, required",
    "add-column required, no rows": "+ vat_id: text, required",
    "add-column to satellites only": "+ vat_id: was missing in customer__history",
    "rename-column": "» phone → telephone: renamed in 3 tables, data kept",
    "rename-column reverted": "» telephone → phone: an earlier rename is taken back: renamed in 3 tables, data kept",
    "remove-column": "- notes: kept as archive 3, comes back with git revert",
    "restore-column": "↺ notes: comes back from archive 3 with its values",
    "widen-column": "~ price decimal(8,2) → decimal(10,2): in place, no row is touched",
    "retype-column": "~ weight long → int: each value is converted into a new column; the old column is kept as archive 4",
    "retype-column resumed": "~ weight long → int: goes on filling a new column; the old column is kept as archive 4",
    "retype-column, no rows": "~ weight long → int: no rows to convert; the old column is kept as archive 4",
    "retype-column back": "~ weight long → int: archived values come back, edited ones are converted; the old column is kept as archive 4",
    "retype-column onto a removed one": "~ weight long → int: values of the archived column stand where there are none now; the old column is kept as archive 4",
    "abandon-filling": "~ weight: a type change that was begun is given up; its column is kept as archive 5",
    "set-required": "~ email required",
    "set-required, no rows": "~ email required",
    "drop-required": "~ email may be empty",
    "set-default": "~ status default prospect",
    "drop-default": "~ status has no default any more",
    "add-check pattern": "~ gtin must match [0-9]{13}",
    "add-check allowed": "~ status one of active, closed",
    "add-check many allowed": "~ rank one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 3 more",
    "add-check at least": "~ rating at least 1",
    "add-check at most": "~ price at most 9.50",
    "add-check range": "~ rating from 1 to 5",
    "add-check length": "~ name at most 40 characters",
    "add-check, no rows": "~ name at most 40 characters",
    "add-check wider": "~ name at most 40 characters → at most 60 characters: lets more through than before",
    "add-check narrower": "~ name at most 40 characters → at most 20 characters",
    "add-check one value more": "~ status one of active, closed, blocked: new: blocked",
    "add-check one value less": "~ status one of active: gone: closed",
    "drop-check": "~ name may have any length",
    "drop-check changed by hand": "~ rule ck_name_length dropped: it was changed by hand",
    "validate-check": "~ rule ck_name_length proven: an interrupted run left it unproven",
    "add-index unique": "~ code unique",
    "add-index unique set": "~ country, tax_id unique together",
    "add-index unique, no rows": "~ code unique",
    "add-index unique, new table": "~ code unique",
    "add-index": "~ region indexed",
    "add-index rebuilt": "~ code unique: built again, the last attempt was interrupted",
    "drop-index unique": "~ code no longer unique",
    "drop-index unique set": "~ country, tax_id no longer unique together",
    "drop-index": "~ region no longer indexed",
    "add-foreign-key": "~ region refers to sales_region.code",
    "add-foreign-key, new table": "~ region refers to sales_region.code",
    "add-foreign-key, both new": "~ other refers to newer.code",
    "drop-foreign-key": "~ region no longer refers to sales_region.code",
    "validate-foreign-key": "~ reference fk_region proven: an interrupted run left it unproven",
    "rename-object constraint": "» constraint ck_a_length → ck_b_length: follows the rename",
    "rename-object index": "» index customer__uq_a → customer__uq_b: follows the rename",
    "create-view": "+ view consumption.customer: code, name",
    "create-view again": "+ view consumption.customer: built again, because something beneath it moves",
    "drop-view": "- view consumption.customer: is no longer there for those who read it",
    "drop-view again": "- view consumption.customer: taken down, because something beneath it moves",
    "change-definition": "~ customer: displayName Customer → Client; code.ui none → message: Six digits; similarity.topN 10 → 5; aliases [client] → none; similarity.columns without phone, with mobile",
    "change-definition unmasked": "~ customer: iban.classification restricted → confidential",
    "change-definition opened": "~ customer: access.mode restricted → open",
    "change-definition masked": "~ customer: iban.classification confidential → restricted",
    "change-definition own changes approved": "~ customer: allowSameAuthorApproval false → true",
    "finish-entity": "~ customer: stands already; an interrupted run is marked as done",
    "change-project": "~ project: policy.autoApply [safe, data-dependent] → [safe]",
    "change-project first": "~ project: recorded",
    "grant-permission": "+ group:buyers may read and write customer",
    "grant-permission domain": "+ group:buyers may read domain customer",
    "grant-permission everywhere": "+ group:mdm-admins may administer all domains",
    "grant-permission filtered": "+ group:dach may read and unmask customer: only rows where [region] = 'DACH'",
    "grant-permission narrower": "~ group:dach on customer: may no longer approve; row filter added: only rows where [region] = 'DACH'",
    "grant-permission unfiltered": "~ group:dach on customer: row filter removed: all rows instead of only those where [region] = 'DACH'",
    "grant-permission other filter": "~ group:dach on customer: may now also write; row filter changed: [region] = 'DACH' → [region] = 'UK'",
    "revoke-permission": "- group:buyers may no longer read customer",
    "revoke-permission filtered": "- group:dach may no longer read customer: had only rows where [region] = 'DACH'",
    "add-webhook": "+ crm → https://hooks.example.com/crm: data_created, data_updated of customer"
    "; signed with a secret that is made here",
    "add-webhook of a domain": "+ crm → https://hooks.example.com/crm: all events of domain sales"
    "; signed with a secret that is made here",
    "add-webhook of everything": "+ crm → https://hooks.example.com/crm: all events of all entities"
    "; signed with a secret that is made here",
    "add-webhook switched off": "+ crm → https://hooks.example.com/crm: switched off; all events of customer"
    "; signed with a secret that is made here",
    "change-webhook address": "~ crm: url https://old.example.com/ → https://hooks.example.com/crm",
    "change-webhook switched on": "~ crm: is_active false → true; sends to https://hooks.example.com/crm",
    "change-webhook switched off": "~ crm: is_active true → false",
    "change-webhook wider": "~ crm: entities [product] → [product, customer]; sends to https://hooks.example.com/crm",
    "change-webhook all": "~ crm: entities [product] → all; sends to https://hooks.example.com/crm",
    "change-webhook narrower": "~ crm: entities all → [customer]; sends to https://hooks.example.com/crm",
    "change-webhook narrower from some": (
        "~ crm: entities [customer, product] → [customer]; sends to https://hooks.example.com/crm"
    ),
    "change-webhook described": "~ crm: description none → To the CRM",
    "remove-webhook": "- crm: is told nothing any more; one that comes back starts at now",
    "apply-seed": "~ sales_region: 249 rows: 3 new, 2 changed, 1 left alone (changed by a person: DACH)",
    "apply-seed enforced": "~ sales_region: 12 rows: 2 changed (also where a person changed them)",
    "apply-seed many left alone": "~ sales_region: 1,207 rows: 1,200 new, 7 left alone (changed by a person: A, B, …)",
    "apply-seed idle": "~ sales_region: 12 rows: as they are",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_words(name: str) -> None:
    assert str(word(CHANGES[name])) == WORDS[name]


def test_every_class_is_worded_and_tested() -> None:
    assert {type(change) for change in CHANGES.values()} == set(changes.ALL)
    assert set(get_args(changes.AnyChange)) == set(changes.ALL)
    assert set(WORDS) == set(CHANGES)


def test_symbols_order_the_lines_so_that_what_goes_comes_last() -> None:
    assert [symbol.value for symbol in Symbol] == ["»", "+", "↺", "~", "-"]


def test_nothing_that_people_wrote_draws_on_the_screen() -> None:
    change = changes.AddWebhook(webhook=webhook(name="a\x1b[31m\u202eb\nc"))
    assert word(change).headline == r"a\x1b[31m\u202eb\nc → https://hooks.example.com/crm"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([{"name": "a", "title": "A"}], [{"name": "a", "title": "B"}], ["domains.a.title A → B"]),
        ([{"name": "a"}], [{"name": "a"}, {"name": "b"}], ["domains [a] → [a, b]"]),
        (
            [{"name": "a", "title": "A"}, {"name": "b"}],
            [{"name": "b"}, {"name": "a", "title": "B"}],
            ["domains [a, b] → [b, a]", "domains.a.title A → B"],
        ),
        ([{"name": "a"}], [], ["domains [a] → none"]),
    ],
)
def test_a_list_of_named_things_tells_what_differs_in_which(
    old: list[dict[str, str]], new: list[dict[str, str]], words: list[str]
) -> None:
    assert list(field_words([changes.FieldChange(path="domains", old=old, new=new)])) == words


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ((), "3 left alone (changed by a person)"),
        (("A", "B", "C"), "3 left alone (changed by a person: A, B, C)"),
        (("A", "B"), "3 left alone (changed by a person: A, B, …)"),
    ],
)
def test_rows_of_a_seed_that_people_changed_are_named(keys: tuple[str, ...], shown: str) -> None:
    counts = changes.SeedCounts(unchanged=1, left_alone=3, left_alone_keys=keys)
    assert seed_words(counts, SeedMode.UPSERT) == f"4 rows: {shown}"
