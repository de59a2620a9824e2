"""Tests of ``access-tests.yaml``, as far as permissions alone decide them.

Pure: denials, actions and masked columns follow from the definitions; which rows somebody reaches is
asked of the warehouse (``data.access_tests``). Rights come from ``rights_of``, as for any request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mdm_gitops.access.principal import Principal, PrincipalKind, principal_named
from mdm_gitops.access.rights import Rights, rights_of
from mdm_gitops.model import Definitions, Entity, PermissionGrant
from mdm_gitops.model.access_tests import AccessTest, Expectation
from mdm_gitops.plan.access_report import TestResult, Verdict
from mdm_gitops.warehouse.store import StoreState


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """*failures*: one sentence each. *needs_rows*: the rest of the test asks for rows."""

    failures: tuple[str, ...] = ()
    needs_rows: bool = False


def who_asks(test: AccessTest, *, admin_role: str, state: StoreState) -> Principal:
    """Return who asks in *test*; an API key is a Global Admin if it was made so."""
    named = principal_named(test.principal, groups=test.groups)
    is_admin = admin_role in test.roles
    if named.kind is PrincipalKind.APIKEY:
        is_admin = any(key.is_global_admin for key in state.keys.values() if key.name == named.name)
    return replace(named, is_global_admin=is_admin)


def state_of(grants: Sequence[PermissionGrant]) -> StoreState:
    """Return the store as it would be with these *grants*, and nothing deployed."""
    return StoreState(
        revision=0, entities={}, removed=(), grants=by_principal(grants), keys=MappingProxyType({})
    )


def by_principal(grants: Sequence[PermissionGrant]) -> Mapping[str, tuple[PermissionGrant, ...]]:
    found: dict[str, list[PermissionGrant]] = {}
    for grant in grants:
        found.setdefault(grant.principal, []).append(grant)
    return MappingProxyType({name: tuple(each) for name, each in found.items()})


def judge(test: AccessTest, entity: Entity, rights: Rights) -> Judgement:
    """Judge what follows from *rights* without looking at a row."""
    if test.expect == "denied":
        return Judgement(failures=tuple(_not_denied(test, rights)))
    if not rights.may(test.action):
        return Judgement(failures=(f"{test.principal} may not {test.action.value}",))
    if not isinstance(test.expect, Expectation):
        return Judgement()
    return Judgement(
        failures=tuple(_columns(test.expect, entity, rights)),
        needs_rows=_needs_rows(test.expect, rights.filters_for(test.action)),
    )


def _not_denied(test: AccessTest, rights: Rights) -> Iterator[str]:
    if rights.may(test.action):
        filters = rights.filters_for(test.action)
        reach = " or ".join(f"({text})" for text in filters)
        where = f" rows where {reach}" if reach else ""
        yield f"{test.principal} may {test.action.value}{where}"


def _needs_rows(expect: Expectation, filters: Sequence[str]) -> bool:
    """Without a filter all rows are reached, however many there are."""
    return expect.asks_for_rows and not (expect.all and not expect.includes and not filters)


def _columns(expect: Expectation, entity: Entity, rights: Rights) -> Iterator[str]:
    for name in expect.masked:
        column = entity.column(name)
        if column is not None and not column.restricted:
            yield f"column {column.name} is shown: it is not classified restricted"
        elif column is not None and rights.sees_restricted:
            yield f"column {column.name} is shown: viewrestricted is granted"
    for name in expect.visible:
        column = entity.column(name)
        if column is not None and column.restricted and not rights.sees_restricted:
            yield f"column {column.name} is masked: viewrestricted is not granted"


def judge_structure(definitions: Definitions, *, admin_role: str) -> tuple[TestResult, ...]:
    """Return how the tests come out by *definitions* alone; those that need rows stay unchecked."""
    state = state_of(definitions.grants)
    results = []
    for test in definitions.access_tests.tests:
        entity = definitions.entity(test.entity)
        assert entity is not None, "checked when they were read"
        principal = who_asks(test, admin_role=admin_role, state=state)
        judged = judge(test, entity, rights_of(principal, entity, state))
        verdict = Verdict.UNCHECKED if judged.needs_rows else Verdict.PASSED
        if judged.failures:
            verdict = Verdict.FAILED
        why = "it asks for rows" if verdict is Verdict.UNCHECKED else ""
        results.append(result_of(test, definitions, verdict, *(judged.failures or (why,))))
    return tuple(results)


def result_of(
    test: AccessTest, definitions: Definitions, verdict: Verdict, *messages: str
) -> TestResult:
    return TestResult(
        name=test.name,
        place=str(definitions.test_places.get(test.name, "")),
        principal=test.principal,
        entity=test.entity,
        action=test.action,
        verdict=verdict,
        message="; ".join(messages),
    )


def strangers(definitions: Definitions, *, admin_role: str) -> Iterator[AccessTest]:
    """Yield tests of somebody whom no permission names: a slip in a name passes each denial."""
    named = {grant.principal for grant in definitions.grants}
    for test in definitions.access_tests.tests:
        identities = principal_named(test.principal, groups=test.groups).identities
        if admin_role not in test.roles and named.isdisjoint(identities):
            yield test
