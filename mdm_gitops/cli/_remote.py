"""What every command that speaks to a running server shares: where it is, and who asks.

What is said to a server and what it answers is of ``mdm_gitops.client``; here is what a command line adds:
options, profiles, hints, and bars that show bytes on their way.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from mdm_gitops.errors import MdmError

if TYPE_CHECKING:
    from mdm_gitops.client import Client
    from mdm_gitops.client.profiles import Choice, Profiles

Command = TypeVar("Command", bound=Callable[..., Any])
_CHUNK_BYTES: Final = 262_144


def remote_options(command: Command) -> Command:
    """Add ``--url``, ``--api-key`` and ``--profile``; the function gets them as ``remote``."""

    @functools.wraps(command)
    def entered(
        *args: Any, url: str | None, api_key: str | None, profile: str | None, **given: Any
    ) -> Any:
        remote = Remote(url=url, api_key=api_key, profile=profile)
        return command(*args, remote=remote, **given)

    found: Any = entered
    for option in reversed(_OPTIONS):
        found = option(found)
    return found  # type: ignore[no-any-return]


_OPTIONS: Final = (
    click.option(
        "--url",
        metavar="URL",
        help="Where the server is; else MDM_URL, the profile, http://127.0.0.1:8080.",
    ),
    click.option(
        "--api-key",
        metavar="KEY",
        help="The API key; better by MDM_API_KEY or a profile, which no process list shows.",
    ),
    click.option(
        "--profile", metavar="NAME", help="A server by its name in the configuration; MDM_PROFILE."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The server that a command was told of."""

    url: str | None = None
    api_key: str | None = None
    profile: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether an option names a server, in commands that can do without one."""
        return bool(self.url or self.profile or self.api_key)

    def chosen(self) -> tuple[Profiles, Choice]:
        from mdm_gitops.client.profiles import Profiles, choose

        profiles = Profiles()
        choice = choose(profiles, url=self.url, api_key=self.api_key, profile=self.profile)
        return profiles, choice

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Yield a client of the server; its errors tell what a person at a terminal can do."""
        from mdm_gitops.client import ApiKey, Client, NoCredential
        from mdm_gitops.client.connection import Credential

        profiles, choice = self.chosen()
        credential: Credential = NoCredential()
        if choice.api_key:
            credential = ApiKey(choice.api_key)
        elif choice.is_profile_server and profiles.tokens(choice.profile.name) is not None:
            from mdm_gitops.client.sign_in import SignedIn

            credential = SignedIn(profiles, choice.profile.name)
        try:
            async with Client(choice.url, credential=credential, on_wait=_tell_wait) as client:
                yield client
        except MdmError as error:
            error.hint = _hint(error)
            raise


def _hint(error: MdmError) -> str:
    """Return what a person at a terminal can do about *error*."""
    if error.kind_code == "AUTH_REQUIRED" and not error.hint:
        return "--api-key, MDM_API_KEY or a profile gives the key; or mdm-gitops login"
    if error.kind_code == "SERVER_UNREACHABLE" and error.hint.endswith("right?"):
        return f"{error.hint} --url, MDM_URL or a profile names it"
    return error.hint


def _tell_wait(seconds: float) -> None:
    from mdm_gitops.cli._output import say

    if seconds >= 1:
        say(f"the server is busy, trying again in {seconds:.0f} s")


# --- files ----------------------------------------------------------------------------------------


def file_size(path: Path | None) -> int | None:
    """Return the bytes of a file; None for standard input and pipes, which do not know."""
    if path is None:
        return None
    found = path.stat()
    return found.st_size if os.path.isfile(path) else None  # noqa: PTH113


async def chunks_of(file: IO[bytes], *, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield *file* piece by piece and tell *sent* the size of each that was taken."""
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
        sent(len(chunk))


@contextmanager
def transfer(what: str, *, total: int | None, then: str = "") -> Iterator[Callable[[int], None]]:
    """Yield a function that is told of bytes; on a terminal a bar on stderr shows them.

    When all are there, and *then* says what the other side does with them, that is shown and how long
    it takes.
    """
    from mdm_gitops.cli._output import console

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda size: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=screen, transient=True)
    waiting = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
    )
    task = progress.add_task(what, total=total)

    def moved(size: int) -> None:
        progress.advance(task, size)
        if then and progress.finished and not waiting.tasks:
            progress.stop()
            waiting.add_task(then)
            waiting.start()

    progress.start()
    try:
        yield moved
    finally:
        progress.stop()
        waiting.stop()
