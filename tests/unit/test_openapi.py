"""The description of the API is valid, complete, and made of what the routes are made of."""

from __future__ import annotations

import re
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from mdm_api.openapi import openapi_document
from mdm_api.operations import Access, Kind, Operation, Parameter
from mdm_api.routes import Paths
from mdm_api.table import OPERATIONS
from mdm_gitops.errors import CATALOGUE, InputError

DOCUMENT = openapi_document(OPERATIONS)

# The interface that the project was given, as far as it is served.
EXPECTED = {
    "GET /api/v1/entities",
    "GET /api/v1/entities/summary",
    "GET /api/v1/entities/{name}",
    "GET /api/v1/entities/{name}/yaml",
    "POST /api/v1/entities/parse-yaml",
    "POST /api/v1/entities/validate",
    "POST /api/v1/entities/{name}/deploy",
    "GET /api/v1/entities/{name}/deploy/preview",
    "POST /api/v1/entities/{name}/redeploy",
    "POST /api/v1/entities/{name}/deploy/remove",
    "POST /api/v1/entities/{name}/deploy/drop-archive-tables",
    "GET /api/v1/entities/{name}/deploy/history",
    "GET /api/v1/entities/{name}/data",
    "GET /api/v1/entities/{name}/data/{id}",
    "GET /api/v1/entities/{name}/data/ref-options",
    "GET /api/v1/entities/{name}/data/column-suggestions",
    "GET /api/v1/entities/{name}/saved-filters",
    "POST /api/v1/entities/{name}/saved-filters",
    "GET /api/v1/entities/{name}/saved-filters/{filterName}",
    "DELETE /api/v1/entities/{name}/saved-filters/{filterName}",
    "GET /api/entities/{name}/saved-filters",
    "POST /api/entities/{name}/saved-filters",
    "GET /api/entities/{name}/saved-filters/{filterName}",
    "DELETE /api/entities/{name}/saved-filters/{filterName}",
    "GET /api/v1/search/entities",
    "GET /api/v1/search/data",
    "GET /api/v1/me",
    "GET /api/v1/roles",
    "GET /api/v1/api-keys",
    "POST /api/v1/api-keys",
    "DELETE /api/v1/api-keys/{name}",
    "GET /swagger/v1/swagger.json",
    "GET /swagger",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
}


def test_it_is_valid_openapi() -> None:
    errors = [error.message for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()]
    assert errors == []


def test_the_interface_is_there() -> None:
    assert {f"{each.method} {each.path}" for each in OPERATIONS} >= EXPECTED


