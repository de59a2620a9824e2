"""What becomes of a merge later: undone, and where the entity needs approval, approved or rejected.

An undo gives back what the merge has changed, by new versions and events; history is never written
again. What was changed since by somebody else is not overwritten: the undo is refused and names it, or
leaves it as it is, if the caller says so. Of rows that the caller may not see later edits always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from mdm_gitops.data.asking import Asking, changeable_entity, readable_entity, row_filter
from mdm_gitops.data.claims import not_yours_to_decide
from mdm_gitops.data.merge_steps import Merged, MergeRequest, MergeWork, marked
from mdm_gitops.data.merging import in_transaction
from mdm_gitops.data.merging_sql import (
    HeldRow,
    MergeRecord,
    change_record,
    changed_links,
    count_visible,
    has_unknown_links,
    held_record,
    linked,
    standing_merge,
)
from mdm_gitops.data.proposals import lock_proposals
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.write_run import Line
from mdm_gitops.data.write_sql import Operation, Status
from mdm_gitops.errors import AccessDenied, Conflict, MdmError, NotFound
from mdm_gitops.model import Action, Entity
from mdm_gitops.warehouse.connect import Connection, ConnectionPool

MOST_NAMED: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """*relinked* counts the rows that refer to the duplicate again, of those the caller may see."""

    merge_id: UUID
    state: str
    survivor: bytes
    duplicate: bytes
    relinked: Mapping[str, int]


def no_such_merge(entity: Entity, merge_id: object) -> NotFound:
    return NotFound(f"{entity.name} has no merge {str(merge_id)[:60]}", code="MERGE_NOT_FOUND")


class MergeDecider:
    """Decides on merges through connections of *pool*."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def undo(
        self, asking: Asking, entity: str, merge_id: UUID, *, keep_later_edits: bool = False
    ) -> Undone:
        """Give both rows and all links back, or propose to, where the entity needs approval.

        Raises:
            NotFound: there is no such merge, or the caller may not see one of its rows.
            AccessDenied: the caller may not write one of them.
            Conflict: it does not stand any more, or what it would undo was changed since.
            RowRefused: the survivor as it was breaks rules of today.
            StateMoved: ask again with a newer state.
        """
        target = target_of(asking, changeable_entity(asking, entity))

        async def decide(conn: Connection) -> Undone:
            work = UndoWork(conn=conn, asking=asking, target=target)
            record = await work.claim(merge_id)
            if record.state != "merged":
                raise _not_standing(target, record)
            record = replace(record, keep_later_edits=keep_later_edits)
            if not target.entity.approval_required:
                return await work.undo(record)
            async with conn.transaction(force_rollback=True):
                tried = await work.undo(record)
            changes = {
                "state": "undo_pending",
                "keep_later_edits": keep_later_edits,
                "proposed_by": asking.principal.actor,
                "proposed_at": None,
            }
            await change_record(conn, target, merge_id, changes)
            return replace(tried, state="undo_pending")

        return await in_transaction(self._pool, decide)

    async def approve(
        self, asking: Asking, entity: str, merge_id: UUID, *, comment: str | None = None
    ) -> Merged | Undone:
        """Apply a merge that is pending, or an undo. Errors as those, and:

        Raises:
            AccessDenied: the caller has proposed it himself, or may not approve both rows.
            Conflict: it is not pending, or a row has changed since it was proposed.
        """
        target = target_of(asking, changeable_entity(asking, entity, action=Action.APPROVE))

        async def decide(conn: Connection) -> Merged | Undone:
            work = UndoWork(conn=conn, asking=asking, target=target, action=Action.APPROVE)
            record = await work.claim(merge_id)
            refused = _refused_approval(asking, target, record)
            if refused is not None:
                raise refused
            work = replace(work, author=record.proposed_by)
            if record.state == "undo_pending":
                outcome: Merged | Undone = await work.undo(record)
            else:
                outcome = await work.merge_as_proposed(record)
            await change_record(conn, target, merge_id, {"comment": comment})
            return outcome

        return await in_transaction(self._pool, decide)

    async def reject(
        self, asking: Asking, entity: str, merge_id: UUID, *, comment: str | None = None
    ) -> str:
        """End what is pending without applying it; return the state of the merge then.

        Its author may, and who may approve changes of both rows.
        """
        target = target_of(asking, readable_entity(asking, entity))

        async def decide(conn: Connection) -> str:
            work = UndoWork(conn=conn, asking=asking, target=target)
            record = await work.claim(merge_id)
            if record.state not in ("pending", "undo_pending"):
                raise _not_pending(target, record)
            if record.proposed_by != asking.principal.actor:
                rows = await work.reread(record.survivor_id, record.duplicate_id)
                if not all(row.may_decide for row in rows.values()):
                    raise not_yours_to_decide(target.entity)
            state = "rejected" if record.state == "pending" else "merged"
            await change_record(conn, target, merge_id, {"state": state, "comment": comment})
            return state

        return await in_transaction(self._pool, decide)


