"""Every change in words: a symbol, a headline and what becomes of the data.

The one place that speaks of single changes; ``plan.outline`` folds them into the lines that people
read, and all formats take them from there. What a data check found, what has drifted and what must
be allowed is worded in ``plan.verdicts``. Nothing here knows costs or colours. One long module, so
that like things are said alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, assert_never, cast

from mdm_gitops.model import Action, PermissionGrant, SeedMode, Webhook
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
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    RemoveWebhook,
    RenameColumn,
    RenameEntity,
    RenameObject,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    RevokePermission,
    SeedCounts,
    SetDefault,
    SetRequired,
    ValidateCheck,
    ValidateForeignKey,
    WidenColumn,
)
from mdm_gitops.plan.hazards import grant_scope, lets_more_through
from mdm_gitops.plan.human import data_type, listed, plural, value, visible
from mdm_gitops.plan.physical import (
    Check,
    Index,
    IndexKind,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    View,
)

_ARCHIVE: Final = re.compile(r"_arch_(\d+)_")
_MOST_VALUES: Final = 12
_LONG: Final = 60
_BACK: Final = "comes back with git revert"


class Symbol(StrEnum):
    """In the order in which the lines of one entity are read: what goes away comes last."""

    RENAME = "»"
    CREATE = "+"
    RESTORE = "↺"
    CHANGE = "~"
    REMOVE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    symbol: Symbol
    headline: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.symbol} {self.headline}" + (f": {self.detail}" if self.detail else "")


def word(change: Change) -> Wording:
    """Return *change* in words, whatever its class; foreign text in it is made visible."""
    one = cast(AnyChange, change)
    match one:
        case CreateEntity():
            columns = plural(len(user_columns(one.tables[0])), "column")
            return _create(one.entity, f"new, {columns}")
        case RenameEntity():
            detail = f"renamed in {plural(len(one.tables), 'table')}, rows kept"
            return _rename(f"{one.old_entity} → {one.entity}", detail, one.reverted)
        case RemoveEntity():
            return _remove(one.entity, f"kept as archive {one.archive_number}, {_BACK}")
        case RestoreEntity():
            detail = f"comes back from archive {one.archive_number} with its rows"
            return _restore(one.entity, detail)
        case AddSatellite() | RemoveSatellite() | RestoreSatellite():
            return _satellite(one)
        case AddColumn():
            return _create(one.column.name, _added_column(one))
        case RenameColumn():
            detail = f"renamed in {plural(len(one.tables), 'table')}, data kept"
            return _rename(f"{one.column.old} → {one.column.new}", detail, one.reverted)
        case RemoveColumn():
            return _remove(one.column, f"kept as {archive(one.archived_as)}, {_BACK}")
        case RestoreColumn():
            detail = f"comes back from {archive(one.archived_as)} with its values"
            return _restore(one.column, detail)
        case WidenColumn():
            return _retyped(one.column, one.old_type, one.new_type, "in place, no row is touched")
        case RetypeColumn():
            was = "" if one.source == one.column else f" (was {one.source})"
            return _retyped(one.column + was, one.old_type, one.new.type, _retype_detail(one))
        case AbandonFilling():
            detail = "a type change that was begun is given up; its column is kept as "
            return _change(one.column, detail + archive(one.archived_as))
        case SetRequired():
            return _change(f"{one.column} required")
        case DropRequired():
            return _change(f"{one.column} may be empty")
        case SetDefault():
            return _change(f"{one.column.name} default {value(one.column.default)}")
        case DropDefault():
            return _change(f"{one.column} has no default any more")
        case AddCheck():
            return _add_check(one)
        case DropCheck():
            return _drop_check(one)
        case ValidateCheck():
            return _change(f"rule {one.check} proven", _LEFT_UNPROVEN)
        case ValidateForeignKey():
            return _change(f"reference {one.foreign_key} proven", _LEFT_UNPROVEN)
        case AddIndex():
            detail = "built again, the last attempt was interrupted" if one.rebuild else ""
            return _change(index_words(one.index), detail)
        case DropIndex():
            return _change(_dropped_index(one.index))
        case AddForeignKey():
            return _change(f"{one.foreign_key.column} {reference_words(one)}")
        case DropForeignKey():
            return _change(f"{one.foreign_key.column} no longer {reference_words(one)}")
        case RenameObject():
            what = f"{one.object_kind.value} {one.rename.old} → {one.rename.new}"
            return _rename(what, "follows the rename")
        case CreateView(gains=True):
            return _change(view_name(one.view), f"has more columns: {view_words(one.view)}")
        case CreateView():
            again = "built again, because something beneath it moves"
            return _create(view_name(one.view), again if one.again else view_words(one.view))
        case DropView():
            again = "taken down, because something beneath it moves"
            detail = again if one.again else "is no longer there for those who read it"
            return _remove(f"view {one.schema}.{one.name}", detail)
        case ChangeDefinition():
            return _change(one.entity, "; ".join(field_words(one.fields)))
        case FinishEntity():
            return _change(one.entity, "stands already; an interrupted run is marked as done")
        case ChangeProject():
            return _change("project", "; ".join(field_words(one.fields)) or "recorded")
        case GrantPermission():
            return _grant(one)
        case RevokePermission():
            headline = f"{one.grant.principal} may no longer {_may(one.grant)}"
            return _remove(visible(headline), _rows(one.grant, "had "))
        case AddWebhook():
            headline = f"{one.webhook.name} → {one.webhook.url}"
            return _create(visible(headline), _subscription(one.webhook))
        case ChangeWebhook():
            return _change(visible(one.webhook.name), _changed_webhook(one))
        case RemoveWebhook():
            detail = "is told nothing any more; one that comes back starts at now"
            return _remove(visible(one.name), detail)
        case ApplySeed():
            return _change(one.entity, seed_words(one.counts, one.mode))
        case _:
            assert_never(one)


_LEFT_UNPROVEN: Final = "an interrupted run left it unproven"


def _create(headline: str, detail: str = "") -> Wording:
    return Wording(symbol=Symbol.CREATE, headline=headline, detail=detail)


def _change(headline: str, detail: str = "") -> Wording:
    return Wording(symbol=Symbol.CHANGE, headline=headline, detail=detail)


def _remove(headline: str, detail: str = "") -> Wording:
    return Wording(symbol=Symbol.REMOVE, headline=headline, detail=detail)


def _restore(headline: str, detail: str) -> Wording:
    return Wording(symbol=Symbol.RESTORE, headline=headline, detail=detail)


def _rename(headline: str, detail: str, reverted: bool = False) -> Wording:
    if reverted:
        detail = f"an earlier rename is taken back: {detail}"
    return Wording(symbol=Symbol.RENAME, headline=headline, detail=detail)


# --- columns --------------------------------------------------------------------------------------


def archive(physical: str) -> str:
    """Return ``archive 3`` for ``_arch_3_notes``."""
    found = _ARCHIVE.match(physical)
    return f"archive {found[1]}" if found else physical


def user_columns(table: Table) -> list[PhysicalColumn]:
    return [column for column in table.columns.values() if not column.name.startswith("_sys_")]


def _added_column(change: AddColumn) -> str:
    if change.main_table is None:
        return f"was missing in {listed(change.satellite_tables)}"
    return ", ".join(column_facts(change.column))


def column_facts(column: PhysicalColumn) -> Iterator[str]:
    yield data_type(column.type)
    if column.not_null:
        yield "required"
    if column.default is not None:
        yield f"default {value(column.default)}"


def _retyped(column: str, old: str, new: str, detail: str) -> Wording:
    return _change(f"{column} {data_type(old)} → {data_type(new)}", detail)


def _retype_detail(change: RetypeColumn) -> str:
    kept = f"the old column is kept as {archive(change.archived_as)}"
    if change.keep_archived_where_null:
        return f"values of the archived column stand where there are none now; {kept}"
    if change.restored_from:
        return f"archived values come back, edited ones are converted; {kept}"
    if change.filling:
        begun = "goes on filling" if change.filling.exists else "each value is converted into"
        return f"{begun} a new column; {kept}"
    return f"no rows to convert; {kept}"


def _satellite(change: AddSatellite | RemoveSatellite | RestoreSatellite) -> Wording:
    match change, change.role:
        case AddSatellite(), Role.EDIT:
            return _create("approval", "changes wait for an approver from now on")
        case AddSatellite(), _:
            return _create("history", "each version of a row is kept from now on")
        case RemoveSatellite(table=table), Role.EDIT:
            detail = f"changes take effect at once; what is pending is set aside in {table.new}"
            return _remove("approval", detail)
        case RemoveSatellite(table=table), _:
            detail = f"no further versions; earlier ones stay in {table.new}, {_COME_BACK}"
            return _remove("history", detail)
        case RestoreSatellite(), Role.EDIT:
            return _restore("approval", "changes wait again; what was set aside comes back")
        case _:
            return _restore("history", "versions are kept again; the archived ones come back")


_COME_BACK: Final = "come back with git revert"


# --- rules ----------------------------------------------------------------------------------------


def rule_words(check: Check) -> str:
    """Return what *check* asks of a value, as it follows the column's name."""
    argument = check.argument
    match check.rule:
        case RuleKind.PATTERN:
            return f"must match {visible(str(argument))}"
        case RuleKind.ALLOWED:
            return f"one of {_values(argument)}"
        case RuleKind.RANGE:
            return range_words(argument)
        case RuleKind.LENGTH:
            return f"at most {plural(argument, 'character')}"
        case _:
            raise AssertionError("a helper is no rule of a definition")


