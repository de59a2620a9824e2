"""``mdm-gitops validate``: check definitions as a compiler would, without a database.

With ``--live`` the tests of access are judged against the rows of the warehouse too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._errors import count_of, finding_document, show_finding
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, say, warn
from mdm_gitops.cli._package import folder_of, looks_like_archive, read_package_at
from mdm_gitops.errors import DefinitionError, Finding
from mdm_gitops.model.repository import Definitions
from mdm_gitops.settings import load_settings
from mdm_gitops.source import read_folder, read_revision

if TYPE_CHECKING:
    from mdm_gitops.plan.access_report import TestResult

_SINGULAR = {
    "domains": "domain",
    "entities": "entity",
    "permissions": "permission",
    "webhooks": "webhook",
    "seeds": "seed",
    "rows": "row",
}


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option("--rev", metavar="REV", help="Check this commit, branch or tag instead of the files.")
@click.option("--live", is_flag=True, help="Judge access-tests.yaml by the rows too.")
@json_option
@environment_option
@click.pass_context
def validate(
    ctx: click.Context, directory: Path, rev: str | None, live: bool, as_json: bool
) -> None:
    """Check all definitions of the folder or package DIR (default: here).

    Prints each finding as path:line:column: message, and exits with 1 if there is one. Tests of
    access are judged as far as permissions alone decide them; --live asks the warehouse for the
    rest, under the permissions of DIR.
    """
    try:
        definitions = _read(directory, rev)
    except DefinitionError as exc:
        _show_findings(exc.findings, directory, as_json=as_json)
        ctx.exit(1)
    results, warnings = _access_tests(folder_of(directory), definitions, live=live)
    failed = tuple(_finding(each, definitions) for each in results if each.verdict == "failed")
    if as_json:
        echo_json(
            {
                "valid": not failed,
                "findings": [finding_document(each) for each in failed],
                "warnings": warnings,
                "contains": _counts(definitions),
                "accessTests": [_test_document(each) for each in results],
            }
        )
    else:
        _tell(definitions, results, warnings, live=live)
        if failed:
            _show_findings(failed, directory, as_json=False)
    if failed:
        ctx.exit(1)


def _read(place: Path, rev: str | None) -> Definitions:
    if looks_like_archive(place):
        return read_package_at(place, rev=rev)
    return read_revision(place, rev) if rev else read_folder(place)


def _access_tests(
    directory: Path, definitions: Definitions, *, live: bool
) -> tuple[Sequence[TestResult], list[str]]:
    if not definitions.access_tests.tests:
        return (), []
    from mdm_gitops.access.testing import judge_structure, strangers

    role = load_settings(directory).Auth.AdminRole
    warnings = [
        f"{definitions.test_places[test.name]}: no permission names {test.principal}"
        f"{' or its groups' if test.groups else ''}, so it can only be denied"
        for test in strangers(definitions, admin_role=role)
    ]
    if live:
        return asyncio.run(_judged_live(directory, definitions)), warnings
    return judge_structure(definitions, admin_role=role), warnings


async def _judged_live(directory: Path, definitions: Definitions) -> Sequence[TestResult]:
    from mdm_gitops.cli._session import session
    from mdm_gitops.data.access_report import inspector
    from mdm_gitops.warehouse.planning import make_plan

    async with session(directory, application_name="mdm-gitops validate", read_only=True) as s:
        inspect = inspector(s.settings, effects=False)
        plan = await make_plan(s.conn, definitions, schemas=s.schemas, inspect=inspect)
    return plan.access.tests


def _finding(result: TestResult, definitions: Definitions) -> Finding:
    return Finding(
        rule="access-test",
        message=f"access test {result.name!r} fails: {result.message}",
        location=definitions.test_places[result.name],
        hint="correct permissions.yaml, or what the test expects",
    )


def _test_document(result: TestResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "place": result.place,
        "verdict": result.verdict.value,
        "message": result.message,
    }


def _tell(
    definitions: Definitions, results: Sequence[TestResult], warnings: list[str], *, live: bool
) -> None:
    for warning in warnings:
        warn(warning)
    counts = ", ".join(
        f"{n:,} {_SINGULAR[noun] if n == 1 else noun}" for noun, n in _counts(definitions).items()
    )
    failed = sum(each.verdict == "failed" for each in results)
    if not failed:
        say(f"{click.style('valid:', fg='green')} {counts}")
    left = [each for each in results if each.verdict == "unchecked"]
    if results:
        passed = len(results) - failed - len(left)
        say(f"access tests: {passed:,} passed, {failed:,} failed, {len(left):,} not judged")
    if left and not live:
        say(f"{click.style('hint:', fg='cyan')} --live judges them by the rows of the warehouse")
    for each in left if live else ():
        say(f"  not judged: {each.name}: {each.message}")


def _show_findings(findings: tuple[Finding, ...], directory: Path, *, as_json: bool) -> None:
    if as_json:
        echo_json({"valid": False, "findings": [finding_document(each) for each in findings]})
    else:
        prefix = "" if str(directory) == "." else f"{directory}/"
        for finding in findings:
            show_finding(finding, prefix=prefix)
    files = len({finding.location.path for finding in findings})
    say(f"{count_of(len(findings), 'finding')} in {count_of(files, 'file')}")


def _counts(definitions: Definitions) -> dict[str, int]:
    return {
        "domains": len(definitions.project.domains),
        "entities": len(definitions.entities),
        "permissions": len(definitions.grants),
        "webhooks": len(definitions.webhooks.webhooks),
        "seeds": len(definitions.seeds),
        "rows": sum(len(seed.rows) for seed in definitions.seeds.values()),
    }
