"""``/audit`` over HTTP: which actions are in it, with what, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mdm_api.app import create_app
from mdm_api.upkeep import Refusal, Refusals, tell_refusals
from mdm_gitops.data import audit
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.lifecycle import drop_archives, remove_entity
from mdm_gitops.warehouse.names import Schemas
from tests.support.changes import Event, write_events
from tests.support.changes_lab import FILES, Lab, definitions, entity_id, opened, utc
from tests.support.serving import problem, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()


@pytest.fixture
def database_url(changes_url: str) -> str:
    return changes_url


@pytest.fixture
async def lab(database_url: str) -> AsyncIterator[Lab]:
    async with opened(database_url) as lab:
        yield lab


async def entries(lab: Lab, **query: Any) -> list[dict[str, Any]]:
    answer = await lab.get("root", path="/api/v1/audit", **query)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert list(document) == ["entries", "totalCount"]
    if not {"skip", "take"} & query.keys():
        assert document["totalCount"] == len(document["entries"])
    found: list[dict[str, Any]] = document["entries"]
    return found


async def test_only_a_global_admin_reads_it(lab: Lab) -> None:
    for who in ("lab", "nobody"):
        for path in ("/api/v1/audit", "/api/audit"):
            assert problem(await lab.get(who, path=path)) == (403, "ACCESS_DENIED")
    versioned = await lab.get("root", path="/api/v1/audit")
    assert versioned.content == (await lab.get("root", path="/api/audit")).content


async def test_a_change_of_a_row_tells_old_and_new(lab: Lab) -> None:
    row = await lab.create("site", code="A", Region="N")
    await lab.send("PUT", f"site/data/{row}", {"rank": 3, "Region": "S"})
    await lab.send("DELETE", f"site/data/{row}")
    deleted, updated, created = await entries(lab, recordId=row)
    assert list(created) == [
        "id", "occurredUtc", "user", "action", "entityName", "recordId", "commit", "details"]  # fmt: skip
    assert (created["action"], created["user"]) == ("data_created", "apikey:bootstrap")
    assert (created["entityName"], created["recordId"]) == ("Site", row)
    assert created["details"] == {
        "version": 1,
        "changes": {"code": {"old": None, "new": "A"}, "Region": {"old": None, "new": "N"}, "rank": {"old": None, "new": None}},
    }  # fmt: skip
    assert updated["details"] == {
        "version": 2,
        "changes": {"Region": {"old": "N", "new": "S"}, "rank": {"old": None, "new": 3}},
    }
    assert deleted["details"]["changes"]["code"] == {"old": "A", "new": None}
    feed = [f"change:{each['id']}" for each in await lab.changes()]
    assert [each["id"] for each in (created, updated, deleted)] == feed


async def test_what_an_event_tells_beside_its_values(lab: Lab) -> None:
    await write_events(
        lab.conn, [Event(entity_id=await entity_id(lab, "site"), detail={"batch": 1})]
    )
    assert (await entries(lab, action="data_updated"))[0]["details"]["detail"] == {"batch": 1}


async def test_deployments_and_their_permissions(lab: Lab) -> None:
    before = [each["action"] for each in await entries(lab, user="user:test")]
    assert sorted(before) == ["deploy_succeeded", *["permission_granted"] * 5]
    rights = FILES["permissions.yaml"].replace(b'["apikey:hr"]', b'["apikey:people"]')
    await apply(lab.conn, read_tree({**FILES, "permissions.yaml": rights}))
    deployed, *moved = (await entries(lab, user="user:test"))[:3]
    assert deployed["action"] == "deploy_succeeded"
    assert deployed["details"]["planId"] and deployed["details"]["deploymentId"] == 2
    assert {(m["action"], m["details"]["principal"], m["user"]) for m in moved} == {
        ("permission_granted", "apikey:people", "user:test"),
        ("permission_revoked", "apikey:hr", "user:test"),
    }


async def test_a_permission_that_is_changed_by_hand_names_the_role(lab: Lab) -> None:
    await lab.conn.execute("DELETE FROM mdm.permission WHERE entity = 'site'")
    [entry] = await entries(lab, action="permission_revoked")
    assert entry["user"].startswith("database:")
    assert entry["entityName"] == "Site"
    assert entry["details"]["rowFilterDsl"] == "[Region] = 'N'"


async def test_a_deployment_is_found_by_each_of_its_entities(lab: Lab) -> None:
    for name in ("site", "PART", "Place of work"):
        [entry] = await entries(lab, entityName=name, action="deploy_succeeded")
        assert entry["entityName"] is None
        assert entry["details"]["entities"] == ["part", "person", "site"]


async def test_destroying_archives_is_kept_under_the_name_of_the_entity(lab: Lab) -> None:
    actor = "user:eve"
    await remove_entity(lab.conn, definitions(), entity="site", schemas=SCHEMAS, actor=actor)
    await drop_archives(lab.conn, entity="site", confirm="site", schemas=SCHEMAS, actor=actor)
    [dropped] = await entries(lab, action="archives_dropped")
    assert (dropped["user"], dropped["entityName"]) == (actor, "Site")
    assert dropped["details"]["summary"]["dropped"]["tables"]
    assert dropped in await entries(lab, entityName="site")


async def test_keys(lab: Lab) -> None:
    created = await entries(lab, action="api_key_created")
    assert {(e["user"], e["details"]["name"]) for e in created} >= {
        ("system:settings", "bootstrap"),
        ("test", "north"),
    }
    headers = {"X-API-Key": lab.keys["root"]}
    answer = await lab.client.delete("/api/v1/api-keys/north", headers=headers)
    assert answer.status_code == 204
    [revoked] = await entries(lab, action="api_key_revoked")
    assert (revoked["user"], revoked["details"]["name"]) == ("apikey:bootstrap", "north")


async def test_the_use_of_a_key_is_no_change_of_it(lab: Lab) -> None:
    before = await entries(lab)
    await lab.conn.execute("UPDATE mdm.api_key SET last_used_at = now()")
    assert await entries(lab) == before


async def test_refused_credentials_are_counted_and_told_without_a_secret(database_url: str) -> None:
    async with opened(database_url) as lab:
        await lab.conn.execute("UPDATE mdm.api_key SET expires_at = now() WHERE name = 'hr'")
        settings = Settings(RateLimit=RateLimitSettings(Enabled=False), AuditRetentionDays=0)
        async with served(create_app(database_url=database_url, settings=settings)) as client:
            for key in ("mdm_wrong", "mdm_wrong", "another", lab.keys["hr"]):
                answer = await client.get("/api/v1/entities", headers={"X-API-Key": key})
                assert answer.status_code == 401
            assert (await client.get("/api/v1/entities")).status_code == 401
        told = {
            each["user"]: each["details"]
            for each in await entries(lab, action="credential_refused")
        }
    assert told["apikey:hr"]["reason"] == "expired"
    [address] = told.keys() - {"apikey:hr"}
    assert address.startswith("address:")
    assert (told[address]["credential"], told[address]["count"]) == ("apiKey", 3)
    assert not any(key in str(told) for key in ("mdm_wrong", "another", lab.keys["hr"]))


def test_many_addresses_fill_no_table() -> None:
    refusals = Refusals()
    for number in range(5_000):
        refusals.note(Refusal(f"10.0.{number // 256}.{number % 256}", "apiKey"))
    counts = refusals.take()
    assert len(counts) <= 1_001
    assert sum(counts.values()) == 5_000
    assert counts[Refusal("others", "apiKey")] == 4_000
    assert not refusals.take()


async def test_what_could_not_be_written_down_is_kept(lab: Lab) -> None:
    services = lab.app.state.services
    services.refusals.note(Refusal("192.0.2.1", "apiKey"))
    await lab.conn.execute("ALTER TABLE mdm.audit RENAME TO elsewhere")
    await tell_refusals(services)
    await lab.conn.execute("ALTER TABLE mdm.elsewhere RENAME TO audit")
    await tell_refusals(services)
    [entry] = await entries(lab, action="credential_refused")
    assert (entry["user"], entry["details"]["count"]) == ("address:192.0.2.1", 1)


async def test_whoever_stops_the_telling_loses_nothing_and_tells_nothing_twice(lab: Lab) -> None:
    services = lab.app.state.services
    for moment in range(30):  # at each of the first turns of the loop
        services.refusals.note(Refusal("192.0.2.1", "apiKey"))
        telling = asyncio.create_task(tell_refusals(services))
        for _ in range(moment):
            await asyncio.sleep(0.001)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    await tell_refusals(services)
    found = await entries(lab, action="credential_refused", take="100")
    assert sum(each["details"]["count"] for each in found) == 30


async def test_what_a_program_records(lab: Lab) -> None:
    row = Event().record_id
    await audit.record(
        lab.conn,
        schemas=SCHEMAS,
        actor="user:eve",
        action="data_imported",
        entities=["Site"],
        record_id=row,
        commit="c0ffee",
        details={"received": 3},
    )
    [entry] = await entries(lab, action="data_imported")
    assert {k: v for k, v in entry.items() if k not in ("id", "occurredUtc")} == {
        "user": "user:eve",
        "action": "data_imported",
        "entityName": "Site",
        "recordId": str(row),
        "commit": "c0ffee",
        "details": {"received": 3},
    }
    assert [entry] == await entries(lab, recordId=str(row)) == await entries(lab, user="user:eve")


async def test_who_acts_holds_for_one_transaction(lab: Lab) -> None:
    async with lab.conn.transaction():
        await audit.acting(lab.conn, actor="user:eve", commit="c0ffee")
        await lab.conn.execute("DELETE FROM mdm.permission WHERE domain = 'hr'")
    [entry] = await entries(lab, action="permission_revoked")
    assert (entry["user"], entry["commit"]) == ("user:eve", "c0ffee")
    await lab.conn.execute("DELETE FROM mdm.permission WHERE domain = 'lab'")
    users = {each["user"] for each in await entries(lab, action="permission_revoked")}
    assert any(user.startswith("database:") for user in users - {"user:eve"})


async def test_changes_and_actions_are_one_list_newest_first(lab: Lab) -> None:
    row = await lab.create("site", code="A")
    await audit.record(lab.conn, schemas=SCHEMAS, actor="user:eve", action="data_exported")
    await lab.send("PUT", f"site/data/{row}", {"rank": 1})
    actions = [each["action"] for each in await entries(lab)]
    assert actions[:3] == ["data_updated", "data_exported", "data_created"]
    moments = [each["occurredUtc"] for each in await entries(lab)]
    assert moments == sorted(moments, reverse=True)
    pages = [(await entries(lab, skip=n, take=1))[0]["action"] for n in range(3)]
    assert pages == actions[:3]
    answer = await lab.get("root", path="/api/v1/audit", skip=10_000)
    assert answer.json() == {"entries": [], "totalCount": len(actions)}


async def test_a_window(lab: Lab) -> None:
    await lab.create("site", code="A")
    assert await entries(lab, toUtc=utc(1)) == []
    assert len(await entries(lab, fromUtc=utc(1))) == len(await entries(lab))


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"take": 0}, "take"),
        ({"take": 1001}, "take"),
        ({"skip": -1}, "skip"),
        ({"recordId": "x"}, "recordId"),
        ({"fromUtc": "x"}, "fromUtc"),
        ({"entity": "site"}, "entity"),
    ],
)
async def test_wrong_parameters(lab: Lab, query: dict[str, Any], parameter: str) -> None:
    answer = await lab.get("root", path="/api/v1/audit", **query)
    assert problem(answer) == (400, "REQUEST_INVALID")
    assert answer.json()["parameter"] == parameter


async def test_an_entity_that_never_was_has_no_entries(lab: Lab) -> None:
    assert await entries(lab, entityName="nothing") == []
