"""Remotes behind a password: who gets it, who never does, and which host is believed."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from mdm_gitops.errors import InputError, SourceError
from mdm_gitops.source.credentials import Credentials, lent
from mdm_gitops.source.remote import Remote, fetch, git_environment, run_remote_git
from tests.support import remotes
from tests.support.git import git
from tests.support.remotes import SECRET, git_host, host, remote, ssh_key

developer, bare, mirror = remotes.developer, remotes.bare, remotes.mirror


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
