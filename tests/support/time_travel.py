"""Entities with a past, and reads of them as of a moment: what tests of time travel share.

Rows are put there by the ledgers of ``past``, at moments that are counted in minutes.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import ListRequest, Page, RowShape, list_rows
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.support import by_hand

SCHEMAS = Schemas()
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: ref}]
""",
    "entities/region.yaml": b"""
name: region
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Chief, dataType: string}
""",
    "entities/country.yaml": b"""
name: country
domain: ref
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
  - {name: keeper, dataType: string}
""",
    "entities/site.yaml": b"""
name: site
domain: ref
historyEnabled: true
approvalRequired: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: rank, dataType: int}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: region, dataType: string, reference: {entity: region}}
  - {name: owner, dataType: string}
  - {name: secret, dataType: string, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: [reader], domains: [ref], actions: [read]}
  - {users: [anna], domains: [ref], entities: [site], actions: [read], rowFilterDsl: "[owner] = me()"}
  - {users: [anna], domains: [ref], entities: [country], actions: [read], rowFilterDsl: "[keeper] = me()"}
  - {users: [bert], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[country].[keeper] = me()"}
  - {users: [cleo], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[country].[keeper] IS NULL"}
  - {users: [dora], domains: [ref], entities: [site], actions: [read],
     rowFilterDsl: "[region].[Chief] = me()"}
""",
}


def at(tick: float) -> datetime:
    return BEGIN + timedelta(minutes=tick)


def number(n: int) -> str:
    return str(uuid.UUID(int=n))


async def prepare(conn: AsyncConnection[Any]) -> None:
    await by_hand.deploy(conn, read_tree(FILES))


async def asking(conn: AsyncConnection[Any], user: str = "root") -> Asking:
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name=user),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=datetime.now(UTC),
    )


async def page(
    conn: AsyncConnection[Any],
    entity: str,
    moment: datetime,
    *,
    user: str = "root",
    state: RowState = RowState.ACTIVE,
    fields: str = "",
    expand: str = "",
    **request: Any,
) -> Page:
    return await list_rows(
        conn,
        asking=await asking(conn, user),
        entity=entity,
        request=ListRequest(
            shape=RowShape(state=state, fields=fields, expand=expand), as_of=moment, **request
        ),
    )


def documents(page: Page) -> list[dict[str, Any]]:
    return [json.loads(row) for row in page.rows]


async def codes(
    conn: AsyncConnection[Any], tick: float, *, entity: str = "site", **request: Any
) -> list[Any]:
    request.setdefault("sort", "code")
    return [row["code"] for row in documents(await page(conn, entity, at(tick), **request))]
