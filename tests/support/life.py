"""A life of one repository, as its people and its warehouse live it: ``Life`` plays it round by round.

Definitions are kept as a model of their own, small and independent of the product: it says what files
are written, what the warehouse must be after each round, and whether a person has to say yes. What is
real: git, the signatures, the operator and the API as processes, the warehouse, kill -9.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import psycopg

from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from tests.acceptance.processes import KEY, environment, until
from tests.support import program

PROJECT: Final = "name: life\napiVersion: mdm-gitops/v1\ndomains: [{name: core}]\n"
PERMISSIONS: Final = (
    "permissions:\n  - {users: ['group:readers'], domains: [core], entities: [], actions: [read]}\n"
)
REASONS: Final = {
    "invalid": "DEFINITION_INVALID",
    "approval-pending": "PLAN_REFUSED",
    "unsigned": "SOURCE_NOT_VERIFIED",
    "rewound": "SOURCE_REWOUND",
}
BROKEN: Final = (
    "name: [\n",
    "name: {name}\ndomain: core\ncolumns: []\n",
    "name: {name}\ndomain: nowhere\ncolumns:\n  - {{name: code, dataType: string}}\n",
    "name: {name}\ndomain: core\ncolour: red\ncolumns:\n  - {{name: code, dataType: string}}\n",
    "name: {name}\ndomain: core\ncolumns:\n  - {{name: code, dataType: colour}}\n",
    "name: {name}\ndomain: core\ncolumns:\n  - &a {{name: code, dataType: string}}\n",
)


@dataclass
class Column:
    number: int  # what it is, whatever it is called
    name: str
    former: str = ""

    @property
    def line(self) -> str:
        renamed = f", renamedFrom: {self.former}" if self.former else ""
        return f"  - {{name: {self.name}, dataType: string{renamed}}}\n"


@dataclass
class Entity:
    name: str
    title: str
    columns: list[Column] = field(default_factory=list)

    @property
    def text(self) -> str:
        head = f"name: {self.name}\ndisplayName: {self.title}\ndomain: core\nkeyColumns: [code]\n"
        key = "columns:\n  - {name: code, dataType: string, nullable: false}\n"
        return head + key + "".join(column.line for column in self.columns)


Model = dict[str, Entity]


def files_of(model: Model) -> dict[str, bytes]:
    entities = {f"entities/{each.name}.yaml": each.text.encode() for each in model.values()}
    return {"mdm.yaml": PROJECT.encode(), "permissions.yaml": PERMISSIONS.encode(), **entities}


def needs_a_person(before: Model, after: Model) -> bool:
    """Whether something goes away or gets another name."""
    for name, entity in before.items():
        names = {column.name for column in after[name].columns} if name in after else set()
        if name not in after or not {column.name for column in entity.columns} <= names:
            return True
    return False


class Life:
    """*folder* is new, *url* an empty warehouse. Use it as a context: it ends its processes."""

    def __init__(
        self, folder: Path, url: str, *, seed: int, mode: str = "heal", kill_share: float = 0.08
    ) -> None:
        self.folder, self.url, self.mode, self.kill_share = folder, url, mode, kill_share
        self.random = random.Random(seed)
        self.wanted: Model = {}  # what the developer's files say, but for one that is broken
        self.expected: Model = {}  # what the warehouse must be
        self.past: list[Model] = []
        self.broken = ""  # the entity whose file cannot be read
        self.trouble = ""  # what keeps the last commit out: approval-pending, unsigned, rewound
        self.rows: dict[str, dict[str, dict[int, str]]] = {}  # entity -> code -> column -> value
        self.numbers = iter(range(1, 1_000_000))
        self.did: list[str] = []
        self.kills = 0
        self.processes: list[program.Started] = []
        self.operator: program.Started | None = None
        self.api: httpx2.Client = None  # type: ignore[assignment]

    # --- beginning and end ---

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self.home, self.clone = self.folder / "home", self.folder / "clone"
        self.bare = self.folder / "remote.git"
        self.home.mkdir()
        self._run("git", "init", "-q", "--bare", "-b", "main", str(self.bare))
        self._run("git", "clone", "-q", str(self.bare), str(self.clone))
        key = self.folder / "key"
        self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        allowed = self.folder / "allowed"
        allowed.write_text(f"dev@example.com {key.with_suffix('.pub').read_text()}")
        self.settings = {
            "Mdm__Database__Url": self.url,
            "Mdm__Source__Url": f"file://{self.bare}",
            "Mdm__Source__Branch": "main",
            "Mdm__Source__AllowedSigners": str(allowed),
            "Mdm__Operator__IntervalSeconds": "3600",
            "Mdm__Operator__FirstRetrySeconds": "0.1",
            "Mdm__Operator__Mode": self.mode,
            "Mdm__RateLimit__Enabled": "false",
            "Mdm__Auth__BootstrapApiKey": KEY,
        }
        try:
            self.api = self._serve()
            self.start_operator()
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.api is not None:
            self.api.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _serve(self) -> httpx2.Client:
        log = self.folder / "api.log"
        self._start("serve", str(self.home), "--port", "0", log=log)
        until(lambda: "listening on " in log.read_text(), log.read_text)
        address = log.read_text().partition("listening on ")[2].split()[0]
        api = httpx2.Client(base_url=address, headers={"X-API-Key": KEY}, timeout=60, verify=False)

        def answers() -> bool:
            try:
                return api.get("/readyz").status_code == 200
            except httpx2.HTTPError:
                return False

        until(answers, log.read_text)
        return api

    def start_operator(self) -> None:
        log = self.folder / "operator.log"
        self.operator = self._start("operator", str(self.home), "--json", log=log)

    def _start(self, *arguments: str, log: Path) -> program.Started:
        with log.open("ab") as file:
            env = environment(**self.settings)
            process = program.start(*arguments, env=env, stdout=file, stderr=file)
        self.processes.append(process)
        return process

    def _begin(self) -> None:
        """The first commit gives rights, so somebody has to say yes to it."""
        for _ in range(2):
            self._add_entity(self.wanted)
        self._commit()
        if self.mode == "heal":
            self._quiet("approval-pending")
            self._approve()
            self._settled()

    # --- a round ---

    def round(self) -> None:
        """Do one thing that happens in a life; then wait until it is quiet, and look."""
        choices: dict[Callable[[], None], int] = {
            self.good: 6,
            self.person_needed: 3,
            self.break_file: 3 if not self.broken and not self.trouble else 0,
            self.mend_file: 4 if self.broken and not self.trouble else 0,
            self.revert: 2 if self.past and not self.broken else 0,
            self.unsigned: 2 if not self.trouble else 0,
            self.rewrite: 2 if not self.broken and not self.trouble else 0,
        }
        if self.trouble:
            choices = {self.out_of_trouble: 1}
        if self.random.random() < 0.4:
            self._write_row()
        if self.random.random() < 0.25:
            self._drift()
        chosen = self.random.choices(list(choices), list(choices.values()))[0]
        self.did.append(chosen.__name__)
        chosen()

    def good(self) -> None:
        self._change(self.wanted)
        self._commit()
        self._settled()

    def person_needed(self) -> None:
        """Something goes, or gets another name."""
        model = copy.deepcopy(self.wanted)
        entity = self._one(model)
        kind = self.random.choice(("column", "rename", "entity"))
        if kind == "entity" and len(model) > 1 and not self.broken:
            del model[entity.name]
        elif entity.columns:
            column = self.random.choice(entity.columns)
            if kind == "rename":
                column.former, column.name = column.name, f"c{next(self.numbers)}"
            else:
                entity.columns.remove(column)
        else:
            return self.good()
        self.wanted = model
        self._commit()
        self._settled()
        return None

    def break_file(self) -> None:
        entity = self._one(self.wanted)
        self.broken = entity.name
        self.text = self.random.choice(BROKEN).format(name=entity.name)
        self._commit()
        self._settled()

    def mend_file(self) -> None:
        self.broken = ""
        self._commit()
        self._settled()

    def revert(self) -> None:
        self.wanted = copy.deepcopy(self.past.pop())
        self._commit()
        self._settled()

    def unsigned(self) -> None:
        self._change(self.wanted)
        self._commit(sign=False)
        self.trouble = "unsigned"
        self._quiet("refused", code=REASONS["unsigned"])
        self.check()

    def rewrite(self) -> None:
        """Somebody changes a commit that was taken already."""
        self.before_rewrite = self._git("rev-parse", "HEAD"), copy.deepcopy(self.wanted)
        self._change(self.wanted)
        self._commit(amend=True)
        self.trouble = "rewound"
        self._quiet("refused", code=REASONS["rewound"])
        self.check()

    def out_of_trouble(self) -> None:
        match self.trouble:
            case "unsigned":  # somebody who may signs what builds on it
                self.trouble = ""
                self._commit()
            case "rewound":
                commit, self.wanted = self.before_rewrite
                self._git("reset", "-q", "--hard", commit)
                self.trouble = ""
                self._change(self.wanted)
                self._commit()
            case _ if self.random.random() < 0.5:
                self.trouble = ""
                self._approve()
            case _:
                self.trouble = ""
                self.wanted = copy.deepcopy(self.expected)
                self._commit()
        self._settled()

    # --- what must be ---

    def _settled(self) -> None:
        """Work out what the warehouse must be now, wait for it, and look."""
        wanted = copy.deepcopy(self.wanted)
        if self.broken:
            known = self.expected.get(self.broken)
            wanted = {n: e for n, e in wanted.items() if n != self.broken}
            if known is not None:
                wanted[self.broken] = copy.deepcopy(known)
        if needs_a_person(self.expected, wanted) and not self.approved:
            self.trouble = "approval-pending"
            if self.broken:
                self._quiet("invalid", code=REASONS["invalid"])
            else:
                self._quiet("approval-pending", code=REASONS["approval-pending"])
        else:
            if self.expected and self.expected != wanted:
                self.past.append(self.expected)
            self.expected = wanted
            if self.broken:
                self._quiet("invalid", code=REASONS["invalid"])
            else:
                self._quiet("applied", "in-sync")
        self.approved = False
        self.check()

    approved = False

    def check(self) -> None:
        """The warehouse is what it must be, and every row that was ever written is there."""
        plan = asyncio.run(self._plan())
        where = f"after {self.did[-8:]}: {self._status()}"
        assert not plan, f"not as the last acceptable commit: {plan} {where}"
        with psycopg.connect(self.url) as conn:
            for name, rows in self.rows.items():
                if name not in self.expected:
                    continue
                columns = self.expected[name].columns
                listed = ", ".join(["code", *(f'"{column.name}"' for column in columns)])
                query = f'SELECT {listed} FROM mdm_data."{name}"'
                found = {row[0]: row[1:] for row in conn.execute(query.encode())}
                for code, values in rows.items():
                    for column, value in zip(columns, found[code], strict=True):
                        assert values.get(column.number) == value, f"{name} {code} {where}"

    async def _plan(self) -> list[str]:
        async with await connect(self.url, application_name="the test") as conn:
            plan = await make_plan(conn, read_tree(files_of(self.expected)), schemas=Schemas())
        refused = [refusal.message for refusal in plan.refusals]
        return [repr(item.change)[:300] for item in plan.changes] + refused

    # --- what people do ---

    def _change(self, model: Model) -> None:
        kind = self.random.choice(("column", "title", "entity"))
        entity = self._one(model)
        if kind == "entity" and len(model) < 5:
            self._add_entity(model)
        elif kind == "title":
            entity.title = f"Title {next(self.numbers)}"
        else:
            number = next(self.numbers)
            entity.columns.append(Column(number, f"c{number}"))

    def _add_entity(self, model: Model) -> None:
        number = next(self.numbers)
        model[f"e{number}"] = Entity(
            f"e{number}", f"Entity {number}", [Column(number, f"c{number}")]
        )

    def _one(self, model: Model) -> Entity:
        """Any entity but the broken one."""
        return model[self.random.choice([name for name in model if name != self.broken])]

    def _approve(self) -> None:
        [plan] = self.api.get("/api/v1/plans").json()["items"]
        answer = self.api.post(f"/api/v1/plans/{plan['id']}/approve")
        assert answer.status_code == 200, answer.text
        self.approved = True

    def _write_row(self) -> None:
        """Through the API, as a person would."""
        name = self.random.choice(list(self.expected))
        number = next(self.numbers)
        values = {column.number: f"v{number}" for column in self.expected[name].columns}
        row = {column.name: f"v{number}" for column in self.expected[name].columns}
        answer = self.api.post(f"/api/v1/entities/{name}/data", json={"code": f"r{number}", **row})
        assert answer.status_code == 201, answer.text
        self.rows.setdefault(name, {})[f"r{number}"] = values

    def _drift(self) -> None:
        name = self.random.choice(list(self.expected))
        statement = self.random.choice(
            (
                f'DROP INDEX mdm_data."{name}__uq_code"',
                f'ALTER TABLE mdm_data."{name}" ALTER COLUMN code DROP NOT NULL',
            )
        )
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(statement.encode())
        self.did.append("drift")

    def _commit(self, *, sign: bool = True, amend: bool = False) -> None:
        files: Mapping[str, bytes] = files_of(self.wanted)
        if self.broken:
            files = {**files, f"entities/{self.broken}.yaml": self.text.encode()}
        for path in (self.clone / "entities").glob("*.yaml"):
            path.unlink()
        for name, data in files.items():
            (self.clone / name).parent.mkdir(exist_ok=True)
            (self.clone / name).write_bytes(data)
        self._git("add", "--all")
        more = ["-S"] if sign else []
        more += ["--amend"] if amend else []
        self._git(
            "commit", "-q", "--allow-empty", "-m", self.did[-1] if self.did else "first", *more
        )
        self._git("push", "-q", "--force", "origin", "HEAD:main")

    def _git(self, *arguments: str) -> str:
        options = ("-c", "user.name=dev", "-c", "user.email=dev@example.com")
        signing = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={self.folder / 'key'}")
        return self._run("git", "-C", str(self.clone), *options, *signing, *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    # --- waiting ---

    def _quiet(self, *outcomes: str, code: str = "") -> None:
        """Ask for a run until one has ended, perhaps killing the operator meanwhile."""
        if self.random.random() < self.kill_share:
            self._request()
            time.sleep(self.random.uniform(0, 0.3))
            self._kill()
        number = self._request()
        status: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal status
            status = self._status()
            return status["handled"] >= number and status["history"][0]["outcome"] != "failed"

        until(ended, lambda: f"{status}\n{(self.folder / 'operator.log').read_text()[-4000:]}")
        last = status["history"][0]
        assert last["outcome"] in outcomes, (self.did[-8:], last)
        if code:
            assert last["code"] == code, last
            assert last["message"], "every refusal has its reason"

    def _request(self) -> int:
        return int(self.api.post("/api/v1/reconcile").json()["requested"])

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/api/v1/reconciliation").json()
        return found

    def _kill(self) -> None:
        assert self.operator is not None
        os.kill(self.operator.pid, signal.SIGKILL)
        self.operator.wait()
        self.kills += 1
        self.did.append("kill -9")
        self.start_operator()

    def summary(self) -> str:
        counts = {name: self.did.count(name) for name in sorted(set(self.did))}
        return json.dumps(counts)
