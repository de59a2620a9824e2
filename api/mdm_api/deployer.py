"""Plan and apply for the handlers: one entity at a time, on a connection of its own.

A deployment may take longer than any request to the rows, so it does not use their pool and its
limits. It goes on when the client goes away; the journal tells how it ended. What plans and applies
is imported on the first use: a server that only serves rows has no need of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mdm_api.definitions import DefinitionsProvider
from mdm_gitops.errors import Conflict, DefinitionError, PlanRefused, PlanStale
from mdm_gitops.model import Definitions, PermissionGrant, Project
from mdm_gitops.model.environments import in_environment
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import Connection, SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas

if TYPE_CHECKING:
    from mdm_gitops.plan.changes import Change
    from mdm_gitops.plan.plan import Plan
    from mdm_gitops.warehouse.apply import Applied, Patience
    from mdm_gitops.warehouse.planning import Inspect

Document = dict[str, Any]
T = TypeVar("T")
_ATTEMPTS = 3
_WRITER_LOCK_S = 60.0  # the operator may be at work; what it does is what is wanted here
_LIMITS = SessionLimits(statement_timeout_s=0, idle_in_transaction_timeout_s=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Entities, by folded names, that are deployed together or not at all; *access*: with permissions,
    webhooks and the project. *created* are those of them that the warehouse did not have.

    *grants* and *webhooks*, by name, are asked for by whoever asks for the group, so they need no
    further consent; what else has changed there does.
    """

    entities: tuple[str, ...]
    created: frozenset[str]
    access: bool
    allow: tuple[str, ...] = ()
    grants: frozenset[PermissionGrant] = frozenset()
    webhooks: frozenset[str] = frozenset()


class Deployer(Protocol):
    """*entity* is a folded name, *allow* are texts as ``--allow`` takes them."""

    async def preview(self, entity: str) -> Document: ...

    async def deploy(
        self, entity: str, *, actor: str, allow: Sequence[str], plan_id: str | None
    ) -> Document: ...

    async def remove(self, entity: str, *, actor: str, allow: Sequence[str]) -> Document: ...

    async def drop_archives(self, entity: str, *, confirm: str, actor: str) -> Document: ...

    async def apply_access(self, *, actor: str) -> None: ...

    async def check_access(self, definitions: Definitions) -> None: ...

    async def check_together(self, definitions: Definitions, group: Group) -> Plan: ...

    async def deploy_together(
        self, definitions: Definitions, group: Group, *, actor: str
    ) -> Document: ...

    async def undo_together(self, group: Group, *, actor: str) -> None: ...


