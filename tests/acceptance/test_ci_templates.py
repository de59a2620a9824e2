"""examples/ci, run as a forge would run it: its YAML is parsed and its steps executed by a shell; a server
here stands for the forge, of which only comments and statuses are asked."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from mdm_gitops.plan.markdown import marker
from mdm_gitops.source import format_yaml
from tests.support.scenario import column, entity, tree

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"
BIN = Path(sys.executable).parent
TOKEN = "token-of-the-job"
SHA = "5f0c2a520d1d4a8e9a523b1f6ad9f0015f0c2a52"
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


class Forge:
    """Comments of one pull request and statuses of one commit, as both forges keep them."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self.foreign: set[int] = set()  # ids of comments that this token may not change
        self.reads_only = False
        self.asked: list[str] = []
        forge = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Be quiet."""

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                token = self.headers.get("Authorization", self.headers.get("PRIVATE-TOKEN", ""))
                code, found = forge.asks(self.command, self.path, body, token)
                data = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def asks(self, method: str, target: str, body: Any, token: str) -> tuple[int, Any]:
        self.asked.append(f"{method} {target}")
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if token.removeprefix("Bearer ") != TOKEN:
            return 401, {}
        if method == "GET":
            size, page = int(query["per_page"][0]), int(query["page"][0])
            return 200, self.comments[(page - 1) * size : page * size]
        if self.reads_only:
            return 403, {"message": "Resource not accessible by integration"}
        if "/statuses/" in path:
            self.statuses.append(body)
            return 201, {}
        assert len(body["body"]) <= 65_536
        if method == "POST":
            return 201, self.says(body["body"])
        number = int(path.rpartition("/")[2])
        if number in self.foreign:
            return 403, {}
        (comment,) = [each for each in self.comments if each["id"] == number]
        comment["body"] = body["body"]
        return 200, comment

    def says(self, text: str) -> dict[str, Any]:
        self.comments.append({"id": len(self.comments) + 1, "body": text})
        return self.comments[-1]

    def plans(self) -> list[str]:
        return [c["body"] for c in self.comments if c["body"].startswith(marker("lab"))]


@pytest.fixture
def forge() -> Iterator[Forge]:
    forge = Forge()
    try:
        yield forge
    finally:
        forge.server.shutdown()
        forge.server.server_close()


class Work:
    """The checkout of a job: branch ``change``, and ``main`` at the remote."""

    def __init__(self, root: Path) -> None:
        self.root = root / "work"
        self.root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.write(
            entity("item", column("name")), entity("kept", lifecycle={"preventRemove": True})
        )
        self.commit()
        subprocess.run(
            ["git", "clone", "-q", "--bare", str(self.root), str(root / "remote")], check=True
        )
        self.git("remote", "add", "origin", str(root / "remote"))
        self.git("fetch", "-q", "origin")
        self.git("switch", "-q", "-c", "change")

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(
            ["git", *identity, "-c", "commit.gpgsign=false", *arguments],
            cwd=self.root,
            check=True,
            capture_output=True,
        )

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "a change")

    def write(self, *entities: Any) -> None:
        for path in (self.root / "entities").glob("*"):
            path.unlink()
        for path, content in tree(*entities).items():
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(format_yaml(content, path))


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def _environment(**more: str) -> dict[str, str]:
    gone = ("mdm_", "github_", "ci_", "gitlab_")
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith(gone)}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | more


def _shell(
    script: str, cwd: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=cwd,
        env=dict(variables),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


# --- GitHub ---------------------------------------------------------------------------------------


class Action:
    """The composite action: expressions are put in, each step with ``run`` is run."""

    def __init__(self, work: Work, forge: Forge, folder: Path) -> None:
        self.document = yaml.safe_load((CI / "github" / "action.yml").read_text("utf-8"))
        self.work, self.folder = work, folder
        self.output, self.summary = folder / "output", folder / "summary"
        event = folder / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": SHA}}}))
        self.variables = _environment(
            GITHUB_ACTION_PATH=str(CI / "github"),
            GITHUB_API_URL=forge.url,
            GITHUB_EVENT_PATH=str(event),
            GITHUB_OUTPUT=str(self.output),
            GITHUB_REPOSITORY="o/r",
            GITHUB_STEP_SUMMARY=str(self.summary),
            RUNNER_TEMP=str(folder),
        )

    def run(self, *only: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run all steps, or the named ones, until one fails; return how the last one ended."""
        values = {"github.token": TOKEN, "github.base_ref": "main"}
        if only:
            values["steps.plan.outputs.exit-code"] = "2"
        for name, given in self.document["inputs"].items():
            values[f"inputs.{name}"] = inputs.get(name, self._filled(given["default"], values))
        done = None
        for step in self.document["runs"]["steps"]:
            if "run" in step and (not only or step["name"] in only):
                env = {k: self._filled(v, values) for k, v in step.get("env", {}).items()}
                assert not EXPRESSION.search(step["run"]), "inputs go in by variables only"
                done = _shell(step["run"], self.work.root, self.variables | env)
                if done.returncode:
                    break
                if "id" in step:
                    for line in self.output.read_text().splitlines():
                        name, _, value = line.partition("=")
                        values[f"steps.{step['id']}.outputs.{name}"] = value
        assert done is not None
        return done

    def _filled(self, text: str, values: Mapping[str, str]) -> str:
        return EXPRESSION.sub(lambda found: values.get(found[1], ""), text)


