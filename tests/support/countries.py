"""Countries, and people who may see some of them: what many tests read."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from tests.support import by_hand
from tests.support.serving import KEY

FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: ref}, {name: hr}]
""",
    "entities/country.yaml": b"""
name: country
domain: ref
keyColumns: [code]
sortColumns: [{column: code}]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
  - {name: area, dataType: decimal}
  - {name: people, dataType: long}
  - {name: member_since, dataType: date}
  - {name: checked_at, dataType: datetime}
  - {name: active, dataType: bool}
  - {name: extra, dataType: json}
""",
    "entities/person.yaml": b"""
name: person
domain: hr
approvalRequired: true
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: salary, dataType: int, classification: restricted}
  - {name: boss, dataType: string, reference: {entity: person}}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: [reader], domains: ["*"], actions: [read]}
  - {users: [hr], domains: [hr], actions: [read, viewrestricted]}
  - {users: [swiss], domains: [ref], entities: [country], actions: [read],
     rowFilterDsl: "[code] = 'CH'"}
  - {users: [swiss], domains: [hr], actions: [read]}
  - {users: [self], domains: [hr], entities: [person], actions: [read],
     rowFilterDsl: "[login] = me()"}
""",
}
COUNTRIES: list[dict[str, Any]] = [
    {
        "code": "CH",
        "name": "Switzerland",
        "area": "41285.00",
        "people": 2**60 + 1,
        "member_since": "2002-09-10",
        "checked_at": "2024-05-06T07:08:09.120Z",
        "active": True,
        "extra": {"a": [1.50, None]},
    },
    {"code": "DE", "name": "Germany", "area": "357022.4", "active": False},
    {"code": "FR", "name": None, "area": "1e3"},
    {
        "code": "AT",
        "name": "Austria",
        "area": None,
        "_sys_is_deleted": True,
        "_sys_deleted_at": "2025-01-01T00:00:00Z",
        "_sys_version": 4,
    },
    {"code": "IT", "name": "Italy", "area": "41285.0"},
]
PEOPLE: list[dict[str, Any]] = [
    {"login": "anna", "country": "CH", "salary": 100, "boss": None},
    {"login": "bert", "country": "DE", "salary": 200, "boss": "anna"},
    {"login": "cleo", "country": "XX", "salary": 300, "boss": "bert"},
]


async def countries(conn: AsyncConnection[Any]) -> None:
    """Put these entities and rows, and the first key, into a warehouse."""
    people = FILES["permissions.yaml"].replace(b"[swiss]", b'["apikey:swiss"]')
    await by_hand.deploy(conn, read_tree({**FILES, "permissions.yaml": people}))
    await by_hand.insert(conn, "country", COUNTRIES)
    await by_hand.insert(conn, "person", PEOPLE)
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
