"""Definitions written as commits: minimal, checked, never over somebody's work, never half done."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from mdm_gitops.errors import Conflict, DefinitionError
from mdm_gitops.source.commit_places import WorkTree
from mdm_gitops.source.commits import Author, CommitWriter, Files, WriteMode
from mdm_gitops.source.git import commit_of

FILES = {
    "mdm.yaml": "name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "permissions.yaml": "permissions: []\n",
    "README.md": "not ours\n",
}
ANA = Author(actor="user:ana@example.com")
ENTITY = "name: {0}\ndomain: ref\nkeyColumns: [code]\ncolumns:\n  - {{name: code, dataType: string, nullable: false}}\n"


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def writer_of(root: Path, mode: WriteMode | None = None) -> CommitWriter:
    return CommitWriter(WorkTree(root), mode=mode or WriteMode.COMMIT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "dev")
    git(root, "config", "user.email", "dev@example.com")
    for path, text in FILES.items():
        (root / path).write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    return root


def adding(name: str) -> Mapping[str, bytes]:
    return {f"entities/{name}.yaml": ENTITY.format(name).encode()}


def test_a_change_is_a_commit_of_its_author(root: Path) -> None:
    done = writer_of(root).write(lambda files: adding("a"), author=ANA, message="Add a")
    assert git(root, "rev-parse", "HEAD") == done.commit == commit_of(root)
    assert git(root, "log", "-1", "--format=%an|%ae|%cn|%s") == (
        "ana@example.com|ana@example.com|mdm-gitops|Add a"
    )
    assert git(root, "show", "--stat", "--format=", "HEAD").startswith("entities/a.yaml")
    assert git(root, "status", "--porcelain") == ""
    assert (root / "entities/a.yaml").read_bytes() == adding("a")["entities/a.yaml"]


def test_removing_is_a_change_too(root: Path) -> None:
    writer = writer_of(root)
    writer.write(lambda files: adding("a"), author=ANA, message="Add a")
    writer.write(lambda files: {"entities/a.yaml": None}, author=ANA, message="Remove a")
    assert not (root / "entities/a.yaml").exists() and git(root, "status", "--porcelain") == ""
    assert git(root, "ls-files") == "README.md\nmdm.yaml\npermissions.yaml"


def test_what_changes_nothing_is_no_commit(root: Path) -> None:
    head = git(root, "rev-parse", "HEAD")
    done = writer_of(root).write(lambda files: dict(files), author=ANA, message="nothing")
    assert done.commit is None and git(root, "rev-parse", "HEAD") == head


def test_what_would_not_be_valid_is_refused_and_leaves_nothing(root: Path) -> None:
    head = git(root, "rev-parse", "HEAD")
    with pytest.raises(DefinitionError) as caught:
        writer_of(root).write(
            lambda files: {"entities/a.yaml": b"name: a\n"}, author=ANA, message="bad"
        )
    assert caught.value.findings[0].location.path == "entities/a.yaml"
    assert git(root, "rev-parse", "HEAD") == head and git(root, "status", "--porcelain") == ""


def test_a_file_that_a_person_edits_is_not_overwritten(root: Path) -> None:
    edited = "permissions: [] # mine\n"
    (root / "permissions.yaml").write_text(edited)
    head = git(root, "rev-parse", "HEAD")
    writer = writer_of(root)
    with pytest.raises(Conflict) as caught:
        writer.write(
            lambda f: {"permissions.yaml": b"permissions: []\n#\n"}, author=ANA, message="m"
        )
    assert caught.value.kind_code == "DEFINITIONS_EDITED"
    assert (root / "permissions.yaml").read_text() == edited
    assert git(root, "rev-parse", "HEAD") == head
    # Other files are free to change, and what is staged stays staged.
    git(root, "add", "permissions.yaml")
    writer.write(lambda files: adding("a"), author=ANA, message="Add a")
    assert git(root, "status", "--porcelain") == "M  permissions.yaml"


@pytest.mark.parametrize("mode", [WriteMode.READONLY, None])
def test_what_is_not_written(root: Path, tmp_path: Path, mode: WriteMode | None) -> None:
    folder = root if mode else tmp_path / "plain"
    folder.mkdir(exist_ok=True)
    with pytest.raises(Conflict) as caught:
        writer_of(folder, mode).write(lambda files: {}, author=ANA, message="m")
    assert caught.value.kind_code == "DEFINITIONS_IN_GIT" and caught.value.hint


def test_branch_mode_pushes_and_leaves_the_work_tree(root: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    git(root, "remote", "add", "origin", str(remote))
    writer = writer_of(root, WriteMode.BRANCH)
    done = writer.write(lambda files: adding("a"), author=ANA, message="Add a")
    assert done.branch is not None and done.branch.startswith("mdm/")
    assert git(remote, "rev-parse", done.branch) == done.commit
    assert not (root / "entities").exists() and git(root, "status", "--porcelain") == ""


def test_a_commit_in_between_is_built_upon(root: Path) -> None:
    calls = []

    def change(files: Mapping[str, bytes]) -> Files:
        calls.append(len(files))
        if len(calls) == 1:
            (root / "entities").mkdir()
            (root / "entities/b.yaml").write_text(ENTITY.format("b"))
            git(root, "add", ".")
            git(root, "commit", "-qm", "by hand")
        return adding("a")

    writer_of(root).write(change, author=ANA, message="Add a")
    assert calls == [2, 3]
    assert git(root, "log", "--format=%s").splitlines() == ["Add a", "by hand", "start"]


def test_after_a_crash_the_work_tree_is_brought_along(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: WorkTree, commit: str, files: Files) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(WorkTree, "_bring_along", die)
        with pytest.raises(KeyboardInterrupt):
            writer_of(root).write(lambda files: adding("a"), author=ANA, message="Add a")
    assert git(root, "status", "--porcelain") != ""
    writer_of(root).write(lambda files: adding("b"), author=ANA, message="Add b")
    assert git(root, "status", "--porcelain") == ""
    assert (root / "entities/a.yaml").exists() and (root / "entities/b.yaml").exists()


def _add_many(root: Path, prefix: str) -> None:
    for number in range(6):
        name = f"{prefix}{number}"
        writer_of(root).write(lambda f, n=name: adding(n), author=ANA, message=name)  # type: ignore[misc]


def test_writers_in_several_processes_lose_nothing(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_many, args=(root, prefix)) for prefix in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    names = {path.stem for path in (root / "entities").iterdir()}
    assert names == {f"{prefix}{number}" for prefix in "abcd" for number in range(6)}
    assert len(git(root, "log", "--format=%h").splitlines()) == 25
    assert git(root, "status", "--porcelain") == ""


def test_names_that_are_no_name_become_one() -> None:
    assert Author(actor="apikey:price import").email == "apikey-price-import@mdm.invalid"
    assert Author(actor="user:<x>\n").name == "x"
    assert Author(actor="user:").name == "user:"
