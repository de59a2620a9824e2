"""Windows of time: a table of moments, and the law that the next opening is the first one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.model.project import SyncWindow
from mdm_gitops.plan.windows import is_open, next_opening


def window(kind: str, start: str, end: str, *days: str, timezone: str = "UTC") -> SyncWindow:
    return SyncWindow.model_validate(
        {"kind": kind, "start": start, "end": end, "days": list(days), "timezone": timezone}
    )


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


NIGHT = window("allow", "22:00", "06:00")
FRIDAY_NIGHT = window("allow", "22:00", "06:00", "fri")
NOT_FRIDAYS = window("deny", "00:00", "00:00", "fri")
ZURICH = window("allow", "08:00", "09:00", timezone="Europe/Zurich")


@pytest.mark.parametrize(
    ("windows", "moment", "expected"),
    [
        ([], "2026-11-20T12:00", True),
        ([NIGHT], "2026-11-20T21:59", False),
        ([NIGHT], "2026-11-20T22:00", True),
        ([NIGHT], "2026-11-21T05:59", True),
        ([NIGHT], "2026-11-21T06:00", False),
        ([FRIDAY_NIGHT], "2026-11-20T23:00", True),
        ([FRIDAY_NIGHT], "2026-11-21T05:00", True),  # Saturday, of the window that began on Friday
        ([FRIDAY_NIGHT], "2026-11-21T23:00", False),
        ([NOT_FRIDAYS], "2026-11-19T23:59", True),
        ([NOT_FRIDAYS], "2026-11-20T00:00", False),
        ([NOT_FRIDAYS], "2026-11-20T23:59", False),
        ([NOT_FRIDAYS], "2026-11-21T00:00", True),
        ([NIGHT, NOT_FRIDAYS], "2026-11-20T23:00", False),  # to deny is stronger
        ([ZURICH], "2026-07-01T06:30", True),  # in summer two hours ahead
        ([ZURICH], "2026-12-01T06:30", False),
        ([ZURICH], "2026-12-01T07:30", True),
    ],
)
def test_moments(windows: list[SyncWindow], moment: str, expected: bool) -> None:
    assert is_open(windows, at(moment)) is expected


CLOCK = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
DAYS = st.lists(st.sampled_from(["mon", "tue", "sat"]), unique=True)
WINDOWS = st.lists(
    st.builds(
        lambda kind, start, end, days: window(kind, start, end, *days),
        st.sampled_from(["allow", "deny"]),
        CLOCK,
        CLOCK,
        DAYS,
    ),
    max_size=3,
)


@given(WINDOWS, st.integers(0, 7 * 24 * 60))
def test_the_next_opening_is_the_first(windows: list[SyncWindow], minutes: int) -> None:
    now = at("2026-11-16T00:00") + timedelta(minutes=minutes)
    found = next_opening(windows, now)
    if found is None:
        assert not any(is_open(windows, now + timedelta(hours=n)) for n in range(1, 24 * 7))
        return
    assert is_open(windows, found)
    between = (found - now) // timedelta(minutes=1)
    assert not any(is_open(windows, now + timedelta(minutes=n)) for n in range(1, between))
