"""What stops a plan, whatever is allowed: protection, ownership, caps, failed data checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from mdm_gitops.model import Definitions, fold
from mdm_gitops.plan.access_report import AccessReport
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.physical import View
from mdm_gitops.plan.plan import CheckResult, Refusal, RefusalCode, Violation
from mdm_gitops.plan.recorded import EntityState, RecordedEntity

_SENTENCE = {
    Violation.IS_NULL: "{n} rows are null in {column}",
    Violation.BREAKS_RULE: "{n} rows break the new rule of {column}",
    Violation.IS_DUPLICATE: "{n} rows share a value of {column}",
    Violation.REFERS_TO_NOTHING: "{n} rows of {column} refer to nothing",
    Violation.CANNOT_BE_CAST: "{n} values of {column} do not fit the new type",
    Violation.NEEDS_DEFAULT: "{n} rows have no value for the new required column {column}",
}
_HINT = {
    Violation.IS_NULL: "Fill them first, or leave the column nullable",
    Violation.BREAKS_RULE: "Correct them first, or loosen the rule",
    Violation.IS_DUPLICATE: "Merge or correct them first",
    Violation.REFERS_TO_NOTHING: "Correct them first, or add the missing rows to the target's seed",
    Violation.CANNOT_BE_CAST: "Correct them first, or add a new column instead",
    Violation.NEEDS_DEFAULT: "Give the column a default, or make it nullable first",
}


def failed_checks(results: Iterable[CheckResult]) -> Iterator[Refusal]:
    for result in results:
        if result.violations:
            check = result.check
            sentence = _SENTENCE[check.violation]
            message = sentence.format(n=f"{result.violations:,}", column=check.column)
            yield Refusal(
                code=RefusalCode.DATA_CHECK_FAILED,
                entity=check.entity,
                message=f"{check.entity}: {message}",
                hint=_HINT[check.violation],
            )


def failed_access_tests(report: AccessReport) -> Iterator[Refusal]:
    for result in report.failed:
        entity = fold(result.entity)
        yield Refusal(
            code=RefusalCode.ACCESS_TEST_FAILED,
            entity=entity,
            message=f"access test {result.name!r} fails: {result.message} ({result.place})",
            hint="Correct permissions.yaml, the rows or the test; if it is meant, allow it once"
            f" with --allow ACCESS_TEST_FAILED:{entity}",
        )


def removals(
    removed: Collection[RecordedEntity], facts: Facts, definitions: Definitions
) -> Iterator[Refusal]:
    for record in removed:
        if record.definition.lifecycle.prevent_remove:
            yield Refusal(
                code=RefusalCode.PREVENT_REMOVE,
                entity=record.name,
                message=f"entity {record.name} is protected by lifecycle.preventRemove",
                hint="Deploy it once with preventRemove: false, then remove it in a later commit",
            )
    yield from _prune_cap(len(removed), facts, definitions)


def _prune_cap(removed: int, facts: Facts, definitions: Definitions) -> Iterator[Refusal]:
    policy = definitions.project.policy
    deployed = sum(r.state is not EntityState.REMOVED for r in facts.records)
    share = 100 * removed / deployed if deployed else 0
    too_many = removed > policy.max_removed_entities
    too_large = removed > 1 and share > policy.max_removed_percent
    if too_many or too_large:
        yield Refusal(
            code=RefusalCode.PRUNE_CAP,
            entity="",
            message=(
                f"{removed} of {deployed} entities would be archived, more than the policy's "
                f"{plural(policy.max_removed_entities, 'entity', 'entities')} or"
                f" {policy.max_removed_percent} percent"
            ),
            hint="If that is meant, allow it once with --allow PRUNE_CAP:*",
        )


def unowned(
    tables: Iterable[tuple[str, str]], views: Iterable[tuple[str, View]], facts: Facts
) -> Iterator[Refusal]:
    """Refuse to take a name at which something stands that is not ours; each comes with its entity."""
    for entity, table in tables:
        if (facts.data_schema, table) in facts.relations and not _is_ours(table, facts):
            hint = "Rename or move that table, or choose another entity name"
            yield _in_the_way(entity, f"{facts.data_schema}.{table}", hint)
    for entity, view in views:
        there = facts.relations.get(view.key)
        if there is not None and not there.recorded:
            hint = "Rename or move it, or choose another name for the view"
            yield _in_the_way(entity, f"{view.schema}.{view.name}", hint)


def _is_ours(table: str, facts: Facts) -> bool:
    return any(table in record.table_names for record in facts.records)


def _in_the_way(entity: str, what: str, hint: str) -> Refusal:
    return Refusal(
        code=RefusalCode.UNOWNED_OBJECT,
        entity=entity,
        message=f"{what} exists and was not created by a deployment",
        hint=hint,
    )


def incomplete_target(
    target: Collection[str], desired: Mapping[str, DesiredEntity], facts: Facts
) -> Iterator[Refusal]:
    """With a target, each entity that a chosen one refers to must stand or be chosen as well."""
    standing = {r.name for r in facts.records if r.state is not EntityState.REMOVED}
    standing |= facts.unchanged
    for name in sorted(target):
        if name not in desired:
            continue
        for referred, _ in sorted(set(desired[name].targets.values())):
            if referred not in standing and referred not in target:
                yield Refusal(
                    code=RefusalCode.TARGET_INCOMPLETE,
                    entity=name,
                    message=f"{name} refers to {referred}, which is not deployed",
                    hint=f"Add {referred} to the target, or plan without one",
                )
