"""A plan as its reader meets it: blocks of entities, then access, webhooks and seeds, then counts.

Made once from a plan and rendered by ``plan.text`` and ``plan.markdown``, so both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mdm_gitops.model import ChangeClass, PermissionGrant, Policy
from mdm_gitops.plan.changes import (
    AddWebhook,
    ApplySeed,
    ChangeProject,
    ChangeWebhook,
    CreateEntity,
    GrantPermission,
    RemoveEntity,
    RemoveWebhook,
    RenameEntity,
    RestoreEntity,
    RevokePermission,
)
from mdm_gitops.plan.fold import fold
from mdm_gitops.plan.human import about, plural, visible
from mdm_gitops.plan.line import Line, worst
from mdm_gitops.plan.plan import CheckResult, Plan, PlannedChange, RefusalCode
from mdm_gitops.plan.policy import Unallowed, refused_hazards
from mdm_gitops.plan.verdicts import lock_words
from mdm_gitops.plan.words import Symbol, regrant, word


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """All that happens to one entity."""

    symbol: Symbol
    entity: str
    title: str  # the entity's name, or ``old → new``
    lines: tuple[Line, ...]

    @property
    def change_class(self) -> ChangeClass:
        return worst(line.change_class for line in self.lines)

    @property
    def rows(self) -> int:
        return max((i.assessment.rows for line in self.lines for i in line.items), default=0)

    @property
    def lock(self) -> str:
        return lock_words(i.assessment.lock for line in self.lines for i in line.items)

    @property
    def is_blocked(self) -> bool:
        return any(line.is_blocked for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    blocks: tuple[Block, ...]
    project: tuple[Line, ...]
    permissions: tuple[Line, ...]
    webhooks: tuple[Line, ...]
    seeds: tuple[Line, ...]
    unallowed: tuple[Unallowed, ...]  # what the policy does not let in by itself
    refused: int  # refusals that are no failed data check

    @property
    def sections(self) -> tuple[tuple[str, tuple[Line, ...]], ...]:
        """Title and lines of all that is no entity, without empty ones."""
        sections = (
            ("Project", self.project),
            ("Permissions", self.permissions),
            ("Webhooks", self.webhooks),
            ("Seeds", self.seeds),
        )
        return tuple(section for section in sections if section[1])

    @property
    def blocked(self) -> int:
        lines = [line for block in self.blocks for line in block.lines]
        return sum(line.is_blocked for line in lines)

    def count(self, *symbols: Symbol) -> int:
        return sum(block.symbol in symbols for block in self.blocks)


def outline(plan: Plan, *, policy: Policy | None = None, everything: bool = False) -> Outline:
    """Return *plan* in reading order.

    *policy* decides what still wants a yes (default: that of a project that names none);
    *everything* also shows what only follows from other changes.
    """
    of_kind = [item for item in plan.changes if not isinstance(item.change, _SECTIONED)]
    return Outline(
        blocks=tuple(_blocks(of_kind, plan, everything)),
        project=tuple(_plain(plan.changes, ChangeProject)),
        permissions=tuple(_permissions(plan.changes)),
        webhooks=tuple(_plain(plan.changes, AddWebhook, ChangeWebhook, RemoveWebhook)),
        seeds=tuple(_plain(plan.changes, ApplySeed)),
        unallowed=refused_hazards(plan, policy=policy or Policy()),
        refused=sum(r.code is not RefusalCode.DATA_CHECK_FAILED for r in plan.refusals),
    )


_SECTIONED = (
    ChangeProject,
    GrantPermission,
    RevokePermission,
    AddWebhook,
    ChangeWebhook,
    RemoveWebhook,
    ApplySeed,
)


def _blocks(items: Sequence[PlannedChange], plan: Plan, everything: bool) -> Iterator[Block]:
    """Yield a block per entity by name; one that goes and comes anew in one plan has two."""
    by_entity: dict[tuple[str, bool], list[PlannedChange]] = {}
    created: set[str] = set()
    for item in items:
        entity = item.change.entity
        if isinstance(item.change, CreateEntity):
            created.add(entity)
        elif isinstance(item.change, RemoveEntity):
            created.discard(entity)
        by_entity.setdefault((entity, entity in created), []).append(item)
    checks: dict[int, list[CheckResult]] = {}
    for result in plan.checks:
        for number in result.changes:
            checks.setdefault(number, []).append(result)
    for (entity, _), group in sorted(by_entity.items()):
        own = {id(result): result for item in group for result in checks.get(item.number, ())}
        lines = fold(group, tuple(own.values()), everything=everything)
        if lines:
            yield _block(entity, group, lines)


def _block(entity: str, group: Sequence[PlannedChange], lines: tuple[Line, ...]) -> Block:
    symbol, title = Symbol.CHANGE, visible(entity)
    for item in group:
        match item.change:
            case CreateEntity():
                symbol = Symbol.CREATE
            case RemoveEntity():
                symbol = Symbol.REMOVE
            case RestoreEntity():
                symbol = Symbol.RESTORE
            case RenameEntity(old_entity=old):
                symbol, title = Symbol.RENAME, visible(f"{old} → {entity}")
    return Block(symbol=symbol, entity=entity, title=title, lines=lines)


def _plain(items: Sequence[PlannedChange], *kinds: type) -> Iterator[Line]:
    for item in items:
        if isinstance(item.change, kinds):
            yield _line(item, said=None)


def _line(*items: PlannedChange, said: tuple[Symbol, str, str] | None) -> Line:
    wording = word(items[0].change)
    symbol, headline, detail = said or (wording.symbol, wording.headline, wording.detail)
    return Line(symbol=symbol, headline=headline, detail=detail, items=items)


# --- permissions ----------------------------------------------------------------------------------


def _permissions(items: Sequence[PlannedChange]) -> Iterator[Line]:
    """Yield a line per grant; one that replaces another reads as who gains and who loses what."""
    given: dict[tuple[str, str, str], list[PlannedChange]] = {}
    taken: dict[tuple[str, str, str], list[PlannedChange]] = {}
    for item in items:
        match item.change:
            case GrantPermission(grant=grant):
                given.setdefault(_scope(grant), []).append(item)
            case RevokePermission(grant=grant):
                taken.setdefault(_scope(grant), []).append(item)
    for scope in sorted({*given, *taken}):
        new, old = given.get(scope, []), taken.get(scope, [])
        if len(new) == len(old) == 1:
            yield _regrant(new[0], old[0])
        else:
            yield from (_line(item, said=None) for item in (*new, *old))


def _scope(grant: PermissionGrant) -> tuple[str, str, str]:
    return (grant.principal, grant.domain, grant.entity)


def _regrant(new: PlannedChange, old: PlannedChange) -> Line:
    assert isinstance(new.change, GrantPermission) and isinstance(old.change, RevokePermission)
    said = regrant(old.change.grant, new.change.grant)
    return _line(new, old, said=(said.symbol, said.headline, said.detail))


# --- counts ---------------------------------------------------------------------------------------


def summary(outline: Outline) -> str:
    """Return ``1 to create, 2 to change, 3 permissions; 1 blocked``."""
    counts = (
        (outline.count(Symbol.CREATE), "to create"),
        (outline.count(Symbol.CHANGE, Symbol.RENAME), "to change"),
        (outline.count(Symbol.RESTORE), "to restore"),
        (outline.count(Symbol.REMOVE), "to archive"),
    )
    parts = [f"{count:,} {what}" for count, what in counts if count]
    nouns = (("permission", outline.permissions), ("webhook", outline.webhooks))
    for noun, lines in (*nouns, ("seed", outline.seeds)):
        parts += [plural(len(lines), noun)] if lines else []
    parts += ["project settings"] if outline.project else []
    stops = [f"{outline.blocked:,} blocked"] if outline.blocked else []
    stops += [f"{outline.refused:,} refused"] if outline.refused else []
    return "; ".join(part for part in (", ".join(parts) or "no change", ", ".join(stops)) if part)


def block_facts(block: Block) -> tuple[str, ...]:
    """Return what stands beside the block's title: size of the table, how its lock is felt."""
    if block.symbol is Symbol.CREATE or not block.rows:
        return ()
    return tuple(part for part in (about(block.rows, "row"), block.lock) if part)
