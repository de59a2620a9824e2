"""What is wanted: every target, in order, with the figures that tell whether it is reached.

A figure belongs to the first target whose pattern its case matches (``*`` stands for anything), and
otherwise to the group of its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    wanted: str
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    title: str
    parts: tuple[str, ...]
    targets: tuple[Target, ...] = ()


def _target(wanted: str, *cases: str) -> Target:
    return Target(wanted=wanted, cases=cases)


GROUPS: Final = (
    Group(
        title="Single requests",
        parts=("requests", "peer"),
        targets=(
            _target(
                "read by id, 64 clients, 1 worker: >= 0.3 x pgbench; >= 24 x the peer",
                "read by id, 64 clients, 1 worker / pgbench",
                "read by id, 64 clients* / Directus*",
            ),
            _target(
                "list of 100 rows, 64 clients: >= 0.5 x pgbench; >= 6.5 x the peer",
                "list 100, 64 clients, 1 worker / pgbench",
                "list 100, another page each, 64 clients, 1 worker / pgbench",
                "list 100, 64 clients* / Directus*",
            ),
            _target(
                "list of 100, filter on two columns and sort: >= 0.9 x pgbench; >= 3.5 x the peer",
                "list 100, filter on two columns and sort, 64 clients, 1 worker / pgbench",
                "list 100, filter on two columns and sort, other values each, 64 clients, 1 worker"
                " / pgbench",
                "list 100, filter on two columns and sort, 64 clients* / Directus*",
            ),
            _target(
                "list of 100 under a row filter, not an administrator: >= 0.6 x pgbench; >= 5.5 x the"
                " peer; within 1.15 of the same list without it",
                "list 100 under a row filter, 64 clients, 1 worker / pgbench",
                "list 100 under a row filter, 64 clients* / Directus*",
                "the same list, filtered by the caller / by the row filter",
            ),
            _target(
                "create one row, audited, validated: >= 0.7 x pgbench's plain insert; >= 30 x the peer",
                "create, 64 clients, 1 worker / pgbench",
                "create, 64 clients* / Directus*",
            ),
            _target(
                "update one row, history and audit: >= 0.6 x pgbench's plain update; >= 27 x the peer",
                "update, 64 clients, 1 worker / pgbench",
                "update, 64 clients* / Directus*",
            ),
            _target(
                "latency of one client above pgbench's median: read <= 1.0 ms, create <= 2.0 ms",
                "read by id, 1 client, median above that of pgbench",
                "create, 1 client, median above that of pgbench",
            ),
        ),
    ),
    Group(
        title="Many rows in and out",
        parts=("import", "bulk", "export"),
        targets=(
            _target(
                "bulk-csv of 1,000,000 rows x 12, all rules, history, events: <= 3.0 x COPY",
                "bulk-csv, * rows / COPY",
            ),
            _target(
                "the same with 1 % bad rows: <= 1.15 x the clean import",
                "the same, 1 % of the rows bad / the clean one",
            ),
            _target(
                "upsert of 1,000,000 rows, 50 % unchanged: <= 4.0 x COPY",
                "upsert, 50 % of the rows unchanged / COPY",
            ),
            _target(
                "export of 1,000,000 rows: csv <= 1.5 x COPY TO, json <= 1.5 x COPY of JSON text",
                "export csv, * / COPY by psql",
                "export json, * / COPY by psql",
            ),
            _target(
                "xlsx export of 100,000 x 12: <= 8 s and <= 60 MB above idle",
                "export xlsx, *",
                "memory of the API above idle, export xlsx",
            ),
        ),
    ),
    Group(
        title="Changes: feed and webhooks",
        parts=("feed", "webhooks"),
        targets=(
            _target(
                "change feed, one reader, pages of 500: >= 100,000 entries/s; seen <= 50 ms after the"
                " commit (p99) under load",
                "feed: entries in pages of 500, *",
                "feed: from the answer to a write until it is seen, *",
            ),
            _target(
                "webhooks to a local receiver: >= 3,000/s; delivered <= 200 ms after the commit (p99)"
                " at 500 events/s",
                "webhooks: * changes that wait, delivered",
                "webhooks: commit to delivered, 99th percentile",
            ),
        ),
    ),
    Group(
        title="The past, and pages far back",
        parts=("time-travel",),
        targets=(
            _target(
                "as-of list, 1,000,000 rows with 10 versions each: <= 3 x the current list",
                "as-of list, *, default sort, *",
                "as-of list, *, sort by the key, *",
            ),
            _target(
                "keyset page at row 900,000 of 1,000,000: <= 1.2 x the first page",
                "keyset page at row * / the first page",
            ),
        ),
    ),
    Group(
        title="Finding",
        parts=("search", "trigrams", "matching", "choices"),
        targets=(
            _target(
                "search of 1,000,000 rows, a word or its beginning: p95 <= 50 ms",
                "search of * rows, a word of some rows, p95",
                "search of * rows, a beginning of four letters, p95",
                "search of * rows, a word of one row, p95",
            ),
            _target("similar, 1,000,000 rows: p95 <= 100 ms", "similar of *"),
            _target(
                "duplicate scan of 100,000 rows: faster than splink, F1 at least equal",
                "duplicate scan of *",
            ),
        ),
    ),
    Group(
        title="Permissions and definitions",
        parts=("access", "validate", "deploy", "reconcile"),
        targets=(
            _target(
                "permission check, 10,000 assignments: <= 1.1 x with 10", "permission check, *"
            ),
            _target(
                "validate, 1,000 entities x 15 columns: <= 2.0 x parsing the same YAML",
                "validate, *",
            ),
            _target(
                "plan, 1,000 entities, no change: <= 1.5 s, <= 12 catalog queries whatever the number",
                "the command `plan`, 1,000 entities, no change",
                "plan, no change, queries, *",
            ),
            _target(
                "apply of 1,000 new entities: <= 1.5 x psql running the same SQL",
                "apply of 1,000 new entities / psql running the same SQL",
            ),
            _target(
                "reconcile of an unchanged commit: <= 50 ms, constant in entities",
                "reconcile of an unchanged commit, *",
            ),
        ),
    ),
    Group(
        title="Starting",
        parts=("start",),
        targets=(
            _target("`mdm-gitops --help`: <= 0.12 s", "`mdm-gitops --help`"),
            _target(
                "`make up` after the installation, from nothing to ready: <= 6 s; embedded"
                " PostgreSQL started again: <= 1 s",
                "`mdm-gitops up --once`, from nothing to ready",
                "embedded PostgreSQL, start again",
            ),
        ),
    ),
    Group(
        title="Memory and size",
        parts=("memory", "size"),
        targets=(
            _target(
                "API worker, idle, 1,000 entities: <= 100 MB",
                "API worker, idle, 1,000 entities",
                "the same beside its folder",
            ),
            _target(
                "import, export, feed: <= 50 MB more, whatever the rows",
                "API worker during imports, above idle",
                "memory of the API above idle, exports csv and json",
                "memory of the API above idle, feed",
            ),
            _target("operator, 1,000 entities: <= 120 MB", "operator, idle, 1,000 entities"),
            _target("installation without dev: <= 200 MB", "installed size, *"),
        ),
    ),
    Group(title="Growth", parts=("growth",)),
)
