"""Repositories and hosts of them, by real git: what tests of remotes share."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mdm_gitops.source.remote import Remote
from tests.small_repository import SmallRepository
from tests.support.git import git
from tests.support.threads import served_beside

SECRET = "s3cret-of-the-tests"


@pytest.fixture
def developer(tmp_path: Path) -> SmallRepository:
    repository = SmallRepository(tmp_path / "clone")
    repository.commit()
    return repository


@pytest.fixture
def bare(tmp_path: Path, developer: SmallRepository) -> Path:
    git(tmp_path, "clone", "--quiet", "--bare", str(developer.root), "remote.git")
    return tmp_path / "remote.git"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror.git"


def push(developer: SmallRepository, bare: Path, *more: str) -> str:
    git(developer.root, "push", "--quiet", *more, str(bare), "HEAD:main")
    return git(developer.root, "rev-parse", "HEAD")


def remote(bare: Path, **more: Any) -> Remote:
    return Remote(url=f"file://{bare}", **more)


class Asked(BaseHTTPRequestHandler):
    """A host that wants a password, and notes which one it was given."""

    seen: ClassVar[list[str]] = []
    elsewhere: ClassVar[str] = ""
    stalls: ClassVar[bool] = False

    def do_GET(self) -> None:
        type(self).seen.append(self.headers.get("Authorization", ""))
        if self.stalls:
            time.sleep(30)
        if self.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.elsewhere + self.path)
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def host(**attributes: Any) -> Iterator[tuple[str, type[Asked]]]:
    handler = type("Host", (Asked,), {"seen": [], **attributes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    with served_beside(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", handler


def tree(developer: SmallRepository, lines: str) -> str:
    done = subprocess.run(
        ("git", "mktree"),
        input=lines,
        cwd=developer.root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


class GitHost(BaseHTTPRequestHandler):
    """A real git host: ``git http-backend`` behind a password."""

    root: ClassVar[Path]

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        expected = "Basic " + base64.b64encode(f"bot:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ("git", "http-backend"),
            input=body,
            check=True,
            capture_output=True,
            env={
                **os.environ,
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": "bot",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def git_host(root: Path, certificate: Path, key: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Host", (GitHost,), {"root": root}))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with served_beside(server):
        yield f"https://localhost:{server.server_address[1]}/remote.git"


def ssh_key(folder: Path, name: str) -> Path:
    key = folder / name
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    return key
