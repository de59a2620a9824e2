"""``mdm-gitops revert``: the opposite commit, made safely, and the data that comes back by it."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import Conflict, DefinitionError, InputError, NotFound
from mdm_gitops.source import read_folder
from mdm_gitops.source.revert import Revert, bring_in, prepare_revert
from tests.support.program import run
from tests.support.scenario import column, entity, tree
from tests.support.warehouses import apply, plan

ITEM = ("name", "note", "size", "weight", "color", "label")
Tree = dict[str, Any]


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")
        for name, value in (
            ("user.name", "Ann"),
            ("user.email", "ann@example.com"),
            ("commit.gpgsign", "false"),
        ):
            self.git("config", name, value)

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str, *entities: Tree, **others: Any) -> str:
        """Commit a repository of exactly *entities*; return the commit."""
        for path in (self.root / "entities").glob("*"):
            path.unlink()
        for path, content in tree(*entities, **others).items():
            (self.root / path).parent.mkdir(exist_ok=True, parents=True)
            (self.root / path).write_bytes(content)
        self.git("add", "--all")
        self.git("commit", "-q", "-m", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[str, str, dict[str, bytes]]:
        """The branch, what Git says of the files, and the files."""
        files = {
            str(path): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and ".git" not in path.parts
        }
        return self.head, self.git("status", "--porcelain"), files

    def revert(self, revision: str, **options: Any) -> Revert:
        made = prepare_revert(self.root, revision, actor="user:ci@example.com", **options)
        bring_in(self.root, made)
        return made

    def is_refused(self, error: type[Exception], revision: str, **options: Any) -> Any:
        before = self.state()
        with pytest.raises(error) as caught:
            self.revert(revision, **options)
        assert self.state() == before
        return caught.value


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


def item(*names: str, entity_name: str = "item", **fields: Any) -> Tree:
    return entity(entity_name, *(column(name) for name in names), **fields)


COUNTRY = entity("country", column("title"))


async def _apply(conn: AsyncConnection[Any], repo: Repository) -> None:
    definitions = read_folder(repo.root)
    assert (definitions.commit or "").endswith("+dirty") is False
    await apply(conn, definitions)
    assert (await plan(conn, definitions)).is_empty


async def _rows(conn: AsyncConnection[Any], query: str) -> list[Any]:
    return await (await conn.execute(query.encode())).fetchall()


async def _insert(conn: AsyncConnection[Any], table: str, **values: str) -> None:
    """Write a row as a program past us would."""
    row = {"_sys_id": str(uuid.uuid4())}
    for did in ("created", "last_modified"):
        row |= {f"_sys_{did}_by": "user:x", f"_sys_{did}_at": "2026-01-01T00:00:00Z"}
    names = ", ".join(f'"{name}"' for name in row | values)
    marks = ", ".join("%s" for _ in row | values)
    text = f"INSERT INTO mdm_data.{table} ({names}) VALUES ({marks})"
    await conn.execute(text.encode(), list((row | values).values()))


@pytest.mark.anyio
async def test_the_data_comes_back_over_several_commits_and_a_rename(
    conn: AsyncConnection[Any], repo: Repository
) -> None:
    repo.commit("first", item(*ITEM), COUNTRY)
    await _apply(conn, repo)
    for number in range(20):
        await _insert(conn, "item", code=f"i{number}", note=f"note {number}", label=f"l{number}")
    await _insert(conn, "country", code="CH", title="Switzerland")

    without_note = repo.commit("drop note", item(*(n for n in ITEM if n != "note")), COUNTRY)
    await _apply(conn, repo)
    left = [n for n in ITEM if n not in ("note", "label")]
    product = entity(
        "product",
        *(column(name) for name in left),
        column("tag", renamedFrom="label"),
        renamedFrom="item",
    )
    renamed = repo.commit("rename item", product, COUNTRY)
    await _apply(conn, repo)
    await _insert(conn, "product", code="late", tag="written without note")
    without_country = repo.commit("drop country", product)
    await _apply(conn, repo)

    repo.revert(without_note)
    repo.revert(without_country)
    assert read_folder(repo.root).entities.keys() == {"product", "country"}
    await _apply(conn, repo)
    query = "SELECT code, note, tag FROM mdm_data.product"
    assert sorted(await _rows(conn, query), key=str) == sorted(
        [
            *((f"i{n}", f"note {n}", f"l{n}") for n in range(20)),
            ("late", None, "written without note"),
        ],
        key=str,
    )
    assert await _rows(conn, "SELECT code, title FROM mdm_data.country") == [("CH", "Switzerland")]

    repo.revert(renamed)  # the reverts made after it stay
    await _apply(conn, repo)
    query = "SELECT note, label FROM mdm_data.item WHERE code IN ('i3', 'late') ORDER BY code"
    assert await _rows(conn, query) == [("note 3", "l3"), (None, "written without note")]


def test_the_commit_is_what_git_would_have_made(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    gone = repo.commit("drop name", item(*ITEM[1:]))
    repo.commit("unrelated", item(*ITEM[1:]), COUNTRY)
    with_git = Repository.__new__(Repository)
    with_git.root = repo.root.parent / "other"
    subprocess.run(["git", "clone", "-q", str(repo.root), str(with_git.root)], check=True)
    for name, value in (("user.name", "Ann"), ("user.email", "ann@example.com")):
        with_git.git("config", name, value)
    with_git.git("revert", "--no-edit", gone)
    made = repo.revert(gone)
    shown = ("log", "-1", "--format=%T%n%B%an %ae")
    assert repo.git(*shown) == with_git.git(*shown)
    assert (repo.head, repo.git("status", "--porcelain")) == (made.commit, "")


def test_other_files_go_along_and_modes_stay(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    script = repo.root / "tool.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    tool = repo.commit("a tool", item(*ITEM[:-1]))
    repo.revert(tool)
    assert not script.exists()
    repo.revert(repo.head)
    assert script.stat().st_mode & 0o111


def test_where_git_knows_nobody_the_actor_is_the_author(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit("first", item(*ITEM))
    gone = repo.commit("drop", item(*ITEM[1:]))
    for name in ("user.name", "user.email"):
        repo.git("config", "--unset", name)
    repo.git("config", "user.useConfigOnly", "true")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    repo.revert(gone, message="Go back")
    assert (
        repo.git("log", "-1", "--format=%an <%ae>|%B") == "ci@example.com <ci@example.com>|Go back"
    )


def test_a_conflict_names_its_files_and_leaves_all_as_it_was(repo: Repository) -> None:
    repo.commit("first", item("name"))
    changed = repo.commit("one rule", entity("item", column("name", maxLength=5)))
    repo.commit("another", entity("item", column("name", maxLength=9)))
    error = repo.is_refused(Conflict, changed)
    assert error.kind_code == "REVERT_CONFLICT"
    assert error.details["paths"] == ["entities/item.yaml"]
    assert "entities/item.yaml" in str(error)


def test_definitions_that_would_not_be_valid_are_refused(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    new = repo.commit("country", item(*ITEM), COUNTRY)
    reference = column("made_in", reference={"entity": "country"})
    repo.commit("refer to it", entity("item", *(column(n) for n in ITEM), reference), COUNTRY)
    error = repo.is_refused(DefinitionError, new)
    assert "country" in str(error)


@pytest.mark.parametrize(
    ("path", "staged"),
    [("entities/item.yaml", False), ("entities/new.yaml", False), ("README.md", True)],
)
def test_a_dirty_tree_is_refused(repo: Repository, path: str, staged: bool) -> None:
    repo.commit("first", item(*ITEM))
    gone = repo.commit("drop", item(*ITEM[1:]))
    (repo.root / path).write_text("name: x\n")
    if staged:
        repo.git("add", path)
    assert repo.is_refused(Conflict, gone).kind_code == "DEFINITIONS_EDITED"


def test_a_file_in_the_way_is_not_overwritten(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    (repo.root / "notes.txt").write_text("of the repository")
    repo.commit("notes", item(*ITEM))
    (repo.root / "notes.txt").unlink()
    gone = repo.commit("no notes", item(*ITEM))
    (repo.root / "notes.txt").write_text("mine, in no commit")
    assert repo.is_refused(Conflict, gone).kind_code == "DEFINITIONS_EDITED"


def test_a_branch_that_moved_meanwhile_is_not_gone_back_on(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    gone = repo.commit("drop", item(*ITEM[1:]))
    made = prepare_revert(repo.root, gone, actor="user:x")
    faster = repo.commit("faster", item(*ITEM[1:]), COUNTRY)
    with pytest.raises(Conflict):
        bring_in(repo.root, made)
    assert (repo.head, repo.git("status", "--porcelain")) == (faster, "")


def test_what_cannot_be_taken_back(repo: Repository, tmp_path: Path) -> None:
    first = repo.commit("first", item(*ITEM))
    repo.git("switch", "-q", "-c", "side")
    repo.commit("side", item(*ITEM), COUNTRY)
    repo.git("switch", "-q", "main")
    repo.commit("main", item(*ITEM[:-1]))
    repo.git("merge", "-q", "--no-edit", "side")
    assert "first commit" in str(repo.is_refused(InputError, first))
    assert "merge" in str(repo.is_refused(InputError, "HEAD"))
    assert "no parent 3" in str(repo.is_refused(InputError, "HEAD", mainline=3))
    repo.is_refused(NotFound, "nowhere")
    repo.is_refused(InputError, "--help")
    repo.revert("HEAD", mainline=1)
    assert "country" not in read_folder(repo.root).entities
    with pytest.raises(Conflict) as caught:
        prepare_revert(tmp_path, "HEAD", actor="user:x")
    assert caught.value.kind_code == "DEFINITIONS_IN_GIT"
    repo.git("switch", "-q", "--detach")
    assert repo.is_refused(Conflict, "side").kind_code == "DEFINITIONS_IN_GIT"


def test_what_was_taken_back_already_makes_no_commit(repo: Repository) -> None:
    repo.commit("first", item(*ITEM))
    gone = repo.commit("drop", item(*ITEM[1:]))
    repo.revert(gone)
    head = repo.head
    assert repo.revert(gone).commit is None
    assert repo.head == head


def test_the_command(repo: Repository, empty_database_url: str) -> None:
    repo.commit("first", item("name", "note"))
    _run(repo, empty_database_url, "apply", "--auto-approve")
    gone = repo.commit("drop note", item("name"))
    _run(repo, empty_database_url, "apply", "--auto-approve", "--allow", "REMOVES_COLUMN:item")
    before = repo.state()
    looked = _run(repo, empty_database_url, "revert", gone, "--dry-run", "--json")
    told = json.loads(looked.stdout)
    assert repo.state() == before
    assert (told["commit"], told["reverted"]) == (None, gone)
    assert [each["kind"] for each in told["plan"]["changes"]] == ["restore-column"]
    done = _run(repo, empty_database_url, "revert", gone)
    assert 'Revert "drop note"' in repo.git("log", "-1", "--format=%s")
    assert "note" in done.stdout and "reverted:" in done.stderr
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    again = _run(repo, nowhere, "revert", "HEAD", "--json")
    assert "its plan is not" in again.stderr
    assert (json.loads(again.stdout)["plan"], json.loads(again.stdout)["commit"]) == (
        None,
        repo.head,
    )
    conflict = _run(repo, nowhere, "revert", gone, "--json", code=0)
    assert json.loads(conflict.stdout)["commit"] == repo.head


def _run(
    repo: Repository, url: str, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
    env = {**kept, "Mdm__Database__Url": url}
    return run(*arguments, cwd=repo.root, env=env, code=code)
