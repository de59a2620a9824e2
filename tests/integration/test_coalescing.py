"""Requests that share a statement get what each would have got alone, and only that.

64 clients write to the same rows at once: a fifth of their rows is wrong, they want the same keys, they
rely on versions that others replace, and refer to rows that others remove or rename. Afterwards all
that was done is put in the order of the events, and the oracle does it again, one after the other:
each answer must be the oracle's. A refusal must be right at some moment while its request was under
way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.warehouse.names import Schemas
from tests.support import rowlab
from tests.support import warehouses as on
from tests.support.oracle import Answer, Column, Entity, Oracle, Refused, Values
from tests.support.serving import KEY, Client, add_key, served

pytestmark = pytest.mark.anyio
CLIENTS = 64
REQUESTS_EACH = 25
ACTOR, OTHER = "apikey:bootstrap", "apikey:ann"
ROWS_PER_TRANSACTION = 8

CODE = Column(name="code", required=True, pattern="[A-Z][0-9]*", max_length=3)
MARK = Column(name="mark")
REGION = Entity(name="region", columns=(CODE, MARK), history=True)
SITE = Entity(
    name="site",
    columns=(CODE, *rowlab.SITE.columns[1:], MARK),
    sets=rowlab.SITE.sets,
    history=True,
)
ENTITIES = {"region": REGION, "site": SITE}


@dataclass
class Sent:
    """One request, when it was under way on a clock that counts starts and ends, and its answer."""

    method: str
    path: str
    document: Values | None
    if_match: int | None
    request: Callable[[Oracle, str], Answer]
    entity: str
    row_id: str = ""
    actor: str = ACTOR
    started: int = 0
    ended: int = 0
    response: httpx2.Response = field(default_factory=lambda: httpx2.Response(599))

    def do(self, oracle: Oracle) -> Answer:
        return self.request(oracle, self.row_id)

    def __str__(self) -> str:
        said = f"{self.method} {self.path} {self.document} If-Match {self.if_match}"
        return f"{said} -> {self.response.status_code} {self.response.text}"


class Crowd:
    """Clients that work on the rows that any of them has made."""

    def __init__(self, client: Client, seed: int, *, other_key: str = KEY) -> None:
        self.client = client
        self._keys = {ACTOR: KEY, OTHER: other_key}
        self.sent: list[Sent] = []
        self._clock = itertools.count(1)
        self._seed = seed
        self._versions: dict[str, dict[str, int]] = {"region": {}, "site": {}}
        self._names = itertools.count(1)

    async def run(self, clients: int, requests_each: int) -> None:
        chances = [random.Random(f"{self._seed} {number}") for number in range(clients)]
        async with asyncio.TaskGroup() as group:
            for chance in chances:
                group.create_task(self._one_client(chance, requests_each))

    async def _one_client(self, chance: random.Random, requests: int) -> None:
        for _ in range(requests):
            await self._send(self._drawn(chance))

    async def _send(self, sent: Sent) -> None:
        headers = {"X-API-Key": self._keys[sent.actor]}
        if sent.if_match is not None:
            headers["If-Match"] = f'"v{sent.if_match}"'
        content = None if sent.document is None else json.dumps(sent.document).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        self.sent.append(sent)
        sent.started = next(self._clock)
        sent.response = await self.client.request(
            sent.method, f"/api/v1/entities/{sent.path}", content=content, headers=headers
        )
        sent.ended = next(self._clock)
        if sent.response.is_success:
            self._learn(sent)

    def _learn(self, sent: Sent) -> None:
        if sent.response.status_code == 204:
            self._versions[sent.entity].pop(sent.row_id, None)
        else:
            body = sent.response.json()
            sent.row_id = body["_sys_id"]
            self._versions[sent.entity][sent.row_id] = body["_sys_version"]

    # --- what they send ---

    def _drawn(self, chance: random.Random) -> Sent:
        name = chance.choices(("region", "site"), (1, 3))[0]
        known = self._versions[name]
        if len(known) < 4 or chance.random() < 0.4:
            return self._create(name, chance)
        # The same few rows are wanted by all.
        row_id = chance.choice(list(known)[-12:])
        base = known[row_id] if chance.random() < 0.6 else None
        kind = chance.choices(("update", "hard", "soft", "restore"), (6, 2, 1, 1))[0]
        if kind == "update":
            return self._update(name, row_id, base, chance)
        return self._change(name, row_id, base, kind)

    def _create(self, name: str, chance: random.Random) -> Sent:
        given = self._values(name, chance, always=True)
        return Sent(
            "POST", f"{name}/data", given, None,
            lambda o, row_id: o.create(name, given, actor=ACTOR, row_id=row_id),
            name,
        )  # fmt: skip

    def _update(self, name: str, row_id: str, base: int | None, chance: random.Random) -> Sent:
        given = self._values(name, chance, always=False)
        return Sent(
            "PUT", f"{name}/data/{row_id}", given, base,
            lambda o, row_id: o.update(name, row_id, given, actor=ACTOR, if_match=base),
            name, row_id,
        )  # fmt: skip

    def _change(self, name: str, row_id: str, base: int | None, kind: str) -> Sent:
        path = f"{name}/data/{row_id}"
        if kind == "restore":
            return Sent(
                "POST", f"{path}/restore", None, base,
                lambda o, row_id: o.restore(name, row_id, actor=ACTOR, if_match=base),
                name, row_id,
            )  # fmt: skip
        soft = kind == "soft"
        return Sent(
            "DELETE", path + ("?soft=true" if soft else ""), None, base,
            lambda o, row_id: o.delete(name, row_id, soft=soft, actor=ACTOR, if_match=base),
            name, row_id,
        )  # fmt: skip

    def _values(self, name: str, chance: random.Random, *, always: bool) -> Values:
        found: Values = {"mark": f"m{next(self._names)}"}
        codes = 12 if name == "region" else 90
        if always or chance.random() < 0.15:
            found["code"] = f"{'RS'[name == 'site']}{chance.randrange(codes)}"
        if name == "site":
            found |= {
                "region": f"R{chance.randrange(12)}" if chance.random() < 0.5 else None,
                "slot": chance.randrange(99),
                "email": f"{chance.randrange(200)}@x" if chance.random() < 0.5 else None,
                "level": chance.randrange(10),
            }
        if chance.random() < 0.2:
            found |= chance.choice(_WRONG[name])
        if not always and chance.random() < 0.1:
            return {}
        return found


class ProposingCrowd(Crowd):
    """The same where changes wait for approval: one proposes, mostly the other decides."""

    def _drawn(self, chance: random.Random) -> Sent:
        name = chance.choices(("region", "site"), (1, 3))[0]
        known = self._versions[name]
        if len(known) < 4 or chance.random() < 0.3:
            return self._proposing(self._create(name, chance))
        row_id = chance.choice(list(known)[-12:])
        if chance.random() < 0.5:
            sent = self._update(name, row_id, None, chance)
            return self._proposing(sent) if sent.document else self._drawn(chance)
        return self._decision(name, row_id, chance)

    def _proposing(self, sent: Sent) -> Sent:
        """Let the other one send it. A region keeps its code: who refers to it has no event then."""
        given = sent.document or {}
        if sent.method == "PUT" and sent.entity == "region":
            given.pop("code", None)
        sent.actor = OTHER
        name = sent.entity
        if sent.method == "POST":
            sent.request = lambda o, row_id: o.create(name, given, actor=OTHER, row_id=row_id)
        else:
            sent.request = lambda o, row_id: o.update(name, row_id, given, actor=OTHER)
        return sent

    def _decision(self, name: str, row_id: str, chance: random.Random) -> Sent:
        actor = chance.choices((ACTOR, OTHER), (5, 1))[0]
        if chance.random() < 0.7:
            return Sent(
                "POST", f"{name}/approve/{row_id}", None, None,
                lambda o, row_id: o.approve(name, row_id, actor=actor),
                name, row_id, actor,
            )  # fmt: skip
        return Sent(
            "POST", f"{name}/reject/{row_id}", None, None,
            lambda o, row_id: o.reject(name, row_id, actor=actor, comment=None),
            name, row_id, actor,
        )  # fmt: skip


_WRONG: dict[str, list[Values]] = {
    "region": [{"code": "x"}, {"code": None}, {"nope": 1}, {"mark": 7}],
    "site": [
        {"level": 99},
        {"kind": "huge"},
        {"code": "lower"},
        {"region": "R99"},
        {"due": "2026-02-30", "price": "dear"},
        {"_sys_version": 1},
    ],
}


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with on.opened(database_url) as conn:
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        yield conn


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    await on.apply(conn, rowlab.definitions(ENTITIES.values(), []))
    async with served(_app(database_url)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


def _app(database_url: str) -> Starlette:
    settings = Settings(RateLimit=RateLimitSettings(Enabled=False))
    return create_app(database_url=database_url, settings=settings)


# Where the values of a row are of no request alone, its version tells the request; a proposal has none.
_DONE = """
SELECT e.record_id::text, e.action, CASE WHEN e.action IN ('data_edited', 'data_rejected')
           OR %(by_mark)s THEN e.new ->> 'mark' WHEN e.new IS NOT NULL THEN e.version::text END,
       max(s.seq) OVER (PARTITION BY e.xmin::text) AS position, e.ordinal
  FROM mdm.event e JOIN mdm.change_set s ON s.key = e.change_set
 ORDER BY position, s.seq, e.ordinal
