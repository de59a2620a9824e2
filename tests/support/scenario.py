"""Definitions A and B that between them pass through every phase of an apply, with rows in the way.

A -> B renames an entity and columns, retypes (filled in batches), archives a column and an entity,
turns history and approval over, tightens rules of tables with rows, adds a unique index, a foreign
key whose targets the seed brings, views, permissions and webhooks. B -> A takes it all back, the
archived values of the retyped columns too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree

ROWS = 7
VIEW_SCHEMA = "lab_views"
Documents = dict[str, Any]


def tree(
    *entities: Documents,
    seeds: Mapping[str, list[Documents]] | None = None,
    permissions: list[Documents] | None = None,
    webhooks: list[Documents] | None = None,
    policy: Documents | None = None,
) -> dict[str, bytes]:
    """Return the files of a repository; JSON is YAML."""
    project: Documents = {"name": "lab", "apiVersion": "mdm-gitops/v1"}
    project["domains"] = [{"name": "lab"}]
    if policy is not None:
        project["policy"] = policy
    files: dict[str, Any] = {"mdm.yaml": project}
    files |= {f"entities/{entity['name']}.yaml": entity for entity in entities}
    files |= {f"seed/{name}.json": rows for name, rows in (seeds or {}).items()}
    if permissions is not None:
        files["permissions.yaml"] = {"permissions": permissions}
    if webhooks is not None:
        files["webhooks.yaml"] = {"webhooks": webhooks}
    return {path: json.dumps(document, indent=1).encode() for path, document in files.items()}


def definitions(*entities: Documents, **others: Any) -> Definitions:
    return read_tree(tree(*entities, **others))


def entity(name: str, *columns: Documents, **fields: Any) -> Documents:
    """Return an entity of the lab with the key column ``code``."""
    code = {"name": "code", "dataType": "string", "nullable": False}
    return {
        "name": name,
        "domain": "lab",
        "keyColumns": ["code"],
        "columns": [code, *columns],
        **fields,
    }


def column(name: str, data_type: str = "string", **fields: Any) -> Documents:
    return {"name": name, "dataType": data_type, **fields}


def grant(user: str, *actions: str) -> Documents:
    return {"users": [user], "domains": ["lab"], "entities": [], "actions": list(actions)}


def webhook(name: str, **fields: Any) -> Documents:
    return {"name": name, "url": "https://example.com/x", "actions": ["data_created"], **fields}


def _view(name: str) -> Documents:
    return {"views": [{"schema": VIEW_SCHEMA, "name": name}]}


def a() -> Definitions:
    customer = entity(
        "customer",
        column("name", maxLength=40),
        column("zip"),
        column("amount"),
        column("legacy", default="x"),
        column("country"),
        column("note"),
        column("email"),
        historyEnabled=True,
        consumption=_view("customer_v"),
    )
    product = entity("product", column("title"), column("price", "int"), approvalRequired=True)
    country = entity("country", column("name"))
    gone = entity("gone", column("name"), historyEnabled=True)
    return definitions(
        customer,
        product,
        country,
        gone,
        seeds={"country": [{"code": "k0", "name": "Zero"}]},
        permissions=[grant("root", "admin"), grant("ann", "read")],
        webhooks=[webhook("one"), webhook("two")],
    )


def b() -> Definitions:
    client = entity(
        "client",
        column("name", maxLength=20, pattern="[^|]*"),
        column("postal_code", renamedFrom="zip"),
        column("amount", "decimal", precision=12, scale=2),
        column("country", reference={"entity": "country"}),
        column("note", nullable=False),
        column("email", unique=True),
        renamedFrom="customer",
        consumption=_view("client_v"),
    )
    product = entity("product", column("title"), column("price", "long"), historyEnabled=True)
    country = entity("country", column("name"))
    vendor = entity("vendor", column("country", reference={"entity": "country"}))
    return definitions(
        client,
        product,
        country,
        vendor,
        seeds={
            "country": [{"code": f"k{n}", "name": f"Country {n}"} for n in range(3)],
            "vendor": [{"code": "v1", "country": "k2"}],
        },
        permissions=[grant("root", "admin"), grant("bob", "read", "write")],
        webhooks=[webhook("one", is_active=False), webhook("three")],
        policy={"maxRemovedEntities": 5, "maxRemovedPercent": 100},
    )


def c() -> Definitions:
    """Neither A nor B: what a next commit may ask for when B has been left half done."""
    client = entity(
        "client",
        column("name", maxLength=20, nullable=False),
        column("postal_code", renamedFrom="zip"),
        column("amount", "decimal"),
        column("country"),
        column("note"),
        column("email", unique=True),
        renamedFrom="customer",
        historyEnabled=True,
    )
    product = entity("product", column("title"), column("price"), historyEnabled=True)
    country = entity("country", column("name"))
    return definitions(
        client,
        product,
        country,
        permissions=[grant("root", "admin")],
        policy={"maxRemovedEntities": 5, "maxRemovedPercent": 100},
    )


_FILL = """
INSERT INTO mdm_data.customer (_sys_id, code, name, zip, amount, legacy, country, note, email,
    _sys_created_at, _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'c' || n, 'Name ' || n,
       '0' || n, '00' || n || '.50', 'old ' || n, 'k' || n % 3, 'note', 'e' || n || '@example.com',
       '2026-01-01', 'user:a', '2026-01-01', 'user:a'
  FROM generate_series(1, 7) AS n;
INSERT INTO mdm_data.customer__history (_sys_id, code, amount, _sys_version, _sys_created_at,
    _sys_created_by, _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted,
    _sys_valid_from, _sys_valid_to, _sys_action)
SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'c' || n, '0' || v, v,
       '2026-01-01', 'user:a', '2026-01-01', 'user:a', false, '2026-01-01', '2026-01-02', 'x'
  FROM generate_series(1, 3) AS n, generate_series(1, 2) AS v;
INSERT INTO mdm_data.product (_sys_id, code, title, price,
    _sys_created_at, _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
SELECT ('00000000-0000-7000-8001-' || lpad(n::text, 12, '0'))::uuid, 'p' || n, 'Title', n,
       '2026-01-01', 'user:a', '2026-01-01', 'user:a'
  FROM generate_series(1, 5) AS n;
INSERT INTO mdm_data.product__edit (_sys_id, code, price, _sys_operation, _sys_state,
    _sys_submitted_at, _sys_submitted_by)
VALUES ('00000000-0000-7000-8001-000000000001', 'p1', 11, 'update', 'pending',
    '2026-01-03', 'user:b');
INSERT INTO mdm_data.gone (_sys_id, code, name,
    _sys_created_at, _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
VALUES ('00000000-0000-7000-8002-000000000001', 'g1', 'Kept',
    '2026-01-01', 'user:a', '2026-01-01', 'user:a');
"""


async def fill(conn: AsyncConnection[Any]) -> None:
    """Put rows into the tables of A that B's rules let through."""
    await conn.execute(_FILL)


async def edit(conn: AsyncConnection[Any]) -> None:
    """Change what B holds, so that going back must tell edited values from archived ones."""
    await conn.execute("UPDATE mdm_data.client SET amount = 99.75 WHERE code = 'c2'")
    await conn.execute("UPDATE mdm_data.client SET amount = NULL WHERE code = 'c3'")
    await conn.execute("UPDATE mdm_data.product SET price = 50 WHERE code = 'p5'")
