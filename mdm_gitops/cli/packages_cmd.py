"""``mdm-gitops packages``: definitions of one running server as an archive, deployed on another.

Without a server, `mdm-gitops validate FILE` and `mdm-gitops plan FILE` look into an archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._receiving import copy, target_file
from mdm_gitops.cli._remote import Remote, chunks_of, file_size, remote_options, transfer

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "export": ("mdm_gitops.cli.packages_cmd:export", "Export definitions as a package."),
    "deploy": ("mdm_gitops.cli.packages_cmd:deploy", "Deploy a package, all of it or nothing."),
}
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=LazyGroup, commands_table=COMMANDS, context_settings=CONTEXT)
def packages() -> None:
    """Carry definitions from one server to another."""


@click.command()
@click.option("--file", "-o", "file", required=True, type=_FILE, help="Where to.")
@click.option("--entity", "entities", multiple=True, metavar="NAME", help="Only this; repeatable.")
@click.option("--no-dependencies", is_flag=True, help="Without what the entities refer to.")
@click.option("--include-permissions", is_flag=True, help="With permissions.yaml.")
@click.option("--include-webhooks", is_flag=True, help="With webhooks.yaml; never with secrets.")
@click.option("--include-seed", is_flag=True, help="With the seed files.")
@click.option("--package-version", metavar="VERSION", help="Version of the package.")
@remote_options
@json_option
def export(
    file: Path,
    entities: tuple[str, ...],
    no_dependencies: bool,
    include_permissions: bool,
    include_webhooks: bool,
    include_seed: bool,
    package_version: str | None,
    remote: Remote,
    as_json: bool,
) -> None:
    """Export the definitions of a server as one archive."""
    options = {
        "dependencies": not no_dependencies,
        "permissions": include_permissions,
        "webhooks": include_webhooks,
        "seed": include_seed,
        "version": package_version,
    }
    size = asyncio.run(_receive(remote, file, entities, options))
    if as_json:
        echo_json({"file": str(file), "bytes": size})
    else:
        say(f"{file}: {size:,} bytes")


@click.command()
@click.option(
    "--file",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The package.",
)
@click.option("--overwrite-existing", is_flag=True, help="Replace what is there and differs.")
@click.option("--import-permissions", is_flag=True, help="Add the package's permissions.")
@click.option("--import-webhooks", is_flag=True, help="Add the package's webhooks.")
@click.option("--import-seed", is_flag=True, help="Take its seed files, and write their rows.")
@click.option("--allow", multiple=True, metavar="CODE:ENTITY", help="What a person allows.")
@remote_options
@json_option
def deploy(
    file: Path,
    overwrite_existing: bool,
    import_permissions: bool,
    import_webhooks: bool,
    import_seed: bool,
    allow: tuple[str, ...],
    remote: Remote,
    as_json: bool,
) -> None:
    """Deploy a package: one commit and one deployment on the server, or nothing of it."""
    options = {
        "overwrite_existing": overwrite_existing,
        "import_permissions": import_permissions,
        "import_webhooks": import_webhooks,
        "import_seed": import_seed,
        "allow": allow,
    }
    answer = asyncio.run(_send(remote, file, options))
    if as_json:
        echo_json(answer)
        return
    for step in answer["log"]:
        say(f"{step['step']}. {step['action']}: {step['detail']}")
    _tell(answer)


async def _receive(
    remote: Remote, file: Path, entities: tuple[str, ...], options: dict[str, Any]
) -> int:
    async with remote.client() as client, client.packages.export(entities, **options) as answer:
        with (
            target_file(file) as target,
            transfer("receiving the package", total=answer.length) as received,
        ):
            return await copy(answer, target, received)


async def _send(remote: Remote, file: Path, options: dict[str, Any]) -> dict[str, Any]:
    size = file_size(file)
    async with remote.client() as client:
        with (
            file.open("rb") as content,
            transfer(f"sending {file}", total=size, then="checking and deploying") as sent,
        ):

            def anew() -> AsyncIterator[bytes]:
                content.seek(0)
                return chunks_of(content, sent=sent)

            return await client.packages.deploy(anew, size=size, name=file.name, **options)


def _tell(answer: dict[str, Any]) -> None:
    if answer["branch"]:
        say(f"pushed branch {answer['branch']}; merge it to deploy the package")
        return
    names = answer["deployedEntities"]
    say(f"deployed {len(names)} entities: {', '.join(names)}")
