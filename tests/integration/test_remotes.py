"""Remotes by real git: what is fetched, what bounds hold, what never leaves, whose commits count."""

from __future__ import annotations

import base64
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mdm_gitops.errors import InputError, NotFound, SourceError
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.source.credentials import Credentials, lent
from mdm_gitops.source.origin import Origin, origin_of
from mdm_gitops.source.remote import Remote, fetch, git_environment, run_remote_git
from mdm_gitops.source.verify import Trust, verify_commit
from tests.small_repository import SmallRepository

SECRET = "s3cret-of-the-tests"


@pytest.fixture
def developer(tmp_path: Path) -> SmallRepository:
    repository = SmallRepository(tmp_path / "clone")
    repository.commit()
    return repository


@pytest.fixture
def bare(tmp_path: Path, developer: SmallRepository) -> Path:
    git(tmp_path, "clone", "--quiet", "--bare", str(developer.root), "remote.git")
    return tmp_path / "remote.git"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror.git"


def git(folder: Path, *arguments: str, **variables: str) -> str:
    options = ("-c", "user.name=test", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ("git", *options, *arguments),
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    return done.stdout.strip()


def push(developer: SmallRepository, bare: Path, *more: str) -> str:
    git(developer.root, "push", "--quiet", *more, str(bare), "HEAD:main")
    return git(developer.root, "rev-parse", "HEAD")


def remote(bare: Path, **more: Any) -> Remote:
    return Remote(url=f"file://{bare}", **more)


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


class Asked(BaseHTTPRequestHandler):
    """A host that wants a password, and notes which one it was given."""

    seen: ClassVar[list[str]] = []
    elsewhere: ClassVar[str] = ""
    stalls: ClassVar[bool] = False

    def do_GET(self) -> None:
        type(self).seen.append(self.headers.get("Authorization", ""))
        if self.stalls:
            time.sleep(30)
        if self.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.elsewhere + self.path)
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def host(**attributes: Any) -> Iterator[tuple[str, type[Asked]]]:
    handler = type("Host", (Asked,), {"seen": [], **attributes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        server.server_close()


class TestCredentials:
    def test_the_host_gets_them_and_nobody_else(self, tmp_path: Path, mirror: Path) -> None:
        file = tmp_path / "password"
        file.write_text(SECRET + "\n")
        expected = "Basic " + base64.b64encode(f"bot:{SECRET}".encode()).decode()
        with host() as (url, asked):
            given = Credentials(username="bot", password_file=file)
            with pytest.raises(SourceError) as caught:
                fetch(Remote(url=f"{url}/x.git", credentials=given), into=mirror)
            assert expected in asked.seen
            assert SECRET not in f"{caught.value}{caught.value.hint}{given}"
        with host() as (elsewhere, other), host(elsewhere=elsewhere) as (url, _):
            with pytest.raises(SourceError):
                fetch(Remote(url=f"{url}/x.git", credentials=given), into=mirror)
            assert other.seen, "it was sent on"
            assert not any(other.seen), "without the password"
        kept = [path for path in mirror.rglob("*") if path.is_file()]
        assert not any(SECRET.encode() in path.read_bytes() for path in kept)

    def test_without_any_nobody_is_asked(self, mirror: Path) -> None:
        with host() as (url, _), pytest.raises(SourceError, match="could not read Username"):
            fetch(Remote(url=f"{url}/x.git"), into=mirror)

    def test_a_host_that_says_nothing_is_given_up_with_all_that_was_started(
        self, mirror: Path
    ) -> None:
        with host(stalls=True) as (url, asked):
            with pytest.raises(SourceError, match="did not finish within 1 s"):
                fetch(Remote(url=f"{url}/x.git", timeout_s=1.0), into=mirror)
            assert asked.seen
            left = subprocess.run(
                ("ps", "-ewwo", "args="), capture_output=True, text=True, check=True
            )
            assert f"{url}/x.git" not in left.stdout

    def test_the_secret_is_in_no_argument(self) -> None:
        asked = Remote(url="https://example.com/x", credentials=Credentials(password=SECRET))
        with git_environment(asked) as found:
            pass
        assert [name for name, value in found.items() if SECRET in value] == ["MDM_GIT_PASSWORD"]
        assert found["GIT_TERMINAL_PROMPT"] == "0"
        assert found["GIT_ALLOW_PROTOCOL"] == "https"

    def test_ssh_is_given_the_key_and_the_hosts_it_may_trust(self, tmp_path: Path) -> None:
        key, hosts = ssh_key(tmp_path, "a key"), tmp_path / "known hosts"
        hosts.touch()
        given = Credentials(ssh_key_file=key, known_hosts_file=hosts)
        with lent(given, origin="ssh://example.com") as variables:
            command = variables["GIT_SSH_COMMAND"]
        shown = subprocess.run(
            f"{command} -G example.com", shell=True, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        assert "stricthostkeychecking true" in shown
        assert "batchmode yes" in shown
        assert f"identityfile {key}" in shown
        assert "identityagent none" in shown
        assert any(str(hosts) in line for line in shown if line.startswith("userknownhostsfile"))

    @pytest.mark.parametrize("content", ["", "\n", "a\nb", "\x00"])
    def test_a_file_that_is_no_password(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "password"
        file.write_text(content)
        given = Credentials(password_file=file)
        with pytest.raises(InputError), lent(given, origin="https://example.com"):
            pass

    def test_other_protocols_are_off_whatever_the_account_allows(
        self, bare: Path, mirror: Path
    ) -> None:
        fetch(remote(bare, branch="main"), into=mirror)
        with pytest.raises(SourceError, match="not allowed"):
            run_remote_git(remote(bare), mirror, "fetch", f"ext::{sys.executable} %S x")


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


def tree(developer: SmallRepository, lines: str) -> str:
    done = subprocess.run(
        ("git", "mktree"),
        input=lines,
        cwd=developer.root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


class GitHost(BaseHTTPRequestHandler):
    """A real git host: ``git http-backend`` behind a password."""

    root: ClassVar[Path]

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        expected = "Basic " + base64.b64encode(f"bot:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ("git", "http-backend"),
            input=body,
            check=True,
            capture_output=True,
            env={
                **os.environ,
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": "bot",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def git_host(root: Path, certificate: Path, key: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Host", (GitHost,), {"root": root}))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://localhost:{server.server_address[1]}/remote.git"
    finally:
        server.shutdown()
        server.server_close()


class TestHttps:
    def test_a_host_with_a_certificate_of_its_own_and_a_password(
        self, tmp_path: Path, bare: Path, mirror: Path
    ) -> None:
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        subprocess.run(
            (
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=DNS:localhost"),
                *("-keyout", str(key), "-out", str(certificate)),
            ),
            check=True,
            capture_output=True,
        )
        right = Credentials(username="bot", password=SECRET, ca_file=certificate)
        with git_host(tmp_path, certificate, key) as url:
            head = git(bare, "rev-parse", "main")
            assert fetch(Remote(url=url, branch="main", credentials=right), into=mirror) == head
            for wrong in (
                Credentials(username="bot", password=SECRET),  # nobody vouches for the host
                Credentials(username="bot", password="another", ca_file=certificate),
                Credentials(ca_file=certificate),
            ):
                with pytest.raises(SourceError) as caught:
                    fetch(Remote(url=url, branch="main", credentials=wrong), into=mirror)
                assert caught.value.hint
                assert SECRET not in str(caught.value)


def ssh_key(folder: Path, name: str) -> Path:
    key = folder / name
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    return key


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
