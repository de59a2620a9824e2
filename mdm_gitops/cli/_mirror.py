"""Commands that mirror one operation of the API: a value says what each is, one function makes it.

``mirror`` takes method and path of the operation; the places of the path become arguments, parameters
and members of the body become options. What is more than that is written by hand, beside it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._given import confirm, json_of, read_definition, values_given
from mdm_gitops.cli._output import echo_json, json_errors_option, json_option, say
from mdm_gitops.cli._remote import Remote, remote_options
from mdm_gitops.cli._show import show_list, show_object

_ARGUMENTS: Final = {"name": "ENTITY", "id": "ID", "filterName": "NAME", "n": "CHANGE"}
_PLACE: Final = re.compile(r"{(\w+)}")


class Place(StrEnum):
    """Where an option goes."""

    QUERY = "query"
    BODY = "body"
    HEADER = "header"


class Kind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    DECIMAL = "decimal"
    FLAG = "flag"
    LIST = "list"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: *flag* as it is typed, *sends* as the API knows it."""

    flag: str
    sends: str
    help: str
    place: Place
    kind: Kind = Kind.TEXT
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    metavar: str | None = None
    required: bool = False
    form: str = "{}"
    """How a header is made of the value."""
    positional: int = 0
    """So many words without a flag; -1 for any number, which are one text then."""

    @property
    def variable(self) -> str:
        return "option_" + self.flag.partition("/")[0].lstrip("-").replace("-", "_")


def camel(flag: str) -> str:
    """Return the name in the API of what *flag* sets."""
    first, *rest = flag.partition("/")[0].lstrip("-").split("-")
    return first + "".join(word.capitalize() for word in rest)


def option(
    flag: str, help: str, *, sends: str = "", place: Place = Place.QUERY, **more: Any
) -> Option:
    """Return an option whose name in the API is that of the flag, if *sends* says nothing else."""
    return Option(flag=flag, sends=sends or camel(flag), help=help, place=place, **more)


def member(flag: str, help: str, **more: Any) -> Option:
    """Return an option that becomes a member of the body."""
    return option(flag, help, place=Place.BODY, **more)


COMMENT: Final = member("--comment", "Why; it is kept with the decision.")


def take(most: int) -> Option:
    return option("--take", "At most so many.", kind=Kind.NUMBER, minimum=1, maximum=most)


TAKE: Final = take(1_000)
SKIP: Final = option("--skip", "Pass over so many.", kind=Kind.NUMBER, minimum=0, metavar="NUMBER")
IF_VERSION: Final = option(
    "--if-version",
    "Only if the row is still this version.",
    sends="If-Match",
    place=Place.HEADER,
    kind=Kind.NUMBER,
    metavar="NUMBER",
    form='"v{}"',
)


class Input(StrEnum):
    """What a command reads beside its options."""

    NOTHING = "nothing"
    DEFINITION = "definition"  # --file, YAML or JSON, sent as it is
    VALUES = "values"  # --set and --file: the columns of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    method: str
    path: str
    options: tuple[Option, ...]
    reads: Input
    values_in: str
    items: str
    columns: tuple[str, ...]
    asks: str
    done: str
    is_long: bool
    fixed: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None
    present: Callable[[Any], Mapping[str, Any]] | None
    view: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None
    parts: Mapping[str, tuple[str, ...]]
    is_text: bool
    has_all: bool

    @property
    def places(self) -> list[str]:
        return _PLACE.findall(self.path)


class MirrorCommand(click.Command):
    """A command that knows which operation it is."""

    mirror: Mirror


def mirror(
    name: str,
    method: str,
    path: str,
    help: str,
    *options: Option,
    reads: Input = Input.NOTHING,
    values_in: str = "",
    items: str = "",
    columns: Sequence[str] = (),
    asks: str = "",
    done: str = "",
    is_long: bool = False,
    fixed: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    present: Callable[[Any], Mapping[str, Any]] | None = None,
    view: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    parts: Mapping[str, tuple[str, ...]] | None = None,
    is_text: bool = False,
    arguments: Mapping[str, str] | None = None,
) -> click.Command:
    """Return the command *name*, which does one operation.

    Args:
        name: As it is typed.
        method: Of the operation.
        path: Of the operation, under ``/api/v1``; its places become arguments.
        help: What the command does, first line first.
        options: What may be given.
        reads: What it reads beside them.
        values_in: The member of the body that has the values, which need not be given then.
        items: The member of the answer that is a list; without it the answer is one object.
        columns: What is shown; without them everything.
        asks: The question before something is destroyed; places in it are filled.
        done: What is said where the answer is empty.
        is_long: The server may take as long as it takes.
        fixed: Members of the body that follow from the arguments.
        present: What of the thing as it is goes into the body where no option says anything else.
        view: What an item of the list is shown as.
        parts: Members of one object that are lists, shown below it with these columns.
        is_text: The answer is text, shown as it is.
        arguments: Names of arguments in the help, where they are not those of most commands.
    """
    what = Mirror(
        method=method,
        path="/api/v1" + path,
        options=options,
        reads=reads,
        values_in=values_in,
        items=items,
        columns=tuple(columns),
        asks=asks,
        done=done,
        is_long=is_long,
        fixed=fixed,
        present=present,
        view=view,
        parts=parts or {},
        is_text=is_text,
        has_all=bool(items) and _goes_on(options),
    )

    def run(remote: Remote, **given: Any) -> None:
        asyncio.run(_run(what, remote, given))

    shown: Any = run
    for decorate in reversed(list(_decorators(what, {**_ARGUMENTS, **(arguments or {})}))):
        shown = decorate(shown)
    command = click.command(name, cls=MirrorCommand, help=help, context_settings=CONTEXT)(shown)
    command.mirror = what
    return command


