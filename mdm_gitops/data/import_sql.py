"""Judging the rows of an import in SQL, set by set: from the staged texts to what becomes of each row.

Nothing is judged in another way than single rows are: the conditions are those of ``data.judging``, and
whatever depends on who asks comes from the builders of ``write_sql`` and ``proposals_sql``. What
differs is the shape. A million rows go through a few plain statements over temporary tables, each of
which reads them once, instead of one statement with common tables that cannot have statistics.

``given`` holds the texts (``data.staging``), ``next`` the rows as they would be, each with its
``_status``. A good row is ``create``, ``update`` or ``unchanged``, every other status is a reason not to
write it, and one line of ``failed`` or more tells it (``import_faults``). Names in the statements: ``s`` the
texts by column, ``g`` what was given in the types of the columns, ``o`` the approved row, ``e`` what is
proposed for it already, ``n`` the new row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from mdm_gitops.data import judging
from mdm_gitops.data.csv_text import restore_sql
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.proposals_sql import CLAIMS, OVERLAID, ProposalBuilder
from mdm_gitops.data.row_id import new_row_id
from mdm_gitops.data.row_json import MASK
from mdm_gitops.data.selecting import predicate_values
from mdm_gitops.data.write_sql import Builder, Operation, differs_sql
from mdm_gitops.model import Action
from mdm_gitops.plan.physical import Role

# A function takes at most 100 arguments (PostgreSQL: FUNC_MAX_ARGS).
_ARGUMENTS: Final = 90
_ROW_BITS: Final = 48


class What(StrEnum):
    """What becomes of a row of an import."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    INVALID = "invalid"  # its values break rules
    HIDDEN = "hidden"  # its key belongs to a row that the caller may not see
    DELETED = "deleted"  # its key belongs to a deleted row
    OUTSIDE = "outside"  # of what the caller may write
    AGAIN = "again"  # its key stands in an earlier row
    TAKEN = "taken"  # a unique value belongs to another row
    LATER = "later"  # a unique value stands in an earlier row
    ASTRAY = "astray"  # it refers to a row of the same file that is not written
    REFERENCED = "referenced"  # it cannot be deleted: other rows refer to it


GOOD: Final = "('create', 'update', 'unchanged')"
WRITTEN: Final = "('create', 'update')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What all rows of an import share: when they were written, and what their new ids begin with."""

    at: datetime
    first_id: UUID

    @staticmethod
    def now(at: datetime) -> Moment:
        """Return a moment whose ids are new: a UUID of version 7 with room for the row's number."""
        number = new_row_id().int >> _ROW_BITS << _ROW_BITS
        return Moment(at=at, first_id=UUID(int=number))

    @property
    def last_id(self) -> UUID:
        return UUID(int=self.first_id.int | 2**_ROW_BITS - 1)

    @property
    def values(self) -> dict[str, Any]:
        prefix = str(self.first_id)[:24]
        return {
            "moment": self.at,
            "prefix": prefix,
            "first_id": self.first_id,
            "last_id": self.last_id,
        }


