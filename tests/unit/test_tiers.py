"""Which tier has what: the table of the interface, held against the operations one by one."""

from __future__ import annotations

import re

import pytest

from mdm_api.openapi import error_codes, lowest_tier, openapi_document
from mdm_api.operations import Access, Answer, Operation, Parameter
from mdm_api.reference import rest_api_page
from mdm_api.table import OPERATIONS
from mdm_gitops.access import Tier
from mdm_gitops.errors import AccessDenied
from mdm_gitops.settings import Settings

DATA = r"/api/v1/entities/\{name\}/data"
# Whole paths, method before them where it matters. What none of them matches is in each tier.
NEEDS = {
    rf".* {DATA}/bulk(-csv|-xlsx)?": Tier.PROFESSIONAL,
    rf".* {DATA}/export": Tier.PROFESSIONAL,
    rf".* {DATA}/deduplicate(/.*)?": Tier.PROFESSIONAL,
    r".* /api/v1/entities/\{name\}/versions/.*": Tier.PROFESSIONAL,
    r".* /api/v1/entities/\{name\}/(similar|duplicates)(/.*)?": Tier.PROFESSIONAL,
    rf".* {DATA}/bulk-action/.*": Tier.ENTERPRISE,
    rf".* {DATA}/time-travel-bounds": Tier.ENTERPRISE,
    r".* /api(/v1)?/entities/\{name\}/saved-filters.*": Tier.ENTERPRISE,
    r".* /api(/v1)?/audit": Tier.ENTERPRISE,
    r".* /api(/v1)?/changes": Tier.ENTERPRISE,
    r".* /api/v1/webhooks.*": Tier.ENTERPRISE,
    r".* /api/v1/packages/.*": Tier.ENTERPRISE,
}
FREE = (
    rf"(GET|POST) {DATA}",
    rf"(GET|PUT|PATCH|DELETE) {DATA}/\{{id\}}",
    rf"POST {DATA}/\{{id\}}/restore",
    rf"GET {DATA}/(ref-options|column-suggestions)",
    r".* /api/v1/entities/\{name\}(/yaml|/deploy.*|/pending.*|/approve.*|/reject.*)?",
    r".* /api/v1/(permissions|roles|me|api-keys|search|common-entities).*",
    r".* /(healthz|readyz|metrics|swagger|login|logout|problems).*",
)


def needed(operation: Operation) -> Tier:
    told = f"{operation.method} {operation.path}"
    found = {tier for pattern, tier in NEEDS.items() if re.fullmatch(pattern, told)}
    assert len(found) <= 1, told
    return found.pop() if found else Tier.COMMUNITY


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.method} {o.path}")
def test_each_operation_has_the_tier_of_the_interface(operation: Operation) -> None:
    told = f"{operation.method} {operation.path}"
    if any(re.fullmatch(pattern, told) for pattern in FREE):
        assert operation.tier is Tier.COMMUNITY
    if needed(operation) is not Tier.COMMUNITY:
        assert operation.tier is needed(operation)
    assert operation.absent_below_tier == told.endswith("/changes")


def test_the_past_is_for_enterprise_wherever_it_can_be_asked_for() -> None:
    asked = [p for each in OPERATIONS for p in each.parameters if p.name == "asOfUtc"]
    assert len(asked) >= 2
    assert {parameter.tier for parameter in asked} == {Tier.ENTERPRISE}


@pytest.mark.parametrize("tier", Tier)
def test_a_tier_includes_those_below_it(tier: Tier) -> None:
    order = list(Tier)
    assert [tier.includes(other) for other in order] == [
        order.index(other) <= order.index(tier) for other in order
    ]


def test_the_setting_knows_each_tier_and_has_all_by_default() -> None:
    assert Tier(Settings().Tier) is Tier.ENTERPRISE
    assert [Tier(Settings(Tier=tier.value).Tier) for tier in Tier] == list(Tier)


def test_what_is_refused_says_which_tier_has_it() -> None:
    Tier.ENTERPRISE.require(Tier.PROFESSIONAL, "an export")
    with pytest.raises(AccessDenied) as refused:
        Tier.COMMUNITY.require(Tier.PROFESSIONAL, "an export")
    assert str(refused.value) == "an export needs the tier Professional, this is Community"
    assert refused.value.kind_code == "TIER_REQUIRED"


async def something(call: object) -> None: ...


def operation(**changes: object) -> Operation:
    given: dict[str, object] = {
        "method": "GET",
        "path": "/api/v1/something",
        "handler": something,
        "summary": "Something",
        "tag": "Data",
        "access": Access.SIGNED_IN,
        "answers": {200: Answer(description="It.")},
    }
    return Operation(**{**given, **changes})  # type: ignore[arg-type]


def test_descriptions_tell_the_tier() -> None:
    past = Parameter(name="past", description="A moment.", tier=Tier.ENTERPRISE)
    told = openapi_document(
        [operation(tier=Tier.PROFESSIONAL, parameters=(past,)), operation(path="/api/v1/free")]
    )["paths"]
    mine = told["/api/v1/something"]["get"]
    assert (mine["x-tier"], mine["parameters"][0]["x-tier"]) == ("Professional", "Enterprise")
    assert "TIER_REQUIRED" in mine["responses"]["403"]["description"]
    assert "x-tier" not in told["/api/v1/free"]["get"]
    assert "403" not in told["/api/v1/free"]["get"]["responses"]
    assert " Tier Enterprise." in rest_api_page()


def test_the_codes_are_those_that_are_answered() -> None:
    past = Parameter(name="past", description="A moment.", tier=Tier.ENTERPRISE)
    assert "TIER_REQUIRED" not in error_codes(operation())
    assert "TIER_REQUIRED" in error_codes(operation(parameters=(past,)))
    hidden = operation(tier=Tier.ENTERPRISE, absent_below_tier=True)
    assert "NOT_FOUND" in error_codes(hidden)
    assert "TIER_REQUIRED" not in error_codes(hidden)
    assert lowest_tier(operation(tier=Tier.PROFESSIONAL, parameters=(past,))) is Tier.ENTERPRISE
