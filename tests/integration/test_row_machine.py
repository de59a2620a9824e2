"""A random client and the oracle, side by side: after each request both must say and hold the same.

Hypothesis draws requests to two entities, one referring to the other, with approval and history on
and off. Each request goes over HTTP to a real warehouse and to ``tests.support.oracle``. After each
step the answer, the row that was touched and the events that were recorded are compared; every few
steps the lists, counts, proposals, versions and the past at remembered moments. The same requests in
each run; a soak draws new ones.

The rules stand in one class, because Hypothesis draws the next request from the rules of one machine.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import secrets
import uuid
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any, ClassVar

import httpx2
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.support import rowlab
from tests.support import warehouses as on
from tests.support.oracle import (
    Answer,
    Entity,
    Event,
    Oracle,
    Proposal,
    Refused,
    Row,
    Values,
    Version,
)
from tests.support.rowlab import parsed
from tests.support.serving import KEY, add_key, served

STEPS_PER_RUN = 50
RUNS = 5  # for each of the four combinations: 1,000 steps
SOAK_PARTS = 25
SOAK_RUNS = 20  # 4 combinations x 25 parts x 20 runs x 50 steps: 100,000
LOOK_EVERY = 8  # steps
SHRINK = bool(os.environ.get("MDM_SHRINK"))  # minutes, but then the failure is a few steps long
WRITERS = ("ann", "bob")
# A seed is drawn, not each value: Hypothesis likes simple values, and to repeat itself.
SEEDS = st.integers(0, 2**64)
ENTITIES = ("region", "site")


class Lab:
    """The served application over a warehouse of its own, and the tables behind it."""

    def __init__(self, url: str, entities: tuple[Entity, ...]) -> None:
        self.entities = entities
        self.by_name = {entity.name: entity for entity in entities}
        self._runner = asyncio.Runner()
        self._keys = self._runner.run(self._deployed(url))
        limits = RateLimitSettings(Enabled=False)
        self._app = served(create_app(database_url=url, settings=Settings(RateLimit=limits)))
        self._client = self._runner.run(self._app.__aenter__())
        self._conn = psycopg.connect(url, autocommit=True)
        found = self._conn.execute("SELECT name, entity_id FROM mdm.entity")
        self.entity_ids: dict[str, int] = dict(found.fetchall())

    async def _deployed(self, url: str) -> dict[str, str]:
        definitions = rowlab.definitions(self.entities, [f"apikey:{name}" for name in WRITERS])
        async with on.opened(url) as conn:
            await on.apply(conn, definitions)
            await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
            return {name: await add_key(conn, name) for name in WRITERS}

    def close(self) -> None:
        self._conn.close()
        self._runner.run(self._app.__aexit__(None, None, None))
        self._runner.close()

    def empty(self) -> None:
        """Remove all rows, versions and proposals; the events stay."""
        names = self._conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'mdm_data'")
        tables = ", ".join(f'mdm_data."{name}"' for (name,) in names)
        self._conn.execute(f"TRUNCATE {tables}")

    def send(
        self, who: str, method: str, path: str, document: Any = None, **more: Any
    ) -> httpx2.Response:
        headers = {"X-API-Key": self._keys[who], **more.pop("headers", {})}
        if document is not None:
            more["content"] = json.dumps(document).encode()
            headers["Content-Type"] = "application/json"
        request = self._client.request(method, f"/api/v1/entities/{path}", headers=headers, **more)
        response = self._runner.run(request)
        if method != "GET":
            asked = f"{method} {response.request.url.raw_path.decode()} {more.get('content')!r}"
            note(f"{asked} -> {response.status_code} {response.text}")
        assert response.status_code < 500, f"{method} {path}: {response.text}"
        return response

    def upload(
        self,
        who: str,
        name: str,
        rows: list[Values],
        params: dict[str, str],
        *,
        is_csv: bool,
        headers: dict[str, str],
    ) -> httpx2.Response:
        path = f"{name}/data/{'bulk-csv' if is_csv else 'bulk'}"
        if not is_csv:
            return self.send(who, "POST", path, rows, params=params, headers=headers)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        headers = {**headers, "Content-Type": "text/csv"}
        return self.send(who, "POST", path, content=text.getvalue(), params=params, headers=headers)

    def now(self) -> str:
        query = "SELECT replace((clock_timestamp() AT TIME ZONE 'UTC')::text, ' ', 'T') || 'Z'"
        (moment,) = self._conn.execute(query).fetchone() or ("",)
        return str(moment)

    def last_event(self) -> int:
        (last,) = self._conn.execute(
            "SELECT coalesce(max(seq), 0) FROM mdm.change_set"
        ).fetchone() or (0,)
        return int(last)

    def events_after(self, seq: int) -> list[Event]:
        """Return what was recorded since, each set in its order."""
        query = """SELECT e.entity_id, e.record_id::text, e.action, coalesce(e.actor, s.actor),
                          e.version, e.old::text, e.new::text
                     FROM mdm.change_set s JOIN mdm.event e ON e.change_set = s.key
                    WHERE s.seq > %s ORDER BY s.seq, e.ordinal"""
        names = {number: name for name, number in self.entity_ids.items()}
        return [
            Event(names[number], record, action, actor, version, self._own(names[number], old), self._own(names[number], new))
            for number, record, action, actor, version, old, new in self._conn.execute(query, [seq])
        ]  # fmt: skip

    def _own(self, name: str, text: str | None) -> Values | None:
        if text is None:
            return None
        found = parsed(text)
        assert set(found) == set(self.by_name[name].by_name), "an event holds the row's own columns"
        return rowlab.own_values(self.by_name[name], found)


class RowMachine(RuleBasedStateMachine):
    """Sends requests; ``lab`` is set by whoever runs it."""

    lab: ClassVar[Lab]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.lab.empty()
        self.oracle = Oracle(*self.lab.entities)
        self.known: dict[str, list[str]] = {name: [] for name in ENTITIES}
        self.moments: list[tuple[str, dict[str, dict[str, Version]]]] = []
        self.created_at: dict[str, str] = {}
        self.seq = self.lab.last_event()
        self.told = 0
        self.step = 0

    # --- the requests ---

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        chance = self.chance(seed)
        for name in ("region", "region", "region", "site", "site", "site", "site"):
            self._create(name, chance)
        for name in ENTITIES:
            for row_id in self.known[name] if self.lab.by_name[name].approval else ():
                author = self.oracle.proposals[name][row_id].author
                other = next(who for who in WRITERS if not author.endswith(who))
                self._decide("approve", name, row_id, other, None)

    @rule(seed=SEEDS)
    def create(self, seed: int) -> None:
        chance = self.chance(seed)
        self._create(chance.choice(ENTITIES), chance)

    def _create(self, name: str, chance: Random) -> None:
        who = chance.choice(WRITERS)
        given = rowlab.values(self.lab.by_name[name], chance, create=True)
        response = self.lab.send(who, "POST", f"{name}/data", given)
        row_id = response.json()["_sys_id"] if response.is_success else str(uuid.uuid4())
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.create(name, given, actor=f"apikey:{who}", row_id=row_id),
        )
        if response.is_success:
            self.known[name].append(row_id)
            location = response.headers["location"].partition("?state=pending")[0]
            assert location.endswith(f"/api/v1/entities/{name}/data/{row_id}")

    @rule(seed=SEEDS)
    def update(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.picked(chance)
        given = rowlab.values(self.lab.by_name[name], chance, create=False)
        base, verb = self.version(name, row_id, chance), chance.choice(("PUT", "PATCH"))
        path = f"{name}/data/{row_id}"
        response = self.lab.send(who, verb, path, given, headers=_if_match(base))
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.update(name, row_id, given, actor=f"apikey:{who}", if_match=base),
        )

    @rule(seed=SEEDS)
    def delete(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.picked(chance)
        base, soft = self.version(name, row_id, chance), chance.random() < 0.6
        path, params = f"{name}/data/{row_id}", {"soft": "true"} if soft else {}
        response = self.lab.send(who, "DELETE", path, headers=_if_match(base), params=params)
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.delete(name, row_id, soft=soft, actor=f"apikey:{who}", if_match=base),
        )

    @precondition(lambda self: self.has_deleted or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def restore(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.picked(chance, deleted=True)
        base = self.version(name, row_id, chance)
        path = f"{name}/data/{row_id}/restore"
        response = self.lab.send(who, "POST", path, headers=_if_match(base))
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.restore(name, row_id, actor=f"apikey:{who}", if_match=base),
        )

    @precondition(lambda self: self.history or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def restore_version(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.picked(chance)
        row = self.oracle.rows[name].get(row_id)
        number = chance.randint(1, row.now.number if row else 2) + (chance.random() < 0.1)
        base = self.version(name, row_id, chance)
        path, document = f"{name}/versions/{row_id}/restore", {"version": number}
        response = self.lab.send(who, "POST", path, document, headers=_if_match(base))
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.restore_version(name, row_id, number, actor=f"apikey:{who}", if_match=base),
        )

    @precondition(lambda self: self.has_proposals or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def approve(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.proposed(chance)
        self._decide("approve", name, row_id, who, None)

    @precondition(lambda self: self.has_proposals or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def reject(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.proposed(chance)
        self._decide("reject", name, row_id, who, chance.choice((None, "because")))

    @precondition(lambda self: self.has_proposals or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def withdraw(self, seed: int) -> None:
        chance = self.chance(seed)
        name, row_id, who = self.proposed(chance)
        self._decide("withdraw", name, row_id, who, None)

    def _decide(self, decision: str, name: str, row_id: str, who: str, comment: str | None) -> None:
        document, actor = None if comment is None else {"comment": comment}, f"apikey:{who}"
        if decision == "withdraw":
            response = self.lab.send(who, "DELETE", f"{name}/pending/{row_id}")
        else:
            response = self.lab.send(who, "POST", f"{name}/{decision}/{row_id}", document)
        requests: dict[str, Callable[[Oracle], Answer]] = {
            "approve": lambda o: o.approve(name, row_id, actor=actor),
            "reject": lambda o: o.reject(name, row_id, actor=actor, comment=comment),
            "withdraw": lambda o: o.withdraw(name, row_id, actor=actor),
        }
        self.compare(response, name, row_id, requests[decision])

    @precondition(lambda self: self.has_proposals or self.is_asked_anyway)
    @rule(seed=SEEDS)
    def decide_batch(self, seed: int) -> None:
        chance = self.chance(seed)
        decision = chance.choice(("approve", "approve", "reject"))
        name, first, who = self.proposed(chance)
        others = [self.proposed(chance, name)[1] for _ in range(chance.randrange(4))]
        row_ids = [first, *others]
        chosen: Values = {"ids": row_ids}
        standing = self.oracle.proposals[name].get(first)
        if standing is not None and standing.batch and chance.random() < 0.7:
            waiting = self.oracle.pending(name)
            row_ids = [i for i, proposal in waiting.items() if proposal.batch == standing.batch]
            chosen = {"batchName": standing.batch}
        response = self.lab.send(who, "POST", f"{name}/{decision}-batch", chosen)

        def one(row_id: str) -> Answer:
            if decision == "approve":
                return self.oracle.approve(name, row_id, actor=f"apikey:{who}")
            return self.oracle.reject(name, row_id, actor=f"apikey:{who}", comment=None)

        try:
            failed = self.oracle.decide_batch(name, row_ids, one)
        except Refused as refusal:
            self.refused(response, refusal)
        else:
            self.seen[f"batch {decision}"] += 1
            self.seen.update(f"batch: {code}" for code in failed.values())
            assert _outcome_differences(response, row_ids, failed, decision) == []
        self.compare_events()
        self.compare_row(name, first)
        self.next_step()

    @rule(seed=SEEDS)
    def bulk(self, seed: int) -> None:
        chance = self.chance(seed)
        name, who = chance.choice(ENTITIES), chance.choice(WRITERS)
        mode, key = chance.choice(("insert", "upsert")), "code"
        if mode == "upsert" and name == "site" and chance.random() < 0.2:
            key = "email"
        entity, is_csv = self.lab.by_name[name], chance.random() < 0.5
        rows = [rowlab.values(entity, chance, create=True) for _ in range(chance.randint(1, 6))]
        if is_csv:
            rows = _as_csv(entity, rows)
        if missing := _missing(entity, rows, mode, key) if is_csv else []:
            self._refused_import(who, name, rows, mode=mode, key=key, missing=missing)
        else:
            self._import(chance, who, name, rows, mode=mode, key=key, is_csv=is_csv)

    def _refused_import(
        self, who: str, name: str, rows: list[Values], *, mode: str, key: str, missing: list[str]
    ) -> None:
        params = {"mode": mode, "keyColumns": key}
        response = self.lab.upload(who, name, rows, params, is_csv=True, headers={})
        code = "REQUEST_INVALID" if mode == "upsert" else "ENTITY_VALIDATION_REQUIRED_FIELD"
        problem = parsed(response.content)
        assert (response.status_code, problem["code"]) == (400, code), response.text
        assert all(column in problem["detail"] for column in missing), response.text
        self.seen["import refused"] += 1
        self.compare_events()
        self.next_step()

    def _import(
        self,
        chance: Random,
        who: str,
        name: str,
        rows: list[Values],
        *,
        mode: str,
        key: str,
        is_csv: bool,
    ) -> None:
        params = {"mode": mode, **({"keyColumns": key} if key != "code" else {})}
        if chance.random() < 0.3:
            params["batchName"] = "monday"
        if chance.random() < 0.15:
            params["dryRun"] = "true"
        again = {"Idempotency-Key": str(uuid.uuid4())}  # the database outlives the run
        response = self.lab.upload(who, name, rows, params, is_csv=is_csv, headers=again)
        assert response.status_code == 200, response.text
        answer = parsed(response.content)
        is_named = self.lab.by_name[name].approval or "batchName" in params
        assert bool(answer["batchName"]) == is_named
        oracle = deepcopy(self.oracle) if "dryRun" in params else self.oracle
        new = {e.new["code"]: e.row for e in self.lab.events_after(self.seq) if e.new}
        imported = oracle.bulk(
            name,
            rows,
            mode=mode,
            key=(key,),
            actor=f"apikey:{who}",
            batch=answer["batchName"],
            new_id=lambda given: new.get(given["code"], str(uuid.uuid4())),
            told={error["row"] for error in answer["errors"]},
        )
        self.seen[f"import {mode} {'csv' if is_csv else 'json'}"] += 1
        self.seen.update(f"row: {error['code']}" for error in answer["errors"])
        assert rowlab.import_differences(answer, imported) == []
        if chance.random() < 0.3:
            repeated = self.lab.upload(who, name, rows, params, is_csv=is_csv, headers=again)
            assert repeated.content == response.content
        self.known[name] += [i for i in new.values() if i not in self.known[name]]
        self.compare_events()
        self._compare_list(name, "all")
        self._compare_pending(name)
        self.next_step()

    # --- comparing ---

    def compare(
        self,
        response: httpx2.Response,
        name: str,
        row_id: str,
        request: Callable[[Oracle], Answer],
    ) -> None:
        """Let the oracle do the same, and compare answer, row and events."""
        try:
            answer = request(self.oracle)
        except Refused as refusal:
            self.refused(response, refusal)
        else:
            self.seen[f"answered {answer.status}"] += 1
            assert response.status_code == answer.status, response.text
            self._compare_answer(response, name, answer)
        self.compare_events()
        self.compare_row(name, row_id)
        self._compare_versions(name, row_id)
        self.next_step()

    def refused(self, response: httpx2.Response, refusal: Refused) -> None:
        assert not response.is_success, f"expected to be refused: {refusal}"
        self.seen[parsed(response.content)["code"]] += 1
        assert rowlab.refusal_differences(parsed(response.content), refusal) == []

    def next_step(self) -> None:
        self.step += 1
        self.seen["steps"] += 1
        if self.step % LOOK_EVERY == 0:
            self.look_around()

    def _compare_answer(self, response: httpx2.Response, name: str, answer: Answer) -> None:
        entity = self.lab.by_name[name]
        if answer.row is not None:
            assert rowlab.differences(entity, parsed(response.content), answer.row) == []
            assert response.headers["etag"] == f'"v{answer.row.number}"'
        elif answer.proposal is not None:
            body = parsed(response.content)
            assert rowlab.proposal_differences(entity, body, answer.proposal) == []

    def compare_events(self) -> None:
        expected = self.oracle.events[self.told :]
        self.told = len(self.oracle.events)
        found = self.lab.events_after(self.seq)
        self.seen.update(event.action for event in found)
        self.seq = self.lab.last_event()
        assert sorted(found, key=_order) == sorted(expected, key=_order)

    def compare_row(self, name: str, row_id: str) -> None:
        response = self.lab.send("ann", "GET", f"{name}/data/{row_id}")
        row = self.oracle.rows[name].get(row_id)
        if row is None:
            assert (response.status_code, parsed(response.content)["code"]) == (
                404,
                "ROW_NOT_FOUND",
            )
            return
        assert response.status_code == 200, response.text
        assert response.headers["etag"] == f'"v{row.now.number}"'
        self._is(name, parsed(response.content), row)

    def _is(self, name: str, body: dict[str, Any], row: Row) -> None:
        assert rowlab.differences(self.lab.by_name[name], body, row.now) == []
        assert body["_sys_created_by"] == row.created_by
        assert body["_sys_created_at"] == self.created_at.setdefault(
            body["_sys_id"], body["_sys_created_at"]
        )
        assert (body["_sys_deleted_at"] is not None) == row.now.deleted
        assert body["_sys_created_at"] <= body["_sys_last_modified_at"]

    def _compare_versions(self, name: str, row_id: str) -> None:
        response = self.lab.send("bob", "GET", f"{name}/versions/{row_id}")
        try:
            versions = self.oracle.versions(name, row_id)
        except Refused as refusal:
            assert rowlab.refusal_differences(parsed(response.content), refusal) == []
            return
        items = parsed(response.content)["items"]
        assert [item["version"] for item in items] == [v.number for v in reversed(versions)]
        ends = None if row_id in self.oracle.rows[name] else items[0]["validTo"]
        for item, version in zip(items, reversed(versions), strict=True):
            assert rowlab.differences(self.lab.by_name[name], item["row"], version) == []
            assert (item["action"], item["changedBy"]) == (version.action, version.by)
            # No gap and no overlap: each begins where the one before ends.
            assert item["validTo"] == ends
            assert item["validFrom"] == item["row"]["_sys_last_modified_at"]
            ends = item["validFrom"]

    # --- every few steps ---

    def look_around(self) -> None:
        for name in ENTITIES:
            for state in ("active", "deleted", "all"):
                self._compare_list(name, state)
            self._compare_pending(name)
        self._compare_past()
        everything = {name: self._images(name) for name in ENTITIES}
        self.moments.append((self.lab.now(), everything))

    def _images(self, name: str) -> dict[str, Version]:
        return {row_id: row.now for row_id, row in self.oracle.rows[name].items()}

    def _compare_pending(self, name: str) -> None:
        params = {"state": "pending", "count": "true", "take": "1000"}
        page = parsed(self.lab.send("bob", "GET", f"{name}/data", params=params).content)
        self._are_proposals(name, page, page["items"], self.oracle.pending(name))
        params["state"] = "all"
        page = parsed(self.lab.send("ann", "GET", f"{name}/pending", params=params).content)
        rows = [item["row"] for item in page["items"]]
        self._are_proposals(name, page, rows, self.oracle.proposals[name])
        for item in page["items"]:
            proposal = self.oracle.proposals[name][item["id"]]
            assert item["changes"] == self.oracle.changes(name, item["id"])
            assert item["isStale"] == self.oracle.is_stale(name, item["id"])
            assert (item["baseVersion"], item["comment"]) == (proposal.base, proposal.comment)
        self._compare_batches(name)

    def _compare_batches(self, name: str) -> None:
        items = parsed(self.lab.send("bob", "GET", f"{name}/pending/batches").content)["items"]
        batches = [p.batch for p in self.oracle.pending(name).values() if p.batch]
        assert {item["batchName"]: item["count"] for item in items} == Counter(batches)

    def _are_proposals(
        self,
        name: str,
        page: dict[str, Any],
        rows: list[dict[str, Any]],
        expected: dict[str, Proposal],
    ) -> None:
        found = {row["_sys_id"]: row for row in rows}
        assert set(found) == set(expected)
        assert page["totalCount"] == len(expected)
        for row_id, body in found.items():
            entity = self.lab.by_name[name]
            assert rowlab.proposal_differences(entity, body, expected[row_id]) == []

    def _compare_past(self) -> None:
        """Ask for the lists of a few moments that are remembered."""
        for moment, everything in self.moments[:: max(1, len(self.moments) // 2)]:
            for name in ENTITIES:
                self._compare_moment(name, moment, everything[name])

    def _compare_moment(self, name: str, moment: str, images: dict[str, Version]) -> None:
        params = {"asOfUtc": moment, "count": "true", "take": "1000"}
        response = self.lab.send("ann", "GET", f"{name}/data", params=params)
        if not self.lab.by_name[name].history:
            assert parsed(response.content)["code"] == "HISTORY_NOT_ENABLED"
            return
        page = parsed(response.content)
        expected = {row_id: image for row_id, image in images.items() if not image.deleted}
        found = {body["_sys_id"]: body for body in page["items"]}
        assert set(found) == set(expected), moment
        assert page["totalCount"] == len(expected)
        for row_id, body in found.items():
            assert rowlab.differences(self.lab.by_name[name], body, expected[row_id]) == []

    def _compare_list(self, name: str, state: str) -> None:
        params = {"state": state, "count": "true", "take": "1000"}
        page = parsed(self.lab.send("ann", "GET", f"{name}/data", params=params).content)
        expected = {
            row_id: row
            for row_id, row in self.oracle.rows[name].items()
            if state == "all" or row.now.deleted == (state == "deleted")
        }
        found = {body["_sys_id"]: body for body in page["items"]}
        assert set(found) == set(expected), (name, state)
        assert page["totalCount"] == len(page["items"]) == len(expected)
        for row_id, body in found.items():
            self._is(name, body, expected[row_id])

    # --- choosing ---

    def chance(self, seed: int) -> Random:
        return Random(f"{seed} {self.step}")

    @property
    def has_proposals(self) -> bool:
        return any(self.oracle.proposals.values())

    @property
    def has_deleted(self) -> bool:
        rows = (row for name in ENTITIES for row in self.oracle.rows[name].values())
        return any(row.now.deleted for row in rows)

    @property
    def history(self) -> bool:
        return self.lab.entities[0].history

    @property
    def is_asked_anyway(self) -> bool:
        """Whether to ask now for what the entities do not have."""
        return self.step % 20 == 7

    def picked(self, chance: Random, *, deleted: bool = False) -> tuple[str, str, str]:
        """Return an entity, a row that mostly is there, and who asks."""
        name, who = chance.choice(ENTITIES), chance.choice(WRITERS)
        rows = self.oracle.rows[name]
        present = [*rows, *self.oracle.proposals[name]]
        if deleted:
            present = [row_id for row_id, row in rows.items() if row.now.deleted] or present
        if present and chance.random() < 0.9:
            return name, chance.choice(present), who
        return name, chance.choice([*self.known[name], str(uuid.UUID(int=7))]), who

    def proposed(self, chance: Random, name: str = "") -> tuple[str, str, str]:
        """Return an entity, a row that mostly has a proposal, and who asks: mostly another one."""
        name = name or chance.choice(ENTITIES)
        waiting = self.oracle.proposals[name]
        if not waiting or chance.random() < 0.1:
            known = [*self.known[name], str(uuid.UUID(int=7))]
            return name, chance.choice(known), chance.choice(WRITERS)
        row_id = chance.choice(list(waiting))
        author = waiting[row_id].author.removeprefix("apikey:")
        others = [who for who in WRITERS if who != author]
        return name, row_id, chance.choice((author, *others * 4))

    def version(self, name: str, row_id: str, chance: Random) -> int | None:
        """Return what If-Match says: mostly nothing, else the version that holds or another."""
        row = self.oracle.rows[name].get(row_id)
        number = row.now.number if row else 0
        return chance.choice((None, None, None, number, number, number + 1))


def _as_csv(entity: Entity, rows: list[Values]) -> list[Values]:
    """Return *rows* as a file of CSV says them: texts, all with the same columns."""
    names = [name for name in entity.by_name if any(name in row for row in rows)]
    filler = "rank" if entity.name == "region" else "due"
    if len(names) < 2 and filler not in names:  # an empty line is no row
        names.append(filler)
    return [{name: _as_text(row.get(name)) for name in names} for row in rows]


def _missing(entity: Entity, rows: list[Values], mode: str, key: str) -> list[str]:
    """Return the columns without which a header is refused: those that each new row must have, or
    that by which rows are found."""
    needed = [c.name for c in entity.columns if c.required and c.default is None]
    return [name for name in ([key] if mode == "upsert" else needed) if name not in rows[0]]


def _as_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value) if value in (True, False) else str(value)


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"v{version}"'}


def _outcome_differences(
    response: httpx2.Response, row_ids: list[str], failed: dict[str, str], decision: str
) -> list[str]:
    """Say how the outcome of a batch differs from what it must be."""
    body, rows = parsed(response.content), dict.fromkeys(row_ids)
    word = "approved" if decision == "approve" else "rejected"
    counts = {"approved": 0, "rejected": 0, "failed": len(failed), "resultsTruncated": False}
    counts[word] = len(rows) - len(failed)
    found = [f"{name} is {body[name]}" for name, number in counts.items() if body[name] != number]
    results = {each["id"]: each for each in body["results"]}
    if set(results) != set(rows) or len(body["results"]) != len(rows):
        return [*found, f"results are {body['results']}"]
    for row_id, result in results.items():
        codes = failed.get(row_id, "").split("|")
        if (
            result["status"] != ("failed" if row_id in failed else word)
            or result.get("code", "") not in codes
        ):
            found.append(f"{row_id} is {result}, expected {codes}")
    return found


def _order(event: Event) -> tuple[str, str, int, str]:
    return event.entity, event.row, event.version, event.action


COMBINATIONS = [(history, approval) for history in (False, True) for approval in (False, True)]


def _settings(runs: int) -> settings:
    return settings(
        max_examples=runs,
        stateful_step_count=STEPS_PER_RUN,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if SHRINK else [])),
        suppress_health_check=list(HealthCheck),
    )


def _hold(runs: int, start: int, url: str, *, history: bool, approval: bool) -> Counter[str]:
    lab = Lab(url, rowlab.entities(history=history, approval=approval))
    seen = Counter[str]()
    Machine = type("Machine", (RowMachine,), {"lab": lab, "seen": seen})
    try:
        run_state_machine_as_test(seed(start)(Machine), settings=_settings(runs))
    finally:
        lab.close()
    return seen


@pytest.mark.parametrize(("history", "approval"), COMBINATIONS)
def test_the_service_does_what_the_oracle_says(
    history: bool, approval: bool, make_database: DatabaseMaker
) -> None:
    seen = _hold(RUNS, 2 * history + approval, make_database(), history=history, approval=approval)
    print(seen)
    assert seen["steps"] >= 0.9 * RUNS * STEPS_PER_RUN, seen


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize(("history", "approval"), COMBINATIONS)
def test_the_same_for_requests_never_sent_before(
    part: int, history: bool, approval: bool, make_database: DatabaseMaker
) -> None:
    start = secrets.randbits(64)
    print("seed", start)
    _hold(SOAK_RUNS, start, make_database(), history=history, approval=approval)
