"""Tell a forge how a plan went: one comment that is updated, and the status of the commit.

    python forge.py comment plan.md [--only-update]
    python forge.py status CODE plan.md

Runs in jobs of GitHub and GitLab, with the standard library alone, and finds its way by the variables
that they set. The token is in ``FORGE_TOKEN``. Without one, or with one that may only read, as jobs
of forks have it, the plan goes to the summary of the job and the job goes on: a contributor without
secrets is no failure.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 65_536  # of a comment; a plan is cut to less when it is rendered
PAGE = 100
CONTEXT = "mdm-gitops/plan"
MAY_NOT = (401, 403, 404)  # how forges say that a token may only read


class Forge(NamedTuple):
    """Where comments and statuses of this job are; *verb* is how a comment is changed."""

    api: str
    header: tuple[str, str]
    comments: str
    comment: str
    verb: str
    status: str


def github(token: str) -> Forge:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text("utf-8"))
    request = event["pull_request"]
    repository = f"/repos/{os.environ['GITHUB_REPOSITORY']}"
    return Forge(
        api=os.environ["GITHUB_API_URL"],
        header=("Authorization", f"Bearer {token}"),
        comments=f"{repository}/issues/{request['number']}/comments",
        comment=f"{repository}/issues/comments",
        verb="PATCH",
        status=f"{repository}/statuses/{request['head']['sha']}",
    )


def gitlab(token: str) -> Forge:
    project = f"/projects/{os.environ['CI_PROJECT_ID']}"
    notes = f"{project}/merge_requests/{os.environ['CI_MERGE_REQUEST_IID']}/notes"
    sha = os.environ.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or os.environ["CI_COMMIT_SHA"]
    return Forge(
        api=os.environ["CI_API_V4_URL"],
        header=("PRIVATE-TOKEN", token),
        comments=notes,
        comment=notes,
        verb="PUT",
        status=f"{project}/statuses/{sha}",
    )


def ask(forge: Forge, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        forge.api + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            forge.header[0]: forge.header[1],
            "Content-Type": "application/json",
            "User-Agent": "mdm-gitops",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def earlier(forge: Forge, marker: str) -> Iterator[int]:
    """Yield the ids of comments that begin with *marker*, the oldest first."""
    page = 1
    while True:
        query = f"?per_page={PAGE}&page={page}&sort=asc&order_by=created_at"
        found = ask(forge, "GET", forge.comments + query)
        yield from (each["id"] for each in found if each["body"].startswith(marker))
        if len(found) < PAGE:
            return
        page += 1


def comment(forge: Forge, text: str, *, only_update: bool) -> str:
    """Put *text* into our comment, which its first line tells from others; say what was done."""
    marker = text.partition("\n")[0]
    for number in earlier(forge, marker):
        try:
            ask(forge, forge.verb, f"{forge.comment}/{number}", {"body": text})
        except urllib.error.HTTPError as error:
            if error.code not in MAY_NOT:
                raise
            continue  # somebody else's, who has copied ours
        return "updated the comment"
    if only_update:
        return "nothing to say"
    ask(forge, "POST", forge.comments, {"body": text})
    return "commented"


def shortened(text: str) -> str:
    if len(text) <= LIMIT:
        return text
    ending = "\n\n_… cut: the whole plan is in the log of the job_\n"
    return text[: text.rindex("\n", 0, LIMIT - len(ending))] + ending


def status(forge: Forge, code: int, text: str) -> str:
    """Set the status of the commit by the exit code of ``plan --detailed-exitcode``."""
    github_like = forge.verb == "PATCH"
    good = code in (0, 2)
    bad = "failure" if github_like else "failed"
    lines = [line.strip("*#<>!- ") for line in text.splitlines()[1:] if line.strip()]
    verdict = (lines[1] if len(lines) > 1 else "no plan").replace("**", "").replace("\\", "")
    key = "context" if github_like else "name"
    body = {"state": "success" if good else bad, key: CONTEXT, "description": verdict[:140]}
    ask(forge, "POST", forge.status, body)
    return f"status: {body['state']}"


def summarise(text: str) -> None:
    """Show the plan where it needs no right: in the summary of the job, else in its log."""
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(text)
    else:
        tell(text)


def tell(text: str) -> None:
    sys.stdout.write(text.rstrip() + "\n")


def main(arguments: list[str]) -> int:
    task, *rest = arguments
    file = Path(next(each for each in reversed(rest) if not each.startswith("--")))
    text = shortened(file.read_text("utf-8"))
    token = os.environ.get("FORGE_TOKEN", "")
    if not token:
        if task == "comment":
            summarise(text)
        tell(f"{task}: no token, as jobs of forks have none; nothing was sent")
        return 0
    try:
        forge = gitlab(token) if os.environ.get("GITLAB_CI") else github(token)
        if task == "status":
            tell(status(forge, int(rest[0]), text))
        else:
            tell(comment(forge, text, only_update="--only-update" in rest))
    except urllib.error.HTTPError as error:
        if error.code not in MAY_NOT:
            raise
        if task == "comment":
            summarise(text)
        tell(f"{task}: the token may not do that ({error.code}); the job goes on")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
