"""The rows of an entity as they were at a moment: what stands after FROM in a read of the past.

A statement about the past has one relation per entity it touches, in its WITH clause, that holds each
row as it was at the moment; everything else of the statement is as it is for the present. The
relation is built so that PostgreSQL can merge approved rows and closed versions by an index of each
and stop where the page is full.

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
from mdm_gitops.plan.physical import ROW_COLUMNS, Role, table_name
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

# For all but versions written while none were kept the first alternative decides, without a look
# at another row.
_VERSIONS: Final = """\
SELECT {columns} FROM (
  SELECT {columns}, "_sys_last_modified_at" AS "_sys_valid_from",
         'infinity'::timestamptz AS "_sys_valid_to" FROM {main}
   UNION ALL
  SELECT {columns}, "_sys_valid_from", "_sys_valid_to" FROM {history}) v
 WHERE v."_sys_created_at" <= {moment} AND v."_sys_valid_to" > {moment}
   AND (v."_sys_valid_from" <= {moment} OR coalesce(
     (SELECT b."_sys_valid_to" FROM {history} b
       WHERE b."_sys_id" = v."_sys_id" AND b."_sys_version" < v."_sys_version"
       ORDER BY b."_sys_version" DESC LIMIT 1), '-infinity') <= {moment})"""
_PRESENT: Final = 'SELECT {columns} FROM {main} WHERE "_sys_created_at" <= {moment}'


def relation(name: str) -> str:
    """Return the name of the relation of the entity *name* (folded)."""
    return f'"{RELATION_PREFIX}{name}"'


def relations(asking: Asking, names: Iterable[str]) -> str:
    """Return the WITH clause that makes the relations of these entities (folded names)."""
    parts = [
        f"{relation(name)} AS NOT MATERIALIZED (\n{_relation_sql(asking, name)})"
        for name in sorted(set(names))
    ]
    return "WITH " + ",\n".join(parts) + "\n"


def _relation_sql(asking: Asking, name: str) -> str:
    entity = asking.state.entities[name].definition
    form = _VERSIONS if entity.history_enabled else _PRESENT
    return form.format(
        columns=", ".join(f'"{column}"' for column in row_columns(entity)),
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