def _values(values: Sequence[Any]) -> str:
    shown = [value(each) for each in values[:_MOST_VALUES]]
    more = len(values) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def range_words(limits: Sequence[Any]) -> str:
    low, high = limits
    if low is None:
        return f"at most {value(high)}"
    return f"at least {value(low)}" if high is None else f"from {value(low)} to {value(high)}"


def _add_check(change: AddCheck) -> Wording:
    new, old = change.check, change.replaces
    if old is None:
        return _change(f"{new.column} {rule_words(new)}")
    detail = "lets more through than before" if lets_more_through(new, old) else ""
    if new.rule is RuleKind.ALLOWED:
        return _change(f"{new.column} {rule_words(new)}", _list_change(new, old) or detail)
    return _change(f"{new.column} {rule_words(old)} → {rule_words(new)}", detail)


def _list_change(new: Check, old: Check) -> str:
    added = [each for each in new.argument if each not in old.argument]
    gone = [each for each in old.argument if each not in new.argument]
    parts = [f"new: {_values(added)}"] if added else []
    return "; ".join([*parts, f"gone: {_values(gone)}"] if gone else parts)


_DROPPED: Final[Mapping[str, str]] = {
    RuleKind.PATTERN: "is free of its pattern",
    RuleKind.ALLOWED: "takes any value, the list is gone",
    RuleKind.RANGE: "is free of its limits",
    RuleKind.LENGTH: "may have any length",
    RuleKind.REQUIRED: "loses the helper of an interrupted run",
    RuleKind.CASTABLE: "loses the helper of an interrupted run",
}


