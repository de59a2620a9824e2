"""What is equal in many definitions is kept once, and nobody notices."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from mdm_gitops.model.entity import Column
from mdm_gitops.model.names import fold
from mdm_gitops.plan.recorded import EntityState
from mdm_gitops.source.yaml_reader import load_yaml
from mdm_gitops.warehouse.store import StoredEntity, packed


def _column(name: str, **values: object) -> Column:
    return Column.model_validate({"name": name, "dataType": "string", **values})


def _definition(name: str) -> str:
    column = {"name": "a", "displayName": "Said of both", "dataType": "string"}
    return json.dumps({"definition": {"name": name, "domain": "d", "columns": [column]}})


def _stored(text: str) -> StoredEntity:
    return StoredEntity(
        entity_id=1,
        name="a",
        state=EntityState.DEPLOYED,
        desired_hash="",
        commit=None,
        deployed_at=datetime(2026, 1, 1, tzinfo=UTC),
        row_version=1,
        packed=packed(text),
    )


def test_sets_of_given_fields_are_shared_and_never_mixed() -> None:
    one, two, other = _column("a"), _column("b"), _column("c", nullable=False)
    assert one.model_fields_set is two.model_fields_set
    assert one.model_fields_set == {"name", "data_type"}
    assert other.model_fields_set == {"name", "data_type", "nullable"}


def test_a_changed_copy_leaves_the_others_as_they_are() -> None:
    one, two = _column("a"), _column("b")
    changed = one.model_copy(update={"unique": True})
    assert changed.model_fields_set == {"name", "data_type", "unique"}
    assert two.model_fields_set == {"name", "data_type"}
    with pytest.raises(ValidationError):
        one.name = "another"  # type: ignore[misc]


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="it never gives up what was made one object"
)
def test_equal_names_are_one_object() -> None:
    assert fold("Coun" + "try") is fold("COUN" + "TRY")
    first, second = (load_yaml(b"a: some_name\n", "x.yaml") for _ in range(2))
    assert first["a"] is second["a"] == "some_name"


def _kept_of(make: Callable[[int], object], times: int = 1_000) -> int:
    """Return how many bytes stay after as many objects were made and let go.

    The least of three times, since now and then a table of the process grows, by megabytes at once.
    """
    return min(
        _kept_of_once(make, range(first, first + times)) for first in range(0, 3 * times, times)
    )


def _kept_of_once(make: Callable[[int], object], numbers: range) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        for n in numbers:
            make(n)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_what_was_only_asked_for_is_given_up() -> None:
    held: list[str] = []
    assert _kept_of(lambda n: held.append(fold(f"Asked{n}" * 100))) > 500_000
    assert _kept_of(lambda n: fold(f"Other{n}" * 100)) < 100_000
    by_parser = _kept_of(lambda n: load_yaml(f"b: |\n  c\na: {_word(n)}\n".encode(), "x.yaml"))
    assert by_parser < 50_000


def test_of_lines_in_files_the_last_thousand_are_kept() -> None:
    """A line of these takes 300 bytes and more."""
    kept = _kept_of(lambda n: load_yaml(f"a: {_word(n)}\n".encode(), "x.yaml"), times=5_000)
    assert 100_000 < kept < 600_000


def _word(n: int) -> str:
    return f"word-{n}-{'x' * 30}"


def test_a_record_is_kept_packed() -> None:
    text = '{"definition": "' + "ä word " * 500 + '"}'
    stored = _stored(text)
    assert stored.text == text
    assert len(stored.packed) < len(text) / 10


def test_words_of_deployed_definitions_are_one_object() -> None:
    first, second = (_stored(_definition(name)).definition for name in ("one", "other"))
    assert first.columns[0].display_name is second.columns[0].display_name
    assert (first.name, second.name) == ("one", "other")


def test_a_changed_copy_has_a_hash_and_columns_of_its_own() -> None:
    one = _stored(_definition("one")).definition
    before = one.content_hash(), list(one.column_by_name)
    changed = one.model_copy(update={"columns": (_column("b"),)})
    assert list(changed.column_by_name) == ["b"]
    assert changed.content_hash() != one.content_hash()
    assert before == (one.content_hash(), list(one.column_by_name))
    assert one == _stored(_definition("one")).definition
