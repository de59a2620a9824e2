"""What the store remembers of an entity comes back from JSON as it was."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mdm_gitops.plan.recorded import (
    MAX_EARLIER,
    ArchiveReason,
    ColumnState,
    RecordedColumn,
    RecordedEntity,
    from_document,
    to_document,
)
from tests.support import repositories, scenario
from tests.support.simulated import Warehouse


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_records_come_back_from_json_as_they_were(data: st.DataObject) -> None:
    documents = data.draw(repositories.repositories())
    first = repositories.build(documents)
    second = repositories.build(data.draw(repositories.edited(documents)))
    warehouse = Warehouse(*filter(None, (first,)))
    if second is not None and not (plan := warehouse.plan(second)).refusals:
        for _, record in plan.preparing:
            assert from_document(json.loads(json.dumps(to_document(record)))) == record
        warehouse.deploy(second)
    for record in warehouse.facts.records:
        assert from_document(json.loads(json.dumps(to_document(record)))) == record


def item() -> RecordedEntity:
    return Warehouse(
        scenario.definitions(scenario.entity("item", scenario.column("a"), historyEnabled=True))
    ).records["item"]


COLUMN = RecordedColumn(
    key=7,
    name="b",
    physical="_arch_3_b",
    type="text",
    state=ColumnState.ARCHIVED,
    reason=ArchiveReason.RETYPED,
    archive_number=3,
    former_names=("x", "a"),
)


def test_the_document_is_the_one_that_stores_hold() -> None:
    """A store outlives the program: what is written today must be read tomorrow."""
    document = to_document(replace(item(), columns=(COLUMN,), earlier=(("abc", (("a", 7),)),)))
    del document["definition"], document["desiredHash"]
    assert document == {
        "entityId": 1,
        "name": "item",
        "state": "deployed",
        "targets": {},
        "columns": [
            {
                "key": 7,
                "name": "b",
                "physical": "_arch_3_b",
                "type": "text",
                "state": "archived",
                "reason": "retyped",
                "archiveNumber": 3,
                "formerNames": ["x", "a"],
            }
        ],
        "main": "item",
        "satellites": {"history": {"physical": "item__history", "archived": False}},
        "archiveNumber": 0,
        "formerNames": [],
        "earlier": [["abc", [["a", 7]]]],
    }


def test_the_last_name_comes_first() -> None:
    assert COLUMN.names == ("b", "a", "x")


def test_earlier_definitions_are_kept_once_and_not_for_ever() -> None:
    record = replace(item(), earlier=())
    for number in (*range(MAX_EARLIER + 5), 7):
        record = replace(record, earlier=record.remembering(f"hash {number}", [COLUMN]))
    hashes = [digest for digest, _ in record.earlier]
    assert len(hashes) == len(set(hashes)) == MAX_EARLIER
    assert (hashes[0], hashes[-1]) == ("hash 5", "hash 7")
    assert record.earlier[-1] == ("hash 7", (("b", 7),))
