"""How long a list of the past takes beside the same list of the present.

Rows in many versions are made by SQL in the order of time, as writing them would leave them. Run by
itself (``python benchmarks/bench_time_travel.py [rows]``) it also tells what is held to no target:
other sorts, filters, counts and moments.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from figures import Figure, best_of
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import ListRequest, RowShape, list_rows
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.embedded import acquire_server
from mdm_gitops.warehouse.store import read_state

ROWS: Final = 200_000
VERSIONS: Final = 10
MAKERS: Final = 5_000
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
_MAKER: Final = {
    "name": "maker",
    "domain": "bench",
    "historyEnabled": True,
    "keyColumns": ["code"],
    "columns": [
        {"name": "code", "dataType": "string", "nullable": False},
        {"name": "name", "dataType": "string"},
    ],
}
_PART: Final = {
    "name": "part",
    "domain": "bench",
    "historyEnabled": True,
    "keyColumns": ["code"],
    "columns": [
        {"name": "code", "dataType": "string", "nullable": False},
        {"name": "name", "dataType": "string"},
        {"name": "maker", "dataType": "string", "reference": {"entity": "maker"}},
        {"name": "weight", "dataType": "decimal"},
        {"name": "amount", "dataType": "int"},
        {"name": "active", "dataType": "bool"},
        {"name": "since", "dataType": "date"},
        {"name": "checked", "dataType": "datetime"},
        *({"name": f"text_{n}", "dataType": "string"} for n in range(4)),
    ],
}
# Version v of row n begins v days and up to one more after the beginning.
_MOMENT: Final = (
    "'2025-01-01Z'::timestamptz + (v - 1) * interval '1 day'"
    " + (n * 7919 % 86400) * interval '1 second'"
)
_FILL: Final = """
WITH made AS MATERIALIZED (
SELECT lpad(to_hex(n), 12, '0') || '7000800000000000' AS id, v, n, {moment} AS at,
       {moment} + interval '1 day' AS till, '2025-01-01Z'::timestamptz
         + (n * 7919 % 86400) * interval '1 second' AS born
  FROM generate_series({first}, {last}) v, generate_series(1, {rows}::bigint) n ORDER BY v, n)
INSERT INTO mdm_data.{table} (_sys_id, {names}, _sys_version, _sys_created_at, _sys_created_by,
  _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted{more})
SELECT rpad(id, 32, '0')::uuid, {values}, v, born, 'bench', at, 'bench', false{more_values}
  FROM made"""
_PART_VALUES: Final = (
    "'P' || n * 7919 % 10000019, 'Part ' || n || ' of ' || v, 'M' || n * 31 % {makers} + 1,"
    " (n * v % 10007) / 100.0, n * v % 1000, v % 2 = 0, '2025-01-01'::date + v, at,"
    " md5(n::text), md5(v::text), md5((n * v)::text), NULL"
)
_MAKER_VALUES: Final = "'M' || n, 'Maker ' || n || ' of ' || v"


async def measure(server: Server, rows: int = ROWS, *, whole: bool = False) -> list[Figure]:
    url = await server.fresh_database()
    async with opened(url) as conn:
        await fill(conn, rows)
        asking = await _asking(conn)
        return [each async for each in _figures(conn, asking, rows, whole=whole)]


async def fill(conn: Connection, rows: int) -> None:
    await _deploy(conn)
    await _fill(conn, "maker", MAKERS, ("code", "name"), _MAKER_VALUES)
    names = tuple(column["name"] for column in _PART["columns"])
    await _fill(conn, "part", rows, names, _PART_VALUES.format(makers=MAKERS))
    await conn.execute("VACUUM ANALYZE")


async def _deploy(conn: Connection) -> None:
    project = {"name": "bench", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "bench"}]}
    files = {"mdm.yaml": project, "entities/maker.yaml": _MAKER, "entities/part.yaml": _PART}
    tree = {path: json.dumps(document).encode() for path, document in files.items()}
    await apply_plan(
        conn, read_tree(tree), None, schemas=SCHEMAS, actor="user:bench", approved=True
    )


async def _fill(
    conn: Connection, table: str, rows: int, names: tuple[str, ...], values: str
) -> None:
    form = {"rows": rows, "names": ", ".join(names), "values": values, "moment": _MOMENT}
    await conn.execute(
        _FILL.format(**form, table=table, first=VERSIONS, last=VERSIONS, more="", more_values="")
    )
    await conn.execute(
        _FILL.format(
            **form,
            table=f"{table}__history",
            first=1,
            last=VERSIONS - 1,
            more=", _sys_valid_from, _sys_valid_to, _sys_action",
            more_values=", at, till, 'data_updated'",
        )
    )


async def _asking(conn: Connection) -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name="bench", is_global_admin=True),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=datetime.now(UTC),
    )


_MIDDLE: Final = BEGIN + timedelta(days=5)
_EARLY: Final = BEGIN + timedelta(days=1, hours=12)
_LATE: Final = BEGIN + timedelta(days=9, hours=23)
_LISTS: Final[dict[str, dict[str, Any]]] = {
    "default sort": {},
    "sort by the key": {"sort": "code"},
    "with expand": {"expand": "maker"},
}
_OTHERS: Final[dict[str, dict[str, Any]]] = {
    "sort by a reference": {"sort": "maker"},
    "sort without an index": {"sort": "name"},
    "filter on a reference": {"filter": "[maker] = 'M77'"},
    "filter through a reference": {"filter": "[maker].[name] = 'Maker 77 of 5'"},
    "with count": {"count": True},
    "deep cursor": {"deep": True},
}


async def _figures(conn: Connection, asking: Asking, rows: int, *, whole: bool) -> Any:
    moments = {"middle": _MIDDLE, **({"early": _EARLY, "late": _LATE} if whole else {})}
    for title, given in {**_LISTS, **(_OTHERS if whole else {})}.items():
        now_s = await _list_s(conn, asking, given, None)
        for when, moment in moments.items():
            then_s = await _list_s(conn, asking, given, moment)
            yield Figure(
                case=f"as-of list, {rows:,} rows x {VERSIONS}, {title}, {when}",
                value=then_s / now_s,
                unit="ratio",
                limit=3.0 if title in ("default sort", "sort by the key") else None,
                note=f"{then_s * 1000:.2f} ms, now {now_s * 1000:.2f} ms",
            )


async def _list_s(
    conn: Connection, asking: Asking, given: dict[str, Any], moment: datetime | None
) -> float:
    more = dict(given)
    shape = RowShape(state=RowState.ACTIVE, expand=more.pop("expand", ""))
    deep = more.pop("deep", False)
    request = ListRequest(shape=shape, as_of=moment, **more)
    if deep:
        before = ListRequest(shape=shape, as_of=moment, skip=ROWS // 2, take=1)
        first = await list_rows(conn, asking=asking, entity="part", request=before)
        request = ListRequest(shape=shape, as_of=moment, after=first.next_after or "")

    async def run() -> None:
        page = await list_rows(conn, asking=asking, entity="part", request=request)
        assert page.rows or request.filter

    await run()
    once_s = await best_of(run, rounds=1)
    return await best_of(run, rounds=2 if once_s > 0.2 else 20)


async def _alone(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="mdm-bench-") as name:
        embedded = await acquire_server(Path(name))
        try:
            for figure in await measure(Server(embedded.url), rows, whole=True):
                print(f"{figure.case:<84} {figure.text:>9}  {figure.note}")
        finally:
            await embedded.aclose()


if __name__ == "__main__":
    asyncio.run(_alone(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
