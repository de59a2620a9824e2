"""The command line has all of the API: a new operation, parameter or member without a command fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from mdm_api import schemas
from mdm_api.operations import JSON, Operation, Parameter
from mdm_api.operations import Kind as ApiKind
from mdm_api.table import OPERATIONS
from mdm_gitops.cli import main
from mdm_gitops.cli._mirror import Input, Kind, Mirror, MirrorCommand, Option, Place, camel

# Commands that are written by hand: operation -> command.
WRITTEN = {
    "bulk_data": "entities data bulk",
    "bulk_csv_data": "entities data bulk-csv",
    "bulk_xlsx_data": "entities data bulk-xlsx",
    "export_data": "entities data export",
    "preview_bulk_action": "entities data bulk-action",
    "execute_bulk_action": "entities data bulk-action",
    "scan_duplicates": "entities duplicates scan",
    "list_changes": "changes",
    "get_me": "whoami",
    "export_permissions": "permissions yaml-export",
    "import_permissions": "permissions yaml-import",
    "export_webhooks": "webhooks yaml-export",
    "import_webhooks": "webhooks yaml-import",
    "export_package": "packages export",
    "deploy_package": "packages deploy",
    "list_waiting_plans": "plans list",
    "get_waiting_plan": "plans show",
    "approve_plan": "plans approve",
    "reject_plan": "plans reject",
    "request_reconcile": "reconcile now",
    "suspend_reconciliation": "reconcile suspend",
    "resume_reconciliation": "reconcile resume",
}
# What is for somebody else than a person at a terminal; `api GET PATH` gets at it all the same.
FOR_OTHERS = {
    "patch_data": "does what PUT does",
    "receive_push": "is called by a host of repositories",
    "get_health": "is called by a supervisor",
    "get_readiness": "is called by a supervisor",
    "get_metrics": "is called by a monitor",
    "get_problem": "is what a link in an error leads to",
    "get_openapi": "is read by generators",
    "get_swagger_ui": "is a page",
    "get_swagger_file": "belongs to a page",
    "begin_login": "is for browsers",
    "finish_login": "is for browsers",
    "end_login": "is for browsers",
}
# Members and parameters that a command fills without an option.
FILLED = {
    "drop_archive_tables": {"confirm"},  # the question names the entity
    "execute_bulk_action": {"previewToken"},
    "export_package": {"autoIncludeDependencies"},  # --no-dependencies
}


def commands(group: Any = main, above: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        path = f"{above} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, path)
        else:
            yield path, command


COMMANDS = dict(commands())
MIRRORS = {
    (each.mirror.method, each.mirror.path): (path, each.mirror)
    for path, each in COMMANDS.items()
    if isinstance(each, MirrorCommand)
}
VERSIONED = [each for each in OPERATIONS if not each.operation_id.endswith("_unversioned")]


@pytest.mark.parametrize("operation", VERSIONED, ids=lambda each: each.operation_id)
def test_each_operation_has_a_command(operation: Operation) -> None:
    name = operation.operation_id
    ways = [
        (operation.method, operation.path) in MIRRORS,
        name in WRITTEN and WRITTEN[name] in COMMANDS,
        name in FOR_OTHERS,
    ]
    assert ways.count(True) == 1, f"{name} {operation.method} {operation.path}"


def test_no_command_mirrors_what_is_not_there() -> None:
    there = {(each.method, each.path) for each in OPERATIONS}
    assert MIRRORS.keys() - there == set()
    names = {each.operation_id for each in OPERATIONS}
    assert (WRITTEN.keys() | FOR_OTHERS.keys()) - names == set()


def mirrored() -> Iterator[tuple[Operation, Mirror]]:
    for operation in VERSIONED:
        found = MIRRORS.get((operation.method, operation.path))
        if found is not None:
            yield operation, found[1]


PAIRS = list(mirrored())


@pytest.mark.parametrize(
    ("operation", "mirror"), PAIRS, ids=[each.operation_id for each, _ in PAIRS]
)
def test_parameters_are_options_of_the_same_kind(operation: Operation, mirror: Mirror) -> None:
    options = {each.sends: each for each in mirror.options if each.place is Place.QUERY}
    assert options.keys() == {each.name for each in operation.parameters}
    for parameter in operation.parameters:
        agrees(options[parameter.name], parameter)


def agrees(option: Option, parameter: Parameter) -> None:
    kinds = {ApiKind.NUMBER: Kind.NUMBER, ApiKind.FLAG: Kind.FLAG}
    wanted = kinds.get(parameter.kind, option.kind if option.kind is Kind.LIST else Kind.TEXT)
    assert option.kind is wanted or (option.kind, wanted) == (Kind.DECIMAL, Kind.TEXT), parameter
    assert option.choices == parameter.choices, parameter.name
    assert option.required == parameter.required, parameter.name
    assert option.minimum is None or option.minimum == parameter.minimum, parameter.name
    assert option.maximum is None or option.maximum == parameter.maximum, parameter.name


@pytest.mark.parametrize(
    ("operation", "mirror"), PAIRS, ids=[each.operation_id for each, _ in PAIRS]
)
def test_members_of_the_body_are_options(operation: Operation, mirror: Mirror) -> None:
    if mirror.reads is Input.DEFINITION:
        assert operation.body is not None
        assert "application/yaml" in operation.body.schemas
        return
    given = {each.sends for each in mirror.options if each.place is Place.BODY}
    given |= {mirror.values_in} - {""}
    given |= FILLED.get(operation.operation_id, set())
    if operation.body is None:
        assert given == set()
        return
    shape = resolved(operation.body.schemas[JSON])
    if shape.get("additionalProperties") is True:  # the columns of a row
        assert mirror.reads is Input.VALUES and not mirror.values_in
        return
    assert given == set(shape["properties"])
    required = {each.sends for each in mirror.options if each.required}
    assert (
        mirror.present
        or set(shape.get("required", ())) - FILLED.get(operation.operation_id, set()) <= required
    )


def resolved(schema: Any) -> dict[str, Any]:
    while "$ref" in schema:
        schema = schemas.components()[schema["$ref"].rpartition("/")[2]]
    return dict(schema)


@pytest.mark.parametrize("name", sorted(set(WRITTEN.values())))
def test_parameters_are_options_of_commands_written_by_hand(name: str) -> None:
    options = {
        camel(flag)
        for each in COMMANDS[name].params
        if isinstance(each, click.Option)
        for flag in each.opts
    }
    there = {each.operation_id: each for each in OPERATIONS}
    for operation_id, path in WRITTEN.items():
        if path == name and not name.startswith("plans"):
            wanted = {each.name for each in there[operation_id].parameters}
            assert wanted - options == set(), operation_id


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_and_option_is_told(name: str) -> None:
    command = COMMANDS[name]
    assert command.help and len(command.help) > 10
    assert len(command.get_short_help_str(100)) > 8
    for option in command.params:
        if isinstance(option, click.Option):
            is_plain = isinstance(option.type, click.Choice)
            assert is_plain or (option.help and option.help.endswith((".", ")"))), option.opts


def test_what_destroys_asks() -> None:
    """Each DELETE, and what its name says; the rest is undone by doing something else."""
    named = ("remove", "revoke", "withdraw", "drop-archives")
    for path, command in COMMANDS.items():
        is_destroying = path.rpartition(" ")[2] in named
        if isinstance(command, MirrorCommand):
            is_destroying = is_destroying or command.mirror.method == "DELETE"
        if is_destroying:
            assert any(each.name == "yes" for each in command.params), path


def test_each_command_speaks_json() -> None:
    """Also those whose output is a document of another kind: at least their errors."""
    silent = [
        path
        for path, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert silent == []
