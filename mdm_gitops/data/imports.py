"""Imports: a body of rows into an entity, in one transaction from the first byte to the answer.

    async with importer.opened(...) as session:        a connection of its own, a transaction
        await session.receive_csv(reader, chunks, ...)  COPY into the staging table
        await session.write(asking)                     judge, write, history, events, errors
        session.keep(...)                               leaving the block commits

Whatever ends the block early (a client that goes away, a refusal, a kill) leaves nothing. ``write`` may be
called again: when the store has moved, or when another writer got in the way, all but the staged
texts is rolled back to a savepoint and done anew; after the first time that writers met, with the
table locked against them, so that a busy table cannot keep an import from ending.

Imports into one entity judge and write one after the other (they would only deadlock), and receive
their bodies side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, Rollback, errors
from psycopg.types.json import Jsonb

from mdm_gitops.data import audit
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.failures import translated
from mdm_gitops.data.idempotency import earlier_answer, keep_answer
from mdm_gitops.data.import_columns import ImportRequest, import_columns
from mdm_gitops.data.import_csv import CsvReader
from mdm_gitops.data.import_errors import carry_errors, keep_errors
from mdm_gitops.data.import_json import JsonReader, RowLines
from mdm_gitops.data.import_run import LOCK_TIMEOUT_S, ImportRun, Raced
from mdm_gitops.data.import_sql import ImportSql, What
from mdm_gitops.data.row_id import new_row_id
from mdm_gitops.data.staging import copy_csv, copy_json, create_staging
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_sql import Source
from mdm_gitops.errors import MdmError, WarehouseLocked
from mdm_gitops.model import Entity
from mdm_gitops.settings import DataSettings
from mdm_gitops.warehouse.connect import SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas

_ATTEMPTS: Final = 4
# Statistics pay from here on: joins are chosen by them.
_ANALYZED_FROM: Final = 5_000
_SESSION: Final = (
    "SET temp_buffers = '32MB'; SET work_mem = '64MB'; SET default_statistics_target = 20;"
    " SET jit = off; SET random_page_cost = 1"
)
_RACES: Final = (
    Raced,
    errors.IntegrityError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an import. The counts of the good rows and *rejected* add up to *received*."""

    import_id: UUID
    entity: Entity
    entity_id: int
    received: int
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    pending: int = 0
    batch_name: str | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    errors_truncated: bool = False

    @property
    def rejected(self) -> int:
        return self.received - self.inserted - self.updated - self.unchanged - self.pending

    @property
    def counts(self) -> dict[str, int]:
        return {
            "received": self.received,
            "inserted": self.inserted,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "rejected": self.rejected,
            "pending": self.pending,
        }

    def document(self, *, errors_url: str) -> dict[str, Any]:
        return {
            **self.counts,
            "batchName": self.batch_name,
            "errors": self.errors,
            "errorsTruncated": self.errors_truncated,
            "errorsUrl": errors_url if self.rejected else None,
        }


class Importer:
    """Opens the imports of one server process, so many at a time."""

    def __init__(
        self, url: str, *, schemas: Schemas, settings: DataSettings, connect_timeout_s: float
    ) -> None:
        self._url = url
        self._schemas = schemas
        self._settings = settings
        self._connect_timeout_s = connect_timeout_s
        self._slots = asyncio.Semaphore(settings.MaxConcurrentImports)

    @asynccontextmanager
    async def opened(self, request: ImportRequest) -> AsyncIterator[ImportSession]:
        """Yield a session for *request*; what it did is kept when the block ends as it should.

        Raises:
            MdmError: the import took longer than it may, or could not be begun.
        """
        async with self.connection("import") as conn:
            with translated():
                async with conn.transaction() as transaction:
                    session = ImportSession(conn, request, self._schemas)
                    yield session
                    if request.dry_run and session.outcome is not None:
                        async with await self._connected() as other:
                            await session.keep_elsewhere(other)
                        raise Rollback(transaction)

    @asynccontextmanager
    async def connection(self, what: str) -> AsyncIterator[AsyncConnection[Any]]:
        """Yield a connection for *what* (a word for messages), which may take as long as an import.

        Raises:
            MdmError: it took longer than it may.
        """
        limit_s = self._settings.ImportTimeoutSeconds
        try:
            async with self._slots, asyncio.timeout(limit_s), await self._connected() as conn:
                yield conn
        except TimeoutError:
            raise MdmError(
                f"the {what} took longer than {limit_s:g} s",
                hint="take fewer rows at a time; Mdm__Data__ImportTimeoutSeconds allows more",
                code="QUERY_TIMEOUT",
            ) from None

    async def _connected(self) -> AsyncConnection[Any]:
        limits = SessionLimits(
            statement_timeout_s=self._settings.ImportTimeoutSeconds,
            lock_timeout_s=LOCK_TIMEOUT_S,
        )
        conn = await connect(
            self._url,
            application_name="mdm-gitops import",
            limits=limits,
            connect_timeout_s=self._connect_timeout_s,
        )
        try:
            with translated():
                await conn.execute(_SESSION.encode())
        except BaseException:
            await conn.close()
            raise
        return conn


