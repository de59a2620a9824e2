"""``mdm-gitops serve``: the API on a port, over the warehouse of a folder or of the settings."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import Folder
from mdm_gitops.cli._output import json_errors_option, say, warn

if TYPE_CHECKING:
    from mdm_gitops.settings import Settings


@click.command()
@click.argument(
    "directory",
    required=False,
    type=Folder(path_type=Path, exists=True, file_okay=False),
    metavar="[DIR]",
)
@click.option("--host", help="Address to listen on (Mdm__Server__Host).")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Port, 0 for any free one (Mdm__Server__Port)."
)
@click.option(
    "--workers", type=click.IntRange(1, 256), help="Worker processes (Mdm__Server__Workers)."
)
@environment_option
@json_errors_option
def serve(directory: Path | None, host: str | None, port: int | None, workers: int | None) -> None:
    """Run the API for the definitions in DIR (default: here, if there are any).

    Without definitions it serves what is deployed. Brings the config store to its version first.
    The first start prints an API key of a Global Admin, once.
    """
    from mdm_gitops.logs import keep_out
    from mdm_gitops.settings import load_settings

    folder = directory or (Path() if Path("mdm.yaml").is_file() else None)
    settings = load_settings(folder or Path())
    keep_out(settings)
    if folder is None and settings.Database.Url is None:
        raise click.UsageError(
            "there is neither a folder with mdm.yaml nor Mdm__Database__Url: give DIR"
        )
    with _sigterm_is_an_exit(), _warehouse(folder, settings) as url:
        asyncio.run(_prepare(url, settings))
        _run(
            url,
            folder,
            settings,
            host=host or settings.Server.Host,
            port=settings.Server.Port if port is None else port,
            workers=workers or settings.Server.Workers,
        )


def _run(
    url: str, folder: Path | None, settings: Settings, *, host: str, port: int, workers: int
) -> None:
    from mdm_api import app as application
    from mdm_api import server

    bound = server.bind(host, port)
    say(f"listening on {server.address_of(bound)}")
    with bound:
        if workers == 1:
            definitions = application.folder_definitions(folder, settings) if folder else None
            app = application.create_app(
                database_url=url, settings=settings, definitions=definitions
            )
            server.run_here(app, bound)
        else:
            os.environ[application.URL_VARIABLE] = url
            if folder is not None:
                os.environ[application.FOLDER_VARIABLE] = str(folder.resolve())
            server.run_workers(workers, bound)


async def _prepare(url: str, settings: Settings) -> None:
    """Migrate the store and see to the first key."""
    from mdm_gitops.access.api_keys import ensure_first_key
    from mdm_gitops.warehouse.connect import SessionLimits, check_server, connect
    from mdm_gitops.warehouse.migrate import migrate
    from mdm_gitops.warehouse.names import Schemas

    schemas = Schemas(config=settings.ConfigSchema, data=settings.EntityDataSchema)
    limits = SessionLimits(statement_timeout_s=0)
    conn = await connect(url, application_name="mdm-gitops serve", limits=limits)
    async with conn:
        for warning in (await check_server(conn)).warnings:
            warn(warning)
        await migrate(conn, config_schema=schemas.config, data_schema=schemas.data)
        configured = settings.Auth.BootstrapApiKey
        key = await ensure_first_key(
            conn, schemas=schemas, configured=configured.get_secret_value() if configured else ""
        )
    if key is not None:
        say(f"API key of the Global Admin {'bootstrap'!r}, shown only now: {key}")


@contextmanager
def _warehouse(folder: Path | None, settings: Settings) -> Iterator[str]:
    """Lend the warehouse for as long as the server runs, whichever loop that happens in."""
    if settings.Database.Url is not None:
        yield settings.Database.Url.get_secret_value()
        return
    from mdm_gitops.warehouse.locate import acquire_embedded

    assert folder is not None, "without a URL there is a folder"
    embedded = asyncio.run(acquire_embedded(folder, settings))
    try:
        yield embedded.url
    finally:
        asyncio.run(embedded.aclose())


@contextmanager
def _sigterm_is_an_exit() -> Iterator[None]:
    """After its own shutdown the server raises the signal again; then we still have to tidy up."""

    def leave(*_: Any) -> NoReturn:
        raise SystemExit(0)

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, earlier)