@dataclass(kw_only=True)
class ImportSql(ProposalBuilder):
    """The statements for one import. ``source`` has typed columns in the order of *staged*.

    *staged* are the physical names of the staging table's columns; *key* is empty to insert only.
    Where *escaped*, texts are those of an export's CSV.
    """

    key: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    judged: bool = False  # each row says itself what was given, and what is wrong already
    escaped: bool = False
    doing: Operation = Operation.UPDATE  # what is done to rows that are there
    _names: dict[str, str] = field(default_factory=dict)

    @cached_property
    def proposes(self) -> bool:
        return self.target.entity.approval_required

    @property
    def upserts(self) -> bool:
        return bool(self.key)

    @cached_property
    def sealed(self) -> tuple[str, ...]:
        """The given columns whose values the caller is not shown: a mask in them means no value."""
        if self.asking.rights(self.target.entity).sees_restricted:
            return ()
        restricted = {each.folded for each in self.target.entity.columns if each.restricted}
        return tuple(name for name in self.staged if name in restricted)

    @cached_property
    def own_references(self) -> tuple[str, ...]:
        """The columns that refer to rows of the same entity, and so perhaps of the same file."""
        name = self.target.name
        return tuple(c for c, (entity, _) in self.target.references.items() if entity == name)

    def values(self, **more: Any) -> dict[str, Any]:
        """Return the parameters of all statements that were made so far."""
        placed = predicate_values(self.asking, self.predicates)
        return {"actor": self.asking.principal.actor, **placed, **more}

    @property
    def is_earlier(self) -> str:
        """The end of the sentence about a value which the row ``d.first`` has first."""
        return "' stands in row ' || d.first || ' already'"

    # --- the tables ---

    def create_tables(self) -> Iterator[str]:
        """Yield the statements that make the tables beside ``given``."""
        columns = [f'"{name}" {self.target.type_of(name)}' for name in self.target.columns]
        old = f', "_old" {self.target.main_sql}' if self.upserts else ""
        if self.upserts and self.proposes:
            old += f', "_proposed" {self.target.table_sql(Role.EDIT)}'
        yield (
            'CREATE TEMP TABLE "next" ("_pos" bigint, "_id" uuid, "_status" text, "_is_new" boolean,'
            f' "_own" json, {", ".join(columns)}{old}) ON COMMIT DROP'
        )
        yield (
            'CREATE TEMP TABLE "failed" ("_pos" bigint, "column" text, code text, message text,'
            " value text) ON COMMIT DROP"
        )

    # --- what was given ---

    def texts_sql(self) -> str:
        """Return the staged texts by column; a mask that came back is no value."""
        members = ['x."_pos"']
        members += ['x."_given"', 'x."_own"'] if self.judged else []
        for number, name in enumerate(self.staged):
            text = f'x."c{number}"'
            if name in self.sealed and not self.judged:
                text = f"NULLIF({text}, '{MASK}')"
            elif self.escaped and self._is_text(name):
                text = restore_sql(text)
            members.append(f'{text} AS "{name}"')
        return f'SELECT {", ".join(members)} FROM pg_temp."given" x'

    def _is_text(self, name: str) -> bool:
        return self.target.entity.column_by_name[name].data_type.is_text

    def _typed_sql(self) -> str:
        """Return what was given in the types of the columns, worked out once per row."""
        tested = self._tested("s")
        members = ['s."_pos"', f'{_nonnulls(tested)} AS "_texts"']
        members.append('s."_own"' if self.judged else 'NULL::json AS "_own"')
        if self.source.marked:
            members.append(f'{self._marks()} AS "_given"')
        members += [
            f'{judging.typed_sql(self.target, name, alias="s")} AS "{name}"' for name in self.staged
        ]
        return f"SELECT {', '.join(members)} FROM ({self.texts_sql()}) s OFFSET 0"

    def _tested(self, alias: str) -> list[str]:
        """Return the columns in which a text can be of the wrong type: there it has become NULL."""
        return [f'{alias}."{name}"' for name in self.staged if not self._is_text(name)]

    def _marks(self) -> str:
        if self.judged:
            return 's."_given"'
        marks = (
            f"CASE WHEN s.\"{name}\" IS NULL THEN '0' ELSE '1' END"
            if name in self.sealed
            else "'1'"
            for name in self.staged
        )
        return " || ".join(marks)

    # --- the rows as they would be ---

    def fill_next(self) -> str:
        """Return the statement that puts all rows into ``next``, each with its first status."""
        names = [*self.target.columns, *self._kept_rows()]
        columns = ", ".join(f'"{name}"' for name in ("_pos", "_id", "_is_new", "_own", *names))
        values = ", ".join(
            f'CASE WHEN n."_status" IN {WRITTEN} THEN n."{name}" END'
            if name in self._kept_rows()
            else f'n."{name}"'
            for name in names
        )
        return (
            f'INSERT INTO pg_temp."next" ("_status", {columns}) SELECT n."_status", n."_pos", n."_id",'
            f' n."_is_new", n."_own", {values} FROM ({self._with_status()} OFFSET 0) n'
        )

    def _kept_rows(self) -> tuple[str, ...]:
        if not self.upserts:
            return ()
        return ("_old", "_proposed") if self.proposes else ("_old",)

    def _with_status(self) -> str:
        return (
            f"SELECT n.*, CASE {_whens(self._cases())} WHEN n.\"_is_new\" THEN '{What.CREATE}'"
            f" ELSE '{What.UPDATE}' END AS \"_status\" FROM ({self._drawn_sql()} OFFSET 0) n"
            f"{self._row_aliases()}"
        )

    def _row_aliases(self) -> str:
        aliases = {"_old": "o", "_proposed": "e"}
        return "".join(
            f' CROSS JOIN LATERAL (SELECT (n."{name}").*) {aliases[name]}'
            for name in self._kept_rows()
        )

    def _drawn_sql(self) -> str:
        """Return the new rows: what was given, laid over what is there, else over the defaults."""
        typed = f"({self._typed_sql()}) g"
        new_id = "(%(prefix)s || lpad(to_hex(g.\"_pos\"), 12, '0'))::uuid"
        untyped = f'g."_texts" <> {_nonnulls(self._tested("g"))}'
        head = f'SELECT g."_pos", g."_own", {untyped} AS "_untyped"'
        if not self.upserts:
            return f'{head}, {new_id} AS "_id", true AS "_is_new"{self._new_values()} FROM {typed}'
        given = " OR ".join(self._was_given(name) for name in self.sealed) or "false"
        found = 'o."_sys_id"'
        more, rows = ', o AS "_old"', f"{typed} {self.matching()}"
        if self.proposes:
            found = 'coalesce(o."_sys_id", e."_sys_id")'
            more += ', e AS "_proposed"'
        return (
            f'{head}, coalesce({found}, {new_id}) AS "_id", {found} IS NULL AS "_is_new",'
            f' {given} AS "_is_sealed"{more}{self._merged_values()} FROM {rows}'
        )

    def matching(self) -> str:
        """Return the joins of ``g`` to the row that has the key: approved, else proposed as a new one."""
        same = " AND ".join(f'o."{name}" = g."{name}"' for name in self.key)
        main = f"LEFT JOIN {self.target.main_sql} o ON {same}"
        if not self.proposes:
            return main
        edit = self.target.table_sql(Role.EDIT)
        proposed = " AND ".join(f'c."{name}" = g."{name}"' for name in self.key)
        creation = "c.\"_sys_operation\" = 'create' AND c.\"_sys_state\" = 'pending'"
        return (
            f"{main} LEFT JOIN {edit} c ON {proposed} AND {creation}"
            ' AND c."_sys_base_version" IS NULL AND o."_sys_id" IS NULL'
            f' LEFT JOIN {edit} e ON e."_sys_id" = coalesce(o."_sys_id", c."_sys_id")'
        )

    def _merged_values(self) -> str:
        """Return each value: given, else what is proposed or approved, else the default."""
        found = []
        for name in self.target.columns:
            there = f'o."{name}"'
            if self.proposes:
                there = f'CASE WHEN {OVERLAID} THEN e."{name}" ELSE {there} END'
            default = judging.default_sql(self.target, name)
            is_new = self._found("IS NULL")
            value = f"CASE WHEN {is_new} THEN {default} ELSE {there} END"
            if name in self.staged:
                given = f'g."{name}"'
                marked = self.source.marked and (self.judged or name in self.sealed)
                value = (
                    f"CASE WHEN {self._was_given(name)} THEN {given} ELSE {value} END"
                    if marked
                    else given
                )
            found.append(f', {value} AS "{name}"')
        return "".join(found)

    def _found(self, test: str) -> str:
        found = 'coalesce(o."_sys_id", e."_sys_id")' if self.proposes else 'o."_sys_id"'
        return f"{found} {test}"

    # --- what stands against a row ---

    def _cases(self) -> list[tuple[str, str]]:
        """Return the conditions on a row and its status where they hold, the first that does counts."""
        wrong = judging.any_sql(self.value_faults)
        invalid = [('n."_own" IS NOT NULL OR n."_untyped"', What.INVALID), (wrong, What.INVALID)]
        outside = (self._refused(Action.WRITE, "n"), What.OUTSIDE)
        if not self.upserts:
            return [*invalid, outside]
        return [*self._standing_cases(), *invalid, (self._same(), What.UNCHANGED), outside]

    def _standing_cases(self) -> list[tuple[str, str]]:
        there = 'o."_sys_id" IS NOT NULL'
        cases = [
            (there, self._refused(Action.READ, "o"), What.HIDDEN),
            (there, self._refused(Action.WRITE, "o"), What.OUTSIDE),
        ]
        if self.proposes:
            proposed, alone = 'e."_sys_id" IS NOT NULL', 'o."_sys_id" IS NULL'
            cases += [
                (f"{proposed} AND {alone}", self._refused(Action.READ, "e"), What.HIDDEN),
                (proposed, self._refused(Action.READ, "e"), What.OUTSIDE),
                (proposed, self._refused(Action.WRITE, "e"), What.OUTSIDE),
            ]
        found = [(f"{before} AND {sql}", what) for before, sql, what in cases if sql != "false"]
        return [*found, ('coalesce(o."_sys_is_deleted", false)', What.DELETED)]

    def _same(self) -> str:
        """Return whether nothing would change. A value that is not shown always counts as a change:
        else whoever may write it could find out what it is."""
        same = f'NOT n."_is_new" AND NOT n."_is_sealed" AND NOT ({differs_sql(self._compared)})'
        if self.proposes:
            same = f"o.\"_sys_id\" IS NOT NULL AND coalesce(e.\"_sys_state\", '') <> 'pending' AND {same}"
        return same

    @property
    def _compared(self) -> tuple[str, ...]:
        return self.target.columns if self.proposes else self.staged

    @cached_property
    def value_faults(self) -> tuple[Fault, ...]:
        """What can be wrong with a row ``n``. A row that is there is judged by what is given of it; where
        it is proposed, as a whole: what it lies over may refer to what is gone by now."""
        judged = self.target.columns if self.proposes else self.staged
        given = self._value_faults("n", judged)
        rest = [name for name in self.target.columns if name not in judged]
        faults = [*given, *self._of_new_rows(self._value_faults("n", rest)), *self._key_faults()]
        return tuple(faults)

    def _of_new_rows(self, faults: Sequence[Fault]) -> Iterator[Fault]:
        for fault in faults:
            violated = f'n."_is_new" AND ({fault.violated})' if self.upserts else fault.violated
            yield Fault(code=fault.code, column=fault.column, violated=violated)

    def _key_faults(self) -> Iterator[Fault]:
        """Yield what else is wrong with the values that tell which row is meant: being absent."""
        for name in self.key:
            if self.target.entity.column_by_name[name].nullable:
                yield Fault(
                    code="ENTITY_VALIDATION_REQUIRED_FIELD",
                    column=name,
                    violated=f'n."{name}" IS NULL',
                )

    @cached_property
    def type_faults(self) -> tuple[Fault, ...]:
        """What can be wrong with the texts ``s``."""
        return tuple(judging.type_faults(self.target, self.staged, alias="s"))

    def _reference_faults(self, alias: str, columns: Sequence[str]) -> list[Fault]:
        """References to the same entity are followed later, when it is known what stands in the file."""
        others = [name for name in columns if name not in self.own_references]
        if self.proposes:
            return super()._reference_faults(alias, others)
        return Builder._reference_faults(self, alias, others)

    # --- one row against the others ---

    def mark_repeated(self) -> str:
        """Return the statement that marks rows whose row has been met in the file before."""
        return f"""UPDATE pg_temp."next" n SET "_status" = '{What.AGAIN}' FROM (
  SELECT x."_id", min(x."_pos") AS first FROM pg_temp."next" x
   WHERE x."_status" IN {GOOD} AND NOT x."_is_new" GROUP BY x."_id" HAVING count(*) > 1) d
 WHERE n."_id" = d."_id" AND n."_pos" <> d.first AND n."_status" IN {GOOD}"""

    @cached_property
    def unique_sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of columns in which rows of this import can have values that are taken."""
        columns = self.target.main.columns
        return tuple(
            unique
            for unique in self.target.unique_sets
            if all(name in self.staged or columns[name].default is not None for name in unique)
            or (self.upserts and set(unique) & set(self.staged))
        )

    def mark_taken(self) -> Iterator[str]:
        """Yield the statements that mark rows whose unique values belong to other rows."""
        for unique in self.unique_sets:
            if set(unique) != set(self.key):  # by those the row itself was found
                yield self._mark_taken(unique)
            elif self.proposes:
                yield self._mark_claimed(unique)

    def _mark_claimed(self, key: tuple[str, ...]) -> str:
        """Return the statement that marks new rows whose key another row is to get: nobody knows yet
        whether it will, and it is not the row that is meant."""
        same = " AND ".join(f'u."{name}" = n."{name}"' for name in key)
        return (
            f'UPDATE pg_temp."next" n SET "_status" = \'{What.TAKEN}\''
            f" FROM {self.target.table_sql(Role.EDIT)} u"
            f" WHERE n.\"_status\" = '{What.CREATE}' AND {same} AND {CLAIMS}"
        )

    def _mark_taken(self, unique: tuple[str, ...]) -> str:
        same = " AND ".join(f'u."{name}" = n."{name}"' for name in unique)
        other = f'{same} AND u."_sys_id" <> n."_id"'
        taken = f'UPDATE pg_temp."next" n SET "_status" = \'{What.TAKEN}\''
        judged = f'n."_status" IN {WRITTEN}'
        if not self.proposes:
            return f"{taken} FROM {self.target.main_sql} u WHERE {judged} AND {other}"
        edit = self.target.table_sql(Role.EDIT)
        rows = 'SELECT n."_pos" FROM pg_temp."next" n JOIN'
        # Two questions: each is answered by a join of its own.
        return (
            f'{taken} WHERE {judged} AND n."_pos" IN ({rows} {self.target.main_sql} u ON {other}'
            f" UNION ALL {rows} {edit} u ON {other} AND {CLAIMS})"
        )

    def mark_later(self) -> Iterator[str]:
        """Yield the statements that mark all but the first of rows with the same unique values, also
        where the first is marked itself: ``revive_later`` decides row by row."""
        for unique in self.unique_sets:
            columns = ", ".join(f'x."{name}"' for name in unique)
            given = " AND ".join(f'x."{name}" IS NOT NULL' for name in unique)
            same = " AND ".join(f'n."{name}" = d."{name}"' for name in unique)
            yield f"""UPDATE pg_temp."next" n SET "_status" = '{What.LATER}' FROM (
  SELECT {columns}, min(x."_pos") AS first FROM pg_temp."next" x
   WHERE x."_status" IN ({WRITTEN[1:-1]}, '{What.LATER}') AND {given}
   GROUP BY {columns} HAVING count(*) > 1) d
 WHERE {same} AND n."_pos" > d.first AND n."_status" IN {WRITTEN}"""

    def revive_later(self) -> str:
        """Return the statement that takes back marks of rows which gave way to rows that are not
        written either. It is to be repeated as long as it finds some."""
        free, first = [], []
        for unique in self.unique_sets:
            same = " AND ".join(f'x."{name}" = c."{name}"' for name in unique)
            free.append(
                f'NOT EXISTS (SELECT FROM pg_temp."next" x WHERE {same} AND x."_status" IN {GOOD})'
            )
            same = " AND ".join(f'y."{name}" = c."{name}"' for name in unique)
            first.append(f'NOT EXISTS (SELECT FROM free y WHERE {same} AND y."_pos" < c."_pos")')
        return f"""WITH free AS MATERIALIZED (SELECT c.* FROM pg_temp."next" c
   WHERE c."_status" = '{What.LATER}' AND {" AND ".join(free)})
