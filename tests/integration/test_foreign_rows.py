"""Eight people ask at the same time through few connections, and many hang up: each sees own rows only.

What could mix them up is shared: the connections of the pool, requests that are answered together, and
what is remembered of queries and rights. Not what one request may see: that is ``test_non_interference``.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import Any, Final

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from tests.support.campaign_record import campaign
from tests.support.serving import Client, add_key, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio

PEOPLE: Final = tuple(f"person{n}" for n in range(8))
ROWS_EACH: Final = 20
DATA: Final = "/api/v1/entities/item/data"
RIGHTS: Final = "\n".join(
    f"""  - {{users: ["apikey:{name}"], domains: [shop], entities: [item], actions: [write],
     rowFilterDsl: "[owner] = '{name}'"}}"""
    for name in PEOPLE
)
FILES: Final = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: shop}]\n",
    "entities/item.yaml": b"""
name: item
domain: shop
historyEnabled: true
keyColumns: [code]
search: {enabled: true}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: owner, dataType: string, nullable: false, autocomplete: true}
  - {name: text, dataType: string}
""",
    "permissions.yaml": f"permissions:\n{RIGHTS}\n".encode(),
}
# The same paths for all, so that what is remembered or answered together is met by everybody.
PATHS: Final = (
    DATA,
    f"{DATA}?take=5&sort=-code&count=true",
    f"{DATA}?filter=[text] LIKE '%word%'",
    f"{DATA}/export?format=csv",
    "/api/v1/search/data?q=word",
    f"{DATA}/column-suggestions?column=owner",
    "/api/v1/changes?take=50",
)
_NAME: Final = re.compile(r"person\d")


@pytest.fixture
async def people(
    database_url: str, conn: AsyncConnection[Any]
) -> AsyncIterator[tuple[Client, dict[str, str]]]:
    await apply(conn, read_tree(FILES))
    keys = {name: await add_key(conn, name) for name in PEOPLE}
    narrow = Settings.model_validate(
        {"Database": {"PoolMaxSize": 3}, "RateLimit": {"Enabled": False}}
    )
    async with served(create_app(database_url=database_url, settings=narrow)) as client:
        for name in PEOPLE:
            for n in range(ROWS_EACH):
                row = {"code": f"{name}-{n}", "owner": name, "text": f"word {n} of {name}"}
                answer = await client.post(DATA, json=row, headers={"X-API-Key": keys[name]})
                assert answer.status_code == 201, answer.text
        yield client, keys


async def _ask(
    client: Client, name: str, key: str, *, requests: int, seed: int
) -> list[tuple[str, str]]:
    """Return what *name* was answered, with the name; some requests are given up under way."""
    chance, answers = Random(f"{seed}{name}"), []
    for _ in range(requests):
        asking = client.get(chance.choice(PATHS), headers={"X-API-Key": key})
        try:
            async with asyncio.timeout(chance.uniform(0, 0.02) if chance.random() < 0.2 else 60):
                answer = await asking
        except TimeoutError:
            continue
        assert answer.status_code == 200, answer.text
        answers.append((name, answer.text))
    return answers


async def _crowd(
    client: Client, keys: dict[str, str], *, requests: int, seed: int
) -> list[tuple[str, str]]:
    asked = (_ask(client, name, keys[name], requests=requests, seed=seed) for name in PEOPLE)
    return [answer for answers in await asyncio.gather(*asked) for answer in answers]


def strangers(answers: Iterable[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Count who was told of whom, but for themselves."""
    return Counter(
        (name, told) for name, text in answers for told in set(_NAME.findall(text)) if told != name
    )


@pytest.mark.parametrize("requests", [60, pytest.param(5_000, marks=pytest.mark.soak)])
async def test_nobody_is_told_of_the_rows_of_others(
    people: tuple[Client, dict[str, str]], requests: int
) -> None:
    client, keys = people
    with campaign("foreign-rows") as record:
        answers = await _crowd(client, keys, requests=requests, seed=requests)
        record(requests=len(PEOPLE) * requests)
        assert strangers(answers) == Counter()
    own = Counter(name for name, text in answers if f"{name}-" in text)
    assert min(own[name] for name in PEOPLE) > requests / 3, own
    assert len(answers) < len(PEOPLE) * requests, "some were given up"


async def test_an_answer_that_went_to_somebody_else_is_found(
    people: tuple[Client, dict[str, str]],
) -> None:
    """The negative control: two answers of the same crowd, exchanged."""
    client, keys = people
    answers = await _crowd(client, keys, requests=10, seed=1)
    one = next(n for n, (name, text) in enumerate(answers) if name in text)
    other = next(
        n
        for n, (name, text) in enumerate(answers)
        if n > one and name != answers[one][0] and name in text
    )
    (a, left), (b, right) = answers[one], answers[other]
    answers[one], answers[other] = (a, right), (b, left)
    assert strangers(answers) == Counter([(a, b), (b, a)])
