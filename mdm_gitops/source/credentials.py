"""How git proves who we are to a remote, without a secret in an argument, an address or a file.

A password reaches git through a credential helper that reads the environment of that one process and
answers for the remote's own host only, so a redirect learns nothing. Files of secrets are read anew
for each use: whoever rotates them restarts nothing. ssh reads keys from files alone, so a key that was
given as text stands in one, readable by us alone, for as long as one git runs.
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mdm_gitops.errors import InputError

_HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n"'
    ' "$MDM_GIT_USERNAME" "$MDM_GIT_PASSWORD"; }; f'
)
_DEFAULT_USERNAME: Final = "git"  # hosts that take tokens do not look at it
_MAX_SECRET_BYTES: Final = 64 * 1024
_CONNECT_SECONDS: Final = 15
_UNUSABLE_IN_PATH: Final = frozenset('"%$\\\n\r\x00')  # ssh reads these in the value of an option
_OPENSSH_KEY: Final = b"openssh-key-v1\0"
_NO_CIPHER: Final = b"\0\0\0\x04none"
_PEM_LOCKED: Final = ("BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What is not given is left to the account that runs us: its helpers, its agent, its keys."""

    username: str = ""
    password: str = field(default="", repr=False)  # of https; a token counts as one
    password_file: Path | None = None
    ssh_key: str = field(default="", repr=False)  # its text
    ssh_key_file: Path | None = None
    known_hosts: str = ""  # lines of a known_hosts file
    known_hosts_file: Path | None = None
    ca_file: Path | None = None


NO_CREDENTIALS: Final = Credentials()


@contextmanager
def lent(credentials: Credentials, *, origin: str) -> Iterator[Mapping[str, str]]:
    """Yield the environment that lets git into *origin* (``https://host:port``, ``ssh://...``).

    Raises:
        InputError: a file cannot be read, or its path cannot be told to ssh, or it is no key.
    """
    if not credentials.ssh_key and not credentials.known_hosts:
        yield _variables(credentials, origin)
        return
    with tempfile.TemporaryDirectory(prefix="mdm-ssh-") as folder:
        yield _variables(_in_files(credentials, Path(folder)), origin)


def _in_files(credentials: Credentials, folder: Path) -> Credentials:
    if credentials.ssh_key:
        file = _written(folder / "key", credentials.ssh_key)
        credentials = replace(credentials, ssh_key_file=file)
    if credentials.known_hosts:
        file = _written(folder / "known_hosts", credentials.known_hosts)
        credentials = replace(credentials, known_hosts_file=file)
    return credentials


def _written(path: Path, text: str) -> Path:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text.strip() + "\n", encoding="utf-8")
    return path


def _variables(credentials: Credentials, origin: str) -> Mapping[str, str]:
    settings: list[tuple[str, str]] = []
    variables = {"GIT_SSH_COMMAND": _ssh_command(credentials), "GIT_SSH_VARIANT": "ssh"}
    password = credentials.password or _read_secret(credentials.password_file)
    if password and origin.startswith("http"):
        scope = f"credential.{origin}"
        settings += [
            ("credential.helper", ""),
            (f"{scope}.helper", ""),
            (f"{scope}.helper", _HELPER),
        ]
        variables["MDM_GIT_USERNAME"] = credentials.username or _DEFAULT_USERNAME
        variables["MDM_GIT_PASSWORD"] = password
    if credentials.ca_file is not None:
        settings.append(("http.sslCAInfo", str(_usable(credentials.ca_file))))
    return {**variables, **config_variables(settings)}


def config_variables(settings: list[tuple[str, str]]) -> dict[str, str]:
    """Return *settings* of git as variables, after those that our own environment holds."""
    held = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(held) if held.isdigit() else 0
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _ssh_command(credentials: Credentials) -> str:
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "PermitLocalCommand=no",
        "ForwardAgent=no",
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "ControlMaster=no",  # a shared connection outlives the fetch that opened it
        "ControlPath=none",
        "UpdateHostKeys=no",  # nothing is learnt from the host
        f"ConnectTimeout={_CONNECT_SECONDS}",
        "ServerAliveInterval=15",
    ]
    words = ["ssh"]
    if credentials.known_hosts_file is not None:
        hosts = _usable(credentials.known_hosts_file)
        options += [f'UserKnownHostsFile="{hosts}"', "GlobalKnownHostsFile=/dev/null"]
    if credentials.ssh_key_file is not None:
        key = _usable(credentials.ssh_key_file)
        _refuse_unusable_key(key)
        words += ["-F", "none"]
        options += ["IdentitiesOnly=yes", "IdentityAgent=none", f'IdentityFile="{key}"']
    for option in options:
        words += ["-o", option]
    return shlex.join(words)


def _usable(path: Path) -> Path:
    absolute = path.expanduser().absolute()
    if _UNUSABLE_IN_PATH & set(str(absolute)):
        raise InputError(f"the path {str(path)!r} cannot be told to git", hint="rename it")
    if not absolute.is_file():
        raise InputError(f"{path} does not exist", hint="see docs/guides/operator.md, Credentials")
    return absolute


def _refuse_unusable_key(path: Path) -> None:
    """ssh says of a key that nobody can unlock no more than that the host did not take it."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_SECRET_BYTES).decode("ascii")
    except OSError:
        raise InputError(
            f"the key file {path} cannot be read", hint="its owner may be another"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if "PRIVATE KEY-----" not in text:
        raise InputError(
            f"{path} does not hold a private key", hint="the file without .pub is the private one"
        )
    if _is_locked(text):
        raise InputError(
            f"the key in {path} has a passphrase, which nobody is here to type",
            hint="give this server a key of its own: ssh-keygen -t ed25519 -N ''",
        )


def _is_locked(text: str) -> bool:
    if any(words in text for words in _PEM_LOCKED):
        return True
    body = "".join(line for line in text.splitlines() if not line.startswith("-----"))
    try:
        content = base64.b64decode(body)
    except binascii.Error:
        return False  # ssh will say what it is
    return content.startswith(_OPENSSH_KEY) and not content.startswith(_OPENSSH_KEY + _NO_CIPHER)


def _read_secret(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(_MAX_SECRET_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"the password file {path} cannot be read",
            hint="it holds the password or token as text, and nothing else",
        ) from None
    secret = text.strip()
    if not secret or len(text) > _MAX_SECRET_BYTES or not secret.isprintable():
        raise InputError(f"the password file {path} does not hold one line of text")
    return secret
