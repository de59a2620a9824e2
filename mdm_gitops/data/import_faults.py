"""Telling why rows of an import were not written: the statements that fill ``failed``.

Only rows that are not written are looked at again, so a clean import pays nothing for it. What can be
said from column, code and value is said when it is read (``import_errors``); what needs other rows is put
into words here. Values of restricted columns are not kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from mdm_gitops.data import judging
from mdm_gitops.data.import_json import MAX_SHOWN
from mdm_gitops.data.import_sql import GOOD, ImportSql, What
from mdm_gitops.data.judging import Fault
from mdm_gitops.data.proposals_sql import CLAIMS
from mdm_gitops.data.row_json import MASK
from mdm_gitops.model import Action
from mdm_gitops.plan.physical import Role

_UNIQUE: Final = "ENTITY_VALIDATION_UNIQUE"
_SHOWN_IN_WORDS: Final = 40
# What is found astray in the end has kept later rows from being written.
_MET: Final = f"{GOOD[:-1]}, '{What.ASTRAY}')"
_INSERT: Final = 'INSERT INTO pg_temp."failed" ("_pos", "column", code, message, value)'


def failure_statements(sql: ImportSql, found: Container[What]) -> Iterator[str]:
    """Yield the statements that rows *found* need, of all that stands against rows; run them before
    the good rows are written, and values change hands."""
    if What.INVALID in found:
        yield from _invalid(sql)
    if What.OUTSIDE in found:
        yield _outside(sql)
    if What.DELETED in found or What.HIDDEN in found:
        yield _standing(sql)
    if What.AGAIN in found:
        yield _repeated(sql)
    if What.TAKEN in found or What.LATER in found:
        yield from (_taken(sql, unique) for unique in sql.unique_sets)
    if What.ASTRAY in found:
        yield _astray(sql)
    if What.AGAIN in found:
        yield _otherwise(sql, sql.key, What.AGAIN)
    if What.LATER in found:
        yield from (_otherwise(sql, unique, What.LATER) for unique in sql.unique_sets)


def left_untold() -> str:
    """Return the question for rows that are not written, and nobody can say why any more: what stood
    against them has gone meanwhile."""
    # Told rows are not written, so it is enough to count them; nothing is joined without statistics.
    return (
        f'SELECT (SELECT count(*) FROM pg_temp."next" n WHERE n."_status" NOT IN {GOOD})'
        ' > (SELECT count(DISTINCT f."_pos") FROM pg_temp."failed" f)'
    )


def _invalid(sql: ImportSql) -> Iterator[str]:
    """Yield what the row said of itself, then what the judge finds, one reason for each value."""
    if sql.judged:
        yield (
            f"{_INSERT} SELECT n.\"_pos\", e ->> 'column', e ->> 'code', e ->> 'message',"
            f" {_value_of(sql, 'e ->> ' + _text('column'), 'e ->> ' + _text('value'))}"
            ' FROM pg_temp."next" n CROSS JOIN LATERAL json_array_elements(n."_own") e'
            f" WHERE n.\"_status\" = '{What.INVALID}'"
        )
    faults = [*sql.type_faults, *sql.value_faults]
    if not faults:
        return
    types = judging.numbers_sql(sql.type_faults)
    values = judging.numbers_sql(sql.value_faults, start=len(sql.type_faults))
    meaning = ", ".join(
        f"({n}, '{fault.code}', '{_name(sql, fault)}', '{fault.column}')"
        for n, fault in enumerate(faults)
    )
    yield f"""{_INSERT}
