"""Properties without a physical form, and which of them let somebody see more."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Entity, Webhook
from mdm_gitops.plan.fields import entity_fields, webhook_fields, widens_access
from mdm_gitops.plan.types import widens
from tests.support.scenario import column, definitions, entity, webhook

SECRET = column("a", classification="restricted")
RESTRICTED = {"access": {"mode": "restricted"}}


def item(*columns: dict[str, Any], **fields: Any) -> Entity:
    return definitions(entity("item", *columns, **fields)).entities["item"]


def hook(**fields: Any) -> Webhook:
    return definitions(webhooks=[webhook("hook", **fields)]).webhook_by_name["hook"]


@pytest.mark.parametrize(
    ("old", "new", "identities", "fields"),
    [
        (item(), item(), {}, []),
        (item(), item(description="Things"), {}, [("description", None, "Things")]),
        (item(column("a")), item(), {}, []),
        (item(), item(column("a", displayName="A")), {}, []),
        (
            item(column("a")),
            item(column("a", displayName="A", maxLength=3, unique=True, default="x")),
            {},
            [("columns.a.displayName", None, "A")],
        ),
        (
            item(column("a", displayName="A")),
            item(column("b", displayName="B")),
            {"b": "a"},
            [("columns.b.displayName", "A", "B")],
        ),
        (
            item(column("a", displayName="A"), column("b", displayName="B")),
            item(column("a", displayName="B"), column("b", displayName="A")),
            {"a": "b", "b": "a"},
            [],
        ),
        (
            item(historyEnabled=True, renamedFrom="thing"),
            item(approvalRequired=True, lifecycle={"preventRemove": True}),
            {},
            [("lifecycle", {"preventRemove": False}, {"preventRemove": True})],
        ),
    ],
)
def test_fields_of_an_entity(
    old: Entity, new: Entity, identities: dict[str, str], fields: list[tuple[str, Any, Any]]
) -> None:
    found = entity_fields(old, new, identities=identities)
    assert [(field.path, field.old, field.new) for field in found] == fields


@pytest.mark.parametrize(
    ("old", "new", "identities", "widened"),
    [
        (item(SECRET), item(SECRET), {}, False),
        (item(SECRET), item(column("a")), {}, True),
        (item(column("a")), item(SECRET), {}, False),
        (item(SECRET), item(column("b")), {}, False),
        (item(SECRET), item(column("b")), {"b": "a"}, True),
        (item(SECRET), item(), {}, False),
        (item(**RESTRICTED), item(), {}, True),
        (item(), item(**RESTRICTED), {}, False),
        (item(**RESTRICTED), item(**RESTRICTED), {}, False),
    ],
)
def test_who_sees_more(old: Entity, new: Entity, identities: dict[str, str], widened: bool) -> None:
    assert widens_access(old, new, identities=identities) is widened


def test_fields_of_a_webhook() -> None:
    [field] = webhook_fields(hook(), hook(is_active=False))
    assert (field.path, field.old, field.new) == ("is_active", True, False)
    assert webhook_fields(hook(), hook()) == ()


@pytest.mark.parametrize(
    ("old", "new", "in_place"),
    [
        ("numeric(8,2)", "numeric(9,2)", True),
        ("numeric(8,2)", "numeric(8,2)", True),
        ("numeric(8,2)", "numeric", True),
        ("numeric(8,2)", "numeric(7,2)", False),
        ("numeric(8,2)", "numeric(10,3)", False),
        ("numeric(8,2)", "text", False),
        ("numeric", "numeric(8,2)", False),
        ("integer", "bigint", False),
        ("text", "numeric", False),
    ],
)
def test_types_that_postgresql_changes_in_place(old: str, new: str, in_place: bool) -> None:
    assert widens(old, new) is in_place
