"""The statements that a bulk action runs on a piece of its rows: those of an import over other rows.

An import that finds its rows by their identifier and gives each the same values is an update of many; so the
judge, the writing, history, events and proposals are those of ``import_sql`` and ``import_write``. What is added
here are deletions. The rows are those of ``matched`` (``data.bulk_matched``) from ``after`` to ``until``; the
values have been judged before (``constant_faults``), for they are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mdm_gitops.data import judging
from mdm_gitops.data.import_sql import ImportSql, What
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.target import Referrer
from mdm_gitops.data.write_sql import Operation
from mdm_gitops.model import Action
from mdm_gitops.plan.physical import Role

ROW_KEY: Final = ("_sys_id",)


@dataclass(kw_only=True)
class BulkSql(ImportSql):
    """The statements for one bulk action; *staged* are the columns that are set."""

    @property
    def sets(self) -> bool:
        return self.doing is Operation.UPDATE

    @cached_property
    def own_references(self) -> tuple[str, ...]:
        if not self.sets:
            return ()
        own = super().own_references
        return own if self.proposes else tuple(name for name in own if name in self.staged)

    @property
    def is_earlier(self) -> str:
        return "' is taken by another row'"

    # --- the rows ---

    def texts_sql(self) -> str:
        values = "".join(f', {self._constant(name)} AS "{name}"' for name in self.staged)
        return (
            f'SELECT x."_pos", x."_id" AS "_sys_id"{values} FROM pg_temp."matched" x'
            ' WHERE x."_pos" > %(after)s AND x."_pos" <= %(until)s'
        )

    def _constant(self, name: str) -> str:
        return f"%(set{self.staged.index(name)})s::text"

    def _typed_sql(self) -> str:
        marks = "1" * len(self.staged)
        values = "".join(
            f', {judging.typed_sql(self.target, name, alias="s")} AS "{name}"'
            for name in self.staged
        )
        return (
            f'SELECT s."_pos", s."_sys_id", 0 AS "_texts", NULL::json AS "_own",'
            f" '{marks}'::text AS \"_given\"{values} FROM ({self.texts_sql()}) s OFFSET 0"
        )

    def _tested(self, alias: str) -> list[str]:
        return []

    def matching(self) -> str:
        found = f'JOIN {self.target.main_sql} o ON o."_sys_id" = g."_sys_id"'
        if not self.proposes:
            return found
        return (
            f'{found} LEFT JOIN {self.target.table_sql(Role.EDIT)} e ON e."_sys_id" = o."_sys_id"'
        )

    def _merged_values(self) -> str:
        if self.sets:
            return super()._merged_values()
        return "".join(f', o."{name}" AS "{name}"' for name in self.target.columns)

    # --- what stands against a row ---

    def _cases(self) -> list[tuple[str, str]]:
        if self.sets:
            return super()._cases()
        blocked = '(SELECT x."_blocked" FROM pg_temp."matched" x WHERE x."_pos" = n."_pos")'
        return [*self._standing_cases(), (blocked, What.REFERENCED)]

    def _standing_cases(self) -> list[tuple[str, str]]:
        cases = [("true", self._refused(Action.WRITE, "o"))]
        if self.proposes:
            there = 'e."_sys_id" IS NOT NULL'
            cases += [(there, self._refused(action, "e")) for action in (Action.READ, Action.WRITE)]
        return [(f"{there} AND {sql}", What.OUTSIDE) for there, sql in cases if sql != "false"]

    @cached_property
    def value_faults(self) -> tuple[Fault, ...]:
        """A proposal is judged as a whole, since it is one; else the values that are set have been."""
        return super().value_faults if self.sets and self.proposes else ()

    @cached_property
    def type_faults(self) -> tuple[Fault, ...]:
        return ()

    def _key_faults(self) -> Iterator[Fault]:
        yield from ()

    @cached_property
    def unique_sets(self) -> tuple[tuple[str, ...], ...]:
        if not self.sets:
            return ()
        return tuple(
            unique
            for unique in self.target.unique_sets
            if self.proposes or set(unique) & set(self.staged)
        )

    # --- the values that are set ---

    def constant_faults(self) -> tuple[str, tuple[Fault, ...]]:
        """Return the question for the numbers of what is wrong with the values, and their meaning.

        References to rows of the same entity are followed row by row: a row may refer to itself.
        """
        types = list(judging.type_faults(self.target, self.staged, alias="g"))
        values = self._value_faults("n", self.staged)
        given = ", ".join(f'{self._constant(name)} AS "{name}"' for name in self.staged)
        typed = ", ".join(
            f'{judging.typed_sql(self.target, name, alias="g")} AS "{name}"' for name in self.staged
        )
        numbers = judging.numbers_sql(values, start=len(types))
        sql = (
            f"SELECT {judging.numbers_sql(types)} || {numbers} FROM (SELECT {given} OFFSET 0) g"
            f" CROSS JOIN LATERAL (SELECT {typed} OFFSET 0) n"
        )
        return sql, (*types, *values)

    def hold_references(self) -> Iterator[str]:
        """Yield the statements that keep the rows which the values refer to."""
        for name in self.staged:
            if name not in self.target.references:
                continue
            entity, key = self.target.references[name]
            given = f'(SELECT {self._constant(name)} AS "{name}") g'
            value = judging.typed_sql(self.target, name, alias="g")
            yield (
                f'SELECT FROM "{self.target.schemas.data}"."{entity}" r'
                f' WHERE r."{key}" = (SELECT {value} FROM {given}) FOR KEY SHARE OF r'
            )

    @property
    def strength(self) -> str:
        """How rows are locked that will be written: keys that change are held against new referrers."""
        keys = {name for unique in self.target.unique_sets for name in unique}
        is_key = bool(keys & set(self.staged)) or self.doing is Operation.HARD_DELETE
        return "UPDATE" if is_key else "NO KEY UPDATE"


# --- deletions ------------------------------------------------------------------------------------

_OLD: Final = ' CROSS JOIN LATERAL (SELECT (n."_old").*) o'
_MOMENT: Final = (
    "greatest(%(moment)s::timestamptz, o.\"_sys_last_modified_at\" + interval '1 microsecond')"
)
_SAME: Final = (
    f'n."_status" = \'{What.UPDATE}\' AND m."_sys_id" = n."_id"'
    ' AND m."_sys_version" = o."_sys_version"'
)


def delete_rows(sql: BulkSql) -> str:
    """Return the statement that deletes rows, softly or for good."""
    main = sql.target.main_sql
    if sql.doing is Operation.HARD_DELETE:
        return f'DELETE FROM {main} m USING pg_temp."next" n{_OLD} WHERE {_SAME}'
    return (
        f'UPDATE {main} m SET "_sys_version" = o."_sys_version" + 1,'
        f' "_sys_last_modified_at" = {_MOMENT}, "_sys_last_modified_by" = %(actor)s,'
        f' "_sys_is_deleted" = true, "_sys_deleted_at" = {_MOMENT}'
        f' FROM pg_temp."next" n{_OLD} WHERE {_SAME}'
    )


def tell_referenced(sql: BulkSql) -> str:
    name = sql.target.entity.name
    return (
        'INSERT INTO pg_temp."failed" ("_pos", "column", code, message, value)'
        f" SELECT n.\"_pos\", NULL, 'ROW_REFERENCED', 'other rows refer to the row of {name}', NULL"
        f' FROM pg_temp."next" n WHERE n."_status" = \'{What.REFERENCED}\''
    )


def mark_blocked(sql: BulkSql) -> Iterator[str]:
    """Yield the statements that mark the rows of ``matched`` which cannot be deleted for good: those that
    a row refers to which stays. Rows that go together may refer to each other."""
    if sql.doing is not Operation.HARD_DELETE or not sql.target.referrers:
        return
    own = [each for each in sql.target.referrers if each.entity == sql.target.name]
    if own:
        yield 'CREATE UNIQUE INDEX ON pg_temp."matched" ("_id")'
    referred = " OR ".join(_stays(sql, each) for each in sql.target.referrers)
    yield (
        f'UPDATE pg_temp."matched" x SET "_blocked" = true FROM {sql.target.main_sql} o'
        f' WHERE o."_sys_id" = x."_id" AND ({referred})'
    )
    if own:
        yield _mark_onwards(sql, own)


def _stays(sql: BulkSql, referrer: Referrer) -> str:
    table = f'"{sql.target.schemas.data}"."{referrer.entity}"'
    where = f'r."{referrer.column}" = o."{referrer.key}"'
    if referrer.entity == sql.target.name:
        where += ' AND NOT EXISTS (SELECT FROM pg_temp."matched" y WHERE y."_id" = r."_sys_id")'
    return f"EXISTS (SELECT FROM {table} r WHERE {where})"


def _mark_onwards(sql: BulkSql, own: list[Referrer]) -> str:
    """What a row refers to that cannot be deleted cannot be deleted either."""
    main = sql.target.main_sql
    steps = " UNION ALL ".join(
        f'SELECT o."_sys_id" AS child, p."_sys_id" AS parent FROM {main} o'
        f' JOIN {main} p ON p."{each.key}" = o."{each.column}"'
        for each in own
    )
    return f"""WITH RECURSIVE stuck AS (
  SELECT x."_id" FROM pg_temp."matched" x WHERE x."_blocked" OR x."_denied"
  UNION SELECT y."_id" FROM stuck s JOIN ({steps}) l ON l.child = s."_id"
    JOIN pg_temp."matched" y ON y."_id" = l.parent)
UPDATE pg_temp."matched" x SET "_blocked" = true FROM stuck s WHERE s."_id" = x."_id\""""


def refers_to_itself(sql: BulkSql) -> bool:
    return any(each.entity == sql.target.name for each in sql.target.referrers)
