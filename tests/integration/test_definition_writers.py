"""Definitions written from all sides: by callers of the API and by a developer who pushes.

After it, each edit is in the history, or its author was told that it is not. That the judge can tell
is shown by a writer that forces its way: it loses edits.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.errors import Conflict, SettingsError
from mdm_gitops.settings import Settings
from mdm_gitops.source.commits import Author, CommitWriter, Files, WriteMode
from mdm_gitops.source.pushing import RemoteBranch
from mdm_gitops.source.remote import Remote
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.served_folder import git
from tests.support.serving import KEY, Client, problem, served

pytestmark = pytest.mark.anyio
E = "/api/v1/entities"
ANA = Author(actor="user:ana@example.com")
CONTESTED = 4
ENTITY = "# of {0}\nname: {0}\ndomain: ref\ncolumns:\n  - {{name: code, dataType: string}}\n"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    bare, work = tmp_path / "remote.git", tmp_path / "first"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(bare))
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "entities").mkdir()
    (work / "mdm.yaml").write_text(
        "name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n"
    )
    for number in range(CONTESTED):
        (work / f"entities/shared{number}.yaml").write_text(ENTITY.format(f"shared{number}"))
    git(work, "add", ".")
    git(work, "commit", "-qm", "start")
    git(work, "push", "-q", str(bare), "main")
    return bare


def settings_for(remote: Path, mode: str | None, **source: Any) -> Settings:
    return Settings(
        Repository={"WriteMode": mode},
        Source={"Url": f"file://{remote}", **source},
        RateLimit={"Enabled": False},
    )


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[str]:
    async with await connect(database_url, application_name="test") as conn:
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    yield database_url


def served_from(database_url: str, folder: Path, settings: Settings) -> served:
    folder.mkdir(exist_ok=True)
    definitions = folder_definitions(folder, settings)
    return served(create_app(database_url=database_url, settings=settings, definitions=definitions))


def document(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "domain": "ref",
        "columns": [{"name": "code", "dataType": "string"}],
        **values,
    }


@dataclass
class Campaign:
    """What was asked for, and what was answered."""

    acknowledged: set[str] = field(default_factory=set)  # commits
    refused: int = 0
    pushed: set[str] = field(default_factory=set)  # subjects of the developer's commits

    def lost(self, remote: Path) -> set[str]:
        log = git(remote, "log", "--format=%H %s", "main").splitlines()
        hashes, subjects = ({part(line) for line in log} for part in (_hash, _subject))
        return (self.acknowledged - hashes) | (self.pushed - subjects)


def _hash(line: str) -> str:
    return line.partition(" ")[0]


def _subject(line: str) -> str:
    return line.partition(" ")[2]


async def write(client: Client, campaign: Campaign, number: int) -> None:
    """A new entity, or an edit of one that others edit, too, on what was read before."""
    if number % 2:
        answer = await client.post(f"{E}/new{number}", json=document(f"new{number}"))
    else:
        name = f"shared{number % CONTESTED}"
        read = await client.get(f"{E}/{name}")
        given = {**read.json(), "description": f"edit {number}"}
        headers = {"If-Match": read.headers["ETag"]}
        answer = await client.put(f"{E}/{name}", json=given, headers=headers)
    if answer.status_code in (200, 201):
        campaign.acknowledged.add(answer.json()["commit"])
    else:
        assert problem(answer) == (412, "DEFINITION_CHANGED"), answer.text
        campaign.refused += 1


def develop(remote: Path, clone: Path, campaign: Campaign, pushes: int) -> None:
    """A developer who pulls and pushes; a push that is refused is made again on what is there."""
    git(clone.parent, "clone", "-q", str(remote), str(clone))
    dice = random.Random(1)
    for number in range(pushes):
        name = dice.choice([f"dev{number}", f"shared{number % CONTESTED}"])
        path = clone / f"entities/{name}.yaml"
        for _ in range(200):
            git(clone, "fetch", "-q", "origin")
            git(clone, "reset", "-q", "--hard", "origin/main")
            text = path.read_text() if path.exists() else ENTITY.format(name)
            path.write_text(f"{text}# by the developer, {number}\n")
            git(clone, "add", ".")
            git(clone, "commit", "-qm", f"dev {number}")
            try:
                git(clone, "push", "-q", "origin", "HEAD:main")
            except subprocess.CalledProcessError:
                continue  # somebody was faster
            campaign.pushed.add(f"dev {number}")
            break


async def run(api: str, remote: Path, tmp_path: Path, *, writes: int, pushes: int) -> Campaign:
    campaign = Campaign()
    settings = settings_for(remote, "commit")
    async with served_from(api, tmp_path / "server", settings) as client:
        client.headers["X-API-Key"] = KEY
        await asyncio.gather(
            asyncio.to_thread(develop, remote, tmp_path / "clone", campaign, pushes),
            *(write(client, campaign, number) for number in range(writes)),
        )
    assert len(campaign.pushed) == pushes
    assert len(campaign.acknowledged) + campaign.refused == writes
    return campaign


def judge(campaign: Campaign, remote: Path) -> None:
    assert not campaign.lost(remote)
    # A straight line: nothing was merged, and nothing rewritten.
    assert git(remote, "rev-list", "--merges", "--count", "main") == "0"
    edits = len(campaign.acknowledged) + len(campaign.pushed)
    assert int(git(remote, "rev-list", "--count", "main")) == edits + 1
    # What people wrote beside the edits of the API is still there.
    for number in range(CONTESTED):
        text = git(remote, "show", f"main:entities/shared{number}.yaml")
        assert text.startswith(f"# of shared{number}\n")
        touched = f"entities/shared{number}.yaml"
        subjects = git(remote, "log", "--format=%s", "main", "--", touched).splitlines()
        notes = [s.removeprefix("dev ") for s in subjects if s.startswith("dev ")]
        assert all(f"# by the developer, {note}\n" in f"{text}\n" for note in notes)


async def test_no_edit_is_lost(api: str, remote: Path, tmp_path: Path) -> None:
    judge(await run(api, remote, tmp_path, writes=16, pushes=4), remote)


@pytest.mark.soak
async def test_no_edit_is_lost_of_a_hundred(api: str, remote: Path, tmp_path: Path) -> None:
    judge(await run(api, remote, tmp_path, writes=100, pushes=20), remote)


class _Forcing(RemoteBranch):
    """The negative control: pushes whatever it has made over whatever is there."""

    def _push(self, commit: str, branch: str) -> bool:
        git(self.repo, "push", "-q", "--force", self.remote.url, f"{commit}:refs/heads/{branch}")
        return True


@pytest.mark.parametrize("place", [_Forcing, RemoteBranch])
async def test_a_writer_that_forces_loses_edits(
    remote: Path, tmp_path: Path, place: type[RemoteBranch]
) -> None:
    campaign, asked = Campaign(), []

    def change(files: Mapping[str, bytes]) -> Files:
        if not asked:  # just now, between reading and pushing
            develop(remote, tmp_path / "clone", campaign, 1)
        asked.append(len(files))
        return {"entities/mine.yaml": ENTITY.format("mine").encode()}

    mine = place(Remote(url=f"file://{remote}", branch="main"), tmp_path / "mirror.git")
    writer = CommitWriter(mine, mode=WriteMode.COMMIT)
    done = writer.write(change, author=ANA, message="Define mine")
    assert done.commit is not None
    campaign.acknowledged.add(done.commit)
    assert campaign.lost(remote) == ({"dev 0"} if place is _Forcing else set())
    assert len(asked) == (1 if place is _Forcing else 2)


async def test_a_remote_gets_branches_by_itself(api: str, remote: Path, tmp_path: Path) -> None:
    head = git(remote, "rev-parse", "main")
    async with served_from(api, tmp_path / "server", settings_for(remote, None)) as client:
        client.headers["X-API-Key"] = KEY
        answer = await client.post("/api/v1/entity-create", json=document("leaf"))
        assert answer.status_code == 202, answer.text
        branch = answer.json()["branch"]
        assert branch.startswith("mdm/define-leaf-")
        assert git(remote, "rev-parse", branch) == answer.json()["commit"]
        assert git(remote, "rev-parse", f"{branch}^", "main").split() == [head, head]
        assert (await client.get(f"{E}/leaf")).status_code == 404  # nobody has merged it
        granted = await client.post(
            "/api/v1/permissions", json={"principal": "a", "domain": "ref", "actions": ["admin"]}
        )
        assert granted.status_code == 202 and granted.json()["branch"].startswith("mdm/permit-")
        gone = await client.delete(f"{E}/shared0")
        assert gone.status_code == 202 and (await client.get(f"{E}/shared0")).status_code == 200


async def test_what_the_remote_does_not_take(api: str, remote: Path, tmp_path: Path) -> None:
    hook = remote / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho main is protected >&2\nexit 1\n")
    hook.chmod(0o755)
    head = git(remote, "rev-parse", "main")
    for mode in ("commit", "branch"):
        settings = settings_for(remote, mode)
        async with served_from(api, tmp_path / f"server-{mode}", settings) as client:
            client.headers["X-API-Key"] = KEY
            answer = await client.post("/api/v1/entity-create", json=document("leaf"))
            assert problem(answer) == (409, "PUSH_REFUSED")
            assert (await client.get(f"{E}/leaf")).status_code == 404
    assert git(remote, "for-each-ref", "--format=%(objectname)") == head
    settings = settings_for(remote, "readonly")
    async with served_from(api, tmp_path / "server", settings) as client:
        client.headers["X-API-Key"] = KEY
        answer = await client.post("/api/v1/entity-create", json=document("leaf"))
        assert problem(answer) == (409, "DEFINITIONS_IN_GIT")


async def test_a_remote_that_is_gone(api: str, remote: Path, tmp_path: Path) -> None:
    settings = settings_for(remote, "commit")
    async with served_from(api, tmp_path / "server", settings) as client:
        client.headers["X-API-Key"] = KEY
        assert (await client.get(f"{E}/shared0")).status_code == 200
        shutil.move(remote, tmp_path / "elsewhere")
        answer = await client.post("/api/v1/entity-create", json=document("leaf"))
        assert problem(answer) == (503, "SOURCE_UNAVAILABLE")
        assert (await client.get(f"{E}/shared0")).status_code == 200  # what was read last holds
    async with served_from(api, tmp_path / "other", settings) as client:
        client.headers["X-API-Key"] = KEY
        about = (await client.get(f"{E}/summary")).json()["definitions"]
        assert about == {"available": False, "commit": None, "errorCount": 1}


async def test_only_commits_that_may_be_taken_count(api: str, remote: Path, tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text("ana@example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB==\n")
    with pytest.raises(SettingsError, match="signed"):
        folder_definitions(tmp_path, settings_for(remote, "commit", AllowedSigners=signers))
    settings = settings_for(remote, None, AllowedSigners=signers)
    async with served_from(api, tmp_path / "server", settings) as client:
        client.headers["X-API-Key"] = KEY
        assert (await client.get(f"{E}/shared0")).status_code == 404
        about = (await client.get(f"{E}/summary")).json()["definitions"]
        assert about["available"] is False


async def test_a_revision_of_the_folder_is_what_is_served(api: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "entities").mkdir(parents=True)
    (root / "mdm.yaml").write_text(
        "name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n"
    )
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    settings = Settings(Source={"Revision": "main"})
    async with served_from(api, root, settings) as client:
        client.headers["X-API-Key"] = KEY
        (root / "entities/mine.yaml").write_text(ENTITY.format("mine"))
        assert (await client.get(f"{E}/mine")).status_code == 404  # not committed
        assert (await client.post(f"{E}/leaf", json=document("leaf"))).status_code == 201
        assert (await client.get(f"{E}/leaf")).json()["status"]["state"] == "draft"


def test_a_commit_is_taken_back_without_a_trace_or_by_another(remote: Path, tmp_path: Path) -> None:
    place = RemoteBranch(Remote(url=f"file://{remote}"), tmp_path / "mirror.git")
    writer = CommitWriter(place, mode=WriteMode.COMMIT)
    before = git(remote, "rev-parse", "main^{tree}")
    text = ENTITY.format("mine").encode()
    done = writer.write(lambda f: {"entities/mine.yaml": text}, author=ANA, message="Define mine")
    writer.take_back(done, author=ANA, message="Take it back")
    assert git(remote, "rev-parse", "main^{tree}") == before
    assert git(remote, "log", "-2", "--format=%s").split("\n") == ["Take it back", "Define mine"]
    again = writer.write(lambda f: {"entities/mine.yaml": text}, author=ANA, message="Again")
    writer.write(lambda f: {"entities/mine.yaml": text + b"# more\n"}, author=ANA, message="More")
    with pytest.raises(Conflict, match="changed again"):
        writer.take_back(again, author=ANA, message="Take it back")
