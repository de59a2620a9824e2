"""``mdm-gitops db``: the database by hand. Start and stop the embedded one, open or dump any.

PostgreSQL's own programs do the work; they get the password through the environment, because a
command line can be read by every user of the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli._output import echo_json, json_errors_option, json_option, say, tell
from mdm_gitops.errors import WarehouseError

if TYPE_CHECKING:
    from mdm_gitops.settings import Settings

NEWEST_CLIENT: Final = 18  # its programs speak to older servers too

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=".",
    show_default="here",
    metavar="DIR",
    help="The folder of definitions.",
)
_arguments: Callable[[Any], Any] = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


@click.group(name="db")
def db() -> None:
    """Start, stop and open the embedded database.

    Commands start it where they need it and stop it after themselves; `db start` keeps it running
    until `db stop`. With Mdm__Database__Url set, psql, url and dump use that server.
    """


@db.command()
@_dir_option
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Also listen on 127.0.0.1, at this port; 0 takes a free one.",
)
@json_option
def start(directory: Path, port: int | None, as_json: bool) -> None:
    """Start the embedded PostgreSQL and keep it running."""
    settings = _embedded_settings(directory)
    asyncio.run(_start(directory, settings, port))
    _show_status(directory, as_json=as_json)


async def _start(directory: Path, settings: Settings, port: int | None) -> None:
    from mdm_gitops.warehouse.embedded import keep_running
    from mdm_gitops.warehouse.locate import acquire_embedded

    server = await acquire_embedded(directory, settings, port=port)
    try:
        keep_running(server)
    finally:
        await server.aclose()


@db.command()
@_dir_option
@click.option("--force", is_flag=True, help="Also when other commands still use it.")
@json_option
def stop(directory: Path, force: bool, as_json: bool) -> None:
    """Stop the embedded PostgreSQL."""
    from mdm_gitops.warehouse.embedded import running_server, stop_server

    _embedded_settings(directory)
    if running_server(directory) is None:
        tell("not running", as_json=as_json, running=False)
    elif asyncio.run(stop_server(directory, force=force)):
        tell("stopped", as_json=as_json, running=False)
    else:
        told = "other commands still use it; it stops after the last of them (--force: now)"
        tell(told, as_json=as_json, running=True)


@db.command()
@_dir_option
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Tell whether the embedded PostgreSQL runs, and where."""
    _embedded_settings(directory)
    _show_status(directory, as_json=as_json)


@db.command()
@_dir_option
@click.option("--tcp", is_flag=True, help="The address on 127.0.0.1, where there is one.")
@json_option
def url(directory: Path, tcp: bool, as_json: bool) -> None:
    """Print the URL of the database, with its password."""
    found = _url(directory, tcp=tcp)
    if as_json:
        echo_json({"url": found})
    else:
        click.echo(found)


def _url(directory: Path, *, tcp: bool) -> str:
    from mdm_gitops.warehouse.embedded import running_server

    settings = _settings(directory)
    if settings.Database.Url:
        return settings.Database.Url.get_secret_value()
    server = running_server(directory)
    if server is None:
        raise WarehouseError(
            "the embedded PostgreSQL is not running", hint="start it with mdm-gitops db start"
        )
    if not tcp:
        return server.url
    if not server.tcp_url:
        raise WarehouseError(
            "the embedded PostgreSQL has no TCP port",
            hint="mdm-gitops db stop, then mdm-gitops db start --port 5433",
        )
    return server.tcp_url


@db.command()
@_dir_option
@click.option("--superuser", is_flag=True, help="As the superuser of the embedded PostgreSQL.")
@json_errors_option
@_arguments
@click.pass_context
def psql(ctx: click.Context, directory: Path, superuser: bool, arguments: tuple[str, ...]) -> None:
    """Open psql on the database; what follows -- is passed on to it."""
    settings = _settings(directory)
    schemas = f"{settings.EntityDataSchema},{settings.ConfigSchema},public"
    environment = {"PGOPTIONS": f"-c search_path={schemas}"}
    run = _run_program(directory, settings, "psql", arguments, environment, superuser=superuser)
    ctx.exit(asyncio.run(run))


