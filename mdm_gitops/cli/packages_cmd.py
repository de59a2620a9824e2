"""``mdm-gitops packages``: definitions of one running server as an archive, deployed on another.

Without a server, `mdm-gitops validate FILE` and `mdm-gitops plan FILE` look into an archive.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._receiving import copy, length_of, target_file
from mdm_gitops.cli._remote import Remote, chunks_of, remote_options, transfer

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
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Export the definitions of a server as one archive."""
    import json

    asked = {
        "entityNames": list(entities),
        "autoIncludeDependencies": not no_dependencies,
        "includePermissions": include_permissions,
        "includeWebhooks": include_webhooks,
        "includeSeed": include_seed,
        "version": package_version,
    }
    remote = Remote(url=url, api_key=api_key)
    with (
        remote.opened(
            "POST",
            "/api/v1/packages/export",
            content=json.dumps(asked).encode(),
            headers={"Content-Type": "application/json"},
        ) as answer,
        target_file(file) as target,
        transfer("receiving the package", total=length_of(answer)) as received,
    ):
        size = copy(answer, target, received)
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
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Deploy a package: one commit and one deployment on the server, or nothing of it."""
    boundary = secrets.token_hex(16)
    head, tail = _around(file.name, boundary)
    size = file.stat().st_size
    with (
        file.open("rb") as content,
        transfer(f"sending {file}", total=size, then="checking and deploying") as sent,
    ):
        answer = Remote(url=url, api_key=api_key).call(
            "POST",
            "/api/v1/packages/deploy",
            query={
                "overwriteExisting": overwrite_existing,
                "importPermissions": import_permissions,
                "importWebhooks": import_webhooks,
                "importSeed": import_seed,
                "allow": ",".join(allow) or None,
            },
            content=_form(head, content, tail, sent),
            headers={
                "Content-Type": f"multipart/form-data; boundary={boundary}",
                "Content-Length": str(len(head) + size + len(tail)),
            },
        )
    if as_json:
        echo_json(answer)
        return
    for step in answer["log"]:
        say(f"{step['step']}. {step['action']}: {step['detail']}")
    _tell(answer)


def _around(name: str, boundary: str) -> tuple[bytes, bytes]:
    safe = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in name)
    head = (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{ascii(safe)[1:-1]}"\r\n'
        "Content-Type: application/zip\r\n\r\n"
    )
    return head.encode(), f"\r\n--{boundary}--\r\n".encode()


def _form(
    head: bytes, content: IO[bytes], tail: bytes, sent: Callable[[int], None]
) -> Iterator[bytes]:
    yield head
    yield from chunks_of(content, sent=sent)
    yield tail


def _tell(answer: dict[str, Any]) -> None:
    if answer["branch"]:
        say(f"pushed branch {answer['branch']}; merge it to deploy the package")
        return
    names = answer["deployedEntities"]
    say(f"deployed {len(names)} entities: {', '.join(names)}")
