"""What a receiver is sent: the body of one delivery, as the interface gives it. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from json.encoder import encode_basestring as quoted
from typing import Any, Final

from mdm_gitops.model.values import to_json_value

MASK: Final = "***"


class _Number(str):
    """A number as it was written: its digits are never turned into a value, however many they are."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEvent:
    """One change of the feed. *old* and *new* are the texts of the row's columns as JSON, or None."""

    event_id: int
    occurred_at: datetime
    entity_id: int
    entity_name: str
    record_id: str
    action: str
    user: str
    old: str | None
    new: str | None


def body_of(event: RowEvent, *, shown: Collection[str]) -> bytes:
    """Return the bytes that are sent and signed; values of columns that are not *shown* are masked.

    A change keeps the names that its columns had then. One that is not known any more is masked: it may
    have been restricted.
    """
    changes = changes_between(_columns(event.old), _columns(event.new), shown=shown)
    members = [
        f'{quoted(name)}:{{"old":{_text(change["old"])},"new":{_text(change["new"])}}}'
        for name, change in changes.items()
    ]
    text = (
        f'{{"event":{quoted(event.action)},"entityName":{quoted(event.entity_name)}'
        f',"recordId":{quoted(event.record_id)}'
        f',"occurredUtc":{quoted(to_json_value(event.occurred_at))}'
        f',"user":{quoted(event.user)},"changes":{{{",".join(members)}}}}}'
    )
    return text.encode()


def changes_between(
    old: Mapping[str, Any], new: Mapping[str, Any], *, shown: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the columns that differ with both values; an absent row has null in all of them.

    That a masked value has changed is told, the values are not.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name not in shown:
            before, after = (None if v is None else MASK for v in (before, after))
        changes[name] = {"old": before, "new": after}
    return changes


_DECODE: Final = json.JSONDecoder(parse_float=_Number, parse_int=_Number).decode
_WORDS: Final = {None: "null", True: "true", False: "false"}


def _columns(text: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _DECODE(text) if text else {}
    return found


def _text(value: Any) -> str:
    """Return *value* as JSON in which numbers keep all their digits."""
    if isinstance(value, str):
        return str(value) if isinstance(value, _Number) else quoted(value)
    if isinstance(value, dict):
        members = [f"{quoted(name)}:{_text(inner)}" for name, inner in value.items()]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_text(inner) for inner in value]) + "]"
    return _WORDS[value]
