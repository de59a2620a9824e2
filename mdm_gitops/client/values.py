"""Answers as frozen values, where more than one field of them is used. Rows stay what JSON makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object of the API; docs/reference/rest-api.md tells its members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list. *next_after* goes on from its end; *total* only where it was asked for."""

    items: tuple[Json, ...]
    has_more: bool
    next_after: str | None = None
    total: int | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any], *, items: str = "items") -> Page:
        return cls(
            items=tuple(answer[items]),
            has_more=bool(answer.get("hasMore", False)),
            next_after=answer.get("nextAfter"),
            total=answer.get("totalCount"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """Why a row of an import was rejected; *row* counts from 1, the header not counted."""

    row: int
    column: str | None
    code: str
    message: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    received: int
    inserted: int
    updated: int
    unchanged: int
    rejected: int
    pending: int
    batch_name: str | None
    errors: tuple[RowError, ...]
    errors_truncated: bool
    errors_url: str | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ImportOutcome:
        return cls(
            **{name: answer[name] for name in _COUNTS},
            batch_name=answer["batchName"],
            errors=tuple(
                RowError(**{name: each[name] for name in RowError.__slots__})
                for each in answer["errors"]
            ),
            errors_truncated=answer["errorsTruncated"],
            errors_url=answer["errorsUrl"],
        )


_COUNTS = ("received", "inserted", "updated", "unchanged", "rejected", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An entry of the change feed; *id* is where a reader that has it goes on."""

    id: int
    occurred_utc: str
    entity_name: str
    record_id: str
    action: str
    user: str
    commit: str | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Change:
        return cls(
            id=entry["id"],
            occurred_utc=entry["occurredUtc"],
            entity_name=entry["entityName"],
            record_id=entry["recordId"],
            action=entry["action"],
            user=entry["user"],
            commit=entry["commit"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    approved: int
    rejected: int
    failed: int
    results: tuple[Json, ...]
    results_truncated: bool

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> BatchOutcome:
        return cls(
            approved=answer["approved"],
            rejected=answer["rejected"],
            failed=answer["failed"],
            results=tuple(answer["results"]),
            results_truncated=answer["resultsTruncated"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a change of definitions became: a commit, a branch that waits, or nothing new."""

    commit: str | None
    branch: str | None
    document: Json
    """The whole answer."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Committed:
        return cls(commit=answer.get("commit"), branch=answer.get("branch"), document=dict(answer))
