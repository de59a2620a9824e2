"""``mdm-gitops permissions`` and ``mdm-gitops webhooks``: the whole file of a running server, to and fro."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._receiving import copy, length_of, target_file
from mdm_gitops.cli._remote import Remote, remote_options, transfer

_HERE: Final = "mdm_gitops.cli.shared_yaml_cmd"


def _table(kind: str) -> dict[str, tuple[str, str]]:
    return {
        "yaml-export": (f"{_HERE}:export_{kind}", f"Export all {kind} as YAML."),
        "yaml-import": (f"{_HERE}:import_{kind}", f"Replace all {kind} by those of a file."),
    }


@click.group(cls=LazyGroup, commands_table=_table("permissions"), context_settings=CONTEXT)
def permissions() -> None:
    """Export and import all permissions of a running server."""


@click.group(cls=LazyGroup, commands_table=_table("webhooks"), context_settings=CONTEXT)
def webhooks() -> None:
    """Export and import all webhooks of a running server."""


def _export_command(kind: str) -> click.Command:
    @click.command(name="yaml-export", help=f"Export all {kind} as YAML, as they are in effect.")
    @click.option(
        "--file",
        "-o",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Where to; standard output if not given.",
    )
    @remote_options
    def export(file: Path | None, url: str, api_key: str | None) -> None:
        remote = Remote(url=url, api_key=api_key)
        with (
            remote.opened("GET", f"/api/v1/{kind}/yaml") as answer,
            target_file(file) as target,
            transfer(f"receiving {kind}", total=length_of(answer)) as received,
        ):
            size = copy(answer, target, received)
        if file is not None:
            say(f"{file}: {size:,} bytes")

    return export


def _import_command(kind: str) -> click.Command:
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
    def import_(file: Path, url: str, api_key: str | None, as_json: bool) -> None:
        with click.open_file(str(file), "rb") as given:
            text = given.read()
        answer: Any = Remote(url=url, api_key=api_key).call(
            "POST",
            f"/api/v1/{kind}/yaml",
            content=text,
            headers={"Content-Type": "application/yaml"},
        )
        if as_json:
            echo_json(answer)
        elif answer["branch"]:
            say(f"pushed branch {answer['branch']}; merge it to put the {kind} into effect")
        elif answer["commit"]:
            say(f"commit {answer['commit']}; the {kind} are in effect")
        else:
            say(f"the {kind} are as in the file already")

    return import_


export_permissions = _export_command("permissions")
import_permissions = _import_command("permissions")
export_webhooks = _export_command("webhooks")
import_webhooks = _import_command("webhooks")