def _refused_approval(asking: Asking, target: Target, record: MergeRecord) -> MdmError | None:
    if record.state not in ("pending", "undo_pending"):
        return _not_pending(target, record)
    is_author = record.proposed_by == asking.principal.actor
    if is_author and not target.entity.allow_same_author_approval:
        return AccessDenied(
            "you have proposed this yourself, and another person must approve it",
            hint="the entity's allowSameAuthorApproval would let authors approve",
            code="APPROVAL_SAME_AUTHOR",
        )
    return None


def _not_pending(target: Target, record: MergeRecord) -> Conflict:
    return Conflict(
        f"nothing of merge {record.merge_id} of {target.entity.name} waits for approval",
        code="MERGE_NOT_PENDING",
        state=record.state,
    )


def _not_standing(target: Target, record: MergeRecord) -> Conflict:
    said = {
        "undone": "was undone already",
        "undo_pending": "has an undo that waits for approval",
        "pending": "waits for approval itself",
        "rejected": "was rejected",
    }[record.state]
    return Conflict(
        f"merge {record.merge_id} of {target.entity.name} {said}",
        code="MERGE_NOT_STANDING",
        state=record.state,
    )


# --- inside of a transaction ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    survivor: HeldRow
    duplicate: HeldRow
    record: MergeRecord


