"""Remotes by ssh, against a real server: whom it trusts and whom it lets in, what is told when not,
and that no address, path or host gets anything run here."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mdm_gitops.errors import Conflict, InputError, SourceError
from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.source import read_tree
from mdm_gitops.source.commits import Author, CommitWriter, WriteMode
from mdm_gitops.source.credentials import Credentials
from mdm_gitops.source.origin import origin_of
from mdm_gitops.source.pushing import RemoteBranch
from mdm_gitops.source.remote import Remote, fetch, run_remote_git
from tests.support import remotes
from tests.support.git import git
from tests.support.ssh_host import STALLS, Key, SshHost, new_key, ssh_host

developer, bare, mirror = remotes.developer, remotes.bare, remotes.mirror
PR_SET_CHILD_SUBREAPER = 36
ANA = Author(actor="user:ana@example.com")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return new_key(tmp_path_factory.mktemp("keys") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return new_key(tmp_path_factory.mktemp("keys") / "theirs")


@pytest.fixture(scope="module")
def served(ours: Key, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    with ssh_host(tmp_path_factory.mktemp("host"), ours) as running:
        yield running


@pytest.fixture
def host(served: SshHost) -> SshHost:
    served.log.write_text("")
    return served


@pytest.fixture
def right(tmp_path: Path, host: SshHost, ours: Key) -> Credentials:
    hosts = tmp_path / "known hosts"
    hosts.write_text(host.known_hosts)
    key = private_file(tmp_path / "a key", ours.text)
    return Credentials(ssh_key_file=key, known_hosts_file=hosts)


def private_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def remote(host: SshHost, repository: Path | str, given: Credentials, **more: Any) -> Remote:
    return Remote(url=host.url(repository), branch="main", credentials=given, **more)


def refused(asked: Remote, mirror: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        fetch(asked, into=mirror)
    assert caught.value.hint
    return caught.value


# --- letting in ---


def test_a_commit_is_fetched_with_a_key_from_a_file(
    host: SshHost, bare: Path, mirror: Path, right: Credentials
) -> None:
    assert fetch(remote(host, bare, right), into=mirror) == git(bare, "rev-parse", "main")
    assert host.asked == [f"git-upload-pack '{bare}'"]


def test_settings_bring_the_key_and_leave_no_trace_of_it(
    host: SshHost, ours: Key, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for name, value in {
        "Url": host.url(bare),
        "SshKey": ours.text.strip(),  # as a variable often loses its last line end
        "KnownHosts": host.known_hosts.strip(),
    }.items():
        monkeypatch.setenv(f"Mdm__Source__{name}", value)
    settings = load_settings(tmp_path)
    origin = origin_of(tmp_path, settings)
    assert origin is not None
    assert read_tree(origin.tree(origin.newest())).project.name == "small"
    assert list(scratch.iterdir()) == []
    secret = ours.text.splitlines()[2]
    assert secret not in repr(settings) + repr(origin)
    kept = [path for path in (tmp_path / ".mdm").rglob("*") if path.is_file()]
    assert kept
    assert not any(secret.encode() in path.read_bytes() for path in kept)


def test_one_key_is_given_once() -> None:
    for pair in ({"SshKey": "x", "SshKeyFile": "y"}, {"KnownHosts": "x", "KnownHostsFile": "y"}):
        with pytest.raises(ValueError, match="exclude each other"):
            Settings(Source={"Url": "ssh://git@host/x.git", **pair})


def test_a_change_of_definitions_is_pushed(
    host: SshHost, bare: Path, mirror: Path, right: Credentials
) -> None:
    place = RemoteBranch(remote=remote(host, bare, right), repo=mirror)
    text = b"name: small\napiVersion: mdm-gitops/v1\ndomains: [{name: core}]\n"
    made = CommitWriter(place, mode=WriteMode.COMMIT).write(
        lambda _: {"mdm.yaml": text}, author=ANA, message="Change it"
    )
    assert git(bare, "rev-parse", "main") == made.commit
    assert git(bare, "log", "-1", "--format=%ae %s") == "ana@example.com Change it"
    assert git(bare, "show", "main:mdm.yaml").encode() == text.strip()


def test_a_push_that_is_not_the_newest_any_more_is_no_error_and_a_closed_branch_is_one(
    host: SshHost, bare: Path, mirror: Path, right: Credentials, tmp_path: Path
) -> None:
    place = RemoteBranch(remote=remote(host, bare, right), repo=mirror)
    tip = place.tip()
    late = git(mirror, "commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", "late")
    git(tmp_path / "clone", "commit", "--quiet", "--allow-empty", "-m", "first")
    git(tmp_path / "clone", "push", "--quiet", str(bare), "HEAD:main")
    assert place.land(tip, late, {}, {}) is False
    tip = place.tip()
    mine = git(mirror, "commit-tree", f"{tip}^{{tree}}", "-p", tip, "-m", "mine")
    hook = bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(Conflict) as caught:
        place.land(tip, mine, {}, {})
    assert caught.value.kind_code == "PUSH_REFUSED"
    assert git(bare, "rev-parse", "main") == tip


# --- keeping out ---


@pytest.mark.parametrize(
    ("known", "reason", "hint"),
    [
        (lambda *_: "", "No ED25519 host key is known for", "ssh-keyscan"),
        (lambda host, other: host.known_as(other), "has changed", "ask who runs the host"),
        (
            lambda host, _: host.known_hosts.replace("127.0.0.1", "127.0.0.2"),
            "No ED25519 host key is known for",
            "ssh-keyscan",
        ),
        (
            lambda host, _: f"@revoked * {host.key.public}\n{host.known_hosts}",
            "is marked as revoked",
            "ask who runs the host",
        ),
    ],
    ids=["none", "another", "of another host", "revoked"],
)
def test_a_host_that_is_not_known_is_not_spoken_to(
    known: Callable[[SshHost, Key], str],
    reason: str,
    hint: str,
    host: SshHost,
    theirs: Key,
    bare: Path,
    mirror: Path,
    right: Credentials,
    tmp_path: Path,
) -> None:
    assert right.known_hosts_file is not None
    right.known_hosts_file.write_text(known(host, theirs))
    told = refused(remote(host, bare, right), mirror)
    assert reason in str(told)
    assert hint in told.hint
    assert host.asked == []
    assert right.known_hosts_file.read_text() == known(host, theirs), "nothing is learnt"


def test_hosts_of_the_account_are_asked_where_none_are_given(
    host: SshHost, bare: Path, mirror: Path, right: Credentials
) -> None:
    told = refused(remote(host, bare, Credentials(ssh_key_file=right.ssh_key_file)), mirror)
    assert "host key is known" in str(told)


def test_a_key_that_is_not_admitted(host: SshHost, theirs: Key, bare: Path, mirror: Path) -> None:
    given = Credentials(ssh_key=theirs.text, known_hosts=host.known_hosts)
    told = refused(remote(host, bare, given), mirror)
    assert "Permission denied (publickey)" in str(told)
    assert "credentials are wrong" in told.hint
    assert host.asked == []


def test_a_key_that_others_may_read(
    host: SshHost, bare: Path, mirror: Path, right: Credentials
) -> None:
    assert right.ssh_key_file is not None
    right.ssh_key_file.chmod(0o644)
    told = refused(remote(host, bare, right), mirror)
    assert "bad permissions" in str(told)
    assert "chmod 600" in told.hint


@pytest.mark.parametrize("format_", ["RFC4716", "PKCS8"])
def test_a_key_with_a_passphrase_is_told_before_anybody_is_asked(
    format_: str, host: SshHost, bare: Path, tmp_path: Path
) -> None:
    key = new_key(tmp_path / "locked", passphrase="words", format_=format_)
    given = Credentials(ssh_key_file=key.file, known_hosts=host.known_hosts)
    with pytest.raises(InputError, match="has a passphrase") as caught:
        fetch(remote(host, bare, given), into=tmp_path / "mirror.git")
    assert "ssh-keygen" in caught.value.hint
    assert host.asked == []


@pytest.mark.parametrize(
    "content", [b"", b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me\n", b"\xff\x00"]
)
def test_what_is_no_private_key_is_told_before_anybody_is_asked(
    content: bytes, host: SshHost, bare: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    given = Credentials(ssh_key_file=key, known_hosts=host.known_hosts)
    with pytest.raises(InputError, match="does not hold a private key"):
        fetch(remote(host, bare, given), into=tmp_path / "mirror.git")
    assert host.asked == []


@pytest.mark.parametrize("unusable", ['a"b', "a%h", "a${HOME}", "a\\b"])
def test_a_path_that_ssh_would_read_as_something_else(
    unusable: str, host: SshHost, ours: Key, bare: Path, tmp_path: Path
) -> None:
    key = private_file(tmp_path / unusable, ours.text)
    with pytest.raises(InputError, match="cannot be told to git"):
        fetch(remote(host, bare, Credentials(ssh_key_file=key)), into=tmp_path / "mirror.git")


# --- faults ---


@contextmanager
def a_port_that(does: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen; *does* is done with each connection, which stays open as long as it is not closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                taken.append(connection)
                does(connection)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for connection in taken:
                connection.close()


def none_is_left(word: str) -> bool:
    shown = subprocess.run(("ps", "-ewwo", "args="), capture_output=True, text=True, check=True)
    return not [
        line for line in shown.stdout.splitlines() if word in line and "ps -ewwo" not in line
    ]


def test_a_host_that_says_nothing_is_given_up(mirror: Path, right: Credentials) -> None:
    with a_port_that(lambda _: None) as port:
        url = f"ssh://git@127.0.0.1:{port}/x.git"
        told = refused(Remote(url=url, credentials=right, timeout_s=1.0), mirror)
        assert "did not finish within 1 s" in str(told)
        assert none_is_left(f"-p {port}"), "ssh ends with git"


def test_a_host_that_lets_us_in_and_says_nothing_then_is_given_up(
    host: SshHost, mirror: Path, right: Credentials
) -> None:
    for limit in (2.0, 10.0, 30.0):  # a busy machine may not be let in within the first
        told = refused(remote(host, STALLS, right, timeout_s=limit), mirror)
        assert f"did not finish within {limit:.0f} s" in str(told)
        if host.asked:
            break
    assert host.asked
    assert none_is_left(f"-p {host.port}")


@contextmanager
def first_process() -> Iterator[None]:
    """Let this process inherit orphans, as the first one of a container does."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such processes")
