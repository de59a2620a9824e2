"""Changes of definitions by a request: a commit by its caller, and what takes effect with it."""

from __future__ import annotations

from mdm_api.call import Call
from mdm_gitops.source.commits import Author, Change, Committed


async def commit_definitions(call: Call, change: Change, *, message: str) -> Committed:
    """Commit a change of definitions by the caller; deploying it is something else."""
    author = Author(actor=call.principal.actor)
    return await call.services.definitions.write(change, author=author, message=message)


async def commit_access(call: Call, change: Change, *, message: str) -> Committed:
    """Commit a change of permissions or webhooks, which hold from then on on every worker.

    A commit on a branch of its own changes nothing yet: somebody merges it.
    """
    done = await commit_definitions(call, change, message=message)
    if done.commit is not None and done.branch is None:
        await call.services.deployer.apply_access(actor=call.principal.actor)
    return done
