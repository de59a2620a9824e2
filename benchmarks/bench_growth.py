"""How each main cost grows: with rows and changes, entities, assignments, values of filters, webhooks.

At full size up to 10,000,000 rows and 5,000 entities. Each line has a law: what must not grow with the size
may at most double from the smallest to the largest, what must look at everything may grow in step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import growth_access
import growth_entities
import growth_rows
from figures import Figure, Told
from growing import Growing
from warehouse import Server

ROWS: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
ENTITIES: Final = (10, 100, 1_000, 5_000)
ASSIGNMENTS: Final = (10, 100, 1_000, 10_000)
WEBHOOKS: Final = (1, 10, 100, 1_000)
_LEFT_OUT: Final = 1  # of the largest sizes, in a short run


async def measure(server: Server, folder: Path, *, is_full: bool) -> list[Told]:
    rows = ROWS if is_full else ROWS[:-_LEFT_OUT]
    entities = ENTITIES if is_full else ENTITIES[:-_LEFT_OUT]
    found: list[Growing] = [growth_access.assignments(ASSIGNMENTS)]
    found.append(await growth_access.filter_values(server, ASSIGNMENTS))
    found += await growth_access.webhooks(server, WEBHOOKS)
    found += await growth_entities.measure(server, folder, entities)
    found += await growth_rows.measure(server, rows, rows[:-1])
    figures = [figure for each in found for figure in each.figures()]
    return [_deep(found, rows[-1]), *figures, *(each.curve() for each in found)]


def _deep(found: list[Growing], rows: int) -> Figure:
    """The target for keyset pages, at a million rows or the most that there are."""
    [reading] = (each.curve() for each in found if each.title == growth_rows.READING)
    at = {series.name: dict(series.points) for series in reading.series}
    size = min(rows, 1_000_000)
    deep, first = at[growth_rows.DEEP][size], at[growth_rows.FIRST][size]
    return Figure(
        case=f"keyset page at row {size * 9 // 10:,} of {size:,} / the first page",
        value=deep / first,
        unit="ratio",
        limit=1.2,
        note=f"{deep:.2f} ms to {first:.2f} ms",
    )
