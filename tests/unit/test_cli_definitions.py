from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mdm_gitops.cli import main
from mdm_gitops.source import read_folder

BROKEN = "name: country\ndomain: refrence\ncolumns:\n  - name: a\n    datatype: int\n"


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=stdin)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    assert run("init", tmp_path / "my Repo_1").exit_code == 0
    return tmp_path / "my Repo_1"


def test_init_makes_a_repository_that_is_valid_formatted_and_not_empty(repo: Path) -> None:
    assert run("validate", repo).exit_code == 0
    assert run("fmt", "--check", repo).exit_code == 0
    definitions = read_folder(repo)
    assert definitions.project.name == "my-repo-1"
    assert len(definitions.seeds["country"].rows) == 3
    assert (repo / ".gitignore").read_text().splitlines()[-1] == ".mdm/"


def test_the_lines_for_editors_point_at_schemas_that_are_there(repo: Path) -> None:
    files = [repo / "mdm.yaml", *repo.glob("entities/*.yaml"), repo / "permissions.yaml"]
    for file in [*files, repo / "webhooks.yaml"]:
        first = file.read_text().splitlines()[0]
        schema = first.removeprefix("# yaml-language-server: $schema=")
        assert "properties" in json.loads((file.parent / schema).read_text())


def test_init_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    (tmp_path / "webhooks.yaml").symlink_to(tmp_path / "outside")
    result = run("init", tmp_path, "--json")
    assert json.loads(result.stdout)["kept"] == ["webhooks.yaml", ".gitignore"]
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    assert not (tmp_path / "outside").exists()


def test_init_in_a_repository_is_refused(repo: Path) -> None:
    result = run("init", repo)
    assert result.exit_code == 1
    assert "exists already" in result.stderr


def test_init_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("init", tmp_path / "file" / "below")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_validate_counts_what_is_there(repo: Path) -> None:
    result = run("validate", repo)
    assert result.stdout == ""
    assert result.stderr == (
        "valid: 1 domain, 1 entity, 2 permissions, 1 webhook, 1 seed, 3 rows\n"
    )
    assert json.loads(run("validate", repo, "--json").stdout) == {
        "valid": True,
        "findings": [],
        "warnings": [],
        "accessTests": [],
        "contains": {
            "domains": 1,
            "entities": 1,
            "permissions": 2,
            "webhooks": 1,
            "seeds": 1,
            "rows": 3,
        },
    }


def test_validate_prints_findings_where_editors_find_them(repo: Path) -> None:
    (repo / "entities" / "country.yaml").write_text(BROKEN)
    result = run("validate", repo)
    assert result.exit_code == 1
    assert result.stdout == (
        f"{repo}/entities/country.yaml:4:5: key 'dataType' is missing in column 'a'\n"
        f"{repo}/entities/country.yaml:5:5: unknown key 'datatype' in column 'a'\n"
        "  hint: did you mean 'dataType'?\n"
    )
    assert result.stderr == "2 findings in 1 file\n"


def test_validate_here_prints_paths_as_they_are(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "mdm.yaml").write_text("name: x\n")
    monkeypatch.chdir(repo)
    assert run("validate").stdout == "mdm.yaml:1:1: key 'apiVersion' is missing in the file\n"
    document = json.loads(run("validate", "--json").stdout)
    assert document["valid"] is False
    assert document["findings"][0]["rule"] == "missing-key"


def test_validate_of_a_revision(repo: Path) -> None:
    result = run("validate", repo, "--rev", "HEAD")
    assert result.exit_code == 1
    assert "error: git cannot read" in result.stderr


UNTIDY = "# keep me\ndomain: 'reference'  # and me\nname:   country\ncolumns:\n- {name: a, dataType: int}\n"
TIDY = "name: country\n# keep me\ndomain: reference  # and me\ncolumns:\n  - {name: a, dataType: int}\n"


def test_fmt_rewrites_only_what_is_untidy_and_keeps_its_mode(repo: Path) -> None:
    file = repo / "entities" / "country.yaml"
    file.write_text(UNTIDY)
    file.chmod(0o600)
    other = (repo / "mdm.yaml").stat().st_mtime_ns
    result = run("fmt", repo)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"rewrote {file}\n4 files, 1 changed\n"
    assert file.read_text() == TIDY
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (repo / "mdm.yaml").stat().st_mtime_ns == other
    assert sorted(path.name for path in file.parent.iterdir()) == ["country.yaml"]


def test_fmt_check_and_diff_change_nothing(repo: Path) -> None:
    file = repo / "entities" / "country.yaml"
    file.write_text(UNTIDY)
    checked = run("fmt", file, "--check")
    assert (checked.exit_code, checked.stderr) == (
        1,
        f"would rewrite {file}\n1 file, 1 to change\n",
    )
    diff = run("fmt", file, "--diff")
    assert diff.exit_code == 0
    assert "-domain: 'reference'  # and me\n" in diff.stdout
    assert "+domain: reference  # and me\n" in diff.stdout
    assert file.read_text() == UNTIDY
    assert json.loads(run("fmt", file, "--check", "--json").stdout) == {
        "files": 1,
        "changed": [str(file)],
        "findings": [],
    }


def test_fmt_of_stdin() -> None:
    assert run("fmt", "-", stdin=UNTIDY).stdout == TIDY


def test_fmt_goes_on_past_a_file_it_cannot_read(repo: Path) -> None:
    (repo / "permissions.yaml").write_text("a: *b\n")
    (repo / "entities" / "country.yaml").write_text(UNTIDY)
    result = run("fmt", repo)
    assert result.exit_code == 1
    assert f"{repo}/permissions.yaml:1:4: aliases (*name) are not allowed" in result.stderr
    assert (repo / "entities" / "country.yaml").read_text() == TIDY
    assert (repo / "permissions.yaml").read_text() == "a: *b\n"


def test_fmt_follows_no_links(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "target.yaml").write_text(UNTIDY)
    (repo / "entities" / "link.yaml").symlink_to(tmp_path / "target.yaml")
    assert run("fmt", repo).exit_code == 0
    result = run("fmt", repo / "entities" / "link.yaml")
    assert result.exit_code == 1
    assert "is not a regular file" in result.stderr
    assert (tmp_path / "target.yaml").read_text() == UNTIDY


def test_fmt_of_nothing_that_is_there(tmp_path: Path) -> None:
    assert run("fmt", tmp_path / "absent").exit_code == 1


def test_schema_prints_one_or_lists_all(tmp_path: Path) -> None:
    assert json.loads(run("schema", "entity").stdout)["title"] == "mdm-gitops entity"
    names = run("schema").stdout.split()
    assert {"entity", "package", "permissions", "project", "seed", "webhooks"} <= set(names)
    assert set(json.loads(run("schema", "--json").stdout)) == set(names)
    assert run("schema", "--out", tmp_path / "s").exit_code == 0
    assert {file.stem for file in (tmp_path / "s").iterdir()} == set(names)
    assert run("schema", "entty").exit_code == 64
