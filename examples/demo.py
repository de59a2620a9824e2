"""The product in one minute: ``make demo``.

Runs the real command line on a copy of ``examples/reference-data``, shows what each command prints, and
checks it: when something is not as it is told here, the demo ends with exit code 1. Nothing is left
running, and nothing outside of the copy is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(sys.executable).with_name("mdm-gitops")
API_KEY = "a-key-that-only-this-demo-uses"
WAIT_S = 30.0
GIT = (
    "git",
    "-c",
    "user.name=demo",
    "-c",
    "user.email=demo@localhost",
    "-c",
    "commit.gpgsign=false",
)


class DemoFailed(Exception):
    """Something is not as the demo says."""


def main() -> int:
    started = time.monotonic()
    work = ROOT / ".work"
    work.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=work)) / "reference-data"
    signal.signal(signal.SIGTERM, _terminated)
    demo = Demo(folder)
    try:
        demo.run()
    except (DemoFailed, OSError, subprocess.SubprocessError) as error:
        write(f"\nThe demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        write("\nStopped.")
        return 130
    finally:
        demo.clean_up()
    write(
        f"\nDone in {time.monotonic() - started:.0f} s. Nothing is left running. To keep it: make up"
    )
    return 0


class Demo:
    """The steps, one method each, in the order in which they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Settings of the caller could name a database of the caller's.
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().startswith("mdm__") or "embedded" in name.lower()
        } | {"NO_COLOR": "1", "COLUMNS": "100"}
        self.up: subprocess.Popen[str] | None = None

    def run(self) -> None:
        self.start_postgresql()
        self.plan_and_apply()
        self.plan_again()
        self.drift_and_heal()
        self.rule_that_rows_break()
        self.change_and_revert()
        self.serve()
        self.stop_everything()

    # --- 1 ---

    def start_postgresql(self) -> None:
        title(1, "A database comes with the package")
        explain(
            "The definitions are a Git repository: YAML for entities, permissions and webhooks, JSON"
            " for reference rows. The copy used here holds four ISO standards. PostgreSQL starts from"
            " the Python package; its data stays in .mdm beside the definitions."
        )
        shutil.copytree(
            ROOT / "examples" / "reference-data",
            self.folder,
            ignore=shutil.ignore_patterns(".*", "__pycache__"),
        )
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("Reference data")
        told = self.mdm("db", "start", "--dir", ".")
        expect("PostgreSQL" in told.err, "PostgreSQL runs")

    # --- 2 ---

    def plan_and_apply(self) -> None:
        title(2, "A plan tells what would happen, apply does it")
        explain(
            "plan compares what Git says with what is in the database. Rights are given to groups"
            " here, and new rights want a person's yes: on a terminal apply asks, here it is given as"
            " an option."
        )
        told = self.mdm("plan", ".", lines=24)
        expect("4 to create" in told.out, "the plan creates four entities")
        self.mdm("apply", ".", "--auto-approve", "--allow", "WIDENS_ACCESS:permissions.yaml")
        rows = self.sql("SELECT count(*) FROM country", "SELECT count(*) FROM subdivision")
        expect(rows == ["249", "5046"], "all rows of the seeds are there")

    # --- 3 ---

    def plan_again(self) -> None:
        title(3, "The second plan is empty")
        explain("What was applied is what was planned. --detailed-exitcode makes it usable in CI.")
        told = self.mdm("plan", ".", "--detailed-exitcode")
        expect("nothing to do" in told.out, "there is nothing left to do")

    # --- 4 ---

    def drift_and_heal(self) -> None:
        title(4, "Changes by hand are found, and set right")
        explain(
            "Somebody drops an index that we made, and adds a column of their own. drift shows both;"
            " apply brings ours back and leaves what is not ours alone."
        )
        self.sql("DROP INDEX subdivision__ix_country", "ALTER TABLE currency ADD COLUMN note text")
        told = self.mdm("drift", ".", "--detailed-exitcode", code=2)
        expect("subdivision" in told.out and "currency.note" in told.out, "drift shows both")
        self.mdm("apply", ".", "--auto-approve")
        left = self.sql(
            "SELECT count(*) FROM pg_indexes WHERE indexname = 'subdivision__ix_country'",
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 'currency'::regclass"
            " AND attname = 'note'",
        )
        expect(left == ["1", "1"], "the index is back, the stranger's column is still there")

    # --- 5 ---

    def rule_that_rows_break(self) -> None:
        title(5, "A new rule is counted against the live rows before anything runs")
        explain(
            "Two names have been changed by hand. A commit now asks for a capital letter: the plan"
            " shows which rows are in the way, and blocks."
        )
        self.sql("UPDATE currency SET name = lower(name) WHERE code IN ('EUR', 'JPY')")
        self.edit(
            "entities/currency.yaml", "  - name: name\n", '  - name: name\n    pattern: "[A-Z].*"\n'
        )
        self.commit("Currency names start with a capital letter", show=True)
        told = self.mdm("plan", ".", "--detailed-exitcode", code=3)
        expect("BLOCKED" in told.out and "2 rows" in told.out, "the plan counts the two rows")
        write("  The rows are corrected, and the same commit goes in:")
        self.sql("UPDATE currency SET name = initcap(name) WHERE code IN ('EUR', 'JPY')")
        self.mdm("apply", ".", "--auto-approve")

    # --- 6 ---

    def change_and_revert(self) -> None:
        title(6, "git revert brings everything back, data included")
        explain(
            "A commit renames one column of country and removes another. Nothing is ever dropped: the"
            " removed column is put aside under another name, values and all. git revert brings it"
            " back."
        )
        query = "SELECT md5(string_agg(concat_ws('|', code, common_name, flag), ';' ORDER BY code)) FROM country"
        before = self.sql(query, quiet=True)
        self.rename_and_remove()
        self.commit("Say everyday_name, and do without flags", show=True)
        allow = ("--allow", "RENAMES_COLUMN:country", "--allow", "CHANGES_VIEW:country")
        self.mdm("apply", ".", "--auto-approve", *allow, "--allow", "REMOVES_COLUMN:country")
        columns = self.sql(
            "SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_attribute WHERE attrelid ="
            " 'country'::regclass AND (attname LIKE '%flag%' OR attname LIKE '%\\_name')"
        )
        expect(columns == ["_arch_1_flag everyday_name official_name"], "renamed, and put aside")
        self.git("revert", "--no-edit", "HEAD", show=True)
        self.mdm("apply", ".", "--auto-approve", *allow)
        expect(self.sql(query, quiet=True) == before, "all 249 rows are as before, flags included")

    def rename_and_remove(self) -> None:
        self.edit(
            "entities/country.yaml",
            "  - name: common_name\n",
            "  - name: everyday_name\n    renamedFrom: common_name\n",
        )
        file = self.folder / "entities" / "country.yaml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text[: text.index("  - name: flag\n")], encoding="utf-8")
        seed = self.folder / "seed" / "country.json"
        rows = json.loads(seed.read_text(encoding="utf-8"))
        for row in rows:
            row.pop("flag", None)
            if "common_name" in row:
                row["everyday_name"] = row.pop("common_name")
        seed.write_text(json.dumps(rows, ensure_ascii=False, indent=0), encoding="utf-8")

    # --- 7 ---

    def serve(self) -> None:
        title(7, "The same warehouse, over HTTP, following Git")
        explain(
            "up runs database, operator and API in one process. The operator watches the repository:"
            " what the policy in mdm.yaml lets through goes in as soon as it is saved."
        )
        address = self.start_up()
        rows = "/api/v1/entities/subdivision/data"
        query = {
            "filter": "[country] = 'CH' AND [name] STARTSWITH 'B'",
            "sort": "-name",
            "fields": "code,name,type",
        }
        status, answer = get(address, f"{rows}?{urllib.parse.urlencode(query)}")
        names = [row["name"] for row in answer["items"]]
        write(f"  GET {rows}?filter={query['filter']}&sort=-name")
        write(f"  {status}: {', '.join(names)}")
        expect(status == 200 and len(names) > 2, "Swiss cantons with a B are found")
        expect(names == sorted(names, reverse=True), "they are sorted backwards")
        status, answer = get(address, f"{rows}?filter=%5Bcountri%5D+%3D+1")
        write(f"  GET {rows}?filter=[countri] = 1")
        write(textwrap.indent(json.dumps(answer, indent=2, ensure_ascii=False), "  "))
        expect((status, answer["code"]) == (400, "FILTER_INVALID"), "a mistake is explained")
        expect(get(address, rows, key="wrong")[0] == 401, "without a key nobody comes in")
        self.follow_an_edit(address)

    def start_up(self) -> str:
        command = ("up", ".", "--port", "0", "--json")
        write(f"$ mdm-gitops {' '.join(command)}")
        self.up = subprocess.Popen(
            (PROGRAM, *command),
            cwd=self.folder,
            env=self.environment | {"Mdm__Auth__BootstrapApiKey": API_KEY},
            stdout=subprocess.PIPE,
            stderr=(self.folder.parent / "up.log").open("w"),
            text=True,
        )
        assert self.up.stdout is not None
        document = ""
        for line in self.up.stdout:
            document += line
            if line == "}\n":
                address: str = json.loads(document)["url"]
                expect(get(address, "/readyz")[0] == 200, f"the API is ready at {address}")
                return address
        raise DemoFailed("up ended early:\n" + (self.folder.parent / "up.log").read_text())

    def follow_an_edit(self, address: str) -> None:
        self.edit("entities/currency.yaml", "displayName: Currency\n", "displayName: Money\n")
        self.commit("Call it money", show=True)
        head = self.call(("git", "rev-parse", "HEAD")).stdout.strip()
        started = time.monotonic()
        while (seen := get(address, "/api/v1/entities/currency")[1]["status"])["commit"] != head:
            if time.monotonic() - started > WAIT_S:
                log = (self.folder.parent / "up.log").read_text()
                raise DemoFailed(f"the operator did not follow the commit: {seen}\n{log}")
            time.sleep(0.05)
        write(f"  Deployed by the operator {time.monotonic() - started:.1f} s after the commit.")

    # --- 8 ---

    def stop_everything(self) -> None:
        title(8, "Everything stops")
        assert self.up is not None
        postmaster = self.postmaster()
        expect(is_alive(postmaster), f"so far PostgreSQL runs, as process {postmaster}")
        self.up.send_signal(signal.SIGTERM)
        expect(self.up.wait(WAIT_S) == 0, "up has ended in order")
        self.mdm("db", "stop", "--dir", ".")
        left = self.running()
        expect(not is_alive(postmaster) and not left, "no process of this demo is left")

    def postmaster(self) -> int:
        file = self.folder / ".mdm" / "postgres" / "data" / "postmaster.pid"
        return int(file.read_text().splitlines()[0])

    def running(self) -> list[str]:
        """Return the command lines of processes that name the demo's folder."""
        done = subprocess.run(("ps", "-eo", "args="), capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if str(self.folder) in line]

    def clean_up(self) -> None:
        if self.up is not None and self.up.poll() is None:
            self.up.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.up.wait(WAIT_S)
            self.up.kill()
        if (self.folder / ".mdm").exists():
            subprocess.run(
                (PROGRAM, "db", "stop", "--force", "--dir", self.folder),
                env=self.environment,
                capture_output=True,
                check=False,
            )
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    # --- tools ---

    def mdm(self, *arguments: str, code: int = 0, lines: int = 40) -> Told:
        """Run the command line, show it and what it says, and check its exit code."""
        write(f"$ mdm-gitops {' '.join(arguments)}")
        done = self.call((PROGRAM, *arguments))
        show(done.stdout or done.stderr, lines)
        if done.returncode != code:
            raise DemoFailed(f"exit code {done.returncode} instead of {code}\n{done.stderr}")
        return Told(done.stdout, done.stderr)

    def sql(self, *statements: str, quiet: bool = False) -> list[str]:
        """Run *statements* in psql; return the values they answer."""
        if not quiet:
            for statement in statements:
                write(f'$ mdm-gitops db psql -- -c "{statement}"')
        commands = [part for statement in statements for part in ("-c", statement)]
        done = self.call((PROGRAM, "db", "psql", "--", "-qAtX", "-v", "ON_ERROR_STOP=1", *commands))
        if done.returncode:
            raise DemoFailed(done.stderr)
        if not quiet:
            show(done.stdout, 10)
        return done.stdout.splitlines()

    def git(self, *arguments: str, show: bool = False) -> None:
        if show:
            write(f"$ git {' '.join(arguments)}")
        done = self.call((*GIT, *arguments))
        if done.returncode:
            raise DemoFailed(f"git {arguments[0]}: {done.stderr}")

    def commit(self, message: str, *, show: bool = False) -> None:
        if show:
            self.show_diff()
            write(f'$ git commit --all --message "{message}"')
        self.git("add", "entities", "seed", "*.yaml")
        self.git("commit", "--quiet", "--message", message)

    def show_diff(self) -> None:
        done = self.call(("git", "diff", "--unified=0", "--", "entities"))
        changed = (line for line in done.stdout.splitlines() if line[:1] in "+-")
        show("\n".join(line for line in changed if line[:3] not in ("+++", "---")), 12)

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text(encoding="utf-8")
        expect(old in text, f"{path} has what is to be edited", quiet=True)
        file.write_text(text.replace(old, new, 1), encoding="utf-8")

    def call(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )


class Told:
    def __init__(self, out: str, err: str) -> None:
        self.out, self.err = out, err


def get(address: str, path: str, *, key: str = API_KEY) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address + path, headers={"X-API-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def expect(holds: bool, what: str, *, quiet: bool = False) -> None:
    if not holds:
        raise DemoFailed(f"this should be so and is not: {what}")
    if not quiet:
        write(f"  ok: {what}")


def title(number: int, text: str) -> None:
    write(f"\n== {number}. {text} ==\n")


def explain(text: str) -> None:
    write(textwrap.fill(text, 92) + "\n")


def show(text: str, lines: int) -> None:
    found = text.rstrip("\n").splitlines() if text else []
    for line in found[:lines]:
        write(f"  {line}".rstrip())
    if len(found) > lines:
        write(f"  ... and {len(found) - lines} lines more, ending in:")
        write(f"  {found[-1]}")


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
