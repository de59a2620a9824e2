"""``POST /api/v1/hooks/git``: a push to the repository wakes the operator, and does nothing else.

Nothing of what is sent is believed: a true signature makes the operator look at its source, as it
would have at its next turn. So a lost, repeated or late delivery changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from starlette.responses import Response

from mdm_api import bodies, schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import JSON, Access, Answer, Body, Operation
from mdm_api.problems import no_such_path
from mdm_gitops.errors import AuthRequired
from mdm_gitops.warehouse.connect import borrow_checked
from mdm_gitops.warehouse.reconciliation import request_run

ACTOR: Final = "system:git-hook"
MAX_BYTES: Final = 5 * 1024 * 1024
_EVENTS: Final = ("X-GitHub-Event", "X-Gitea-Event", "X-Gitlab-Event")
_PUSHES: Final = ("push", "create", "push hook", "tag push hook", "system hook")


async def receive_push(call: Call) -> Response:
    settings = call.services.settings
    secret = settings.Source.HookSecret
    if secret is None or not secret.get_secret_value():
        raise no_such_path()
    limit = min(MAX_BYTES, settings.Server.MaxBodyBytes)
    body = await bodies.read_body(call.request, max_bytes=limit)
    if not _is_signed(call, body, secret.get_secret_value().encode()):
        raise AuthRequired(
            "the delivery is not signed with the secret of this server",
            hint="give both sides the same secret; Mdm__Source__HookSecret is ours",
        )
    if not _is_push(call):
        return json_response({"requested": None}, status=200)
    async with borrow_checked(call.services.pool) as conn:
        number = await request_run(conn, schemas=call.services.schemas, actor=ACTOR)
    return json_response({"requested": number}, status=202)


def _is_signed(call: Call, body: bytes, secret: bytes) -> bool:
    """GitHub and Gitea sign the body, GitLab sends the secret itself."""
    headers = call.request.headers
    expected = hmac.new(secret, body, hashlib.sha256).hexdigest().encode()
    github = headers.get("X-Hub-Signature-256", "").removeprefix("sha256=")
    gitea = headers.get("X-Gitea-Signature", "")
    token = headers.get("X-Gitlab-Token", "")
    given = (
        (github.encode(), expected),
        (gitea.encode(), expected),
        # Digests of equal length: the time says nothing of the secret's.
        (hashlib.sha256(token.encode()).digest(), hashlib.sha256(secret).digest()),
    )
    return any(hmac.compare_digest(sent, right) for sent, right in given)


def _is_push(call: Call) -> bool:
    named = [call.request.headers.get(name, "").lower() for name in _EVENTS]
    return not any(named) or any(name in _PUSHES for name in named)


operations = (
    Operation(
        method="POST",
        path="/api/v1/hooks/git",
        handler=receive_push,
        summary="Be told of a push",
        tag="Reconciliation",
        access=Access.PUBLIC,
        description="For webhooks of GitHub (`X-Hub-Signature-256`), Gitea (`X-Gitea-Signature`) and"
        " GitLab (`X-Gitlab-Token`), with the secret of `Mdm__Source__HookSecret`; without that"
        " setting the path is not there. It only wakes the operator.",
        body=Body(description="Whatever the host sends.", schemas={JSON: {}}, required=False),
        answers={
            200: Answer(description="Seen, and no push.", schema=schemas.ref("ReconcileRequested")),
            202: Answer(
                description="The operator is asked for a run.",
                schema=schemas.ref("ReconcileRequested"),
            ),
        },
        errors=("AUTH_REQUIRED", "BODY_TOO_LARGE", "NOT_FOUND"),
    ),
)
