"""Changes of definitions by a request: a commit by its caller, and what takes effect with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mdm_api.call import Call
from mdm_gitops.access import may_administer
from mdm_gitops.errors import PlanRefused
from mdm_gitops.model.access import ALL_DOMAINS
from mdm_gitops.source.commits import Author, Change, Committed


async def commit_definitions(call: Call, change: Change, *, message: str) -> Committed:
    """Commit a change of definitions by the caller; deploying it is something else."""
    author = Author(actor=call.principal.actor)
    return await call.services.definitions.write(change, author=author, message=message)


async def commit_access(call: Call, change: Change, *, message: str) -> Committed:
    """Commit a change of permissions or webhooks, which hold from then on on every worker.

    A commit on a branch of its own changes nothing yet: somebody merges it. What breaks a test of
    access-tests.yaml is no commit: it could not take effect.
    """
    with _no_more_than_they_may_know(call):
        present = (await call.services.definitions.current()).definitions
        if present is not None and present.access_tests.tests:
            wanted = await call.services.definitions.preview(change)
            await call.services.deployer.check_access(wanted)
        done = await commit_definitions(call, change, message=message)
        if done.commit is not None and done.branch is None:
            await call.services.deployer.apply_access(actor=call.principal.actor)
    return done


@contextmanager
def _no_more_than_they_may_know(call: Call) -> Iterator[None]:
    """A test speaks of rows and principals of any domain: who does not administer all, learns less."""
    try:
        yield
    except PlanRefused:
        if may_administer(call.principal, call.state, domain=ALL_DOMAINS, entity=""):
            raise
        raise PlanRefused(
            "the permissions would not be what they must be any more",
            hint="mdm-gitops plan tells which test or guard refuses it",
        ) from None
