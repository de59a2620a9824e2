"""Every operation by every kind of caller, as one table. An operation without a line fails the test.

A line names the statuses that the callers of ``CALLERS`` get, in their order, for a request that would
do its work for somebody who may. Whoever cannot be recognised gets 401 from everything that is not
public, and that is not repeated in the lines.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.operations import Access
from mdm_api.table import OPERATIONS
from mdm_gitops.access.api_keys import digest, generate_key
from tests.support.customers import FILES, key_of
from tests.support.served_folder import deployed, repository, served_folder
from tests.support.serving import KEY, Client

pytestmark = pytest.mark.anyio

# nobody has no rights; other is an admin of another domain, admin of this one, root a Global Admin.
CALLERS = ("nobody", "viewer", "editor", "approver", "other", "admin", "root")
PERMISSIONS = b"""
permissions:
  - {users: ["apikey:viewer"], domains: [crm], actions: [read]}
  - {users: ["apikey:editor"], domains: [crm], actions: [write]}
  - {users: ["apikey:approver"], domains: [crm], actions: [approve]}
  - {users: ["apikey:other"], domains: [ref], actions: [admin]}
  - {users: ["apikey:admin"], domains: [crm], actions: [admin]}
"""
DEAL = b"""
name: deal
domain: crm
approvalRequired: true
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: stage, dataType: string, autocomplete: true}
  - {name: customer, dataType: string, reference: {entity: customer}}
