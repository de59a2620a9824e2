"""What stops a plan whatever is allowed, and what stops it until somebody allows it.

Each guard is tried on a warehouse with rows; a refused apply leaves catalog, rows and records as
they were.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import PlanRefused
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import RefusalCode
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.warehouse.apply import Applied, apply_plan
from mdm_gitops.warehouse.connect import connect
from tests.conftest import Prepare
from tests.support import warehouses as on
from tests.support.scenario import column, definitions, entity, grant, webhook
from tests.support.warehouse_state import state

pytestmark = pytest.mark.anyio

KEPT = {"lifecycle": {"preventRemove": True}}
BEFORE = definitions(
    entity("item", column("name"), column("old"), column("country"), **KEPT),
    entity("country"),
    entity("language"),
    entity("unit"),
    permissions=[grant("root", "admin")],
)
_ROWS = """
INSERT INTO mdm_data.item (_sys_id, code, name, old, country, _sys_created_at, _sys_created_by,
    _sys_last_modified_at, _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'i' || n, 'n' || n % 2, 'x', 'CH', '2026-01-01', 'a', '2026-01-01', 'a'
  FROM generate_series(1, 4) AS n
"""


def item(*columns: Any, **fields: Any) -> Any:
    return entity("item", *columns, **{**KEPT, **fields})


def with_item(wanted: Any, *others: Any, **files: Any) -> Definitions:
    others = others or (entity("country"), entity("language"), entity("unit"))
    return definitions(wanted, *others, **{"permissions": [grant("root", "admin")], **files})


ITEM = (column("name"), column("old"), column("country"))


async def _prepare(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, BEFORE)
    await conn.execute(_ROWS)


@pytest.fixture
async def warehouse(copy_of: Callable[[Prepare], str]) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(copy_of(_prepare), application_name="test") as conn:
        yield conn


@dataclass(frozen=True, kw_only=True)
class Refused:
    wanted: Definitions
    code: RefusalCode
    message: str
    by_hand: str = ""


CASES = {
    "the file of a protected entity is deleted": Refused(
        wanted=definitions(
            entity("country"),
            entity("language"),
            entity("unit"),
            permissions=[grant("root", "admin")],
        ),
        code=RefusalCode.PREVENT_REMOVE,
        message="entity item is protected by lifecycle.preventRemove",
    ),
    "the last admin": Refused(
        wanted=with_item(item(*ITEM), permissions=[grant("root", "read")]),
        code=RefusalCode.LAST_ADMIN,
        message="the last permission with the action admin would be removed",
    ),
    "no permissions at all": Refused(
        wanted=with_item(item(*ITEM), permissions=[]),
        code=RefusalCode.LAST_ADMIN,
        message="the last permission with the action admin would be removed",
    ),
    "a table of somebody else": Refused(
        wanted=with_item(
            item(*ITEM), entity("country"), entity("language"), entity("unit"), entity("mine")
        ),
        by_hand="CREATE TABLE mdm_data.mine (id int)",
        code=RefusalCode.UNOWNED_OBJECT,
        message="mdm_data.mine exists and was not created by a deployment",
    ),
    "a history table of somebody else": Refused(
        wanted=with_item(item(*ITEM, historyEnabled=True)),
        by_hand="CREATE TABLE mdm_data.item__history (id int)",
        code=RefusalCode.UNOWNED_OBJECT,
        message="mdm_data.item__history exists and was not created by a deployment",
    ),
    "a view of somebody else where an entity shall be": Refused(
        wanted=with_item(
            item(*ITEM), entity("country"), entity("language"), entity("unit"), entity("mine")
        ),
        by_hand="CREATE VIEW mdm_data.mine AS SELECT 1 AS one",
        code=RefusalCode.UNOWNED_OBJECT,
        message="mdm_data.mine exists and was not created by a deployment",
    ),
    "a view of somebody else where a view shall be": Refused(
        wanted=with_item(
            item(*ITEM, consumption={"views": [{"schema": "lab_views", "name": "mine"}]})
        ),
        by_hand="CREATE SCHEMA lab_views; CREATE VIEW lab_views.mine AS SELECT 1 AS one",
        code=RefusalCode.UNOWNED_OBJECT,
        message="lab_views.mine exists and was not created by a deployment",
    ),
    "a table of somebody else where an entity shall be renamed to": Refused(
        wanted=with_item(entity("thing", *ITEM, renamedFrom="item", **KEPT)),
        by_hand="CREATE TABLE mdm_data.thing (id int)",
        code=RefusalCode.UNOWNED_OBJECT,
        message="mdm_data.thing exists and was not created by a deployment",
    ),
    "too many entities go": Refused(
        wanted=with_item(item(*ITEM), entity("country")),
        code=RefusalCode.PRUNE_CAP,
        message="2 of 4 entities would be archived, more than the policy's 5 entities or 30 percent",
    ),
    "a rename from what is not there": Refused(
        wanted=with_item(item(*ITEM, column("new", renamedFrom="gone"))),
        code=RefusalCode.RENAME_UNMATCHED,
        message="item: column new is declared as renamed from gone, which does not exist",
    ),
    "a rename onto what is there": Refused(
        wanted=with_item(
            item(column("name", renamedFrom="old"), column("country")),
        ),
        code=RefusalCode.RENAME_AMBIGUOUS,
        message="item: column name is declared as renamed from old, but both exist",
    ),
    "an entity renamed from what was never there": Refused(
        wanted=with_item(
            item(*ITEM),
            entity("country"),
            entity("language"),
            entity("unit"),
            entity("new", renamedFrom="gone"),
        ),
        code=RefusalCode.RENAME_UNMATCHED,
        message="entity new is declared as renamed from gone, which was never deployed",
    ),
    "an entity renamed onto one that is there": Refused(
        wanted=with_item(
            item(*ITEM), entity("country", renamedFrom="language"), entity("unit")
        ),
        code=RefusalCode.RENAME_AMBIGUOUS,
        message="entity country is declared as renamed from language, but both exist",
    ),
    "rows that are null": Refused(
        wanted=with_item(item(*ITEM, column("new", nullable=False))),
        code=RefusalCode.DATA_CHECK_FAILED,
        message="item: 4 rows have no value for the new required column new",
    ),
    "rows that are the same": Refused(
        wanted=with_item(item(column("name", unique=True), *ITEM[1:])),
        code=RefusalCode.DATA_CHECK_FAILED,
        message="item: 4 rows share a value of name",
    ),
    "rows that refer to nothing": Refused(
        wanted=with_item(item(*ITEM[:2], column("country", reference={"entity": "country"}))),
        code=RefusalCode.DATA_CHECK_FAILED,
        message="item: 4 rows of country refer to nothing",
    ),
    "rows that cannot be cast": Refused(
        wanted=with_item(item(column("name", "int"), *ITEM[1:])),
        code=RefusalCode.DATA_CHECK_FAILED,
        message="item: 4 values of name do not fit the new type",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_it_is_refused_and_nothing_changed(
    case: Refused, warehouse: AsyncConnection[Any]
) -> None:
    for statement in filter(None, case.by_hand.split(";")):
        await warehouse.execute(statement)
    before = await state(warehouse)
    plan = await on.plan(warehouse, case.wanted)
    assert (case.code, case.message) in [(r.code, r.message) for r in plan.refusals]
    assert {r.code for r in plan.refusals} == {case.code}
    with pytest.raises(PlanRefused) as refused:
        await on.apply(warehouse, case.wanted)
    assert refused.value.kind.exit_code == 3
    assert refused.value.hint
    assert await state(warehouse) == before
    runs = await warehouse.execute("SELECT count(*) FROM mdm.deployment")
    assert await runs.fetchone() == (1,)


async def test_protection_is_lifted_by_a_deployment_of_its_own(
    warehouse: AsyncConnection[Any],
) -> None:
    await on.apply(warehouse, with_item(item(*ITEM, lifecycle={"preventRemove": False})))
    rest = definitions(
        entity("country"), entity("language"), entity("unit"), permissions=[grant("root", "admin")]
    )
    await on.apply(warehouse, rest)
    kept = await warehouse.execute("SELECT count(*) FROM mdm_data.item__archive_1")
    assert await kept.fetchone() == (4,)


async def test_the_first_admin_may_come_later(conn: AsyncConnection[Any]) -> None:
    """Where there was none, none is demanded: the bootstrap key is a Global Admin."""
    await on.apply(conn, definitions(entity("item"), permissions=[grant("ann", "read")]))
    await on.apply(conn, definitions(entity("item"), permissions=[]))


async def _apply(
    conn: AsyncConnection[Any], wanted: Definitions, *allowed: str, **options: Any
) -> Applied:
    return await apply_plan(
        conn,
        wanted,
        None,
        schemas=on.SCHEMAS,
        actor="user:test",
        allowances=[Allowance.parse(text) for text in allowed],
        **options,
    )


async def test_the_prune_cap_is_lifted_by_its_allowance_alone(
    warehouse: AsyncConnection[Any],
) -> None:
    fewer = with_item(item(*ITEM), entity("country"))
    with pytest.raises(PlanRefused, match="more than the policy"):
        await _apply(warehouse, fewer, "REMOVES_ENTITY:*")
    with pytest.raises(PlanRefused, match="2 things need a person's consent"):
        await _apply(warehouse, fewer, "PRUNE_CAP:*")
    await _apply(warehouse, fewer, "PRUNE_CAP:*", "REMOVES_ENTITY:*")


@dataclass(frozen=True, kw_only=True)
class Consent:
    wanted: Definitions
    allowances: tuple[str, ...]  # all that it needs
    wrong: str  # one that is not enough


CONSENTS = {
    "a column goes": Consent(
        wanted=with_item(item(*ITEM[:1], ITEM[2])),
        allowances=("REMOVES_COLUMN:item",),
        wrong="REMOVES_COLUMN:country",
    ),
    "a column is renamed": Consent(
        wanted=with_item(item(column("title", renamedFrom="name"), *ITEM[1:])),
        allowances=("RENAMES_COLUMN:item",),
        wrong="REMOVES_COLUMN:item",
    ),
    "an entity goes": Consent(
        wanted=with_item(item(*ITEM), entity("country"), entity("language")),
        allowances=("REMOVES_ENTITY:unit",),
        wrong="REMOVES_ENTITY:item",
    ),
    "rights grow": Consent(
        wanted=with_item(item(*ITEM), permissions=[grant("root", "admin"), grant("bob", "write")]),
        allowances=("WIDENS_ACCESS:permissions.yaml",),
        wrong="WIDENS_ACCESS:item",
    ),
    "values leave": Consent(
        wanted=with_item(item(*ITEM), webhooks=[webhook("one")]),
        allowances=("SENDS_DATA_OUT:webhooks.yaml",),
        wrong="WIDENS_ACCESS:*",
    ),
}


@pytest.mark.parametrize("case", CONSENTS.values(), ids=CONSENTS)
async def test_a_hazard_needs_an_allowance_of_its_name(
    case: Consent, warehouse: AsyncConnection[Any]
) -> None:
    before = await state(warehouse)
    for allowed in ([], [case.wrong]):
        with pytest.raises(PlanRefused) as refused:
            await _apply(warehouse, case.wanted, *allowed)
        for needed in case.allowances:
            assert f"--allow {needed}" in refused.value.hint
    assert await state(warehouse) == before
    await _apply(warehouse, case.wanted, *case.allowances)
    assert (await on.plan(warehouse, case.wanted)).is_empty


async def test_what_is_safe_needs_no_consent(warehouse: AsyncConnection[Any]) -> None:
    await _apply(warehouse, with_item(item(*ITEM, column("more"))))


async def test_a_target_needs_what_it_refers_to(conn: AsyncConnection[Any]) -> None:
    wanted = definitions(
        entity("country"), entity("city", column("country", reference={"entity": "country"}))
    )
    with pytest.raises(PlanRefused, match="city refers to country, which is not deployed"):
        await _apply(conn, wanted, target=["city"])
    await _apply(conn, wanted, target=["city", "Country"])
    assert (await on.plan(conn, wanted)).changes[0].change.kind == "change-project"


async def test_a_target_leaves_all_else_alone(warehouse: AsyncConnection[Any]) -> None:
    wanted = definitions(item(*ITEM, column("more")), entity("country", column("more")))
    applied = await _apply(warehouse, wanted, target=["item"])
    assert {item.change.entity for item in applied.plan.changes} == {"item"}
    later = await on.plan(warehouse, wanted)
    assert {r.code for r in later.refusals} == {RefusalCode.LAST_ADMIN, RefusalCode.PRUNE_CAP}
