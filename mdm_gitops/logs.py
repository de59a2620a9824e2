"""Logs of all programs: what a line is, which request or run it belongs to, and what never gets into one.

For machines a line is one JSON object, for people at a terminal a sentence. A line that belongs to a request, a
reconcile run or a delivery carries its W3C trace id, wherever in the code it was written.

Values stay out. No header, query, body or row is logged. Of an exception that is not ours the type and the place
are told, not its words, which may be a row's or a server's. What looks like a credential, or is a secret of our
settings, is struck out of whatever is left, so that one mistake does not make a leak.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TextIO
from urllib.parse import quote, unquote, urlsplit

import orjson
from pydantic import BaseModel, SecretStr

from mdm_gitops.errors import MdmError

HIDDEN: Final = "***"
# Their lines are made of our own words and numbers alone, one for each request.
PLAIN: Final = frozenset({"mdm_api.access"})
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_WRITTEN_AT_ONCE: Final = 4_096  # PIPE_BUF (pipe(7)): of ASCII, as these lines are
_MIN_SECRET: Final = 6  # a shorter one would strike out half of the words
_CREDENTIALS: Final = re.compile(
    r"mdm_[0-9A-Za-z]{38}|whsec_[0-9A-Za-z+/=]{8,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}|(?<=://)[^\s/@\"']+(?=@)"
)
_PASSWORD: Final = re.compile(r"\bpassword\s*=\s*'?((?:\\.|[^'\s])+)")
_trace: ContextVar[str | None] = ContextVar("mdm_trace", default=None)
_secrets: set[str] = set()
_RANDOM: Final = random.Random()  # seeded by the system; workers are spawned, so none shares a seed


def new_trace_id() -> str:
    """Return 128 random bits in hexadecimal (W3C Trace Context, 3.2.2.3); they keep nothing secret."""
    return f"{_RANDOM.getrandbits(128) or 1:032x}"


def current_trace_id() -> str | None:
    return _trace.get()


def trace_as(trace_id: str) -> None:
    """Give the lines of the current task this trace id from now on."""
    _trace.set(trace_id)


@contextmanager
def tracing(trace_id: str | None = None) -> Iterator[str]:
    """Give all lines that are written inside, by whatever task begins there, one trace id."""
    given = trace_id or new_trace_id()
    token = _trace.set(given)
    try:
        yield given
    finally:
        _trace.reset(token)


def keep_out(settings: BaseModel) -> None:
    """Strike the secrets of *settings* out of all lines from now on, however they are written."""
    for value in vars(settings).values():
        if isinstance(value, BaseModel):
            keep_out(value)
        elif isinstance(value, SecretStr):
            _secrets.update(each for each in _spellings(value) if len(each) >= _MIN_SECRET)


def _spellings(secret: SecretStr) -> Iterator[str]:
    text = secret.get_secret_value()
    if "://" in text:  # of a URL the password is the secret
        try:
            text = urlsplit(text).password or ""
        except ValueError:
            return
    elif found := _PASSWORD.search(text):  # the other form that PostgreSQL reads
        text = found[1]
    for each in (text, unquote(text), quote(text, safe="")):
        yield each
        yield json.dumps(each, ensure_ascii=False)[1:-1]


def without_secrets(text: str) -> str:
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _CREDENTIALS.sub(HIDDEN, text)


def where(error: BaseException) -> str:
    """Return the traceback of *error* with the words of our own errors only."""
    return "\n".join(_places(error, seen=set()))


def _places(error: BaseException, *, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _places(cause, seen=seen)
        yield "then:"
    yield from "".join(traceback.format_tb(error.__traceback__)).splitlines()
    yield f"{type(error).__module__}.{type(error).__qualname__}{_words(error)}"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield "within it:"
            yield from _places(inner, seen=seen)


def _words(error: BaseException) -> str:
    if isinstance(error, MdmError):
        return f": {error}"
    state = getattr(error, "sqlstate", None)  # of PostgreSQL
    return f" (SQLSTATE {state})" if isinstance(state, str) else ""


def _as_json(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except orjson.JSONEncodeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(line, default=str)


class JsonFormatter(logging.Formatter):
    """What a log call gives as ``extra`` becomes members of the object."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if "traceId" not in line and (trace_id := _trace.get()):
            line["traceId"] = trace_id
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = where(record.exc_info[1])
        text = _as_json(line)
        return text if record.name in PLAIN else without_secrets(text)


def tell(logger: logging.Logger, message: str, facts: dict[str, Any]) -> None:
    """Log *message* with *facts* as ``logger.info(message, extra=facts)`` does, for lines that every request has.

    Where all lines go out as JSON it takes a shorter way: no record is made, and what is told within one turn
    of the event loop is made and written together. The message and the facts are our own words and numbers
    alone, and *facts* is not changed afterwards.
    """
    if not _together.add(logger.name, message, facts):
        logger.info(message, extra=facts)


def _sink_of_json() -> TextIO | None:
    handlers = logging.getLogger().handlers
    if len(handlers) != 1 or not isinstance(handlers[0].formatter, JsonFormatter):
        return None
    stream: TextIO | None = getattr(handlers[0], "stream", None)
    return stream


@lru_cache(maxsize=2)
def _clock(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03}Z"


class _Together:
    """Lines of one turn of the event loop."""

    def __init__(self) -> None:
        self._told: list[tuple[float, str, str, dict[str, Any]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # that writes them

    def add(self, logger: str, message: str, facts: dict[str, Any]) -> bool:
        """Return whether the line will be written."""
        if not self._told or self._loop is None or not self._loop.is_running():
            sink = _sink_of_json()
            if sink is None:
                return False
            self._loop = asyncio.get_running_loop()  # which asks the kernel, so once a turn
            self._loop.call_soon(self._write, sink)
        self._told.append((time.time(), logger, message, facts))
        return True

    def _write(self, sink: TextIO) -> None:
        """Write whole lines, few enough at a time that another process cannot write between them."""
        told, self._told = self._told, []
        piece = ""
        for moment, logger, message, facts in told:
            line = {"time": _clock(int(moment * 1000)), "level": "info", "logger": logger}
            text = _as_json({**line, "message": message, **facts})
            if len(piece) + len(text) >= _WRITTEN_AT_ONCE:
                _write(sink, piece)
                piece = ""
            piece += text + "\n"
        _write(sink, piece)


def _write(sink: TextIO, text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads any more: no reason to fail a request
        sink.write(text)
        sink.flush()


_together: Final = _Together()


class TextFormatter(logging.Formatter):
    """The same for people: ``warning: what happened (name=value)``."""

    def format(self, record: logging.LogRecord) -> str:
        told = ", ".join(f"{name}={value}" for name, value in _extra(record).items())
        text = f"{record.levelname.lower()}: {record.getMessage()}{f' ({told})' if told else ''}"
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + where(record.exc_info[1])
        return without_secrets(text)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return what ``logging.config.dictConfig`` is given: all lines to stderr, also those of libraries."""
    # No line tells these; to find them out is most of what a line costs (logging, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    form = "JsonFormatter" if as_json else "TextFormatter"
    levels = {
        "mdm_api": "INFO",
        "mdm_gitops": "INFO",
        "mdm_operator": "INFO",
        "uvicorn": "WARNING",
        "psycopg.pool": "ERROR",
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"form": {"()": f"mdm_gitops.logs.{form}"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "form",
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {name: {"level": level} for name, level in levels.items()},
    }
