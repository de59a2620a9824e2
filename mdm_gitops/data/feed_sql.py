"""How changes are found: SQL over the numbered change sets, shared by the change feed and the audit.

Ids are gapless, so a range of ids is found by index and its size is known. ``feed_block`` says what
each 1,024 ids hold: readers of a part of the feed go from block to block that holds something for
them, and totals are sums of blocks plus a count in the few that are only partly meant. The cost of
a page therefore does not grow with the feed.
"""

from __future__ import annotations

from typing import Final

from mdm_gitops.warehouse.names import Schemas

BLOCK_BITS: Final = 10
BLOCK_SIZE: Final = 1 << BLOCK_BITS

# New sets get their ids in portions, each in a transaction of its own.
_PORTION_SETS: Final = 10_000
_PORTION_EVENTS: Final = 100_000


def config_sql(schemas: Schemas) -> str:
    return f'"{schemas.config}"'


def new_sets(config: str) -> str:
    """Return what stands after FROM: the change sets without ids, found by a look into an index."""
    return f"""{config}.change_set
     WHERE first_id IS NULL AND seq > (SELECT low_seq FROM {config}.feed_position)"""


def number_sql(config: str) -> str:
    """Return the query that numbers a portion of what is new, and says whether some is left.

    It takes no lock where nothing is new.
    """
    return f"""SELECT CASE WHEN EXISTS (SELECT FROM {new_sets(config)})
  THEN {config}.number_changes({_PORTION_SETS}, {_PORTION_EVENTS}) ELSE false END"""


def block_ranges(blocks: str, *, start: str, last: str) -> str:
    """Return rows (n, lo, hi): the ids after *start* up to *last* in *blocks*, an ordered array."""
    return f"""(SELECT b.n, greatest(b.block << {BLOCK_BITS}, {start} + 1) AS lo,
         least((b.block << {BLOCK_BITS}) + {BLOCK_SIZE - 1}, {last}) AS hi
    FROM unnest({blocks}) WITH ORDINALITY AS b(block, n))"""


def events_in(
    ranges: str,
    *,
    config: str,
    match: str,
    columns: str = "",
    set_columns: str = "",
    sets: str = "",
    limit: int | None = None,
) -> str:
    """Return what stands after FROM: the events ``x`` of the ranges ``r`` of ids.

    *columns* are of the set ``c`` and the event ``e``, beside ``id``; *set_columns* are worked out
    once per set ``s``. *sets* is a condition on the set, *match* on set and event. A range is at most
    a block wide, and each has its first *limit* events at most.
    """
    most = f"\n     ORDER BY c.first_id + e.ordinal LIMIT {limit}" if limit is not None else ""
    only = f" AND {sets}" if sets else ""
    return f"""{ranges} r CROSS JOIN LATERAL (
    SELECT c.first_id + e.ordinal AS id{columns}
      FROM (SELECT s.key, s.first_id, s.occurred_at, s.actor{set_columns}
              FROM {config}.change_set s
             WHERE s.first_id >= coalesce((SELECT max(p.first_id) FROM {config}.change_set p
                                            WHERE p.first_id <= r.lo), r.lo)
               AND s.first_id <= r.hi{only}
             ORDER BY s.first_id LIMIT {BLOCK_SIZE + 1}) c
     CROSS JOIN LATERAL ({events_of_set(config, "r.lo - c.first_id", "r.hi - c.first_id")}) e
     WHERE {match}{most}) x"""


def events_of_set(config: str, first: str, last: str) -> str:
    """Return the query of the events of the set ``c`` from one ordinal to another.

    By the index for each set, whatever the statistics say: where an import has written most of all
    events, PostgreSQL would read them all and join them with the few sets.
    """
    return f"""SELECT d.* FROM {config}.event d
       WHERE d.change_set = c.key AND d.ordinal >= {first} AND d.ordinal <= {last} OFFSET 0"""


def moment_sql(value: str) -> str:
    """Return a timestamp as ISO 8601 in UTC, as rows show theirs."""
    return f"replace(({value} AT TIME ZONE 'UTC')::text, ' ', 'T') || 'Z'"


def json_or_null(value: str) -> str:
    return f"coalesce(to_json({value})::text, 'null')"