def _drop_check(change: DropCheck) -> Wording:
    if change.rule in _DROPPED and change.column:
        return _change(f"{change.column} {_DROPPED[change.rule]}")
    return _change(f"rule {change.check} dropped", "it was changed by hand")


_INDEXED: Final = MappingProxyType(
    {
        IndexKind.VALUES: "indexed",
        IndexKind.SEARCH: "indexed for search",
        IndexKind.MATCH: "indexed for matching",
    }
)


def index_words(index: Index) -> str:
    together = " together" if len(index.columns) > 1 else ""
    said = f"unique{together}" if index.unique else _INDEXED[index.kind]
    return f"{', '.join(index.columns)} {said}"


def _dropped_index(index: Index) -> str:
    together = " together" if len(index.columns) > 1 else ""
    said = f"unique{together}" if index.unique else _INDEXED[index.kind]
    return f"{', '.join(index.columns)} no longer {said}"


def reference_words(change: AddForeignKey | DropForeignKey) -> str:
    key = change.foreign_key
    return f"refers to {key.target_table}.{key.target_column}"


# --- views and definitions ------------------------------------------------------------------------


def view_name(view: View) -> str:
    return f"view {view.schema}.{view.name}"


def view_words(view: View) -> str:
    deleted = ", deleted rows too" if view.include_deleted else ""
    return ", ".join(name for name, _ in view.columns) + deleted


def field_words(fields: Sequence[FieldChange]) -> tuple[str, ...]:
    """Return ``code.displayName Code → ISO code`` for each property, nested ones one by one."""
    return tuple(
        f"{path} {_old_and_new(old, new)}"
        for field in fields
        for path, old, new in _leaves(field.path.removeprefix("columns."), field.old, field.new)
    )


