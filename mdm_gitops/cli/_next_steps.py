"""What to try once it runs: commands with the paths, columns and files of this very repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mdm_gitops.cli._output import program
from mdm_gitops.model import DataType, Entity
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.session import open_connection, schemas_of
from mdm_gitops.warehouse.store import read_state

_TEXTUAL: Final = (DataType.STRING, DataType.TEXT)


async def next_steps(
    url: str, settings: Settings, directory: Path, *, address: str, new_key: str | None
) -> str:
    conn = await open_connection(url, settings, application_name="mdm-gitops up")
    async with conn:
        state = await read_state(conn, schemas=schemas_of(settings))
    names = sorted(state.entities)
    entity = state.entities[names[0]].definition if names else None
    return "\n".join([*_about_key(settings, new_key), *_about(entity, directory, address)])


def _about_key(settings: Settings, new_key: str | None) -> Iterator[str]:
    if new_key is not None:
        yield "The API key of the Global Admin, shown only now:"
        yield f"  export KEY={new_key}"
    elif settings.Auth.BootstrapApiKey is not None:
        yield "The API key is the one in Mdm__Auth__BootstrapApiKey:"
        yield '  export KEY="$Mdm__Auth__BootstrapApiKey"'
    else:
        yield "The API key was shown at the first start. For another one, start with"
        yield "  Mdm__Auth__BootstrapApiKey=<20 characters or more>"
    yield ""


def _about(entity: Entity | None, directory: Path, address: str) -> Iterator[str]:
    yield "Try in another terminal:"
    if entity is not None:
        rows = f"{address}/api/v1/entities/{entity.name}/data"
        column = _readable_column(entity)
        yield f'  curl -H "X-API-Key: $KEY" "{rows}?take=3"'
        yield (
            f'  curl -H "X-API-Key: $KEY" -G "{rows}"'
            f" --data-urlencode \"filter=[{column}] LIKE 'A%'\" -d sort=-{column} -d count=true"
        )
        yield f"  {program()} db psql --dir {directory} -- -c '\\dt'"
    yield f"  {program()} status {directory}"
    yield f"In a browser (any user name, the key as password): {address}/swagger"
    if entity is not None and (file := _file_of(entity, directory)) is not None:
        yield f"Edit {file}, save, and watch it here."
    yield "Ctrl-C stops everything."


def _readable_column(entity: Entity) -> str:
    textual = [column.name for column in entity.columns if column.data_type in _TEXTUAL]
    wanted = entity.display_ref_column
    return wanted if wanted in textual else (textual or [entity.columns[0].name])[0]


def _file_of(entity: Entity, directory: Path) -> Path | None:
    found = sorted((directory / "entities").rglob(f"{entity.name}.yaml"))
    return found[0] if found else None
