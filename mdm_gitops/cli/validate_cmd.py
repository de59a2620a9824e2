"""``mdm-gitops validate``: check definitions as a compiler would, without a database."""

from __future__ import annotations

from pathlib import Path

import click

from mdm_gitops.cli._errors import count_of, finding_document, show_finding
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.errors import DefinitionError, Finding
from mdm_gitops.model.repository import Definitions
from mdm_gitops.source import read_folder, read_revision

_SINGULAR = {
    "domains": "domain",
    "entities": "entity",
    "permissions": "permission",
    "webhooks": "webhook",
    "seeds": "seed",
    "rows": "row",
}


@click.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--rev", metavar="REV", help="Check this commit, branch or tag instead of the files.")
@json_option
@click.pass_context
def validate(ctx: click.Context, directory: Path, rev: str | None, as_json: bool) -> None:
    """Check all definitions of the folder DIR (default: here).

    Prints each finding as path:line:column: message, and exits with 1 if there is one.
    """
    try:
        definitions = read_revision(directory, rev) if rev else read_folder(directory)
    except DefinitionError as exc:
        _show_findings(exc.findings, directory, as_json=as_json)
        ctx.exit(1)
    if as_json:
        echo_json({"valid": True, "findings": [], "contains": _counts(definitions)})
    else:
        counts = ", ".join(
            f"{n:,} {_SINGULAR[noun] if n == 1 else noun}"
            for noun, n in _counts(definitions).items()
        )
        say(f"{click.style('valid:', fg='green')} {counts}")


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
