"""Rows with a past: written by plain SQL at moments of the test's choosing, and remembered.

``Ledger`` closes a version as the write path does: the old image goes into the history, valid from
its last modification to the new one, with the action that closed it. While it does not *keep*, only
the present changes, as it is where history is switched off. Beside the tables it keeps each version
in a list, and says from that list alone what was there at a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, sql

BY = "user:past"


@dataclass(frozen=True, kw_only=True)
class Image:
    """One version. *closed* is when it ended and *closed_by* what ended it, None while it holds."""

    row_id: str
    number: int
    values: Mapping[str, Any]
    created: datetime
    modified: datetime
    deleted: bool = False
    deleted_at: datetime | None = None
    closed: datetime | None = None
    closed_by: str | None = None


@dataclass
class Ledger:
    conn: AsyncConnection[Any]
    table: str
    keeps: bool = True
    versions: dict[str, list[Image]] = field(default_factory=dict)  # as far as they are known

    # --- writing ---

    async def create(self, row_id: str, values: Mapping[str, Any], at: datetime) -> None:
        image = Image(row_id=row_id, number=1, values=dict(values), created=at, modified=at)
        self.versions[row_id] = [image]
        await self._insert(self.table, image, {})

    async def update(self, row_id: str, at: datetime, **values: Any) -> None:
        old = self.present(row_id)
        await self._replace(replace(old, values={**old.values, **values}), at, "data_updated")

    async def soft_delete(self, row_id: str, at: datetime) -> None:
        new = replace(self.present(row_id), deleted=True, deleted_at=at)
        await self._replace(new, at, "data_soft_deleted")

    async def restore(self, row_id: str, at: datetime) -> None:
        new = replace(self.present(row_id), deleted=False, deleted_at=None)
        await self._replace(new, at, "data_restored")

    async def hard_delete(self, row_id: str, at: datetime) -> None:
        await self._close(self.present(row_id), at, "data_deleted")
        await self._run("DELETE FROM {table} WHERE _sys_id = %s", [row_id])

    async def _replace(self, new: Image, at: datetime, action: str) -> None:
        await self._close(self.present(new.row_id), at, action)
        new = replace(new, number=new.number + 1, modified=at)
        self.versions[new.row_id].append(new)
        await self._run("DELETE FROM {table} WHERE _sys_id = %s", [new.row_id])
        await self._insert(self.table, new, {})

    async def _close(self, old: Image, at: datetime, action: str) -> None:
        known = self.versions[old.row_id]
        known.remove(old)
        if not self.keeps:
            return
        known.append(replace(old, closed=at, closed_by=action))
        span = {"_sys_valid_from": old.modified, "_sys_valid_to": at, "_sys_action": action}
        await self._insert(f"{self.table}__history", old, span)

    async def _insert(self, table: str, image: Image, more: Mapping[str, Any]) -> None:
        values = {
            "_sys_id": image.row_id,
            **image.values,
            "_sys_version": image.number,
            "_sys_created_at": image.created,
            "_sys_created_by": BY,
            "_sys_last_modified_at": image.modified,
            "_sys_last_modified_by": f"{BY}{image.number}",
            "_sys_is_deleted": image.deleted,
            "_sys_deleted_at": image.deleted_at,
            **more,
        }
        statement = sql.SQL("INSERT INTO mdm_data.{} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(sql.Identifier(name) for name in values),
            sql.SQL(", ").join(sql.Placeholder() for _ in values),
        )
        await self.conn.execute(statement, list(values.values()))

    async def _run(self, statement: str, values: list[Any]) -> None:
        table = sql.Identifier("mdm_data", self.table)
        await self.conn.execute(sql.SQL(statement).format(table=table), values)

    async def empty(self) -> None:
        await self._run("TRUNCATE {table}", [])
        history = sql.Identifier("mdm_data", f"{self.table}__history")
        await self.conn.execute(sql.SQL("TRUNCATE {}").format(history))
        self.versions.clear()

    # --- what is and was there ---

    def present(self, row_id: str) -> Image:
        return next(each for each in self.versions[row_id] if each.closed is None)

    def all_present(self) -> list[Image]:
        known = (each for versions in self.versions.values() for each in versions)
        return [each for each in known if each.closed is None]

    def as_of(self, moment: datetime) -> Iterator[Image]:
        """Yield each row as it was: its first version that ends after *moment*."""
        for versions in self.versions.values():
            for each in versions:
                if each.closed is None or each.closed > moment:
                    if each.created <= moment:
                        yield each
                    break