@db.command()
@_dir_option
@click.option(
    "--file", "target", type=click.Path(path_type=Path), metavar="FILE", help="Instead of stdout."
)
@json_errors_option
@_arguments
@click.pass_context
def dump(
    ctx: click.Context, directory: Path, target: Path | None, arguments: tuple[str, ...]
) -> None:
    """Write the database with pg_dump; what follows -- is passed on to it."""
    settings = _settings(directory)
    partial = target.with_name(target.name + ".partial") if target else None
    to_file = [f"--file={partial.absolute()}"] if partial else []
    code = asyncio.run(_run_program(directory, settings, "pg_dump", [*to_file, *arguments]))
    if partial and target:
        # The name appears only on a dump that is complete.
        if code:
            partial.unlink(missing_ok=True)
        else:
            partial.replace(target)
    ctx.exit(code)


async def _run_program(
    directory: Path,
    settings: Settings,
    program: str,
    arguments: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    superuser: bool = False,
) -> int:
    """Run a program of PostgreSQL on the warehouse and return its exit code."""
    from mdm_gitops.warehouse.embedded_binaries import find_binaries
    from mdm_gitops.warehouse.locate import acquire_embedded

    given = settings.Database.Url
    if given:
        binaries = find_binaries(major=NEWEST_CLIENT, bin_dir=settings.Database.EmbeddedBin)
        return await _call(
            binaries.program(program), given.get_secret_value(), arguments, environment
        )
    server = await acquire_embedded(directory, settings)
    try:
        address = server.superuser_url if superuser else server.url
        return await _call(server.bin_dir / program, address, arguments, environment)
    finally:
        await server.aclose()


async def _call(
    program: Path, address: str, arguments: Sequence[str], environment: dict[str, str] | None
) -> int:
    from mdm_gitops.warehouse.connect import split_password

    public, password = split_password(address)
    secret = {"PGPASSWORD": password} if password else {}
    # Ctrl-C belongs to the program: in psql it ends a query, not the session.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = await asyncio.create_subprocess_exec(
            program, f"--dbname={public}", *arguments,
            env={**os.environ, **(environment or {}), **secret},
            preexec_fn=_default_interrupt,
        )  # fmt: skip
        return await process.wait()
    except FileNotFoundError:
        raise WarehouseError(f"there is no program {program}", code="WAREHOUSE_UNUSABLE") from None
    finally:
        signal.signal(signal.SIGINT, before)


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _show_status(directory: Path, *, as_json: bool) -> None:
    from mdm_gitops.warehouse.embedded import home_of, is_kept, running_server

    server = running_server(directory)
    if as_json:
        echo_json(
            {
                "running": server is not None,
                "kept": is_kept(directory),
                "postgresql": server.major if server else None,
                "port": server.port if server else None,
                "data": str(home_of(directory)),
            }
        )
    elif server is None:
        say(f"not running; its data is in {home_of(directory)}")
    else:
        where = f"127.0.0.1:{server.port}" if server.port else "a private socket"
        until = "until db stop" if is_kept(directory) else "while commands use it"
        say(f"PostgreSQL {server.major} runs on {where}, {until}")


def _settings(directory: Path) -> Settings:
    from mdm_gitops.settings import load_settings

    return load_settings(directory)


def _embedded_settings(directory: Path) -> Settings:
    settings = _settings(directory)
    if settings.Database.Url:
        raise WarehouseError(
            "Mdm__Database__Url names another server, there is no embedded one to manage",
            hint="unset it to use the embedded PostgreSQL",
            code="WAREHOUSE_UNUSABLE",
        )
    return settings
