"""Rules of permissions, webhooks and projects that no schema can tell."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model.access import Permissions, Webhooks
from mdm_gitops.model.access_checks import (
    check_permissions,
    check_project,
    check_webhooks,
    why_not_principal,
    why_not_url,
)
from mdm_gitops.model.project import Project
from tests.support.checking import KEYED, found, known, text_of


@pytest.mark.parametrize(
    ("item", "pointer", "rule"),
    [
        ({"users": [" "]}, "/users/0", "bad-principal"),
        ({"users": ["group:"]}, "/users/0", "bad-principal"),
        ({"users": ["a", "a\n"]}, "/users/1", "bad-principal"),
        ({"domains": ["d", "x"]}, "/domains/1", "unknown-domain"),
        ({"entities": ["x"]}, "/entities/0", "unknown-entity"),
        ({"entities": ["*"]}, "/entities/0", "unknown-entity"),
        ({"domains": ["other"], "entities": ["target"]}, "/entities/0", "entity-not-in-domain"),
        ({"rowFilterDsl": "[code] = 'x'"}, "/rowFilterDsl", "filter-needs-entity"),
        ({"rowFilterDsl": " ", "entities": ["target"]}, "/rowFilterDsl", "empty-filter"),
    ],
)
def test_rules_of_permissions(item: dict[str, Any], pointer: str, rule: str) -> None:
    given = {"users": ["u"], "domains": ["d"], "actions": ["read"]} | item
    permissions = Permissions.model_validate({"permissions": [given]})
    assert found(check_permissions(permissions, known(KEYED))) == [
        (f"/permissions/0{pointer}", rule)
    ]


def test_permissions_that_hold() -> None:
    items = [
        {"users": ["a@b.c", "group:x"], "domains": ["*"], "actions": ["admin"]},
        {"users": ["service:y"], "domains": ["*"], "entities": ["TARGET"], "actions": ["read"]},
        {"users": ["x"], "domains": ["d", "other"], "entities": ["target"], "actions": ["read"]},
    ]
    permissions = Permissions.model_validate({"permissions": items})
    assert list(check_permissions(permissions, known(KEYED))) == []


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("urn:x:y", False),
        ("CN=Bob Smith,O=X", False),
        ("user:", True),
        ("apikey: x", True),
        ("x" * 321, True),
    ],
)
def test_principals(text: str, refused: bool) -> None:
    assert bool(why_not_principal(text)) is refused


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://example.com/x?y=1", False),
        ("http://127.0.0.1:9000", False),
        ("HTTPS://EXAMPLE.COM", False),
        ("https://[::1]:8080/", False),
        ("ftp://example.com", True),
        ("file:///etc/passwd", True),
        ("//example.com", True),
        ("https://", True),
        ("https:///x", True),
        ("https://user:secret@example.com", True),
        ("https://user@example.com", True),
        ("https://@example.com", True),
        ("https://example.com:99999/", True),
        ("https://example.com:x/", True),
        ("https://exa mple.com/", True),
        ("https://example.com/\r\nX: y", True),
        ("https://example.com\\@evil.test/", True),
        ("https://[::1", True),
    ],
)
def test_urls_of_webhooks(url: str, refused: bool) -> None:
    why = why_not_url(url)
    assert bool(why) is refused
    assert "secret@" not in why


@pytest.mark.parametrize(
    ("webhook", "pointer", "rule"),
    [
        ({"url": "https://u:p@x.test"}, "/webhooks/0/url", "bad-url"),
        ({"name": " w"}, "/webhooks/0/name", "bad-name"),
        ({"domains": ["x"]}, "/webhooks/0/domains/0", "unknown-domain"),
        ({"domains": ["*"]}, "/webhooks/0/domains/0", "unknown-domain"),
        ({"entities": ["x"]}, "/webhooks/0/entities/0", "unknown-entity"),
        ({"secretRef": ""}, "/webhooks/0/secretRef", "bad-reference"),
    ],
)
def test_rules_of_webhooks(webhook: dict[str, Any], pointer: str, rule: str) -> None:
    given = {"name": "w", "url": "https://x.test"} | webhook
    webhooks = Webhooks.model_validate({"webhooks": [given]})
    assert found(check_webhooks(webhooks, known(KEYED))) == [(pointer, rule)]


def test_webhooks_have_names_of_their_own() -> None:
    given = [{"name": name, "url": "https://x.test"} for name in ("w", "v", "W")]
    webhooks = Webhooks.model_validate({"webhooks": given})
    assert found(check_webhooks(webhooks, known())) == [("/webhooks/2/name", "duplicate-name")]


@pytest.mark.parametrize(
    ("more", "pointer", "rule"),
    [
        ({"name": " "}, "/name", "bad-name"),
        ({"domains": [{"name": "a b"}]}, "/domains/0/name", "bad-name"),
        ({"domains": [{"name": "*"}]}, "/domains/0/name", "bad-name"),
        ({"domains": [{"name": "a"}, {"name": "A"}]}, "/domains/1/name", "duplicate-name"),
        ({"environments": [{"name": "a"}] * 2}, "/environments/1/name", "duplicate-name"),
        (
            {"environments": [{"name": "a", "databaseUrlRef": "postgresql://u:p@h/d"}]},
            "/environments/0/databaseUrlRef",
            "bad-reference",
        ),
    ],
)
def test_rules_of_the_project(more: dict[str, Any], pointer: str, rule: str) -> None:
    project = Project.model_validate({"name": "p", "apiVersion": "mdm-gitops/v1"} | more)
    problems = list(check_project(project))
    assert found(problems) == [(pointer, rule)]
    assert "u:p" not in text_of(problems)
