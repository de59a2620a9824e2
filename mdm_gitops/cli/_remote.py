"""What every command that speaks to a running server shares: where it is, the key, and its errors.

A problem document becomes the error it came from, so a command ends with the same words and the same
exit code whether it works on files here or on a server elsewhere. Bodies are streamed both ways.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from mdm_gitops.errors import CATALOGUE, InputError, MdmError

if TYPE_CHECKING:
    import httpx2

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_URL: Final = "http://127.0.0.1:8080"
_CONNECT_S: Final = 10.0
_CHUNK_BYTES: Final = 262_144
_BY_STATUS: Final = {
    401: "AUTH_REQUIRED",
    403: "ACCESS_DENIED",
    404: "NOT_FOUND",
    413: "BODY_TOO_LARGE",
}


def remote_options(command: Command) -> Command:
    """Add ``--url`` and ``--api-key`` as the parameters ``url`` and ``api_key``."""
    url = click.option(
        "--url",
        envvar="MDM_URL",
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="Where the server is.",
    )
    key = click.option(
        "--api-key",
        envvar="MDM_API_KEY",
        show_envvar=True,
        metavar="KEY",
        help="The API key; better by the variable, which no process list shows.",
    )
    return url(key(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server. Every failure is an ``MdmError``."""

    url: str = DEFAULT_URL
    api_key: str | None = None

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON value of the answer, None for an empty one."""
        with self.opened(method, path, query=query, content=content, headers=headers) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    @contextmanager
    def opened(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx2.Response]:
        """Yield a good answer whose body has not been read; *content* may be an iterator of bytes.

        Parameters of *query* that are None are left out.
        """
        import httpx2

        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        try:
            with (
                # A large import may take long to be answered; only connecting has a limit.
                httpx2.Client(timeout=httpx2.Timeout(None, connect=_CONNECT_S)) as client,
                client.stream(
                    method,
                    self._address(path),
                    params=given,
                    content=content,
                    headers={**self._credential(), **(headers or {})},
                ) as answer,
            ):
                if answer.status_code >= 400:
                    raise _problem(answer.status_code, answer.read())
                yield answer
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise InputError(
                f"{self.url!r} is no URL of a server", hint=f"write it as {DEFAULT_URL}"
            ) from None
        except httpx2.TransportError as error:
            raise MdmError(
                f"the server at {self.url} does not answer: {_reason(error)}",
                hint="is it running, and is the URL right? --url or MDM_URL names it",
                code="SERVER_UNREACHABLE",
            ) from None

    def _address(self, path: str) -> str:
        return self.url.rstrip("/") + path

    def _credential(self) -> dict[str, str]:
        if not self.api_key:
            return {}
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise InputError("the API key has characters that no key has")
        return {"X-API-Key": self.api_key}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(error: Exception) -> str:
    said = str(error).rstrip(".").partition("\n")[0]
    return said or type(error).__name__


def _problem(status: int, body: bytes) -> MdmError:
    """Return the error that a problem document tells, or as much of one as there is."""
    try:
        document = json.loads(body)
        code, detail = document["code"], document["detail"]
    except (ValueError, KeyError, TypeError):
        code = _BY_STATUS.get(status, "SERVER_UNREACHABLE")
        return MdmError(
            f"the server answered with status {status} and no problem document",
            hint="is this the address of a server of this program?",
            code=code,
        )
    known = code if code in CATALOGUE else _BY_STATUS.get(status, "INTERNAL")
    hint = str(document.get("hint") or "")
    if known == "AUTH_REQUIRED" and not hint:
        hint = "--api-key or MDM_API_KEY gives the key"
    details = {"errors": document["errors"]} if document.get("errors") else {}
    return MdmError(str(detail), hint=hint, code=known, **details)


# --- files ----------------------------------------------------------------------------------------


def file_size(path: Path | None) -> int | None:
    """Return the bytes of a file; None for standard input and pipes, which do not know."""
    if path is None:
        return None
    found = path.stat()
    return found.st_size if os.path.isfile(path) else None  # noqa: PTH113


def chunks_of(file: IO[bytes], *, sent: Callable[[int], None]) -> Iterator[bytes]:
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
