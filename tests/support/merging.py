"""A warehouse of companies that are merged, with rows of all kinds that refer to them.

``company`` refers to itself; ``contact`` refers to its key and is unique by company and label; ``invoice``
refers to a unique column that is no key and keeps no history; ``order`` needs approval.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.approving import ROOT, Lab, key_of
from tests.support.serving import KEY, served
from tests.support.warehouses import apply

FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: crm}]\n",
    "entities/company.yaml": b"""
name: Company
domain: crm
historyEnabled: true
keyColumns: [code]
sortColumns: [{column: code}]
survivorship:
  rules: [mostComplete, trustedSource]
  sources: {column: source, order: [erp, web]}
  columns:
    - {name: notes, rules: [longest]}
    - {name: phone, rules: [mostRecent]}
    - {name: rank, rules: [survivor]}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: vat, dataType: string, unique: true}
  - {name: Name, dataType: string, maxLength: 40}
  - {name: email, dataType: string}
  - {name: phone, dataType: string}
  - {name: notes, dataType: text}
  - {name: source, dataType: string}
  - {name: region, dataType: string}
  - {name: rank, dataType: int, minValue: 0}
  - {name: price, dataType: decimal, precision: 24, scale: 6}
  - {name: since, dataType: datetime}
  - {name: more, dataType: json}
  - {name: parent, dataType: string, reference: {entity: Company}}
  - {name: secret, dataType: string, classification: restricted}
""",
    "entities/contact.yaml": b"""
name: contact
domain: crm
historyEnabled: true
keyColumns: [code]
uniqueConstraints:
  - {name: by_label, columns: [company, label]}
  - {name: by_both, columns: [second, owner]}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: company, dataType: string, reference: {entity: Company}}
  - {name: second, dataType: string, reference: {entity: Company}}
  - {name: owner, dataType: string, reference: {entity: Company}, classification: restricted}
  - {name: label, dataType: string}
  - {name: region, dataType: string}
""",
    "entities/invoice.yaml": b"""
name: invoice
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: vat, dataType: string, reference: {entity: Company, column: vat}}
""",
    "entities/order.yaml": b"""
name: order
domain: crm
approvalRequired: true
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: company, dataType: string, reference: {entity: Company}}
  - {name: note, dataType: string}
""",
    # Its key is a reference, so those who refer to it are relinked with it.
    "entities/profile.yaml": b"""
name: profile
domain: crm
historyEnabled: true
keyColumns: [company]
columns:
  - {name: company, dataType: string, nullable: false, reference: {entity: Company}}
  - {name: text, dataType: string}
""",
    "entities/page.yaml": b"""
name: page
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: profile, dataType: string, reference: {entity: profile}}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:ann", "apikey:bob", "apikey:cat"], domains: [crm], actions: [write, approve]}
  - {users: ["apikey:reader"], domains: [crm], actions: [read]}
  - {users: ["apikey:seer"], domains: [crm], actions: [write, viewrestricted]}
  - {users: ["apikey:north"], domains: [crm], entities: [Company], actions: [write],
     rowFilterDsl: "[region] = 'north'"}
  - {users: ["apikey:north"], domains: [crm], entities: [contact], actions: [read],
     rowFilterDsl: "[region] = 'north'"}
  - {users: ["apikey:half"], domains: [crm], entities: [Company], actions: [read]}
  - {users: ["apikey:half"], domains: [crm], entities: [Company], actions: [write],
     rowFilterDsl: "[region] = 'north'"}
""",
}
PEOPLE = ("ann", "bob", "cat", "reader", "seer", "north", "half")
AT = "company/data/deduplicate"


class MergeLab(Lab):
    async def add(self, entity: str = "company", **values: Any) -> str:
        """Let root create a row, approve it where that is needed, and return its identifier."""
        answer = await self.send(ROOT, "POST", f"{entity}/data", values)
        assert answer.status_code in (201, 202), answer.text
        row_id = str(answer.json()["_sys_id"])
        if answer.status_code == 202:
            approved = await self.send("bob", "POST", f"{entity}/approve/{row_id}")
            assert approved.status_code == 200, approved.text
        return row_id

    async def row(self, row_id: str, entity: str = "company", **params: Any) -> Any:
        return await super().row(row_id, entity, **params)

    async def merge(self, survivor: str, duplicate: str, who: str = "ann", **more: Any) -> Any:
        body = {"survivorId": survivor, "duplicateId": duplicate, **more}
        return await self.send(who, "POST", AT, body)

    async def merged(self, survivor: str, duplicate: str, who: str = "ann", **more: Any) -> Any:
        answer = await self.merge(survivor, duplicate, who, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def undo(self, merge_id: str, who: str = "ann", **body: Any) -> Any:
        return await self.send(who, "POST", f"{AT}/{merge_id}/undo", body)

    async def table(self, name: str, columns: str) -> list[tuple[Any, ...]]:
        cursor = await self.conn.execute(
            f"SELECT {columns} FROM mdm_data.{name} ORDER BY 1".encode()
        )
        return list(await cursor.fetchall())


async def deploy(database_url: str) -> dict[str, str]:
    """Deploy the entities, and return the keys of those who act in the warehouse."""
    async with await connect(database_url, application_name="test") as conn:
        await apply(conn, read_tree(FILES))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        return {ROOT: KEY} | {name: await key_of(conn, name) for name in PEOPLE}


@asynccontextmanager
async def opened(database_url: str, keys: dict[str, str]) -> AsyncIterator[MergeLab]:
    settings = Settings(RateLimit=RateLimitSettings(Enabled=False))
    app = create_app(database_url=database_url, settings=settings)
    async with await connect(database_url, application_name="test") as conn, served(app) as client:
        yield MergeLab(client, conn, keys)
