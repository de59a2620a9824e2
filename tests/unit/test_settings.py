"""Settings: three sources, one spelling, no silent mistakes, no secret told."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from mdm_gitops.errors import SettingsError
from mdm_gitops.settings import load_settings, setting_names

KEY = "bootstrap-key-0123456789"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().startswith("mdm__"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = load_settings()
    assert settings.Database.Url is None
    assert (settings.ConfigSchema, settings.EntityDataSchema) == ("mdm", "mdm_data")
    assert (settings.Server.Host, settings.Server.Port) == ("127.0.0.1", 8080)
    assert (settings.RateLimit.PermitLimit, settings.RateLimit.WindowSeconds) == (200, 60)
    assert settings.AuditRetentionDays == 365
    assert settings.Tier == "Enterprise"
    assert settings.Apply.LockTimeoutSeconds == 2.0


def test_the_environment_wins_over_dotenv_wins_over_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mdm.toml").write_text(
        'Tier = "Community"\n[RateLimit]\nEnabled = false\nPermitLimit = 1\nWindowSeconds = 1\n'
    )
    (tmp_path / ".env").write_text(
        "OTHER=1\nMdm__RateLimit__PermitLimit=2\nMdm__RateLimit__WindowSeconds=2\n"
    )
    monkeypatch.setenv("Mdm__RateLimit__WindowSeconds", "3")
    settings = load_settings(tmp_path)
    limit = settings.RateLimit
    assert (limit.Enabled, limit.PermitLimit, limit.WindowSeconds) == (False, 2, 3)
    assert settings.Tier == "Community"


@pytest.mark.parametrize(
    ("name", "value", "read", "expected"),
    [
        ("Mdm__RateLimit__PermitLimit", "50", "RateLimit.PermitLimit", 50),
        ("MDM__RATELIMIT__PERMITLIMIT", "51", "RateLimit.PermitLimit", 51),
        ("Mdm__RateLimit", '{"PermitLimit": 52}', "RateLimit.PermitLimit", 52),
        ("Mdm__RateLimit__Enabled", "false", "RateLimit.Enabled", False),
        ("Mdm__AuditRetentionDays", "", "AuditRetentionDays", 0),
        ("Mdm__AuditRetentionDays", "0", "AuditRetentionDays", 0),
        ("MDM__AUDITRETENTIONDAYS", "", "AuditRetentionDays", 0),
        ("Mdm__Database__Url", "", "Database.Url", None),
        ("Mdm__Server__Port", "", "Server.Port", 8080),
        ("Mdm__Auth__BootstrapApiKey", "", "Auth.BootstrapApiKey", None),
        ("Mdm__Auth__EntryRole", "", "Auth.EntryRole", ""),
        ("Mdm__ConfigSchema", "store", "ConfigSchema", "store"),
        ("Mdm__Repository__WriteMode", "readonly", "Repository.WriteMode", "readonly"),
        ("Mdm__Data__RequireIfMatch", "true", "Data.RequireIfMatch", True),
    ],
)
def test_values(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    found: object = load_settings()
    for part in read.split("."):
        found = getattr(found, part)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        (
            "Mdm__RateLimit__PermitLimits",
            "5",
            "there is no setting Mdm__RateLimit__PermitLimits (in the environment)",
            "did you mean Mdm__RateLimit__PermitLimit?",
        ),
        (
            "Mdm__Teir",
            "x",
            "there is no setting Mdm__Teir (in the environment)",
            "did you mean Mdm__Tier?",
        ),
        (
            "Mdm__Database__Url__X",
            "x",
            "there is no setting Mdm__Database__Url__X (in the environment)",
            "did you mean Mdm__Database__Url?",
        ),
        (
            "Mdm__RateLimit__PermitLimit",
            "many",
            "Mdm__RateLimit__PermitLimit: input should be a valid integer,"
            + " unable to parse string as an integer",
            "",
        ),
        (
            "Mdm__RateLimit__PermitLimit",
            "0",
            "Mdm__RateLimit__PermitLimit: input should be greater than or equal to 1",
            "",
        ),
        (
            "Mdm__RateLimit",
            '{"Permit": 1}',
            "Mdm__RateLimit__Permit: extra inputs are not permitted",
            "",
        ),
        (
            "Mdm__RateLimit",
            "{",
            'error parsing value for field "RateLimit" from source "EnvSettingsSource"',
            "",
        ),
        (
            "Mdm__Tier",
            "Gold",
            "Mdm__Tier: input should be 'Community', 'Professional' or 'Enterprise'",
            "",
        ),
        (
            "Mdm__Database__PoolMinSize",
            "17",
            "Mdm__Database: PoolMinSize is greater than PoolMaxSize",
            "",
        ),
        (
            "Mdm__ConfigSchema",
            "mdm_data",
            "settings: ConfigSchema and EntityDataSchema must be two different schemas",
            "",
        ),
        (
            "Mdm__Auth__BootstrapApiKey",
            "short",
            "Mdm__Auth__BootstrapApiKey: a key needs 20 characters or more",
            "",
        ),
    ],
)
def test_mistakes(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str, hint: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("name", ["pg_mine", "Mdm", "1st", "a-b", "a" * 49, 'x"; drop table'])
def test_a_schema_name_is_one_that_needs_no_quotes(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("Mdm__EntityDataSchema", name)
    with pytest.raises(SettingsError, match="a schema name has up to 48 lower-case letters"):
        load_settings()


@pytest.mark.parametrize(
    ("file", "text", "message", "hint"),
    [
        (
            ".env",
            "Mdm__Teir=x",
            "there is no setting Mdm__Teir (in {folder}/.env)",
            "did you mean Mdm__Tier?",
        ),
        (
            "mdm.toml",
            "[RateLimit]\nPermitLimits = 1",
            "there is no setting RateLimit.PermitLimits (in {folder}/mdm.toml)",
            "did you mean RateLimit.PermitLimit?",
        ),
        (
            "mdm.toml",
            "tier = 'Community'",
            "there is no setting tier (in {folder}/mdm.toml)",
            "did you mean Tier?",
        ),
        (
            "mdm.toml",
            "Tier = ",
            "{folder}/mdm.toml is not valid TOML: Invalid value (at end of document)",
            "",
        ),
    ],
)
def test_mistakes_in_files(tmp_path: Path, file: str, text: str, message: str, hint: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(tmp_path)
    assert str(caught.value) == message.format(folder=tmp_path)
    assert caught.value.hint == hint


@pytest.mark.parametrize("name", [".env", "mdm.toml"])
def test_a_file_that_is_no_text_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"Tier=\xff\xfe")
    with pytest.raises(SettingsError, match=re.escape(name)):
        load_settings(tmp_path)


def test_secrets_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://u:hidden-password@h/d"
    monkeypatch.setenv("Mdm__Database__Url", url)
    monkeypatch.setenv("Mdm__Auth__BootstrapApiKey", KEY)
    settings = load_settings()
    told = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert KEY not in told
    assert "hidden-password" not in told
    assert settings.Database.Url is not None
    assert settings.Database.Url.get_secret_value() == url
    monkeypatch.setenv("Mdm__Auth__BootstrapApiKey", "short-secret")
    monkeypatch.setenv("Mdm__Database__PoolMinSize", "17")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    told = f"{caught.value} {caught.value.details} {caught.value.__cause__}"
    assert "short-secret" not in told
    assert "hidden-password" not in told


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.Tier = "Community"  # type: ignore[misc]


def test_every_setting_is_described_and_names_its_unit() -> None:
    names = list(setting_names())
    assert len(names) == len(set(names)) > 25
    assert "Mdm__RateLimit__PermitLimit" in names


def test_loading_is_cheap(tmp_path: Path) -> None:
    load_settings(tmp_path)
    started = time.perf_counter()
    load_settings(tmp_path)
    assert time.perf_counter() - started < 0.1
