"""The laws of plan and apply, for random repositories on a real PostgreSQL (I3, I6).

For random valid A and B, with rows in the way:

1. apply(A), apply(B) leaves the catalog that apply(B) leaves in an empty database, archives apart;
2. the plan after an apply is empty;
3. what ``plan --format sql`` prints does the same when psql runs it, and the next plan is empty;
4. apply(A) again gives A's rows back, byte for byte, whatever was applied in between.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import RefusalCode
from mdm_gitops.warehouse.psql import to_psql
from mdm_gitops.warehouse.script import build_script
from tests.conftest import DatabaseMaker
from tests.support import warehouses as on
from tests.support.repositories import drawn

# Enough that what breaks a law is met at once; what is rare is looked for by the soak.
PAIRS = int(os.environ.get("MDM_LAW_PAIRS") or 90)
PARTS = 6  # so that parallel workers share the pairs
SOAK_PAIRS = 5_000
SOAK_PARTS = 50


def _settings(pairs: int) -> settings:
    return settings(
        max_examples=pairs,
        deadline=None,
        database=None,
        print_blob=True,
        # A pair costs half a second; the first counterexample is small enough to read.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_apply_b_after_a_is_apply_b_and_a_comes_back(
    part: int, make_database: DatabaseMaker, psql: Path
) -> None:
    """The same pairs in each run, others in each part."""
    _hold(-(-PAIRS // PARTS), part, make_database, psql)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_the_same_for_pairs_never_seen_before(
    part: int, make_database: DatabaseMaker, psql: Path
) -> None:
    _hold(SOAK_PAIRS // SOAK_PARTS, secrets.randbits(64), make_database, psql)


def _hold(pairs: int, start: int, make_database: DatabaseMaker, psql: Path) -> None:
    seen: Counter[str] = Counter()

    @seed(start)
    @_settings(pairs)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        (a, b), chance = drawn(data, edits=1, start=start)
        asyncio.run(_check(a, b, chance, make_database, psql, seen))

    holds()
    assert seen["pairs"] >= 0.8 * pairs
    assert seen["with rows"] >= 0.5 * seen["pairs"], "too few pairs kept their rows"


async def _check(
    a: Definitions,
    b: Definitions,
    chance: random.Random,
    make_database: DatabaseMaker,
    psql: Path,
    seen: Counter[str],
) -> None:
    url = make_database()
    async with on.opened(url) as conn:
        await on.apply(conn, a)
        assert (await on.plan(conn, a)).is_empty
        filled = await on.fill(conn, a, chance=chance, count=3)
        forward = await on.plan(conn, b)
        if forward.failed_checks:
            assert {r.code for r in forward.refusals} == {RefusalCode.DATA_CHECK_FAILED}
            await on.clear(conn, a)
            filled = 0
        before = await on.rows(conn, a)
    twin_url, fresh_url = make_database.copy_of(url), make_database()
    async with on.opened(fresh_url) as fresh:
        await on.apply(fresh, b)
        expected = await on.catalog(fresh)
    async with on.opened(url) as conn:
        await on.apply(conn, b)
        after = await on.plan(conn, b)
        assert after.is_empty, after.changes
        assert not after.drift, after.drift
        assert await on.catalog(conn) == expected
        await _psql_does_the_same(twin_url, b, expected, psql)
        back = await on.plan(conn, a)
        assert not back.refusals, back.refusals
        await on.apply(conn, a)
        assert await on.rows(conn, a) == before
        assert (await on.plan(conn, a)).is_empty
    make_database.drop_all()
    seen["pairs"] += 1
    seen["with rows"] += filled > 0


WALKS = 18
SOAK_WALKS = 2_000


@pytest.mark.parametrize("part", range(2))
def test_a_comes_back_after_any_number_of_commits(part: int, make_database: DatabaseMaker) -> None:
    """Names are used again for other things on the way; A, to the letter, is still A with its rows."""
    _walk(WALKS // 2, part, make_database)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_the_same_for_walks_never_seen_before(part: int, make_database: DatabaseMaker) -> None:
    _walk(SOAK_WALKS // 20, secrets.randbits(64), make_database)


def _walk(walks: int, start: int, make_database: DatabaseMaker) -> None:
    seen: Counter[str] = Counter()

    @seed(start)
    @_settings(walks)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        definitions, chance = drawn(data, edits=3, start=start)
        asyncio.run(_check_walk(definitions, chance, make_database, seen))

    holds()
    assert seen["walks"] >= 0.8 * walks
    assert seen["with rows"] >= 0.5 * seen["walks"], "too few walks kept their rows"


async def _check_walk(
    definitions: list[Definitions],
    chance: random.Random,
    make_database: DatabaseMaker,
    seen: Counter[str],
) -> None:
    a, *others = definitions
    async with on.opened(make_database()) as conn, on.opened(make_database()) as fresh:
        await on.apply(conn, a)
        await on.fill(conn, a, chance=chance, count=3)
        before: dict[str, Any] | None = await on.rows(conn, a)
        for last, each in zip(definitions, others, strict=False):
            if (await on.plan(conn, each)).failed_checks:
                await on.clear(conn, last)
                before = None
            await on.apply(conn, each)
            after = await on.plan(conn, each)
            assert after.is_empty and not after.drift, (after.changes, after.drift)
        await on.apply(fresh, others[-1])
        assert await on.catalog(conn) == await on.catalog(fresh)
        back = await on.plan(conn, a)
        if before is not None:
            assert not back.refusals, back.refusals
            await on.apply(conn, a)
            assert (await on.plan(conn, a)).is_empty
            assert await on.rows(conn, a) == before
    make_database.drop_all()
    seen["walks"] += 1
    seen["with rows"] += before is not None


async def _psql_does_the_same(
    url: str, b: Definitions, expected: dict[str, Any], psql: Path
) -> None:
    async with on.opened(url) as conn:
        plan = await on.plan(conn, b)
        script = to_psql(build_script(plan, schemas=on.SCHEMAS, actor="user:test"))
        await asyncio.to_thread(_run_psql, psql, url, script)
        assert await on.catalog(conn) == expected
        again = await on.plan(conn, b)
        assert again.is_empty, again.changes


def _run_psql(psql: Path, url: str, script: str) -> None:
    command = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", url]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + "\n" + script


_FORGET = """
UPDATE mdm.entity
   SET record = jsonb_set(jsonb_set(record, '{columns,0,formerNames}', '[]'), '{earlier}', '[]')
