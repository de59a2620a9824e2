"""How a command that runs until it is told to stop is told so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*, which uses ``stop_on_signals``; being cancelled by a second signal is no bug."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise click.exceptions.Abort from KeyboardInterrupt()


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set *stop* at the first Ctrl-C or SIGTERM; cancel the current task at the second."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    before = {sign: signal.getsignal(sign) for sign in _SIGNALS}

    def heard() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for sign in _SIGNALS:
        loop.add_signal_handler(sign, heard)
    try:
        yield
    finally:
        for sign, handler in before.items():
            loop.remove_signal_handler(sign)
            signal.signal(sign, handler)
