"""Where definitions come from: a folder of a remote, a revision, a history that must go on, and bombs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdm_gitops.errors import InputError, NotFound, SourceError
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.source.origin import Origin, origin_of
from tests.small_repository import SmallRepository
from tests.support import remotes
from tests.support.git import git
from tests.support.remotes import push, tree

developer, bare = remotes.developer, remotes.bare


class TestOrigins:
    def test_a_folder_of_a_remote(
        self, tmp_path: Path, developer: SmallRepository, bare: Path
    ) -> None:
        team = SmallRepository(developer.root / "teams" / "geo")
        team.edit("name: small", "name: geo", "mdm.yaml")
        developer.commit()
        push(developer, bare)
        home = tmp_path / "home"
        settings = Settings(
            Source={"Url": f"file://{bare}", "Branch": "main", "SubPath": "teams/geo"}
        )
        origin = origin_of(home, settings)
        assert origin is not None
        assert read_tree(origin.tree(origin.newest())).project.name == "geo"
        nowhere = Origin(repo=origin.repo, subpath="teams/none")
        with pytest.raises(NotFound, match="no folder 'teams/none'"):
            read_tree(nowhere.tree(origin.newest()))

    def test_a_revision_of_the_folder_itself(self, developer: SmallRepository) -> None:
        developer.add_column("capital")
        origin = origin_of(developer.root, Settings(Source={"Revision": "main"}))
        assert origin is not None
        entity = read_tree(origin.tree(origin.newest())).entities["country"]
        assert [column.name for column in entity.columns] == ["code", "name"], "not the edit"

    def test_a_plain_folder_is_none(self, tmp_path: Path) -> None:
        assert origin_of(tmp_path, Settings()) is None

    def test_history_must_go_on(self, developer: SmallRepository) -> None:
        first = git(developer.root, "rev-parse", "HEAD")
        second = developer.commit("second")
        git(developer.root, "commit", "--quiet", "--allow-empty", "--amend", "-m", "other")
        other = git(developer.root, "rev-parse", "HEAD")
        origin = Origin(repo=developer.root, revision="main")
        origin.refuse_rewind(second, since=first)
        origin.refuse_rewind(first, since=None)
        for commit in (other, first):
            with pytest.raises(SourceError) as caught:
                origin.refuse_rewind(commit, since=second)
            assert caught.value.kind_code == "SOURCE_REWOUND"
        Origin(repo=developer.root, allow_rewind=True).refuse_rewind(other, since=second)

    def test_a_tree_that_lists_for_ever_is_not_listed(self, developer: SmallRepository) -> None:
        """Ten folders in ten folders in ten ...: a few objects, and ten thousand million files."""
        blob = git(developer.root, "rev-parse", "HEAD:mdm.yaml")
        kind, made = "100644 blob", blob
        for _ in range(10):
            made = tree(developer, "".join(f"{kind} {made}\tf{n}\n" for n in range(10)))
            kind = "040000 tree"
        top = tree(developer, f"040000 tree {made}\tentities\n100644 blob {blob}\tmdm.yaml\n")
        commit = git(developer.root, "commit-tree", top, "-m", "bomb")
        with pytest.raises(InputError, match="more files than anybody writes"):
            read_tree(Origin(repo=developer.root).tree(commit))

    def test_one_large_object_at_many_paths_is_not_read(self, developer: SmallRepository) -> None:
        (developer.root / "large").write_bytes(b" " * 60_000_000)
        blob = git(developer.root, "hash-object", "-w", "large")
        seeds = tree(developer, "".join(f"100644 blob {blob}\tf{n}.json\n" for n in range(10)))
        project = git(developer.root, "rev-parse", "HEAD:mdm.yaml")
        top = tree(developer, f"040000 tree {seeds}\tseed\n100644 blob {project}\tmdm.yaml\n")
        commit = git(developer.root, "commit-tree", top, "-m", "bomb")
        with pytest.raises(InputError, match="larger than anybody writes"):
            read_tree(Origin(repo=developer.root).tree(commit))
