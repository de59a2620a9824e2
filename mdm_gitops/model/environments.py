"""One set of definitions as one environment has it: its overlays put over the project's own values.

An environment may have its own policy, its own reconcile section, and other addresses, secrets and
switches of webhooks. Entities, permissions and seeds are the same everywhere: that is what promoting
a commit from one environment to the next means.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from mdm_gitops.errors import InputError
from mdm_gitops.model.access import Webhook, Webhooks
from mdm_gitops.model.project import Environment, Project, WebhookOverlay
from mdm_gitops.model.repository import Definitions
from mdm_gitops.model.suggest import did_you_mean

_OWN: Final = ("url", "secret_ref", "is_active")  # what a webhook may have otherwise


def environment_of(project: Project, name: str) -> Environment:
    """Return the environment *name* of *project*.

    Raises:
        InputError: it has none of that name.
    """
    for environment in project.environments:
        if environment.name == name:
            return environment
    names = [environment.name for environment in project.environments]
    hint = did_you_mean(name, names) or (
        f"it has {', '.join(names)}" if names else "`environments` of mdm.yaml lists them"
    )
    raise InputError(f"mdm.yaml has no environment {name[:100]!r}", hint=hint)


def in_environment(definitions: Definitions, name: str) -> Definitions:
    """Return *definitions* with the overlays of the environment *name*; "" leaves them as they are.

    Raises:
        InputError: the project has no such environment.
    """
    if not name:
        return definitions
    environment = environment_of(definitions.project, name)
    own: dict[str, Any] = {"policy": environment.policy, "reconcile": environment.reconcile}
    given = {key: value for key, value in own.items() if value is not None}
    return replace(
        definitions,
        project=definitions.project.model_copy(update=given),
        webhooks=_webhooks(definitions.webhooks, environment),
    )


def without_overlays(definitions: Definitions, name: str, *, like: Definitions) -> Definitions:
    """Return *definitions*, deployed in the environment *name*, with webhooks as *like* has them
    where an overlay of that environment hides what they are everywhere."""
    overlays = {overlay.name: overlay for overlay in environment_of(like.project, name).webhooks}
    webhooks = tuple(
        _bared(webhook, overlays[webhook.name], like.webhook_by_name.get(webhook.name, webhook))
        if webhook.name in overlays
        else webhook
        for webhook in definitions.webhooks.webhooks
    )
    return replace(definitions, webhooks=Webhooks(webhooks=webhooks))


def _bared(webhook: Webhook, overlay: WebhookOverlay, base: Webhook) -> Webhook:
    hidden = [key for key in _OWN if getattr(overlay, key) is not None]
    return webhook.model_copy(update={key: getattr(base, key) for key in hidden})


def _webhooks(webhooks: Webhooks, environment: Environment) -> Webhooks:
    overlays = {overlay.name: overlay for overlay in environment.webhooks}
    return Webhooks(
        webhooks=tuple(
            _overlaid(webhook, overlays[webhook.name]) if webhook.name in overlays else webhook
            for webhook in webhooks.webhooks
        )
    )


def _overlaid(webhook: Webhook, overlay: WebhookOverlay) -> Webhook:
    own = {"url": overlay.url, "secret_ref": overlay.secret_ref, "is_active": overlay.is_active}
    return webhook.model_copy(
        update={key: value for key, value in own.items() if value is not None}
    )
