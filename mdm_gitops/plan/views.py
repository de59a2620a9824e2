"""Consumption views: which are created, dropped, or taken down and put up again around a move."""

from __future__ import annotations

from collections.abc import Iterator

from mdm_gitops.plan.changes import Change, CreateView, DropView
from mdm_gitops.plan.drift import altered_view, missing_view
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.live import LiveRelation
from mdm_gitops.plan.physical import PhysicalEntity, View
from mdm_gitops.plan.plan import DriftItem


class ViewPlanner:
    """Knows all views of one plan, so that a name can pass from one entity to another."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._drift: list[DriftItem] = []
        self.dropped: list[tuple[str, str]] = []

    def take_drift(self) -> list[DriftItem]:
        drift, self._drift = self._drift, []
        return drift

    def create(self, entity: str, physical: PhysicalEntity) -> Iterator[Change]:
        for view in physical.views:
            yield CreateView(entity=entity, view=view)

    def drop_all(self, entity: str, recorded: PhysicalEntity) -> Iterator[Change]:
        for view in recorded.views:
            yield from self._drop(entity, view)

    def change(
        self,
        entity: str,
        recorded: PhysicalEntity,
        desired: PhysicalEntity,
        *,
        restructured: bool,
    ) -> Iterator[Change]:
        """Yield what leads from the *recorded* views to the *desired* ones.

        *restructured*: a table or column beneath them moves, so they are rebuilt in any case;
        PostgreSQL refuses or silently rewrites a view whose columns change.
        """
        before = {view.key: view for view in recorded.views}
        after = {view.key: view for view in desired.views}
        for key, view in before.items():
            if key not in after:
                yield from self._drop(entity, view)
        for key, view in after.items():
            old = before.get(key)
            if old is None:
                yield CreateView(entity=entity, view=view)
            else:
                yield from self._keep(entity, old, view, restructured)

    def _keep(self, entity: str, old: View, new: View, restructured: bool) -> Iterator[Change]:
        live = self._live(old)
        same = _meaning(old) == _meaning(new)
        if live is None:
            self._drift.append(missing_view(entity, f"{old.schema}.{old.name}"))
            yield CreateView(entity=entity, view=new)
        elif live.objects.get("view") != live.recorded.get("view"):
            self._drift.append(altered_view(entity, f"{old.schema}.{old.name}"))
            yield DropView(entity=entity, schema=old.schema, name=old.name)
            yield CreateView(entity=entity, view=new)
        elif not same or restructured:
            gains = not same and _only_gains(old, new)
            yield DropView(entity=entity, schema=old.schema, name=old.name, again=same or gains)
            yield CreateView(entity=entity, view=new, again=same, gains=gains)

    def _drop(self, entity: str, view: View) -> Iterator[Change]:
        self.dropped.append(view.key)
        if self._live(view) is not None:
            yield DropView(entity=entity, schema=view.schema, name=view.name)

    def _live(self, view: View) -> LiveRelation | None:
        return self._facts.relations.get(view.key)


def _meaning(view: View) -> tuple[object, ...]:
    """What a reader of the view sees; where its columns come from may move beneath it."""
    return (tuple(output for output, _ in view.columns), view.include_deleted)


def _only_gains(old: View, new: View) -> bool:
    """Whether readers of *old* find all that they know in *new*, in the same order."""
    outputs = iter(output for output, _ in new.columns)
    kept = all(output in outputs for output, _ in old.columns)
    return kept and old.include_deleted == new.include_deleted