class ImportSession:
    """One import under way. *outcome* is there once the rows are judged and written."""

    def __init__(
        self, conn: AsyncConnection[Any], request: ImportRequest, schemas: Schemas
    ) -> None:
        self._conn = conn
        self.request = request
        self.escaped = True  # texts of CSV are as an export writes them
        self._schemas = schemas
        self._id = new_row_id()
        self._began = datetime.now(UTC)
        self._received = 0
        self._header: tuple[str, ...] | None = None
        self._judged_by: tuple[Any, ...] = ()
        self._actor = ""
        self._key: tuple[str, bytes] | None = (
            None  # of a request that may be repeated, and its hash
        )
        self._answer = b""
        self.outcome: Outcome | None = None

    async def earlier(self, principal: str, key: str) -> tuple[bytes, bytes] | None:
        """Return hash and answer of an earlier request with this key (``data.idempotency``)."""
        return await earlier_answer(self._conn, schemas=self._schemas, principal=principal, key=key)

    # --- the body ---

    async def receive_csv(
        self,
        reader: CsvReader,
        chunks: AsyncIterator[bytes],
        check: Callable[[Sequence[str]], Awaitable[object]],
    ) -> None:
        """Stage a body of CSV; *check* is given the header before the rows are read.

        Raises:
            Unreadable: it is no CSV.
        """
        first = b""
        async for chunk in chunks:
            first = reader.feed(chunk)
            if reader.header is not None:
                break
        else:
            first = reader.finish()
        assert reader.header is not None, "without a header the body is not readable"
        await check(reader.header)
        self._header = reader.header
        await create_staging(self._conn, len(reader.header), judged=False)
        self._received = await copy_csv(self._conn, reader, first, chunks)
        self.escaped = self.escaped and reader.may_be_escaped

    async def receive_json(self, asking: Asking, chunks: AsyncIterator[bytes]) -> None:
        """Stage a JSON array of rows, each judged by its members. Raises Unreadable."""
        columns = import_columns(asking, self.request, None)
        entity = columns.target.entity
        self._judged_by = _judge(asking, columns.target)
        await create_staging(self._conn, len(columns.staged), judged=True)
        self._received = await copy_json(
            self._conn, JsonReader(), RowLines(asking, entity), len(columns.staged), chunks
        )

    # --- the rows ---

    async def write(self, asking: Asking) -> Outcome:
        """Judge the staged rows and write the good ones; may be called again when it fails.

        Raises:
            StateMoved: ask again with a newer state.
            MdmError: the import is refused as a whole; nothing is written.
        """
        sql = self._sql(asking)
        with translated():
            for attempt in range(_ATTEMPTS):
                try:
                    async with self._conn.transaction():
                        self.outcome = await self._written(sql, alone=attempt > 0)
                        self._actor = asking.principal.actor
                        return self.outcome
                except _RACES:
                    continue
        raise WarehouseLocked("others are writing the same rows", hint="try again in a moment")

    def _sql(self, asking: Asking) -> ImportSql:
        columns = import_columns(asking, self.request, self._header)
        target = columns.target
        judged = self._header is None
        if judged and self._judged_by != _judge(asking, target):
            raise WarehouseLocked(
                f"{target.entity.name} was deployed anew during the import", hint="send it again"
            )
        restricted = any(target.entity.column_by_name[name].restricted for name in columns.staged)
        sealed = restricted and not asking.rights(target.entity).sees_restricted
        return ImportSql(
            asking=asking,
            target=target,
            source=Source(sql="", columns=columns.staged, typed=True, marked=judged or sealed),
            key=columns.key,
            staged=columns.staged,
            judged=judged,
            escaped=self.escaped and not judged,
        )

    async def _written(self, sql: ImportSql, *, alone: bool) -> Outcome:
        batch = self._batch_name(sql)
        run = ImportRun(self._conn, sql, batch=batch)
        await run.begin(alone=alone)
        await run.judge(analyze=self._received >= _ANALYZED_FROM)
        found, truncated = await run.explain()
        await run.write()
        counts = run.counts
        direct = {} if sql.proposes else counts
        return Outcome(
            import_id=self._id,
            entity=sql.target.entity,
            entity_id=sql.target.stored.entity_id,
            received=self._received,
            inserted=direct.get(What.CREATE, 0),
            updated=direct.get(What.UPDATE, 0),
            unchanged=counts.get(What.UNCHANGED, 0),
            pending=run.written if sql.proposes else 0,
            batch_name=batch,
            errors=tuple(found),
            errors_truncated=truncated,
        )

    def _batch_name(self, sql: ImportSql) -> str | None:
        given = self.request.batch_name
        return given or (f"import-{self._id}" if sql.proposes else None)

    # --- what is kept of it ---

    def answered(self, answer: bytes, *, key: str = "", request_hash: bytes = b"") -> None:
        """Say what the caller is answered, and under which key it is to be kept, if any."""
        self._answer = answer
        self._key = (key, request_hash) if key else None

    async def keep(self) -> None:
        """Keep the report of the import and its errors; a dry run's are kept when it is undone."""
        if self.request.dry_run:
            return
        outcome = self._done()
        await self._keep_report(self._conn)
        if outcome.rejected:
            await keep_errors(
                self._conn, schemas=self._schemas, entity=outcome.entity, import_id=self._id
            )
        await audit.record(
            self._conn,
            schemas=self._schemas,
            actor=self._actor,
            action="import",
            entities=[outcome.entity.name],
            details={"importId": str(self._id), "mode": self.request.mode, **outcome.counts},
        )

    async def keep_elsewhere(self, other: AsyncConnection[Any]) -> None:
        """Keep the report and the errors by way of *other*, for this transaction will be undone."""
        outcome = self._done()
        async with other.transaction():
            await self._keep_report(other)
            if outcome.rejected:
                await carry_errors(
                    self._conn,
                    other,
                    schemas=self._schemas,
                    entity=outcome.entity,
                    import_id=self._id,
                )

    def _done(self) -> Outcome:
        assert self.outcome is not None, "nothing was written yet"
        return self.outcome

    async def _keep_report(self, conn: AsyncConnection[Any]) -> None:
        outcome = self._done()
        await conn.execute(
            f'INSERT INTO "{self._schemas.config}".import (import_id, entity_id, entity, actor, mode,'
            " dry_run, summary, started_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)".encode(),
            [
                self._id,
                outcome.entity_id,
                outcome.entity.folded,
                self._actor,
                self.request.mode,
                self.request.dry_run,
                Jsonb(outcome.counts),
                self._began,
            ],
        )
        if self._key is not None:
            await keep_answer(
                conn,
                schemas=self._schemas,
                principal=self._actor,
                key=self._key[0],
                request_hash=self._key[1],
                answer=self._answer,
            )


def _judge(asking: Asking, target: Target) -> tuple[Any, ...]:
    """Return what the judgement of a JSON row's members depends on."""
    return (target.entity, asking.rights(target.entity).sees_restricted)
