"""``yaml-export`` and ``yaml-import`` of permissions and webhooks: the whole file of a server, to and fro."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from mdm_gitops.cli._output import echo_json, json_errors_option, json_option, say
from mdm_gitops.cli._receiving import copy, target_file
from mdm_gitops.cli._remote import Remote, remote_options, transfer


def export_command(kind: str) -> click.Command:
    @click.command(name="yaml-export", help=f"Export all {kind} as YAML, as they are in effect.")
    @click.option(
        "--file",
        "-o",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Where to; standard output if not given.",
    )
    @remote_options
    @json_errors_option
    def export(file: Path | None, remote: Remote) -> None:
        size = asyncio.run(_receive(remote, kind, file))
        if file is not None:
            say(f"{file}: {size:,} bytes")

    return export


async def _receive(remote: Remote, kind: str, file: Path | None) -> int:
    async with remote.client() as client, client.opened("GET", f"/api/v1/{kind}/yaml") as answer:
        with (
            target_file(file) as target,
            transfer(f"receiving {kind}", total=answer.length) as received,
        ):
            return await copy(answer, target, received)


def import_command(kind: str) -> click.Command:
    @click.command(name="yaml-import", help=f"Replace all {kind} by those of a file, as a commit.")
    @click.option(
        "--file",
        "file",
        required=True,
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        help="The YAML; - is standard input.",
    )
    @remote_options
    @json_option
    def import_(file: Path, remote: Remote, as_json: bool) -> None:
        with click.open_file(str(file), "rb") as given:
            text = given.read()
        answer = asyncio.run(_send(remote, kind, text))
        if as_json:
            echo_json(answer)
        elif answer["branch"]:
            say(f"pushed branch {answer['branch']}; merge it to put the {kind} into effect")
        elif answer["commit"]:
            say(f"commit {answer['commit']}; the {kind} are in effect")
        else:
            say(f"the {kind} are as in the file already")

    return import_


async def _send(remote: Remote, kind: str, text: bytes) -> Any:
    async with remote.client() as client:
        return await client.request(
            "POST",
            f"/api/v1/{kind}/yaml",
            body=text,
            headers={"Content-Type": "application/yaml"},
        )
