"""What the interface says about rows, as a small machine in memory: the tests compare with it.

It is written from the texts of the interface, not from the product: plain dicts and loops, one row
after the other, no SQL. Each method takes a request and either changes the machine and returns what
is answered, or raises ``Refused`` and changes nothing. The caller tells the identifier that the
server chose; ``would`` asks for the machine's opinion without an effect.

What it does not know: rights and row filters, paging, sorting, wording.

It is long because it is one machine: every request may change rows, versions, proposals and events at
once, and in parts they would have to be read together all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

Values = dict[str, Any]

REQUIRED = "ENTITY_VALIDATION_REQUIRED_FIELD"
TYPE = "ENTITY_VALIDATION_TYPE"
PATTERN = "ENTITY_VALIDATION_PATTERN"
ALLOWED = "ENTITY_VALIDATION_ALLOWED_VALUE"
RANGE = "ENTITY_VALIDATION_RANGE"
LENGTH = "ENTITY_VALIDATION_LENGTH"
REFERENCE = "ENTITY_VALIDATION_REFERENCE"
UNKNOWN = "ENTITY_VALIDATION_UNKNOWN_COLUMN"
SYSTEM = "ENTITY_VALIDATION_SYSTEM_COLUMN"
UNIQUE = "ENTITY_VALIDATION_UNIQUE"

STATUS = {
    REQUIRED: 400,
    TYPE: 400,
    PATTERN: 400,
    ALLOWED: 400,
    RANGE: 400,
    LENGTH: 400,
    REFERENCE: 400,
    UNKNOWN: 400,
    SYSTEM: 400,
    UNIQUE: 409,
    "ROW_KEY_DELETED": 409,
    "ROW_NOT_FOUND": 404,
    "ROW_DELETED": 409,
    "ROW_NOT_DELETED": 409,
    "ROW_REFERENCED": 409,
    "ROW_VERSION_CONFLICT": 412,
    "APPROVAL_SAME_AUTHOR": 403,
    "APPROVAL_STALE": 409,
    "APPROVAL_REFERENCE_PENDING": 409,
    "APPROVAL_NOT_REQUIRED": 409,
    "PENDING_NOT_FOUND": 404,
    "HISTORY_NOT_ENABLED": 409,
    "VERSION_NOT_FOUND": 404,
}


# --- definitions ----------------------------------------------------------------------------------


class Kind(StrEnum):
    STRING = "string"
    INT = "int"
    DECIMAL = "decimal"
    BOOL = "bool"
    DATE = "date"


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    kind: Kind = Kind.STRING
    required: bool = False
    default: Any = None
    pattern: str | None = None
    max_length: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    allowed: tuple[str, ...] = ()
    refers_to: tuple[str, str] | None = None  # entity and column
    unique: bool = False

    def document(self) -> Values:
        """Return the column as a definition writes it."""
        found = {
            "name": self.name,
            "dataType": self.kind.value,
            "nullable": not self.required,
            "default": self.default,
            "pattern": self.pattern,
            "maxLength": self.max_length,
            "minValue": self.minimum,
            "maxValue": self.maximum,
            "allowedValues": list(self.allowed) or None,
            "unique": self.unique or None,
        }
        if self.refers_to:
            found["reference"] = dict(zip(("entity", "column"), self.refers_to, strict=True))
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Entity:
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ("code",)
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # composite unique
    history: bool = False
    approval: bool = False
    same_author: bool = False

    @property
    def by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @property
    def unique_sets(self) -> list[tuple[str, ...]]:
        single = [(column.name,) for column in self.columns if column.unique]
        return [self.key, *single, *self.sets.values()]

    def document(self) -> Values:
        return {
            "name": self.name,
            "domain": "lab",
            "keyColumns": list(self.key),
            "columns": [column.document() for column in self.columns],
            "uniqueConstraints": [
                {"name": name, "columns": list(columns)} for name, columns in self.sets.items()
            ],
            "historyEnabled": self.history,
            "approvalRequired": self.approval,
            "allowSameAuthorApproval": self.same_author,
        }


# --- what is refused ------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Fault:
    """One fault. *column* is "" where the whole row is meant; *code* may leave a choice (``a|b``).

    *row* is the row that holds a value which was asked for.
    """

    code: str
    column: str = ""
    row: str = ""

    @property
    def codes(self) -> list[str]:
        return self.code.split("|")


class Refused(Exception):
    """The request is refused.

    *faults* are all listed in the answer. *further* may be listed too: they need the other rows,
    and a row that is wrong by itself need not be compared with them.
    """

    def __init__(self, *faults: Fault, further: Iterable[Fault] = ()) -> None:
        super().__init__(", ".join(f"{fault.column}: {fault.code}" for fault in faults))
        self.faults = faults
        self.further = tuple(further)

    @property
    def codes(self) -> set[str]:
        """The codes that the problem document as a whole may have."""
        return {code for fault in (*self.faults, *self.further) for code in fault.codes}


class _Accepted(Exception):
    """The request was only asked about, and is not refused."""


def refused(*codes: str) -> Refused:
    """Return a refusal of the request as such; one of *codes*, where the order is not fixed."""
    return Refused(Fault("|".join(codes)))


# --- the state ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """One version of a row. *action* is the event that made it."""

    number: int
    values: Values
    deleted: bool
    by: str
    action: str


@dataclass
class Row:
    versions: list[Version]  # all of them, whether or not history is kept
    created_by: str

    @property
    def now(self) -> Version:
        return self.versions[-1]


@dataclass
class Proposal:
    operation: str  # create, update, delete, restore
    values: Values
    base: int | None  # the approved version that it rests on
    author: str
    batch: str | None = None
    comment: str | None = None
    state: str = "pending"
    authors: frozenset[str] = frozenset()  # of what it was laid over

    def is_own(self, actor: str) -> bool:
        wrote = self.operation in ("create", "update") and actor in self.authors
        return wrote or actor == self.author


@dataclass(frozen=True)
class Event:
    entity: str
    row: str
    action: str
    actor: str
    version: int
    old: Values | None
    new: Values | None


@dataclass(frozen=True)
class Answer:
    """What is answered: the status, and the row as it stands or is proposed now."""

    status: int
    row: Version | None = None
    proposal: Proposal | None = None


@dataclass
class Imported:
    """What came of an import; *rejected* says why, by the number of the row."""

    received: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    pending: int = 0
    rejected: dict[int, Refused] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Import:
    """One import under way: how it was asked for, and the keys that were met so far."""

    entity: Entity
    mode: str
    actor: str
    key: tuple[str, ...]
    batch: str | None
    new_id: Callable[[Values], str]
    met: set[Any] = field(default_factory=set)
    rejected: set[Any] = field(default_factory=set)

    def key_of(self, values: Values) -> tuple[Any, ...] | None:
        """Return the values that tell which row is meant, None where they tell none."""
        wanted = tuple(values.get(column) for column in self.key)
        return None if any(each is None or isinstance(each, Untyped) for each in wanted) else wanted


class Oracle:
    def __init__(self, *entities: Entity) -> None:
        self.entities = {entity.name: entity for entity in entities}
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in self.entities}
        self.removed: dict[str, dict[str, Row]] = {name: {} for name in self.entities}
        self.proposals: dict[str, dict[str, Proposal]] = {name: {} for name in self.entities}
        self.events: list[Event] = []
        self._only_asked = False
        # The values of rows, and those that pending rows claim, as an import found them.
        self._found: dict[str, Values] = {}
        self._found_claimed: dict[str, Values] = {}

    def would(self, request: Callable[[Oracle], Answer | None]) -> Refused | Answer | None:
        """Return how *request* would be refused, what it answers without an effect, or None."""
        before, self._only_asked = self._only_asked, True
        try:
            return request(self)
        except Refused as refusal:
            return refusal
        except _Accepted:
            return None
        finally:
            self._only_asked = before

    def _begin(self) -> None:
        """Stands before each effect."""
        if self._only_asked:
            raise _Accepted

    # --- reading ----------------------------------------------------------------------------------

    def active(self, entity: str) -> dict[str, Version]:
        return {i: row.now for i, row in self.rows[entity].items() if not row.now.deleted}

    def row(self, entity: str, row_id: str) -> Row:
        found = self.rows[entity].get(row_id)
        if found is None:
            raise refused("ROW_NOT_FOUND")
        return found

    def pending(self, entity: str) -> dict[str, Proposal]:
        return {i: p for i, p in self.proposals[entity].items() if p.state == "pending"}

    def changes(self, entity: str, row_id: str) -> dict[str, dict[str, Any]]:
        """Return what approving a proposal would change: column -> old and new value."""
        proposal, row = self.proposals[entity][row_id], self.rows[entity].get(row_id)
        if proposal.operation not in ("create", "update"):
            return {}
        before = row.now.values if row else dict.fromkeys(proposal.values)
        return {
            name: {"old": before[name], "new": value}
            for name, value in proposal.values.items()
            if before[name] != value
        }

    def is_stale(self, entity: str, row_id: str) -> bool:
        row = self.rows[entity].get(row_id)
        return self.proposals[entity][row_id].base != (row.now.number if row else None)

    def versions(self, entity: str, row_id: str) -> list[Version]:
        """Return all versions of a row, the last one of a row that is gone included."""
        if not self.entities[entity].history:
            raise refused("HISTORY_NOT_ENABLED")
        found = self.rows[entity].get(row_id) or self.removed[entity].get(row_id)
        if found is None:
            raise refused("ROW_NOT_FOUND")
        return found.versions

    # --- writing one row ----------------------------------------------------------------------------

    def create(
        self, name: str, given: Values, *, actor: str, row_id: str, batch: str | None = None
    ) -> Answer:
        entity = self.entities[name]
        values = self._overlaid(entity, self._defaults(entity), given)
        self._judge(entity, values, given, row_id, creating=True)
        if not entity.approval:
            self._insert(name, row_id, values, author=actor, actor=actor)
            return self._answer(name, row_id, 201)
        return self._propose(name, row_id, Proposal("create", values, None, actor, batch))

    def update(
        self,
        name: str,
        row_id: str,
        given: Values,
        *,
        actor: str,
        if_match: int | None = None,
        batch: str | None = None,
    ) -> Answer:
        entity = self.entities[name]
        if entity.approval:
            return self._propose_update(entity, row_id, given, actor, if_match, batch)
        row = self._writable(name, row_id, if_match)
        values = self._overlaid(entity, row.now.values, given)
        self._judge(entity, values, given, row_id)
        if values != row.now.values:
            self._change(name, row_id, values, "data_updated", author=actor, actor=actor)
        return self._answer(name, row_id, 200)

    def delete(
        self, name: str, row_id: str, *, soft: bool, actor: str, if_match: int | None = None
    ) -> Answer:
        entity = self.entities[name]
        if entity.approval and row_id not in self.rows[name]:
            return self._withdraw(name, row_id, actor=actor, if_match=if_match)
        row = self._writable(name, row_id, if_match, even_deleted=not soft)
        if not soft:
            self._refuse_referenced(name, row_id)
        if entity.approval:
            operation = "soft_delete" if soft else "delete"
            proposal = Proposal(operation, row.now.values, row.now.number, actor)
            return self._propose(name, row_id, proposal)
        if soft:
            self._change(
                name,
                row_id,
                row.now.values,
                "data_soft_deleted",
                deleted=True,
                author=actor,
                actor=actor,
            )
            return self._answer(name, row_id, 200)
        self._remove(name, row_id, actor=actor)
        return Answer(204)

    def restore(self, name: str, row_id: str, *, actor: str, if_match: int | None = None) -> Answer:
        entity = self.entities[name]
        row = self._writable(name, row_id, if_match, even_deleted=True)
        if not row.now.deleted:
            raise refused("ROW_NOT_DELETED")
        if entity.approval:
            proposal = Proposal("restore", row.now.values, row.now.number, actor)
            return self._propose(name, row_id, proposal)
        self._change(name, row_id, row.now.values, "data_restored", author=actor, actor=actor)
        return self._answer(name, row_id, 200)

    def restore_version(
        self, name: str, row_id: str, number: int, *, actor: str, if_match: int | None = None
    ) -> Answer:
        entity = self.entities[name]
        if not entity.history:
            raise refused("HISTORY_NOT_ENABLED")
        gone = self.removed[name].get(row_id)
        row = self.rows[name].get(row_id) or gone
        if row is None:
            raise refused("ROW_NOT_FOUND")
        wanted = next((v.values for v in row.versions if v.number == number), None)
        if gone is not None:
            raise refused("ROW_NOT_FOUND", *(["VERSION_NOT_FOUND"] if wanted is None else []))
        if wanted is None:
            self._writable(name, row_id, if_match, unless="VERSION_NOT_FOUND")
        assert wanted is not None
        return self.update(name, row_id, wanted, actor=actor, if_match=if_match)

    # --- approvals ----------------------------------------------------------------------------------

    def approve(self, name: str, row_id: str, *, actor: str) -> Answer:
        entity, proposal = self._decidable(name, row_id)
        if proposal.is_own(actor) and not entity.same_author:
            raise refused("APPROVAL_SAME_AUTHOR")
        row = self.rows[name].get(row_id)
        if (row.now.number if row else None) != proposal.base:
            raise refused("APPROVAL_STALE")
        self._refuse_unapprovable(entity, row_id, proposal)
        self._begin()
        del self.proposals[name][row_id]
        author = proposal.author
        match proposal.operation:
            case "create":
                self._insert(name, row_id, proposal.values, author=author, actor=actor)
            case "update":
                self._change(
                    name, row_id, proposal.values, "data_updated", author=author, actor=actor
                )
            case "restore":
                self._change(
                    name, row_id, proposal.values, "data_restored", author=author, actor=actor
                )
            case "soft_delete":
                self._change(
                    name,
                    row_id,
                    proposal.values,
                    "data_soft_deleted",
                    deleted=True,
                    author=author,
                    actor=actor,
                )
            case _:
                self._remove(name, row_id, actor=actor)
                return Answer(200)
        return self._answer(name, row_id, 200)

    def reject(self, name: str, row_id: str, *, actor: str, comment: str | None) -> Answer:
        _, proposal = self._decidable(name, row_id)
        self._begin()
        self.proposals[name][row_id] = replace(proposal, state="rejected", comment=comment)
        self._tell_rejected(name, row_id, proposal, actor)
        return Answer(200, proposal=self.proposals[name][row_id])

    def _withdraw(self, name: str, row_id: str, *, actor: str, if_match: int | None) -> Answer:
        proposal = self.proposals[name].get(row_id)
        if proposal is None:
            raise refused("ROW_NOT_FOUND")
        if if_match:
            raise refused("ROW_VERSION_CONFLICT")
        self._begin()
        del self.proposals[name][row_id]
        self._tell_rejected(name, row_id, proposal, actor)
        return Answer(204)

    def withdraw(self, name: str, row_id: str, *, actor: str) -> Answer:
        """Remove a proposal, pending or rejected."""
        if not self.entities[name].approval:
            raise refused("APPROVAL_NOT_REQUIRED")
        if row_id not in self.proposals[name]:
            raise refused("PENDING_NOT_FOUND")
        return self._withdraw(name, row_id, actor=actor, if_match=None)

    def decide_batch(
        self, name: str, row_ids: Sequence[str], decide: Callable[[str], Answer]
    ) -> dict[str, str]:
        """Let *decide* approve or reject each row by itself; return the codes of those it cannot."""
        if not self.entities[name].approval:
            raise refused("APPROVAL_NOT_REQUIRED")
        failed = {}
        for row_id in dict.fromkeys(row_ids):
            try:
                decide(row_id)
            except Refused as refusal:
                failed[row_id] = "|".join(sorted(refusal.codes))
        return failed

    def _tell_rejected(self, name: str, row_id: str, proposal: Proposal, actor: str) -> None:
        row = self.rows[name].get(row_id)
        number, old = (row.now.number, row.now.values) if row else (0, None)
        self._tell(name, row_id, "data_rejected", actor, number, old, proposal.values)

    def _decidable(self, name: str, row_id: str) -> tuple[Entity, Proposal]:
        entity = self.entities[name]
        if not entity.approval:
            raise refused("APPROVAL_NOT_REQUIRED")
        proposal = self.proposals[name].get(row_id)
        if proposal is None or proposal.state != "pending":
            raise refused("PENDING_NOT_FOUND")
        return entity, proposal

    def _refuse_unapprovable(self, entity: Entity, row_id: str, proposal: Proposal) -> None:
        if proposal.operation == "delete":
            self._refuse_referenced(entity.name, row_id)
        elif proposal.operation in ("create", "update"):
            waiting = [
                column.name
                for column in entity.columns
                if column.refers_to
                and proposal.values[column.name] is not None
                and not self._is_there(*column.refers_to, proposal.values[column.name])
                and self._is_proposed(*column.refers_to, proposal.values[column.name])
            ]
            if waiting:
                raise refused("APPROVAL_REFERENCE_PENDING")
            self._judge(entity, proposal.values, {}, row_id, approving=True)

    # --- imports ------------------------------------------------------------------------------------

    def bulk(
        self,
        name: str,
        rows: Sequence[Values],
        *,
        mode: str,
        actor: str,
        new_id: Callable[[Values], str],
        key: tuple[str, ...] = (),
        batch: str | None = None,
        told: Container[int] = (),
    ) -> Imported:
        """Import *rows*, one after the other. *new_id* tells the identifier of a row by its values.

        A file is one set, whose rows have no moments between them: a unique value that another row
        has when the import begins is not free, also where an earlier row of the file gives it away.

        *told* are the rows that were told to be rejected: it decides where the interface leaves a
        choice, that is for a row whose key stands in an earlier row that was rejected.
        """
        entity, done = self.entities[name], Imported(received=len(rows))
        work = _Import(
            entity=entity, mode=mode, actor=actor, key=key or entity.key, batch=batch, new_id=new_id
        )
        self._found = {i: row.now.values for i, row in self.rows[name].items()}
        self._found_claimed = self._claims(name)
        for number, given in enumerate(rows, start=1):
            wanted = work.key_of(self._overlaid(entity, {}, given))
            try:
                if number in told and wanted in work.rejected:
                    self._refuse_as_repeated(work, given, wanted)
                self._import_row(work, given, wanted, done)
            except Refused as refusal:
                done.rejected[number] = refusal
                work.rejected |= {wanted} - {None}
        self._found, self._found_claimed = {}, {}
        return done

    def _refuse_as_repeated(
        self, work: _Import, given: Values, wanted: tuple[Any, ...] | None
    ) -> None:
        """Refuse a row as a repeated one, if nothing else stands against it but values that are taken:
        then it may be told either way."""

        def request(oracle: Oracle) -> None:
            oracle._import_row(work, given, wanted, Imported())

        refusal = self.would(request)
        if not isinstance(refusal, Refused):
            self._refuse_repeated(work, given, wanted)
        elif all(fault.code == UNIQUE for fault in refusal.faults):
            repeated = Fault(UNIQUE, work.key[0])
            raise Refused(further=[repeated, *refusal.faults, *refusal.further])

    def _import_row(
        self, work: _Import, given: Values, wanted: tuple[Any, ...] | None, done: Imported
    ) -> None:
        entity, actor, batch = work.entity, work.actor, work.batch
        found = self._find(work, wanted)
        if found is None:
            self._refuse_absent_key(work, given)

            def create(oracle: Oracle, row_id: str = "") -> Answer:
                return oracle.create(entity.name, given, actor=actor, row_id=row_id, batch=batch)

            if isinstance(refusal := self.would(create), Refused):
                raise refusal
            create(self, work.new_id(given))
            work.met |= {wanted} - {None}
            done.pending += entity.approval
            done.inserted += not entity.approval
            return
        if wanted in work.met:
            self._refuse_repeated(work, given, wanted)
        self._refuse_deleted(work, given, found)
        before = len(self.events)
        self.update(entity.name, found, given, actor=actor, batch=batch)
        work.met.add(wanted)
        if len(self.events) == before:
            done.unchanged += 1
        else:
            done.pending += entity.approval
            done.updated += not entity.approval

    def _find(self, work: _Import, wanted: tuple[Any, ...] | None) -> str | None:
        """Return the row with the key *wanted*: approved, else a pending creation."""
        if work.mode == "insert" or wanted is None:
            return None
        name = work.entity.name
        images = {row_id: row.now.values for row_id, row in self.rows[name].items()}
        new = {i: p.values for i, p in self.pending(name).items() if p.operation == "create"}
        matching = (i for i, values in {**new, **images}.items() if work.key_of(values) == wanted)
        return next(matching, None)

    def _refuse_absent_key(self, work: _Import, given: Values) -> None:
        values = self._overlaid(work.entity, self._defaults(work.entity), given)
        absent = [c for c in work.key if values[c] is None and not work.entity.by_name[c].required]
        if work.mode == "upsert" and absent:
            more = self._faults(work.entity, values, given, with_proposals=work.entity.approval)
            raise Refused(*(Fault(REQUIRED, column) for column in absent), *more)

    def _refuse_repeated(
        self, work: _Import, given: Values, wanted: tuple[Any, ...] | None
    ) -> None:
        """Refuse a row whose key stands in an earlier row; what else is wrong with it counts more."""
        found, entity, approval = self._find(work, wanted), work.entity, work.entity.approval
        values = self.rows[entity.name][found].now.values if found in self.rows[entity.name] else {}
        values = self._overlaid(entity, values or self._defaults(entity), given)
        faults = self._faults(entity, values, given, with_proposals=approval)
        repeated = [Fault(UNIQUE, work.key[0])]
        taken = self._taken(entity, values, "", creating=False, with_proposals=approval)
        raise Refused(*(faults or repeated), further=[*(repeated if faults else []), *taken])

    def _refuse_deleted(self, work: _Import, given: Values, row_id: str) -> None:
        row = self.rows[work.entity.name].get(row_id)
        if row is None or not row.now.deleted:
            return
        values = self._overlaid(work.entity, row.now.values, given)
        more = self._faults(work.entity, values, given, with_proposals=work.entity.approval)
        raise Refused(Fault("ROW_KEY_DELETED|ROW_DELETED", work.key[0], row_id), further=more)

    # --- judging ------------------------------------------------------------------------------------

    def _writable(
        self,
        name: str,
        row_id: str,
        if_match: int | None,
        *,
        even_deleted: bool = False,
        unless: str = "",
    ) -> Row:
        """Return the row if a writer may write to it; which of several reasons is told is free."""
        row = self.row(name, row_id)
        reasons = [unless] if unless else []
        if row.now.deleted and not even_deleted:
            reasons.append("ROW_DELETED")
        if if_match is not None and if_match != row.now.number:
            reasons.append("ROW_VERSION_CONFLICT")
        if reasons:
            raise refused(*reasons)
        return row

    def _defaults(self, entity: Entity) -> Values:
        return {column.name: typed(column, column.default) for column in entity.columns}

    def _overlaid(self, entity: Entity, values: Values, given: Values) -> Values:
        """Return *values* with those *given* in their types; what is of no type stays as it is."""
        found = dict(values)
        for name, raw in given.items():
            if name in entity.by_name:
                try:
                    found[name] = typed(entity.by_name[name], raw)
                except ValueError:
                    found[name] = Untyped(raw)
        return found

    def _judge(
        self,
        entity: Entity,
        values: Values,
        given: Values,
        row_id: str,
        *,
        creating: bool = False,
        approving: bool = False,
    ) -> None:
        faults = self._faults(entity, values, given, with_proposals=not approving)
        further = list(
            self._taken(entity, values, row_id, creating=creating, with_proposals=not approving)
        )
        if faults:
            raise Refused(*faults, further=further)
        if further:
            raise Refused(*further)

    def _faults(
        self, entity: Entity, values: Values, given: Values, *, with_proposals: bool
    ) -> list[Fault]:
        """Return what is wrong with *values* by themselves and as to what they refer to."""
        faults = [*_names_at_fault(entity, given), *_values_at_fault(entity, values)]
        faults += self._references_at_fault(entity, values, with_proposals=with_proposals)
        return faults

    def _references_at_fault(
        self, entity: Entity, values: Values, *, with_proposals: bool
    ) -> Iterator[Fault]:
        for column in entity.columns:
            value = values[column.name]
            if not column.refers_to or value is None or isinstance(value, Untyped):
                continue
            if self._is_there(*column.refers_to, value):
                continue
            if not (with_proposals and self._is_proposed(*column.refers_to, value)):
                yield Fault(REFERENCE, column.name)

    def _is_there(self, name: str, column: str, value: Any) -> bool:
        return any(row.now.values[column] == value for row in self.rows[name].values())

    def _is_proposed(self, name: str, column: str, value: Any) -> bool:
        return any(p.values[column] == value for p in self.pending(name).values())

    def _taken(
        self, entity: Entity, values: Values, row_id: str, *, creating: bool, with_proposals: bool
    ) -> Iterator[Fault]:
        for columns in entity.unique_sets:
            wanted = [values[column] for column in columns]
            if any(value is None or isinstance(value, Untyped) for value in wanted):
                continue
            named = columns[0] if len(columns) == 1 else ""
            holder = self._holder(entity, columns, wanted, row_id)
            if holder and not self.rows[entity.name][holder].now.deleted:
                yield Fault(UNIQUE, named, holder)
            elif holder and creating and columns == entity.key:
                yield Fault("ROW_KEY_DELETED", named, holder)
            elif holder:
                yield Fault(f"ROW_KEY_DELETED|{UNIQUE}", named, holder)
            elif with_proposals and self._claimed(entity, columns, wanted, row_id):
                yield Fault(UNIQUE, named)

    def _holder(
        self, entity: Entity, columns: tuple[str, ...], wanted: list[Any], row_id: str
    ) -> str:
        """Return the other approved row that has the values *wanted*, a deleted one too, or ""."""
        now = {i: row.now.values for i, row in self.rows[entity.name].items()}
        for other_id, values in (*self._found.items(), *now.items()):
            if other_id != row_id and [values[column] for column in columns] == wanted:
                return other_id
        return ""

    def _claimed(
        self, entity: Entity, columns: tuple[str, ...], wanted: list[Any], row_id: str
    ) -> bool:
        """Whether another pending row asks for the values *wanted*, which are not the row's own."""
        row = self.rows[entity.name].get(row_id)
        if row is not None and [row.now.values[column] for column in columns] == wanted:
            return False
        claims = (*self._found_claimed.items(), *self._claims(entity.name).items())
        return any(
            other_id != row_id and [values[column] for column in columns] == wanted
            for other_id, values in claims
        )

    def _claims(self, name: str) -> dict[str, Values]:
        """Return the values that nobody else may propose, by the row that asks for them."""
        pending = self.pending(name).items()
        return {i: p.values for i, p in pending if p.operation in ("create", "update")}

    def _refuse_referenced(self, name: str, row_id: str) -> None:
        if any(True for _ in self._referrers(name, self.rows[name][row_id].now.values)):
            raise refused("ROW_REFERENCED")

    def _referrers(self, name: str, values: Values) -> Iterator[tuple[str, str, Column]]:
        """Yield the approved rows, deleted ones too, that refer to a row with *values*."""
        for other, entity in self.entities.items():
            for column in entity.columns:
                if not column.refers_to or column.refers_to[0] != name:
                    continue
                wanted = values[column.refers_to[1]]
                for other_id, row in self.rows[other].items():
                    if wanted is not None and row.now.values[column.name] == wanted:
                        yield other, other_id, column

    # --- changing -----------------------------------------------------------------------------------

    def _insert(self, name: str, row_id: str, values: Values, *, author: str, actor: str) -> None:
        self._begin()
        first = Version(1, values, False, author, "data_created")
        self.rows[name][row_id] = Row([first], author)
        self._tell(name, row_id, "data_created", actor, 1, None, values)

    def _change(
        self,
        name: str,
        row_id: str,
        values: Values,
        action: str,
        *,
        deleted: bool = False,
        author: str,
        actor: str,
    ) -> None:
        self._begin()
        row = self.rows[name][row_id]
        before = row.now
        # A new key value takes those along that refer to the old one.
        followers = list(self._referrers(name, before.values))
        number = before.number + 1
        row.versions.append(Version(number, values, deleted, author, action))
        self._tell(name, row_id, action, actor, number, before.values, values)
        for other, other_id, column in followers:
            assert column.refers_to is not None
            target = column.refers_to[1]
            if values[target] == before.values[target]:
                continue
            mine = self.rows[other][other_id].now
            self._rebase(other, other_id)
            self._change(
                other,
                other_id,
                {**mine.values, column.name: values[target]},
                "data_updated",
                deleted=mine.deleted,
                author=author,
                actor=actor,
            )
        self._carry(name, before.values, values, actor)

    def _rebase(self, name: str, row_id: str) -> None:
        """A proposal for a row that is only relinked rests on the row as it is then."""
        standing, number = self.proposals[name].get(row_id), self.rows[name][row_id].now.number
        if standing is not None and standing.base == number:
            self.proposals[name][row_id] = replace(standing, base=number + 1)

    def _carry(self, name: str, before: Values, after: Values, actor: str) -> None:
        """Proposals that refer to an old key value are given the new one."""
        for other, entity in self.entities.items():
            for column in entity.columns:
                if not column.refers_to or column.refers_to[0] != name:
                    continue
                old, new = before[column.refers_to[1]], after[column.refers_to[1]]
                for row_id, proposal in self.proposals[other].items():
                    if old in (None, new) or proposal.values[column.name] != old:
                        continue
                    values = {**proposal.values, column.name: new}
                    self.proposals[other][row_id] = replace(proposal, values=values)
                    number = proposal.base or 0
                    self._tell(other, row_id, "data_edited", actor, number, proposal.values, values)

    def _remove(self, name: str, row_id: str, *, actor: str) -> None:
        self._begin()
        row = self.rows[name].pop(row_id)
        self.removed[name][row_id] = row
        self._tell(name, row_id, "data_deleted", actor, row.now.number, row.now.values, None)

    def _propose_update(
        self,
        entity: Entity,
        row_id: str,
        given: Values,
        actor: str,
        if_match: int | None,
        batch: str | None,
    ) -> Answer:
        name, standing = entity.name, self.proposals[entity.name].get(row_id)
        approved: Values | None = None
        base: int | None = None
        if row_id in self.rows[name]:
            row = self._writable(name, row_id, if_match)
            approved, base = row.now.values, row.now.number
        elif standing is None:
            raise refused("ROW_NOT_FOUND")
        elif if_match:
            raise refused("ROW_VERSION_CONFLICT")
        overlaid = standing is not None and standing.base == base
        under = standing.values if standing and overlaid else approved
        assert under is not None
        values = self._overlaid(entity, under, given)
        self._judge(entity, values, given, row_id)
        if values == approved and row_id not in self.pending(name):
            return self._answer(name, row_id, 200)
        operation = "create" if approved is None else "update"
        return self._propose(name, row_id, Proposal(operation, values, base, actor, batch))

    def _propose(self, name: str, row_id: str, proposal: Proposal) -> Answer:
        """Save *proposal* in the place of the one that stands, whose batch it stays in."""
        self._begin()
        standing, row = self.proposals[name].get(row_id), self.rows[name].get(row_id)
        before = row.now.values if row else None
        if standing is not None and standing.state == "pending":
            before = standing.values
        if standing is not None and standing.base == proposal.base:
            proposal = replace(
                proposal,
                batch=proposal.batch or standing.batch,
                authors=standing.authors | {standing.author},
            )
        self.proposals[name][row_id] = proposal
        base = proposal.base or 0
        self._tell(name, row_id, "data_edited", proposal.author, base, before, proposal.values)
        return Answer(202, proposal=proposal)

    def _answer(self, name: str, row_id: str, status: int) -> Answer:
        return Answer(status, row=self.rows[name][row_id].now)

    def _tell(
        self,
        name: str,
        row_id: str,
        action: str,
        actor: str,
        version: int,
        old: Values | None,
        new: Values | None,
    ) -> None:
        self.events.append(Event(name, row_id, action, actor, version, old, new))


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Untyped:
    """A value that is of no type: it breaks no other rule."""

    raw: Any