def test_the_action_comments_once_updates_it_and_sets_the_status(
    work: Work, forge: Forge, tmp_path: Path
) -> None:
    for number in range(130):  # so that ours is not on the first page
        forge.says(f"comment {number}")
    forge.says(f"{marker('lab')} quoted by somebody")
    forge.foreign.add(131)
    action = Action(work, forge, tmp_path)
    work.write(entity("item", column("name"), column("more")), entity("kept"))
    work.commit()
    first = action.run()
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(forge.comments) == 132
    assert "more" in forge.comments[-1]["body"]
    assert forge.statuses[-1]["state"] == "success"
    assert forge.statuses[-1]["context"] == "mdm-gitops/plan"
    assert forge.asked[-1] == f"POST /api/repos/o/r/statuses/{SHA}"
    work.write(entity("item", column("name")))  # what is protected is gone
    work.commit()
    second = action.run("Plan", "Comment", "Status", "Verdict")
    assert second.returncode == 3
    assert "::error::" in second.stdout
    assert len(forge.comments) == 132
    assert "preventRemove" in forge.comments[-1]["body"]
    assert forge.statuses[-1]["state"] == "failure"
    assert "Blocked" in forge.statuses[-1]["description"]


def test_a_broken_definition_ends_the_job_before_any_comment(
    work: Work, forge: Forge, tmp_path: Path
) -> None:
    (work.root / "entities" / "item.yaml").write_text("name: item\n")
    done = Action(work, forge, tmp_path).run()
    assert (done.returncode, forge.asked) == (1, [])


@pytest.mark.parametrize("token", ["", TOKEN])
def test_a_fork_without_rights_gets_its_plan_in_the_summary(
    work: Work, forge: Forge, tmp_path: Path, token: str
) -> None:
    (tmp_path / "plan.md").write_text(f"{marker('lab')}\n\n### Plan for `lab`\n\n✅ **Ready**\n")
    forge.reads_only = True
    action = Action(work, forge, tmp_path)
    done = action.run("Comment", "Status", token=token)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**Ready**" in action.summary.read_text()
    assert (forge.comments, forge.statuses) == ([], [])


