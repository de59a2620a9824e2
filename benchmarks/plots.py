"""Plots as SVG, written by hand: a sheet of panels, two in a row, with logarithmic axes.

Colours are told by the style of the drawing, for light and dark surroundings, and its ground comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from figures import Curve, Series

_WIDTH, _HEIGHT, _COLUMNS = 430, 300, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 62, 44
_FEW: Final = 7  # points that are ticks themselves
_LEAST_SPAN: Final = 20  # of the axis that goes up
_STYLE: Final = """\
<style>
  .ground { fill: #ffffff } .text { fill: #24292f } .faint { fill: #59636e }
  .grid { stroke: #d8dee4 } .axis { stroke: #8c959f }
  .s0 { color: #0969da } .s1 { color: #bc4c00 } .s2 { color: #1a7f37 } .s3 { color: #8250df }
  .s4 { color: #6e7781 } .s5 { color: #bf3989 }
  text { font: 11px system-ui, sans-serif } .title { font-weight: 600; font-size: 12.5px }
  path, line { fill: none } path { stroke: currentColor; stroke-width: 1.8 } circle { fill: currentColor }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .grid { stroke: #262c36 } .axis { stroke: #656c76 }
    .s0 { color: #58a6ff } .s1 { color: #f0883e } .s2 { color: #3fb950 } .s3 { color: #bc8cff }
    .s4 { color: #b1bac4 } .s5 { color: #ff7bb2 }
  }
</style>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """From what is drawn to where it is."""

    low: float
    high: float
    start: float  # of the place of low
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def sheet(curves: Sequence[Curve]) -> str:
    """Return one drawing of all *curves*."""
    rows = -(-len(curves) // _COLUMNS)
    width, height = _WIDTH * min(_COLUMNS, len(curves)), _HEIGHT * rows
    panels = [
        f'<g transform="translate({_WIDTH * (n % _COLUMNS)} {_HEIGHT * (n // _COLUMNS)})">\n'
        + "".join(_panel(curve))
        + "</g>\n"
        for n, curve in enumerate(curves)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">\n{_STYLE}'
        f'<rect class="ground" width="{width}" height="{height}"/>\n{"".join(panels)}</svg>\n'
    )


def _panel(curve: Curve) -> Iterator[str]:
    xs = [x for series in curve.series for x, _ in series.points]
    ys = [y for series in curve.series for _, y in series.points]
    across = _axis(xs, start=_LEFT, end=_WIDTH - _RIGHT, is_tight=True)
    up = _axis(ys, start=_HEIGHT - _BOTTOM, end=_TOP)
    yield _text(12, 20, curve.title, "text title")
    yield from _legend(curve.series)
    yield from _grid(curve, across, up, sorted(set(xs)))
    for number, series in enumerate(curve.series):
        places = [(across.at(x), up.at(y)) for x, y in sorted(series.points)]
        path = "M" + " L".join(f"{x} {y}" for x, y in places)
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="2.6"/>' for x, y in places)
        yield f'<g class="s{number % 6}"><path d="{path}"/>{dots}</g>\n'


def _axis(values: Sequence[float], *, start: float, end: float, is_tight: bool = False) -> _Axis:
    """Return an axis that holds all *values* and, unless it is tight, ends at round numbers beside them."""
    low, high = min(values), max(values)
    if is_tight and low < high:
        return _Axis(low=low, high=high, start=start + 8, end=end - 8)
    steps = _round(low, high)
    first = max(n for n, each in enumerate(steps) if each * 1.15 < low)
    last = min(n for n, each in enumerate(steps) if each > high * 1.15)
    while steps[last] / steps[first] < _LEAST_SPAN:  # what is nearly flat looks flat
        first, last = first - 1, last + 1
    return _Axis(
        low=steps[first],
        high=steps[last],
        start=start,
        end=end,
    )


def _round(low: float, high: float) -> list[float]:
    """Return the numbers 1, 2 and 5 of each power of ten around *low* to *high*."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = (
        float(f"{digit}e{power}") for power in range(first - 2, last + 3) for digit in (1, 2, 5)
    )
    return list(found)


def _ticks(axis: _Axis) -> list[float]:
    within = [each for each in _round(axis.low, axis.high) if axis.low <= each <= axis.high]
    if len(within) <= _FEW:
        return within
    whole = [each for each in within if f"{each:e}".startswith("1")]
    return whole if len(whole) <= _FEW else whole[::2]


def _grid(curve: Curve, across: _Axis, up: _Axis, xs: Sequence[float]) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in _ticks(up):
        y = up.at(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>\n'
        yield _text(_LEFT - 6, y + 4, _short(tick), "faint", anchor="end")
    for tick in xs if len(xs) <= _FEW else _ticks(across):
        x = across.at(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>\n'
        yield _text(x, bottom + 15, _short(tick), "faint", anchor="middle")
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>\n'
    yield _text((_LEFT + right) / 2, bottom + 32, curve.x, "faint", anchor="middle")
    middle = (_TOP + bottom) / 2
    yield (
        f'<text class="faint" transform="translate(14 {middle}) rotate(-90)"'
        f' text-anchor="middle">{escape(curve.y)}</text>\n'
    )


def _legend(series: Sequence[Series]) -> Iterator[str]:
    """In one line, or two: names are as wide as their letters, about."""
    x, y = 12.0, 38.0
    for number, each in enumerate(series):
        needed = 24 + 6.0 * len(each.name)
        if x > 12 and x + needed > _WIDTH:
            x, y = 12.0, y + 15
        yield f'<g class="s{number % 6}"><circle cx="{x + 4}" cy="{y - 4}" r="4"/></g>\n'
        yield _text(x + 12, y, each.name, "text")
        x += needed


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    place = f'x="{x}" y="{y}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text class="{kind}" {place}>{escape(text)}</text>\n'


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
