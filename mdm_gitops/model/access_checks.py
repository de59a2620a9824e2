"""What must hold in ``mdm.yaml``, ``permissions.yaml`` and ``webhooks.yaml``.

Row filters are judged where the filter language is known (``source.crosscheck``); here only whether
one may stand at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mdm_gitops.model.access import ALL_DOMAINS, PermissionItem, Permissions, Webhook, Webhooks
from mdm_gitops.model.known import Known
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.project import Project, WebhookOverlay
from mdm_gitops.model.suggest import did_you_mean

PRINCIPAL_KINDS: Final = ("user", "group", "apikey", "service")
_DOMAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,47}\Z")
_ENVIRONMENT: Final = _DOMAIN
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_project(project: Project) -> Iterator[Problem]:
    if not project.name.strip():
        yield Problem(rule="bad-name", message="the project's name is empty", pointer=("name",))
    for index, domain in enumerate(project.domains):
        if not _DOMAIN.match(domain.name):
            yield Problem(
                rule="bad-name",
                message=f"domain name {domain.name[:60]!r} may hold only A-Z, a-z, 0-9, _ and -,"
                " up to 48, and must start with a letter",
                pointer=("domains", index, "name"),
                hint="the text people see goes to displayName",
            )
    yield from _twice("domain", [domain.name for domain in project.domains], "domains")
    yield from _twice("environment", [each.name for each in project.environments], "environments")
    for index, environment in enumerate(project.environments):
        reference = environment.database_url_ref
        if reference is not None and not _VARIABLE.match(reference):
            yield Problem(
                rule="bad-reference",
                message="databaseUrlRef must be the name of an environment variable",
                pointer=("environments", index, "databaseUrlRef"),
                hint="the address itself, which holds a password, does not belong into Git",
            )


def check_environments(project: Project, webhooks: Webhooks | None) -> Iterator[Problem]:
    """Check the overlays of *project*; *webhooks* is None where that file could not be read."""
    names = None if webhooks is None else [webhook.name for webhook in webhooks.webhooks]
    for index, environment in enumerate(project.environments):
        place: Pointer = ("environments", index)
        if not _ENVIRONMENT.match(environment.name):
            yield Problem(
                rule="bad-name",
                message=f"environment name {environment.name[:60]!r} may hold only A-Z, a-z, 0-9, _"
                " and -, up to 48, and must start with a letter",
                pointer=(*place, "name"),
            )
        overlays = environment.webhooks
        yield from _twice("webhook", [each.name for each in overlays], "webhooks", place)
        for number, overlay in enumerate(overlays):
            yield from _check_overlay(overlay, names, (*place, "webhooks", number))


def _check_overlay(
    overlay: WebhookOverlay, names: Sequence[str] | None, at: Pointer
) -> Iterator[Problem]:
    if names is not None and overlay.name not in names:
        yield Problem(
            rule="unknown-webhook",
            message=f"webhooks.yaml has no webhook {overlay.name[:60]!r}",
            pointer=(*at, "name"),
            hint=did_you_mean(overlay.name, names),
        )
    yield from _check_target(overlay.url, overlay.secret_ref, at)


def check_reconcile(project: Project, known: Known) -> Iterator[Problem]:
    """Check what the operator is told: a misspelt name would switch it on where it was to be off."""
    reconcile = project.reconcile
    for index, override in enumerate(reconcile.overrides):
        for at, name in enumerate(override.entities):
            problem = known.unknown_entity(name, ("reconcile", "overrides", index, "entities", at))
            if problem is not None:
                yield problem
    for index, window in enumerate(reconcile.windows):
        if not _is_timezone(window.timezone):
            yield Problem(
                rule="bad-timezone",
                message=f"{window.timezone[:60]!r} is no time zone",
                pointer=("reconcile", "windows", index, "timezone"),
                hint="as in Europe/Zurich, or UTC",
            )
    for index, allowance in enumerate(project.policy.allowances):
        if not _is_day(allowance.until):
            yield Problem(
                rule="bad-date",
                message=f"{allowance.until} is no day",
                pointer=("policy", "allowances", index, "until"),
            )


def _is_timezone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _twice(kind: str, names: Sequence[str], key: str, at: Pointer = ()) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if fold(name) in seen:
            yield Problem(
                rule="duplicate-name",
                message=f"{kind} {name!r} is here twice",
                pointer=(*at, key, index, "name"),
            )
        seen.add(fold(name))


def check_permissions(permissions: Permissions, known: Known) -> Iterator[Problem]:
    for index, item in enumerate(permissions.permissions):
        at: Pointer = ("permissions", index)
        for number, user in enumerate(item.users):
            if refused := why_not_principal(user):
                message = f"principal {user[:60]!r} {refused}"
                place = (*at, "users", number)
                yield Problem(rule="bad-principal", message=message, pointer=place)
        yield from _check_domains(item.domains, known, at)
        yield from _check_item_entities(item, known, at)
        yield from _check_row_filter(item, at)


def why_not_principal(text: str) -> str:
    """Say why *text* names no principal; "" if it does."""
    prefix, colon, rest = text.partition(":")
    name = rest if colon and prefix in PRINCIPAL_KINDS else text
    if not name.strip():
        return "is empty"
    if name != name.strip() or _UNSEEN.search(name):
        return "has white space or control characters around or in it"
    if len(text) > 320:
        return "is longer than 320 characters"
    return ""


def _check_domains(given: Sequence[str], known: Known, at: Pointer) -> Iterator[Problem]:
    for number, domain in enumerate(given):
        if domain == ALL_DOMAINS and at[0] == "permissions":
            continue
        if (unknown := known.unknown_domain(domain, (*at, "domains", number))) is not None:
            yield unknown


def _check_item_entities(item: PermissionItem, known: Known, at: Pointer) -> Iterator[Problem]:
    for number, name in enumerate(item.entities):
        place: Pointer = (*at, "entities", number)
        entity = known.entities.get(fold(name))
        if entity is None:
            if (unknown := known.unknown_entity(name, place)) is not None:
                yield unknown
        elif entity.domain not in item.domains and ALL_DOMAINS not in item.domains:
            yield Problem(
                rule="entity-not-in-domain",
                message=f"entity {entity.name!r} is in domain {entity.domain!r},"
                " which this item does not name",
                pointer=place,
                hint=f"add {entity.domain!r} to the item's domains",
            )


def _check_row_filter(item: PermissionItem, at: Pointer) -> Iterator[Problem]:
    if item.row_filter_dsl is None:
        return
    place: Pointer = (*at, "rowFilterDsl")
    if not item.row_filter_dsl.strip():
        yield Problem(
            rule="empty-filter",
            message="rowFilterDsl is empty",
            pointer=place,
            hint="leave it out to give all rows",
        )
    elif not item.entities:
        yield Problem(
            rule="filter-needs-entity",
            message="rowFilterDsl needs a concrete entity",
            pointer=place,
            on_key=True,
            hint="name the entity in `entities`",
        )


def check_webhooks(webhooks: Webhooks, known: Known) -> Iterator[Problem]:
    yield from _twice("webhook", [webhook.name for webhook in webhooks.webhooks], "webhooks")
    for index, webhook in enumerate(webhooks.webhooks):
        at: Pointer = ("webhooks", index)
        yield from _check_webhook(webhook, at)
        yield from _check_domains(webhook.domains, known, at)
        for number, name in enumerate(webhook.entities):
            if (unknown := known.unknown_entity(name, (*at, "entities", number))) is not None:
                yield unknown


def _check_webhook(webhook: Webhook, at: Pointer) -> Iterator[Problem]:
    if webhook.name != webhook.name.strip() or _UNSEEN.search(webhook.name):
        yield Problem(
            rule="bad-name",
            message=f"webhook name {webhook.name[:60]!r} has white space around it"
            " or control characters in it",
            pointer=(*at, "name"),
        )
    yield from _check_target(webhook.url, webhook.secret_ref, at)


def _check_target(url: str | None, secret_ref: str | None, at: Pointer) -> Iterator[Problem]:
    if url is not None and (refused := why_not_url(url)):
        yield Problem(rule="bad-url", message=f"url {refused}", pointer=(*at, "url"))
    if secret_ref is not None and (not secret_ref.strip() or _UNSEEN.search(secret_ref)):
        yield Problem(
            rule="bad-reference",
            message="secretRef must name an environment variable or a file",
            pointer=(*at, "secretRef"),
        )


def why_not_url(url: str) -> str:
    """Say why *url* cannot receive events; "" if it can. Never repeats what may be a secret."""
    if any(sign.isspace() for sign in url) or _UNSEEN.search(url) or "\\" in url:
        return "holds white space, a control character or a backslash"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no address"
    if parts.scheme.lower() not in ("http", "https"):
        return "must start with https:// or http://"
    if "@" in parts.netloc:
        return "must not hold a user name or password; use secretRef"
    if not parts.hostname or port == 0:
        return "names no host"
    return ""
