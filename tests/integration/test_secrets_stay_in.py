"""No secret leaves: canaries in every place that takes one, errors of every kind, and all output of real
processes searched for them: logs, answers, audit, change feed, webhooks, metrics."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.receivers import Receiver, broken, fine, receiving, until
from tests.support.served_folder import git
from tests.support.server_process import KEY, PROGRAM, Process, serving

pytestmark = pytest.mark.anyio


def canary(name: str) -> str:
    """A word that stands nowhere else, and that no pattern of a credential would strike out."""
    return f"Canary7{name}Sings"


PASSWORD = canary("DatabasePassword")
GIT = canary("GitCredential")
ROW = canary("RestrictedValue")
QUERY = canary("QueryValue")
URL_TOKEN = canary("WebhookUrlToken")
CLIENT_SECRET = canary("ClientSecret") * 3
HOOK = "whsec_" + base64.b64encode(canary("WebhookSecretOfTheEnvironment").encode()).decode()
BROKEN_HOOK = "whsec_" + canary("NoSecretAtAll") + "!"
CREDENTIALS = {
    "X-API-Key": canary("ApiKey") + "0" * 20,
    "Authorization": f"Bearer {canary('BearerToken')}.e30.x",
    "Cookie": f"mdm_session={canary('SessionCookie')}",
}
SHOWN = canary("PublicValue")
# Restricted values in answers are masked; these must not stand anywhere at all.
SECRETS = (PASSWORD, GIT, ROW, QUERY, URL_TOKEN, CLIENT_SECRET, HOOK, BROKEN_HOOK, KEY)
SECRETS += tuple(CREDENTIALS.values())
ADMIN = {"X-API-Key": KEY}
CSV = f"code,salary,born\nx,{ROW},\ny,,{ROW}\nz,{ROW},2020-01-01\nw,{ROW * 9},\n{ROW}"
THINGS = "/api/v1/entities/thing/data"
FILES = {
    "mdm.yaml": "name: t\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n",
    "entities/thing.yaml": """name: thing
domain: d
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: salary, dataType: string, maxLength: 40, unique: true, classification: restricted}
  - {name: born, dataType: date, classification: restricted}
""",
    "permissions.yaml": """permissions:
  - {users: ["apikey:reader"], domains: [d], entities: [], actions: [read, write]}
""",
}


class Output:
    """All that came out, by where."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add(self, where: str, text: str | bytes) -> None:
        told = text.decode(errors="replace") if isinstance(text, bytes) else text
        self.texts[where] = self.texts.get(where, "") + told

    def found(self, word: str) -> list[str]:
        spellings = {word, json.dumps(word)[1:-1], base64.b64encode(word.encode()).decode()}
        spellings.add(word.removeprefix("whsec_"))
        return [
            where for where, text in self.texts.items() if any(each in text for each in spellings)
        ]

    def keeping(self, where: str) -> Callable[[httpx2.Response], None]:
        def keep(answer: httpx2.Response) -> None:
            answer.read()
            told = " ".join(f"{name}: {value}" for name, value in answer.headers.items())
            self.add(where, f"{answer.status_code} {told}\n{answer.text}\n")

        return keep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "entities").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitignore").write_text("log\n")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Begin"]):
        git(tmp_path, *command)
    return tmp_path


async def test_no_canary_sings(database_url: str, folder: Path) -> None:
    output = Output()
    variables = {
        "Mdm__RateLimit__Enabled": "false",
        "Mdm__Webhooks__Validation": "Strict",
        "Mdm__Webhooks__AllowedHosts": "127.0.0.1",
        "HOOK": HOOK,
        "BROKEN_HOOK": BROKEN_HOOK,
    }
    async with receiving(fine, broken) as receivers:
        with serving(database_url, folder, **variables) as server:
            server.client.event_hooks = {"response": [output.keeping("answers")]}
            await asyncio.to_thread(_use, server, receivers, database_url, output)
            await until(lambda: bool(receivers[0].got and receivers[1].got), 20)
            await asyncio.to_thread(_break, server, database_url)
            assert await asyncio.to_thread(server.stop) == 0
            output.add("log of the server", server.log)
        for receiver in receivers:
            for document, headers, _ in receiver.got:
                output.add("webhooks", f"{headers} {document}")
    await asyncio.to_thread(_other_programs, folder, database_url, output)

    password = str(conninfo_to_dict(database_url)["password"])
    sung = {word: output.found(word) for word in (*SECRETS, password)}
    assert {word: where for word, where in sung.items() if where} == {}
    # The control: the same search finds what is no secret, wherever it was planted.
    assert {"answers", "webhooks"} <= set(output.found(SHOWN))
    assert {"answers", "log of the server"} <= set(output.found("apikey:reader"))
    log = output.texts["log of the server"]
    assert log.count('"traceback"') >= 1, "no error was provoked that nobody had thought of"
    assert '"webhook blocked"' in log and '"a delivery failed"' in log


