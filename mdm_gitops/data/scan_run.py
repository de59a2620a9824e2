"""The work of one scan for duplicates, from its row in ``match_scan`` to the pairs that it finds.

It runs in a process of its own (``mdm_api.scan_process``), because it computes for seconds. Rows are read
in one snapshot as text, keys say which to compare, and the pairs are written in one transaction, only
while the scan is still the one that runs. Between portions it tells how far it is and looks whether it
was cancelled.

A scan of what changed compares the rows changed since the last one with all rows. Which these are is
told by ``_sys_last_modified_at``: from when the oldest transaction began that was open as the last scan
read, since what that one wrote could not be read then.

Memory: the text of each row that is compared, its keys, and the pairs found. A scan of more rows than
its limit is refused before it fills the machine's memory.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.data import audit
from mdm_gitops.data.copy_out import copy_out
from mdm_gitops.data.match_blocks import Blocks
from mdm_gitops.data.match_rows import RowMaker
from mdm_gitops.data.match_score import Scorer
from mdm_gitops.data.match_sql import compared
from mdm_gitops.errors import Conflict
from mdm_gitops.model.similarity import Comparison, match_columns, rules_hash
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoredEntity, read_state_within

KEPT_SCANS: Final = 20
_TELL_S: Final = 0.5
_PORTION: Final = 2_000
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}


class Cancelled(Exception):
    """The scan is not the one that runs any more; nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pair that is alike enough, by the numbers of its rows."""

    one: int
    other: int
    full: float
    open: float


async def run_scan(
    reading: AsyncConnection[Any],
    telling: AsyncConnection[Any],
    *,
    schemas: Schemas,
    scan_id: UUID,
    max_rows: int,
) -> None:
    """Carry out the scan *scan_id*: rows are read on one connection, all else is said on the other.

    Raises:
        Cancelled: it was ended meanwhile.
        Conflict: the definition has changed, or there are too many rows.
    """
    with _uncollected():
        job = await _Job.opened(reading, telling, schemas, scan_id, max_rows)
        await job.read()
        found = await job.compare()
        await job.write(found)


@contextmanager
def _uncollected() -> Iterator[None]:
    # What a scan keeps has no cycles; to look for some in millions of objects takes a fifth of its time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- reading --------------------------------------------------------------------------------------

# First this, then the snapshot: what is open now may be missing in it.
_UNTIL: Final = """\
SELECT least(clock_timestamp(), (SELECT min(xact_start) FROM pg_catalog.pg_stat_activity
                                  WHERE datname = current_database() AND pid <> pg_backend_pid()))"""
_SCAN: Final = """\
SELECT s.since, s.min_score, s.rules, s.started_by, e.name
  FROM "{config}".match_scan s JOIN "{config}".entity e USING (entity_id)
 WHERE s.scan_id = %(scan)s AND s.state = 'running'"""
_COPY: Final = """\
COPY (SELECT t."_sys_id", t."_sys_version", t."_sys_is_deleted", g.*
        FROM {table} t CROSS JOIN LATERAL (SELECT {given}) g
       WHERE {where}) TO STDOUT"""
_TELL: Final = """\
UPDATE "{config}".match_scan SET step = %(step)s, progress = %(progress)s, counts = %(counts)s
 WHERE scan_id = %(scan)s AND state = 'running'"""


@dataclass(kw_only=True)
class _Job:
    reading: AsyncConnection[Any]
    telling: AsyncConnection[Any]
    schemas: Schemas
    scan_id: UUID
    stored: StoredEntity
    comparisons: tuple[Comparison, ...]
    since: datetime | None
    until: datetime
    min_score: float
    rules: str
    actor: str
    max_rows: int

    def __post_init__(self) -> None:
        self.names: list[str] = []  # identifier and version of rows that are compared
        self.rows: list[str] = []  # what of them is compared
        self.blocks = Blocks()
        self.changed: list[str] = []  # identifiers, of a scan of what changed
        self.rows_read = 0
        self.compared_pairs = 0
        self._told = time.monotonic()
        self._make = RowMaker(self.comparisons, match_columns(self.stored.definition)).row
        self._scorer = Scorer(self.comparisons)

    @classmethod
    async def opened(
        cls,
        reading: AsyncConnection[Any],
        telling: AsyncConnection[Any],
        schemas: Schemas,
        scan_id: UUID,
        max_rows: int,
    ) -> _Job:
        cursor = await reading.execute(_UNTIL)
        [(until,)] = await cursor.fetchall()
        asked = _SCAN.format(config=schemas.config).encode()
        row = await (await telling.execute(asked, {"scan": scan_id})).fetchone()
        if row is None:
            raise Cancelled
        since, min_score, rules, actor, name = row
        async with telling.transaction():
            await telling.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            state = await read_state_within(telling, schemas=schemas)
        stored = state.entities.get(name)
        if stored is None or rules_hash(stored.definition) != rules:
            raise _definition_changed()
        return cls(
            reading=reading,
            telling=telling,
            schemas=schemas,
            scan_id=scan_id,
            stored=stored,
            comparisons=compared(stored.definition),
            since=since,
            until=until,
            min_score=min_score,
            rules=rules,
            actor=actor,
            max_rows=max_rows,
        )

    async def read(self) -> None:
        """Read the rows of one snapshot: all, or those that changed and those that are near them."""
        async with self.reading.transaction():
            await self.reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            await self._require_definition()
            if self.since is None:
                await self._take('NOT t."_sys_is_deleted"', self._add)
                return
            moment = f"'{self.since.isoformat()}'::timestamptz"
            await self._take(f't."_sys_last_modified_at" >= {moment}', self._add_changed)
            self.blocks.only_changed()
            if len(self.blocks):
                rest = f't."_sys_last_modified_at" < {moment} AND NOT t."_sys_is_deleted"'
                await self._take(rest, self._add_near)

    async def _require_definition(self) -> None:
        state = await read_state_within(self.reading, schemas=self.schemas)
        stored = state.entities.get(self.stored.name)
        if stored is None or stored.text != self.stored.text:
            raise _definition_changed()

    async def _take(self, where: str, add: Callable[[list[str | None]], None]) -> None:
        async with aclosing(self._copied(where)) as portions:
            async for lines in portions:
                for line in lines:
                    add(_fields(line))
                self.rows_read += len(lines)
                if len(self.rows) > self.max_rows:
                    raise Conflict(
                        f"there are more than {self.max_rows:,} rows to compare",
                        hint="raise Mdm__Data__MatchMaxRows; a row takes up to two kilobytes",
                        code="DUPLICATE_SCAN_TOO_LARGE",
                    )
                await self._tell("reading", 0.0)

    async def _copied(self, where: str) -> AsyncGenerator[list[str]]:
        given = ", ".join(
            f'"{self.schemas.config}".index_text(t."{each.column}")' for each in self.comparisons
        )
        sql = _COPY.format(
            table=f'"{self.schemas.data}"."{self.stored.name}"', given=given, where=where
        )
        chunks = copy_out(self.reading, sql, {}, ended=lambda number: None)
        async with aclosing(chunks):
            async for chunk in chunks:  # of whole lines
                yield chunk.decode().removesuffix("\n").split("\n")

    def _add(self, fields: list[str | None]) -> None:
        words, keys = self._make(fields[3:])
        self.blocks.add(keys)
        self._keep(fields, words)

    def _add_changed(self, fields: list[str | None]) -> None:
        assert fields[0] is not None, "each row has its identifier"
        self.changed.append(fields[0])
        if fields[2] == "f":
            self._add(fields)

    def _add_near(self, fields: list[str | None]) -> None:
        words, keys = self._make(fields[3:])
        if self.blocks.add_if_near(keys):
            self._keep(fields, words)

    def _keep(self, fields: list[str | None], words: list[str]) -> None:
        # One text takes a fraction of the memory of many, and words have no tabs.
        self.names.append(f"{fields[0]}\t{fields[1]}")
        self.rows.append("\t".join(self._scorer.of_words(words)))

    # --- comparing ----------------------------------------------------------------------------------

    async def compare(self) -> list[Found]:
        """Score the candidates; only pairs that are alike enough are kept."""
        open_ones = [n for n, each in enumerate(self.comparisons) if not each.restricted]
        has_restricted = 0 < len(open_ones) < len(self.comparisons)
        without = Scorer([self.comparisons[n] for n in open_ones])
        least, found, rows, score = self.min_score, [], self.rows, self._scorer.score
        for number, others in self.blocks.candidates():
            one = rows[number].split("\t") if others else []
            for other in others:
                two = rows[other].split("\t")
                full = score(two, one, at_least=least)
                shown = full if open_ones else 0.0
                if has_restricted:
                    shown = without.score(
                        without.of_words([two[n] for n in open_ones]),
                        without.of_words([one[n] for n in open_ones]),
                        at_least=least,
                    )
                if full >= least or shown >= least:
                    found.append(Found(other, number, full, shown))
            self.compared_pairs += len(others)
            if not number % _PORTION:
                await self._tell("comparing", number / len(self.blocks), pairs=len(found))
        return found

    # --- telling and writing ------------------------------------------------------------------------

    def _counts(self, pairs: int) -> dict[str, int]:
        skipped = self.blocks.skipped()
        return {
            "rowsRead": self.rows_read,
            "rowsChanged": len(self.changed) if self.since else self.rows_read,
            "rowsCompared": len(self.blocks),
            "pairsCompared": self.compared_pairs,
            "pairsFound": pairs,
            "skippedKeys": skipped.keys,
            "largestSkippedKey": skipped.largest,
            "rowsWithoutOtherKey": skipped.rows,
        }

    async def _tell(self, step: str, progress: float, pairs: int = 0) -> None:
        if time.monotonic() - self._told < _TELL_S:
            return
        self._told = time.monotonic()
        counts = {"rowsRead": self.rows_read, "pairsCompared": self.compared_pairs}
        values = {
            "scan": self.scan_id,
            "step": step,
            "progress": round(progress, 3),
            "counts": Jsonb({**counts, "pairsFound": pairs}),
        }
        sql = _TELL.format(config=self.schemas.config).encode()
        if not (await self.telling.execute(sql, values)).rowcount:
            raise Cancelled

    async def write(self, found: list[Found]) -> None:
        """Put *found* in the place of the pairs that were there, and end the scan."""
        config = self.schemas.config
        counts = self._counts(len(found))
        values = {
            "scan": self.scan_id,
            "entity": self.stored.entity_id,
            "rules": self.rules,
            "until": self.until,
            "changed": self.changed,
            "counts": Jsonb(counts),
            "kept": KEPT_SCANS,
        }
        async with self.telling.transaction():
            # Its row is locked from here on: who cancels now comes too late.
            done = await self.telling.execute(_DONE.format(config=config).encode(), values)
            if not done.rowcount:
                raise Cancelled
            table = f'"{self.schemas.data}"."{self.stored.name}"'
            clear = _CLEAR if self.since is None else _CLEAR_CHANGED
            await self.telling.execute(clear.format(config=config, table=table).encode(), values)
            async with (
                self.telling.cursor() as cursor,
                cursor.copy(_PAIRS.format(config=config).encode()) as copy,
            ):
                for start in range(0, len(found), _PORTION):
                    portion = found[start : start + _PORTION]
                    await copy.write("".join([self._pair(each) for each in portion]))
            await self.telling.execute(_FORGET.format(config=config).encode(), values)
            await audit.record(
                self.telling,
                schemas=self.schemas,
                actor=self.actor,
                action="duplicate_scan_finished",
                entities=[self.stored.name],
                details={"scan": str(self.scan_id), **counts},
            )

    def _pair(self, found: Found) -> str:
        """Return its line of COPY; nothing in it is text of somebody's."""
        one, other = (self.names[n].split("\t") for n in (found.one, found.other))
        # As PostgreSQL orders them: by their bytes, which is the order of their hexadecimal digits.
        (low, low_version), (high, high_version) = sorted((one, other))
        return (
            f"{self.stored.entity_id}\t{low}\t{high}\t{low_version}\t{high_version}"
            f"\t{self.rules}\t{found.full!r}\t{found.open!r}\n"
        )


