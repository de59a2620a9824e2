"""Composition root of the API: everything the handlers need is made here and nowhere else.

``create_app`` takes its parts and can run in a test; ``app_from_environment`` is what worker
processes call, which are given nothing but their environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mdm_api import security
from mdm_api.allocator import give_large_blocks_back
from mdm_api.callers import caller_of
from mdm_api.definitions import DefinitionsProvider, FolderDefinitions, NoDefinitions
from mdm_api.deployer import WarehouseDeployer
from mdm_api.metrics import Metrics
from mdm_api.notifying import deliver_webhooks
from mdm_api.observe import Observed
from mdm_api.operations import Operation
from mdm_api.origins import OriginDefinitions
from mdm_api.parent import end_with_parent
from mdm_api.problems import no_such_path
from mdm_api.routes import Paths
from mdm_api.security import CredentialKind
from mdm_api.services import Services, utc_now
from mdm_api.table import OPERATIONS
from mdm_api.throttle import count, is_limited
from mdm_api.upkeep import (
    forget_ended_sessions,
    forget_old_imports,
    keep_feed,
    remove_deleted_rows,
    tell_refusals,
)
from mdm_gitops.access.api_keys import note_use
from mdm_gitops.access.rate_limit import RateLimit
from mdm_gitops.data.writing import RowWriter
from mdm_gitops.errors import MdmError
from mdm_gitops.logs import keep_out
from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.source.commits import WriteMode
from mdm_gitops.source.origin import origin_of
from mdm_gitops.warehouse.connect import ConnectionPool, SessionLimits, borrow, connection_pool
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store

if TYPE_CHECKING:
    from mdm_gitops.access.oidc import Provider

URL_VARIABLE: Final = "MDM_SERVE_DATABASE_URL"
FOLDER_VARIABLE: Final = "MDM_SERVE_FOLDER"
_HOUSEKEEPING_S: Final = 15.0
# No request thinks inside a transaction: whoever is silent there is gone, and holds locks.
_IDLE_IN_TRANSACTION_S: Final = 10.0
_LOG: Final = logging.getLogger("mdm_api.upkeep")


def create_app(
    *,
    database_url: str,
    settings: Settings,
    definitions: DefinitionsProvider | None = None,
    now: Callable[[], datetime] = utc_now,
    operations: Iterable[Operation] = OPERATIONS,
) -> Starlette:
    """Return the application for the warehouse at *database_url*, whose store is migrated.

    *definitions* are those to be deployed; without them the app serves what is deployed already.
    """
    desired = definitions or NoDefinitions()
    schemas = Schemas(config=settings.ConfigSchema, data=settings.EntityDataSchema)
    database = settings.Database
    pool = connection_pool(
        database_url,
        application_name="mdm-gitops api",
        min_size=database.PoolMinSize,
        max_size=database.PoolMaxSize,
        wait_s=database.PoolWaitSeconds,
        limits=SessionLimits(
            statement_timeout_s=database.StatementTimeoutSeconds,
            idle_in_transaction_timeout_s=_IDLE_IN_TRANSACTION_S,
        ),
        connect_timeout_s=database.ConnectTimeoutSeconds,
        checked=False,
    )
    services = Services(
        settings=settings,
        database_url=database_url,
        pool=pool,
        store=Store(schemas),
        writer=RowWriter(pool),
        rate_limit=_rate_limit(settings, pool, schemas),
        metrics=Metrics(),
        definitions=desired,
        deployer=WarehouseDeployer(url=database_url, settings=settings, definitions=desired),
        provider=_provider(settings),
        now=now,
    )
    app = _Application(Paths(operations), services)
    app.state.services = services
    return app


class _Application(Starlette):
    """Requests go to the operations by one layer of ours, and not through routes: each layer is a cost
    that each request has."""

    def __init__(self, paths: Paths, services: Services) -> None:
        super().__init__(lifespan=_lifespan)
        self._paths = paths
        self._services = services

    def build_middleware_stack(self) -> ASGIApp:
        return Observed(
            self._answer,
            others=self.router,
            metrics=self._services.metrics,
            problem_base_url=self._services.settings.Server.ProblemBaseUrl,
        )

    async def _answer(self, request: Request) -> Response:
        found = self._paths.find(request.scope["path"])
        if found is None:
            raise await _nothing_here(request, self._services)
        endpoint, request.scope["path_params"] = found
        return await endpoint.answer(request, self._services)


def _rate_limit(settings: Settings, pool: ConnectionPool, schemas: Schemas) -> RateLimit | None:
    limit = settings.RateLimit
    if not limit.Enabled:
        return None
    return RateLimit(pool, schemas=schemas, limit=limit.PermitLimit, window_s=limit.WindowSeconds)


def _provider(settings: Settings) -> Provider | None:
    if not settings.Auth.Issuer:
        return None
    from mdm_gitops.access.oidc import Provider  # cryptography takes 20 MB

    return Provider(settings.Auth)


def app_from_environment() -> Starlette:
    """Return the application of a worker process that ``mdm-gitops serve`` started, and ends with it."""
    end_with_parent()
    folder = os.environ.get(FOLDER_VARIABLE)
    settings = load_settings(Path(folder) if folder else None)
    keep_out(settings)
    return create_app(
        database_url=os.environ[URL_VARIABLE],
        settings=settings,
        definitions=folder_definitions(Path(folder), settings) if folder else None,
    )


def folder_definitions(folder: Path, settings: Settings) -> DefinitionsProvider:
    """Return the definitions of *folder*, or those of the origin that its settings name."""
    reserved = (settings.ConfigSchema, settings.EntityDataSchema)
    named = settings.Repository.WriteMode
    mode = WriteMode(named) if named else None
    origin = origin_of(folder, settings)
    if origin is None:
        return FolderDefinitions(folder, reserved_schemas=reserved, write_mode=mode)
    return OriginDefinitions(origin, folder, reserved_schemas=reserved, write_mode=mode)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    give_large_blocks_back()
    services: Services = app.state.services
    async with services.pool:
        stopping = asyncio.Event()
        keeping = asyncio.create_task(_keep_house(services, stopping))
        notifying = _notifying(services, stopping)
        try:
            yield
        finally:
            stopping.set()
            await asyncio.gather(notifying, return_exceptions=True)
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await services.scanner.aclose()
            await services.writer.aclose()
            if services.provider is not None:
                await services.provider.aclose()
            await _note_used_keys(services)
            await tell_refusals(services)


def _notifying(services: Services, stopping: asyncio.Event) -> asyncio.Task[None]:
    """Deliver webhooks beside the application, or do nothing where that is switched off."""
    if not services.settings.Webhooks.Enabled:
        return asyncio.create_task(asyncio.sleep(0))
    return asyncio.create_task(deliver_webhooks(services, stopping))


async def _keep_house(services: Services, stopping: asyncio.Event) -> None:
    """Now and then: the numbers of the pool, which a worker that nobody scrapes would else keep to
    itself, and which keys were used, which no request should wait to have written.

    *stopping* ends it, too: in Python 3.11 ``wait_for``, which the driver waits with, can lose a
    cancellation.
    """
    while not stopping.is_set():
        try:
            await _chores(services)
        except Exception:  # noqa: BLE001 - what is wrong with one of them must not end the others for good
            _LOG.exception("housekeeping failed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HOUSEKEEPING_S):
                await stopping.wait()


async def _chores(services: Services) -> None:
    services.metrics.note_pool(services.pool.get_stats())
    await _note_used_keys(services)
    await tell_refusals(services)
    await keep_feed(services)
    await forget_ended_sessions(services)
    await forget_old_imports(services)
    await remove_deleted_rows(services)
    if services.rate_limit is not None:
        with contextlib.suppress(MdmError):  # told by the requests that fail
            await services.rate_limit.forget_past_windows()


async def _note_used_keys(services: Services) -> None:
    names = frozenset(services.used_keys)
    if not names:
        return
    try:
        async with borrow(services.pool) as conn:
            await note_use(conn, schemas=services.schemas, names=names)
    except MdmError:
        return  # told by the requests that fail; the names are kept for the next time
    services.used_keys.difference_update(names)


async def _nothing_here(request: Request, services: Services) -> MdmError:
    """Return that there is no such path: under /api only those who may come in are told so."""
    if is_limited(request.scope):
        try:
            await _admit_somebody(request, services)
        finally:
            await count(request, services.rate_limit)
    return no_such_path()


async def _admit_somebody(request: Request, services: Services) -> None:
    settings = services.settings
    credential = security.presented(request, settings)
    if credential.kind is not CredentialKind.API_KEY:
        await caller_of(credential, request, services)
        return
    state = await services.with_connection(services.store.current)
    if security.principal_of(credential.value, state, now=services.now) is None:
        raise security.key_refused(settings.Auth, with_basic=False)
