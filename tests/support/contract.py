"""The API against its own OpenAPI document: schemathesis sends requests and judges the answers.

What is read is the document that the server gives, with one thing added: values that exist. A name
or an id made up at random is answered 404 before anything interesting is reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
_PROGRAM: Final = Path(sys.executable).with_name("schemathesis")
_HOOKS: Final = """
import schemathesis


@schemathesis.serializer("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet")
def workbook(context, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
"""
_SECONDS_PER_REQUEST: Final = "20"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextlib.asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    """Serve *app* over TCP, in this event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(30):
            await server.is_up.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def with_values(
    document: dict[str, Any],
    values: Mapping[str, Mapping[str, Sequence[str]]],
    *,
    bodies: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return *document* with known values of parameters: by path prefix, then by parameter.

    *bodies* are the members that can be written, by the name of a schema that allows any.

    Others may still be made up, but in a path only where the request is meant to be wrong: made up
    names are all that is tried else. The longest prefix counts. How to sign in is left out: the one key
    that is given would be sent beside made up ones, which is always 400.
    """
    made = copy.deepcopy(document)
    for path, operations in made["paths"].items():
        known: dict[str, Sequence[str]] = {}
        for prefix in sorted((each for each in values if path.startswith(each)), key=len):
            known |= values[prefix]
        for operation in operations.values():
            operation["security"] = []
            for parameter in operation["parameters"]:
                if parameter["name"] in known and "enum" not in parameter["schema"]:
                    fixed = {"enum": list(known[parameter["name"]])}
                    others = [] if parameter["in"] == "path" else [parameter["schema"]]
                    parameter["schema"] = {"anyOf": [fixed, *others]} if others else fixed
    for name, members in bodies.items():
        known_body = {"type": "object", "properties": members, "additionalProperties": False}
        schemas = made["components"]["schemas"]
        schemas[name] = {"anyOf": [known_body, schemas[name]]}
    return made


async def judge(
    document: dict[str, Any], *, url: str, key: str, folder: Path, options: Sequence[str]
) -> tuple[int, str]:
    """Run schemathesis; return its exit code and what it says."""
    (folder / "hooks.py").write_text(_HOOKS)
    (folder / "openapi.json").write_text(json.dumps(document))
    said = folder / "said"
    with said.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            str(_PROGRAM), "run", "openapi.json", "--url", url, "--header", f"X-API-Key: {key}",
            "--checks", ",".join(CHECKS), "--seed", "1", "--generation-database", "none",
            "--request-timeout", _SECONDS_PER_REQUEST, "--continue-on-failure",
            "--warnings", "off", "--no-color", "--no-shrink", *options,
            cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks"},
            stdout=file, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        code = await process.wait()
    return code, said.read_text(errors="replace")