_DONE: Final = """\
UPDATE "{config}".match_scan
   SET state = 'done', step = 'done', progress = 1, finished_at = now(), until = %(until)s,
       counts = %(counts)s
 WHERE scan_id = %(scan)s AND state = 'running'"""
_CLEAR: Final = 'DELETE FROM "{config}".match_pair WHERE entity_id = %(entity)s'
_CLEAR_CHANGED: Final = """\
DELETE FROM "{config}".match_pair p
 WHERE p.entity_id = %(entity)s
   AND (p.low = ANY(%(changed)s::uuid[]) OR p.high = ANY(%(changed)s::uuid[])
        OR NOT EXISTS (SELECT FROM {table} t WHERE t."_sys_id" = p.low)
        OR NOT EXISTS (SELECT FROM {table} t WHERE t."_sys_id" = p.high))"""
_PAIRS: Final = """\
COPY "{config}".match_pair
  (entity_id, low, high, low_version, high_version, rules, full_score, open_score) FROM STDIN"""
_FORGET: Final = """\
DELETE FROM "{config}".match_scan WHERE entity_id = %(entity)s AND state <> 'running'
   AND scan_id NOT IN (SELECT scan_id FROM "{config}".match_scan WHERE entity_id = %(entity)s
                        ORDER BY started_at DESC, scan_id DESC LIMIT %(kept)s)"""


def _fields(line: str) -> list[str | None]:
    """Return the values of a line of COPY."""
    if "\\" not in line:
        return list(line.split("\t"))
    return [
        None if text == "\\N" else _ESCAPE.sub(lambda m: _SIGNS.get(m[1], m[1]), text)
        for text in line.split("\t")
    ]


def _definition_changed() -> Conflict:
    return Conflict(
        "the definition has changed since the scan began",
        hint="begin another scan",
        code="DUPLICATE_SCAN_RUNNING",
    )
