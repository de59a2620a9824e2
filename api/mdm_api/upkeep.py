"""What a server does beside its requests for the change feed, the audit and rows that are kept no longer.

New changes get their ids also when nobody reads, what is old is removed, and credentials that were
refused are written down: counted per address, so that whoever tries many fills no table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mdm_api.security import CredentialKind
from mdm_gitops.access.api_keys import digest
from mdm_gitops.access.sessions import forget_sessions
from mdm_gitops.data import audit
from mdm_gitops.data.asking import StateMoved
from mdm_gitops.data.expiry import remove_deleted
from mdm_gitops.data.feed import number_changes
from mdm_gitops.data.idempotency import forget_answers
from mdm_gitops.data.import_errors import remove_old_imports
from mdm_gitops.data.retention import remove_expired
from mdm_gitops.errors import MdmError, WarehouseError
from mdm_gitops.warehouse.connect import Connection, borrow

if TYPE_CHECKING:
    from mdm_api.call import Call
    from mdm_api.services import Services

_LOG: Final = logging.getLogger("mdm_api.upkeep")
_MOST_REFUSALS: Final = 1_000
_OTHERS: Final = "others"
_EXPIRY_EVERY_S: Final = 3_600.0  # it reads tables


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of credential, from where, and whose it was before it expired."""

    address: str
    kind: str
    key_name: str = ""


@dataclass(slots=True)
class Refusals:
    """How often credentials were refused since it was last told."""

    _counts: Counter[Refusal] = field(default_factory=Counter)

    def note(self, refusal: Refusal) -> None:
        known = refusal in self._counts or len(self._counts) < _MOST_REFUSALS
        self._counts[refusal if known else Refusal(_OTHERS, refusal.kind)] += 1

    def take(self) -> Counter[Refusal]:
        taken, self._counts = self._counts, Counter()
        return taken

    def give_back(self, counts: Counter[Refusal]) -> None:
        self._counts.update(counts)


def note_refusal(call: Call) -> None:
    """Count the credential of *call*, which was refused; nothing of it is kept."""
    credential, state = call.credential, call.services.store.last_known
    stored = None
    if credential.kind is CredentialKind.API_KEY and state is not None:
        stored = state.keys.get(digest(credential.value))
    client = call.request.client
    call.services.refusals.note(
        Refusal(
            address=client.host if client else "unknown",
            kind=credential.kind.value,
            key_name=stored.name if stored else "",
        )
    )


@dataclass(slots=True)
class Expiry:
    """When soft-deleted rows were last looked through, by the monotonic clock."""

    done_at: float | None = None

    def is_due(self) -> bool:
        return self.done_at is None or time.monotonic() - self.done_at >= _EXPIRY_EVERY_S


async def remove_deleted_rows(services: Services) -> None:
    """Delete rows for good whose ``deletedRetentionDays`` are over."""
    expiry = services.expiry
    if not expiry.is_due():
        return
    expiry.done_at = time.monotonic()
    try:
        async with borrow(services.pool) as conn:
            removed = await remove_deleted(
                conn,
                schemas=services.schemas,
                state=await services.store.current(conn),
                now=services.now(),
            )
    except (WarehouseError, StateMoved):  # told by the requests that fail
        expiry.done_at = None
        return
    except (
        MdmError
    ) as error:  # a table too large for the time of a statement is not read all the time
        _LOG.warning("deleted rows could not be removed: %s", error.code)
        return
    if removed:
        _LOG.info("removed %d deleted rows", removed)


async def keep_feed(services: Services) -> None:
    """Number, remove and write down what has come up; what fails is for the next time."""
    try:
        async with borrow(services.pool) as conn:
            await number_changes(conn, schemas=services.schemas)
            removed = await remove_expired(
                conn, schemas=services.schemas, days=services.settings.AuditRetentionDays
            )
            if removed.changes or removed.actions:
                _LOG.info("removed %d changes, %d actions", removed.changes, removed.actions)
    except (MdmError, StateMoved):
        return  # told by the requests that fail


async def forget_old_imports(services: Services) -> None:
    """Remove lists of errors, and answers to repeated requests, that are kept no longer."""
    data = services.settings.Data
    with contextlib.suppress(MdmError, StateMoved):  # told by the requests that fail
        async with borrow(services.pool) as conn:
            await remove_old_imports(
                conn, schemas=services.schemas, days=data.ImportErrorRetentionDays
            )
            await forget_answers(conn, schemas=services.schemas, hours=data.IdempotencyHours)


async def forget_ended_sessions(services: Services) -> None:
    with contextlib.suppress(MdmError):  # told by the requests that fail
        async with borrow(services.pool) as conn:
            await forget_sessions(conn, schemas=services.schemas, now=services.now())


async def tell_refusals(services: Services) -> None:
    """Write down what was refused, once: whoever stops this waits until it is known what was written."""
    telling = asyncio.create_task(_tell_all(services))
    try:
        await asyncio.shield(telling)
    except asyncio.CancelledError:
        await telling
        raise


async def _tell_all(services: Services) -> None:
    counts = services.refusals.take()
    if not counts:
        return
    try:
        async with borrow(services.pool) as conn:
            for refusal in list(counts):
                await _tell(conn, services, refusal, counts[refusal])
                del counts[refusal]
    except (MdmError, StateMoved):
        services.refusals.give_back(counts)


async def _tell(conn: Connection, services: Services, refusal: Refusal, count: int) -> None:
    details = {"credential": refusal.kind, "count": count, "address": refusal.address}
    name = refusal.key_name
    await audit.record(
        conn,
        schemas=services.schemas,
        actor=f"apikey:{name}" if name else f"address:{refusal.address}",
        action="credential_refused",
        details={**details, "reason": "expired"} if name else details,
    )