def _leaves(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if _is_named_list(old) and _is_named_list(new):
        old, new = _by_name(old), _by_name(new)
        if list(old) != list(new):
            yield visible(path), list(old), list(new)
        old, new = ({key: one[key] for key in old if key in new} for one in (old, new))
    elif not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        yield visible(path), old, new
        return
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield from _leaves(f"{path}.{key}", old.get(key), new.get(key))


def _is_named_list(raw: Any) -> bool:
    """Whether *raw* is a list of mappings that begin with a name: domains, sort columns ..."""
    return isinstance(raw, list | tuple) and all(isinstance(each, Mapping) for each in raw)


def _by_name(items: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(next(iter(each.values()), "")): each for each in items}


def _old_and_new(old: Any, new: Any) -> str:
    """Long lists are compared item by item, where that says what has changed."""
    whole = f"{_or_none(old)} → {_or_none(new)}"
    lists = isinstance(old, list | tuple) and isinstance(new, list | tuple) and old and new
    if not lists or len(whole) <= _LONG:
        return whole
    before, after = _plain_item(old), _plain_item(new)
    parts = [f"without {value(each)}" for each in before if each not in after]
    parts += [f"with {value(each)}" for each in after if each not in before]
    return ", ".join(parts[:_MOST_VALUES]) or whole


def _or_none(raw: Any) -> str:
    if isinstance(raw, Mapping):
        return value(", ".join(f"{key}: {value(each)}" for key, each in raw.items()))
    return "none" if raw in (None, "", [], ()) else value(_plain_item(raw))


def _plain_item(raw: Any) -> Any:
    """A list of mappings (sort columns, similarity columns) shows the first value of each."""
    if not isinstance(raw, list | tuple):
        return raw
    return [next(iter(each.values()), "") if isinstance(each, Mapping) else each for each in raw]


# --- access, webhooks, seeds ----------------------------------------------------------------------

_VERBS: Final[Mapping[Action, str]] = {
    Action.READ: "read",
    Action.WRITE: "write",
    Action.APPROVE: "approve",
    Action.VIEWRESTRICTED: "unmask",
    Action.ADMIN: "administer",
}


def _verbs(actions: Collection[Action]) -> str:
    return listed(verb for action, verb in _VERBS.items() if action in actions)


def _may(grant: PermissionGrant) -> str:
    return f"{_verbs(grant.actions)} {grant_scope(grant)}"


def _rows(grant: PermissionGrant, before: str = "") -> str:
    return f"{before}only rows where {visible(grant.row_filter)}" if grant.row_filter else ""


def _grant(change: GrantPermission) -> Wording:
    if change.replaces is not None:
        return regrant(change.replaces, change.grant)
    headline = f"{change.grant.principal} may {_may(change.grant)}"
    return _create(visible(headline), _rows(change.grant))


def regrant(old: PermissionGrant, new: PermissionGrant) -> Wording:
    """Return what *new* in the place of *old* gives and takes, for one principal and scope."""
    before, after = granted_by(old.actions), granted_by(new.actions)
    gained, lost = after - before, before - after
    parts = [f"may now also {_verbs(gained)}"] if gained else []
    if lost:
        parts.append(f"may no longer {_verbs(lost)}")
    if old.row_filter != new.row_filter:
        parts.append(_filter_change(visible(old.row_filter), visible(new.row_filter)))
    return _change(visible(f"{new.principal} on {grant_scope(new)}"), "; ".join(parts))


def _filter_change(old: str, new: str) -> str:
    if not new:
        return f"row filter removed: all rows instead of only those where {old}"
    if not old:
        return f"row filter added: only rows where {new}"
    return f"row filter changed: {old} → {new}"


def _subscription(webhook: Webhook) -> str:
    scope = listed([*webhook.entities, *(f"domain {domain}" for domain in webhook.domains)])
    events = ", ".join(webhook.actions) or "all events"
    off = "" if webhook.is_active else "switched off; "
    unseen = "" if webhook.secret_ref else "; signed with a secret that is made here"
    return visible(f"{off}{events} of {scope or 'all entities'}{unseen}")


_FILTERS: Final = ("domains", "entities", "actions")  # an empty one lets everything through


def _changed_webhook(change: ChangeWebhook) -> str:
    fields = [
        replace(field, old=field.old or "all", new=field.new or "all")
        if field.path in _FILTERS
        else field
        for field in change.fields
    ]
    told = any(field.path in (*_FILTERS, "is_active") for field in fields)
    address = f"sends to {visible(change.webhook.url)}"
    words = field_words(fields)
    return "; ".join([*words, address] if told and change.webhook.is_active else words)


def seed_words(counts: SeedCounts, mode: SeedMode) -> str:
    total = counts.inserted + counts.updated + counts.unchanged + counts.left_alone
    parts = [f"{counts.inserted:,} new"] if counts.inserted else []
    if counts.updated:
        enforced = " (also where a person changed them)" if mode is SeedMode.ENFORCE else ""
        parts.append(f"{counts.updated:,} changed{enforced}")
    if counts.left_alone:
        parts.append(f"{counts.left_alone:,} left alone (changed by a person{_keys(counts)})")
    return f"{plural(total, 'row')}: {', '.join(parts) or 'as they are'}"


def _keys(counts: SeedCounts) -> str:
    if not counts.left_alone_keys:
        return ""
    more = ", …" if counts.left_alone > len(counts.left_alone_keys) else ""
    return ": " + ", ".join(visible(key) for key in counts.left_alone_keys) + more
