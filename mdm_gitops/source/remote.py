"""A remote repository: its address, and how its commits come into a bare mirror of ours.

Fetching is the one thing here that talks to strangers, so it is bounded: three protocols, a limit of
time for all of it (the whole process group is killed), a limit of size that is measured while bytes
arrive, every object checked, no submodules, no hooks, no filters, nothing checked out. What is read
from the mirror afterwards is ``source.git``'s business.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from mdm_gitops.errors import InputError, NotFound, SourceError
from mdm_gitops.source.credentials import NO_CREDENTIALS, Credentials, lent
from mdm_gitops.source.git import clean_environment, run_git, without_credentials
from mdm_gitops.source.tree import why_unusable_path

DEFAULT_TIMEOUT_S: Final = 60.0
DEFAULT_MAX_BYTES: Final = 1024 * 1024 * 1024
_PROTOCOLS: Final = ("https", "ssh", "file")
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_SCP: Final = re.compile(
    r"(?P<user>[A-Za-z0-9_][\w.-]*)@(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>(?!//).+)", re.ASCII
)
# git undoes percent signs and hands user and host to ssh, whose own configuration may hand them to a
# shell: so no more of either than names are made of.
_SSH_HOST: Final = re.compile(
    r"([A-Za-z0-9_][\w.-]*@)?([A-Za-z0-9][\w.-]*|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?", re.ASCII
)
_HASH: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@-]{0,199}")
_SAID_BYTES: Final = 16 * 1024
_LOOK_SECONDS: Final = 0.05
_MANY_IN_ONE_FOLDER: Final = 27  # of 6,700 loose objects
_LOCK_FILE: Final = "mdm-fetch.lock"
_OPTIONS: Final = (
    "--no-replace-objects",
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.askPass="),
    *("-c", "fetch.fsckObjects=true"),
    *("-c", "transfer.fsckObjects=true"),
    *("-c", "fetch.recurseSubmodules=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where definitions come from. Of *branch*, *tag* and *revision* one at most is given; with none
    of them it is the branch that the remote calls its own. *subpath* is the folder of mdm.yaml."""

    url: str
    branch: str = ""
    tag: str = ""
    revision: str = ""  # full hash of a commit
    subpath: str = ""
    credentials: Credentials = NO_CREDENTIALS
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_bytes: int = DEFAULT_MAX_BYTES  # of the mirror, while it is fetched

    def __post_init__(self) -> None:
        _check_url(self.url)
        if sum(map(bool, (self.branch, self.tag, self.revision))) > 1:
            raise InputError("a branch, a tag and a revision exclude each other", hint="give one")
        for name in filter(None, (self.branch, self.tag)):
            if (
                not _PLAIN_NAME.fullmatch(name)
                or ".." in name
                or name.endswith((".lock", "/", "."))
            ):
                raise InputError(f"{name[:80]!r} is no name of a branch or tag")
        if self.revision and not _HASH.fullmatch(self.revision):
            raise InputError(
                f"{self.revision[:80]!r} is not the full hash of a commit",
                hint="name a branch or tag, or all digits of the hash",
            )
        if self.subpath and why_unusable_path(self.subpath):
            raise InputError(
                f"{self.subpath[:80]!r} is no folder of a repository", hint="as in teams/customers"
            )

    @property
    def refspec(self) -> str:
        """What of the remote is asked for, without where it is put."""
        if self.branch:
            return f"refs/heads/{self.branch}"
        return f"refs/tags/{self.tag}" if self.tag else self.revision or "HEAD"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        found = _SCP.fullmatch(self.url)
        if found:
            return f"ssh://{found['host']}"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __str__(self) -> str:
        what = self.branch or self.tag or self.revision[:12]
        return f"{without_credentials(self.url)}{f' ({what})' if what else ''}"


@contextmanager
def git_environment(remote: Remote) -> Iterator[dict[str, str]]:
    """Yield the whole environment for a git that talks to *remote*, to fetch or to push."""
    scheme = urlsplit(remote.origin).scheme
    inherited = {n: v for n, v in clean_environment().items() if not n.lower().startswith("mdm__")}
    with lent(remote.credentials, origin=remote.origin) as variables:
        yield {
            **inherited,  # without our own settings: neither git nor ssh needs our secrets
            **variables,
            "GIT_ALLOW_PROTOCOL": scheme,
            "GIT_ASKPASS": "",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_LAZY_FETCH": "1",
        }


