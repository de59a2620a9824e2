"""``--env NAME``: one command for one environment of ``mdm.yaml``.

The choice is made before anything else runs, by the settings that a person would otherwise export:
``Mdm__Environment``, and ``Mdm__Database__Url`` from the variable that the environment names. So all
parts of a command, worker processes included, go by it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from mdm_gitops.cli._package import looks_like_archive

ENVIRONMENT: Final = "Mdm__Environment"
DATABASE_URL: Final = "Mdm__Database__Url"


def environment_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--env``; put it next to the function, or to ``pass_context``."""

    @functools.wraps(command)
    def entered(*args: Any, environment: str | None, **given: Any) -> Any:
        if environment:
            with_database = command.__name__ != "validate" or bool(given.get("live"))
            enter(_folder_of(given), environment, with_database=with_database)
        return command(*args, **given)

    option = click.option(
        "--env",
        "environment",
        envvar="MDM_ENV",
        metavar="NAME",
        help="Environment of mdm.yaml: its database, policy and webhooks; else MDM_ENV.",
    )
    return option(entered)


def _folder_of(given: dict[str, Any]) -> Path:
    """The definitions that the command is about; a saved plan remembers where its own are."""
    place = given.get("moved_to") or given.get("directory") or given.get("source") or Path()
    if not place.is_file():
        return Path(place)
    if looks_like_archive(place):
        return Path()
    from mdm_gitops.plan.saved import SavedPlan

    return SavedPlan.read(place).directory


def enter(folder: Path, name: str, *, with_database: bool = True) -> None:
    """Let this process, and those that it starts, work for the environment *name*.

    Raises:
        InputError: mdm.yaml in *folder* has no such environment, or its address is not set.
    """
    url = url_of(folder, name, needed=with_database)
    _set(ENVIRONMENT, name)
    if url is not None and with_database:
        _set(DATABASE_URL, url)


def url_of(folder: Path, name: str, *, needed: bool = True) -> str | None:
    """Return the address of the environment's database; None where the settings say it.

    Raises:
        InputError: there is no such environment, or the variable that it names is not set.
    """
    from mdm_gitops.errors import InputError
    from mdm_gitops.model.environments import environment_of
    from mdm_gitops.source.repository import read_project

    if not (folder / "mdm.yaml").is_file():
        return None  # definitions that are fetched: their overlays are known later
    reference = environment_of(read_project(folder), name).database_url_ref
    if reference is None:
        return None
    value = os.environ.get(reference) or _from_dotenv(folder, reference)
    if not value and needed:
        raise InputError(
            f"environment {name} has its database in ${reference}, which is not set",
            hint=f"export {reference}=postgresql://..., or put it into .env",
        )
    return value


def _from_dotenv(folder: Path, name: str) -> str | None:
    from dotenv import dotenv_values

    file = folder / ".env"
    return dotenv_values(file, interpolate=False).get(name) if file.is_file() else None


def _set(name: str, value: str) -> None:
    """Settings do not mind capitals, so no other spelling may stand beside it."""
    for other in [each for each in os.environ if each.lower() == name.lower()]:
        del os.environ[other]
    os.environ[name] = value
