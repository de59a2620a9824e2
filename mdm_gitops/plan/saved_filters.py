"""What a plan does to the filters that people have saved: told as a note, never a reason to refuse.

Pure, like all of ``plan``: ``asks_about`` says of which entities the saved filters must be known, and
``notes_on_saved_filters`` compares before and after. Filters that did not fit before are no news.
A note names the filter and its owner, and not what the owner looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Final

from mdm_gitops.errors import FilterError
from mdm_gitops.model import DataType, Definitions, Entity, fold
from mdm_gitops.plan.build import Draft
from mdm_gitops.plan.human import plural, value
from mdm_gitops.plan.recorded import EntityState, RecordedEntity

MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedFilter:
    entity_id: int
    owner: str
    name: str
    filter: str
    sort: str
    columns: tuple[str, ...]


def asks_about(draft: Draft) -> frozenset[int]:
    """Return the ids of the entities that change, and of those that refer to one of them."""
    known = {record.entity_id: record for record in draft.facts.records}
    changed = {record.entity_id for record in draft.records} & known.keys()
    names = {known[number].name for number in changed}
    referring = {
        record.entity_id
        for record in known.values()
        if any(target in names for target, _ in record.targets.values())
    }
    return frozenset(changed | referring) if changed else frozenset()


def notes_on_saved_filters(draft: Draft, saved: Iterable[OwnedFilter]) -> Iterator[str]:
    """Yield a note per entity of which *saved* filters cease to fit. They come by entity."""
    before = {record.entity_id: record for record in draft.facts.records}
    after = before | {record.entity_id: record for record in draft.records}
    then, now = (_definitions(draft, records) for records in (before, after))
    for entity_id, owned in groupby(saved, key=lambda each: each.entity_id):
        old, new = before[entity_id], after[entity_id]
        if old.state is EntityState.REMOVED:
            continue
        if new.state is EntityState.REMOVED:
            yield _out_of_use(old.definition.name, len(list(owned)))
            continue
        unfit = [
            (each, part)
            for each in owned
            if (part := unfit_part(each, new.definition, now))
            and not unfit_part(each, old.definition, then)
        ]
        if unfit:
            yield _unfit(new.definition.name, unfit)


def unfit_part(saved: OwnedFilter, entity: Entity, definitions: Definitions) -> str:
    """Return which part of *saved* does not fit *entity*, "" if all does."""
    # Here because few plans change an entity that has saved filters.
    from mdm_gitops.filter import SYSTEM_COLUMNS, check_filter

    types: dict[str, DataType] = {**SYSTEM_COLUMNS}
    types |= {name: column.data_type for name, column in entity.column_by_name.items()}
    try:
        if saved.filter:
            check_filter(saved.filter, entity, definitions)
    except FilterError:
        return "filter"
    sorted_by = (part.strip().lstrip("+-").strip() for part in saved.sort.split(","))
    if any(types.get(fold(name), DataType.JSON) is DataType.JSON for name in sorted_by if name):
        return "sort"
    # _sys_state is a member of each row, and no column.
    gone = any(fold(name) not in types and fold(name) != "_sys_state" for name in saved.columns)
    return "columns" if gone else ""


def _definitions(draft: Draft, records: Mapping[int, RecordedEntity]) -> Definitions:
    """Return the entities of *records*, and whatever else one of them may refer to."""
    entities = {**draft.definitions.entities, **{r.name: r.definition for r in records.values()}}
    return Definitions(project=draft.definitions.project, entities=MappingProxyType(entities))


def _out_of_use(entity: str, count: int) -> str:
    goes = "goes" if count == 1 else "go"
    return f"{plural(count, 'saved filter')} of {entity} {goes} out of use with it"


def _unfit(entity: str, unfit: list[tuple[OwnedFilter, str]]) -> str:
    named = [
        f"'{value(each.name)}' of {value(each.owner)} ({part})" for each, part in unfit[:MOST_NAMED]
    ]
    more = len(unfit) - len(named)
    rest = f" and {more:,} more" if more else ""
    count = plural(len(unfit), "saved filter")
    return f"{count} of {entity} will no longer fit: {', '.join(named)}{rest}"
