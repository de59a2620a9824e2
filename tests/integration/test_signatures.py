"""Whose commits count: only those that are signed with the keys that were named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mdm_gitops.errors import SourceError
from mdm_gitops.source.verify import Trust, verify_commit
from tests.small_repository import SmallRepository
from tests.support import remotes
from tests.support.git import git
from tests.support.remotes import ssh_key

developer = remotes.developer


def signed(developer: SmallRepository, key: Path) -> str:
    options = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key}")
    git(developer.root, *options, "commit", "--quiet", "--allow-empty", "-S", "-m", "signed")
    return git(developer.root, "rev-parse", "HEAD")


class TestSignatures:
    def test_only_the_named_ssh_keys_count(
        self, tmp_path: Path, developer: SmallRepository
    ) -> None:
        unsigned = git(developer.root, "rev-parse", "HEAD")
        ours, theirs = ssh_key(tmp_path, "ours"), ssh_key(tmp_path, "theirs")
        allowed = tmp_path / "allowed"
        allowed.write_text(f"ana@example.com {ours.with_suffix('.pub').read_text()}")
        trust = Trust(allowed_signers=allowed)
        good, other = signed(developer, ours), signed(developer, theirs)
        assert verify_commit(developer.root, good, trust=trust) == "ana@example.com"
        for commit in (unsigned, other):
            with pytest.raises(SourceError) as caught:
                verify_commit(developer.root, commit, trust=trust)
            assert caught.value.kind_code == "SOURCE_NOT_VERIFIED"

    def test_a_signature_is_of_its_commit_alone(
        self, tmp_path: Path, developer: SmallRepository
    ) -> None:
        key = ssh_key(tmp_path, "key")
        allowed = tmp_path / "allowed"
        allowed.write_text(f"ana {key.with_suffix('.pub').read_text()}")
        good = signed(developer, key)
        text = git(developer.root, "cat-file", "commit", good)
        made = subprocess.run(
            ("git", "hash-object", "-t", "commit", "-w", "--stdin"),
            input=(text.replace("signed", "changed") + "\n").encode(),
            cwd=developer.root,
            check=True,
            capture_output=True,
        )
        with pytest.raises(SourceError):
            verify_commit(
                developer.root,
                made.stdout.decode().strip(),
                trust=Trust(allowed_signers=allowed),
            )

    @pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
    def test_only_the_named_openpgp_keys_count(
        self, tmp_path: Path, developer: SmallRepository
    ) -> None:
        # gpg's sockets need a short path.
        home = Path("/tmp") / f"mdm-gpg-{os.getpid()}"
        home.mkdir(mode=0o700)
        variables = {"GNUPGHOME": str(home)}
        try:
            for name in ("ours", "theirs"):
                subprocess.run(
                    ("gpg", "--batch", "--passphrase", "", "--quick-gen-key", name, "ed25519"),
                    env={**os.environ, **variables},
                    check=True,
                    capture_output=True,
                )
            exported = subprocess.run(
                ("gpg", "--armor", "--export", "ours"),
                env={**os.environ, **variables},
                check=True,
                capture_output=True,
            )
            keys = tmp_path / "keys.asc"
            keys.write_bytes(exported.stdout)
            commits = []
            for name in ("ours", "theirs"):
                options = ("-c", f"user.signingkey={name}", "commit", "--quiet", "--allow-empty")
                git(developer.root, *options, "-S", "-m", name, **variables)
                commits.append(git(developer.root, "rev-parse", "HEAD"))
            good, other = commits
            trust = Trust(allowed_keys=keys)
            assert verify_commit(developer.root, good, trust=trust) == "ours"
            with pytest.raises(SourceError):
                verify_commit(developer.root, other, trust=trust)
        finally:
            subprocess.run(
                ("gpgconf", "--homedir", str(home), "--kill", "all"),
                check=False,
                capture_output=True,
            )
            shutil.rmtree(home, ignore_errors=True)