SELECT r."_pos", r."column", r.code, NULL, {_value_of(sql, 'r."column"', "left(r.value, 200)")} FROM (
  SELECT b."_pos", f."column", f.code, b.texts ->> f.physical AS value,
         bool_or(f.code = 'ENTITY_VALIDATION_TYPE') OVER (PARTITION BY b."_pos", f."column") AS untyped
    FROM (SELECT n."_pos", to_jsonb(s) AS texts, {types} || {values} AS numbers
            FROM pg_temp."next" n JOIN ({sql.texts_sql()}) s USING ("_pos")
           WHERE n."_status" = '{What.INVALID}' OFFSET 0) b
   CROSS JOIN LATERAL string_to_table(rtrim(b.numbers, ','), ',') AS x(number)
    JOIN (VALUES {meaning}) AS f(number, code, "column", physical) ON f.number::text = x.number) r
 WHERE NOT (r.untyped AND r.code = 'ENTITY_VALIDATION_REQUIRED_FIELD')
   AND NOT EXISTS (SELECT FROM pg_temp."failed" o
                    WHERE o."_pos" = r."_pos" AND o."column" = r."column")
 GROUP BY r."_pos", r."column", r.code, r.value"""


def _name(sql: ImportSql, fault: Fault) -> str:
    return sql.target.entity.column_by_name[fault.column].name


def _value_of(sql: ImportSql, column: str, value: str) -> str:
    """Return *value* unless *column* (both expressions) is one whose values are not shown to all."""
    restricted = [each.name for each in sql.target.entity.columns if each.restricted]
    if not restricted:
        return value
    names = ", ".join(_text(name) for name in restricted)
    return f"CASE WHEN {value} IS NOT NULL AND {column} IN ({names}) THEN '{MASK}' ELSE {value} END"


def _text(value: str) -> str:
    """Return a constant; names of columns hold no sign that would need more."""
    return "'" + value.replace("'", "''").replace("%", "%%") + "'"


def _shown(sql: ImportSql, columns: Sequence[str], alias: str = "n") -> str:
    """Return the expression ``code 'A1'`` or ``region, slot 'R', 7`` for a message."""
    names, parts = [], []
    for name in columns:
        column = sql.target.entity.column_by_name[name]
        value = f'left({alias}."{name}"::text, {_SHOWN_IN_WORDS})'
        if column.restricted:
            value = f"'{MASK}'"
        elif column.data_type.is_text:
            value = f"quote_literal({value})"
        names.append(column.name)
        parts.append(value)
    return f"{_text(', '.join(names) + ' ')} || concat_ws(', ', {', '.join(parts)})"


def _first(sql: ImportSql, columns: Sequence[str]) -> tuple[str, str]:
    """Return the column that is told, and the expression of its value."""
    column = sql.target.entity.column_by_name[columns[0]]
    value = f'left(n."{columns[0]}"::text, {MAX_SHOWN})'
    return _text(column.name), f"'{MASK}'" if column.restricted else value


def _standing(sql: ImportSql) -> str:
    """Tell rows whose key belongs to a row that may not be changed."""
    column, value = _first(sql, sql.key)
    shown = _shown(sql, sql.key)
    entity = _text(f" belongs to a deleted row of {sql.target.entity.name}")
    return (
        f'{_INSERT} SELECT n."_pos", {column},'
        f" CASE n.\"_status\" WHEN '{What.DELETED}' THEN 'ROW_KEY_DELETED' ELSE '{_UNIQUE}' END,"
        f" {shown} || CASE n.\"_status\" WHEN '{What.DELETED}' THEN {entity}"
        f" ELSE ' is taken by another row' END, {value} FROM pg_temp.\"next\" n"
        f" WHERE n.\"_status\" IN ('{What.DELETED}', '{What.HIDDEN}')"
    )


def _outside(sql: ImportSql) -> str:
    """Tell rows that the caller's row filter does not let be written."""
    message = _text(f"the row is outside of what you may write in {sql.target.entity.name}")
    return (
        f"{_INSERT} SELECT n.\"_pos\", NULL, 'ACCESS_DENIED', {message}, NULL"
        f' FROM pg_temp."next" n WHERE n."_status" = \'{What.OUTSIDE}\''
    )


def _repeated(sql: ImportSql) -> str:
    column, value = _first(sql, sql.key)
    return f"""{_INSERT}
SELECT n."_pos", {column}, '{_UNIQUE}', {_shown(sql, sql.key)} || {sql.is_earlier}, {value}
  FROM pg_temp."next" n JOIN (
    SELECT x."_id", min(x."_pos") AS first FROM pg_temp."next" x
     WHERE x."_status" IN {GOOD} GROUP BY x."_id") d ON d."_id" = n."_id"
 WHERE n."_status" = '{What.AGAIN}'"""


