"""How git proves who we are to a remote, without a secret in an argument, an address or a file.

A password reaches git through a credential helper that reads the environment of that one process and
answers for the remote's own host only, so a redirect learns nothing. Files of secrets are read anew
for each use: whoever rotates them restarts nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
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
_UNUSABLE_IN_PATH: Final = frozenset('"%\n\r\x00')  # ssh reads these in the value of an option


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What is not given is left to the account that runs us: its helpers, its agent, its keys."""

    username: str = ""
    password: str = field(default="", repr=False)  # of https; a token counts as one
    password_file: Path | None = None
    ssh_key_file: Path | None = None
    known_hosts_file: Path | None = None
    ca_file: Path | None = None


NO_CREDENTIALS: Final = Credentials()


def credential_variables(credentials: Credentials, *, origin: str) -> Mapping[str, str]:
    """Return the environment that lets git into *origin* (``https://host:port``, ``ssh://...``).

    Raises:
        InputError: a file cannot be read, or its path cannot be told to ssh.
    """
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
        f"ConnectTimeout={_CONNECT_SECONDS}",
        "ServerAliveInterval=15",
    ]
    words = ["ssh"]
    if credentials.known_hosts_file is not None:
        hosts = _usable(credentials.known_hosts_file)
        options += [f'UserKnownHostsFile="{hosts}"', "GlobalKnownHostsFile=/dev/null"]
    if credentials.ssh_key_file is not None:
        key = _usable(credentials.ssh_key_file)
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
