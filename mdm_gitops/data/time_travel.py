"""The rows of an entity as they were at a moment: what stands after FROM in a read of the past.

A statement about the past has one relation per entity it touches, in its WITH clause, that holds each
row as it was at the moment; everything else of the statement is as it is for the present.

The version of a row as of a moment is the first that ends after it, if the row was created by then.
So a version that was written while no history was kept counts back to the end of the one before, or
to the row's creation. Of an entity without history the present rows count back to their creation.

Rights are those of now: who asks, the permissions, ``today()``, and the rows that a row filter
follows. Only the row's own values are those of then. So a row that has not changed since is never
shown as of the past where it is hidden today.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mdm_gitops.data.asking import Asking
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import ROW_COLUMNS, Role, physical_entity, table_name
from mdm_gitops.warehouse.store import StoredEntity

RELATION_PREFIX: Final = "then_"
MOMENT: Final = "%(as_of)s::timestamptz"
# The clock that stamps the rows judges, not that of whoever asks.
IS_AHEAD: Final = f"{MOMENT} > statement_timestamp()"


def require_history(stored: StoredEntity) -> None:
    """Raise Conflict if no versions are kept of the entity's rows."""
    if not stored.definition.history_enabled:
        raise Conflict(
            f"{stored.definition.name} keeps no history",
            hint="set historyEnabled: true in its definition",
            code="HISTORY_NOT_ENABLED",
        )


def refuse_ahead() -> InputError:
    return InputError(
        "asOfUtc is in the future", hint="leave it out for the present", parameter="asOfUtc"
    )


# --- the relations --------------------------------------------------------------------------------

_ALL_VERSIONS: Final = """(
  SELECT {columns}, "_sys_last_modified_at" AS "_sys_valid_from",
         'infinity'::timestamptz AS "_sys_valid_to" FROM {main}
   UNION ALL
  SELECT {columns}, "_sys_valid_from", "_sys_valid_to" FROM {history}) v"""
# For filters and lookups: what a condition lets through is then held against the versions before it.
_BY_MATCH: Final = (
    "SELECT {columns} FROM "
    + _ALL_VERSIONS
    + """
 WHERE v."_sys_created_at" <= {moment} AND v."_sys_valid_to" > {moment} AND NOT EXISTS (
   SELECT FROM {history} b WHERE b."_sys_id" = v."_sys_id"
      AND b."_sys_version" < v."_sys_version" AND b."_sys_valid_to" > {moment})"""
)
# For the first rows of an order that approved rows and versions have an index for: both are merged, and
# the moment is asked about after that (OFFSET 0 keeps it there). Asked for in each of the two, it would
# make one read on and on for its next row. The first alternative decides for all but versions written
# while none were kept, and those that began later.
_IN_ORDER: Final = (
    "SELECT v.* FROM "
    + _ALL_VERSIONS
    + """ CROSS JOIN LATERAL (
 SELECT WHERE v."_sys_created_at" <= {moment} AND v."_sys_valid_to" > {moment}
    AND (v."_sys_valid_from" <= {moment} OR coalesce(
      (SELECT b."_sys_valid_to" FROM {history} b
        WHERE b."_sys_id" = v."_sys_id" AND b."_sys_version" < v."_sys_version"
        ORDER BY b."_sys_version" DESC LIMIT 1), '-infinity') <= {moment}) OFFSET 0) c"""
)
_PRESENT: Final = 'SELECT {columns} FROM {main} WHERE "_sys_created_at" <= {moment}'


def relation(name: str, *, in_order: bool = False) -> str:
    """Return the name of the relation of the entity *name* (folded)."""
    # No name of an entity holds two underscores.
    return f'"{RELATION_PREFIX}{name}{"__in_order" if in_order else ""}"'


def relations(asking: Asking, names: Iterable[str], *, in_order: str = "") -> str:
    """Return the WITH clause that makes the relations of these entities (folded names).

    The entity *in_order* has one more, for reading its first rows in an order that has an index.
    """
    parts = [(relation(name), _relation_sql(asking, name)) for name in sorted(set(names))]
    if in_order:
        sql = _filled(_IN_ORDER, asking, in_order)
        parts.append((relation(in_order, in_order=True), sql))
    made = (f"{name} AS NOT MATERIALIZED (\n{sql})" for name, sql in parts)
    return "WITH " + ",\n".join(made) + "\n"


def has_index_for(stored: StoredEntity, column: str) -> bool:
    """Return whether closed versions have an index that begins with *column*."""
    history = physical_entity(stored.definition, {}).tables[Role.HISTORY]
    leading = [history.primary_key[0], *(index.columns[0] for index in history.indexes)]
    return column in leading


def _relation_sql(asking: Asking, name: str) -> str:
    entity = asking.state.entities[name].definition
    return _filled(_BY_MATCH if entity.history_enabled else _PRESENT, asking, name)


def _filled(form: str, asking: Asking, name: str) -> str:
    columns = row_columns(asking.state.entities[name].definition)
    return form.format(
        columns=", ".join(f'"{column}"' for column in columns),
        main=table_sql(asking, name, Role.MAIN),
        history=table_sql(asking, name, Role.HISTORY),
        moment=MOMENT,
    )


def row_columns(entity: Entity) -> tuple[str, ...]:
    """Return the columns that approved rows and closed versions have in common."""
    own = (column.folded for column in entity.columns)
    return ("_sys_id", *own, *(column.name for column in ROW_COLUMNS))


def table_sql(asking: Asking, name: str, role: Role) -> str:
    return f'"{asking.schemas.data}"."{table_name(name, role)}"'


def row_by_key(asking: Asking, name: str, key: str, value: str) -> str:
    """Return the query of the row of *name* whose column *key* was *value* (an expression).

    The row that has the key today had it then, all but always, and is found by its index. Where
    versions are missing two rows may have had it; then that row counts.
    """
    then, main = relation(name), table_sql(asking, name, Role.MAIN)
    return (
        f'SELECT z.* FROM {main} k JOIN {then} z ON z."_sys_id" = k."_sys_id"'
        f' WHERE k."{key}" = {value} AND z."{key}" = {value} UNION ALL'
        f' (SELECT z.* FROM {then} z WHERE z."{key}" = {value}'
        ' ORDER BY z."_sys_last_modified_at", z."_sys_id") LIMIT 1'
    )