def _use(server: Process, receivers: list[Receiver], database_url: str, output: Output) -> None:
    """Put canaries where they belong, ask for them in all ways, and do so wrongly."""
    client = server.client
    assert client.post("/api/v1/entities/thing/deploy", json={}).status_code == 200
    reader = _key(server)
    for number, hook in enumerate(
        (
            {"name": "good", "url": receivers[0].url, "secretRef": "HOOK"},
            {"name": "broken", "url": f"{receivers[1].url}?token={URL_TOKEN}"},
            {"name": "unsigned", "url": receivers[0].url, "secretRef": "BROKEN_HOOK"},
        )
    ):
        # The answer shows a new secret once, and the URL to the admin: that is what they are for.
        made = httpx2.post(f"{server.url}/api/v1/webhooks", json=hook, headers=ADMIN, verify=False)
        assert made.status_code == 201, (number, made.text)
    blocked = {"name": "blocked", "url": f"http://localhost:1/hook?token={URL_TOKEN}"}
    client.post("/api/v1/webhooks", json=blocked)
    with psycopg.connect(database_url, autocommit=True) as conn:
        # A subscription from before the rules were as they are now.
        definition = json.dumps(blocked)
        conn.execute(
            "INSERT INTO mdm.webhook (name, definition) VALUES ('blocked', %s)", [definition]
        )
    rows = [
        {"code": SHOWN, "salary": ROW},
        {"code": "same", "salary": ROW},  # not unique
        {"code": "long", "salary": ROW * 9},
        {"code": "date", "born": ROW},
    ]
    for headers in ({"X-API-Key": reader}, *({name: CREDENTIALS[name]} for name in CREDENTIALS)):
        with httpx2.Client(base_url=server.url, headers=headers, verify=False) as caller:
            caller.event_hooks = {"response": [output.keeping("answers")]}
            for row in rows:
                caller.post(THINGS, json=row)
            caller.post(f"{THINGS}/bulk-csv", content=CSV, headers={"Content-Type": "text/csv"})
            caller.post(f"{THINGS}/bulk", json=rows)
            caller.get(THINGS)
            caller.get(f"{THINGS}/export", params={"format": "csv"})
            caller.get(THINGS, params={"filter": f"[salary] = '{QUERY}'"})
            caller.get("/api/v1/changes")
            caller.get(f"/api/v1/{CREDENTIALS['X-API-Key']}")
            caller.get("/api/v1/webhooks")
    # A Global Admin sees restricted values, in the audit as in rows; nothing else that is secret.
    with httpx2.Client(base_url=server.url, headers=ADMIN, verify=False) as caller:
        text = caller.get("/api/v1/audit", params={"take": "1000"}).raise_for_status().text
        assert ROW in text
        output.add("audit", text.replace(ROW, ""))
    client.get("/api/v1/api-keys")
    client.get("/metrics")


def _key(server: Process) -> str:
    made = httpx2.post(f"{server.url}/api/v1/api-keys", json={"name": "reader"}, headers=ADMIN)
    assert made.status_code == 201, made.text
    # What the definitions say of permissions takes effect with a deployment of them.
    import yaml

    text = yaml.safe_dump({"permissions": yaml.safe_load(FILES["permissions.yaml"])["permissions"]})
    httpx2.post(
        f"{server.url}/api/v1/permissions/yaml",
        content=text,
        headers={**ADMIN, "Content-Type": "application/yaml"},
    )
    key: str = made.json()["key"]
    return key