"""
LEAF = {
    "domain": "crm",
    "columns": [{"name": "code", "dataType": "string", "nullable": False}],
}
E = "/api/v1/entities/{name}"
D = E + "/data"
SAVED = "/api{version}/entities/{name}/saved-filters"
PUBLIC = "200 200 200 200 200 200 200"
ANY = "200 200 200 200 200 200 200"
READERS = "404 200 200 200 404 200 200"
ROOT = "403 403 403 403 403 403 200"

TABLE: dict[str, str] = {
    "GET /api/v1/entities": ANY,
    "GET /api/v1/entities/summary": ANY,
    f"GET {E}": READERS,
    f"GET {E}/yaml": READERS,
    "POST /api/v1/entities/parse-yaml": ANY,
    # An entity refers to one that not everybody may know of.
    "POST /api/v1/entities/validate": "422 422 422 422 200 422 200",
    "POST /api/v1/entity-create": "403 403 403 403 403 201 201",
    f"POST {E}": "403 403 403 403 403 200 200",
    f"PUT {E}": "404 403 403 403 404 200 200",
    f"DELETE {E}": "404 403 403 403 404 200 200",
    "GET /api/v1/common-entities": ANY,
    # Its own domain is not there, so only a Global Admin may; it is there from then on.
    "POST /api/v1/common-entities/{id}/install": "403 403 403 403 403 403 201",
    f"GET {E}/deploy/preview": "404 403 403 403 404 200 200",
    f"POST {E}/deploy": "404 403 403 403 404 200 200",
    f"POST {E}/redeploy": "404 403 403 403 404 200 200",
    f"POST {E}/deploy/remove": "404 403 403 403 404 409 409",  # another entity refers to it
    f"POST {E}/deploy/drop-archive-tables": "404 403 403 403 404 200 200",
    f"GET {E}/deploy/history": READERS,
    "GET /api/v1/reconciliation": ANY,
    "POST /api/v1/reconcile": "403 403 403 403 403 403 202",
    "POST /api/v1/reconciliation/suspend": ROOT,
    "POST /api/v1/reconciliation/resume": ROOT,
    "GET /api/v1/plans": ANY,
    "GET /api/v1/plans/{id}": "404 404 404 404 404 404 404",
    "POST /api/v1/plans/{id}/approve": "404 404 404 404 404 404 404",
    "POST /api/v1/plans/{id}/reject": "404 404 404 404 404 404 404",
    "POST /api/v1/hooks/git": "404 404 404 404 404 404 404",  # no secret is set
    f"GET {D}": READERS,
    f"GET {D}/{{id}}": READERS,
    f"POST {E}/similar": READERS,
    f"GET {E}/duplicates": READERS,
    # Asked for with a limit that is none, so that no scan is left running.
    f"POST {E}/duplicates/scan": "404 403 400 403 404 400 400",
    f"GET {E}/duplicates/scans/{{id}}": "404 404 404 404 404 404 404",
    f"POST {E}/duplicates/scans/{{id}}/cancel": "404 403 404 403 404 404 404",
    f"POST {E}/duplicates/dismiss": "404 403 404 403 404 404 404",
    f"POST {E}/duplicates/reopen": "404 403 404 403 404 404 404",
    f"GET {D}/ref-options": READERS,
    f"GET {D}/column-suggestions": READERS,
    f"GET {D}/export": READERS,
    f"POST {D}/deduplicate": "404 403 200 403 404 200 200",
    f"POST {D}/deduplicate/preview": "404 403 200 403 404 200 200",
    f"GET {D}/deduplicate": READERS,
    f"GET {D}/deduplicate/{{mergeId}}": READERS,
    f"POST {D}/deduplicate/{{mergeId}}/undo": "404 403 200 403 404 200 200",
    f"POST {D}/deduplicate/{{mergeId}}/approve": "404 403 403 200 404 200 200",
    f"POST {D}/deduplicate/{{mergeId}}/reject": "404 403 403 200 404 200 200",
    f"POST {D}/bulk": "404 403 200 403 404 200 200",
    f"POST {D}/bulk-csv": "404 403 200 403 404 200 200",
    f"POST {D}/bulk-xlsx": "404 403 400 403 404 400 400",
    f"POST {D}/bulk-action/preview": "404 403 200 403 404 200 200",
    f"POST {D}/bulk-action/execute": "404 403 409 403 404 409 409",  # of rows never looked at
    "GET /api/v1/imports/{id}/errors": "404 404 404 404 404 404 404",
    f"GET {E}/versions/{{id}}": READERS,
    f"GET {D}/time-travel-bounds": READERS,
    f"POST {D}": "404 403 201 403 404 201 201",
    f"PUT {D}/{{id}}": "404 403 200 403 404 200 200",
    f"PATCH {D}/{{id}}": "404 403 200 403 404 200 200",
    f"DELETE {D}/{{id}}": "404 403 204 403 404 204 204",
    f"POST {D}/{{id}}/restore": "404 403 200 403 404 200 200",
    f"POST {E}/versions/{{id}}/restore": "404 403 200 403 404 200 200",
    f"GET {E}/pending": READERS,
    f"GET {E}/pending/batches": READERS,
    f"DELETE {E}/pending/{{id}}": "404 403 403 204 404 204 204",
    f"POST {E}/approve/{{id}}": "404 403 403 200 404 200 200",
    f"POST {E}/approve-batch": "404 403 403 200 404 200 200",
    f"POST {E}/reject/{{id}}": "404 403 403 200 404 200 200",
    f"POST {E}/reject-batch": "404 403 403 200 404 200 200",
    "GET /api/v1/search/entities": ANY,
    "GET /api/v1/search/data": ANY,
    "GET /api/v1/changes": ANY,
    "GET /api/changes": ANY,
    "GET /api/v1/audit": ROOT,
    "GET /api/audit": ROOT,
    "POST /api/v1/packages/export": ROOT,
    "POST /api/v1/packages/deploy": ROOT,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /problems/{code}": PUBLIC,
    "GET /metrics": PUBLIC,
    "GET /swagger/v1/swagger.json": ANY,
    "GET /swagger": ROOT,
    "GET /swagger/{file}": "403 403 403 403 403 403 404",
    "GET /login": "404 404 404 404 404 404 404",
    "GET /login/callback": "404 404 404 404 404 404 404",
    "POST /logout": PUBLIC,
    "GET /api/v1/me": ANY,
    "GET /api/v1/roles": ANY,
    "GET /api/v1/api-keys": ROOT,
    "POST /api/v1/api-keys": "403 403 403 403 403 403 201",
    "DELETE /api/v1/api-keys/{name}": "403 403 403 403 403 403 204",
    "GET /api/v1/permissions": "403 403 403 403 200 200 200",
    "POST /api/v1/permissions": "403 403 403 403 403 201 200",
    "GET /api/v1/permissions/yaml": "403 403 403 403 200 200 200",
    "POST /api/v1/permissions/yaml": "403 403 403 403 403 403 200",
    "GET /api/v1/webhooks": ROOT,
    "POST /api/v1/webhooks": "403 403 403 403 403 403 201",
    "GET /api/v1/webhooks/yaml": ROOT,
    "POST /api/v1/webhooks/yaml": ROOT,
    "GET /api/v1/webhooks/{id}": "403 403 403 403 403 403 404",
    "PUT /api/v1/webhooks/{id}": "403 403 403 403 403 403 404",
    "DELETE /api/v1/webhooks/{id}": "403 403 403 403 403 403 404",
    "POST /api/v1/webhooks/{id}/test": "403 403 403 403 403 403 404",
    "GET /api/v1/webhooks/{id}/deliveries": "403 403 403 403 403 403 404",
    "POST /api/v1/webhooks/{id}/deliveries/{n}/replay": "403 403 403 403 403 403 404",
    "POST /api/v1/webhooks/{id}/replay": "403 403 403 403 403 403 404",
    "POST /api/v1/webhooks/{id}/secret": "403 403 403 403 403 403 404",
    **{
        line.replace(" ", f" {SAVED.replace('{version}', version)}", 1): statuses
        for version in ("", "/v1")
        for line, statuses in {
            "GET ": READERS,
            "POST ": "404 201 201 201 404 201 201",
            "GET /{filterName}": "404 404 404 404 404 404 404",
            "DELETE /{filterName}": "404 404 404 404 404 404 404",
        }.items()
    },
}
YAML = FILES["entities/customer.yaml"].decode()
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_NUMBER = itertools.count(100)


def operations() -> list[str]:
    return [f"{each.method} {each.path}" for each in OPERATIONS]


def test_each_operation_has_its_line() -> None:
    assert sorted(TABLE) == sorted(operations())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(
        tmp_path, {**FILES, "permissions.yaml": PERMISSIONS, "entities/deal.yaml": DEAL}
    )


@pytest.fixture
async def conn(database_url: str, root: Path) -> AsyncIterator[AsyncConnection[Any]]:
    async with deployed(database_url, root) as conn:
        yield conn


@pytest.fixture
async def client(
    database_url: str, conn: AsyncConnection[Any], root: Path
) -> AsyncIterator[Client]:
    async with served_folder(database_url, root) as client:
        yield client


async def request_for(client: Client, operation: str) -> tuple[str, str, dict[str, Any]]:
    """Return method, path and body of a request that does its work; rows it needs are made first."""
    method, _, path = operation.partition(" ")
    number = next(_NUMBER)
    root = {"X-API-Key": KEY}
    name, row_id = "customer", ""
    body: Any = None
    if (
        "/pending" in path
        or "/approve" in path
        or "/reject" in path
        or path.endswith("suggestions")
    ):
        name = "deal"
    if path.endswith("ref-options"):
        name = "deal"
    merge: dict[str, str] = {}
    if "/deduplicate" in path:
        merge = await _a_merge(client, name, number, is_made="{mergeId}" in path)
    definition = {**LEAF, "name": f"leaf{number}"}
    if "common-entities" in path:
        path = path.replace("{id}", "currency")
    if path == E and method in ("POST", "PUT"):
        name, body = "deal", {"yaml": DEAL.decode()}
    if path == E and method == "DELETE":
        name = f"leaf{number}"
        await client.post("/api/v1/entity-create", json=definition, headers=root)
    if "{id}" in path and path.startswith(E):
        given = {"code": f"C{number}"}
        made = await client.post(f"/api/v1/entities/{name}/data", json=given, headers=root)
        row_id = made.json()["_sys_id"]
        if path.endswith("/data/{id}/restore"):
            gone = f"/api/v1/entities/{name}/data/{row_id}?soft=true"
            assert (await client.delete(gone, headers=root)).status_code == 200
        if path.endswith(("/approve/{id}", "/reject/{id}")) or (name, method) == ("deal", "DELETE"):
            # Nobody decides on a proposal of their own.
            await _of_somebody_else(client, row_id)
    values = {
        "{name}": name,
        "{id}": row_id or "00000000-0000-7000-8000-000000000000",
        "{code}": "row-not-found",
        "{file}": "nothing.js",
        "{filterName}": "mine",
        "{mergeId}": merge.get("mergeId", ""),
        "{n}": "1",
    }
    for place, value in values.items():
        path = path.replace(place, value)
    match operation.rsplit("/", 1)[-1]:
        case "deduplicate" | "preview" if method == "POST" and merge:
            body = merge
        case "parse-yaml" | "validate":
            body = {"yaml": YAML}
        case "entity-create":
            body = definition
        case "similar":
            body = {"values": {"code": "C1"}}
        case "scan":
            body = {"minScore": 0}
        case "dismiss" | "reopen":
            body = {"ids": [f"00000000-0000-7000-8000-00000000000{n}" for n in range(2)]}
        case "ref-options":
            path += "?column=customer"
        case "column-suggestions":
            path += "?column=stage"
        case "entities" | "data" if "/search/" in path:
            path += "?q=c1"
        case "drop-archive-tables":
            body = {"confirm": "customer"}
        case "restore" if "/versions/" in operation:
            body = {"version": 1}
        case "approve-batch" | "reject-batch":
            body = {"ids": ["00000000-0000-7000-8000-000000000000"]}
        case "preview" if "bulk-action" in operation:
            body = {"action": "update", "filter": "[code] = 'none'", "set": {"rank": 1}}
        case "execute":
            body = {"action": "delete", "all": True, "previewToken": "0" * 64}
        case "bulk":
            body = [{"code": f"C{number}"}]
        case "api-keys" if method == "POST":
            body = {"name": f"k{number}"}
        case "saved-filters" if method == "POST":
            body = {"name": f"f{number}", "filter": "[code] = 'C1'"}
        case "permissions" if method == "POST":
            body = {"principal": "x", "domain": "crm", "actions": ["read"]}
        case "yaml" if method == "POST":
            text = PERMISSIONS.decode() if "permissions" in operation else "webhooks: []\n"
            body = {"yaml": text}
        case "webhooks" if method == "POST":
            body = {"name": f"w{number}", "url": "https://example.com/"}
        case "replay" if "deliveries" not in operation:
            body = {"afterId": 0}
        case "data" if method == "POST":
            body = {"code": f"C{number}"}
        case "{id}" if method in ("PUT", "PATCH"):
            body = (
                {"url": "https://example.com/"}
                if "webhooks" in operation
                else {"rank": number % 1_000 + 1_000}
            )
    if operation.startswith("DELETE /api/v1/api-keys"):
        key = f"k{number}"
        await client.post("/api/v1/api-keys", json={"name": key}, headers=root)
        path = f"/api/v1/api-keys/{key}"
    if operation.endswith("packages/deploy"):
        asked = {"entityNames": ["deal"]}
        package = await client.post("/api/v1/packages/export", json=asked, headers=root)
        return method, path, {"files": {"file": ("p.zip", package.content)}}
    if operation.endswith("bulk-csv"):
        return method, path, {"content": b"code\nC9\n", "headers": {"Content-Type": "text/csv"}}
    if operation.endswith("bulk-xlsx"):
        return method, path, {"content": b"no workbook", "headers": {"Content-Type": XLSX}}
    return method, path, {"json": body} if body is not None else {}


async def _a_merge(client: Client, name: str, number: int, *, is_made: bool) -> dict[str, str]:
    """Return the body of a merge of two rows that are there, or the merge of them."""
    ids, at = [], f"/api/v1/entities/{name}"
    for part in "89":
        answer = await client.post(
            f"{at}/data", json={"code": f"C{part}{number}"}, headers={"X-API-Key": KEY}
        )
        ids.append(answer.json()["_sys_id"])
        if name == "deal":
            await _of_somebody_else(client, ids[-1])
            await client.post(f"{at}/approve/{ids[-1]}", headers={"X-API-Key": KEY})
    body = {"survivorId": ids[0], "duplicateId": ids[1]}
    if not is_made:
        return body
    answer = await client.post(f"{at}/data/deduplicate", json=body, headers={"X-API-Key": KEY})
    if name == "deal":
        await _AUTHORS["conn"].execute(b"UPDATE mdm.merge SET proposed_by = 'user:else'")
    return {"mergeId": answer.json()["mergeId"]}


_AUTHORS: dict[str, AsyncConnection[Any]] = {}


async def _of_somebody_else(client: Client, row_id: str) -> None:
    await _AUTHORS["conn"].execute(
        "UPDATE mdm_data.deal__edit SET _sys_submitted_by = 'user:else' WHERE _sys_id = %s",
        [row_id],
    )
    # Who wrote any of a proposal is told by its events.
    await _AUTHORS["conn"].execute(
        "UPDATE mdm.event SET actor = 'user:else' WHERE record_id = %s AND action = 'data_edited'",
        [row_id],
    )


async def test_the_table(client: Client, conn: AsyncConnection[Any]) -> None:
    _AUTHORS["conn"] = conn
    keys = {name: await key_of(conn, name) for name in CALLERS if name != "root"}
    keys["root"] = {"X-API-Key": KEY}
    wrong = []
    # What takes the entity or the rights away comes last.
    last = ("deploy/remove", "drop-archive-tables", "permissions/yaml")
    for operation in sorted(TABLE, key=lambda line: (line.endswith(last), line)):
        found = []
        for caller in CALLERS:
            method, path, given = await request_for(client, operation)
            headers = {**keys[caller], **given.pop("headers", {})}
            answer = await client.request(method, path, headers=headers, **given)
            found.append(str(answer.status_code))
        if " ".join(found) != TABLE[operation]:
            wrong.append(f"{operation}: {' '.join(found)} instead of {TABLE[operation]}")
    assert not wrong, "\n" + "\n".join(wrong)


async def test_who_cannot_be_recognised_gets_nothing(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    _AUTHORS["conn"] = conn
    strangers: list[dict[str, str]] = [{}, {"X-API-Key": "garbage"}, {"X-API-Key": generate_key()}]
    strangers += [{"Authorization": "Bearer garbage"}, {"Authorization": "Basic Zm9vOmJhcg=="}]
    strangers += [{"Cookie": "mdm_session=garbage", "Origin": "http://mdm.example"}]
    past = datetime.now(UTC) - timedelta(seconds=1)
    for column in ("expires_at", "revoked_at"):
        key = generate_key()
        await conn.execute(
            "INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by, "
            f"{column}) VALUES (%s, %s, true, 'test', %s)",
            [column, digest(key), past],
        )
        strangers.append({"X-API-Key": key})
    public = {f"{o.method} {o.path}" for o in OPERATIONS if o.access is Access.PUBLIC}
    for operation in sorted(set(TABLE) - public):
        method, path, given = await request_for(client, operation)
        more = given.pop("headers", {})
        for headers in strangers:
            answer = await client.request(method, path, headers={**headers, **more}, **given)
            assert answer.status_code == 401, (operation, headers, answer.text)
            problem = json.loads(answer.content)
            assert problem["code"] == "AUTH_REQUIRED" and "WWW-Authenticate" in answer.headers
