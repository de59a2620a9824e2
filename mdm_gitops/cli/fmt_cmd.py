"""``mdm-gitops fmt``: bring definition files into their canonical form."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import click

from mdm_gitops.cli._errors import count_of, finding_document, show_finding
from mdm_gitops.cli._folder import Folder
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.errors import DefinitionError, Finding, InputError
from mdm_gitops.source import folder_tree
from mdm_gitops.source.fmt import format_yaml


@click.command()
@click.argument("paths", nargs=-1, type=Folder(), metavar="[DIR|FILE]...")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Change nothing; print what would change.")
@json_option
@click.pass_context
def fmt(ctx: click.Context, paths: tuple[str, ...], check: bool, diff: bool, as_json: bool) -> None:
    """Rewrite definition files (default: all of this folder) in the canonical form.

    Comments and meaning stay; keys, indentation and quotes are put in order. A single - reads
    stdin and writes stdout.
    """
    if paths == ("-",):
        click.echo(format_yaml(sys.stdin.buffer.read(), "<stdin>"), nl=False)
        return
    changed: list[Path] = []
    findings: list[Finding] = []
    files = [file for path in paths or (".",) for file in _files(Path(path))]
    for file in files:
        try:
            if _format(file, write=not (check or diff), show=diff and not as_json):
                changed.append(file)
        except DefinitionError as exc:
            findings += exc.findings
    _report(changed, findings, len(files), dry=check or diff, as_json=as_json)
    if findings or (check and changed):
        ctx.exit(1)


def _files(path: Path) -> Iterator[Path]:
    """The definition files that *path* stands for; links are refused, not followed."""
    if path.is_symlink() or (path.exists() and not (path.is_dir() or path.is_file())):
        raise InputError(f"{path} is not a regular file", hint="links are not followed")
    if path.is_file():
        yield path
        return
    for entry in folder_tree(path).entries():
        if entry.path.endswith(".yaml") and not entry.problem:
            yield path / entry.path


def _format(file: Path, *, write: bool, show: bool) -> bool:
    before = file.read_bytes()
    after = format_yaml(before, str(file))
    if after.encode() == before:
        return False
    if write:
        _replace(file, after)
    if show:
        old = before.decode().splitlines(keepends=True)
        new = after.splitlines(keepends=True)
        click.echo("".join(unified_diff(old, new, str(file), str(file))), nl=False)
    return True


def _replace(file: Path, text: str) -> None:
    """Write beside and rename: a file is never seen, or left, half written."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
        Path(name).chmod(file.stat().st_mode & 0o7777)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _report(
    changed: list[Path], findings: list[Finding], files: int, *, dry: bool, as_json: bool
) -> None:
    if as_json:
        echo_json(
            {
                "files": files,
                "changed": [str(file) for file in changed],
                "findings": [finding_document(finding) for finding in findings],
            }
        )
        return
    for file in changed:
        say(f"{'would rewrite' if dry else 'rewrote'} {file}")
    for finding in findings:
        show_finding(finding, err=True)
    say(f"{count_of(files, 'file')}, {len(changed)} {'to change' if dry else 'changed'}")
