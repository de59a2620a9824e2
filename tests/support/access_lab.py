"""Customers, and people who may see some of them: what tests of plans share that judge access."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.data.access_report import inspector
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import Plan
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from tests.conftest import Prepare
from tests.support import by_hand
from tests.support.customers import FILES
from tests.support.warehouses import apply

PERMISSIONS = """
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: ["group:swiss"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[country] = 'CH'"}
  - {users: [ana], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[email] = me() OR [country].[region] = 'AS'"}
  - {users: [wide], domains: [crm], actions: [read, viewrestricted]}
"""
MORE = PERMISSIONS + "  - {users: [more], domains: [crm], actions: [read]}\n"
# C0 is deleted. CH: 1 2 4 5 7 8; JP, in AS: 3 6. Ana's own is C4.
ROWS = [{"code": f"C{n}", "country": "CH" if n % 3 else "JP", "active": True} for n in range(9)]
RENAMED = FILES["entities/customer.yaml"].replace(
    b"{name: segment,", b"{name: part, renamedFrom: segment,"
)


def test(name: str, who: str, expect: str, more: str = "") -> str:
    return f"  - {{name: {name}, principal: {who}, entity: customer, expect: {expect}{more}}}\n"


test.__test__ = False  # type: ignore[attr-defined]


def definitions(
    tests: str = "", *, permissions: str = PERMISSIONS, files: Mapping[str, bytes] = FILES
) -> Definitions:
    more = {"permissions.yaml": permissions.encode()}
    if tests:
        more["access-tests.yaml"] = b"tests:\n" + tests.encode()
    return read_tree({**files, **more})


async def prepare(conn: AsyncConnection[Any]) -> None:
    """Deploy definitions and rows."""
    await apply(conn, definitions())
    await by_hand.insert(conn, "country", [{"code": "CH"}, {"code": "JP", "region": "AS"}])
    rows = [{**row, "email": "ana" if row["code"] == "C4" else None} for row in ROWS]
    rows[0]["_sys_is_deleted"] = True
    await by_hand.insert(conn, "customer", rows)


@pytest.fixture
def warehouse_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(prepare)


@pytest.fixture
async def warehouse(warehouse_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(warehouse_url, application_name="test") as conn:
        yield conn


async def planned(conn: AsyncConnection[Any], wanted: Definitions, **more: Any) -> Plan:
    settings = more.pop("settings", Settings())
    target = more.pop("target", ())
    inspect = inspector(settings, **more)
    return await make_plan(conn, wanted, schemas=Schemas(), target=target, inspect=inspect)


def verdicts(plan: Plan) -> dict[str, tuple[str, str]]:
    return {each.name: (each.verdict.value, each.message) for each in plan.access.tests}