def _variable(place: str) -> str:
    return f"at_{place.lower()}"


def _goes_on(options: Sequence[Option]) -> bool:
    """Whether a list with these options can be gone through, by a count or by a cursor."""
    return any(
        each.sends == "skip" or (each.sends == "after" and each.kind is Kind.TEXT)
        for each in options
    )


def _decorators(what: Mirror, arguments: Mapping[str, str]) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = []
    for place in what.places:
        found.append(click.argument(_variable(place), metavar=arguments[place]))
    found += [_click_option(each) for each in what.options]
    if what.reads is not Input.NOTHING:
        found += _INPUTS[what.reads]
    if what.has_all:
        found.append(
            click.option("--all", "every", is_flag=True, help="All there are, page by page.")
        )
    if what.asks:
        found.append(YES)
    found.append(remote_options)
    found.append(json_errors_option if what.is_text else json_option)
    return found


YES: Final = click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")
_FILE: Final = click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    required=True,
    help="YAML, or JSON where it is named so; - is standard input.",
)
_INPUTS: Final[Mapping[Input, list[Callable[[Any], Any]]]] = {
    Input.DEFINITION: [_FILE],
    Input.VALUES: [
        click.option(
            "--set",
            "texts",
            multiple=True,
            metavar="COLUMN=TEXT",
            help="A value as text; the server makes the column's type of it. Repeatable.",
        ),
        click.option(
            "--set-json",
            "values",
            multiple=True,
            metavar="COLUMN=JSON",
            help="A value as JSON: null, true, 12.5, an object. Repeatable.",
        ),
        click.option(
            "--file",
            "file",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            metavar="FILE",
            help="A JSON object of values; - is standard input.",
        ),
    ],
}


def value_options(command: Any) -> Any:
    """Add the options that ``values_given`` reads, to commands that are written by hand."""
    for decorate in reversed(_INPUTS[Input.VALUES]):
        command = decorate(command)
    return command


def _click_option(each: Option) -> Callable[[Any], Any]:
    if each.positional:
        return click.argument(
            each.variable, nargs=each.positional, metavar=each.metavar, required=each.required
        )
    more: dict[str, Any] = {"help": each.help, "required": each.required}
    match each.kind:
        case Kind.FLAG:
            more |= {"is_flag": True, "default": None}
        case Kind.NUMBER:
            more["type"] = click.IntRange(min=each.minimum, max=each.maximum)
        case Kind.DECIMAL:
            more["type"] = float
        case Kind.LIST:
            more["multiple"] = True
            if each.choices:
                more["type"] = click.Choice(list(each.choices))
        case _ if each.choices:
            more["type"] = click.Choice(list(each.choices))
        case _:
            more["type"] = str
    if each.metavar:
        more["metavar"] = each.metavar
    elif each.kind in (Kind.TEXT, Kind.LIST, Kind.JSON) and not each.choices:
        more["metavar"] = "JSON" if each.kind is Kind.JSON else "TEXT"
    return click.option(each.flag, each.variable, **more)


# --- running --------------------------------------------------------------------------------------


async def _run(what: Mirror, remote: Remote, given: dict[str, Any]) -> None:
    names = {place: given[_variable(place)] for place in what.places}
    if what.asks:
        confirm(what.asks.format(**names), yes=given["yes"])
    path = _PLACE.sub(lambda found: _segment(names[found[1]]), what.path)
    query = _sent(what, given, Place.QUERY)
    headers = _sent(what, given, Place.HEADER)
    async with remote.client() as client:
        if what.has_all and given.get("every"):
            await _show_all(what, client, path, query, given)
            return
        kept = what.present(await client.request("GET", path)) if what.present else {}
        body, told = _body(what, given, names, kept)
        asked = client.opened(
            what.method,
            path,
            query=query,
            body=body,
            headers={**told, **headers},
            is_long=what.is_long,
        )
        async with asked as answer:
            if what.is_text:
                sys.stdout.buffer.write(await answer.read())
                sys.stdout.buffer.flush()
                return
            document = await answer.json()
    _show(what, document, names, as_json=given["as_json"])


