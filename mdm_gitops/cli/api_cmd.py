"""``mdm-gitops api``: any request of the API, with the credential and the patience of the other commands."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._output import json_errors_option
from mdm_gitops.cli._remote import Remote, remote_options

if TYPE_CHECKING:
    from mdm_gitops.client import Answer, Client

_LISTS: Final = ("items", "entries", "options")
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")


@click.command(context_settings=CONTEXT)
@click.argument("method", type=click.Choice(_METHODS, case_sensitive=False))
@click.argument("path")
@click.option(
    "--field",
    "-F",
    "fields",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter, or a member of the JSON body: true, false, null and numbers are meant so,"
    " @FILE is what a file holds. Repeatable.",
)
@click.option(
    "--raw-field",
    "-f",
    "raw_fields",
    multiple=True,
    metavar="NAME=TEXT",
    help="The same, always as text. Repeatable.",
)
@click.option(
    "--input",
    "body",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="The body; - is standard input. Fields are parameters then.",
)
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME: VALUE", help="Repeatable.")
@click.option("--paginate", is_flag=True, help="All pages of a list; each item on a line of JSON.")
@click.option("--include", "-i", is_flag=True, help="Print status and headers on stderr.")
@json_errors_option
@remote_options
def api(
    method: str,
    path: str,
    fields: tuple[str, ...],
    raw_fields: tuple[str, ...],
    body: Path | None,
    headers: tuple[str, ...],
    paginate: bool,
    include: bool,
    remote: Remote,
) -> None:
    """Make a request, and print the answer as it is.

    \b
    mdm-gitops api GET /api/v1/entities/customer/data -F take=5
    mdm-gitops api POST /api/v1/entities/customer/data -f code=C1
    mdm-gitops api POST /api/v1/entities/customer/data/bulk --input rows.json
    mdm-gitops api GET /api/v1/changes -F afterId=0 --paginate

    PATH may leave /api/v1 out. Fields are parameters of GET, HEAD and DELETE, else the JSON body.
    """
    named = {**_fields(fields), **dict(_pair(each, "=") for each in raw_fields)}
    as_query = body is not None or method.upper() in ("GET", "HEAD", "DELETE")
    if paginate and method.upper() != "GET":
        raise click.UsageError("--paginate goes with GET")
    request: dict[str, Any] = {
        "headers": {name: value.strip() for name, value in (_pair(h, ":") for h in headers)},
        "query": named if as_query else {},
    }
    if body is not None:
        with click.open_file(str(body), "rb") as given:
            request["body"] = given.read()
        if not any(name.lower() == "content-type" for name in request["headers"]):
            request["headers"]["Content-Type"] = _media_type(body)
    elif named and not as_query:
        request["json"] = named
    asyncio.run(_run(remote, method.upper(), _whole(path), request, paginate, include))


async def _run(
    remote: Remote,
    method: str,
    path: str,
    request: dict[str, Any],
    paginate: bool,
    include: bool,
) -> None:
    async with remote.client() as client:
        if paginate:
            await _pages(client, path, request)
            return
        async with client.opened(method, path, **request, is_long=True) as answer:
            if include:
                _tell(answer)
            async for chunk in answer.chunks():
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            if sys.stdout.isatty():
                click.echo()


async def _pages(client: Client, path: str, request: dict[str, Any]) -> None:
    """Print all items, by whatever the list goes on with: a cursor, an id, or a count."""
    query = dict(request["query"])
    while True:
        answer = await client.request("GET", path, query=query, headers=request["headers"])
        name = next((each for each in _LISTS if each in (answer or {})), None)
        if name is None:
            raise click.UsageError(f"{path} is no list, so there are no pages")
        for item in answer[name]:
            click.echo(json.dumps(item, ensure_ascii=False))
        if answer.get("nextAfter") is not None:
            query["after"] = answer["nextAfter"]
            query.pop("skip", None)
        elif answer.get("nextAfterId") is not None:
            query["afterId"] = answer["nextAfterId"]
        else:
            query["skip"] = int(query.get("skip") or 0) + len(answer[name])
        if not _goes_on(answer, name, query):
            return


def _goes_on(answer: dict[str, Any], name: str, query: dict[str, Any]) -> bool:
    """Say whether there are more; a list that only counts has, while it is short of its total."""
    if "hasMore" in answer:
        return bool(answer["hasMore"])
    total = answer.get("totalCount", answer.get("total"))
    return bool(answer[name]) and total is not None and int(query.get("skip") or 0) < total


def _tell(answer: Answer) -> None:
    click.echo(f"HTTP {answer.status}", err=True)
    for name, value in answer.headers.items():
        click.echo(f"{name}: {value}", err=True)


def _whole(path: str) -> str:
    if "://" in path or path.startswith("//"):
        raise click.UsageError("a whole URL is no PATH; --url or a profile names the server")
    if not path.startswith("/"):
        path = "/" + path
    first = path.split("/", 2)[1].partition("?")[0]
    alone = ("api", "swagger", "healthz", "readyz", "metrics", "problems")
    return path if first in alone else "/api/v1" + path


def _fields(given: tuple[str, ...]) -> dict[str, Any]:
    return {name: _value(text) for name, text in (_pair(each, "=") for each in given)}


def _value(text: str) -> Any:
    if text.startswith("@"):
        with click.open_file(text[1:], "r", encoding="utf-8") as given:
            return given.read()
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if found is None or isinstance(found, bool | int | float) else text


def _pair(text: str, sign: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name:
        raise click.UsageError(f"{text[:60]!r} has no {sign!r} in it")
    return name.strip(), value


def _media_type(file: Path) -> str:
    known = {".csv": "text/csv", ".yaml": "application/yaml", ".yml": "application/yaml"}
    return known.get(file.suffix.lower(), "application/json")
