"""When the operator may apply: the windows of ``mdm.yaml`` at a moment. Pure, the clock is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from mdm_gitops.model.project import SyncWindow, Weekday, WindowKind

_DAYS: Final = tuple(Weekday)  # in the order of datetime.weekday()
_LOOK_AHEAD: Final = timedelta(days=8)
_STEP: Final = timedelta(minutes=1)


def is_open(windows: Sequence[SyncWindow], now: datetime) -> bool:
    """Whether something may be applied at *now*, which knows its time zone."""
    allowing = [each for each in windows if each.kind is WindowKind.ALLOW]
    denying = [each for each in windows if each.kind is WindowKind.DENY]
    if any(_holds(each, now) for each in denying):
        return False
    return not allowing or any(_holds(each, now) for each in allowing)


def next_opening(windows: Sequence[SyncWindow], now: datetime) -> datetime | None:
    """Return the next full minute at which something may be applied; None if there is none soon."""
    moment = now.astimezone(UTC).replace(second=0, microsecond=0)
    for _ in range(_LOOK_AHEAD // _STEP):
        moment += _STEP
        if is_open(windows, moment):
            return moment
    return None


def _holds(window: SyncWindow, now: datetime) -> bool:
    local = now.astimezone(ZoneInfo(window.timezone))
    start, end = time.fromisoformat(window.start), time.fromisoformat(window.end)
    clock = local.time()
    if start < end:
        return start <= clock < end and _begins(window, local)
    if clock >= start:
        return _begins(window, local)
    return clock < end and _begins(window, local - timedelta(days=1))


def _begins(window: SyncWindow, local: datetime) -> bool:
    return not window.days or _DAYS[local.weekday()] in window.days
