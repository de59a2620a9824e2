"""Writing the good rows of an import: into the approved table or as proposals, with history and events.

Statements over ``next`` (``import_sql``). All rows carry one moment and belong to one change set; its
row is inserted last, when all row locks are held (0003_events.sql).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mdm_gitops.data import judging
from mdm_gitops.data.import_sql import ImportSql, What
from mdm_gitops.data.proposals_sql import PROPOSED
from mdm_gitops.data.write_sql import EVENT_OF, Operation, differs_sql, event_image, names_sql
from mdm_gitops.plan.physical import ROW_COLUMNS, Role

_OLD: Final = ' CROSS JOIN LATERAL (SELECT (n."_old").*) o'
_PROPOSED_ROW: Final = ' CROSS JOIN LATERAL (SELECT (n."_proposed").*) e'
_NEXT_MOMENT: Final = (
    "greatest(%(moment)s::timestamptz, o.\"_sys_last_modified_at\" + interval '1 microsecond')"
)


def lock_tables(sql: ImportSql, *, alone: bool) -> str:
    """Return the statement that keeps the definition as it is; *alone* keeps other writers out."""
    target = sql.target
    tables = [target.main_sql]
    if target.entity.history_enabled:
        tables.append(target.table_sql(Role.HISTORY))
    if sql.proposes:
        tables.append(target.table_sql(Role.EDIT))
    mode = "SHARE ROW EXCLUSIVE" if alone or sql.proposes else "ROW EXCLUSIVE"
    return f"LOCK TABLE {', '.join(tables)} IN {mode} MODE"


def lock_overwritten(sql: ImportSql) -> str:
    """Return the statement that waits for decisions on the proposals which the import will write to,
    and keeps off further ones. It comes before ``lock_tables``: a decision holds its proposal before
    it writes to the tables."""
    edit = sql.target.table_sql(Role.EDIT)
    keys = ", ".join(f'{judging.typed_sql(sql.target, c, alias="s")} AS "{c}"' for c in sql.key)
    given = f"(SELECT {keys} FROM ({sql.texts_sql()}) s) g"
    return (
        f'SELECT FROM {edit} p WHERE p."_sys_id" IN (SELECT e."_sys_id" FROM {given}'
        f' {sql.matching()}) ORDER BY p."_sys_id" FOR UPDATE OF p'
    )


def update_rows(sql: ImportSql) -> str:
    """Return the statement that updates rows which are as they were when they were judged."""
    target = sql.target
    assignments = ", ".join(f'"{name}" = n."{name}"' for name in sql.staged)
    return f"""UPDATE {target.main_sql} m SET {assignments}, "_sys_version" = o."_sys_version" + 1,
  "_sys_last_modified_at" = {_NEXT_MOMENT}, "_sys_last_modified_by" = %(actor)s
  FROM pg_temp."next" n{_OLD}
 WHERE n."_status" = '{What.UPDATE}' AND m."_sys_id" = n."_id" AND m."_sys_version" = o."_sys_version\""""


def insert_rows(sql: ImportSql) -> str:
    """Return the statement that inserts new rows in the order of the file."""
    target = sql.target
    names = ["_sys_id", *target.columns, *(column.name for column in ROW_COLUMNS)]
    values = ", ".join(f'n."{name}"' for name in target.columns)
    return f"""INSERT INTO {target.main_sql} ({names_sql(names)})
SELECT n."_id", {values}, 1, %(moment)s::timestamptz, %(actor)s, %(moment)s::timestamptz, %(actor)s, false,
       NULL::timestamptz
  FROM pg_temp."next" n WHERE n."_status" = '{What.CREATE}'"""


def keep_versions(sql: ImportSql) -> str:
    """Return the statement that closes the versions which were replaced."""
    names = ["_sys_id", *sql.target.columns, *(column.name for column in ROW_COLUMNS)]
    values = ", ".join(f'o."{name}"' for name in names)
    ends = ("_sys_valid_from", "_sys_valid_to", "_sys_action")
    return f"""INSERT INTO {sql.target.table_sql(Role.HISTORY)} ({names_sql([*names, *ends])})
SELECT {values}, o."_sys_last_modified_at", {_NEXT_MOMENT}, '{EVENT_OF[sql.doing]}'
  FROM pg_temp."next" n{_OLD} WHERE n."_status" = '{What.UPDATE}'"""