def _segment(name: str) -> str:
    if name in ("", ".", ".."):
        raise click.UsageError(f"{name!r} is no name")
    return quote(name, safe="")


def _sent(what: Mirror, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in what.options:
        value = given[each.variable]
        if each.place is not place or value is None or value == ():
            continue
        if each.kind is Kind.JSON:
            value = json_of(each.flag, value)
        elif each.positional and each.kind is Kind.TEXT:
            value = " ".join(value)
        elif each.kind is Kind.LIST and place is Place.BODY:
            value = [*value]
        found[each.sends] = each.form.format(value) if place is Place.HEADER else value
    return found


def _body(
    what: Mirror, given: Mapping[str, Any], names: Mapping[str, str], kept: Mapping[str, Any]
) -> tuple[bytes | None, dict[str, str]]:
    if what.reads is Input.DEFINITION:
        return read_definition(given["file"])
    members = {**kept, **_sent(what, given, Place.BODY)}
    if what.reads is Input.VALUES:
        members |= _values(what, given)
    if what.fixed is not None:
        members |= what.fixed(names)
    has_body = what.fixed or any(each.place is Place.BODY for each in what.options)
    if not has_body and what.reads is Input.NOTHING:
        return None, {}
    return json.dumps(members, ensure_ascii=False).encode(), {"Content-Type": "application/json"}


def _values(what: Mirror, given: Mapping[str, Any]) -> dict[str, Any]:
    needed = not what.values_in
    found = values_given(given["texts"], given["values"], given["file"], needed=needed)
    if needed:
        return found
    return {what.values_in: found} if found else {}


# --- showing --------------------------------------------------------------------------------------


def _show(what: Mirror, document: Any, names: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        echo_json({} if document is None else document)
        return
    if document is None:
        say(what.done.format(**names) or "done")
        return
    if what.items:
        items = [what.view(each) for each in document[what.items]] if what.view else None
        show_page(document, what.items, what.columns, shown=items)
    else:
        shown = {name: each for name, each in document.items() if name not in what.parts}
        show_object(shown, what.columns)
        for name, columns in what.parts.items():
            if document.get(name):
                click.echo(f"\n{name}:")
                show_list(document[name], columns)
    _tell_commit(document)


def show_page(
    document: Mapping[str, Any],
    items: str,
    columns: Sequence[str],
    *,
    shown: Sequence[Mapping[str, Any]] | None = None,
    as_json: bool = False,
) -> None:
    """Print one page of a list, and say where it goes on; *shown* are its items made readable."""
    if as_json:
        echo_json(document)
        return
    show_list(document[items] if shown is None else shown, columns)
    _tell_more(document, len(document[items]))


async def _show_all(
    what: Mirror, client: Any, path: str, query: dict[str, Any], given: Mapping[str, Any]
) -> None:
    """Show all pages; as JSON each item on a line of its own, as soon as it is there."""
    most = next((each.maximum for each in what.options if each.sends == "take"), None) or 500
    size = query.pop("take", min(most, 500))
    found: list[Any] = []
    async for item in client.pages(path, items=what.items, take=size, **query):
        if given["as_json"]:
            click.echo(json.dumps(item, ensure_ascii=False))
        else:
            found.append(what.view(item) if what.view else item)
    if not given["as_json"]:
        show_list(found, what.columns)


def _tell_more(document: Mapping[str, Any], shown: int) -> None:
    total = document.get("totalCount", document.get("total"))
    if document.get("hint"):
        say(f"{click.style('hint:', fg='cyan')} {document['hint']}")
    if document.get("hasMore") or (total is not None and total > shown):
        of = f" of {total:,}" if total is not None else ""
        after = document.get("nextAfter") or document.get("nextAfterId")
        more = f"; the next with --after {after}" if document.get("nextAfter") else ""
        more = more or (f"; the next with --after-id {after}" if after else "")
        say(f"{shown:,}{of}, and there are more{more}")
    elif not shown:
        say("nothing found")


def _tell_commit(document: Any) -> None:
    if not isinstance(document, Mapping):
        return
    if document.get("branch"):
        say(f"pushed branch {document['branch']}; merge it to put this into effect")
    elif document.get("commit") and "branch" in document:
        say(f"commit {document['commit']}")