UPDATE pg_temp."next" n
   SET "_status" = CASE WHEN n."_is_new" THEN '{What.CREATE}' ELSE '{What.UPDATE}' END
  FROM free c WHERE c."_pos" = n."_pos" AND {" AND ".join(first)}"""

    def follow_own_references(self) -> Iterator[str]:
        """Yield the statements that mark rows which refer to a row that is neither there nor in the
        file, directly or through other rows of the file."""
        if not self.own_references:
            return
        yield (
            'CREATE TEMP TABLE "leads" ("_pos" bigint, "column" text, "to" bigint) ON COMMIT DROP'
        )
        for name in self.own_references:
            yield self._leads(name)
        yield 'CREATE INDEX ON pg_temp."leads" ("to")'
        yield f"""WITH RECURSIVE astray AS (
  SELECT l."_pos" FROM pg_temp."leads" l WHERE l."to" IS NULL
  UNION SELECT l."_pos" FROM astray a JOIN pg_temp."leads" l ON l."to" = a."_pos")
UPDATE pg_temp."next" n SET "_status" = '{What.ASTRAY}' FROM astray a WHERE n."_pos" = a."_pos\""""

    def _leads(self, name: str) -> str:
        """Return the statement that finds the row of the file to which each row refers by *name*, if
        there is none in the tables."""
        entity, key = self.target.references[name]
        value = f'n."{name}"'
        seen = self._visible_reference(entity, "m")
        there = f'm."{key}" = {value}' + (f" AND ({seen})" if seen else "")
        missing = f"NOT EXISTS (SELECT FROM {self.target.main_sql} m WHERE {there})"
        if self.proposes:
            missing += f" AND NOT {self._proposed_reference(entity, key, value)}"
        return f"""INSERT INTO pg_temp."leads" ("_pos", "column", "to")
SELECT n."_pos", '{name}', x.first FROM pg_temp."next" n LEFT JOIN (
  SELECT y."{key}" AS key, min(y."_pos") AS first FROM pg_temp."next" y
   WHERE y."_status" IN {GOOD} AND y."{key}" IS NOT NULL GROUP BY y."{key}") x ON x.key = {value}
 WHERE n."_status" IN {WRITTEN} AND {value} IS NOT NULL AND {missing}"""


def _whens(cases: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"WHEN {sql} THEN '{what}'" for sql, what in cases if sql != "false")


def _nonnulls(columns: Sequence[str]) -> str:
    groups = (columns[n : n + _ARGUMENTS] for n in range(0, len(columns), _ARGUMENTS))
    return " + ".join(f"num_nonnulls({', '.join(group)})" for group in groups) or "0"


Counts = Mapping[What, int]