def _break(server: Process, database_url: str) -> None:
    """Let PostgreSQL raise errors that quote rows, in the middle of statements."""
    raising = f"""CREATE FUNCTION mdm_data.sing() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'row % {ROW}', NEW USING DETAIL = '{ROW}', ERRCODE = %s; END $$;
        CREATE TRIGGER sing BEFORE INSERT OR UPDATE ON mdm_data.thing
        FOR EACH ROW EXECUTE FUNCTION mdm_data.sing()"""
    with psycopg.connect(database_url, autocommit=True) as conn:
        for state in ("P0001", "XX000", "22023", "23514", "53100", "42501"):
            text = raising.replace("%s", f"'{state}'")
            conn.execute(text.encode())  # type: ignore[arg-type]
            told = server.client.post(THINGS, json={"code": f"c{state}", "salary": "x"})
            assert told.status_code >= 400, (state, told.text)
            conn.execute("DROP FUNCTION mdm_data.sing() CASCADE")
        conn.execute("ALTER TABLE mdm.event RENAME COLUMN old TO canary")
        server.client.post(THINGS, json={"code": "moved"})
        server.client.get("/api/v1/changes")
        conn.execute("ALTER TABLE mdm.event RENAME COLUMN canary TO old")


def _other_programs(folder: Path, url: str, output: Output) -> None:
    """Start them with settings that are wrong, and with a database that is not there."""
    settings: list[tuple[str, dict[str, str]]] = [
        ("plan", {"Mdm__Database__Url": f"postgresql://mdm:{PASSWORD}%zz@h:x/mdm"}),
        ("plan", {"Mdm__Database__Url": make_conninfo(url, user="nobody")}),
        (
            "operator",
            {
                "Mdm__Database__Url": f"postgresql://mdm:{PASSWORD}@127.0.0.1:1/mdm",
                "Mdm__Auth__ClientSecret": CLIENT_SECRET,
                "Mdm__Source__Url": "http://127.0.0.1:1/x.git",
                "Mdm__Source__Password": GIT,
            },
        ),
        ("serve", {"Mdm__Auth__BootstrapApiKey": canary("ApiKey")[:12]}),
    ]
    started = [
        subprocess.Popen(
            [PROGRAM, command, str(folder)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, variables in settings
    ]
    for (command, _), process in zip(settings, started, strict=True):
        if command == "operator":  # it goes on trying
            assert process.stdout is not None
            output.add(command, process.stdout.readline() + process.stdout.readline())
            process.terminate()
        output.add(command, process.communicate(timeout=60)[0])
        assert "Traceback" not in output.texts[command]


def test_lines_of_logs_hold_no_values_and_no_credentials(capsys: Any) -> None:
    """What goes wrong beside all rules: the last net, in both forms."""
    import logging.config

    from pydantic import BaseModel, SecretStr

    from mdm_gitops.logs import keep_out, log_config, tracing

    class Given(BaseModel):
        Url: SecretStr = SecretStr(f"postgresql://u:{PASSWORD}%2F@h/d")
        Other: SecretStr = SecretStr(CLIENT_SECRET)

    keep_out(Given())
    key = "mdm_" + "a1" * 19
    try:
        try:
            raise KeyError(ROW)
        except KeyError as inner:
            raise ExceptionGroup(ROW, [ValueError(ROW)]) from inner
    except ExceptionGroup as error:
        failure = error
    earlier = logging.root.handlers[:]
    try:
        for as_json in (True, False):
            logging.config.dictConfig(log_config(as_json=as_json))
            log = logging.getLogger("another.package")
            with tracing("0" * 31 + "1"):
                log.error("%s %s/ and %s", key, PASSWORD, CLIENT_SECRET, exc_info=failure)
                log.warning("http://user:%s@host/ Bearer %s %s", GIT, "abcdefgh1234", HOOK)
            told = capsys.readouterr().err
            for word in (key, PASSWORD, CLIENT_SECRET, ROW, GIT, "abcdefgh1234", HOOK):
                assert word not in told, word
            assert told.count("***") >= 6 and "ValueError" in told and "KeyError" in told
            assert __name__.rpartition(".")[2] in told, "the place is told"
            if as_json:
                lines = [json.loads(line) for line in told.splitlines()]
                assert {line["traceId"] for line in lines} == {"0" * 31 + "1"}
                assert [line["level"] for line in lines] == ["error", "warning"]
    finally:
        logging.root.handlers[:] = earlier