def typed(column: Column, raw: Any) -> Any:
    """Return *raw* in the type of *column*.

    Raises:
        ValueError: it is no value of that type.
    """
    if raw is None:
        return None
    match column.kind:
        case Kind.STRING if isinstance(raw, str):
            return raw
        case Kind.BOOL if isinstance(raw, bool) or raw in ("true", "false"):
            return raw in (True, "true")
        case Kind.INT if not isinstance(raw, bool | float | Decimal):
            return int(raw)
        case Kind.DECIMAL if not isinstance(raw, bool):
            try:
                return Decimal(str(raw))
            except InvalidOperation:
                raise ValueError(raw) from None
        case Kind.DATE if isinstance(raw, str):
            return date.fromisoformat(raw).isoformat()
    raise ValueError(raw)


def _names_at_fault(entity: Entity, given: Values) -> Iterator[Fault]:
    for name in given:
        if name.startswith("_sys_"):
            yield Fault(SYSTEM, name)
        elif name not in entity.by_name:
            yield Fault(UNKNOWN, name)


def _values_at_fault(entity: Entity, values: Values) -> Iterator[Fault]:
    for column in entity.columns:
        value = values[column.name]
        if isinstance(value, Untyped):
            yield Fault(TYPE, column.name)
        elif value is None:
            if column.required:
                yield Fault(REQUIRED, column.name)
        else:
            yield from _rules_broken(column, value)


def _rules_broken(column: Column, value: Any) -> Iterator[Fault]:
    if column.pattern is not None and not re.fullmatch(column.pattern, value):
        yield Fault(PATTERN, column.name)
    if column.allowed and value not in column.allowed:
        yield Fault(ALLOWED, column.name)
    if column.max_length is not None and len(value) > column.max_length:
        yield Fault(LENGTH, column.name)
    below = column.minimum is not None and value < column.minimum
    above = column.maximum is not None and value > column.maximum
    if below or above:
        yield Fault(RANGE, column.name)
