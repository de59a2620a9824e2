"""What each change costs and why it may want a look: class, lock, scans, estimates, hazards.

Decided on the change model alone, never by reading SQL. Pure: the sizes of the tables come in as
an argument. Which hazards a person must allow is ``plan.policy``; how they read is ``plan.words``.

The locks are those of the statements in ``warehouse.ddl`` (PostgreSQL manual, "Explicit Locking").
ACCESS EXCLUSIVE is only ever held for a change of the catalog: what reads or writes rows of a table
that holds some (``scans``, ``rewrites``) happens online, under a lock that lets writers go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never, cast

from mdm_gitops.model import ChangeClass, PermissionGrant
from mdm_gitops.model.access import granted_by
from mdm_gitops.plan.changes import (
    AbandonFilling,
    AddCheck,
    AddColumn,
    AddForeignKey,
    AddIndex,
    AddSatellite,
    AddWebhook,
    AnyChange,
    ApplySeed,
    Change,
    ChangeDefinition,
    ChangeProject,
    ChangeWebhook,
    CreateEntity,
    CreateView,
    DropCheck,
    DropDefault,
    DropForeignKey,
    DropIndex,
    DropRequired,
    DropView,
    FieldChange,
    FinishEntity,
    GrantPermission,
    ObjectKind,
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    RemoveWebhook,
    Rename,
    RenameColumn,
    RenameEntity,
    RenameObject,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    RevokePermission,
    SetDefault,
    SetRequired,
    ValidateCheck,
    ValidateForeignKey,
    WidenColumn,
)
from mdm_gitops.plan.human import about, data_type, plural
from mdm_gitops.plan.physical import Check, Role, RuleKind
from mdm_gitops.plan.plan import Assessment, Hazard, HazardCode, Lock

_SAFE: Final = ChangeClass.SAFE
_NO_COST: Final = Assessment(change_class=_SAFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """PostgreSQL's estimates; *rows* is at least 1 when there is a row, 0 only when there is none.

    *size_bytes* counts indexes and values kept out of line too.
    """

    rows: int
    size_bytes: int


Sizes = Mapping[str, TableSize]
_NOTHING: Final = TableSize(rows=0, size_bytes=0)


def assess(change: Change, *, sizes: Sizes) -> Assessment:
    """Return what *change* costs.

    *sizes* goes by table name: each table of the live data schema under its present name, and those
    that the plan renames also under their final one. A table that is absent is created by the plan,
    so nobody waits for a lock on it.
    """
    one = cast(AnyChange, change)
    match one:
        case CreateEntity() | AddSatellite() | CreateView() | FinishEntity() | ChangeProject():
            return _NO_COST
        case RenameEntity() | RemoveEntity() | RestoreEntity():
            return _move_entity(one, sizes)
        case RemoveSatellite():
            return _remove_satellite(one, sizes)
        case RestoreSatellite():
            return _brief(sizes, (one.table.old,))
        case AddColumn():
            return _add_column(one, sizes)
        case RenameColumn():
            message = f"programs that name {_of(one, one.column.old)} must say {one.column.new}"
            return _brief(
                sizes, one.tables, ChangeClass.BREAKING, _hazard("RENAMES_COLUMN", message)
            )
        case RemoveColumn():
            message = f"{_of(one, one.column)} leaves the table; its values stay in the archive"
            tables = (one.main_table,)
            return _brief(
                sizes, tables, ChangeClass.DESTRUCTIVE, _hazard("REMOVES_COLUMN", message)
            )
        case RestoreColumn() | WidenColumn() | AbandonFilling():
            return _brief(sizes, one.tables)
        case RetypeColumn():
            return _retype_column(one, sizes)
        case SetRequired() | AddCheck():
            return _add_rule(one, sizes)
        case AddIndex():
            return _add_index(one, sizes)
        case AddForeignKey():
            return _add_foreign_key(one, sizes)
        case ValidateCheck() | ValidateForeignKey():
            return _prove(sizes, one.table, Lock.SHARE_UPDATE_EXCLUSIVE, _tightens(one, one.table))
        case DropRequired() | SetDefault() | DropDefault() | DropCheck() | DropIndex():
            return _brief(sizes, (one.table,))
        case DropForeignKey():
            return _brief(sizes, (one.table, one.foreign_key.target_table))
        case RenameObject():
            return _rename_object(one, sizes)
        case DropView():
            return _drop_view(one)
        case ChangeDefinition():
            return _change_definition(one)
        case GrantPermission():
            return _grant(one)
        case RevokePermission():
            return _revoke(one.grant, one.replaced_by)
        case AddWebhook() | ChangeWebhook():
            return _send_out(one)
        case RemoveWebhook():
            return Assessment(change_class=ChangeClass.BREAKING)
        case ApplySeed():
            return _sized(Assessment(change_class=_SAFE, lock=Lock.ROW_EXCLUSIVE), sizes, one.table)
        case _:
            assert_never(one)


def _hazard(code: str, message: str) -> Hazard:
    return Hazard(code=HazardCode(code), message=message)


def _of(change: Change, column: str) -> str:
    return f"column {column} of {change.entity}"


def _sizes_of(sizes: Sizes, tables: Sequence[str]) -> TableSize:
    known = [sizes[table] for table in dict.fromkeys(tables) if table in sizes]
    return TableSize(
        rows=sum(each.rows for each in known), size_bytes=sum(each.size_bytes for each in known)
    )


def _sized(cost: Assessment, sizes: Sizes, *tables: str) -> Assessment:
    found = _sizes_of(sizes, tables)
    return Assessment(
        change_class=cost.change_class,
        lock=cost.lock,
        rewrites=cost.rewrites,
        scans=cost.scans,
        rows=found.rows,
        size_bytes=found.size_bytes,
        hazards=cost.hazards,
    )


def _brief(
    sizes: Sizes, tables: Sequence[str], change_class: ChangeClass = _SAFE, *hazards: Hazard
) -> Assessment:
    """The catalog alone changes; estimates are those of the first table, the main one."""
    stands = any(table in sizes for table in tables)
    lock = Lock.ACCESS_EXCLUSIVE if stands else Lock.NONE
    cost = Assessment(change_class=change_class, lock=lock, hazards=hazards)
    return _sized(cost, sizes, *tables[:1])


# --- entities and columns -------------------------------------------------------------------------


def _move_entity(change: RenameEntity | RemoveEntity | RestoreEntity, sizes: Sizes) -> Assessment:
    """Rows are those of the main table, which has the shortest name; bytes are of all tables."""
    tables = [_standing_name(rename, sizes) for rename in change.tables]
    rows = _sizes_of(sizes, sorted(tables, key=len)[:1]).rows
    size_bytes = _sizes_of(sizes, tables).size_bytes
    change_class = _SAFE
    hazards: tuple[Hazard, ...] = ()
    if isinstance(change, RenameEntity):
        change_class = ChangeClass.BREAKING
        message = f"programs that name {change.old_entity} must say {change.entity}"
        hazards = (_hazard("RENAMES_ENTITY", message),)
    elif isinstance(change, RemoveEntity):
        change_class = ChangeClass.DESTRUCTIVE
        message = f"{change.entity} is no longer served; {about(rows, 'row')} stay in the archive"
        hazards = (_hazard("REMOVES_ENTITY", message),)
    return Assessment(
        change_class=change_class,
        lock=Lock.ACCESS_EXCLUSIVE,
        rows=rows,
        size_bytes=size_bytes,
        hazards=hazards,
    )


def _standing_name(rename: Rename, sizes: Sizes) -> str:
    return rename.old if rename.old in sizes else rename.new


def _remove_satellite(change: RemoveSatellite, sizes: Sizes) -> Assessment:
    """Without approval whoever may write is no longer looked at, so that widens access as well."""
    held = sizes.get(change.table.old)
    is_empty = held is not None and not held.rows
    rows = about(held.rows, "row") if held else "all rows"
    change_class, hazards = _SAFE, []
    if change.role is Role.EDIT:
        change_class = ChangeClass.SECURITY_WIDENING
        hazards.append(_hazard("WIDENS_ACCESS", f"writes to {change.entity} need no approval now"))
    if not is_empty:
        change_class = ChangeClass.DESTRUCTIVE
        code, what = _SET_ASIDE[change.role]
        hazards.append(_hazard(code, f"{what} of {change.entity} ({rows}) move to the archive"))
    return _brief(sizes, (change.table.old,), change_class, *hazards)


_SET_ASIDE: Final = {
    Role.EDIT: ("SETS_PENDING_ASIDE", "pending changes"),
    Role.HISTORY: ("REMOVES_HISTORY", "earlier versions"),
}


def _add_column(change: AddColumn, sizes: Sizes) -> Assessment:
    if change.main_table is None:
        return _brief(sizes, change.satellite_tables)
    held = sizes.get(change.main_table)
    is_empty = held is not None and not held.rows
    tables = (change.main_table, *change.satellite_tables)
    if is_empty or not change.column.not_null or change.column.default is not None:
        return _brief(sizes, tables)
    message = f"{_of(change, change.column.name)} is required and the rows have no value for it"
    hazard = _hazard("TIGHTENS_RULE", message)
    return _brief(sizes, tables, ChangeClass.DATA_DEPENDENT, hazard)


def _retype_column(change: RetypeColumn, sizes: Sizes) -> Assessment:
    types = f"{data_type(change.old_type)} to {data_type(change.new.type)}"
    message = f"{_of(change, change.column)} changes from {types} for all who read or write it"
    fills = change.filling is not None
    cost = Assessment(
        change_class=ChangeClass.BREAKING,
        lock=Lock.ACCESS_EXCLUSIVE,
        rewrites=fills,
        scans=fills,
        hazards=(_hazard("RETYPES_COLUMN", message),),
    )
    before = change.filling.tables if change.filling else change.tables
    standing = before if any(table in sizes for table in before) else change.tables
    return _sized(cost, sizes, *standing)


# --- rules ----------------------------------------------------------------------------------------


def _tightens(change: Change, what: str) -> Hazard:
    return _hazard("TIGHTENS_RULE", f"each row of {change.entity} must fit: {what}")


def _prove(sizes: Sizes, table: str, lock: Lock, *hazards: Hazard) -> Assessment:
    """Rows are read online; class data-dependent only where there is a hazard."""
    change_class = ChangeClass.DATA_DEPENDENT if hazards else _SAFE
    cost = Assessment(change_class=change_class, lock=lock, scans=True, hazards=hazards)
    return _sized(cost, sizes, table)


def _add_rule(change: SetRequired | AddCheck, sizes: Sizes) -> Assessment:
    if not change.online:
        return _brief(sizes, (change.table,))
    if isinstance(change, SetRequired):
        hazard = _tightens(change, f"{change.column} is required")
        return _prove(sizes, change.table, Lock.ACCESS_EXCLUSIVE, hazard)
    if change.replaces is not None and lets_more_through(change.check, change.replaces):
        return _prove(sizes, change.table, Lock.ACCESS_EXCLUSIVE)
    hazard = _tightens(change, f"{change.check.rule.value} rule of {change.check.column}")
    return _prove(sizes, change.table, Lock.ACCESS_EXCLUSIVE, hazard)


def lets_more_through(new: Check, old: Check) -> bool:
    """Whether every value that fits *old*, a proven rule of the same column, fits *new* too."""
    if new.rule is not old.rule or not old.validated:
        return False
    match new.rule:
        case RuleKind.ALLOWED:
            return set(old.argument) <= set(new.argument)
        case RuleKind.LENGTH:
            return bool(new.argument >= old.argument)
        case RuleKind.RANGE:
            return _is_wider(new.argument, old.argument)
        case _:
            return bool(new.argument == old.argument)


def _is_wider(new: Sequence[Any], old: Sequence[Any]) -> bool:
    (new_low, new_high), (old_low, old_high) = new, old
    lower = new_low is None or (old_low is not None and new_low <= old_low)
    higher = new_high is None or (old_high is not None and new_high >= old_high)
    return bool(lower and higher)


def _add_index(change: AddIndex, sizes: Sizes) -> Assessment:
    if not change.online:
        lock = Lock.SHARE if change.table in sizes else Lock.NONE
        return _sized(Assessment(change_class=_SAFE, lock=lock), sizes, change.table)
    hazards: tuple[Hazard, ...] = ()
    if change.index.unique:
        hazards = (_tightens(change, f"{', '.join(change.index.columns)} unique"),)
    return _prove(sizes, change.table, Lock.SHARE_UPDATE_EXCLUSIVE, *hazards)


def _add_foreign_key(change: AddForeignKey, sizes: Sizes) -> Assessment:
    """Brief on both tables; the target waits too, even for a table that is new."""
    key = change.foreign_key
    if change.online:
        hazard = _tightens(change, f"{key.column} refers to a row of {key.target_table}")
        return _prove(sizes, change.table, Lock.SHARE_ROW_EXCLUSIVE, hazard)
    stands = change.table in sizes or key.target_table in sizes
    lock = Lock.SHARE_ROW_EXCLUSIVE if stands else Lock.NONE
    return _sized(Assessment(change_class=_SAFE, lock=lock), sizes, change.table)


def _rename_object(change: RenameObject, sizes: Sizes) -> Assessment:
    cost = _brief(sizes, (change.table,))
    if change.object_kind is ObjectKind.INDEX and cost.lock is not Lock.NONE:
        lock = Lock.SHARE_UPDATE_EXCLUSIVE
        return _sized(Assessment(change_class=_SAFE, lock=lock), sizes, change.table)
    return cost


# --- views, definition, access, webhooks ----------------------------------------------------------


def _drop_view(change: DropView) -> Assessment:
    if change.again:
        return Assessment(change_class=_SAFE, lock=Lock.ACCESS_EXCLUSIVE)
    message = f"readers of view {change.schema}.{change.name} find it changed or gone"
    return Assessment(
        change_class=ChangeClass.BREAKING,
        lock=Lock.ACCESS_EXCLUSIVE,
        hazards=(_hazard("CHANGES_VIEW", message),),
    )


def _change_definition(change: ChangeDefinition) -> Assessment:
    hazards = []
    opening = [field.path for field in change.fields if opens(field)]
    if opening or change.widens_access:
        what = f": {', '.join(opening)}" if opening else ""
        message = f"more people can see or do something with {change.entity} than before{what}"
        hazards.append(_hazard("WIDENS_ACCESS", message))
    days = next((field.new for field in change.fields if _keeps_less(field)), None)
    if days is not None:
        message = f"deleted rows of {change.entity} go for good after {plural(days, 'day')}"
        hazards.append(_hazard("DELETES_ROWS", message))
        return Assessment(change_class=ChangeClass.DESTRUCTIVE, hazards=tuple(hazards))
    return _widening(*hazards) if hazards else _NO_COST


def _keeps_less(change: FieldChange) -> bool:
    """Whether the property, changed so, lets rows go that were kept before."""
    if change.path != "deletedRetentionDays" or change.new is None:
        return False
    return change.old is None or change.new < change.old


def opens(change: FieldChange) -> bool:
    """Whether the property, changed so, lets somebody see or do more than before."""
    match change.path.rpartition(".")[2]:
        case "classification":
            return bool(change.old == "restricted")
        case "access" | "mode":
            return change.old in ("restricted", {"mode": "restricted"})
        case "allowSameAuthorApproval":
            return bool(change.new)
        case _:
            return False


def _widening(*hazards: Hazard) -> Assessment:
    return Assessment(change_class=ChangeClass.SECURITY_WIDENING, hazards=hazards)


def grant_scope(grant: PermissionGrant) -> str:
    if grant.entity:
        return grant.entity
    return "all domains" if grant.domain == "*" else f"domain {grant.domain}"


def _grant(change: GrantPermission) -> Assessment:
    if change.replaces is not None and _is_within(change.grant, change.replaces):
        return _NO_COST
    message = f"{change.grant.principal} gets more rights on {grant_scope(change.grant)}"
    return _widening(_hazard("WIDENS_ACCESS", message))


def _is_within(new: PermissionGrant, old: PermissionGrant) -> bool:
    narrower = old.row_filter in ("", new.row_filter)
    return narrower and granted_by(new.actions) <= granted_by(old.actions)


def _revoke(grant: PermissionGrant, replaced_by: PermissionGrant | None) -> Assessment:
    """A row with a filter also narrows what domain-wide rows give; without it they reach further.

    Where the row that replaces it gives all of it and more, the hazard is told of that row.
    """
    if replaced_by is not None and _is_within(grant, replaced_by):
        return _NO_COST
    loses = _hazard("REVOKES_ACCESS", f"{grant.principal} loses rights on {grant_scope(grant)}")
    if not grant.row_filter:
        return Assessment(change_class=ChangeClass.BREAKING, hazards=(loses,))
    message = (
        f"the row filter of {grant.principal} on {grant_scope(grant)} no longer narrows"
        " what a grant on the domain lets the same people see"
    )
    return _widening(loses, _hazard("WIDENS_ACCESS", message))


def _send_out(change: AddWebhook | ChangeWebhook) -> Assessment:
    webhook = change.webhook
    if not webhook.is_active or (isinstance(change, ChangeWebhook) and not _reaches_more(change)):
        return _NO_COST
    kinds = plural(len(webhook.actions), "event type") if webhook.actions else "all event types"
    message = f"row values leave for {webhook.url} ({kinds})"
    return _widening(_hazard("SENDS_DATA_OUT", message))


def _reaches_more(change: ChangeWebhook) -> bool:
    """A new address, switched on, or a filter that lets more through; an empty one is all."""
    for field in change.fields:
        if field.path in ("url", "is_active"):
            return True
        if field.path in ("domains", "entities", "actions") and field.old:
            added = set(field.new or ()) - set(field.old)
            if added or not field.new:
                return True
    return False