def fetch(remote: Remote, *, into: Path) -> str:
    """Bring what *remote* asks for into the bare repository *into*; return the commit's full hash.

    The repository is made if it is not there. Any number of processes may do so at once.

    Raises:
        SourceError: the remote did not answer, refused, took too long or sent too much.
        NotFound: it has no such branch, tag or commit.
    """
    deadline = time.monotonic() + remote.timeout_s
    into.mkdir(parents=True, exist_ok=True)
    with _alone(into, deadline) as lock:
        _prepare(into)
        kept = _kept_as(remote)
        arguments = (
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--force"),
            *("--no-recurse-submodules", "--end-of-options", remote.url),
            f"+{remote.refspec}:{kept}",
        )
        run_remote_git(remote, into, *arguments, deadline=deadline, keep_open=lock.fileno())
        found = run_git(
            into, "rev-parse", "--verify", "--quiet", f"{kept}^{{commit}}", may_fail=True
        )
        if not found:
            raise NotFound(f"{remote} names no commit")
        _tidy(into)
        return found.decode().strip()


def run_remote_git(
    remote: Remote,
    repo: Path,
    *arguments: str,
    deadline: float | None = None,
    keep_open: int | None = None,
) -> str:
    """Run a git in *repo* that talks to *remote*; return what it said on both its outputs.

    It is killed with all that it started when *deadline* (on the monotonic clock) has passed, or
    *repo* has grown beyond the remote's limit. *keep_open* is a descriptor that it inherits.
    """
    program = shutil.which("git")
    if program is None:
        raise InputError("git is not installed", hint="install git, or read a plain folder")
    if deadline is None:
        deadline = time.monotonic() + remote.timeout_s
    with tempfile.TemporaryFile() as said, git_environment(remote) as environment:
        process = subprocess.Popen(
            [program, *_OPTIONS, "-C", str(repo), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            pass_fds=() if keep_open is None else (keep_open,),
        )
        try:
            _watch(process, remote, repo, deadline)
        finally:
            _end(process)
        text = _said(said)
    if process.returncode == 0:
        return text
    raise _refused(remote, text)


def _watch(process: subprocess.Popen[bytes], remote: Remote, repo: Path, deadline: float) -> None:
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
        if _size_of(repo) > remote.max_bytes:
            raise SourceError(
                f"{remote} sends more than {remote.max_bytes:,} bytes",
                hint="keep large files elsewhere, or raise Mdm__Source__MaxBytes",
            )
        if process.returncode is not None:
            return
        if time.monotonic() >= deadline:
            raise SourceError(
                f"{remote} did not finish within {remote.timeout_s:.0f} s",
                hint="Mdm__Source__TimeoutSeconds is the limit",
            )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and of all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The first process of a container inherits what git had started, and nobody else buries it.
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def _said(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _SAID_BYTES))
    return without_credentials(file.read().decode(errors="replace").strip())


def _refused(remote: Remote, said: str) -> SourceError | NotFound:
    low = said.lower()
    if "couldn't find remote ref" in low or "not our ref" in low:
        return NotFound(f"{remote} does not exist there", hint="check the branch, tag or revision")
    hint = next((hint for words, hint in _HINTS if any(word in low for word in words)), "")
    return SourceError(f"git cannot reach {remote}: {_reason(said)[:300]}".rstrip("."), hint=hint)


