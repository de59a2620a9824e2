"""A real ssh server that serves repositories of this machine, as a git host does: it takes named keys
and runs in a shell what git asks for.

A process of its own (this file, run), which ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import asyncssh

STALLS = "/stalls.git"  # whoever asks for it is let in, and then waits


@dataclass(frozen=True)
class Key:
    file: Path

    @property
    def text(self) -> str:
        return self.file.read_text()

    @property
    def public(self) -> str:
        return " ".join(self.file.with_suffix(".pub").read_text().split()[:2])


def new_key(file: Path, *, passphrase: str = "", format_: str = "RFC4716") -> Key:
    options = ("-q", "-t", "ed25519", "-a", "1", "-m", format_, "-N", passphrase, "-f", str(file))
    subprocess.run(("ssh-keygen", *options), check=True)
    return Key(file)


@dataclass(frozen=True)
class SshHost:
    port: int
    key: Key
    log: Path

    def url(self, repository: Path | str) -> str:
        return f"ssh://git@127.0.0.1:{self.port}{quote(str(repository))}"

    def known_as(self, key: Key) -> str:
        """The line of a known_hosts file that trusts this host to have *key*."""
        return f"[127.0.0.1]:{self.port} {key.public}\n"

    @property
    def known_hosts(self) -> str:
        return self.known_as(self.key)

    @property
    def asked(self) -> list[str]:
        """The commands of those who were let in."""
        return self.log.read_text().splitlines()


@contextmanager
def ssh_host(folder: Path, *admitted: Key) -> Iterator[SshHost]:
    """Run a server that lets the owners of *admitted* in; *folder* is its own."""
    key = new_key(folder / "host_key")
    keys, log = folder / "authorized_keys", folder / "log"
    keys.write_text("\n".join(each.public for each in admitted))
    log.touch()
    command = (sys.executable, __file__, str(key.file), str(keys), str(log))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield SshHost(port=int(server.stdout.readline()), key=key, log=log)
        finally:
            server.stdin.close()


# --- the process ---


async def serve(key: str, admitted: str, log: Path) -> None:
    import asyncssh

    async def answer(process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or ""
        with log.open("a") as file:
            file.write(f"{command}\n")
        if STALLS in command:
            await process.wait_closed()
            return
        pipe = asyncio.subprocess.PIPE
        run = await asyncio.create_subprocess_shell(command, stdin=pipe, stdout=pipe, stderr=pipe)
        given = asyncio.ensure_future(pass_on(process.stdin, run.stdin))
        await asyncio.gather(
            pass_on(run.stdout, process.stdout), pass_on(run.stderr, process.stderr)
        )
        given.cancel()
        process.exit(await run.wait())

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[key],
        authorized_client_keys=admitted,
        process_factory=answer,
        encoding=None,
    )
    print(server.get_port(), flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def pass_on(source: Any, target: Any) -> None:
    with suppress(ConnectionError):
        while content := await source.read(65_536):
            target.write(content)
            await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