@dataclass(frozen=True, kw_only=True)
class UndoWork(MergeWork):
    async def claim(self, merge_id: UUID) -> MergeRecord:
        """Hold a merge of which the caller may see both rows."""
        if self.target.entity.approval_required:
            await lock_proposals(self.conn, self.target)
        record = await held_record(self.conn, self.target, merge_id)
        if record is None:
            raise no_such_merge(self.target.entity, merge_id)
        ids = (record.survivor_id, record.duplicate_id)
        rows = await self.reread(*ids)
        sees_all = row_filter(self.asking, self.target.entity) is None
        if not all(rows[i].is_visible if i in rows else sees_all for i in ids):
            raise no_such_merge(self.target.entity, merge_id)
        return record

    async def merge_as_proposed(self, record: MergeRecord) -> Merged:
        request = MergeRequest(
            survivor_id=record.survivor_id,
            duplicate_id=record.duplicate_id,
            survivor_version=record.survivor_version,
            duplicate_version=record.duplicate_version,
        )
        try:
            drawn = await self.draw(request, given=marked(self.target, self._given(record)))
        except Conflict as conflict:
            if conflict.kind_code == "ROW_PENDING":
                raise
            raise self._stale(record) from None
        except NotFound:
            raise self._stale(record) from None
        return await self.apply(drawn, record.merge_id)

    async def undo(self, record: MergeRecord) -> Undone:
        """Give back what the merge has changed."""
        pair = await self._hold(record)
        keys = pair.survivor.keys
        ids = (record.survivor_id, record.duplicate_id)
        relinked = await count_visible(
            self.conn, self.asking, self.target, keys=keys, spared=ids, merge_id=record.merge_id
        )
        before = pair.duplicate.keys
        changed = {
            name: (value, before[name])
            for name, value in keys.items()
            if value is not None and before[name] is not None
        }
        held = await linked(self.conn, self.asking, self.target, record.merge_id)
        await self.relink(record.merge_id, held, changed, "undoneMergeId")
        detail = {"undoneMergeId": str(record.merge_id)}
        if pair.duplicate.is_deleted:
            line = await self.change_state(record.duplicate_id, Operation.RESTORE, detail)
            self.refuse(record.duplicate_id, line)
        if texts := self._old_texts(pair):
            await self.update(record.survivor_id, marked(self.target, texts), detail)
        rows = await self.reread(*ids)
        survivor, duplicate = (rows[row_id] for row_id in ids)
        await self._note(record, survivor, duplicate)
        return Undone(
            merge_id=record.merge_id,
            state="undone",
            survivor=survivor.body.encode(),
            duplicate=duplicate.body.encode(),
            relinked=relinked,
        )

    async def _note(self, record: MergeRecord, survivor: HeldRow, duplicate: HeldRow) -> None:
        changes = {
            "state": "undone",
            "survivor_version": survivor.version,
            "duplicate_version": duplicate.version,
            "undone_by": self.asking.principal.actor,
            "undone_at": duplicate.changed_at,
        }
        await change_record(self.conn, self.target, record.merge_id, changes)

    # --- what stands against it ---

    async def _hold(self, record: MergeRecord) -> _Pair:
        entity = self.target.entity
        rows = await self.reread(record.survivor_id, record.duplicate_id)
        for row_id in (record.survivor_id, record.duplicate_id):
            if row_id not in rows:
                raise self._changed([_row(entity, row_id)], f"row {row_id} was deleted for good")
            if rows[row_id].has_proposal:
                await self._refuse_state(replace(rows[row_id], is_deleted=False))
        survivor, duplicate = rows[record.survivor_id], rows[record.duplicate_id]
        for row in (survivor, duplicate):
            # Links are given back also where no value of the row itself is.
            if not (row.may_decide if self.action is Action.APPROVE else row.may_write):
                self.refuse(row.row_id, Line(status=Status.OUTSIDE))
        await self._refuse_later_merges(record, survivor, duplicate)
        if survivor.is_deleted:
            raise self._changed(
                [_row(entity, survivor.row_id)], f"the survivor {survivor.row_id} was deleted"
            )
        pair = _Pair(survivor=survivor, duplicate=duplicate, record=record)
        if not record.keep_later_edits:
            await self._refuse_later_edits(pair)
        return pair

    async def _refuse_later_merges(
        self, record: MergeRecord, survivor: HeldRow, duplicate: HeldRow
    ) -> None:
        for row in (survivor, duplicate):
            standing = await standing_merge(self.conn, self.target, row.row_id)
            if row.is_deleted and standing is not None and standing[0] != record.merge_id:
                raise Conflict(
                    f"row {row.row_id} of {self.target.entity.name} was merged again since",
                    hint="undo the later merge first",
                    code="MERGE_CHANGED_SINCE",
                    rows=[_row(self.target.entity, row.row_id)],
                    mergeId=str(standing[0]),
                )

    async def _refuse_later_edits(self, pair: _Pair) -> None:
        entity, record = self.target.entity, pair.record
        if not pair.duplicate.is_deleted:
            row = _row(entity, record.duplicate_id)
            raise self._changed(
                [row], f"the duplicate {record.duplicate_id} was restored", may=True
            )
        found = [_row(entity, record.survivor_id, column) for column in self._later_edits(pair)]
        links = await changed_links(
            self.conn,
            self.asking,
            self.target,
            merge_id=record.merge_id,
            keys=pair.survivor.keys,
            take=MOST_NAMED,
        )
        found += [
            {"entity": link.entity, "id": str(link.row_id), "column": link.column} for link in links
        ]
        if found:
            raise self._changed(
                found, f"{len(found)} values that it would undo were changed", may=True
            )
        if await has_unknown_links(self.conn, self.asking, self.target, record.merge_id):
            raise self._changed([], "definitions of what it has relinked were changed", may=True)

    def _changed(
        self, rows: Sequence[Mapping[str, Any]], said: str, *, may: bool = False
    ) -> Conflict:
        return Conflict(
            f"the merge cannot be undone as a whole: {said}",
            hint="with keepLaterEdits they stay as they are, and the rest is undone" if may else "",
            code="MERGE_CHANGED_SINCE",
            rows=list(rows[:MOST_NAMED]),
        )

    def _stale(self, record: MergeRecord) -> Conflict:
        return Conflict(
            f"a row of {self.target.entity.name} has changed since the merge was proposed",
            hint="reject it, and propose it again on top of what is there now",
            code="APPROVAL_STALE",
            mergeId=str(record.merge_id),
        )

    # --- what the merge had changed ---

    def _given(self, record: MergeRecord) -> dict[str, str | None]:
        known = self.target.entity.column_by_name
        if not set(record.given) <= set(known):
            raise self._stale(record)
        return dict(record.given)

    def _later_edits(self, pair: _Pair) -> list[str]:
        """Return the names of columns that the merge has changed and that hold something else by now."""
        known, texts = self.target.entity.column_by_name, pair.survivor.texts
        found = []
        for item in pair.record.columns:
            name = item["column"]
            if "new" in item and (name not in known or texts[name] != item["new"]):
                found.append(known[name].name if name in known else name)
        return found

    def _old_texts(self, pair: _Pair) -> dict[str, str | None]:
        """Return what the survivor gets back: what the merge has changed and nobody since."""
        texts = pair.survivor.texts
        return {
            item["column"]: item["old"]
            for item in pair.record.columns
            if "new" in item and item["column"] in texts and texts[item["column"]] == item["new"]
        }


def _row(entity: Entity, row_id: UUID, column: str = "") -> dict[str, str]:
    found = {"entity": entity.name, "id": str(row_id)}
    return {**found, "column": column} if column else found