def save_proposals(sql: ImportSql) -> str:
    """Return the statement that saves the rows as proposals, in place of what was proposed for them."""
    names = (*sql.target.columns, "_sys_base_version", "_sys_operation", "_sys_state")
    names += ("_sys_batch_name", "_sys_comment", "_sys_submitted_at", "_sys_submitted_by")
    names += ("_sys_decided_at", "_sys_decided_by")
    values = ", ".join(f'n."{name}"' for name in sql.target.columns)
    replaced = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in names)
    version, old = ('o."_sys_version"', _OLD) if sql.upserts else ("NULL::integer", "")
    operation = (
        f"CASE WHEN {version} IS NULL THEN '{PROPOSED[Operation.CREATE]}'"
        f" ELSE '{PROPOSED[sql.doing]}' END"
    )
    return f"""INSERT INTO {sql.target.table_sql(Role.EDIT)} ({names_sql(["_sys_id", *names])})
SELECT n."_id", {values}, {version}, {operation}, 'pending', %(batch)s, NULL,
       %(moment)s::timestamptz, %(actor)s, NULL, NULL
  FROM pg_temp."next" n{old} WHERE n."_status" IN ('{What.CREATE}', '{What.UPDATE}')
    ON CONFLICT ("_sys_id") DO UPDATE SET {replaced}"""


def record_events(sql: ImportSql) -> Iterator[str]:
    """Yield the statements that record an event for each row that was written, then the change set."""
    target = sql.target
    new = event_image(target, "n")
    if sql.proposes:
        action, version, old, rows = _proposal_event(sql)
    elif sql.upserts:
        action = (
            f"CASE n.\"_status\" WHEN '{What.CREATE}' THEN '{EVENT_OF[Operation.CREATE]}'"
            f" ELSE '{EVENT_OF[sql.doing]}' END"
        )
        version = 'coalesce(o."_sys_version", 0) + 1'
        if sql.doing is Operation.HARD_DELETE:
            new, version = "NULL::json", 'o."_sys_version"'
        old = f"CASE n.\"_status\" WHEN '{What.UPDATE}' THEN {event_image(target, 'o')} END"
        rows = _OLD
    else:
        action, version, old, rows = f"'{EVENT_OF[Operation.CREATE]}'", "1", "NULL::json", ""
    # Not sorted: the rows lie in the order of the file, and any order without gaps will do.
    yield f"""INSERT INTO {target.config_sql("event")}
  (change_set, ordinal, entity_id, record_id, action, version, actor, old, new, detail)
SELECT %(change_set)s::bigint, row_number() OVER () - 1, {target.stored.entity_id}, n."_id", {action},
       {version}, NULL, {old}, {new}, NULL
  FROM pg_temp."next" n{rows} WHERE n."_status" IN ('{What.CREATE}', '{What.UPDATE}')"""
    yield f"""INSERT INTO {target.config_sql("change_set")} (key, events, occurred_at, actor, commit_id)
SELECT %(change_set)s::bigint, %(events)s::integer, statement_timestamp(), %(actor)s,
       (SELECT commit_id FROM {target.config_sql("project")})"""


def _proposal_event(sql: ImportSql) -> tuple[str, str, str, str]:
    if not sql.upserts:
        return "'data_edited'", "0", "NULL::json", ""
    target = sql.target
    old = (
        f"CASE WHEN e.\"_sys_state\" = 'pending' THEN {event_image(target, 'e')}"
        f' WHEN o."_sys_id" IS NOT NULL THEN {event_image(target, "o")} END'
    )
    return "'data_edited'", 'coalesce(o."_sys_version", 0)', old, _OLD + _PROPOSED_ROW


def changed_keys(sql: ImportSql) -> str | None:
    """Return the question which values that other rows hold are changed, None if none can be: column,
    value before, value after."""
    names = [name for name in sql.target.referred_columns if name in sql.staged]
    names = [name for name in names if name not in sql.key]
    if not (sql.upserts and names) or sql.proposes:
        return None
    parts = []
    for referrer in sql.target.referrers:
        if referrer.key not in names:
            continue
        table = f'"{sql.target.schemas.data}"."{referrer.entity}"'
        parts.append(
            f'SELECT \'{referrer.key}\'::text, o."{referrer.key}"::text, n."{referrer.key}"::text'
            f' FROM pg_temp."next" n{_OLD} WHERE n."_status" = \'{What.UPDATE}\''
            f" AND {differs_sql([referrer.key])}"
            f' AND EXISTS (SELECT FROM {table} r WHERE r."{referrer.column}" = o."{referrer.key}")'
        )
    return " UNION ".join(parts)
