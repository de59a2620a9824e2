"""Many who decide on the same proposals at the same moment: each has exactly one effect and one event.

Two applications take part, so that nothing rests on what one process knows.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from mdm_api.app import create_app
from mdm_gitops.settings import RateLimitSettings, Settings
from tests.support import approving
from tests.support.approving import Lab, problem
from tests.support.serving import Client, served

pytestmark = pytest.mark.anyio
APPROVERS = 8
ENDS = {"data_created", "data_updated", "data_rejected"}


@pytest.fixture
async def lab(approving_url: str) -> AsyncIterator[Lab]:
    async with approving.opened_copy(approving_url) as lab:
        yield lab


@pytest.fixture
async def second(approving_url: str, lab: Lab) -> AsyncIterator[Client]:
    settings = Settings(RateLimit=RateLimitSettings(Enabled=False))
    async with served(create_app(database_url=approving_url, settings=settings)) as client:
        yield client


class Crowd:
    """Sends through one application or the other."""

    def __init__(self, lab: Lab, second: Client) -> None:
        self._labs = (lab, lab.through(second))
        self._turn = 0

    async def send(self, who: str, method: str, path: str, document: Any = None) -> httpx2.Response:
        self._turn += 1
        return await self._labs[self._turn % 2].send(who, method, path, document)


async def proposals(lab: Lab, count: int) -> list[str]:
    """Half of them are creations, half updates."""
    made = await asyncio.gather(*(lab.propose("ann", code=f"P{n}") for n in range(count)))
    half = list(made[: count // 2])
    answer = await lab.send("bob", "POST", "part/approve-batch", {"ids": half})
    assert answer.json()["approved"] == len(half)
    for row_id in half:
        await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1})
    await lab.forget_events()
    return list(made)


async def ends_of(lab: Lab) -> Counter[str]:
    """Return how many proposals of each row came to an end."""
    return Counter(e["id"] for e in await lab.events() if e["action"] in ENDS)


async def test_one_of_eight_approvers_has_an_effect(lab: Lab, second: Client) -> None:
    ids = await proposals(lab, 40)
    crowd = Crowd(lab, second)

    async def approve_all(seed: int) -> Counter[int]:
        order = list(ids)
        random.Random(seed).shuffle(order)
        who = ("bob", "cat")[seed % 2]
        answers = [await crowd.send(who, "POST", f"part/approve/{row_id}") for row_id in order]
        return Counter(answer.status_code for answer in answers)

    found = await asyncio.gather(*(approve_all(n) for n in range(APPROVERS)))
    assert sum(found, Counter()) == {200: 40, 404: 40 * (APPROVERS - 1)}
    assert await ends_of(lab) == Counter(ids)
    assert await lab.edit() == []
    cursor = await lab.conn.execute("SELECT _sys_version, count(*) FROM mdm_data.part GROUP BY 1")
    assert dict(await cursor.fetchall()) == {1: 20, 2: 20}


async def test_one_of_eight_batches_has_an_effect_on_each_row(lab: Lab, second: Client) -> None:
    ids = await proposals(lab, 120)
    await lab.conn.execute("UPDATE mdm_data.part__edit SET _sys_batch_name = 'b'")
    crowd = Crowd(lab, second)

    async def decide(seed: int) -> Any:
        what = "reject" if seed == APPROVERS - 1 else "approve"
        order = list(ids)
        random.Random(seed).shuffle(order)
        body: dict[str, Any] = {"ids": order} if seed % 2 else {"batchName": "b"}
        answer = await crowd.send("bob", "POST", f"part/{what}-batch", body)
        return answer.json()

    outcomes = await asyncio.gather(*(decide(n) for n in range(APPROVERS)))
    assert sum(o["approved"] + o["rejected"] for o in outcomes) == 120
    codes = {each.get("code") for o in outcomes for each in o["results"]}
    assert codes <= {None, "PENDING_NOT_FOUND"}
    assert await ends_of(lab) == Counter(ids)
    rejected = sum(o["rejected"] for o in outcomes)
    assert [row["_sys_state"] for row in await lab.edit()] == ["rejected"] * rejected


async def test_what_is_proposed_while_a_decision_waits_is_not_decided_on(
    lab: Lab, second: Client
) -> None:
    """The decision has locked what was there when it came; the rest could still be changed."""
    low, high = sorted([await lab.approved(code="P1"), await lab.approved(code="P2")])
    await lab.send("ann", "PUT", f"part/data/{low}", {"rank": 1})
    async with lab.conn.transaction():
        await lab.conn.execute(
            "SELECT FROM mdm_data.part__edit WHERE _sys_id = %s FOR UPDATE", [low]
        )
        batch = {"ids": [low, high]}
        decision = asyncio.create_task(lab.send("bob", "POST", "part/reject-batch", batch))
        await _somebody_waits(lab)
        answer = await lab.through(second).send("ann", "PUT", f"part/data/{high}", {"rank": 2})
        assert answer.status_code == 202
    results = {each["id"]: each.get("code") for each in (await decision).json()["results"]}
    assert results == {low: None, high: "PENDING_NOT_FOUND"}
    assert (await lab.pending(high))["rank"] == 2


async def _somebody_waits(lab: Lab, number: int = 1) -> None:
    """Wait until so many sessions of this warehouse wait for a lock."""
    sql = """SELECT count(DISTINCT w.pid) FROM pg_locks w WHERE NOT w.granted AND EXISTS (
        SELECT FROM pg_locks o JOIN pg_database d ON d.oid = o.database
         WHERE o.pid = w.pid AND d.datname = current_database())"""
    async with asyncio.timeout(60):
        while await (await lab.conn.execute(sql.encode())).fetchone() != (number,):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", ["UPDATE {} SET code = 'L'", "DELETE FROM {}"])
@pytest.mark.parametrize("is_pending", [True, False])
async def test_a_proposal_waits_for_those_who_take_away_what_it_refers_to(
    lab: Lab, change: str, is_pending: bool
) -> None:
    """Not seen before, what they have done would leave the proposal with a reference to nothing."""
    kind = await lab.propose("ann", "kind", code="K")
    part = await lab.approved(code="P1")
    if not is_pending:
        await lab.send("bob", "POST", f"kind/approve/{kind}")
    table = f"mdm_data.kind{'__edit' if is_pending else ''}"
    for method, path, values in (
        ("POST", "part/data", {"code": "P2", "kind": "K"}),
        ("PUT", f"part/data/{part}", {"kind": "K"}),
    ):
        async with lab.conn.transaction(force_rollback=method == "POST"):
            await lab.conn.execute(change.format(table).encode())
            proposing = asyncio.create_task(lab.send("cat", method, path, values))
            await _somebody_waits(lab)
        answer = await proposing
        expected = (400, "ENTITY_VALIDATION_REFERENCE")
        assert answer.status_code == 202 if method == "POST" else problem(answer) == expected


async def test_who_renames_what_a_proposal_refers_to_waits_for_it_and_carries_it(lab: Lab) -> None:
    kind = await lab.approved("kind", code="K")
    await lab.send("ann", "PUT", f"kind/data/{kind}", {"code": "L"})
    async with lab.conn.transaction():
        # As a proposal that is under way holds it.
        await lab.conn.execute("SELECT FROM mdm_data.kind FOR KEY SHARE")
        approving = asyncio.create_task(lab.send("bob", "POST", f"kind/approve/{kind}"))
        await _somebody_waits(lab)
        proposed = await lab.propose("cat", code="P1", kind="K")
    assert (await approving).status_code == 200
    assert (await lab.pending(proposed))["kind"] == "L"


async def test_a_row_that_is_relinked_is_proposed_to_as_it_is_then(lab: Lab) -> None:
    kind = await lab.approved("kind", code="K")
    part = await lab.approved(code="P1", kind="K")
    async with lab.conn.transaction():
        await lab.conn.execute("SET CONSTRAINTS ALL DEFERRED")
        await lab.conn.execute("UPDATE mdm_data.kind SET code = 'L' WHERE _sys_id = %s", [kind])
        proposing = asyncio.create_task(lab.send("ann", "PUT", f"part/data/{part}", {"rank": 1}))
        await _somebody_waits(lab)
        await lab.conn.execute("UPDATE mdm_data.part SET kind = 'L', _sys_version = 2")
    assert (await proposing).status_code == 202
    pending = await lab.pending(part)
    assert (pending["kind"], pending["_sys_version"]) == ("L", 2)


# --- imports --------------------------------------------------------------------------------------


def _import(lab: Lab, who: str, *rows: dict[str, Any]) -> asyncio.Task[httpx2.Response]:
    sent = lab.send(who, "POST", "part/data/bulk", list(rows), params={"mode": "upsert"})
    return asyncio.create_task(sent)


async def test_an_import_waits_for_a_decision_on_what_it_writes_to(lab: Lab) -> None:
    """Before it holds the tables, which the decision needs to end."""
    row_id = await lab.propose("ann", code="P1", rank=1)
    async with lab.conn.transaction():
        await lab.conn.execute("SELECT FROM mdm_data.part__edit FOR UPDATE")
        importing = _import(lab, "bob", {"code": "P1", "rank": 2}, {"code": "P2"})
        await _somebody_waits(lab)
        for table in ("part", "part__edit"):
            await lab.conn.execute(
                f"LOCK TABLE mdm_data.{table} IN ROW EXCLUSIVE MODE NOWAIT".encode()
            )
        await lab.conn.execute("UPDATE mdm_data.part__edit SET _sys_state = 'rejected'")
    outcome = (await importing).json()
    assert (outcome["received"], outcome["pending"]) == (2, 2)
    # The key of a rejected creation is free again.
    states = {row["_sys_id"]: (row["code"], row["_sys_state"]) for row in await lab.edit()}
    assert states.pop(row_id) == ("P1", "rejected")
    assert sorted(states.values()) == [("P1", "pending"), ("P2", "pending")]


async def test_a_decision_waits_for_an_import_that_writes_to_its_proposal(
    lab: Lab, second: Client
) -> None:
    """It decides on what the import has left, or an author could approve what he has imported."""
    row_id = await lab.propose("ann", code="P1", rank=1)
    async with lab.conn.transaction():
        await lab.conn.execute("LOCK TABLE mdm_data.part IN ROW EXCLUSIVE MODE")
        importing = _import(lab, "bob", {"code": "P1", "rank": 2})
        await _somebody_waits(lab)
        free = await lab.conn.execute("SELECT FROM mdm_data.part__edit FOR UPDATE SKIP LOCKED")
        assert await free.fetchall() == [], "what will be written to is held before it is judged"
        approving = asyncio.create_task(
            lab.through(second).send("bob", "POST", f"part/approve/{row_id}")
        )
        await _somebody_waits(lab, 2)
    assert (await importing).json()["pending"] == 1
    assert problem(await approving) == (403, "APPROVAL_SAME_AUTHOR")
    assert (await lab.pending(row_id))["rank"] == 2


async def test_decisions_and_writes_at_the_same_moment(lab: Lab, second: Client) -> None:
    """Whatever happens to a proposal, its events tell one story."""
    ids = await proposals(lab, 12)
    crowd = Crowd(lab, second)
    answered: Counter[str] = Counter()

    async def act(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            row_id = chance.choice(ids)
            match chance.choice(("approve", "reject", "withdraw", "write", "write")):
                case "write":
                    who, values = chance.choice(("ann", "cat")), {"rank": chance.randrange(99)}
                    answer = await crowd.send(who, "PUT", f"part/data/{row_id}", values)
                    assert answer.status_code in (200, 202, 404)
                    answered["write"] += answer.status_code == 202
                case "withdraw":
                    answer = await crowd.send("bob", "DELETE", f"part/pending/{row_id}")
                    assert answer.status_code in (204, 404)
                    answered["withdraw"] += answer.status_code == 204
                case decision:
                    answer = await crowd.send("bob", "POST", f"part/{decision}/{row_id}")
                    assert answer.status_code in (200, 404), answer.text
                    answered[decision] += answer.status_code == 200

    await asyncio.gather(*(act(n) for n in range(APPROVERS)))
    events = await lab.events()
    told = Counter(
        "withdraw" if (e["detail"] or {}).get("withdrawn") else _DONE_BY[e["action"]]
        for e in events
    )
    assert told == +answered and len(answered) == 4
    for row_id in ids:
        own = [e for e in events if e["id"] == row_id]
        _is_one_story(own)
        await _ends_where_it_stands(lab, row_id, own)


_DONE_BY = {
    "data_edited": "write",
    "data_rejected": "reject",
    "data_created": "approve",
    "data_updated": "approve",
}


def _is_one_story(events: list[dict[str, Any]]) -> None:
    """Each event starts from what the one before it left."""
    pending: Any = None
    is_known = False
    for event in events:
        if event["action"] == "data_edited":
            if is_known and pending is not None:
                assert event["old"] == pending
            pending, is_known = event["new"], True
        else:
            if is_known and pending is not None:
                assert event["new"] == pending, "what was decided on is what was pending"
            pending, is_known = None, True


async def _ends_where_it_stands(lab: Lab, row_id: str, events: list[dict[str, Any]]) -> None:
    written = [e for e in events if e["action"] in ("data_created", "data_updated")]
    row = await lab.row(row_id)
    if written:
        assert (row["rank"], row["_sys_version"]) == (
            written[-1]["new"]["rank"],
            written[-1]["version"],
        )
    last = events[-1] if events else None
    if last and last["action"] == "data_edited":
        assert (await lab.pending(row_id))["rank"] == last["new"]["rank"]


async def test_keys_that_change_while_rows_are_approved_that_refer_to_them(
    lab: Lab, second: Client
) -> None:
    kinds = [await lab.approved("kind", code=f"K{n}") for n in range(4)]
    parts = [await lab.propose("ann", code=f"P{n}", kind=f"K{n % 4}") for n in range(40)]
    for n, row_id in enumerate(kinds):
        await lab.send("ann", "PUT", f"kind/data/{row_id}", {"code": f"L{n}"})
    await lab.forget_events()
    crowd = Crowd(lab, second)
    answers = await asyncio.gather(
        *(crowd.send("bob", "POST", f"part/approve/{row_id}") for row_id in parts[:20]),
        *(crowd.send("bob", "POST", f"kind/approve/{row_id}") for row_id in kinds),
        *(crowd.send("cat", "PUT", f"part/data/{i}", {"rank": 1}) for i in parts[20:]),
        *(crowd.send("cat", "POST", f"part/approve/{row_id}") for row_id in parts[10:20]),
    )
    assert {answer.status_code for answer in answers} <= {200, 202, 404}
    await lab.send("bob", "POST", "part/approve-batch", {"ids": parts})
    cursor = await lab.conn.execute("SELECT code, kind FROM mdm_data.part")
    found = dict(await cursor.fetchall())
    assert found == {f"P{n}": f"L{n % 4}" for n in range(40)}
    created = [e["id"] for e in await lab.events() if e["action"] == "data_created"]
    assert sorted(created) == sorted(parts)
