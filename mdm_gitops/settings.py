"""All settings of all programs, in one tree: the fields are spelt as the settings are.

``Mdm__RateLimit__PermitLimit=50`` in the environment, the same line in ``.env``, or

    [RateLimit]
    PermitLimit = 50

in ``mdm.toml``; the files are looked for beside the definitions, and the first of the three that
names a setting wins. A name that does not exist is an error, a secret is never printed. The page
docs/reference/settings.md is made from this module.

One module, however long: whoever looks for a setting finds all of them here, as on that page.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSetting

from mdm_gitops.errors import SettingsError
from mdm_gitops.model.suggest import nearest

PREFIX = "Mdm__"
_SCHEMA_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")

# Only with public keys: a secret that both sides know could be mistaken for one of the other kind.
SIGNATURES: Final = frozenset(
    f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | {"EdDSA", "Ed25519"}

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
PortNumber = Annotated[int, Field(ge=0, le=65_535)]


def _without_empty(values: Any) -> Any:
    """Leave out what is set to nothing, as ``${NAME:-}`` in a compose file does."""
    if not isinstance(values, Mapping):
        return values
    return {
        key: value
        for key, value in values.items()
        if value != "" or str(key).lower() == "auditretentiondays"
    }


def is_private_or_tls(address: str) -> bool:
    """Whether nobody on the way can read what goes to *address*: TLS, or this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )
    _drop_empty = model_validator(mode="before")(_without_empty)


class DatabaseSettings(_Section):
    """The warehouse: an own server by URL, or the embedded one without."""

    Url: SecretStr | None = Field(
        default=None,
        description="`postgresql://user:password@host:5432/database`; without it the embedded"
        " PostgreSQL of the definitions folder is used",
    )
    ConnectTimeoutSeconds: Seconds = Field(default=5.0, description="give up connecting after")
    PoolMinSize: int = Field(default=1, ge=0, le=1_000, description="connections kept open")
    PoolMaxSize: int = Field(default=16, ge=1, le=1_000, description="connections at most")
    PoolWaitSeconds: Seconds = Field(
        default=10.0, description="a request waits this long for a free connection"
    )
    StatementTimeoutSeconds: Seconds = Field(
        default=15.0, description="PostgreSQL ends a statement of the API after"
    )
    EmbeddedMajor: int = Field(
        default=18, ge=16, le=18, description="major version of the embedded PostgreSQL, 16 or 18"
    )
    EmbeddedBin: Path | None = Field(
        default=None,
        description="folder with the programs of another PostgreSQL to run as the embedded one;"
        " `MDM_PG_BIN` is the same",
    )

    @model_validator(mode="after")
    def _pool_has_room(self) -> Self:
        if self.PoolMinSize > self.PoolMaxSize:
            raise ValueError("PoolMinSize is greater than PoolMaxSize")
        return self


class ServerSettings(_Section):
    """The HTTP server."""

    Host: str = Field(default="127.0.0.1", description="address to listen on")
    Port: PortNumber = Field(default=8080, description="port to listen on, 0 for any free one")
    Workers: int = Field(default=1, ge=1, le=256, description="worker processes")
    PublicUrl: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="how clients reach the server, used in links; else the address of the request",
    )
    ProblemBaseUrl: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="beginning of the `type` of problem documents; else relative to the server",
    )
    MaxBodyBytes: int = Field(
        default=16_777_216, ge=1_024, description="a JSON or YAML body may have this many bytes"
    )


