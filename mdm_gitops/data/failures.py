"""The driver's errors in our words, at one boundary. No text of the database leaves here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from mdm_gitops.data.asking import StateMoved
from mdm_gitops.errors import InputError, MdmError, WarehouseError, WarehouseLocked

# What a statement meets when the tables changed after it was built.
_MOVED = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
    errors.DatatypeMismatch,
    errors.FeatureNotSupported,  # "cached plan must not change result type"
)


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of psycopg inside the block into ours.

    Raises:
        StateMoved: the tables are not as the statement expected.
    """
    try:
        yield
    except _MOVED:
        raise StateMoved from None
    except errors.QueryCanceled:
        raise MdmError(
            "the query took longer than the server allows",
            hint="ask for fewer rows, or filter and sort by columns that have an index",
            code="QUERY_TIMEOUT",
        ) from None
    except errors.LockNotAvailable:
        raise WarehouseLocked(
            "the entity's tables are being changed", hint="try again in a moment"
        ) from None
    except errors.ReadOnlySqlTransaction:
        raise WarehouseError(
            "the warehouse takes no writes now", hint="rows can be read; try again later"
        ) from None
    except errors.DiskFull:
        raise MdmError(
            "the disk of the warehouse is full", hint="rows can be read", code="WAREHOUSE_FULL"
        ) from None
    except psycopg.DataError:
        raise InputError("a value is outside the range of its column") from None
    except (psycopg.OperationalError, psycopg.InterfaceError):
        raise WarehouseError(
            "the connection to the warehouse was lost", hint="try again in a moment"
        ) from None
