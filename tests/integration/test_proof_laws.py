"""A proof says of each right plan that it is right: random repositories, rows in the way, there and back.

What a wrong plan looks like to it is in ``test_proving``.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from mdm_gitops.model import Definitions
from mdm_gitops.plan.proof import ProofState
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.warehouse.proving import Place, prove, prove_between
from tests.conftest import DatabaseMaker
from tests.support import warehouses as on
from tests.support.repositories import drawn

PAIRS = 2
SOAK_PAIRS = 150


def test_each_right_plan_is_proven(make_database: DatabaseMaker) -> None:
    _hold(PAIRS, 0, make_database)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_the_same_for_pairs_never_seen_before(part: int, make_database: DatabaseMaker) -> None:
    _hold(SOAK_PAIRS, secrets.randbits(64), make_database)


def _hold(pairs: int, start: int, make_database: DatabaseMaker) -> None:
    seen: Counter[ProofState] = Counter()

    @seed(start)
    @settings(
        max_examples=pairs,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        (a, b), chance = drawn(data, edits=1, start=start)
        asyncio.run(_check(a, b, chance, make_database(), seen))

    holds()
    assert seen[ProofState.PROVEN] >= pairs // 2


async def _check(
    a: Definitions,
    b: Definitions,
    chance: random.Random,
    url: str,
    seen: Counter[ProofState],
) -> None:
    place = Place(url=url, name="the server of the test")
    async with on.opened(url) as conn:
        await on.apply(conn, a)
        await on.fill(conn, a, chance=chance, count=3)
        if (await on.plan(conn, b)).failed_checks:
            await on.clear(conn, a)
        for wanted in (b, a):
            plan = await on.plan(conn, wanted)
            proof = await prove(plan, wanted, live=conn, schemas=on.SCHEMAS, place=place)
            assert not proof.has_failed, proof.problems
            seen[proof.state] += 1
            if proof.state is not ProofState.PROVEN:
                return
            await on.apply(conn, wanted)
            assert (await on.plan(conn, wanted)).is_empty
    structural = structural_plan(a, b)
    proof = await prove_between(structural, a, b, schemas=on.SCHEMAS, place=place)
    assert not proof.has_failed, proof.problems
