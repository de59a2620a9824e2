"""Brings the config store to the version that this code needs, forward only.

A migration is a file ``migrations/NNNN_name.sql``. Each one runs in one transaction with the row
that records it, so the store is always at one exact version. ``{config}`` and ``{data}`` stand for
the quoted names of the two schemas; nothing else in the text is replaced, so braces and percent
signs mean what they say. What the entities look like is not decided here, that is the plan's work.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from psycopg import AsyncConnection, errors, sql

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.lock import alone

LOCK_TIMEOUT_S = 60.0
_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_PLACEHOLDER = re.compile(r"\{(config|data)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        return f"{self.version:04d}_{self.name}"

    def statements(self, *, config_schema: str, data_schema: str) -> bytes:
        names = {"config": config_schema, "data": data_schema}
        return _PLACEHOLDER.sub(lambda found: _quoted(names[found[1]]), self.text).encode()


async def migrate(
    conn: AsyncConnection[Any],
    *,
    config_schema: str,
    data_schema: str,
    migrations: Sequence[Migration] | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> list[str]:
    """Run what is missing and return the labels (``0001_foundation``) of what ran.

    A store that is current costs one query. *conn* must be in autocommit mode. Any number of
    programs may call this at once: one works, the others wait for it.

    Raises:
        WarehouseError: the store is newer than this code, or was made by other migrations.
        WarehouseLocked: another program was still migrating after *lock_timeout_s*.
    """
    if not conn.autocommit:
        raise ValueError("migrations need a connection in autocommit mode")
    known = bundled_migrations() if migrations is None else migrations
    if not _missing(known, await _recorded(conn, config_schema), config_schema):
        return []
    async with alone(
        conn, purpose="migrate", schema=config_schema, timeout_s=lock_timeout_s, doing="migrating"
    ):
        missing = _missing(known, await _recorded(conn, config_schema), config_schema)
        for migration in missing:
            await _run(conn, migration, config_schema=config_schema, data_schema=data_schema)
        return [migration.label for migration in missing]


@cache
def bundled_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this code, oldest first."""
    folder = files("mdm_gitops.warehouse") / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name) if folder.is_dir() else ():
        if match := _FILE_NAME.fullmatch(file.name):
            text = file.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], text=text))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise RuntimeError("migrations must be numbered 0001, 0002, ... without gaps")
    return tuple(found)


async def _recorded(conn: AsyncConnection[Any], config_schema: str) -> Mapping[int, str]:
    """Return version -> SHA-256 of what ran; empty where there is no store yet."""
    query = sql.SQL("SELECT version, sha256 FROM {}.migration ORDER BY version")
    try:
        cursor = await conn.execute(query.format(sql.Identifier(config_schema)))
        return dict(await cursor.fetchall())
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return {}
    except errors.InsufficientPrivilege as error:
        raise _no_permission(config_schema, error) from error


def _missing(
    known: Sequence[Migration], recorded: Mapping[int, str], config_schema: str
) -> list[Migration]:
    newest = max(recorded, default=0)
    if newest > len(known):
        raise WarehouseError(
            f"the config store in schema {config_schema} is at version {newest},"
            f" this program knows versions up to {len(known)}",
            hint="use a newer mdm-gitops",
            code="WAREHOUSE_UNUSABLE",
        )
    for migration in known[:newest]:
        if recorded.get(migration.version) != migration.sha256:
            raise WarehouseError(
                f"the config store in schema {config_schema} was made by another"
                f" {migration.label} than this program holds",
                hint="use the mdm-gitops that made the store, or another Mdm__ConfigSchema",
                code="WAREHOUSE_UNUSABLE",
            )
    return list(known[newest:])


async def store_exists(conn: AsyncConnection[Any], *, config_schema: str) -> bool:
    """Whether there is a config store of any version; safe inside a transaction."""
    name = sql.Identifier(config_schema, "migration").as_string(None)
    row = await (await conn.execute("SELECT to_regclass(%s) IS NOT NULL", [name])).fetchone()
    return bool(row and row[0])


async def has_store(conn: AsyncConnection[Any], *, config_schema: str) -> bool:
    """Whether there is a config store, for those that only read.

    Raises:
        WarehouseError: there is one, but of another version than this program's.
    """
    recorded = await _recorded(conn, config_schema)
    if not recorded:
        return False
    if _missing(bundled_migrations(), recorded, config_schema):
        raise WarehouseError(
            f"the config store in schema {config_schema} is older than this program",
            hint="mdm-gitops apply brings it up to date",
            code="WAREHOUSE_UNUSABLE",
        )
    return True


async def _run(
    conn: AsyncConnection[Any], migration: Migration, *, config_schema: str, data_schema: str
) -> None:
    text = migration.statements(config_schema=config_schema, data_schema=data_schema)
    try:
        async with conn.transaction():
            await conn.execute(_RECORD_TABLE.format(config=sql.Identifier(config_schema)))
            await conn.execute(text)
            await conn.execute(
                sql.SQL(
                    "INSERT INTO {}.migration (version, name, sha256) VALUES (%s, %s, %s)"
                ).format(sql.Identifier(config_schema)),
                [migration.version, migration.name, migration.sha256],
            )
    except errors.InsufficientPrivilege as error:
        raise _no_permission(config_schema, error) from error


_RECORD_TABLE = sql.SQL(
    """
    CREATE SCHEMA IF NOT EXISTS {config};
    CREATE TABLE IF NOT EXISTS {config}.migration (
        version    integer     PRIMARY KEY,
        name       text        NOT NULL,
        sha256     text        NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now()
    )
    """
)


def _no_permission(config_schema: str, error: errors.InsufficientPrivilege) -> WarehouseError:
    return WarehouseError(
        f"the config store in schema {config_schema} cannot be used: {error.diag.message_primary}",
        hint="GRANT CREATE ON DATABASE to the role, or connect as the owner of the schema",
        code="WAREHOUSE_UNUSABLE",
    )


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)