def _reason(said: str) -> str:
    """Return the line that tells most: git's own, or what ssh said before it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    if not telling:
        return "no reason given"
    if not telling[0].startswith(_ONLY_THAT_IT_FAILED):
        return telling[0]
    before = lines[: lines.index(telling[0])]
    first = next((line for line in before if _OF_SSH.match(line)), None)
    return first or (before[-1] if before else telling[0])


_ONLY_THAT_IT_FAILED: Final = "fatal: Could not read from remote repository"
_OF_SSH: Final = re.compile(
    r"ssh: |Load key |No \S+ host key is known|Host key for |The \S+ host key for .* revoked"
    r"|kex_exchange|(remote: )?ERROR: "
)
_HINTS: Final[Sequence[tuple[tuple[str, ...], str]]] = (
    (("cannot run ssh",), "install the ssh client (on Debian: openssh-client)"),
    (
        ("has changed and you have requested", "marked as revoked"),
        "it is not the key you trust: ask who runs the host before you trust another",
    ),
    (("bad permissions",), "only its owner may read a key file: chmod 600"),
    (
        ("host key verification failed", "host key is known"),
        "put the host's key into Mdm__Source__KnownHostsFile; `ssh-keyscan` prints it",
    ),
    (
        (
            "permission denied",
            "authentication failed",
            "could not read username",
            "returned error: 40",
        ),
        "the credentials are wrong, or may not read this repository",
    ),
    (
        ("does not appear to be a git repository", "repository not found", "could not be found"),
        "check the path, and whether the credentials may see it",
    ),
    (
        (
            *("could not resolve", "connection refused", "timed out", "unable to connect"),
            *("connection reset", "connection closed", "closed by remote host"),
        ),
        "check the address and the network; it is tried again",
    ),
    (
        ("ssl certificate", "certificate problem", "certificate verif"),
        "Mdm__Source__CaFile names the authority to trust",
    ),
    (("fsck", "unpack-objects", "index-pack"), "an object of the repository is not sound"),
    (("dubious ownership",), "`git config --global --add safe.directory <path>` trusts it"),
    (("transport",), "https, ssh and file are the protocols that are used"),
)


# --- the mirror ---


def _kept_as(remote: Remote) -> str:
    digest = hashlib.sha256(f"{remote.url}\0{remote.refspec}".encode())
    return f"refs/mdm/{digest.hexdigest()[:16]}"


def _prepare(into: Path) -> None:
    """Make *into* a bare repository, and remove what a killed git left there."""
    if not (into / "HEAD").is_file():
        run_git(into, "init", "--quiet", "--bare", "--template=")
        return
    for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/**/tmp_obj_*"):
        for left in into.glob(pattern):
            if left.name != _LOCK_FILE:
                left.unlink(missing_ok=True)
    for left in into.glob("objects/tmp_objdir-*"):
        shutil.rmtree(left, ignore_errors=True)


def _tidy(into: Path) -> None:
    """Pack what many small fetches have left, by git's own measure: one of 256 folders is counted.

    What is not reachable any more stays: a commit that was taken once is still asked about.
    """
    sample = into / "objects" / "17"
    if sample.is_dir() and sum(1 for _ in sample.iterdir()) > _MANY_IN_ONE_FOLDER:
        run_git(into, "repack", "-d", "-q")


@contextmanager
def _alone(into: Path, deadline: float) -> Iterator[IO[str]]:
    """Hold the mirror; a git that outlives us holds it on, by the descriptor it inherited."""
    with (into / _LOCK_FILE).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SourceError(
                        f"another program is fetching into {into}", hint="it is tried again"
                    ) from None
                time.sleep(_LOOK_SECONDS)
        yield file


def _size_of(folder: Path) -> int:
    total = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += Path(name, file).lstat().st_size
    return total


def _check_url(url: str) -> None:
    if not url.isprintable() or url != url.strip() or url.startswith("-"):
        raise InputError("the address of the remote holds characters that it must not")
    if _SCP.fullmatch(url):
        return
    parts = urlsplit(url)
    loopback = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if parts.scheme not in _PROTOCOLS and not loopback:
        raise InputError(
            f"{without_credentials(url)[:200]!r} is no address of a remote",
            hint="as in https://host/team/repo.git, ssh://git@host/repo.git, git@host:repo.git or"
            " file:///srv/repo.git",
        )
    if parts.password or (parts.username and parts.scheme != "ssh"):
        raise InputError(
            "the address of the remote holds a name or password",
            hint="use Mdm__Source__Username and Mdm__Source__Password or PasswordFile",
        )
    if parts.scheme == "ssh" and not _SSH_HOST.fullmatch(parts.netloc):
        raise InputError(
            f"{without_credentials(url)[:200]!r} is no address of a remote",
            hint="as in ssh://git@host:22/team/repo.git",
        )
    host = parts.hostname or ""
    if (parts.scheme == "file") != (not host) or host.startswith("-") or not parts.path.strip("/"):
        raise InputError(f"{url[:200]!r} is no address of a remote")


__all__ = ["Remote", "fetch", "git_environment", "run_remote_git"]
