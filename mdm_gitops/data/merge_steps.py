"""The steps of a merge, inside of its transaction: survivorship, both rows, relinking, and the record.

Both rows are locked first, so of several who merge, change or delete them one comes first, and the others
find what he has left. Whoever is about to refer to the duplicate has either committed, and is relinked,
or waits, and then refers to a row that is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import orjson

from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.claims import not_yours_to_decide
from mdm_gitops.data.conflicts import taken_by
from mdm_gitops.data.merging_sql import (
    HeldRow,
    change_record,
    count_visible,
    hold_rows,
    keep_record,
    note_links,
    noted_links,
    row_statement,
    standing_merge,
)
from mdm_gitops.data.proposals import lock_proposals
from mdm_gitops.data.refusals import reason, refuse_standing, taken_error
from mdm_gitops.data.relink import RelinkRefused, relink, update_and_relink
from mdm_gitops.data.row_id import new_row_id
from mdm_gitops.data.row_input import GivenRow, faults_of, read_row
from mdm_gitops.data.row_json import MASK
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.survivorship import Choice, Origin, Side, choose
from mdm_gitops.data.target import Referrer, Target
from mdm_gitops.data.write_run import Line, run_write
from mdm_gitops.data.write_sql import Operation, Status
from mdm_gitops.errors import Conflict, MdmError, RowRefused, WarehouseLocked
from mdm_gitops.model import Action
from mdm_gitops.warehouse.connect import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """*values* win over the rules of survivorship; a version that is given must still hold."""

    survivor_id: UUID
    duplicate_id: UUID
    values: Mapping[str, Any] = field(default_factory=dict)
    survivor_version: int | None = None
    duplicate_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    merge_id: UUID
    state: str
    survivor: bytes
    relinked: Mapping[str, int]
    columns: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A merge that is worked out: both rows as they are, and what the survivor gets."""

    survivor: HeldRow
    duplicate: HeldRow
    choices: Sequence[Choice]
    given: GivenRow
    relinked: Mapping[str, int]  # of the rows that the caller may see

    @property
    def row_ids(self) -> tuple[UUID, UUID]:
        return self.survivor.row_id, self.duplicate.row_id


