"""``mdm-gitops init``: a small repository of definitions that works at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from mdm_gitops.cli._folder import Folder
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.errors import InputError
from mdm_gitops.source.schemas import SCHEMA_NAMES, schema_text

_FILES: Final = {
    "mdm.yaml": """\
# yaml-language-server: $schema=schemas/project.json
name: {name}
apiVersion: mdm-gitops/v1

# Each entity belongs to a domain; permissions can be given for a whole domain.
domains:
  - name: reference
    displayName: Reference data
""",
    "entities/country.yaml": """\
# yaml-language-server: $schema=../schemas/entity.json
name: country
displayName: Country
domain: reference
description: Countries we do business with
historyEnabled: true

# The business key: unique, and the value that other entities refer to.
keyColumns: [code]
sortColumns:
  - {{column: name, direction: asc}}
displayRefColumn: name

columns:
  - name: code
    displayName: ISO code
    dataType: string
    nullable: false
    maxLength: 2
    pattern: "[A-Z]{{2}}"
  - name: name
    dataType: string
    nullable: false
    maxLength: 100
  - name: region
    dataType: string
    allowedValues: [Africa, Americas, Asia, Europe, Oceania]
""",
    "permissions.yaml": """\
# yaml-language-server: $schema=schemas/permissions.json
permissions:
  # No entities: the whole domain.
  - users: [group:data-stewards]
    domains: [reference]
    entities: []
    actions: [read, write]
  - users: [group:everyone]
    domains: [reference]
    entities: [country]
    actions: [read]
    rowFilterDsl: "[region] IS NOT NULL"
""",
    "webhooks.yaml": """\
# yaml-language-server: $schema=schemas/webhooks.json
webhooks:
  - name: country changes
    url: https://example.com/hooks/mdm
    domains: [reference]
    actions: [data_created, data_updated, data_deleted]
    description: Tells the data platform about new and changed countries
    # Nothing is sent until this is true.
    is_active: false
""",
    "seed/country.json": """\
[
  {{"code": "BR", "name": "Brazil", "region": "Americas"}},
  {{"code": "CH", "name": "Switzerland", "region": "Europe"}},
  {{"code": "JP", "name": "Japan", "region": "Asia"}}
]
""",
    ".gitignore": """\
# State of the embedded database
.mdm/
""",
}


@click.command()
@click.argument(
    "directory", default=".", type=Folder(path_type=Path, file_okay=False), metavar="[DIR]"
)
@json_option
def init(directory: Path, as_json: bool) -> None:
    """Make a small repository of definitions in DIR (default: here).

    Files that exist are left as they are.
    """
    if (directory / "mdm.yaml").exists():
        raise InputError(
            f"{directory / 'mdm.yaml'} exists already", hint="`mdm-gitops validate` checks it"
        )
    name = _project_name(directory.resolve().name)
    texts = {path: text.format(name=name) for path, text in _FILES.items()}
    texts |= {f"schemas/{each}.json": schema_text(each) for each in SCHEMA_NAMES}
    created = [path for path, text in texts.items() if _create(directory / path, text)]
    kept = [path for path in texts if path not in created]
    if as_json:
        echo_json({"directory": str(directory), "created": created, "kept": kept})
        return
    _tell(directory, created, kept)


def _create(file: Path, text: str) -> bool:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except FileExistsError:
        return False
    return True


def _project_name(folder: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", folder.lower()).strip("-").lstrip("0123456789-") or "mdm"


def _tell(directory: Path, created: list[str], kept: list[str]) -> None:
    for path in created:
        say(f"created {directory / path}")
    for path in kept:
        say(f"kept {directory / path}, which was there")
    if ".gitignore" in kept:
        say("add .mdm/ to your .gitignore")
    say("")
    say("Next:")
    where = "" if str(directory) == "." else f" {directory}"
    if not (directory / ".git").exists():
        say(f"  git init{where}   # so that each change has an author and a reason")
    say(f"  mdm-gitops validate{where}")
    say(f"  mdm-gitops up{where}")