def test_nothing_to_say_is_said_only_where_something_was_said_before(
    work: Work, forge: Forge, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.md"
    plan.write_text(f"{marker('lab')}\n\n### Plan for `lab`\n\n✅ **No changes**\n")
    variables = Action(work, forge, tmp_path).variables | {"FORGE_TOKEN": TOKEN}
    command = f"python {shlex.quote(str(CI / 'forge.py'))} comment {plan} --only-update"
    assert _shell(command, work.root, variables).returncode == 0
    assert forge.comments == []
    forge.says(f"{marker('lab')}\n\nan earlier plan")
    assert _shell(command, work.root, variables).returncode == 0
    assert "No changes" in forge.comments[0]["body"]
    plan.write_text(f"{marker('lab')}\n" + "a long line of a plan that nobody reads\n" * 5_000)
    assert _shell(command, work.root, variables).returncode == 0
    assert "cut: the whole plan" in forge.plans()[0]


def test_the_workflow_uses_the_action_with_the_inputs_it_has() -> None:
    workflow = yaml.safe_load((CI / "github" / "workflow.yml").read_text("utf-8"))
    action = yaml.safe_load((CI / "github" / "action.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    (used,) = [step for step in job["steps"] if "mdm-gitops" in step["uses"]]
    assert used["with"].keys() <= action["inputs"].keys()
    assert workflow["permissions"] == {
        "contents": "read",
        "pull-requests": "write",
        "statuses": "write",
    }
    assert "pull_request_target" not in str(workflow)  # it would hand secrets to forks


# --- GitLab ---------------------------------------------------------------------------------------


def test_the_gitlab_job_comments_once_and_updates_it(work: Work, forge: Forge) -> None:
    work.write(entity("item", column("name"), column("more")), entity("kept"))
    work.commit()
    document = yaml.safe_load((CI / "gitlab" / "mdm-gitops.gitlab-ci.yml").read_text("utf-8"))
    job = document["mdm-gitops:plan"]
    script = "\n".join([*job["before_script"], *job["script"]])
    given = {name: str(value) for name, value in job["variables"].items()}
    variables = _environment(**given) | {
        "CI_API_V4_URL": forge.url,
        "CI_COMMIT_SHA": SHA,
        "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_PROJECT_ID": "1",
        "GITLAB_CI": "true",
        "MDM_CI": str(CI),
        "MDM_FORGE_TOKEN": TOKEN,
        "MDM_PROVE": "false",
    }
    first = _shell(script, work.root, variables)
    assert first.returncode == 0, first.stdout + first.stderr
    assert len(forge.plans()) == 1
    (work.root / "plan.md").write_text(f"{marker('lab')}\n\n### Plan\n\n⛔ **Blocked**\n")
    told = "\n".join(["code=3", *job["script"][3:]])  # of a plan that is refused
    second = _shell(told, work.root, variables)
    assert second.returncode == 3, second.stdout + second.stderr
    assert len(forge.plans()) == 1
    assert "Blocked" in forge.plans()[0]
    assert [each["state"] for each in forge.statuses] == ["success", "failed"]
    assert forge.statuses[-1]["name"] == "mdm-gitops/plan"
    assert any(
        each.startswith("PUT /api/projects/1/merge_requests/7/notes/1") for each in forge.asked
    )


# --- pre-commit -----------------------------------------------------------------------------------


def test_the_hooks_let_good_definitions_in_and_no_others(work: Work) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert {hook["id"] for hook in hooks} == {"mdm-gitops-fmt", "mdm-gitops-validate"}
    file = work.root / "entities" / "item.yaml"
    good = file.read_text()
    for hook in hooks:
        assert (hook["language"], hook["pass_filenames"]) == ("python", False)
        for path in ("mdm.yaml", "entities/a/b.yaml", "permissions.yaml"):
            assert re.search(hook["files"], path), path
        assert not re.search(hook["files"], "README.md")
        bad = (
            good.replace("name", "nmae") if "validate" in hook["entry"] else good.replace(" ", "  ")
        )
        for text, code in ((good, 0), (bad, 1)):
            file.write_text(text)
            done = _shell(hook["entry"], work.root, _environment())
            assert done.returncode == code, (hook["id"], done.stdout, done.stderr)
        file.write_text(good)
