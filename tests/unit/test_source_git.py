from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mdm_gitops.errors import DefinitionError, InputError, NotFound
from mdm_gitops.source import read_folder, read_revision

MDM = "name: demo\napiVersion: mdm-gitops/v1\ndomains:\n  - name: sales\n"
ENTITY = "name: a\ndomain: sales\ncolumns:\n  - {name: x, dataType: int}\n"


def git(repo: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    command = ["git", "-C", str(repo), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "entities").mkdir(parents=True)
    (root / "mdm.yaml").write_text(MDM)
    (root / "entities" / "a.yaml").write_text(ENTITY)
    (root / "README.md").write_text("x")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_clean_work_tree_has_the_commit_of_head(repo: Path) -> None:
    assert read_folder(repo).commit == git(repo, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("path", "text", "dirty"),
    [
        ("entities/a.yaml", ENTITY + "# more\n", True),
        ("entities/b.yaml", ENTITY.replace("name: a", "name: b"), True),
        ("entities/ignored.yaml", ENTITY.replace("name: a", "name: ignored"), True),
        ("README.md", "y", False),
        ("entities/notes.md", "y", False),
        (".mdm/x.yaml", "y", False),
    ],
)
def test_a_work_tree_is_dirty_when_a_definition_differs(
    repo: Path, path: str, text: str, dirty: bool
) -> None:
    (repo / ".git" / "info" / "exclude").write_text("ignored.yaml\n")
    (repo / path).parent.mkdir(exist_ok=True)
    (repo / path).write_text(text)
    assert (read_folder(repo).commit or "").endswith("+dirty") is dirty


def test_a_removed_file_makes_it_dirty(repo: Path) -> None:
    (repo / "entities" / "a.yaml").unlink()
    assert (read_folder(repo).commit or "").endswith("+dirty")


def test_a_folder_inside_a_repository_and_one_without_commits_have_none(
    repo: Path, tmp_path: Path
) -> None:
    inner = repo / "inner"
    inner.mkdir()
    (inner / "mdm.yaml").write_text(MDM)
    assert read_folder(inner).commit is None
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "mdm.yaml").write_text(MDM)
    git(fresh, "init", "-q")
    assert read_folder(fresh).commit is None


def test_a_revision_is_read_without_a_checkout(repo: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    before = read_folder(repo)
    (repo / "entities" / "a.yaml").write_text(ENTITY.replace("int", "long"))
    git(repo, "commit", "-qam", "second")
    git(repo, "tag", "v2")
    (repo / "entities" / "a.yaml").write_text("broken: [")
    for name in (first, first[:10], "HEAD~1", "main~1"):
        definitions = read_revision(repo, name)
        assert definitions.commit == first
        assert definitions.content_hash == before.content_hash
    assert read_revision(repo, "v2").entities["a"].columns[0].data_type == "long"


@pytest.mark.parametrize("name", ["absent", "HEAD:mdm.yaml", "0" * 40, "a b"])
def test_an_unknown_revision_is_told(repo: Path, name: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        read_revision(repo, name)


@pytest.mark.parametrize("name", ["--output=/tmp/owned", "-h", "", "a\x00b"])
def test_a_revision_is_never_an_option(repo: Path, name: str) -> None:
    with pytest.raises(InputError, match="is no revision"):
        read_revision(repo, name)


def test_a_folder_that_is_no_repository_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="git cannot read"):
        read_revision(tmp_path, "HEAD")


def test_a_folder_inside_a_repository_has_no_revisions_of_its_own(repo: Path) -> None:
    with pytest.raises(InputError, match="is not the root of its repository"):
        read_revision(repo / "entities", "HEAD")


def test_a_bare_repository_has_revisions(repo: Path, tmp_path: Path) -> None:
    git(repo, "clone", "-q", "--bare", str(repo), str(tmp_path / "bare"))
    assert list(read_revision(tmp_path / "bare", "main").entities) == ["a"]


def test_links_and_submodules_in_a_commit_are_refused(repo: Path) -> None:
    (repo / "entities" / "link.yaml").symlink_to("/etc/passwd")
    git(repo, "add", ".")
    cache = f"160000,{'1' * 40},entities/sub.yaml"
    git(repo, "update-index", "--add", "--cacheinfo", cache)
    git(repo, "commit", "-q", "-m", "links")
    with pytest.raises(DefinitionError) as caught:
        read_revision(repo, "HEAD")
    assert list(map(str, caught.value.findings)) == [
        "entities/link.yaml: is a symbolic link; links are not followed",
        "entities/sub.yaml: is a submodule",
    ]


def test_names_with_odd_characters_are_read_or_refused_with_their_place(repo: Path) -> None:
    (repo / "entities" / "größe x.yaml").write_text("a: [")
    with (repo / "entities").joinpath(os.fsdecode(b"\xff.yaml")).open("w") as file:
        file.write(ENTITY)
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "odd")
    with pytest.raises(DefinitionError) as caught:
        read_revision(repo, "HEAD")
    assert [(f.location.path, f.rule) for f in caught.value.findings] == [
        ("entities/\\udcff.yaml", "not-readable"),
        ("entities/größe x.yaml", "yaml-syntax"),
    ]


def test_nothing_of_the_repository_is_run(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    script = tmp_path / "trap.sh"
    script.write_text(f"#!/bin/sh\ntouch {trap}\n")
    script.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(script))
    git(repo, "config", "core.hooksPath", str(tmp_path))
    read_folder(repo)
    read_revision(repo, "HEAD")
    assert not trap.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_somebody_else_is_not_taken_for_a_plain_folder(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for path in (repo, repo / ".git"):
        os.chown(path, 65534, 65534)
    with pytest.raises(InputError, match="dubious ownership") as caught:
        read_folder(repo)
    assert "safe.directory" in caught.value.hint


def test_variables_that_point_git_elsewhere_are_not_heeded(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert read_folder(repo).commit is not None