def test_each_route_is_described_and_each_description_is_a_route() -> None:
    described = {
        (path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item
    }
    endpoints = {
        path: endpoint.operations for path, (endpoint, _) in Paths(OPERATIONS).endpoints.items()
    }
    routed = {(path, method) for path, methods in endpoints.items() for method in methods}
    assert {each for each in routed if each[1] != "HEAD"} == described


def test_operation_ids_are_unique() -> None:
    ids = [each.operation_id for each in OPERATIONS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.method} {o.path}")
def test_each_operation_is_complete(operation: Operation) -> None:
    in_path = set(re.findall(r"\{(\w+)\}", operation.path))
    assert in_path == set(operation.path_parameters)
    assert set(operation.errors) <= set(CATALOGUE)
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    statuses = set(described["responses"])
    if operation.access is Access.PUBLIC:
        assert described["security"] == []
    else:
        assert described["security"][0] == {"apiKey": []}
        assert {"401", "503"} <= statuses
    if operation.access is Access.GLOBAL_ADMIN:
        assert "403" in statuses
    if operation.body is not None:
        assert "413" in statuses
    if operation.path.startswith("/api/"):
        assert {"400", "429"} <= statuses, "an unknown query parameter, the rate limit"
    assert all(parameter.description.endswith(".") for parameter in operation.parameters)


def test_all_references_lead_somewhere() -> None:
    names = DOCUMENT["components"]["schemas"]
    for target in _references(DOCUMENT):
        assert target.removeprefix("#/components/schemas/") in names, target


def _references(value: Any) -> list[str]:
    match value:
        case dict():
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [each for inner in value.values() for each in _references(inner)]
        case list():
            return [each for inner in value for each in _references(inner)]
        case _:
            return []


@pytest.mark.parametrize(
    ("path", "expected", "parameters"),
    [
        ("/api/v1/entities/summary", "/api/v1/entities/summary", {}),
        ("/api/v1/entities/customer", "/api/v1/entities/{name}", {"name": "customer"}),
        ("/api/v1/entities/summary/yaml", "/api/v1/entities/{name}/yaml", {"name": "summary"}),
        (
            "/api/v1/entities/a b/data/x-1",
            "/api/v1/entities/{name}/data/{id}",
            {"name": "a b", "id": "x-1"},
        ),
        ("/api/v1/entities/a/data/export", "/api/v1/entities/{name}/data/export", {"name": "a"}),
        ("/api/v1/entities//data", None, None),
        ("/api/v1/entities/a/data/", None, None),
        ("/api/v1/entities/a/b/c", None, None),
        ("/api/v1", None, None),
        ("api/v1/entities", None, None),
        ("", None, None),
    ],
)
def test_a_path_leads_to_its_operations(
    path: str, expected: str | None, parameters: dict[str, str] | None
) -> None:
    paths = Paths(OPERATIONS)
    found = paths.find(path)
    if expected is None:
        assert found is None
        return
    assert found == (paths.endpoints[expected][0], parameters)


def test_all_that_follows_goes_into_a_parameter_that_may_hold_slashes() -> None:
    paths = Paths(OPERATIONS)
    path = "/api/v1/entities/{name}/saved-filters"
    given = path.replace("{name}", "e")
    assert paths.find(given) == (paths.endpoints[path][0], {"name": "e"})
    endpoint, _ = paths.endpoints[path + "/{filterName}"]
    parameters = {"name": "e", "filterName": "a/b//c"}
    assert paths.find(given + "/a/b//c") == (endpoint, parameters)


@pytest.mark.parametrize(
    ("parameter", "text", "expected"),
    [
        (Parameter(name="p", description="", kind=Kind.NUMBER), "-12", -12),
        (Parameter(name="p", description="", kind=Kind.FLAG), "TRUE", True),
        (Parameter(name="p", description="", choices=("a", "b")), "b", "b"),
        (Parameter(name="p", description=""), "any\u00fc", "any\u00fc"),
    ],
)
def test_parameters_are_read_by_their_kind(
    parameter: Parameter, text: str, expected: object
) -> None:
    assert parameter.read(text) == expected


@pytest.mark.parametrize(
    ("parameter", "text", "message"),
    [
        (Parameter(name="p", description="", kind=Kind.NUMBER), "1.5", "p must be a whole number"),
        (Parameter(name="p", description="", kind=Kind.NUMBER), "--1", "p must be a whole number"),
        (Parameter(name="p", description="", kind=Kind.NUMBER), "\u0661", "p must be a whole"),
        (Parameter(name="p", description="", kind=Kind.NUMBER), "9" * 19, "p must be a whole"),
        (Parameter(name="p", description="", kind=Kind.NUMBER, minimum=1), "0", "1 or more"),
        (
            Parameter(name="p", description="", kind=Kind.NUMBER, minimum=1, maximum=5),
            "6",
            "1 to 5",
        ),
        (Parameter(name="p", description="", kind=Kind.FLAG), "yes", "true or false"),
        (Parameter(name="p", description="", choices=("a", "b")), "A", "one of a, b"),
        (Parameter(name="p", description=""), "x" * 40_000, "longer than"),
        (Parameter(name="p", description=""), "\x00", "NUL"),
    ],
)
def test_wrong_values_are_refused(parameter: Parameter, text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parameter.read(text)