def test_what_is_given_up_leaves_no_dead_process(mirror: Path, right: Credentials) -> None:
    with first_process(), a_port_that(lambda _: None) as port:
        before = the_dead()
        asked = Remote(url=f"ssh://git@127.0.0.1:{port}/x.git", credentials=right, timeout_s=1.0)
        refused(asked, mirror)
        assert the_dead() <= before


def the_dead() -> set[str]:
    """The processes that ended as children of this one, and that nobody has waited for."""
    command = ("ps", "--ppid", str(os.getpid()), "-o", "stat=,pid=")
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line for line in shown.stdout.splitlines() if line.startswith("Z")}


def test_a_host_that_hangs_up(mirror: Path, right: Credentials) -> None:
    with a_port_that(lambda connection: connection.close()) as port:
        told = refused(Remote(url=f"ssh://git@127.0.0.1:{port}/x.git", credentials=right), mirror)
        assert "onnection" in str(told)
    told = refused(Remote(url=f"ssh://git@127.0.0.1:{port}/x.git", credentials=right), mirror)
    assert "Connection refused" in str(told)


def test_a_repository_that_is_not_there(host: SshHost, mirror: Path, right: Credentials) -> None:
    told = refused(remote(host, "/nowhere/x.git", right), mirror)
    assert "does not appear to be a git repository" in str(told)


