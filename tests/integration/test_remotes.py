"""Remotes by real git: what is fetched, what bounds hold, and what is no address at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from mdm_gitops.errors import InputError, NotFound, SourceError
from mdm_gitops.source.remote import Remote, fetch
from tests.small_repository import SmallRepository
from tests.support import remotes
from tests.support.git import git
from tests.support.remotes import push, remote

developer, bare, mirror = remotes.developer, remotes.bare, remotes.mirror


class TestFetching:
    def test_a_branch_and_what_is_pushed_to_it(
        self, developer: SmallRepository, bare: Path, mirror: Path
    ) -> None:
        first = fetch(remote(bare, branch="main"), into=mirror)
        developer.add_column("capital")
        developer.commit()
        second = push(developer, bare)
        assert fetch(remote(bare, branch="main"), into=mirror) == second != first
        assert fetch(remote(bare), into=mirror) == second, "its own default branch"
        assert not (mirror / "mdm.yaml").exists(), "nothing is checked out"

    def test_a_tag_is_its_commit_and_a_revision_is_itself(
        self, developer: SmallRepository, bare: Path, mirror: Path
    ) -> None:
        first = git(developer.root, "rev-parse", "HEAD")
        git(developer.root, "tag", "-a", "v1", "-m", "one")
        git(developer.root, "push", "--quiet", str(bare), "v1")
        developer.commit("later")
        push(developer, bare)
        assert fetch(remote(bare, tag="v1"), into=mirror) == first
        assert fetch(remote(bare, revision=first), into=mirror) == first

    def test_a_branch_that_was_rewritten(
        self, developer: SmallRepository, bare: Path, mirror: Path
    ) -> None:
        fetch(remote(bare, branch="main"), into=mirror)
        git(developer.root, "commit", "--quiet", "--amend", "-m", "another")
        assert fetch(remote(bare, branch="main"), into=mirror) != push(developer, bare, "--force")
        assert fetch(remote(bare, branch="main"), into=mirror) == git(
            developer.root, "rev-parse", "HEAD"
        )

    @pytest.mark.parametrize("what", [{"branch": "none"}, {"tag": "none"}, {"revision": "a" * 40}])
    def test_what_is_not_there(self, bare: Path, mirror: Path, what: dict[str, str]) -> None:
        with pytest.raises(NotFound):
            fetch(remote(bare, **what), into=mirror)

    def test_an_unsound_object_is_refused(
        self, developer: SmallRepository, bare: Path, mirror: Path
    ) -> None:
        tree = git(developer.root, "rev-parse", "HEAD^{tree}")
        wrong = f"tree {tree}\nauthor nobody\ncommitter nobody\n\nx\n"
        made = subprocess.run(
            ("git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"),
            input=wrong.encode(),
            cwd=bare,
            check=True,
            capture_output=True,
        )
        git(bare, "update-ref", "refs/heads/main", made.stdout.decode().strip())
        with pytest.raises(SourceError):
            fetch(remote(bare, branch="main"), into=mirror)

    def test_more_than_it_may_be_is_not_kept(
        self, developer: SmallRepository, bare: Path, mirror: Path
    ) -> None:
        fetch(remote(bare, branch="main"), into=mirror)
        (developer.root / "large").write_bytes(os.urandom(3_000_000))
        developer.commit()
        push(developer, bare)
        with pytest.raises(SourceError, match="more than 1,000,000 bytes"):
            fetch(remote(bare, branch="main", max_bytes=1_000_000), into=mirror)
        assert fetch(remote(bare, branch="main"), into=mirror)

    def test_what_a_killed_git_left_is_no_obstacle(self, bare: Path, mirror: Path) -> None:
        commit = fetch(remote(bare, branch="main"), into=mirror)
        shutil.rmtree(mirror / "refs" / "mdm")
        (mirror / "refs" / "mdm").mkdir()
        for name in ("packed-refs.lock", "config.lock", "shallow.lock"):
            (mirror / name).touch()
        assert fetch(remote(bare, branch="main"), into=mirror) == commit

    def test_many_at_once(self, bare: Path, mirror: Path) -> None:
        found: list[str] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(fetch(remote(bare, branch="main"), into=mirror))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert len(set(found)) == 1

    def test_hooks_of_the_mirror_do_not_run(self, bare: Path, mirror: Path) -> None:
        fetch(remote(bare, branch="main"), into=mirror)
        hook = mirror / "hooks" / "reference-transaction"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {mirror}/ran\n")
        hook.chmod(0o755)
        shutil.rmtree(mirror / "refs" / "mdm")
        (mirror / "refs" / "mdm").mkdir()
        fetch(remote(bare, branch="main"), into=mirror)
        assert not (mirror / "ran").exists()


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "ext::sh -c 'touch x'",
            "http://example.com/x.git",
            "git://example.com/x.git",
            "/srv/x.git",
            "--upload-pack=x",
            "https://me:word@example.com/x.git",
            "https://token@example.com/x.git",
            "https://example.com/\nx",
            "file://host/x",
            "ssh://-oProxyCommand=x/y",
            "ssh://%2DoProxyCommand=x/y",
            "ssh://-oProxyCommand=x@example.com/y",
            "ssh://$(touch%20x)@example.com/y",
            "ssh://exa`touch x`mple.com/y",
            "ssh://git@example.com:-oProxyCommand=x/y",
            "-oProxyCommand=x@example.com:y",
            "git@-oProxyCommand=x:y",
            "https://",
        ],
    )
    def test_what_is_no_address(self, url: str) -> None:
        with pytest.raises(InputError) as caught:
            Remote(url=url)
        assert "word" not in str(caught.value).replace("password", "")

    @pytest.mark.parametrize(
        ("url", "origin"),
        [
            ("https://example.com/x.git", "https://example.com"),
            ("https://example.com:8443/x.git", "https://example.com:8443"),
            ("ssh://git@example.com:22/x.git", "ssh://example.com:22"),
            ("ssh://git@[::1]:22/x.git", "ssh://[::1]:22"),
            ("git@example.com:team/x.git", "ssh://example.com"),
            ("git@example.com:/srv/x.git", "ssh://example.com"),
            ("file:///srv/x.git", "file://"),
        ],
    )
    def test_what_is_one(self, url: str, origin: str) -> None:
        assert Remote(url=url).origin == origin

    @pytest.mark.parametrize(
        "more",
        [
            {"branch": "-x"},
            {"branch": "a..b"},
            {"branch": "a:b"},
            {"tag": "+x"},
            {"revision": "HEAD"},
            {"branch": "a", "tag": "b"},
            {"subpath": "../x"},
            {"subpath": "/x"},
        ],
    )
    def test_what_cannot_be_asked_for(self, more: dict[str, str]) -> None:
        with pytest.raises(InputError):
            Remote(url="https://example.com/x.git", **more)