"""


def test_a_lost_identity_breaks_the_law(make_database: DatabaseMaker) -> None:
    """The negative control: without the recorded identities a rename is not taken back."""
    from mdm_gitops.source import read_tree

    project = '{"name": "lab", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "lab"}]}'

    def repository(columns: str) -> Definitions:
        entity = f'{{"name": "alpha", "domain": "lab", "columns": [{columns}]}}'
        return read_tree({"mdm.yaml": project.encode(), "entities/alpha.yaml": entity.encode()})

    a = repository('{"name": "old", "dataType": "string"}')
    b = repository('{"name": "new", "dataType": "string", "renamedFrom": "old"}')

    async def run(*, forget: bool) -> bool:
        async with on.opened(make_database()) as conn:
            await on.apply(conn, a)
            await on.fill(conn, a, chance=random.Random(7), count=3)
            before = await on.rows(conn, a)
            await on.apply(conn, b)
            if forget:
                await conn.execute(_FORGET)
            await on.apply(conn, a)
            return await on.rows(conn, a) == before

    assert asyncio.run(run(forget=False))
    assert not asyncio.run(run(forget=True))


@pytest.fixture
def psql(pg_major: int) -> Path:
    from mdm_gitops.warehouse.embedded_binaries import find_binaries

    return find_binaries(major=pg_major).program("psql")
