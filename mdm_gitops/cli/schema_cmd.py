"""``mdm-gitops schema``: the JSON Schemas, for editors and other programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.source.schemas import available_schemas, schema_text


@click.command()
@click.argument("name", required=False, type=click.Choice(available_schemas()))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write all of them into this folder instead.",
)
@json_option
def schema(name: str | None, out: Path | None, as_json: bool) -> None:
    """Print the JSON Schema NAME (2020-12), or the names of all.

    An editor uses it through the first line of a file:
    # yaml-language-server: $schema=../schemas/entity.json
    """
    if out is not None:
        _write(out, [name] if name else available_schemas())
    elif name is not None:
        click.echo(schema_text(name).rstrip("\n"))
    elif as_json:
        echo_json({each: json.loads(schema_text(each)) for each in available_schemas()})
    else:
        for each in available_schemas():
            click.echo(each)


def _write(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = folder / f"{name}.json"
        file.write_text(schema_text(name), encoding="utf-8")
        say(f"wrote {file}")
