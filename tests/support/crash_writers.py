"""The clients of a campaign: what they send, what they were told, and how they find out the rest.

A writer does in its oracle what the server acknowledged. When an answer is lost it looks what became
of the request: both is right, but only in whole, and what it was told before stays.
"""

from __future__ import annotations

import asyncio
import csv
import io
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support import rowlab
from tests.support.crash_campaign import CLAIM, PART, TALLY, THING, Broken, Campaign, Table
from tests.support.oracle import Answer, Entity, Event, Imported, Oracle, Refused, Values, Version
from tests.support.wire import Lost, Reply, Wire

LIVE_ROWS = 30  # of one writer; then it removes more than it makes
ANN, BOB = "apikey:ann", "apikey:bob"


class Writer:
    """One client. ``step`` sends a request and judges what came of it."""

    def __init__(self, name: str, campaign: Campaign) -> None:
        self.name = name
        self.chance = random.Random(f"{campaign.seed} {name}")
        self.campaign = campaign
        self.busy = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        self._wires = {who: Wire(campaign.server.url, key) for who, key in campaign.keys.items()}

    async def step(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for wire in self._wires.values():
            await wire.close()

    async def send(
        self, who: str, method: str, path: str, document: Any = None, **headers: str
    ) -> Reply | None:
        """Return the answer, or None when nobody knows whether the request took effect."""
        wire, began = self._wires[who.removeprefix("apikey:")], time.monotonic()
        try:
            reply = await wire.request(method, f"/api/v1/entities/{path}", document, **headers)
        except Lost:
            reply = None
        self.campaign.longest_s = max(self.campaign.longest_s, time.monotonic() - began)
        if reply is not None and reply.status != 503:
            if reply.status >= 500:
                raise Broken(f"I9: {method} {path}: {reply.status} {reply.body!r}")
            self.campaign.note_answer()
            self.counts["acknowledged" if reply.status < 300 else "refused"] += 1
            return reply
        self.counts["in doubt"] += 1
        await self.campaign.settled()
        return None

    def values(self) -> Values:
        """Return values for a row, one in ten of them wrong."""
        level = 99 if self.chance.random() < 0.1 else self.chance.randrange(10)
        return {"note": f"{self.chance.getrandbits(64):x}", "level": level}


class _Owner(Writer):
    """A writer with rows of its own, and an oracle of them."""

    entity: Entity

    def __init__(self, name: str, campaign: Campaign) -> None:
        super().__init__(name, campaign)
        self.oracle = Oracle(self.entity)
        self._told = 0
        self._made = 0

    @property
    def rows(self) -> dict[str, Any]:
        return self.oracle.rows[self.entity.name]

    def new_code(self) -> str:
        self._made += 1
        return f"{self.name}-{self._made}"

    async def do(
        self,
        who: str,
        method: str,
        path: str,
        request: Callable[[str], Answer],
        *,
        row_id: str = "",
        document: Values | None = None,
    ) -> None:
        """Send a request, and do the same in the oracle if it took effect."""
        reply = await self.send(who, method, f"{self.entity.name}/{path}", document)
        if reply is None:
            await self._look_what_became(row_id, document, request)
            return
        said = f"{method} {path} {document} -> {reply.status} {reply.body!r}"
        body = reply.json() if reply.body else {}
        try:
            answer = request(body.get("_sys_id", row_id))
        except Refused as refusal:
            if reply.status < 400 or rowlab.refusal_differences(body, refusal):
                raise Broken(f"I1: should have been refused ({refusal}): {said}") from None
            return
        if reply.status != answer.status:
            raise Broken(f"I1: should have been {answer}: {said}")
        if answer.row and (wrong := rowlab.differences(self.entity, body, answer.row)):
            raise Broken(f"I1: {wrong}: {said}")

    async def _look_what_became(
        self, row_id: str, document: Values | None, request: Callable[[str], Answer]
    ) -> None:
        """Learn whether a request whose answer was lost took effect; both is right."""
        row_id = row_id or await self._find((document or {})["code"])
        found = await self.campaign.ask(
            "SELECT 1 FROM mdm.event WHERE record_id::text = %s", [row_id]
        )
        if len(found) == sum(event.row == row_id for event in self.oracle.events):
            return
        self.counts["in doubt, had happened"] += 1
        try:
            request(row_id)
        except Refused as refusal:
            raise Broken(f"I1: was refused ({refusal}), and happened: {document}") from None

    async def _find(self, code: str) -> str:
        tables = [
            self.entity.name,
            *([f"{self.entity.name}__edit"] if self.entity.approval else []),
        ]
        parts = (
            f"SELECT _sys_id::text AS id FROM mdm_data.{t} WHERE code = %(code)s" for t in tables
        )
        query = " UNION ".join(parts).replace("%(code)s", "%s")
        found = await self.campaign.ask(query, [code] * len(tables))
        return str(found[0]["id"]) if found else ""

    # --- comparing ---

    def verify(self, table: Table) -> None:
        if set(table.rows) != set(self.rows):
            lost, new = set(self.rows) - set(table.rows), set(table.rows) - set(self.rows)
            raise Broken(f"I1: lost {lost}, new {new}")
        for row_id, row in self.rows.items():
            if wrong := _differences(self.entity, table.rows[row_id], row.now):
                raise Broken(f"I1: {row_id}: {wrong}")
        self._verify_proposals(table)
        expected: dict[str, list[Event]] = {}
        for event in self.oracle.events[self._told :]:
            expected.setdefault(event.row, []).append(event)
        self._told = len(self.oracle.events)
        if expected != table.events:
            raise Broken(f"I2: {_first_difference(expected, table.events)}")
        for row_id in expected:
            self._verify_versions(row_id, table.versions.get(row_id, []))

    def _verify_proposals(self, table: Table) -> None:
        proposals = self.oracle.proposals[self.entity.name]
        if set(table.proposals) != set(proposals):
            lost = set(proposals) ^ set(table.proposals)
            raise Broken(f"I1: lost or new proposals {lost}")
        for row_id, proposal in proposals.items():
            stored = table.proposals[row_id]
            expected = (proposal.values, proposal.base, proposal.operation, proposal.state)
            values = {name: stored[name] for name in proposal.values}
            found = (
                values,
                stored["_sys_base_version"],
                stored["_sys_operation"],
                stored["_sys_state"],
            )
            if found != expected:
                raise Broken(f"I1: proposal {row_id} is {found}, expected {expected}")

    def _verify_versions(self, row_id: str, closed: list[dict[str, Any]]) -> None:
        row = self.rows.get(row_id) or self.oracle.removed[self.entity.name].get(row_id)
        versions = row.versions if row else []
        expected = versions[:-1] if row_id in self.rows else versions
        wrong = [
            difference
            for stored, version in zip(closed, expected, strict=False)
            for difference in _differences(self.entity, stored, version)
        ]
        if len(closed) != len(expected) or wrong:
            raise Broken(f"I1: the versions of {row_id}: {wrong} {closed} {expected}")


class Keeper(_Owner):
    """Creates, updates, deletes and restores single rows."""

    entity = THING

    async def step(self) -> None:
        if len(self.rows) < 3 or (len(self.rows) < LIVE_ROWS and self.chance.random() < 0.4):
            await self._create()
            return
        row_id = self.chance.choice(list(self.rows))
        deleted = self.rows[row_id].now.deleted
        kinds = ("restore", "hard") if deleted else ("update", "update", "update", "soft", "hard")
        await self._change(row_id, self.chance.choice(kinds))

    async def _create(self) -> None:
        given, name = {**self.values(), "code": self.new_code()}, self.entity.name
        await self.do(
            ANN,
            "POST",
            "data",
            lambda row_id: self.oracle.create(name, given, actor=ANN, row_id=row_id),
            document=given,
        )

    async def _change(self, row_id: str, kind: str) -> None:
        oracle, name, given = self.oracle, self.entity.name, self.values()
        requests: dict[str, tuple[str, str, Callable[[str], Answer]]] = {
            "update": (
                "PUT",
                f"data/{row_id}",
                lambda _: oracle.update(name, row_id, given, actor=ANN),
            ),
            "soft": (
                "DELETE",
                f"data/{row_id}?soft=true",
                lambda _: oracle.delete(name, row_id, soft=True, actor=ANN),
            ),
            "hard": (
                "DELETE",
                f"data/{row_id}",
                lambda _: oracle.delete(name, row_id, soft=False, actor=ANN),
            ),
            "restore": (
                "POST",
                f"data/{row_id}/restore",
                lambda _: oracle.restore(name, row_id, actor=ANN),
            ),
        }
        method, path, request = requests[kind]
        document = given if kind == "update" else None
        await self.do(ANN, method, path, request, row_id=row_id, document=document)


class Proposer(Keeper):
    """The same on an entity that needs approval, as one person, and decides as another."""

    entity = CLAIM

    async def step(self) -> None:
        waiting = list(self.oracle.pending(self.entity.name))
        if waiting and self.chance.random() < 0.5:
            await self._decide(self.chance.choice(waiting))
        else:
            await super().step()

    async def _decide(self, row_id: str) -> None:
        oracle, name = self.oracle, self.entity.name
        if self.chance.random() < 0.25:
            await self.do(
                BOB,
                "POST",
                f"reject/{row_id}",
                lambda _: oracle.reject(name, row_id, actor=BOB, comment="no"),
                row_id=row_id,
                document={"comment": "no"},
            )
        else:
            await self.do(
                BOB,
                "POST",
                f"approve/{row_id}",
                lambda _: oracle.approve(name, row_id, actor=BOB),
                row_id=row_id,
            )


class Importer(_Owner):
    """Imports files of CSV and JSON, a tenth of their rows wrong, and repeats what it is not sure of."""

    entity = PART
    ROWS = 60
    CODES = 150

    async def step(self) -> None:
        name, token = self.entity.name, f"{self.chance.getrandbits(64):x}"
        mode = "insert" if len(self.rows) < self.CODES / 2 else "upsert"
        rows = self._file(mode, token)
        is_csv, key = self.chance.random() < 0.7, str(uuid.uuid4())
        path = f"{name}/data/{'bulk-csv' if is_csv else 'bulk'}?mode={mode}"
        body: Any = _csv(rows) if is_csv else rows
        more = {"Content-Type": "text/csv"} if is_csv else {}
        reply = await self.send(ANN, "POST", path, body, Idempotency_Key=key, **more)
        while reply is None and self.chance.random() < 0.5:
            self.counts["repeated"] += 1
            reply = await self.send(ANN, "POST", path, body, Idempotency_Key=key, **more)
        written = await self._written(token)
        if reply is None and not written:
            return
        imported = await self._import(rows, mode)
        if reply is None:
            self.counts["in doubt, had happened"] += 1
        elif reply.status != 200:
            raise Broken(f"I8: {path}: {reply.status} {reply.body!r}")
        elif wrong := rowlab.import_differences(reply.json(), imported):
            raise Broken(f"I8: {wrong}")
        if written != (whole := imported.inserted + imported.updated):
            raise Broken(f"{'I8' if written else 'I1'}: {written} of the {whole} rows of a file")

    def _file(self, mode: str, token: str) -> list[Values]:
        if mode == "insert":
            codes = [self.new_code() for _ in range(self.ROWS)]
        else:
            known = [f"{self.name}-{n}" for n in range(1, self._made + 1)]
            codes = self.chance.sample(known, min(self.ROWS, len(known)))
        return [
            {"code": code, "note": f"{token} {n}", "level": 99 if n % 10 == 3 else n % 10}
            for n, code in enumerate(codes)
        ]

    async def _written(self, token: str) -> int:
        """Return how many rows there are of the file *token*: all are its own, in whatever mode."""
        query = f"SELECT count(*) AS rows FROM mdm_data.{self.entity.name} WHERE note LIKE %s"
        (found,) = await self.campaign.ask(query, [f"{token} %"])
        return int(found["rows"])

    async def _import(self, rows: list[Values], mode: str) -> Imported:
        query = (
            f"SELECT code, _sys_id::text AS id FROM mdm_data.{self.entity.name} WHERE code LIKE %s"
        )
        found = await self.campaign.ask(query, [f"{self.name}-%"])
        ids = {row["code"]: row["id"] for row in found}
        return self.oracle.bulk(
            self.entity.name,
            rows,
            mode=mode,
            actor=ANN,
            new_id=lambda given: ids.get(given["code"], str(uuid.uuid4())),
        )


class Book:
    """Rows that several count up together: what each of them was told."""

    name = "tally"

    def __init__(self, row_ids: list[str]) -> None:
        self.acknowledged: set[str] = set()
        self.in_doubt: set[str] = set()
        self._seen: Counter[str] = Counter()
        self.row_ids = row_ids
        self._totals = dict.fromkeys(row_ids, 0)

    def verify(self, table: Table) -> None:
        for row_id, events in table.events.items():
            for event in events:
                self._count(row_id, event)
        for row_id, row in table.rows.items():
            if (row["total"], row["_sys_version"]) != (
                self._totals[row_id],
                self._totals[row_id] + 1,
            ):
                raise Broken(f"I1: {row} is at {self._totals[row_id]} by its events")
        if lost := self.acknowledged - set(self._seen):
            raise Broken(f"I1: lost {lost}")
        if strange := set(self._seen) - self.acknowledged - self.in_doubt:
            raise Broken(f"I1: happened without being acknowledged: {strange}")
        if twice := [token for token, number in self._seen.items() if number > 1]:
            raise Broken(f"I2: more than once: {twice}")

    def _count(self, row_id: str, event: Event) -> None:
        assert event.new is not None
        before, self._totals[row_id] = self._totals[row_id], event.new["total"]
        if (before, event.version) != (event.new["total"] - 1, event.new["total"] + 1):
            raise Broken(f"I2: {event} after {before}")
        self._seen[event.new["note"]] += 1


class Adder(Writer):
    """Reads one of the rows that all count up, and adds one to the version that it has read."""

    def __init__(self, name: str, campaign: Campaign, book: Book) -> None:
        super().__init__(name, campaign)
        self._book = book

    async def step(self) -> None:
        row_id = self.chance.choice(self._book.row_ids)
        read = await self.send(ANN, "GET", f"{TALLY.name}/data/{row_id}")
        if read is None:
            return
        if read.status != 200:
            raise Broken(f"I1: {row_id} is gone: {read.status}")
        token = f"{self.name} {self.chance.getrandbits(64):x}"
        given = {"total": read.json()["total"] + 1, "note": token}
        path, tag = f"{TALLY.name}/data/{row_id}", read.headers["etag"]
        reply = await self.send(ANN, "PUT", path, given, If_Match=tag)
        if reply is None:
            self._book.in_doubt.add(token)
        elif reply.status == 200:
            self._book.acknowledged.add(token)
        elif reply.code != "ROW_VERSION_CONFLICT":
            raise Broken(f"I1: {reply.status} {reply.body!r}")


def _csv(rows: list[Values]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _differences(entity: Entity, stored: dict[str, Any], version: Version) -> list[str]:
    expected = {
        **version.values,
        "_sys_version": version.number,
        "_sys_is_deleted": version.deleted,
        "_sys_last_modified_by": version.by,
    }
    return [
        f"{name} is {stored[name]!r}, expected {value!r}"
        for name, value in expected.items()
        if stored[name] != value
    ]


def _first_difference(expected: dict[str, list[Event]], found: dict[str, list[Event]]) -> str:
    for row_id in sorted({*expected, *found}):
        wanted, there = expected.get(row_id, []), found.get(row_id, [])
        if wanted != there:
            return f"expected {wanted}, found {there}"
    return ""