@dataclass(frozen=True, kw_only=True)
class MergeWork:
    """The steps of a merge. *action* is the right that both rows are judged by; *author* is who
    proposed it, if it is approved by another."""

    conn: Connection
    asking: Asking
    target: Target
    action: Action = Action.WRITE
    author: str = ""

    def read(self, values: Mapping[str, Any]) -> GivenRow:
        """Return explicit values as they are written, or raise RowRefused."""
        row = read_row(self.asking, self.target.entity, values)
        if row.errors:
            raise RowRefused([reason(error) for error in row.errors])
        return row

    async def draw(self, request: MergeRequest, *, given: GivenRow) -> Drawn:
        """Hold both rows and work out the survivor, or raise what stands against the merge."""
        if self.target.entity.approval_required:
            await lock_proposals(self.conn, self.target)
        ids = (request.survivor_id, request.duplicate_id)
        rows = await hold_rows(self.conn, self.asking, self.target, ids)
        survivor, duplicate = (self._visible(rows, row_id) for row_id in ids)
        refuse_version(survivor, request.survivor_version, "survivor")
        refuse_version(duplicate, request.duplicate_version, "duplicate")
        for row in (survivor, duplicate):
            await self._refuse_state(row)
        relinked = await count_visible(
            self.conn, self.asking, self.target, keys=duplicate.keys, spared=ids
        )
        mine, other = sides(self.target, survivor, duplicate)
        texts = {name: given.texts[name] for name in self.target.columns if name in given.texts}
        choices = choose(
            self.target.entity, survivor=mine, duplicate=other, given=texts, before=survivor.texts
        )
        return Drawn(
            survivor=survivor, duplicate=duplicate, choices=choices, given=given, relinked=relinked
        )

    async def merge(self, drawn: Drawn) -> Merged:
        merge_id = new_row_id()
        await keep_record(
            self.conn, self.target, {**self._record(drawn, merge_id), "state": "merged"}
        )
        return await self.apply(drawn, merge_id)

    async def propose(self, request: MergeRequest, given: GivenRow) -> Merged:
        """Try the merge, take it back, and keep what was asked for."""
        merge_id = new_row_id()
        drawn, tried = await self.try_out(request, given)
        record = {**self._record(drawn, merge_id), "state": "pending"}
        await keep_record(self.conn, self.target, record)
        return replace(tried, merge_id=merge_id, state="pending")

    async def try_out(self, request: MergeRequest, given: GivenRow) -> tuple[Drawn, Merged]:
        """Do the whole merge and take it back, so that all that stands against it is told."""
        async with self.conn.transaction(force_rollback=True):
            drawn = await self.draw(request, given=given)
            return drawn, await self.merge(drawn)

    async def apply(self, drawn: Drawn, merge_id: UUID) -> Merged:
        """Write both rows, relink what refers to the duplicate, and complete the record."""
        survivor = await self.write(drawn, merge_id)
        await self._relink(drawn, merge_id, survivor)
        rows = await hold_rows(self.conn, self.asking, self.target, drawn.row_ids)
        duplicate = rows[drawn.duplicate.row_id]
        await change_record(
            self.conn,
            self.target,
            merge_id,
            {
                "state": "merged",
                "survivor_version": survivor.version,
                "duplicate_version": duplicate.version,
                "columns": _recorded(drawn, survivor),
                "merged_by": self.asking.principal.actor,
                "merged_at": duplicate.changed_at,
            },
        )
        return Merged(
            merge_id=merge_id,
            state="merged",
            survivor=survivor.body.encode(),
            relinked=drawn.relinked,
            columns=_shown(self.asking, self.target, drawn, survivor),
        )

    async def write(self, drawn: Drawn, merge_id: UUID) -> HeldRow:
        """Write the survivor and delete the duplicate; return the survivor as it is then."""
        chosen = {choice.column: choice for choice in drawn.choices}
        before = drawn.survivor.texts
        texts = {
            name: choice.text
            for name, choice in chosen.items()
            if choice.text != before[name] or choice.origin is Origin.GIVEN
        }
        row = GivenRow(
            texts=texts, given=_marks(self.target, texts), values={**texts, **drawn.given.values}
        )
        await self.update(drawn.survivor.row_id, row, {"mergeId": str(merge_id)})
        line = await self.change_state(
            drawn.duplicate.row_id, Operation.SOFT_DELETE, {"mergeId": str(merge_id)}
        )
        self.refuse(drawn.duplicate.row_id, line)
        return (await self.reread(drawn.survivor.row_id))[drawn.survivor.row_id]

    async def reread(self, *row_ids: UUID) -> dict[UUID, HeldRow]:
        return await hold_rows(self.conn, self.asking, self.target, row_ids)

    async def update(self, row_id: UUID, row: GivenRow, detail: Mapping[str, Any]) -> None:
        """Write *row* over the row and relink those who hold a key value of it that changes."""
        document = {**self._document(row_id, detail), **row.texts, "_given": row.given}
        try:
            line = await update_and_relink(
                self.conn,
                asking=self.asking,
                target=self.target,
                statement=self._statement(Operation.UPDATE),
                row_id=row_id,
                rows=[document],
                values={"author": self._author},
                author=self.author,
            )
        except RelinkRefused as refused:
            raise link_refused(self.asking, refused) from None
        if line.status is Status.TAKEN:
            raise await self._taken(row_id, row)
        self.refuse(row_id, line, row)

    async def change_state(
        self, row_id: UUID, operation: Operation, detail: Mapping[str, Any]
    ) -> Line:
        lines = await run_write(
            self.conn,
            asking=self.asking,
            statement=self._statement(operation),
            rows=[{**self._document(row_id, detail), "_given": ""}],
            values={"author": self._author},
        )
        return lines[0]

    def refuse(self, row_id: UUID, line: Line, row: GivenRow | None = None) -> None:
        """Raise what *line* says against the row, if it was not written."""
        entity = self.target.entity
        if line.status is Status.DONE:
            return
        if line.status is Status.MOVED:
            raise StateMoved
        if line.status is Status.MISSING:
            raise no_such_row(entity, row_id)
        if line.status is Status.OUTSIDE and self.action is Action.APPROVE:
            raise not_yours_to_decide(entity)
        refuse_standing(entity, line)
        found = faults_of(entity, row, list(line.faults)) if row is not None else []
        assert found, f"no answer for {line.status}"
        raise RowRefused([reason(error) for error in found])

    # --- the parts ---

    @property
    def _author(self) -> str:
        return self.author or self.asking.principal.actor

    def _statement(self, operation: Operation) -> Any:
        return row_statement(self.asking, self.target, operation, action=self.action)

    def _document(self, row_id: UUID, detail: Mapping[str, Any]) -> dict[str, Any]:
        more = {"submittedBy": self.author} if self.author else {}
        return {
            "_id": str(row_id),
            "_base": None,
            "_actor": self.asking.principal.actor,
            "_detail": {**detail, **more},
        }

    def _visible(self, rows: Mapping[UUID, HeldRow], row_id: UUID) -> HeldRow:
        row = rows.get(row_id)
        if row is None or not row.is_visible:
            raise no_such_row(self.target.entity, row_id)
        return row

    async def _refuse_state(self, row: HeldRow) -> None:
        entity = self.target.entity
        if row.is_deleted:
            raise await self._deleted(row)
        if row.has_proposal:
            raise Conflict(
                f"a change of row {row.row_id} of {entity.name} waits for approval",
                hint="approve, reject or withdraw it first",
                code="ROW_PENDING",
                rowId=str(row.row_id),
            )

    async def _deleted(self, row: HeldRow) -> Conflict:
        entity = self.target.entity
        standing = await standing_merge(self.conn, self.target, row.row_id)
        if standing is not None:
            merge_id, survivor_id = standing
            survivor = (await self.reread(survivor_id)).get(survivor_id)
            if survivor is not None and survivor.is_visible:
                return Conflict(
                    f"row {row.row_id} of {entity.name} was merged into {survivor_id} already",
                    hint="merge that row, or undo the merge first",
                    code="ROW_MERGED",
                    rowId=str(row.row_id),
                    survivorId=str(survivor_id),
                    mergeId=str(merge_id),
                )
        return Conflict(
            f"row {row.row_id} of {entity.name} is deleted",
            hint="restore it first",
            code="ROW_DELETED",
            rowId=str(row.row_id),
        )

    async def _taken(self, row_id: UUID, row: GivenRow) -> MdmError:
        holders = await taken_by(
            self.conn, asking=self.asking, target=self.target, row_id=row_id, row=row
        )
        if not holders:
            return WarehouseLocked(
                "others are writing the same values", hint="try again in a moment"
            )
        return taken_error(self.target.entity, holders, row)

    async def _relink(self, drawn: Drawn, merge_id: UUID, survivor: HeldRow) -> None:
        old, new = drawn.duplicate.keys, survivor.keys
        held = await note_links(
            self.conn,
            self.asking,
            self.target,
            merge_id=merge_id,
            keys=old,
            spared=drawn.row_ids,
        )
        keys = sorted({referrer.key for referrer in held})
        if without := [name for name in keys if new[name] is None]:
            names = [self.target.entity.column_by_name[name].name for name in without]
            raise Conflict(
                f"rows refer to the duplicate by {', '.join(names)}, which the survivor has no value of",
                hint=f"give the survivor a value of {names[0]} in values",
                code="MERGE_REFERENCE_NO_VALUE",
                columns=names,
            )
        await self.relink(
            merge_id, held, {name: (old[name], new[name]) for name in keys}, "mergeId"
        )

    async def relink(
        self,
        merge_id: UUID,
        held: Sequence[Referrer],
        changed: Mapping[str, tuple[Any, Any]],
        word: str,
    ) -> None:
        """Give what *merge_id* has noted in the columns *held* the values after, instead of those
        before."""
        # Row by row the references are wrong for a moment; at the commit they must be right.
        await self.conn.execute("SET CONSTRAINTS ALL DEFERRED")
        try:
            await relink(
                self.conn,
                asking=self.asking,
                target=self.target,
                changed=changed,
                author=self.author,
                only=noted_links(self.asking, merge_id, held, {word: str(merge_id)}),
            )
        except RelinkRefused as refused:
            raise link_refused(self.asking, refused) from None

    def _record(self, drawn: Drawn, merge_id: UUID) -> dict[str, Any]:
        return {
            "merge_id": merge_id,
            "survivor_id": drawn.survivor.row_id,
            "duplicate_id": drawn.duplicate.row_id,
            "survivor_version": drawn.survivor.version,
            "duplicate_version": drawn.duplicate.version,
            "given": dict(drawn.given.texts),
            "columns": _recorded(drawn, drawn.survivor),
            "proposed_by": self.asking.principal.actor,
            "proposed_at": None,
        }


