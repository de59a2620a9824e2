"""Profiles: servers by name, and how to come in, kept in files of the user.

``config.json`` says where things are; ``credentials.json`` holds what is secret and is for its owner
alone. A credential is given to the server that it was stored for and to no other, whatever URL is named
beside the profile.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from mdm_gitops.client.connection import DEFAULT_URL, origin_of
from mdm_gitops.errors import InputError, NotFound

DEFAULT_PROFILE: Final = "default"
_CONFIG: Final = "config.json"
_CREDENTIALS: Final = "credentials.json"
_OWNER_ONLY: Final = 0o600
_MAX_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is kept of one server; nothing of it is secret."""

    name: str = DEFAULT_PROFILE
    url: str = DEFAULT_URL
    key_env: str | None = None
    key_file: str | None = None
    issuer: str | None = None
    client_id: str | None = None
    scope: str | None = None
    audience: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What signing in gave, and where it is renewed."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at: float = 0.0
    token_endpoint: str = ""
    client_id: str = ""


SETTABLE: Final[Mapping[str, str]] = {
    "url": "url",
    "key-env": "key_env",
    "key-file": "key_file",
    "issuer": "issuer",
    "client-id": "client_id",
    "scope": "scope",
    "audience": "audience",
}


class Profiles:
    """The profiles of a user, in *folder*."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or config_folder()

    # --- what is not secret -----------------------------------------------------------------------

    @property
    def current(self) -> str:
        """The profile that is meant where none is named."""
        return str(self._config().get("current") or DEFAULT_PROFILE)

    def names(self) -> list[str]:
        return sorted({*self._config().get("profiles", {}), self.current})

    def get(self, name: str | None = None) -> Profile:
        """Return the profile *name*; the current one is there even if nothing was set.

        Raises:
            NotFound: there is no profile of that name.
        """
        wanted = name or self.current
        found = self._config().get("profiles", {}).get(wanted)
        if found is None and name is not None and name != self.current:
            from mdm_gitops.model.suggest import did_you_mean

            raise NotFound(
                f"there is no profile {name[:60]!r}",
                hint=did_you_mean(name, self.names()) or "mdm-gitops config set makes one",
                code="NOT_FOUND",
            )
        known = {each: found[each] for each in SETTABLE.values() if each in (found or {})}
        return Profile(name=wanted, **known)

    def set(self, name: str, **values: str | None) -> Profile:
        """Change *values* of a profile, make it if there is none; None takes one away."""
        if "url" in values and values["url"] is not None:
            origin_of(values["url"])
        config = self._config()
        kept = {**config.get("profiles", {}).get(name, {}), **values}
        kept = {each: value for each, value in kept.items() if value is not None}
        config.setdefault("profiles", {})[name] = kept
        self._write(_CONFIG, config)
        return self.get(name)

    def use(self, name: str) -> None:
        self.get(name)
        self._write(_CONFIG, {**self._config(), "current": name})

    def remove(self, name: str) -> None:
        """Forget a profile and its credentials."""
        self.get(name)
        config = self._config()
        config.get("profiles", {}).pop(name, None)
        if config.get("current") == name:
            del config["current"]
        self._write(_CONFIG, config)
        with self.locked():
            self._keep_secrets(name, {})

    # --- what is secret ---------------------------------------------------------------------------

    def api_key(self, profile: Profile) -> str | None:
        """Return the API key of *profile*: from its variable, its file, or what was stored.

        Raises:
            InputError: the variable or the file that it names is not there.
        """
        if profile.key_env:
            key = os.environ.get(profile.key_env)
            if not key:
                raise InputError(
                    f"profile {profile.name} has its key in ${profile.key_env}, which is not set"
                )
            return key
        if profile.key_file:
            return _key_in(Path(profile.key_file).expanduser(), profile)
        found = self._secrets(profile.name).get("key")
        return str(found) if found else None

    def has_stored_key(self, name: str) -> bool:
        return bool(self._secrets(name).get("key"))

    def store_api_key(self, name: str, key: str | None) -> None:
        with self.locked():
            self._keep_secrets(name, {**self._secrets(name), "key": key})

    def tokens(self, name: str) -> Tokens | None:
        found = self._secrets(name).get("tokens")
        return Tokens(**found) if found else None

    def store_tokens(self, name: str, tokens: Tokens | None) -> None:
        """Keep what signing in gave; inside ``locked`` where somebody else may do so, too."""
        kept = None if tokens is None else asdict(tokens)
        self._keep_secrets(name, {**self._secrets(name), "tokens": kept})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold what keeps two commands from writing credentials at the same time."""
        import fcntl

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.folder / "credentials.lock", os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    # --- files ------------------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        return _read(self.folder / _CONFIG)

    def _secrets(self, name: str) -> dict[str, Any]:
        file = self.folder / _CREDENTIALS
        if file.exists() and file.stat().st_mode & 0o077:
            raise InputError(
                f"{file} can be read by others, and it holds credentials",
                hint=f"chmod 600 {file}",
            )
        found = _read(file).get(name)
        return found if isinstance(found, dict) else {}

    def _keep_secrets(self, name: str, values: Mapping[str, Any]) -> None:
        kept = {each: value for each, value in values.items() if value is not None}
        everyone = _read(self.folder / _CREDENTIALS)
        if not kept and name not in everyone:
            return
        everyone[name] = kept
        self._write(_CREDENTIALS, {each: value for each, value in everyone.items() if value})

    def _write(self, file_name: str, document: Mapping[str, Any]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self.folder / file_name
        part = file.with_name(f".{file_name}.{os.getpid()}")
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _OWNER_ONLY)
        with os.fdopen(opened, "w", encoding="utf-8") as written:
            json.dump(document, written, indent=2, sort_keys=True)
            written.write("\n")
        part.replace(file)


def config_folder(variables: Mapping[str, str] | None = None) -> Path:
    """Return ``MDM_CONFIG_DIR``, else where programs of this user keep their settings."""
    known = os.environ if variables is None else variables
    if given := known.get("MDM_CONFIG_DIR"):
        return Path(given)
    home = known.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "mdm-gitops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which server is meant and how to come in, after options, variables and profile were read."""

    url: str
    api_key: str | None = field(repr=False)
    profile: Profile
    is_profile_server: bool
    """Whether the profile's own credentials may be given to it."""


def choose(
    profiles: Profiles,
    *,
    url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Choice:
    """Return the server that is meant: options before variables before the profile.

    A profile that was named as an option stands before the variables, so that a key that is exported
    for one server is not given to another.
    """
    known = os.environ if variables is None else variables
    chosen = profiles.get(profile or known.get("MDM_PROFILE") or None)
    exported = {} if profile else known
    server = url or exported.get("MDM_URL") or chosen.url
    key = api_key or exported.get("MDM_API_KEY") or None
    is_own = origin_of(server) == origin_of(chosen.url)
    if key is None and is_own:
        key = profiles.api_key(chosen)
    return Choice(
        url=server,
        api_key=key,
        profile=chosen,
        is_profile_server=is_own,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_MAX_BYTES))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise InputError(f"{file} is not JSON", hint="mend it, or remove it") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} is not a JSON object", hint="mend it, or remove it")
    return found


def _key_in(file: Path, profile: Profile) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(
            f"profile {profile.name} has its key in {file}: {error.strerror or 'not readable'}"
        ) from None
