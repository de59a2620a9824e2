"""One request on its way: who calls, with which parameters, in which state of the store.

Authorisation is decided on the operation that matched, never on the text of the path. Rights are
exact: a refusal is only given after the store has been asked whether anything changed, and a read
proves in its own statement that nothing did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from mdm_api import bodies, security
from mdm_api.answers import json_answer
from mdm_api.callers import caller_of
from mdm_api.operations import Access, Operation
from mdm_api.problems import no_such_path
from mdm_api.security import Credential, CredentialKind
from mdm_api.services import Services
from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.errors import AccessDenied, AuthRequired, MdmError, WarehouseError, WarehouseLocked
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.store import StoreState

T = TypeVar("T")
_ATTEMPTS: Final = 4


class Query:
    """The parameters of a query, and what a handler makes of them.

    A query that comes again is this same value again (``mdm_api.routes``), so both are made once.
    """

    __slots__ = ("_made", "parameters")

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = MappingProxyType(parameters)
        self._made: Any = None

    def made(self, make: Callable[[Mapping[str, Any]], T]) -> T:
        """Return what *make* gives, the one of its operation; it must depend on the parameters alone."""
        if self._made is None:
            self._made = make(self.parameters)
        found: T = self._made
        return found


_NO_QUERY: Final = Query({})


@dataclass(slots=True)
class Call:
    request: Request
    operation: Operation
    services: Services
    query: Query = _NO_QUERY
    _state: StoreState | None = None
    _principal: Principal | None = None
    _credential: Credential | None = None
    _signed_in: Principal | None = None  # by a token or a session

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.query.parameters

    @property
    def has_credential(self) -> bool:
        """Whether one was sent and could be read, be it valid or not."""
        return self._credential is not None

    @property
    def credential(self) -> Credential:
        assert self._credential is not None, "a public operation needs no credential"
        return self._credential

    @property
    def state(self) -> StoreState:
        assert self._state is not None, "a public operation has no state of the store"
        return self._state

    @property
    def principal(self) -> Principal:
        assert self._principal is not None, "a public operation has no principal"
        return self._principal

    @property
    def asking(self) -> Asking:
        return Asking(
            principal=self.principal,
            state=self.state,
            schemas=self.services.schemas,
            now=self.services.now(),
            tier=self.services.tier,
        )

    def path(self, name: str) -> str:
        value: str = self.request.scope["path_params"][name]
        return value

    def note_rows(self, number: int) -> None:
        """Count rows that go out with the answer, or came in, for the metrics and the log."""
        self.request.scope["mdm.rows"] = number
        self.services.metrics.note_rows(number)

    async def body(self) -> bytes:
        limit = self.services.settings.Server.MaxBodyBytes
        return await bodies.read_body(self.request, max_bytes=limit)

    # --- who calls ------------------------------------------------------------------------------

    async def admit(self) -> None:
        """Let the caller in, or raise AuthRequired or AccessDenied."""
        operation = self.operation
        if operation.access is Access.PUBLIC:
            return
        with_basic = operation.with_basic
        self._credential = credential = security.presented(
            self.request, self.services.settings, with_basic=with_basic
        )
        if credential.kind is not CredentialKind.API_KEY:
            self._signed_in = await caller_of(
                credential, self.request, self.services, with_basic=with_basic
            )
        store = self.services.store
        known = store.last_known if self.operation.checks_late else None
        if known is None or not self._recognise(known):
            if known is not None and not security.may_be_unknown(credential.value):
                raise self._refused()
            if not self._recognise(await self.services.with_connection(store.current)):
                raise self._refused()
        self._require_tier()
        if self.operation.access is Access.GLOBAL_ADMIN and not self.principal.is_global_admin:
            raise AccessDenied("this is for a Global Admin")

    def read_query(self) -> dict[str, Any]:
        """Return the query parameters, or raise InputError, or AccessDenied for one above the tier."""
        parameters = self.operation.read_query(self.request.query_params)
        for parameter in self.operation.parameters:
            if parameters[parameter.name] != parameter.default:
                self.services.tier.require(parameter.tier, parameter.name)
        return parameters

    def _require_tier(self) -> None:
        operation, tier = self.operation, self.services.tier
        if tier.includes(operation.tier):
            return
        if operation.absent_below_tier:
            raise no_such_path()
        tier.require(operation.tier, f"{operation.method} {operation.path}")

    def _recognise(self, state: StoreState) -> bool:
        """Set principal and state. Whose key it is depends on the state; who signed in does not."""
        principal = self._signed_in or security.principal_of(
            self.credential.value, state, now=self.services.now
        )
        if principal is None:
            return False
        self._state, self._principal = state, principal
        self.request.scope["mdm.principal"] = principal.actor
        if principal.kind is PrincipalKind.APIKEY:
            self.services.used_keys.add(principal.name)
        return True

    def _refused(self) -> AuthRequired:
        auth = self.services.settings.Auth
        return security.key_refused(auth, with_basic=self.operation.with_basic)

    # --- work on the warehouse ------------------------------------------------------------------

    async def reading(self, work: Callable[[Connection, Asking], Awaitable[T]]) -> T:
        """Run *work* in a state of the store that held when its statement ran.

        A refusal counts only if the store has not changed since: a right given a moment ago works
        at once, as one taken away is gone at once.
        """

        async def until_it_holds(conn: Connection) -> T:
            for _ in range(_ATTEMPTS):
                tried = self.state
                try:
                    return await work(conn, self.asking)
                except StateMoved:
                    fresh = await store.refresh(conn, other_than=tried)
                except WarehouseError:
                    raise
                except MdmError:
                    fresh = await store.current(conn)
                    if fresh is tried:
                        raise
                self._recognise_again(fresh)
            raise _being_deployed()

        store = self.services.store
        return await self.services.with_connection(until_it_holds)

    async def writing(self, work: Callable[[Asking], Awaitable[T]]) -> T:
        """Run *work*, which writes through connections of its own, in a state that holds.

        It is repeated only when it said that nothing was written.
        """
        return await self.sharing(work)

    async def sharing(self, work: Callable[[Asking], Awaitable[T]]) -> T:
        """Run *work*, which shares connections with other requests, in a state that holds."""
        store = self.services.store
        for _ in range(_ATTEMPTS):
            tried = self.state
            try:
                return await work(self.asking)
            except StateMoved:
                fresh = await self.services.with_connection(
                    lambda conn, tried=tried: store.refresh(conn, other_than=tried)  # type: ignore[misc]
                )
            except WarehouseError:
                raise
            except MdmError:
                fresh = await self.services.with_connection(store.current)
                if fresh is tried:
                    raise
            self._recognise_again(fresh)
        raise _being_deployed()

    def _recognise_again(self, state: StoreState) -> None:
        if not self._recognise(state):
            raise self._refused()


def _being_deployed() -> WarehouseLocked:
    return WarehouseLocked("definitions are being deployed", hint="try again in a moment")


def json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return json_answer(orjson.dumps(value, default=str), status=status, headers=headers)