def sides(target: Target, survivor: HeldRow, duplicate: HeldRow) -> tuple[Side, Side]:
    """Return both rows as candidates. That one refers to the other means nothing once they are one;
    that one refers to itself, that the survivor does."""
    mine, other = dict(survivor.texts), dict(duplicate.texts)
    for column, (entity, key) in target.references.items():
        if entity != target.name:
            continue
        own, merged = survivor.texts[key], duplicate.texts[key]
        if mine[column] is not None and mine[column] == merged:
            mine[column] = None
        if other[column] is not None:
            if other[column] == own:
                other[column] = None
            elif other[column] == merged:
                other[column] = own
    sources = target.entity.survivorship.sources
    column = sources.column.casefold() if sources else ""

    def side(row: HeldRow, texts: Mapping[str, str | None]) -> Side:
        return Side(texts=texts, changed_at=row.changed_at, source=row.texts.get(column))

    return side(survivor, mine), side(duplicate, other)


def refuse_version(row: HeldRow, expected: int | None, word: str) -> None:
    if expected is not None and row.version != expected:
        raise Conflict(
            f"the {word} has version {row.version} by now",
            hint="read it again and decide on what is there",
            code="ROW_VERSION_CONFLICT",
            rowId=str(row.row_id),
            currentVersion=row.version,
        )


