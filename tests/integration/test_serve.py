"""The real thing: ``mdm-gitops serve`` as a process, on a port, stopped by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

KEY = "bootstrap-key-of-the-tests"
PROGRAM = str(Path(sys.executable).with_name("mdm-gitops"))


@contextmanager
def serving(database_url: str, folder: Path, *options: str, **variables: str) -> Iterator[Process]:
    environment = {
        **os.environ,
        "Mdm__Database__Url": database_url,
        "Mdm__Auth__BootstrapApiKey": KEY,
        **variables,
    }
    command = [PROGRAM, "serve", str(folder), "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=log
        )
    server = Process(process, folder / "log")
    try:
        server.start()
        yield server
    finally:
        server.client.close()
        process.kill()
        process.communicate()


class Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""
        self.client = httpx2.Client(headers={"X-API-Key": KEY})

    def start(self) -> None:
        self.url = self._wait_for(r"listening on (\S+)")
        self.client.base_url = self.url
        self._wait_until_ready()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _wait_for(self, pattern: str) -> str:
        for _ in range(600):
            if found := re.search(pattern, self.log):
                return found[1]
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def _wait_until_ready(self) -> None:
        for _ in range(600):
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx2.TransportError:
                assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "entities").mkdir()
    (tmp_path / "mdm.yaml").write_text("name: t\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n")
    (tmp_path / "entities/thing.yaml").write_text(
        "name: thing\ndomain: d\ncolumns:\n  - {name: code, dataType: string}\n"
    )
    return tmp_path


def test_it_migrates_serves_logs_and_stops(empty_database_url: str, folder: Path) -> None:
    with serving(empty_database_url, folder) as server:
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
    with serving(database_url, folder, "--workers", "2") as server:
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


def is_listening(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    except TimeoutError:
        return True
    return True


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
