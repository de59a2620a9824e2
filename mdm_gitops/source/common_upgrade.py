"""From one version of a common entity to a newer one, with what was changed locally kept.

A three-way merge of values, not of lines: the version that was installed, what it has become in the repository,
and the newer version. What only one side has changed is taken; what both have changed to the same is that;
anything else is a conflict, which is named, and then nothing is written. Rows of the seed are told apart by their
key and taken as a whole.

The program carries of each former version its definition and a hash per row (``Former``), which is all that a
merge asks of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from mdm_gitops.errors import Conflict
from mdm_gitops.model import Entity
from mdm_gitops.model.values import canonical_json

Document = Mapping[str, Any]
Row = Mapping[str, Any]
_HASH_LENGTH: Final = (
    16  # signs: two rows of one key are told apart, nobody is kept from forging them
)
_SHOWN: Final = 20
_OWN: Final = ("version", "domain")  # the one is always new, the other always local


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What a merge must know of the version that was installed. *rows* are hashes by key."""

    document: Document
    rows: Mapping[str, str]

    @staticmethod
    def of(entity: Entity, rows: Iterable[Row]) -> Former:
        keyed = {key_of(entity, row): hash_of(row) for row in rows}
        return Former(document=entity.to_document(), rows=keyed)

    @staticmethod
    def read(data: bytes) -> Former:
        value = orjson.loads(data)
        return Former(document=value["definition"], rows=value["rows"])

    def written(self) -> bytes:
        """Return what ``read`` reads."""
        value = {"definition": self.document, "rows": self.rows}
        return json.dumps(value, ensure_ascii=False, indent=0).encode() + b"\n"


def key_of(entity: Entity, row: Row) -> str:
    return canonical_json([row.get(name) for name in entity.key_columns])


def hash_of(row: Row) -> str:
    return hashlib.sha256(canonical_json(dict(row)).encode()).hexdigest()[:_HASH_LENGTH]


def is_changed(former: Former, entity: Entity, rows: Iterable[Row]) -> bool:
    """Return whether *entity* or its *rows* are not as they were installed; any domain will do."""
    here = Former.of(entity, rows)
    return here.rows != former.rows or _but_domain(here.document) != _but_domain(former.document)


def _but_domain(document: Document) -> Document:
    return {key: value for key, value in document.items() if key != "domain"}


# --- the merge ------------------------------------------------------------------------------------


def merge_definition(former: Former, local: Entity, new: Entity) -> Entity:
    """Return *local* with what *new* has changed since *former*.

    Raises:
        Conflict: both have changed the same (``COMMON_ENTITY_CONFLICT``).
    """
    merge = _Merge()
    mine, theirs = local.to_document(), new.to_document()
    merged = merge.value(
        *({k: v for k, v in d.items() if k not in _OWN} for d in (former.document, mine, theirs)),
        path="",
    )
    merge.refuse(new)
    document = {**merged, "version": new.version, "domain": local.domain}
    # Whether the changes fit together is asked of the whole repository, before the commit.
    return Entity.model_validate(document)


def merge_rows(
    former: Former, entity: Entity, local: Sequence[Row], new: Sequence[Row]
) -> list[Row]:
    """Return the rows of the seed in the order of *new*, with those that are only local at the end.

    Raises:
        Conflict: as ``merge_definition``.
    """
    merge = _Merge()
    mine = {key_of(entity, row): row for row in local}
    theirs = {key_of(entity, row): row for row in new}
    merged = []
    for key in (*theirs, *(key for key in mine if key not in theirs)):
        here, there = mine.get(key), theirs.get(key)
        before = former.rows.get(key)
        hashes = [row and hash_of(row) for row in (here, there)]
        if hashes[0] == hashes[1] or hashes[1] == before:
            row = here
        elif hashes[0] == before:
            row = there
        else:
            merge.conflicts.append(f"row {key[1:-1]} of the seed")
            continue
        if row is not None:
            merged.append(row)
    merge.refuse(entity)
    return merged


@dataclass
class _Merge:
    conflicts: list[str] = field(default_factory=list)

    def value(self, before: Any, mine: Any, theirs: Any, *, path: str) -> Any:
        if mine == theirs or before == theirs:
            return mine
        if before == mine:
            return theirs
        if all(isinstance(each, Mapping) for each in (mine, theirs)):
            return self._members(before if isinstance(before, Mapping) else {}, mine, theirs, path)
        if all(_is_named(each) for each in (mine, theirs)):
            was = _by_name(before if _is_named(before) else ())
            return list(self._members(was, _by_name(mine), _by_name(theirs), path).values())
        self.conflicts.append(path)
        return mine

    def _members(self, before: Document, mine: Document, theirs: Document, path: str) -> Document:
        found = {}
        for key in dict.fromkeys((*theirs, *mine)):
            inner = f"{path}.{key}" if path else key
            sides = (each.get(key, _ABSENT) for each in (before, mine, theirs))
            value = self.value(*sides, path=inner)
            if value is not _ABSENT:
                found[key] = value
        return found

    def refuse(self, entity: Entity) -> None:
        if self.conflicts:
            raise _conflict(entity, self.conflicts)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, Mapping) and "name" in v for v in value)


def _by_name(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {item["name"]: item for item in items}


def _conflict(entity: Entity, conflicts: Sequence[str]) -> Conflict:
    more = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    return Conflict(
        f"version {entity.version} of {entity.name} changes what was changed here, too:"
        f" {conflicts[0]}{more}",
        hint="take the local change back, or make the newer one yourself, and install again",
        code="COMMON_ENTITY_CONFLICT",
        conflicts=list(conflicts[:_SHOWN]),
    )


def as_lines(rows: Iterable[Row]) -> bytes:
    """Return a JSON array with one row per line, as the catalogue has it."""
    return ("[\n" + ",\n".join(_lines(rows)) + "\n]\n").encode()


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    return (json.dumps(dict(row), ensure_ascii=False) for row in rows)
