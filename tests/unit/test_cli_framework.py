from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mdm_gitops.cli import COMMANDS, LazyGroup, main
from mdm_gitops.cli._output import json_option
from mdm_gitops.errors import (
    DefinitionError,
    Finding,
    Location,
    NotFound,
    PartlyApplied,
    PlanRefused,
    PlanStale,
    WarehouseLocked,
)

PROGRAM = [sys.executable, "-c", "from mdm_gitops.cli import main; main(prog_name='mdm-gitops')"]


def run_program(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {n: v for n, v in os.environ.items() if n not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env=environment | variables,
        check=False,
    )


def test_help_names_every_command_and_imports_none() -> None:
    code = (
        "import sys; from mdm_gitops.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([m for m in sys.modules if m.endswith('_cmd') or m in "
        "('pydantic', 'yaml', 'rich', 'jsonschema', 'sqlglot', 'psycopg', 'asyncio')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE), name


def test_help_loads_little() -> None:
    """What it costs is what it loads; `make bench` has the seconds."""
    code = (
        "import sys; before = len(sys.modules); from mdm_gitops.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print(len(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 120


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_in_the_table_exists_and_has_help(name: str) -> None:
    module = COMMANDS[name][0].partition(":")[0]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not there yet")
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (["valdate"], 64, "error: no such command 'valdate'; did you mean 'validate'?\n"),
        (["nothing-like-it"], 64, "error: no such command 'nothing-like-it'\n"),
        (["validate", "--foo"], 64, "hint: see `mdm-gitops validate --help`"),
        (["validate", "a", "b"], 64, "unexpected extra argument"),
        (["completion", "tcsh"], 64, "'tcsh' is not one of"),
        (["validate", "/nowhere"], 1, "error: /nowhere does not exist\nhint: give the folder"),
    ],
)
def test_wrong_usage_ends_with_64_and_says_what_fits(
    arguments: list[str], code: int, stderr: str
) -> None:
    done = run_program(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert stderr in done.stderr
    assert "Traceback" not in done.stderr


def test_without_arguments_help_is_shown() -> None:
    done = run_program()
    assert (done.returncode, done.stdout.startswith("Usage: mdm-gitops")) == (0, True)


def test_version() -> None:
    assert run_program("--version").stdout == "mdm-gitops 0.1.0\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_what_they_complete(shell: str) -> None:
    assert "_MDM_GITOPS_COMPLETE" in run_program("completion", shell).stdout
    words = {"COMP_WORDS": "mdm-gitops va", "COMP_CWORD": "1" if shell != "fish" else "va"}
    done = run_program(_MDM_GITOPS_COMPLETE=f"{shell}_complete", **words)
    assert "validate" in done.stdout
    assert "Make a first" not in done.stdout


FINDING = Finding(
    rule="r", message="it is wrong", location=Location("a.yaml", 2, 3), hint="mend it"
)


@click.command()
@click.argument("kind")
@json_option
def fails(kind: str, as_json: bool) -> None:
    raise {
        "refused": PlanRefused("no", hint="yes"),
        "stale": PlanStale("no"),
        "locked": WarehouseLocked("no"),
        "partly": PartlyApplied("no"),
        "absent": NotFound("no", code="ENTITY_NOT_FOUND"),
        "definitions": DefinitionError([FINDING, FINDING]),
        "interrupt": KeyboardInterrupt(),
        "abort": click.Abort(),
        "click": click.ClickException("Broken."),
        "disk": OSError(errno.ENOSPC, "No space left on device", "f"),
        "pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
        "bug": RuntimeError("a bug"),
        "code": click.exceptions.Exit(2),
    }[kind]


@pytest.fixture
def group() -> LazyGroup:
    return LazyGroup(commands_table={"fails": (f"{__name__}:fails", "Fail.")}, name="test")


@pytest.mark.parametrize(
    ("kind", "code", "stderr"),
    [
        ("refused", 3, "error: no\nhint: yes\n"),
        ("stale", 4, "error: no\n"),
        ("locked", 5, "error: no\n"),
        ("partly", 6, "error: no\n"),
        ("absent", 1, "error: no\n"),
        (
            "definitions",
            1,
            "a.yaml:2:3: it is wrong\n  hint: mend it\n" * 2
            + "error: 2 findings in the definitions\n",
        ),
        ("interrupt", 130, "\naborted\n"),
        ("abort", 1, "aborted\n"),
        ("click", 1, "error: broken\n"),
        ("disk", 1, "error: f: No space left on device\n"),
        ("code", 2, ""),
    ],
)
def test_each_error_has_its_exit_code(group: LazyGroup, kind: str, code: int, stderr: str) -> None:
    result = CliRunner().invoke(group, ["fails", kind])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", stderr)


def test_a_reader_that_went_away_is_no_error_to_speak_of() -> None:
    command = " ".join(f'"{part}"' for part in PROGRAM) + " schema entity | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_bug_keeps_its_traceback(group: LazyGroup) -> None:
    result = CliRunner().invoke(group, ["fails", "bug"])
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["refused"], {"code": "PLAN_REFUSED", "message": "no", "hint": "yes"}),
        (["click"], {"code": "INTERNAL", "message": "broken", "hint": ""}),
        (["disk"], {"code": "INTERNAL", "message": "f: No space left on device", "hint": ""}),
        (
            ["refused", "--foo"],
            {
                "code": "USAGE",
                "message": "no such option '--foo'",
                "hint": "see `test fails --help`",
            },
        ),
    ],
)
def test_with_json_stdout_is_one_object_also_for_errors(
    group: LazyGroup, arguments: list[str], error: dict[str, str]
) -> None:
    result = CliRunner().invoke(group, ["fails", "--json", *arguments])
    assert json.loads(result.stdout) == {"error": error}
    assert result.stderr.startswith("error: ")


def test_json_findings_have_their_places(group: LazyGroup) -> None:
    result = CliRunner().invoke(group, ["fails", "definitions", "--json"])
    error = json.loads(result.stdout)["error"]
    assert error["findings"][0] == {
        "path": "a.yaml",
        "line": 2,
        "column": 3,
        "rule": "r",
        "message": "it is wrong",
        "hint": "mend it",
        "pointer": "",
    }


@pytest.mark.parametrize(
    ("variables", "colored"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colour_only_on_a_terminal_or_when_asked_for(
    variables: dict[str, str], colored: bool, tmp_path: Path
) -> None:
    (tmp_path / "mdm.yaml").write_text("a: b: c")
    done = run_program("validate", str(tmp_path), **variables)
    assert done.returncode == 1
    assert ("\x1b[" in done.stdout) is colored
