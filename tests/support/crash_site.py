"""The place of a campaign: the entities deployed in a PostgreSQL of its own, a server, and 16 clients."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from mdm_gitops.warehouse.migrate import migrate
from tests.conftest import CONFIG_SCHEMA, DATA_SCHEMA
from tests.support import rowlab
from tests.support import warehouses as on
from tests.support.cluster import Cluster
from tests.support.crash_campaign import ENTITIES, TALLY, Campaign
from tests.support.crash_server import Server
from tests.support.crash_writers import Adder, Book, Importer, Keeper, Proposer
from tests.support.serving import add_key
from tests.support.wire import Wire

USERS = ("ann", "bob")


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    server: Server
    keys: dict[str, str]


async def deployed(url: str) -> dict[str, str]:
    """Deploy the entities; return the keys of the users."""
    async with on.opened(url) as conn:
        await migrate(conn, config_schema=CONFIG_SCHEMA, data_schema=DATA_SCHEMA)
        users = [f"apikey:{name}" for name in USERS]
        await on.apply(conn, rowlab.definitions(ENTITIES.values(), users))
        return {name: await add_key(conn, name) for name in USERS}


def empty(cluster: Cluster) -> None:
    """Remove all rows, but not what was told of them."""
    tables = ", ".join(
        f"mdm_data.{name}{suffix}"
        for name, entity in ENTITIES.items()
        for suffix in ("", "__history", *(["__edit"] if entity.approval else []))
    )
    with psycopg.connect(cluster.url, autocommit=True) as conn:
        conn.execute(f"TRUNCATE {tables}".encode())


async def campaign_at(site: Site, *, seed: object) -> Campaign:
    """Return a campaign with all its clients, on the site without rows."""
    campaign = Campaign(site.cluster, site.server, site.keys, seed=seed)
    owners = [
        *(Keeper(f"keeper{n}", campaign) for n in range(8)),
        *(Proposer(f"proposer{n}", campaign) for n in range(3)),
        *(Importer(f"importer{n}", campaign) for n in range(2)),
    ]
    book = Book(await _tallies(site))
    adders = [Adder(f"adder{n}", campaign, book) for n in range(3)]
    campaign.clients = [*owners, *adders]
    campaign.owners = [*owners, book]
    return campaign


async def _tallies(site: Site) -> list[str]:
    """Create the rows that several count up, at 0."""
    wire = Wire(site.server.url, site.keys["ann"])
    found = []
    for number in range(2):
        row = {"code": f"tally-{number}", "total": 0}
        reply = await wire.request("POST", f"/api/v1/entities/{TALLY.name}/data", row)
        found.append(str(reply.json()["_sys_id"]))
    await wire.close()
    return found
