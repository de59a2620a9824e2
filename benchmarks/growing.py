"""What a cost does while something grows: points taken one by one, and whether they stay below a law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from figures import Curve, Figure, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How much a cost may grow: by *slack* times the growth of x to *power*, 0 for not with it at all.

    An index gets deeper and caches hold less of it, so what must not grow may double all the same.
    """

    power: float = 0.0
    slack: float = 2.0

    def limit(self, low: float, high: float) -> float:
        return float(self.slack * (high / low) ** self.power)


FLAT = Law()
LINEAR = Law(power=1.0, slack=1.3)


@dataclass(slots=True, kw_only=True)
class Growing:
    """One plot under way. *laws* are those of its lines; a line without any is only shown."""

    title: str
    x: str
    laws: dict[str, Law | None]
    y: str = "ms"
    note: str = ""
    _points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, x: float, y: float) -> None:
        assert line in self.laws, line
        self._points.setdefault(line, []).append((x, y))
        print(f"  {self.title}: {line}, {x:,.0f} {self.x}: {y:,.3f} {self.y}", flush=True)

    def curve(self) -> Curve:
        series = tuple(
            Series(name=name, points=tuple(points)) for name, points in self._points.items()
        )
        return Curve(title=self.title, x=self.x, y=self.y, series=series, note=self.note)

    def figures(self) -> Iterator[Figure]:
        """Tell for each line how much more its last point is than its first."""
        for name, points in self._points.items():
            (low, first), (high, last) = points[0], points[-1]
            law = self.laws[name]
            yield Figure(
                case=f"{self.title}: {name}, {_words(high)} / {_words(low)} {self.x}",
                value=last / first,
                unit="ratio",
                limit=law.limit(low, high) if law else None,
                note=f"{first:,.2f} {self.y} to {last:,.2f} {self.y}; {_all(points)}",
            )


def _all(points: Sequence[tuple[float, float]]) -> str:
    return "between them " + ", ".join(f"{y:,.2f}" for _, y in points[1:-1]) if points[2:] else ""


def _words(number: float) -> str:
    return f"{number:,.0f}"