# --- what is not to be run ---


@pytest.mark.parametrize(
    "name",
    [
        "a space",
        "it's",
        'a "quote"',
        "$(touch pwned)",
        "`touch pwned`",
        "a;touch pwned",
        "100%",
        "-x",
    ],
)
def test_a_path_is_a_path_whatever_it_is_called(
    name: str,
    host: SshHost,
    bare: Path,
    mirror: Path,
    right: Credentials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(bare.parent)  # of the server, too
    odd = bare.rename(bare.parent / f"{name}.git")
    asked = remote(host, odd, right)
    assert fetch(asked, into=mirror) == git(odd, "rev-parse", "main")
    run_remote_git(asked, mirror, "push", "--quiet", asked.url, "refs/mdm/*:refs/heads/copy/*")
    assert git(odd, "for-each-ref", "--format=x", "refs/heads/copy") == "x"
    assert len(host.asked) == 2
    assert not (bare.parent / "pwned").exists()


def test_neither_git_nor_ssh_gets_our_settings(
    host: SshHost, bare: Path, mirror: Path, right: Credentials, tmp_path: Path, monkeypatch: Any
) -> None:
    noted = tmp_path / "noted"
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nenv > "{noted}"\nexec {_program("ssh")} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("Mdm__Database__Url", "postgresql://mdm:a-password@db/mdm")
    monkeypatch.setenv("MDM__SOURCE__HOOKSECRET", "a-hook-secret")
    assert fetch(remote(host, bare, right), into=mirror)
    seen = noted.read_text()
    assert "PATH=" in seen
    assert "a-password" not in seen and "a-hook-secret" not in seen


def _program(name: str) -> str:
    done = subprocess.run(("sh", "-c", f"command -v {name}"), capture_output=True, check=True)
    return done.stdout.decode().strip()
