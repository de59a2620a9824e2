"""Folds the changes of one entity into the lines that a person reads: one per logical change.

What PostgreSQL needs and nobody asked for disappears: an index that a reference carries, a rule that
is built again under a retyped column, a view that is taken down and put back, the renames of rules.
No change is lost: each line keeps all that were folded into it, with their costs and data checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from mdm_gitops.plan.changes import (
    AddCheck,
    AddColumn,
    AddForeignKey,
    AddIndex,
    AddSatellite,
    Change,
    ChangeDefinition,
    CreateEntity,
    CreateView,
    DropCheck,
    DropDefault,
    DropForeignKey,
    DropIndex,
    DropRequired,
    DropView,
    FinishEntity,
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    RenameEntity,
    RenameObject,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    SetDefault,
    SetRequired,
    WidenColumn,
)
from mdm_gitops.plan.hazards import opens
from mdm_gitops.plan.human import about, listed, plural
from mdm_gitops.plan.line import Line
from mdm_gitops.plan.physical import Role
from mdm_gitops.plan.plan import CheckResult, PlannedChange
from mdm_gitops.plan.words import (
    Symbol,
    field_words,
    index_words,
    reference_words,
    rule_words,
    user_columns,
    view_words,
    word,
)

_SYMBOLS: Final = list(Symbol)
_MOST_COLUMNS: Final = 30

AddedRule = SetRequired | SetDefault | AddCheck | AddIndex | AddForeignKey
DroppedRule = DropRequired | DropDefault | DropCheck | DropIndex | DropForeignKey
Rule = AddedRule | DroppedRule


@dataclass(slots=True)
class _Draft:
    """A line under way; rules are still being folded into it."""

    item: PlannedChange
    items: list[PlannedChange]
    facts: list[str] = field(default_factory=list)
    symbol: Symbol | None = None
    headline: str = ""
    detail: str = ""

    def line(self, checks: Sequence[CheckResult]) -> Line:
        said = word(self.item.change)
        numbers = {item.number for item in self.items}
        return Line(
            symbol=self.symbol or said.symbol,
            headline=self.headline or said.headline,
            detail=", ".join(part for part in (self.detail or said.detail, *self.facts) if part),
            items=tuple(self.items),
            checks=tuple(result for result in checks if numbers & set(result.changes)),
        )


def _draft(item: PlannedChange, *more: PlannedChange, **said: Any) -> _Draft:
    return _Draft(item=item, items=[item, *more], **said)


def fold(
    items: Sequence[PlannedChange], checks: Sequence[CheckResult], *, everything: bool = False
) -> tuple[Line, ...]:
    """Return the lines of one entity's *items*, what goes away last.

    *everything* also gives a line to what follows by itself and is otherwise left out.
    """
    lines: list[Line] = []
    if items and isinstance(items[0].change, CreateEntity):
        lines += _created(items, checks)
    else:
        lines += (draft.line(checks) for draft in _changed(items))
        lines += _definition(items)
    if everything:
        lines += (_draft(item).line(()) for item in items if follows_by_itself(item))
    return tuple(sorted(lines, key=lambda line: _SYMBOLS.index(line.symbol)))


def follows_by_itself(item: PlannedChange) -> bool:
    """Whether *item* is only there because something else changes."""
    change = item.change
    again = isinstance(change, CreateView | DropView) and change.again
    return again or isinstance(change, RenameObject)


# --- a new entity ---------------------------------------------------------------------------------


def _created(items: Sequence[PlannedChange], checks: Sequence[CheckResult]) -> Iterator[Line]:
    first = items[0].change
    assert isinstance(first, CreateEntity)
    main = first.tables[0]
    names = [column.name for column in user_columns(main)]
    more = len(names) - _MOST_COLUMNS
    shown = names[:_MOST_COLUMNS] + ([f"and {more} more"] if more > 0 else [])
    yield _created_line(plural(len(names), "column"), ", ".join(shown), items[:1])
    indexes = _indexes_of(main.name, items)
    keys = [item for item in items if isinstance(item.change, AddForeignKey)]
    views = [item for item in items if isinstance(item.change, CreateView)]
    unique = (item.change.index for item in indexes if isinstance(item.change, AddIndex))
    sets = [", ".join(index.columns) for index in unique if index.unique]
    computed = {
        item.change.index.kind.value: item
        for item in indexes
        if isinstance(item.change, AddIndex) and item.change.index.computed
    }
    indexes = [item for item in indexes if item not in computed.values()]
    if sets:
        yield _created_line("unique", "; ".join(sets), indexes)
    for kind, item in computed.items():
        yield _created_line(kind, ", ".join(_columns_indexed(item)), [item])
    if keys:
        refers = (c.change for c in keys if isinstance(c.change, AddForeignKey))
        targets = ((c.foreign_key.column, c.foreign_key.target_table) for c in refers)
        detail = ", ".join(f"{target} by {column}" for column, target in targets)
        yield _created_line("refers to", detail, keys)
    roles = {table.role for table in first.tables}
    if Role.HISTORY in roles:
        yield _created_line("history", "each version of a row is kept", ())
    if Role.EDIT in roles:
        edit = next(table.name for table in first.tables if table.role is Role.EDIT)
        lookups = _indexes_of(edit, items)
        yield _created_line("approval", "changes wait for an approver", lookups)
    yield from (_draft(item).line(checks) for item in views)


def _columns_indexed(item: PlannedChange) -> tuple[str, ...]:
    return item.change.index.columns if isinstance(item.change, AddIndex) else ()


def _indexes_of(table: str, items: Sequence[PlannedChange]) -> list[PlannedChange]:
    return [
        item for item in items if isinstance(item.change, AddIndex) and item.change.table == table
    ]


def _created_line(headline: str, detail: str, items: Sequence[PlannedChange]) -> Line:
    return Line(symbol=Symbol.CREATE, headline=headline, detail=detail, items=tuple(items))


# --- an entity that stands ------------------------------------------------------------------------


@dataclass(slots=True)
class _Heads:
    """The lines that take in the rules of their column (or, for an entity, of all columns)."""

    adding: dict[str, _Draft] = field(default_factory=dict)
    dropping: dict[str, _Draft] = field(default_factory=dict)
    satellites: dict[str, _Draft] = field(default_factory=dict)  # by table, that come or go
    entity: _Draft | None = None

    def note(self, draft: _Draft) -> None:
        change = draft.item.change
        match change:
            case AddColumn():
                self.adding[change.column.name] = draft
            case RestoreColumn():
                self.adding[change.column] = draft
            case RemoveColumn():
                self.dropping |= {change.column: draft, change.archived_as: draft}
            case RetypeColumn():
                self.adding[change.column] = draft
                former = (change.column, change.source, change.archived_as)
                self.dropping |= dict.fromkeys(former, draft)
            case WidenColumn():
                self.adding[change.column] = self.dropping[change.column] = draft
            case AddSatellite():
                self.satellites[change.table.name] = draft
            case RemoveSatellite():
                self.satellites[change.table.old] = draft
            case RestoreSatellite():
                self.satellites[change.table.new] = draft
            case RemoveEntity() | RestoreEntity():
                self.entity = draft
            case _:
                pass

    def of(self, rule: Rule) -> _Draft | None:
        if isinstance(rule, AddIndex | DropIndex) and rule.table in self.satellites:
            return self.satellites[rule.table]
        columns = _columns(rule)
        if len(columns) == 1:
            heads = self.adding if isinstance(rule, AddedRule) else self.dropping
            if columns[0] in heads:
                return heads[columns[0]]
        back = self.entity is not None and isinstance(self.entity.item.change, RestoreEntity)
        # Archived tables keep all rules but their foreign keys; any other rule of theirs is news.
        return None if back and not isinstance(rule, AddForeignKey) else self.entity


def _changed(items: Sequence[PlannedChange]) -> list[_Draft]:
    heads, drafts = _Heads(), []
    loose: dict[tuple[Any, ...], list[PlannedChange]] = {}
    views: dict[tuple[str, str], list[PlannedChange]] = {}
    absorbed: list[tuple[_Draft, PlannedChange]] = []
    for item in items:
        change = item.change
        if follows_by_itself(item) or isinstance(change, ChangeDefinition | Rule):
            continue
        if isinstance(change, CreateView | DropView):
            views.setdefault(_view_key(change), []).append(item)
            continue
        drafts.append(_draft(item, headline=_headline(item)))
        heads.note(drafts[-1])
    for item in items:
        if isinstance(item.change, Rule):
            head = heads.of(item.change)
            if head is None:
                loose.setdefault(_rule_key(item.change), []).append(item)
            else:
                absorbed.append((head, item))
    _absorb(absorbed)
    drafts += (_rule_line(group) for group in _with_their_indexes(loose))
    drafts += _views(views.values(), heads.entity)
    return drafts


def _headline(item: PlannedChange) -> str:
    """The block is titled with the entity's name already; "" leaves the change's own words."""
    match item.change:
        case RemoveEntity() | RestoreEntity():
            return about(item.assessment.rows, "row")
        case RenameEntity():
            return "entity"
        case FinishEntity():
            return "deployment"
        case _:
            return ""


def _view_key(change: CreateView | DropView) -> tuple[str, str]:
    return change.view.key if isinstance(change, CreateView) else (change.schema, change.name)


def _views(groups: Iterable[list[PlannedChange]], entity: _Draft | None) -> Iterator[_Draft]:
    gone = []
    for items in groups:
        first, last = items[0], items[-1]
        if isinstance(last.change, CreateView) and len(items) > 1:
            detail = f"now {view_words(last.change.view)}"
            yield _draft(last, *items[:-1], symbol=Symbol.CHANGE, detail=detail)
        elif isinstance(first.change, DropView) and entity is not None:
            entity.items.append(first)
            gone.append(f"{first.change.schema}.{first.change.name}")
        else:
            yield _draft(first)
    if gone and entity is not None:
        entity.facts.append(f"its {'view goes' if len(gone) == 1 else 'views go'}: {listed(gone)}")


# --- rules ----------------------------------------------------------------------------------------


def _columns(rule: Rule) -> tuple[str, ...]:
    match rule:
        case SetDefault():
            return (rule.column.name,)
        case AddCheck():
            return (rule.check.column,)
        case AddIndex() | DropIndex():
            return rule.index.columns
        case AddForeignKey() | DropForeignKey():
            return (rule.foreign_key.column,)
        case _:
            return (rule.column,)


def _rule_key(rule: Rule) -> tuple[Any, ...]:
    """Rules with the same key are one matter: dropped and added again, or changed."""
    columns = _columns(rule)
    match rule:
        case SetRequired() | DropRequired():
            return ("required", columns)
        case SetDefault() | DropDefault():
            return ("default", columns)
        case AddCheck():
            return (rule.check.rule.value, columns)
        case DropCheck():
            return (rule.rule or rule.check, columns)
        case AddIndex() | DropIndex() if rule.index.computed:
            return (rule.index.kind.value, ())
        case AddIndex() | DropIndex():
            return ("unique" if rule.index.unique else "reference", columns)
        case AddForeignKey() | DropForeignKey():
            return ("reference", columns)
        case _:
            assert_never(rule)


def _with_their_indexes(
    groups: dict[tuple[Any, ...], list[PlannedChange]],
) -> Iterator[list[PlannedChange]]:
    """Yield the groups; a plain index goes with what happens to its reference or unique set."""
    for (kind, columns), group in list(groups.items()):
        only_index = all(isinstance(item.change, AddIndex | DropIndex) for item in group)
        unique = groups.get(("unique", columns))
        if kind == "reference" and only_index and unique is not None:
            unique.extend(group)
            del groups[kind, columns]
    yield from groups.values()


def _rule_line(group: list[PlannedChange]) -> _Draft:
    added = _telling([item for item in group if isinstance(item.change, AddedRule)])
    dropped = _telling([item for item in group if isinstance(item.change, DroppedRule)])
    if added is None or dropped is None:
        telling = added or dropped
        assert telling is not None
        return _draft(telling, *(item for item in group if item is not telling))
    new, old = added.change, dropped.change
    rest = [item for item in group if item is not added]
    match new, old:
        case AddForeignKey(), DropForeignKey():
            return _reference_line(added, rest, new, old)
        case AddIndex(), DropIndex() if not new.index.unique and old.index.unique:
            return _draft(dropped, *(item for item in group if item is not dropped))
        case AddIndex(), DropIndex() if new.index.unique == old.index.unique:
            return _draft(added, *rest, detail="built again")
        case _:
            return _draft(added, *rest)


def _telling(items: list[PlannedChange]) -> PlannedChange | None:
    """A foreign key or a unique index says more than the plain index beside it."""

    def rank(item: PlannedChange) -> bool:
        change = item.change
        return isinstance(change, AddIndex | DropIndex) and not change.index.unique

    return min(items, key=rank, default=None)


def _reference_line(
    item: PlannedChange, rest: list[PlannedChange], new: AddForeignKey, old: DropForeignKey
) -> _Draft:
    before, now = reference_words(old), reference_words(new)
    if before == now:
        return _draft(item, *rest, detail="built again")
    headline = f"{new.foreign_key.column} {before} → {now.removeprefix('refers to ')}"
    return _draft(item, *rest, headline=headline)


def _absorb(pairs: Sequence[tuple[_Draft, PlannedChange]]) -> None:
    """Fold rules into the lines of their columns, in words only where they are news."""
    keys = {
        kind: {(id(head), _matter(i.change)) for head, i in pairs if isinstance(i.change, kind)}
        for kind in (AddedRule, DroppedRule)
    }
    for head, item in pairs:
        head.items.append(item)
        change = item.change
        assert isinstance(change, Rule)
        kept = (id(head), _matter(change)) in keys[_OPPOSITE[isinstance(change, AddedRule)]]
        if fact := _news(head.item.change, change, kept=kept):
            head.facts.append(fact)


def _matter(rule: Rule) -> str:
    """What a rule of one column is about; the column itself may have another name by now."""
    return str(_rule_key(rule)[0])


_OPPOSITE: Final = {True: DroppedRule, False: AddedRule}


def _news(head: Change, rule: Rule, *, kept: bool) -> str:
    """Return what the reader must know of *rule*; *kept*: it goes and comes back in one plan."""
    match head, rule:
        case RestoreEntity() | RemoveEntity() | RemoveColumn(), _:
            return ""
        case _, AddCheck() if _differs(rule):
            return _fact(rule)
        case RetypeColumn(had_not_null=True), SetRequired():
            return ""
        case RetypeColumn(had_default=True), SetDefault():
            return ""
    if kept:
        return ""
    return _fact(rule) if isinstance(rule, AddedRule) else _lost(rule)


def _lost(rule: DroppedRule) -> str:
    if isinstance(rule, DropIndex) and not (rule.index.unique or rule.index.computed):
        return ""
    return word(rule).headline.removeprefix(f"{_columns(rule)[0]} ")


def _differs(change: AddCheck) -> bool:
    return change.replaces is not None and change.replaces.argument != change.check.argument


def _fact(rule: AddedRule) -> str:
    match rule:
        case SetRequired():
            return "required"
        case SetDefault():
            return word(rule).headline.removeprefix(f"{rule.column.name} ")
        case AddCheck():
            return rule_words(rule.check)
        case AddIndex():
            tells = rule.index.unique or rule.index.computed
            said = index_words(rule.index) if tells else ""
            return said.removeprefix(f"{rule.index.columns[0]} ")
        case AddForeignKey():
            return reference_words(rule)
        case _:
            assert_never(rule)


# --- definition -----------------------------------------------------------------------------------


def _definition(items: Sequence[PlannedChange]) -> Iterator[Line]:
    """Yield a line per property; only those that open something up carry the class."""
    for item in items:
        if not isinstance(item.change, ChangeDefinition):
            continue
        opening = [one for one in item.change.fields if opens(one)]
        for one in item.change.fields:
            for text in field_words((one,)):
                path, _, change = text.partition(" ")
                quiet = bool(opening) and one not in opening
                yield _property_line(item, path, change, is_quiet=quiet)
        if not item.change.fields:
            yield _property_line(item, "definition", "recorded anew, nothing visible changes")


def _property_line(
    item: PlannedChange, headline: str, detail: str, *, is_quiet: bool = False
) -> Line:
    return Line(
        symbol=Symbol.CHANGE, headline=headline, detail=detail, items=(item,), is_quiet=is_quiet
    )