"""


async def in_order(
    conn: AsyncConnection[Any], sent: list[Sent], *, by_mark: bool = False
) -> list[Sent]:
    """Return the requests that had an effect, in the order of their transactions."""
    # An update of nothing has no event; any other one brings a mark of its own.
    changes = [each for each in sent if each.response.is_success and each.document != {}]
    by_event = {_event_of(each, by_mark=by_mark): each for each in changes}
    rows = await (await conn.execute(_DONE, {"by_mark": by_mark})).fetchall()
    found = [by_event.get(tuple(key)) for *key, _position, _ordinal in rows]
    assert len({id(each) for each in found if each}) == len(changes), "each has its event"
    return list({id(each): each for each in found if each is not None}.values())


def _event_of(sent: Sent, *, by_mark: bool) -> tuple[str, str, str | None]:
    if sent.response.status_code == 204:
        return sent.row_id, "data_deleted", None
    body = sent.response.json()
    told = body["mark"] if by_mark else str(body["_sys_version"])
    return sent.row_id, _action_of(sent, body["_sys_version"]), told


def _action_of(sent: Sent, version: int) -> str:
    if sent.response.status_code == 202:
        return "data_edited"
    if "/reject/" in sent.path:
        return "data_rejected"
    if sent.path.endswith("/restore"):
        return "data_restored"
    if sent.path.endswith("soft=true"):
        return "data_soft_deleted"
    return "data_created" if version == 1 else "data_updated"


def contradictions(
    done: list[Sent], sent: list[Sent], entities: Mapping[str, Entity] = ENTITIES
) -> list[str]:
    """Do all of *done* again in the oracle; say which answers of *sent* it would not have given."""
    oracle = Oracle(*entities.values())
    rest = [each for each in sent if not any(each is other for other in done)]
    bounds = {id(each): _bounds(each, done) for each in rest}
    found = []
    for position in range(len(done) + 1):
        under_way = [
            each for each in rest if bounds[id(each)][0] <= position <= bounds[id(each)][1]
        ]
        explained = {id(each) for each in under_way if _is_right(each, oracle)}
        rest = [each for each in rest if id(each) not in explained]
        if position < len(done):
            found += _done_again(done[position], oracle)
    return found + [f"never right: {each}" for each in rest]


def _bounds(sent: Sent, done: list[Sent]) -> tuple[int, int]:
    """Return between which effects the request was judged: all that had ended before it began, and
    none that began after it ended."""
    before = next((n for n, each in enumerate(done) if each.ended > sent.started), len(done))
    after = max((n + 1 for n, each in enumerate(done) if each.started < sent.ended), default=0)
    return before, after


def _is_right(sent: Sent, oracle: Oracle) -> bool:
    """Whether the answer, which had no effect, is what the oracle says now."""
    outcome = oracle.would(sent.do)
    if isinstance(outcome, Refused):
        refused = not sent.response.is_success
        return refused and not rowlab.refusal_differences(
            rowlab.parsed(sent.response.content), outcome
        )
    return isinstance(outcome, Answer) and not _differences(sent, outcome)


def _done_again(sent: Sent, oracle: Oracle) -> list[str]:
    try:
        answer = sent.do(oracle)
    except Refused as refusal:
        return [f"should have been refused ({refusal}): {sent}"]
    wrong = _differences(sent, answer)
    return [f"{'; '.join(wrong)}: {sent}"] if wrong else []


def _differences(sent: Sent, answer: Answer) -> list[str]:
    if answer.status != sent.response.status_code:
        return [f"should have been {answer.status}"]
    if answer.status == 204:
        return []
    body, entity = rowlab.parsed(sent.response.content), ENTITIES[sent.entity]
    if answer.row is not None:
        return rowlab.differences(entity, body, answer.row)
    assert answer.proposal is not None
    return rowlab.proposal_differences(entity, body, answer.proposal)


async def _transactions(conn: AsyncConnection[Any]) -> int:
    """Return how many transactions have written the regions: those of others in the server, whom
    the numbers of transactions count too, do not matter."""
    query = "SELECT count(DISTINCT xmin::text) FROM mdm_data.region"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def test_each_caller_gets_what_it_would_have_got_alone(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    crowd = Crowd(client, seed=1)
    await crowd.run(CLIENTS, REQUESTS_EACH)
    codes = Counter(_outcome(each.response) for each in crowd.sent)
    done = await in_order(conn, crowd.sent)
    found = contradictions(done, crowd.sent)
    assert not found, "\n".join(found)
    assert len(done) > 0.3 * len(crowd.sent), codes
    for code in (
        "ENTITY_VALIDATION_UNIQUE",
        "ENTITY_VALIDATION_REFERENCE",
        "ENTITY_VALIDATION_RANGE",
        "ROW_KEY_DELETED",
        "ROW_VERSION_CONFLICT",
        "ROW_REFERENCED",
        "ROW_NOT_FOUND",
        "ROW_DELETED",
    ):
        assert codes[code] >= 5, codes


def _outcome(response: httpx2.Response) -> str:
    return "done" if response.is_success else str(response.json()["code"])


async def test_the_same_for_proposals_and_decisions(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    entities = {name: replace(entity, approval=True) for name, entity in ENTITIES.items()}
    await on.apply(conn, rowlab.definitions(entities.values(), [OTHER]))
    key = await add_key(conn, OTHER.removeprefix("apikey:"))
    async with served(_app(database_url)) as client:
        crowd = ProposingCrowd(client, seed=3, other_key=key)
        await crowd.run(CLIENTS, REQUESTS_EACH // 2)
    codes = Counter(_outcome(each.response) for each in crowd.sent)
    done = await in_order(conn, crowd.sent, by_mark=True)
    found = contradictions(done, crowd.sent, entities)
    assert not found, "\n".join(found)
    assert len(done) > 0.3 * len(crowd.sent), codes
    for code in ("PENDING_NOT_FOUND", "APPROVAL_SAME_AUTHOR", "ENTITY_VALIDATION_UNIQUE"):
        assert codes[code] >= 5, codes


async def test_answers_that_were_mixed_up_are_found(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    """The negative control of the comparison."""
    crowd = Crowd(client, seed=2)
    await crowd.run(16, 20)
    done = await in_order(conn, crowd.sent)
    assert contradictions(done, crowd.sent) == []
    created = [each for each in done if each.method == "POST" and each.entity == "site"]
    refused = {_outcome(each.response): each for each in crowd.sent}
    for one, other in (
        (created[0], created[1]),  # each the other's row
        (refused["ENTITY_VALIDATION_UNIQUE"], created[2]),  # a refusal for a row
        (refused["ROW_NOT_FOUND"], refused["ROW_VERSION_CONFLICT"]),
    ):
        one.response, other.response = other.response, one.response
        assert contradictions(done, crowd.sent) != []
        one.response, other.response = other.response, one.response
    created[0].response = httpx2.Response(200, content=created[0].response.content)
    assert len(contradictions(done, crowd.sent)) == 1


async def test_a_crowd_shares_transactions(client: Client, conn: AsyncConnection[Any]) -> None:
    """64 clients that do not get into each other's way, a fifth of their rows wrong; and one."""

    async def work(number: int) -> list[int]:
        rows = [{"code": f"{'ABCDEFGH'[number % 8]}{number // 8}{n}"} for n in range(10)]
        rows[3]["code"] = rows[7]["code"] = "wrong"
        path = "/api/v1/entities/region/data"
        return [(await client.post(path, json=row)).status_code for row in rows]

    assert (await work(CLIENTS)).count(201) == 8
    alone = await _transactions(conn)
    answers = await asyncio.gather(*(work(number) for number in range(CLIENTS)))
    together = await _transactions(conn) - alone
    counts = Counter(itertools.chain(*answers))
    assert counts == {201: 8 * CLIENTS, 400: 2 * CLIENTS}
    assert alone == 8
    assert together * ROWS_PER_TRANSACTION < counts[201], (alone, together)
