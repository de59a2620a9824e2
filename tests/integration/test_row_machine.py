"""A random client and the oracle, side by side: after each request both must say and hold the same.

Hypothesis draws requests to two entities, one referring to the other, with approval and history on
and off. Each request goes over HTTP to a real warehouse and to ``tests.support.oracle``. After each
step the answer, the row that was touched and the events that were recorded are compared; every few
steps the lists, counts, proposals, versions and the past at remembered moments. The same requests in
each run; a soak draws new ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import httpx2
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.integration.test_api_basics import KEY, add_key, served
from tests.support import rowlab
from tests.support import warehouses as on
from tests.support.oracle import (
    Answer,
    Entity,
    Event,
    Oracle,
    Refused,
    Row,
    Values,
    Version,
)
from tests.support.rowlab import parsed

STEPS_PER_RUN = 50
RUNS = 10  # for each of the four combinations: 2,000 steps
SOAK_PARTS = 25
SOAK_RUNS = 20  # 4 combinations x 25 parts x 20 runs x 50 steps: 100,000
LOOK_EVERY = 8  # steps
SHRINK = bool(os.environ.get("MDM_SHRINK"))  # minutes, but then the failure is a few steps long
WRITERS = ("ann", "bob")
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
        self.entity_ids = {
            name: number
            for name, number in self._conn.execute("SELECT name, entity_id FROM mdm.entity")
        }

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
        assert response.status_code < 500, (method, path, response.text)
        return response

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
    steps: ClassVar[Counter[str]]

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

    @rule(name=st.sampled_from(ENTITIES), who=st.sampled_from(WRITERS), data=st.data())
    def create(self, name: str, who: str, data: st.DataObject) -> None:
        given = data.draw(rowlab.values(self.lab.by_name[name], create=True))
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

    @rule(
        name=st.sampled_from(ENTITIES),
        who=st.sampled_from(WRITERS),
        pick=st.integers(0, 40),
        match=st.sampled_from(("", "", "right", "stale")),
        verb=st.sampled_from(("PUT", "PATCH")),
        data=st.data(),
    )
    def update(
        self, name: str, who: str, pick: int, match: str, verb: str, data: st.DataObject
    ) -> None:
        given = data.draw(rowlab.values(self.lab.by_name[name], create=False))
        row_id = self.picked(name, pick)
        base = self.version(name, row_id, match)
        response = self.lab.send(who, verb, f"{name}/data/{row_id}", given, headers=_if_match(base))
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.update(name, row_id, given, actor=f"apikey:{who}", if_match=base),
        )

    @rule(
        name=st.sampled_from(ENTITIES),
        who=st.sampled_from(WRITERS),
        pick=st.integers(0, 40),
        soft=st.booleans(),
        match=st.sampled_from(("", "", "right", "stale")),
    )
    def delete(self, name: str, who: str, pick: int, soft: bool, match: str) -> None:
        row_id = self.picked(name, pick)
        base = self.version(name, row_id, match)
        params = {"soft": "true"} if soft else {}
        response = self.lab.send(
            who, "DELETE", f"{name}/data/{row_id}", headers=_if_match(base), params=params
        )
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.delete(name, row_id, soft=soft, actor=f"apikey:{who}", if_match=base),
        )

    @rule(name=st.sampled_from(ENTITIES), who=st.sampled_from(WRITERS), pick=st.integers(0, 40))
    def restore(self, name: str, who: str, pick: int) -> None:
        row_id = self.picked(name, pick)
        response = self.lab.send(who, "POST", f"{name}/data/{row_id}/restore")
        self.compare(
            response, name, row_id, lambda o: o.restore(name, row_id, actor=f"apikey:{who}")
        )

    @rule(
        name=st.sampled_from(ENTITIES),
        who=st.sampled_from(WRITERS),
        pick=st.integers(0, 40),
        number=st.integers(1, 4),
    )
    def restore_version(self, name: str, who: str, pick: int, number: int) -> None:
        row_id = self.picked(name, pick)
        path = f"{name}/versions/{row_id}/restore"
        response = self.lab.send(who, "POST", path, {"version": number})
        self.compare(
            response,
            name,
            row_id,
            lambda o: o.restore_version(name, row_id, number, actor=f"apikey:{who}"),
        )

    # --- comparing ---

    def compare(
        self,
        response: httpx2.Response,
        name: str,
        row_id: str,
        request: Callable[[Oracle], Answer],
    ) -> None:
        """Let the oracle do the same, and compare answer, row and events."""
        self.step += 1
        sent = response.request
        said = f"{sent.method} {sent.url.raw_path.decode()} {sent.content.decode()!r}"
        note(f"{said} -> {response.status_code} {response.text}")
        try:
            answer = request(self.oracle)
        except Refused as refusal:
            self.steps["refused"] += 1
            assert not response.is_success, f"expected to be refused: {refusal}"
            assert rowlab.refusal_differences(parsed(response.content), refusal) == []
        else:
            self.steps[f"answered {answer.status}"] += 1
            assert response.status_code == answer.status, response.text
            self._compare_answer(response, name, answer)
        self._compare_events()
        self._compare_row(name, row_id)
        self._compare_versions(name, row_id)
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

    def _compare_events(self) -> None:
        expected = self.oracle.events[self.told :]
        self.told = len(self.oracle.events)
        found = self.lab.events_after(self.seq)
        self.seq = self.lab.last_event()
        assert sorted(found, key=_order) == sorted(expected, key=_order)

    def _compare_row(self, name: str, row_id: str) -> None:
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
        expected = self.oracle.pending(name)
        found = {body["_sys_id"]: body for body in page["items"]}
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

    def picked(self, name: str, pick: int) -> str:
        """Return a row that is or was there; now and then one that never was."""
        known = self.known[name]
        if not known or pick == 40:
            return str(uuid.UUID(int=pick))
        return known[-1 - pick % len(known)]

    def version(self, name: str, row_id: str, match: str) -> int | None:
        if not match:
            return None
        row = self.oracle.rows[name].get(row_id)
        number = row.now.number if row else 0
        return number if match == "right" else number + 1


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"v{version}"'}


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
    Machine = type("Machine", (RowMachine,), {"lab": lab, "steps": Counter[str]()})
    try:
        run_state_machine_as_test(seed(start)(Machine), settings=_settings(runs))
    finally:
        lab.close()
    return Machine.steps


@pytest.mark.parametrize(("history", "approval"), COMBINATIONS)
def test_the_service_does_what_the_oracle_says(
    history: bool, approval: bool, make_database: DatabaseMaker
) -> None:
    steps = _hold(RUNS, 0, make_database(), history=history, approval=approval)
    assert sum(steps.values()) >= 0.9 * RUNS * STEPS_PER_RUN, steps


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize(("history", "approval"), COMBINATIONS)
def test_the_same_for_requests_never_sent_before(
    part: int, history: bool, approval: bool, make_database: DatabaseMaker
) -> None:
    start = secrets.randbits(64)
    _hold(SOAK_RUNS, start, make_database(), history=history, approval=approval)
