"""A plan as a whole: the laws that hold for any definitions, and what is said beside the changes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import CreateView, FinishEntity
from tests.support import repositories
from tests.support.scenario import Documents, column, definitions, entity, grant
from tests.support.simulated import SCHEMA, Warehouse

LAW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def item(*columns: Documents, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields))


def several(*entities: Documents) -> Definitions:
    policy = {"maxRemovedEntities": 9, "maxRemovedPercent": 100}
    return definitions(entity("other"), *entities, policy=policy)


@st.composite
def built(draw: st.DrawFn, documents: repositories.Documents | None = None) -> Definitions:
    drawn = repositories.repositories() if documents is None else repositories.edited(documents)
    found = repositories.build(draw(drawn))
    assume(found is not None)
    assert found is not None
    return found


def identities(warehouse: Warehouse) -> dict[int, tuple[str, dict[str, tuple[int, str]]]]:
    """Return each entity in use with the keys and types of its columns."""
    return {
        record.entity_id: (
            record.name,
            {name: (column.key, column.type) for name, column in record.active_columns.items()},
        )
        for record in warehouse.records.values()
    }


@LAW
@given(st.data(), st.booleans())
def test_there_and_back_again(data: st.DataObject, rows: bool) -> None:
    """Each plan leads where its records say, leaves nothing to do, and the way back restores."""
    documents = data.draw(repositories.repositories())
    first = repositories.build(documents)
    assume(first is not None)
    assert first is not None
    second = data.draw(built(documents))
    warehouse = Warehouse(first, rows=rows)
    at_first = identities(warehouse)
    assume(not warehouse.plan(second).refusals)
    warehouse.deploy(second)
    assert warehouse.told(second) == []
    warehouse.deploy(first)
    assert warehouse.told(first) == []
    assert identities(warehouse) == at_first


@LAW
@given(st.data(), st.sampled_from(["first", "second", "another"]))
def test_whatever_was_interrupted_comes_to_rest(data: st.DataObject, wanted: str) -> None:
    documents = data.draw(repositories.repositories())
    first = repositories.build(documents)
    assume(first is not None)
    assert first is not None
    second = data.draw(built(documents))
    warehouse = Warehouse(first)
    at_first = identities(warehouse)
    plan = warehouse.plan(second)
    assume(not plan.refusals)
    if data.draw(st.booleans()):
        warehouse.deploy(second, interrupted=True)
    else:
        for _, record in plan.preparing[: data.draw(st.integers(0, len(plan.preparing)))]:
            warehouse.note(record)
    goal = {"first": first, "second": second}.get(wanted) or data.draw(built(documents))
    assume(not warehouse.plan(goal).refusals or wanted != "another")
    warehouse.deploy(goal)
    assert warehouse.told(goal) == []
    if wanted != "another":
        warehouse.deploy(first)
        assert identities(warehouse) == at_first


@LAW
@given(st.data())
def test_equal_inputs_give_equal_plans(data: st.DataObject) -> None:
    documents = data.draw(repositories.repositories())
    first = repositories.build(documents)
    assume(first is not None)
    assert first is not None
    second = data.draw(built(documents))
    one, two = Warehouse(first).plan(second), Warehouse(first).plan(second)
    assert one == two
    assert one.plan_id == two.plan_id


def test_the_id_of_a_plan_depends_on_all_that_it_was_made_of() -> None:
    warehouse = Warehouse(item())
    plan = warehouse.plan(item(column("a")))
    ids = {plan.plan_id, warehouse.plan(item(column("b"))).plan_id}
    warehouse.facts = replace(warehouse.facts, live_fingerprint="another")
    ids.add(warehouse.plan(item(column("a"))).plan_id)
    warehouse.facts = replace(warehouse.facts, filled=frozenset())
    ids.add(warehouse.plan(item(column("a"), column("z", nullable=False))).plan_id)
    assert len(ids) == 4


def test_a_run_that_only_has_to_be_marked_as_done() -> None:
    warehouse = Warehouse(item())
    wanted = item(column("a", maxLength=3))
    warehouse.deploy(wanted, interrupted=True)
    [planned] = warehouse.plan(wanted).changes
    assert planned.change == FinishEntity(entity="item")
    warehouse.deploy(wanted)
    assert warehouse.plan(wanted).is_empty


def test_an_entity_that_is_removed_lets_go_of_its_names() -> None:
    view = {"views": [{"schema": "lab_views", "name": "one_v"}]}
    refers = column("o", reference={"entity": "other"})
    warehouse = Warehouse(
        several(entity("one", refers, consumption=view, historyEnabled=True, approvalRequired=True))
    )
    warehouse.drop("one__edit")
    plan = warehouse.plan(several())
    assert warehouse.told(several()) == [
        (
            "remove-entity one archive_number=1"
            " tables=one>one__archive_1,one__history>one__archive_1_h"
        ),
        "drop-foreign-key one table=one foreign_key=(o to other.code)",
        (
            "rename-object one table=one__archive_1 object_kind=constraint"
            " rename=one__pk>one__archive_1__pk"
        ),
        (
            "rename-object one table=one__archive_1 object_kind=index"
            " rename=one__uq_code>one__archive_1__uq_code"
        ),
        (
            "rename-object one table=one__archive_1 object_kind=index"
            " rename=one__ix_o>one__archive_1__ix_o"
        ),
        (
            "rename-object one table=one__archive_1_h object_kind=constraint"
            " rename=one__history__pk>one__archive_1_h__pk"
        ),
        (
            "rename-object one table=one__archive_1_h object_kind=index"
            " rename=one__history__ix_code>one__archive_1_h__ix_code"
        ),
        (
            "rename-object one table=one__archive_1_h object_kind=index"
            " rename=one__history__ix_o>one__archive_1_h__ix_o"
        ),
        "drop-view one schema=lab_views name=one_v",
    ]
    assert set(plan.forgotten) >= {
        (SCHEMA, "one"),
        (SCHEMA, "one__history"),
        ("lab_views", "one_v"),
    }
    assert {(SCHEMA, "one__archive_1"), (SCHEMA, "one__archive_1_h")} <= set(plan.remembered)


def test_a_view_passes_from_one_entity_to_another() -> None:
    view = {"views": [{"schema": "lab_views", "name": "v"}]}
    warehouse = Warehouse(several(entity("one", consumption=view), entity("two")))
    after = several(entity("one"), entity("two", consumption=view))
    plan = warehouse.plan(after)
    assert warehouse.told(after) == [
        "drop-view one schema=lab_views name=v",
        "create-view two view=lab_views.v",
    ]
    assert ("lab_views", "v") in plan.remembered
    assert plan.forgotten == ()
    assert plan.refusals == ()


def test_a_restored_entity_gets_its_views_again() -> None:
    view = {"views": [{"schema": "lab_views", "name": "one_v"}]}
    one = entity("one", consumption=view)
    warehouse = Warehouse(several(one), several())
    plan = warehouse.plan(several(one))
    created = [item.change for item in plan.changes if isinstance(item.change, CreateView)]
    assert [change.view.key for change in created] == [("lab_views", "one_v")]


def test_views_of_others_are_noted_when_something_beneath_them_moves() -> None:
    warehouse = Warehouse(item(column("a")))
    readers = MappingProxyType({"item": ("public.report",), "elsewhere": ("public.x",)})
    warehouse.facts = replace(warehouse.facts, dependents=readers)
    assert warehouse.plan(item(column("a", maxLength=3))).notes == ()
    [note] = warehouse.plan(item(column("b", renamedFrom="a"))).notes
    assert note.startswith("view public.report, which is not ours, reads item")


def test_a_target_is_planned_alone() -> None:
    warehouse = Warehouse(several(entity("one"), entity("gone")))
    after = definitions(
        entity("other", column("a")),
        entity("one", column("b")),
        permissions=[grant("ann", "read")],
        seeds={"one": [{"code": "x"}], "other": [{"code": "x"}]},
    )
    assert warehouse.told(after, target=["ONE"]) == [
        "add-column one column=(b text) main_table=one",
        (
            "apply-seed one mode=upsert table=one history_table=None user_columns=code,b"
            " key_columns=code columns=(code text not null) counts=+1 ~0 =0 group=1"
        ),
    ]
    assert {line.split()[0] for line in warehouse.told(after)} >= {
        "remove-entity",
        "grant-permission",
        "change-project",
    }


def test_what_was_not_read_is_not_planned() -> None:
    warehouse = Warehouse(several(entity("one")))
    warehouse.leave_unread("one")
    assert warehouse.told(several(entity("one"))) == []


@pytest.mark.parametrize("left", [False, True], ids=["all-of-it", "but-not-its-history"])
def test_an_entity_whose_table_is_gone(left: bool) -> None:
    wanted = several(entity("one", historyEnabled=True))
    warehouse = Warehouse(wanted)
    warehouse.drop("one")
    if not left:
        warehouse.drop("one__history")
    old = warehouse.records["one"].entity_id
    plan = warehouse.plan(wanted)
    kinds = [item.change.kind for item in plan.changes]
    assert ("remove-entity" in kinds) == left
    assert "create-entity" in kinds
    assert [item.object for item in plan.drift if item.object == "table one"] == ["table one"]
    made = [record.entity_id for record in plan.records if record.main == "one"]
    assert (made == [old]) != left


def test_a_removed_entity_whose_table_is_gone() -> None:
    warehouse = Warehouse(several(entity("one")))
    warehouse.drop("one")
    [drift] = warehouse.plan(several()).drift
    assert drift.object == "table one"


def test_what_is_ours_is_no_drift_while_a_deployment_is_under_way() -> None:
    warehouse = Warehouse(item(historyEnabled=True))
    wanted = item(column("a", maxLength=3), historyEnabled=True)
    warehouse.deploy(wanted, interrupted=True)
    warehouse.alter("item", "constraints", "ck_a_length", None)
    warehouse.alter("item", "triggers", "mine", {})
    warehouse.drop("item__history")
    plan = warehouse.plan(wanted)
    assert [item.object for item in plan.drift] == ["trigger mine on item"]
    assert set(plan.strange) == {(SCHEMA, "item")}
    assert [item.change.kind for item in plan.changes] == [
        "add-satellite",
        "add-index",
        "add-check",
    ]
