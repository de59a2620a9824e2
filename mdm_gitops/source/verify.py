"""Whether a commit is signed by somebody who may change definitions.

Git's own ``verify-commit`` decides, against the given keys alone: not those of the account that runs
us, and no key server is asked. The commit that is taken must be signed; with that its signer vouches
for what it builds on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mdm_gitops.errors import InputError, SourceError
from mdm_gitops.source.git import ask_git, run_git

_TIMEOUT_S: Final = 30
_SSH: Final = re.compile(rb'Good "git" signature for (\S+) with', re.MULTILINE)
_GPG: Final = re.compile(rb"^\[GNUPG:\] GOODSIG \S+ (.*)$", re.MULTILINE)
_HEADER: Final = re.compile(rb"^gpgsig(?:-sha256)? -----BEGIN (SSH|PGP) ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count. Without either file every commit does."""

    allowed_signers: Path | None = None  # of ssh-keygen(1)
    allowed_keys: Path | None = None  # OpenPGP public keys

    @property
    def is_required(self) -> bool:
        return self.allowed_signers is not None or self.allowed_keys is not None


NOBODY_IN_PARTICULAR: Final = Trust()


def verify_commit(repo: Path, commit: str, *, trust: Trust) -> str:
    """Return who signed *commit*.

    Raises:
        SourceError: nobody did, or none that *trust* names (``SOURCE_NOT_VERIFIED``).
        InputError: a file of *trust* cannot be read.
    """
    head, _, _ = run_git(repo, "cat-file", "commit", commit).partition(b"\n\n")
    found = _HEADER.search(head)
    if found is None:
        raise _refused(commit, "is not signed")
    if found[1] == b"SSH":
        signer = _ssh_signer(repo, commit, trust.allowed_signers)
    else:
        signer = _gpg_signer(repo, commit, trust.allowed_keys)
    if not signer:
        raise _refused(commit, "is not signed by anybody who may")
    return signer


def _ssh_signer(repo: Path, commit: str, allowed: Path | None) -> str:
    if allowed is None:
        return ""
    signers = _readable(allowed)
    done = ask_git(
        repo,
        *("-c", f"gpg.ssh.allowedSignersFile={signers}"),
        *("-c", "gpg.ssh.program=ssh-keygen"),
        *("verify-commit", "--raw", commit),
    )
    found = _SSH.search(done.stderr)
    return found[1].decode(errors="replace") if found and done.returncode == 0 else ""


def _gpg_signer(repo: Path, commit: str, allowed: Path | None) -> str:
    if allowed is None:
        return ""
    keys, program = _readable(allowed), shutil.which("gpg")
    if program is None:
        raise InputError("gpg is not installed", hint="it is needed to verify OpenPGP signatures")
    with tempfile.TemporaryDirectory(prefix="mdm-keys-") as home:
        Path(home).chmod(0o700)
        subprocess.run(
            [program, "--homedir", home, "--batch", "--no-autostart", "--import", str(keys)],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        done = ask_git(
            repo,
            *("-c", f"gpg.program={program}"),
            *("verify-commit", "--raw", commit),
            variables={"GNUPGHOME": home},
        )
    found = _GPG.search(done.stderr)
    return found[1].decode(errors="replace") if found and done.returncode == 0 else ""


def _readable(path: Path) -> Path:
    absolute = path.expanduser().absolute()
    if not absolute.is_file():
        raise InputError(
            f"{path} does not exist", hint="Mdm__Source__AllowedSigners and AllowedKeys name files"
        )
    return absolute


def _refused(commit: str, why: str) -> SourceError:
    return SourceError(
        f"commit {commit[:12]} {why}",
        hint="sign it with an allowed key, or add the key to the allowed ones",
        code="SOURCE_NOT_VERIFIED",
    )
