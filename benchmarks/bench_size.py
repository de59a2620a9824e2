"""How large an installation is: all packages that ours needs, without those of development.

Sizes of files as they are installed here, added up over what the metadata of each package says that it
needs; with ``local`` it also brings the PostgreSQL server of ``make up``.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from figures import Figure, Told
from packaging.requirements import Requirement

PACKAGE: Final = "mdm-gitops"
_ROOT: Final = Path(__file__).parents[1]
_OURS: Final = (
    "mdm_gitops",
    "api/mdm_api",
    "operator/mdm_operator",
    "schemas",
    "examples/reference-data",
)


def measure() -> list[Told]:
    ours = sum(_file_mb(file) for name in _OURS for file in (_ROOT / name).rglob("*.*"))
    figures: list[Told] = []
    for case, extras in (
        ("the API, the operator, the commands", []),
        ("the same with PostgreSQL", ["local"]),
    ):
        sizes = {name: _size_mb(name) for name in _needed(PACKAGE, extras)}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:4]
        told = ", ".join(f"{name} {sizes[name]:.0f}" for name in largest)
        figures.append(
            Figure(
                case=f"installed size, {case}",
                value=ours + sum(sizes.values()),
                unit="MB",
                limit=200.0,
                note=f"ours {ours:.0f} and {len(sizes)} packages; {told}",
            )
        )
    return figures


def _needed(package: str, extras: list[str]) -> set[str]:
    """Return the names of all packages that *package* needs, not itself."""
    found: set[str] = set()
    open_ = [(package, tuple(extras))]
    seen = set(open_)
    while open_:
        name, wanted = open_.pop()
        for text in importlib.metadata.requires(name) or []:
            each = Requirement(text)
            if each.marker and not any(each.marker.evaluate({"extra": e}) for e in ("", *wanted)):
                continue
            found.add(each.name.lower())
            step = (each.name.lower(), tuple(sorted(each.extras)))
            if step not in seen:
                seen.add(step)
                open_.append(step)
    return found


def _size_mb(package: str) -> float:
    files = importlib.metadata.files(package) or []
    return sum(_file_mb(Path(str(file.locate()))) for file in files)


def _file_mb(file: Path) -> float:
    return file.stat().st_size / 1e6 if file.is_file() else 0.0