def link_refused(asking: Asking, refused: RelinkRefused) -> Conflict:
    """Return why a row that refers to one of the two cannot be relinked, as far as the caller may know."""
    entity = refused.target.entity
    if not asking.rights(entity).may_read:
        return Conflict(
            "a row of an entity that you may not read cannot be relinked", code="MERGE_LINK_REFUSED"
        )
    column = entity.column_by_name[refused.column].name
    if refused.line.status is Status.TAKEN:
        said = "the unique values that it would have are taken by another row"
    else:
        said = "the rules of the column do not take the value"
    return Conflict(
        f"a row of {entity.name} cannot be relinked in {column}: {said}",
        hint="change or merge the rows that are in the way first",
        code="MERGE_LINK_REFUSED",
        entity=entity.name,
        column=column,
    )


def _marks(target: Target, texts: Mapping[str, Any]) -> str:
    return "".join("1" if name in texts else "0" for name in target.columns)


def marked(target: Target, texts: Mapping[str, str | None]) -> GivenRow:
    return GivenRow(texts=texts, given=_marks(target, texts), values=texts)


def _recorded(drawn: Drawn, after: HeldRow) -> list[dict[str, Any]]:
    """Return where each value came from, with its text before and after where it changed."""
    found = []
    for choice in drawn.choices:
        item = {"column": choice.column, "from": choice.origin.value, "rule": choice.rule}
        old, new = drawn.survivor.texts[choice.column], after.texts[choice.column]
        found.append({**item, "old": old, "new": new} if old != new else item)
    return found


def _shown(asking: Asking, target: Target, drawn: Drawn, after: HeldRow) -> list[dict[str, Any]]:
    """Return the choices with the values they were made between, masked where they must be."""
    sees_restricted = asking.rights(target.entity).sees_restricted
    mine, other, value = (_members(row) for row in (drawn.survivor, drawn.duplicate, after))
    found = []
    for choice in drawn.choices:
        column = target.entity.column_by_name[choice.column]
        is_masked = column.restricted and not sees_restricted
        found.append(
            {
                "column": column.name,
                "from": MASK if is_masked else choice.origin.value,
                "rule": MASK if is_masked else choice.rule,
                "survivor": mine[column.name],
                "duplicate": other[column.name],
                "value": value[column.name],
            }
        )
    return found


def _members(row: HeldRow) -> dict[str, Any]:
    """Return the members of a row's JSON; numbers keep all their digits."""

    def number(text: str) -> orjson.Fragment:
        return orjson.Fragment(text.encode())

    members: dict[str, Any] = json.loads(row.body, parse_float=number, parse_int=number)
    return members