class WarehouseDeployer:
    def __init__(self, *, url: str, settings: Settings, definitions: DefinitionsProvider) -> None:
        self._url = url
        self._settings = settings
        self._definitions = definitions
        self._schemas = Schemas(config=settings.ConfigSchema, data=settings.EntityDataSchema)
        self._running: set[asyncio.Task[Any]] = set()

    async def preview(self, entity: str) -> Document:
        from mdm_gitops.plan.document import to_document

        definitions = await self._usable()
        inspect = self._inspect(effects=True)
        async with self._connection() as conn:
            plan = await self._plan(conn, definitions, [entity], inspect=inspect)
        return to_document(plan, policy=definitions.project.policy)

    async def deploy(
        self, entity: str, *, actor: str, allow: Sequence[str], plan_id: str | None
    ) -> Document:
        definitions = await self._usable()
        allowances = [Allowance.parse(text) for text in allow]

        async def run() -> Applied:
            async with self._connection() as conn:
                plan = None
                if plan_id is not None:
                    plan = await self._plan(conn, definitions, [entity], inspect=None)
                    if plan.plan_id != plan_id:
                        raise PlanStale(
                            f"plan {plan_id[:80]} is out of date",
                            hint="Preview again and review it",
                        )
                return await self._apply(
                    conn,
                    definitions,
                    plan,
                    actor=actor,
                    target=[entity],
                    allowances=allowances,
                    approved=plan is not None,
                    inspect=self._inspect(),
                )

        return _document(entity, await self._to_its_end(run()))

    async def remove(self, entity: str, *, actor: str, allow: Sequence[str]) -> Document:
        from mdm_gitops.warehouse.lifecycle import remove_entity

        definitions = await self._usable()
        allowances = tuple(Allowance.parse(text) for text in allow)

        async def run() -> Applied:
            async with self._connection() as conn:
                return await remove_entity(
                    conn,
                    definitions,
                    entity=entity,
                    schemas=self._schemas,
                    actor=actor,
                    allowances=allowances,
                    patience=self._patience(),
                )

        return _document(entity, await self._to_its_end(run()))

    async def drop_archives(self, entity: str, *, confirm: str, actor: str) -> Document:
        from mdm_gitops.warehouse.lifecycle import drop_archives

        async def run() -> Document:
            async with self._connection() as conn:
                dropped = await drop_archives(
                    conn,
                    entity=entity,
                    confirm=confirm,
                    schemas=self._schemas,
                    actor=actor,
                    patience=self._patience(),
                )
            tables, columns = list(dropped.tables), list(dropped.columns)
            return {"entity": entity, "droppedTables": tables, "droppedColumns": columns}

        return await self._to_its_end(run())

    async def apply_access(self, *, actor: str) -> None:
        """Put permissions and webhooks into effect; what belongs to an entity waits for its deployment.

        Whoever commits them through the API says yes to what they open.
        """
        from mdm_gitops.plan.build import ACCESS

        definitions = await self._usable()

        async def run() -> None:
            async with self._connection() as conn:
                await self._apply(
                    conn,
                    definitions,
                    None,
                    actor=actor,
                    target=[ACCESS],
                    inspect=self._inspect(always=False),
                )

        await self._to_its_end(run())

    async def check_access(self, definitions: Definitions) -> None:
        """Raise PlanRefused if *definitions* could not take effect by ``apply_access`` now."""
        from mdm_gitops.plan.build import ACCESS
        from mdm_gitops.warehouse.apply import refuse_blocked

        inspect = self._inspect(always=False)
        async with self._connection() as conn:
            plan = await self._plan(conn, definitions, [ACCESS], inspect=inspect)
        refuse_blocked(plan)

    # --- several entities at once -----------------------------------------------------------------

    async def check_together(self, definitions: Definitions, group: Group) -> Plan:
        """Return the plan for *group*.

        Raises:
            PlanRefused: it cannot be applied, or somebody has to allow more than *group* does.
        """
        wanted = in_environment(definitions, self._settings.Environment)
        async with self._connection() as conn:
            plan = await self._plan(conn, wanted, _targets(group), inspect=self._inspect())
        _refuse_unallowed(plan, wanted, group)
        return plan

    async def deploy_together(
        self, definitions: Definitions, group: Group, *, actor: str
    ) -> Document:
        """Apply the plan for *group*; see ``check_together`` and ``apply_plan`` for errors."""
        wanted = in_environment(definitions, self._settings.Environment)

        async def run() -> Applied:
            for attempt in range(_ATTEMPTS):
                plan = await self.check_together(definitions, group)
                try:
                    async with self._connection() as conn:
                        return await self._apply(
                            conn,
                            wanted,
                            plan,
                            actor=actor,
                            target=_targets(group),
                            allowances=_allowances(group),
                            inspect=self._inspect(),
                            wait_s=_WRITER_LOCK_S,
                        )
                except PlanStale:  # perhaps the operator was faster
                    if attempt == _ATTEMPTS - 1:
                        raise
            raise AssertionError("the loop returns or raises")

        return _document("", await self._to_its_end(run()))

    async def undo_together(self, group: Group, *, actor: str) -> None:
        """Bring *group* back to what the definitions say by now, and leave nothing of what was made.

        For a deployment that broke off after its tables were there.
        """
        from mdm_gitops.warehouse.lifecycle import drop_archives
        from mdm_gitops.warehouse.store import read_state

        definitions = await self._usable_or_nothing()

        async def run() -> None:
            async with self._connection() as conn:
                state = await read_state(conn, schemas=self._schemas)
                there = [name for name in group.entities if name in state.entities]
                if not there and not group.access:
                    return
                await self._apply(
                    conn,
                    definitions,
                    None,
                    actor=actor,
                    target=[*there, *_targets(replace(group, entities=()))],
                    allowances=[Allowance(code="PRUNE_CAP", subject="*")],
                    inspect=None,
                    wait_s=_WRITER_LOCK_S,
                )
                for name in group.created.intersection(there):
                    await drop_archives(
                        conn,
                        entity=name,
                        confirm=name,
                        schemas=self._schemas,
                        actor=actor,
                        patience=self._patience(),
                    )

        await self._to_its_end(run())

    async def _usable_or_nothing(self) -> Definitions:
        """Return the definitions; those of an empty repository are none."""
        view = await self._definitions.current()
        if view.definitions is None and not view.desired:
            empty = Project(name="empty", api_version="mdm-gitops/v1")
            return Definitions(project=empty)
        return await self._usable()

    async def _usable(self) -> Definitions:
        """Return the definitions; a deployment needs all of them, and all of them right."""
        view = await self._definitions.current()
        if view.findings:
            raise DefinitionError(view.findings)
        if view.definitions is None:
            raise Conflict(
                "this server was started without definitions",
                hint="start it with their folder: mdm-gitops serve DIR",
                code="DEFINITIONS_IN_GIT",
            )
        return in_environment(view.definitions, self._settings.Environment)

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    def _inspect(self, *, effects: bool = False, always: bool = True) -> Inspect:
        from mdm_gitops.data.access_report import inspector

        return inspector(self._settings, effects=effects, always=always)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        timeout_s = self._settings.Database.ConnectTimeoutSeconds
        conn = await connect(
            self._url,
            application_name="mdm-gitops api deploy",
            limits=_LIMITS,
            connect_timeout_s=timeout_s,
        )
        async with conn:
            yield conn

    async def _plan(
        self,
        conn: Connection,
        definitions: Definitions,
        target: Sequence[str],
        *,
        inspect: Inspect | None,
    ) -> Plan:
        from mdm_gitops.warehouse.planning import make_plan

        return await make_plan(
            conn,
            definitions,
            schemas=self._schemas,
            target=target,
            statement_timeout_s=self._settings.Apply.StatementTimeoutSeconds,
            inspect=inspect,
        )

    async def _apply(
        self,
        conn: Connection,
        definitions: Definitions,
        plan: Plan | None,
        *,
        actor: str,
        target: Sequence[str],
        inspect: Inspect | None,
        allowances: Sequence[Allowance] = (),
        approved: bool = True,
        wait_s: float = 0.0,
    ) -> Applied:
        from mdm_gitops.warehouse.apply import apply_plan

        return await apply_plan(
            conn,
            definitions,
            plan,
            schemas=self._schemas,
            actor=actor,
            target=target,
            allowances=allowances,
            approved=approved,
            patience=self._patience(wait_s),
            inspect=inspect,
        )

    def _patience(self, wait_s: float = 0.0) -> Patience:
        from mdm_gitops.warehouse.session import patience_of

        return patience_of(self._settings, writer_lock_s=wait_s)