class AuthSettings(_Section):
    """Who comes in."""

    BootstrapApiKey: SecretStr | None = Field(
        default=None,
        description="the first API key, a Global Admin, 20 characters or more; without it the first"
        " start prints one",
    )
    AdminRole: str = Field(
        default="mdm-admin", min_length=1, description="role of the identity provider: Global Admin"
    )
    EntryRole: str = Field(
        default="", description="role needed to come in at all; empty: any signed-in principal"
    )
    Issuer: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="the OpenID provider, spelt as it names itself in its tokens; without it there"
        " are API keys only",
    )
    AllowHttpIssuer: bool = Field(
        default=False,
        description="let the provider be reached without TLS; without this only on this machine",
    )
    Audience: str = Field(
        default="",
        description="what access tokens must be meant for (`aud`); empty: no bearer tokens",
    )
    TokenType: Literal["at+jwt", "any"] = Field(
        default="at+jwt",
        description="`at+jwt`: tokens must say that they are access tokens (RFC 9068); `any`: for"
        " providers that do not say so",
    )
    Algorithms: str = Field(
        default="RS256 PS256 ES256 EdDSA",
        description="signatures that tokens may have, separated by spaces",
    )
    Clients: str = Field(
        default="",
        description="ids of the only clients whose access tokens are taken, separated by spaces;"
        " empty: all that the provider gives tokens for the audience",
    )
    ServiceMarker: str = Field(
        default="",
        description="`claim` or `claim=value` that only tokens of services have, where they cannot"
        " be told from those of users otherwise",
    )
    NameClaim: str = Field(
        default="sub",
        min_length=1,
        description="claim with the name by which permissions know a user; choose one that users"
        " cannot change themselves",
    )
    RolesClaim: str = Field(
        default="roles",
        min_length=1,
        description="claim with the roles; dots lead into objects: `realm_access.roles`",
    )
    GroupsClaim: str = Field(
        default="groups", min_length=1, description="claim with the groups, found as the roles are"
    )
    ClientId: str = Field(
        default="",
        description="id of this application at the provider, for signing in with a browser; empty:"
        " no signing in with a browser",
    )
    ClientSecret: SecretStr | None = Field(
        default=None, description="secret of this application; without it a public client"
    )
    Scopes: str = Field(
        default="openid profile email", description="what a sign-in asks for, separated by spaces"
    )
    SessionIdleSeconds: Seconds = Field(
        default=3_600.0, description="a session ends when it was not used for"
    )
    SessionMaxSeconds: Seconds = Field(
        default=43_200.0, description="a session ends, used or not, after"
    )
    ProviderTimeoutSeconds: Seconds = Field(
        default=5.0, description="give up asking the provider after"
    )
    KeysMaxAgeSeconds: Seconds = Field(
        default=600.0,
        description="ask the provider for its keys again after; a token with an unknown key asks"
        " earlier, once a minute at most",
    )

    @field_validator("BootstrapApiKey")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value and len(value.get_secret_value()) < 20:
            raise ValueError("a key needs 20 characters or more")
        return value

    @field_validator("Issuer")
    @classmethod
    def _has_a_host(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "https://none")
        if not parts.hostname or "@" in parts.netloc:
            raise ValueError("an issuer is an address such as https://login.example.com/tenant")
        return value

    @field_validator("Algorithms")
    @classmethod
    def _public_key_algorithms(cls, value: str) -> str:
        unknown = set(value.split()) - SIGNATURES
        if unknown or not value.split():
            raise ValueError(f"choose from {' '.join(sorted(SIGNATURES))}")
        return value

    @field_validator("Scopes")
    @classmethod
    def _with_openid(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("openid must be among them")
        return value

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if not self.Issuer and (self.Audience or self.ClientId):
            raise ValueError("Audience and ClientId need an Issuer")
        if self.Issuer and not (self.Audience or self.ClientId):
            raise ValueError("Issuer needs an Audience, a ClientId, or both")
        if self.Issuer and not (self.AllowHttpIssuer or is_private_or_tls(self.Issuer)):
            raise ValueError("Issuer must begin with https://, or AllowHttpIssuer be true")
        if self.SessionIdleSeconds > self.SessionMaxSeconds:
            raise ValueError("SessionIdleSeconds is greater than SessionMaxSeconds")
        return self


class RateLimitSettings(_Section):
    """Requests per client in a fixed window, on `/api/*`."""

    Enabled: bool = Field(default=True, description="whether the limit is on")
    PermitLimit: int = Field(default=200, ge=1, description="requests per window")
    WindowSeconds: int = Field(default=60, ge=1, le=86_400, description="length of the window")


class RepositorySettings(_Section):
    """Where definitions are written to."""

    WriteMode: Literal["commit", "branch", "readonly"] | None = Field(
        default=None,
        description="`commit`, `branch` (pushes `mdm/<change>`) or `readonly`; by default `commit`"
        " for a local folder and `branch` for a remote",
    )


class SourceSettings(_Section):
    """Where definitions are read from: the folder, a revision of its repository, or a remote."""

    Url: str | None = Field(
        default=None,
        description="remote repository, by https, ssh or file; without it the folder itself is read",
    )
    Branch: str = Field(default="", description="branch of the remote; else its own default")
    Tag: str = Field(default="", description="tag of the remote, instead of a branch")
    Revision: str = Field(
        default="",
        description="with `Url` the full hash of a commit; without it a branch, tag or commit of the"
        " folder's own repository, read without a checkout",
    )
    SubPath: str = Field(default="", description="folder of mdm.yaml inside of the repository")
    Username: str = Field(default="", description="user of the remote; hosts ignore it for tokens")
    Password: SecretStr | None = Field(default=None, description="password or token, for https")
    PasswordFile: Path | None = Field(
        default=None, description="file that holds it instead, read anew for each fetch"
    )
    SshKey: SecretStr | None = Field(
        default=None, description="private key without a passphrase, for ssh, as text of many lines"
    )
    SshKeyFile: Path | None = Field(
        default=None, description="file that holds it instead; else keys and agent of the account"
    )
    KnownHosts: str = Field(
        default="", description="keys of hosts for ssh, as `ssh-keyscan` prints"
    )
    KnownHostsFile: Path | None = Field(
        default=None, description="file that holds them instead; else those of the account"
    )
    CaFile: Path | None = Field(
        default=None, description="certificates to trust for https; else those of the system"
    )
    TimeoutSeconds: Seconds = Field(default=60.0, description="a fetch is ended after")
    MaxBytes: int = Field(
        default=1_073_741_824,
        ge=1_024,
        description="what is kept of the remote may have this many bytes",
    )
    AllowedSigners: Path | None = Field(
        default=None,
        description="file of allowed signers as ssh-keygen(1) has it; commits must be signed by one",
    )
    AllowedKeys: Path | None = Field(
        default=None,
        description="file of OpenPGP public keys; commits must be signed by one of them, or by one of"
        " `AllowedSigners` where both are set",
    )
    AllowRewind: bool = Field(
        default=False,
        description="take a commit that does not descend from the last one that was taken",
    )
    HookSecret: SecretStr | None = Field(
        default=None,
        description="secret of the push webhook at `/api/v1/hooks/git`; without it there is none",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.Url is None and (self.Branch or self.Tag):
            raise ValueError("Branch and Tag need a Url")
        if self.Url is None and self.SubPath and not self.Revision:
            raise ValueError("SubPath needs a Url or a Revision")
        if sum(map(bool, (self.Branch, self.Tag, self.Revision))) > 1:
            raise ValueError("Branch, Tag and Revision exclude each other")
        if self.SshKey is not None and self.SshKeyFile is not None:
            raise ValueError("SshKey and SshKeyFile exclude each other")
        if self.KnownHosts and self.KnownHostsFile is not None:
            raise ValueError("KnownHosts and KnownHostsFile exclude each other")
        return self


class DataSettings(_Section):
    """Rows."""

    RequireIfMatch: bool = Field(
        default=False, description="writes without `If-Match` are refused with 428"
    )
    ExportTimeoutSeconds: Seconds = Field(
        default=900.0,
        description="an export is broken off after; as long as it lasts, it holds a connection and"
        " keeps the definition of its entity from being changed",
    )
    MaxImportBytes: int = Field(
        default=2_147_483_648,
        ge=1_024,
        description="the body of an import may have this many bytes",
    )
    MaxConcurrentImports: int = Field(
        default=4,
        ge=1,
        le=256,
        description="imports that a worker runs at once, each on a connection of its own; further"
        " ones wait",
    )
    ImportTimeoutSeconds: Seconds = Field(
        default=3_600.0, description="an import is broken off after; nothing of it is written then"
    )
    ImportIdleSeconds: Seconds = Field(
        default=60.0, description="an import whose client sends nothing is broken off after"
    )
    ImportErrorRetentionDays: int = Field(
        default=7, ge=1, le=3_650, description="the list of an import's errors is kept for"
    )
    IdempotencyHours: int = Field(
        default=24, ge=1, le=8_760, description="the answer to an `Idempotency-Key` is kept for"
    )
    MatchMaxRows: int = Field(
        default=1_000_000,
        ge=1_000,
        le=16_000_000,
        description="a scan for duplicates compares this many rows at most; it takes up to two kilobytes"
        " of memory for each, in a process of its own",
    )
    MaxConcurrentScans: int = Field(
        default=2, ge=1, le=64, description="scans for duplicates that a worker runs at once"
    )


class WebhookSettings(_Section):
    """Notifications of other systems."""

    Enabled: bool = Field(
        default=True, description="whether this program delivers; subscriptions are kept either way"
    )
    Validation: Literal["AllowAllExceptLocalhost", "Strict"] = Field(
        default="AllowAllExceptLocalhost",
        description="`AllowAllExceptLocalhost`: any HTTP or HTTPS target but this machine; `Strict`:"
        " only `AllowedHosts`, and names among them only at public addresses",
    )
    AllowedHosts: str = Field(
        default="",
        description="approved targets of `Strict`, `host` or `host:port`, separated by spaces",
    )


class ApplySettings(_Section):
    """How a plan is carried out."""

    LockTimeoutSeconds: Seconds = Field(
        default=2.0,
        description="wait for a table lock; readers queue behind a waiting change, so keep it short",
    )
    LockRetries: int = Field(
        default=10, ge=0, le=1_000, description="further attempts when a table stayed locked"
    )
    StatementTimeoutSeconds: Seconds = Field(
        default=3_600.0, description="PostgreSQL ends one statement of a plan after"
    )
    ConcurrentlyLockTimeoutSeconds: Seconds = Field(
        default=600.0,
        description="wait for old transactions while an index is built online; this blocks nobody",
    )
    BackfillBatchRows: int = Field(
        default=10_000, ge=1, le=1_000_000, description="rows rewritten per transaction"
    )


class OperatorSettings(_Section):
    """The reconcile loop."""

    IntervalSeconds: Seconds = Field(default=30.0, description="pause between two reconciles")
    CheckIntervalSeconds: Seconds = Field(
        default=60.0,
        description="look at all definitions and at the live catalog at least this often, also when"
        " no file, commit or deployment is new: this is how drift is found",
    )
    FirstRetrySeconds: Seconds = Field(
        default=2.0, description="pause after a failure; doubles with each further one"
    )
    MaxRetrySeconds: Seconds = Field(default=300.0, description="longest pause after failures")
    Mode: Literal["heal", "plan-only", "observe"] = Field(
        default="heal",
        description="`heal`: applies what the policy lets in; `plan-only`: every plan waits for a"
        " person; `observe`: looks and tells. `reconcile` of mdm.yaml can only say less",
    )
    LeaseSeconds: Seconds = Field(
        default=30.0,
        description="of several operators one works; when it is silent for so long, the next one does",
    )
    MetricsPort: PortNumber = Field(
        default=0, description="port for `/metrics`, `/healthz` and `/readyz`; 0: none"
    )
    MetricsHost: str = Field(default="127.0.0.1", description="address for them to listen on")


class Settings(BaseSettings):
    """The whole tree; read it with ``load_settings``."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_file_encoding="utf-8",
        extra="ignore",  # a .env file holds other programs' names too; ours are checked below
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )
    _drop_empty = model_validator(mode="before")(_without_empty)

    ConfigSchema: str = Field(default="mdm", description="schema of the config store")
    EntityDataSchema: str = Field(default="mdm_data", description="schema of the entities' tables")
    Tier: Literal["Community", "Professional", "Enterprise"] = Field(
        default="Enterprise", description="features above the tier are refused"
    )
    Environment: str = Field(
        default="",
        description="the environment of `mdm.yaml` that this is: its policy, `reconcile` and webhooks"
        " hold; `MDM_ENV` and `--env` are the same, and choose its database too",
    )
    AuditRetentionDays: int = Field(
        default=365,
        ge=0,
        le=365_000,
        description="changes and audited actions older than this are deleted; 0 or empty keeps all",
    )
    Database: DatabaseSettings = DatabaseSettings()
    Server: ServerSettings = ServerSettings()
    Auth: AuthSettings = AuthSettings()
    RateLimit: RateLimitSettings = RateLimitSettings()
    Source: SourceSettings = SourceSettings()
    Repository: RepositorySettings = RepositorySettings()
    Data: DataSettings = DataSettings()
    Webhooks: WebhookSettings = WebhookSettings()
    Apply: ApplySettings = ApplySettings()
    Operator: OperatorSettings = OperatorSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # What the constructor is given comes from mdm.toml, so it is the weakest.
        return env_settings, dotenv_settings, init_settings

    @field_validator("AuditRetentionDays", mode="before")
    @classmethod
    def _empty_keeps_all(cls, value: object) -> object:
        return 0 if value == "" else value

    @field_validator("ConfigSchema", "EntityDataSchema")
    @classmethod
    def _schema_name(cls, value: str) -> str:
        if not _SCHEMA_NAME.fullmatch(value) or value.startswith("pg_"):
            raise ValueError(
                "a schema name has up to 48 lower-case letters, digits and _, starts with a letter"
                " and not with pg_"
            )
        return value

    @model_validator(mode="after")
    def _two_schemas(self) -> Self:
        if self.ConfigSchema == self.EntityDataSchema:
            raise ValueError("ConfigSchema and EntityDataSchema must be two different schemas")
        return self


def load_settings(folder: Path | None = None) -> Settings:
    """Read the settings of the definitions in *folder* (without one, the environment's alone).

    Raises:
        SettingsError: a name does not exist or a value does not fit. It names the setting and
            where it was found, never the value.
    """
    env_file = folder / ".env" if folder else None
    toml = _read_toml(folder / "mdm.toml") if folder else {}
    _refuse_unknown(os.environ, "the environment")
    try:
        if env_file and env_file.is_file():
            _refuse_unknown(dotenv_values(env_file, interpolate=False), str(env_file))
        return Settings(_env_file=env_file, **toml)
    except ValidationError as error:
        raise _invalid(error) from None
    except UnreadableSetting as error:
        raise SettingsError(str(error)) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{env_file} is not UTF-8 text") from None


def setting_names() -> Iterator[str]:
    """Yield each setting as it is spelt in the environment."""
    for name, field in Settings.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, _Section):
            yield from (f"{PREFIX}{name}__{part}" for part in inner.model_fields)
        else:
            yield PREFIX + name


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    names = {name.removeprefix(PREFIX).replace("__", ".") for name in setting_names()}
    for name in _flat(found):
        if name not in names:
            raise _unknown(name, names, str(path))
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _refuse_unknown(found: Mapping[str, Any], place: str) -> None:
    names = list(setting_names())
    known = {name.lower() for name in names}
    # A whole section may also be given, as one JSON object.
    known |= {PREFIX.lower() + section.lower() for section in Settings.model_fields}
    for name in found:
        if name.lower().startswith(PREFIX.lower()) and name.lower() not in known:
            raise _unknown(name, names, place)


def _unknown(name: str, known: Any, place: str) -> SettingsError:
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else "docs/reference/settings.md lists them all"
    return SettingsError(f"there is no setting {name} (in {place})", hint=hint, setting=name)


def _invalid(error: ValidationError) -> SettingsError:
    problems = [f"{_spelt(problem['loc'])}: {_plain(problem['msg'])}" for problem in error.errors()]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return SettingsError(problems[0] + more, problems=problems)


def _spelt(place: tuple[int | str, ...]) -> str:
    return PREFIX + "__".join(str(part) for part in place) if place else "settings"


def _plain(message: str) -> str:
    """Return pydantic's *message* as the second half of a sentence."""
    own = message.removeprefix("Value error, ")
    return own if own != message else message[:1].lower() + message[1:]
