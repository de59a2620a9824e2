"""How long options and suggestions take on a large entity, against one look at each of its rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from figures import Figure, best_of
from warehouse import Server, opened

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.choices import ChoiceRequest, column_suggestions, reference_options
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state

ROWS = 1_000_000
FILES = {
    "mdm.yaml": b"name: bench\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n",
    "entities/supplier.yaml": b"""
name: supplier
domain: d
keyColumns: [code]
displayRefColumn: name
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: name, dataType: string}
  - {name: city, dataType: string, autocomplete: true}
  - {name: remark, dataType: string, autocomplete: true}
  - {name: half, dataType: int}
  - {name: parent, dataType: string, reference: {entity: supplier}}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [half], domains: [d], entities: [supplier], actions: [read],
     rowFilterDsl: "[half] = 1"}
""",
}
# A fifth of the names has a letter that is not ASCII.
FILL = """
INSERT INTO mdm_data.supplier (_sys_id, code, name, city, remark, half, _sys_created_at,
       _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'C' || lpad(i::text, 7, '0'),
       CASE WHEN i % 5 = 0 THEN 'Zürich ' ELSE 'Zurich ' END || md5(i::text) || ' ' || (i % 977),
       'City ' || (i % 5000), md5('r' || i), i % 2, now(), 'user:a', now(), 'user:a'
  FROM generate_series(1, {rows}) i
"""
LOOK = "SELECT count(*) FROM mdm_data.supplier WHERE lower(name) LIKE '%zzzz%'"
CASES = (
    (reference_options, "parent", "", 0.1),
    (reference_options, "parent", "C0012", 4.0),
    (reference_options, "parent", "zurich", 10.0),
    (column_suggestions, "city", "", 3.0),
    (column_suggestions, "city", "12", 3.0),
    (column_suggestions, "remark", "", 12.0),
)


async def measure(server: Server, *, rows: int = ROWS) -> list[Figure]:
    async with opened(await server.fresh_database()) as conn:
        definitions = read_tree(FILES)
        await apply_plan(
            conn, definitions, None, schemas=Schemas(), actor="user:bench", approved=True
        )
        await conn.execute(FILL.format(rows=rows).encode())
        await conn.execute("VACUUM ANALYZE mdm_data.supplier")
        return [await _one(conn, rows, name, *case) for name in ("half", "admin") for case in CASES]


async def _one(
    conn: Any, rows: int, name: str, ask: Any, column: str, q: str, limit: float
) -> Figure:
    asking = Asking(
        principal=Principal(kind=PrincipalKind.USER, name=name, is_global_admin=name == "admin"),
        state=await read_state(conn, schemas=Schemas()),
        schemas=Schemas(),
        now=datetime.now(UTC),
    )
    request = ChoiceRequest(column=column, q=q)

    async def run() -> None:
        await ask(conn, asking=asking, entity="supplier", request=request)

    async def look() -> None:
        await conn.execute(LOOK)

    look_s = await best_of(look, rounds=3)
    taken_s = await best_of(run, rounds=3)
    seen = "" if name == "admin" else ", row filter"
    return Figure(
        case=f"{ask.__name__} of {rows:,}, {column} {q!r}{seen}",
        value=taken_s / look_s,
        unit="ratio",
        limit=limit,
        note=f"{taken_s * 1000:.0f} ms",
    )
