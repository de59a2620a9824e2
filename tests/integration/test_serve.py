"""The real thing: ``mdm-gitops serve`` as a process, on a port, stopped by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg

from tests.support import server_process
from tests.support.server_process import KEY, PROGRAM, is_listening, serving

folder = server_process.folder


def test_it_migrates_serves_logs_and_stops(empty_database_url: str, folder: Path) -> None:
    with serving(empty_database_url, folder, afresh=True) as server:
        listed = server.client.get("/api/v1/entities/summary", params={"state": "draft"})
        assert [item["name"] for item in listed.json()["items"]] == ["thing"]
        assert server.client.get("/api/v1/entities/thing/data").status_code == 409
        assert "server" not in listed.headers
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["logger"] == "mdm_api.access"]
    assert [(line["route"], line["status"]) for line in requests] == [
        ("/api/v1/entities/summary", 200),
        ("/api/v1/entities/{name}/data", 409),
    ], "checks of health are not logged"
    assert requests[0]["principal"] == "apikey:bootstrap"
    assert KEY not in server.log and "draft" not in server.log
    with psycopg.connect(empty_database_url) as conn:
        used = conn.execute("SELECT last_used_at FROM mdm.api_key").fetchone()
    assert used and used[0] is not None


def test_the_first_start_prints_a_key_once(empty_database_url: str, folder: Path) -> None:
    pattern = r"shown only now: (mdm_[0-9A-Za-z]{38})\n"
    with serving(empty_database_url, folder, Mdm__Auth__BootstrapApiKey="") as server:
        (key,) = re.findall(pattern, server.log)
        found = server.client.get("/api/v1/entities", headers={"X-API-Key": key})
        assert found.status_code == 200
        assert server.stop(signal.SIGINT) == 0
    with serving(empty_database_url, folder, Mdm__Auth__BootstrapApiKey="") as server:
        assert re.findall(pattern, server.log) == []
        assert server.client.get("/api/v1/entities").status_code == 401


def test_workers_share_their_numbers_and_end_with_their_parent(
    database_url: str, folder: Path
) -> None:
    with serving(database_url, folder, "--workers", "2", afresh=True) as server:
        # Each over a connection of its own, so that both workers get some.
        for _ in range(20):
            server.client.get(
                "/api/v1/entities", headers={"Connection": "close"}
            ).raise_for_status()
        text = server.client.get("/metrics").text
        (count,) = re.findall(
            r'mdm_http_requests_total\{.*route="/api/v1/entities",status="200"\} (\d+)', text
        )
        assert int(count) == 20
        server.client.close()
        server.process.kill()
        server.process.wait()
        # Each worker holds the listening socket: it is closed when the last of them is gone.
        deadline = time.monotonic() + 30
        while is_listening(server.url):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.05)
        assert server.log.count("the parent process is gone") == 2


def test_a_request_under_way_is_answered_after_sigterm(database_url: str, folder: Path) -> None:
    with serving(database_url, folder) as server:
        address = server.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as slow:
            head = f"POST /api/v1/entities/parse-yaml HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n"
            body = (folder / "entities/thing.yaml").read_bytes()
            head += f"Content-Type: text/yaml\r\nContent-Length: {len(body)}\r\n\r\n"
            slow.sendall(head.encode() + body[:10])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            slow.sendall(body[10:])
            slow.settimeout(10)
            assert slow.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert server.process.wait(timeout=30) == 0


def test_a_taken_port_is_told(database_url: str, folder: Path) -> None:
    with serving(database_url, folder) as server:
        port = server.url.rpartition(":")[2]
        command = [PROGRAM, "serve", str(folder), "--port", port]
        environment = {**os.environ, "Mdm__Database__Url": database_url}
        second = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use" in second.stderr
    assert "Traceback" not in second.stderr


def test_what_a_caller_says_of_its_address_and_of_ours_changes_nothing(
    database_url: str, folder: Path
) -> None:
    limit = {"Mdm__RateLimit__Enabled": "true", "Mdm__RateLimit__PermitLimit": "6"}
    with serving(database_url, folder, **limit, Mdm__RateLimit__WindowSeconds="3600") as server:
        for host in ("x.example.", "x/../../healthz?", "localhost:1/readyz#"):
            there = server.client.get("/api/v1/entities", headers={"Host": host})
            assert there.status_code == 200, host
            nothing = server.client.get("/api/v1/nothing", headers={"Host": host})
            assert nothing.json()["detail"] == "there is nothing at this path", host
        # Who brings no key that counts is counted by where the connection comes from; so is what is not there.
        statuses = [
            server.client.get(
                "/api/v1/entities",
                headers={
                    "X-API-Key": "wrong",
                    "X-Forwarded-For": f"203.0.113.{n}",
                    "Forwarded": f"for=192.0.2.{n}",
                },
            ).status_code
            for n in range(8)
        ]
    assert statuses == [401] * 3 + [429] * 5
