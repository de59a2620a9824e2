"""A server with two worker processes: what one of them writes, the other knows at once."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from tests.support import server_process
from tests.support.server_process import Process, serving

folder = server_process.folder
FILTERS = "/api/entities/thing/saved-filters"


def spread(server: Process, key: str, path: str, *, count: int = 24) -> list[int]:
    """Return the statuses of requests over connections of their own, which both workers get."""
    headers = {"X-API-Key": key, "Connection": "close"}
    return [server.client.get(path, headers=headers).status_code for _ in range(count)]


def test_keys_and_filters_hold_on_all_workers(empty_database_url: str, folder: Path) -> None:
    unlimited = {"Mdm__RateLimit__Enabled": "false"}
    with serving(empty_database_url, folder, "--workers", "2", **unlimited) as server:
        try:
            _make_use_and_revoke(server)
        finally:
            assert server.stop() == 0  # the workers too, which outlive a parent that is killed


def _make_use_and_revoke(server: Process) -> None:
    assert server.client.post("/api/v1/entities/thing/deploy", json={}).status_code == 200
    made = server.client.post("/api/v1/api-keys", json={"name": "a", "isGlobalAdmin": True})
    key = made.json()["key"]
    assert set(spread(server, key, "/api/v1/me")) == {200}

    for name in ("a/b", "../x", "100%", "Zürich 日本", "x" * 200, "%2F"):
        created = server.client.post(FILTERS, json={"name": name, "sort": "code"})
        location = created.headers["location"]
        assert location == f"{FILTERS}/{quote(name, safe='')}"
        assert set(spread(server, key, location, count=4)) == {404}  # another caller
        read = server.client.get(location)
        assert (read.status_code, read.json()["name"]) == (200, name)
        assert server.client.delete(location).status_code == 204

    assert server.client.delete("/api/v1/api-keys/a").status_code == 204
    for path in ("/api/v1/me", "/api/v1/entities/thing/data"):
        assert set(spread(server, key, path)) == {401}