def _taken(sql: ImportSql, unique: tuple[str, ...]) -> str:
    """Tell rows one of whose unique values stands in an earlier row of the file, or in another row.

    A row that the caller may not see is not said to be deleted.
    """
    column, value = _first(sql, unique)
    stands = 'd.first < n."_pos"'
    columns = ", ".join(f'x."{name}"' for name in unique)
    earlier = " AND ".join(f'd."{name}" = n."{name}"' for name in unique)
    same = " AND ".join(f'u."{name}" = n."{name}"' for name in unique)
    other = f'{same} AND u."_sys_id" <> n."_id"'
    hidden = sql._refused(Action.READ, "u")
    is_deleted = 'u."_sys_is_deleted"' + ("" if hidden == "false" else f" AND NOT ({hidden})")
    belongs = _text(f" belongs to a deleted row of {sql.target.entity.name}")
    claim, by_claim = "", ""
    if sql.proposes:
        edit = sql.target.table_sql(Role.EDIT)
        pending = f"{other} AND {CLAIMS}".replace('u."', 'c."')
        claim = f" LEFT JOIN {edit} c ON {pending}"
        by_claim = ' OR c."_sys_id" IS NOT NULL'
    return f"""{_INSERT}
SELECT DISTINCT n."_pos", {column},
       CASE WHEN {stands} THEN '{_UNIQUE}' WHEN {is_deleted} THEN 'ROW_KEY_DELETED'
            ELSE '{_UNIQUE}' END,
       {_shown(sql, unique)} || CASE WHEN {stands} THEN {sql.is_earlier}
            WHEN {is_deleted} THEN {belongs} WHEN u."_sys_id" IS NOT NULL THEN ' is taken by another row'
            ELSE ' is taken by a row that is pending' END, {value}
  FROM pg_temp."next" n
  LEFT JOIN (SELECT {columns}, min(x."_pos") AS first FROM pg_temp."next" x
              WHERE x."_status" IN {_MET} GROUP BY {columns}) d ON {earlier}
  LEFT JOIN {sql.target.main_sql} u ON {other}{claim}
 WHERE n."_status" IN ('{What.TAKEN}', '{What.LATER}') AND ({stands} OR u."_sys_id" IS NOT NULL{by_claim})"""


def _otherwise(sql: ImportSql, columns: Sequence[str], what: What) -> str:
    """Tell rows that nothing was told of: they gave way to a row that is rejected, too, or that is
    written although it comes later."""
    column, value = _first(sql, columns)
    names = ", ".join(f'x."{name}"' for name in columns)
    same = " AND ".join(f'd."{name}" = n."{name}"' for name in columns)
    # The first row with a key may have given way itself, for another value.
    passed_over = f"'{What.INVALID}'" + (f", '{What.LATER}'" if what is What.LATER else "")
    return f"""{_INSERT}
SELECT n."_pos", {column}, '{_UNIQUE}', {_shown(sql, columns)} || {sql.is_earlier}, {value}
  FROM pg_temp."next" n JOIN (SELECT {names}, min(x."_pos") AS first FROM pg_temp."next" x
   WHERE x."_status" NOT IN ({passed_over}) GROUP BY {names}) d
    ON {same} AND d.first <> n."_pos"
 WHERE n."_status" = '{what}' AND NOT EXISTS (SELECT FROM pg_temp."failed" f WHERE f."_pos" = n."_pos")"""


def _astray(sql: ImportSql) -> str:
    """Tell rows by the first of their columns that leads to no row, or to one that is not written."""
    cases = []
    for name in sql.own_references:
        column = sql.target.entity.column_by_name[name]
        value = f'left(n."{name}"::text, {MAX_SHOWN})'
        cases.append((column.name, f"'{MASK}'" if column.restricted else value))
    names = " ".join(
        f"WHEN '{physical}' THEN {_text(name)}"
        for physical, (name, _) in zip(sql.own_references, cases, strict=True)
    )
    values = " ".join(
        f"WHEN '{physical}' THEN {value}"
        for physical, (_, value) in zip(sql.own_references, cases, strict=True)
    )
    return f"""{_INSERT}
SELECT DISTINCT n."_pos", CASE l."column" {names} END, 'ENTITY_VALIDATION_REFERENCE', NULL,
       CASE l."column" {values} END
  FROM pg_temp."next" n JOIN pg_temp."leads" l USING ("_pos")
  LEFT JOIN pg_temp."next" x ON x."_pos" = l."to"
 WHERE n."_status" = '{What.ASTRAY}' AND (l."to" IS NULL OR x."_status" NOT IN {GOOD})"""