def _targets(group: Group) -> list[str]:
    from mdm_gitops.plan.build import ACCESS

    return [*group.entities, *([ACCESS] if group.access else [])]


def _allowances(group: Group) -> tuple[Allowance, ...]:
    return tuple(Allowance.parse(text) for text in group.allow)


def _refuse_unallowed(plan: Plan, definitions: Definitions, group: Group) -> None:
    from mdm_gitops.plan.policy import refused_hazards
    from mdm_gitops.warehouse.apply import refuse_blocked

    allowances = _allowances(group)
    refuse_blocked(plan, allowances)
    missing = [
        each
        for each in refused_hazards(plan, policy=definitions.project.policy, allowances=allowances)
        if each.item is None or not _is_asked_for(each.item.change, group)
    ]
    if missing:
        texts = " ".join(dict.fromkeys(str(each.allowance) for each in missing))
        raise PlanRefused(
            f"{len(missing)} of the changes need consent, the first: {missing[0].message}",
            hint=f"review the package, then send allow={texts.replace(' ', ',')}",
        )


def _is_asked_for(change: Change, group: Group) -> bool:
    from mdm_gitops.plan.changes import AddWebhook, ChangeWebhook, GrantPermission

    match change:
        case GrantPermission(grant=grant):
            return grant in group.grants
        case AddWebhook(webhook=webhook) | ChangeWebhook(webhook=webhook):
            return webhook.name in group.webhooks
        case _:
            return False


def _document(entity: str, applied: Applied) -> Document:
    return {
        "entity": entity,
        "planId": applied.plan.plan_id,
        "deploymentId": applied.deployment_id,
        "steps": applied.steps,
        "changes": len(applied.plan.changes),
    }
