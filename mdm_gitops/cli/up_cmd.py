"""``mdm-gitops up``: database, operator and API in one process, for one machine.

What is started is stopped in the opposite order, however it ends; the embedded database stops with
its last user.
"""

from __future__ import annotations

import asyncio
import logging.config
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, say, warn
from mdm_gitops.errors import InputError, MdmError, WarehouseError

if TYPE_CHECKING:
    import socket

    from mdm_gitops.settings import Settings
    from mdm_operator.reconcile import Reconciler
    from mdm_operator.state import Run


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option("--host", help="Address of the API (Mdm__Server__Host).")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Its port, 0 for any free one (Mdm__Server__Port).",
)
@click.option("--once", is_flag=True, help="Reconcile once and exit; the API is not started.")
@json_option
@environment_option
def up(directory: Path, host: str | None, port: int | None, once: bool, as_json: bool) -> None:
    """Run all of it for the definitions in DIR (default: here).

    Starts the embedded PostgreSQL (or uses Mdm__Database__Url), brings the warehouse to what the
    files say, serves the API, and watches the folder. Into an untouched warehouse everything goes
    without a question; later changes follow the policy in mdm.yaml, and wait where it says so.
    Ctrl-C or SIGTERM ends everything that was started here, a second one without waiting.
    """
    from mdm_gitops.cli._signals import run_until_stopped
    from mdm_gitops.settings import load_settings

    settings = load_settings(directory)
    elsewhere = settings.Source.Url or settings.Source.Revision
    if not elsewhere and not (directory / "mdm.yaml").exists():
        raise InputError(
            f"there is no mdm.yaml in {directory}",
            hint="`mdm-gitops init` makes a first repository",
        )
    bound = None if once else _bind(settings, host, port)
    run_until_stopped(Up(directory, settings, bound, as_json=as_json).run())


def _bind(settings: Settings, host: str | None, port: int | None) -> socket.socket:
    """Take the address before anything else starts: a taken one is the commonest of all errors."""
    from mdm_api.server import bind

    server = settings.Server
    return bind(host or server.Host, server.Port if port is None else port)


class Up:
    """One run of the command. *bound* is None when it is to end after the first reconcile."""

    def __init__(
        self, directory: Path, settings: Settings, bound: socket.socket | None, *, as_json: bool
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.bound = bound
        self.as_json = as_json
        self.stop = asyncio.Event()
        self.started = time.perf_counter()
        self.new_key: str | None = None

    async def run(self) -> None:
        from mdm_gitops.cli._signals import stop_on_signals
        from mdm_gitops.logs import keep_out, log_config
        from mdm_gitops.warehouse.locate import warehouse_url

        logging.config.dictConfig(log_config(as_json=not sys.stderr.isatty()))
        keep_out(self.settings)
        with stop_on_signals(self.stop):
            async with AsyncExitStack() as stack:
                if self.bound is not None:
                    stack.enter_context(self.bound)
                if self.settings.Database.Url is None:
                    say(f"Starting PostgreSQL, its data is in {self.directory / '.mdm'}")
                url = await stack.enter_async_context(warehouse_url(self.directory, self.settings))
                await self._prepare(url)
                await self._reconcile_and_serve(url, stack)
            if self.bound is not None:
                say(f"Stopped after {time.perf_counter() - self.started:.1f} s")

    async def _prepare(self, url: str) -> None:
        """Bring the store to our version, look at the server, see to the first API key."""
        from mdm_gitops.access.api_keys import ensure_first_key
        from mdm_gitops.warehouse.connect import check_server
        from mdm_gitops.warehouse.session import open_connection, schemas_of

        conn = await open_connection(url, self.settings, application_name="mdm-gitops up")
        async with conn:
            report = await check_server(conn)
            configured = self.settings.Auth.BootstrapApiKey
            if self.bound is not None:
                self.new_key = await ensure_first_key(
                    conn,
                    schemas=schemas_of(self.settings),
                    configured=configured.get_secret_value() if configured else "",
                )
        say(
            f"PostgreSQL {report.version} is ready after {time.perf_counter() - self.started:.1f} s"
        )
        for warning in report.warnings:
            warn(warning)

    async def _reconcile_and_serve(self, url: str, stack: AsyncExitStack) -> None:
        from mdm_gitops.cli._telling import Telling
        from mdm_operator import Reconciler
        from mdm_operator.metrics import Numbers, serving_numbers
        from mdm_operator.reconcile import Listeners

        numbers = Numbers()
        reconciler = Reconciler(
            self.directory,
            url=url,
            settings=self.settings,
            stop=self.stop,
            listener=Listeners(Telling(self.directory, brief_first=True), numbers),
            approve_first=True,
            among_several=self.bound is not None,
        )
        stack.push_async_callback(reconciler.aclose)
        run = await self._first(reconciler)
        if self.bound is None:
            self._end_once(run)
        elif not self.stop.is_set():
            async with serving_numbers(numbers, reconciler, self.settings.Operator):
                await self._serve(url, reconciler, self.bound)

    async def _first(self, reconciler: Reconciler) -> Run | None:
        try:
            return await reconciler.step()
        except MdmError as error:
            if self.bound is None:
                raise
            warn(f"{error}; it is tried again")
            return None

    def _end_once(self, run: Run | None) -> None:
        assert run is not None, "the first run always has something to look at"
        if self.as_json:
            from mdm_gitops.cli._errors import error_document

            error = error_document(run.error) if run.error else None
            echo_json(
                {
                    "outcome": run.outcome.value,
                    "commit": run.commit,
                    "changes": run.changes,
                    "message": run.message,
                    **({"error": error} if error else {}),
                }
            )
        if run.error is not None:
            click.get_current_context().exit(run.error.kind.exit_code)

    async def _serve(self, url: str, reconciler: Reconciler, bound: socket.socket) -> None:
        from mdm_api.app import create_app, folder_definitions
        from mdm_api.background import serving_app
        from mdm_operator import run_operator
        from mdm_operator.loop import Pace

        app = create_app(
            database_url=url,
            settings=self.settings,
            definitions=folder_definitions(self.directory, self.settings),
        )
        operating = asyncio.create_task(
            run_operator(reconciler, pace=Pace.of(self.settings.Operator), stop=self.stop)
        )
        try:
            async with serving_app(app, bound) as serving:
                await self._tell_ready(url, bound)
                stopping = asyncio.create_task(self.stop.wait())
                await asyncio.wait(
                    (serving, operating, stopping), return_when=asyncio.FIRST_COMPLETED
                )
                stopping.cancel()
                if not self.stop.is_set():
                    raise WarehouseError("a part ended by itself", hint="the log above says why")
                say("Stopping")
        finally:
            self.stop.set()
            await operating

    async def _tell_ready(self, url: str, bound: socket.socket) -> None:
        from mdm_api.server import address_of
        from mdm_gitops.cli._next_steps import next_steps

        address = address_of(bound)
        took_s = time.perf_counter() - self.started
        if self.as_json:
            echo_json({"url": address, "apiKey": self.new_key, "readyMs": round(took_s * 1000)})
        say(f"Ready after {took_s:.1f} s: {address}")
        say("")
        say(
            await next_steps(
                url,
                self.settings,
                self.directory,
                address=address,
                new_key=self.new_key,
            )
        )
