"""Running the application on a socket: in this process, or in several worker processes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.supervisors import Multiprocess

from mdm_api.protocol import ShortWayProtocol
from mdm_gitops.errors import SettingsError
from mdm_gitops.logs import log_config

GRACE_S: Final = 20  # requests under way may end after SIGTERM
_FACTORY: Final = "mdm_api.app:app_from_environment"
_METRICS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    Raises:
        SettingsError: the address is taken or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2_048)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="--port (or Mdm__Server__Port) chooses another one, 0 any that is free",
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """Return the URL at which *bound* is reached from this machine."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Starlette, *, has_logs: bool = False) -> uvicorn.Server:
    """Return a server for this process; ``await server.serve(sockets=[bind(...)])`` runs it.

    Logs are set up for it, unless *has_logs*: then they are somebody else's.
    """
    return uvicorn.Server(uvicorn.Config(app, **_options(has_logs=has_logs)))


def run_here(app: Starlette, bound: socket.socket) -> None:
    make_server(app).run(sockets=[bound])


def run_workers(number: int, bound: socket.socket) -> None:
    """Run *number* worker processes, which make their application from their environment."""
    config = uvicorn.Config(_FACTORY, factory=True, workers=number, **_options())
    with _shared_metrics():
        Multiprocess(config, sockets=[bound]).run()


def _options(*, has_logs: bool = False) -> dict[str, Any]:
    return {
        "loop": "auto",  # uvloop, where there is one
        "http": ShortWayProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None if has_logs else log_config(as_json=True),
        "access_log": False,
        "server_header": False,
        # A client's own word on its address counts for nothing.
        "proxy_headers": False,
        "timeout_graceful_shutdown": GRACE_S,
    }


@contextmanager
def _shared_metrics() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="mdm-metrics-"))
    os.environ[_METRICS_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_METRICS_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
