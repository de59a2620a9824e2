"""Problem documents: the members of RFC 9457, the catalogue's words, nothing from the inside."""

from __future__ import annotations

import json
import logging

import pytest
from starlette.exceptions import HTTPException

from mdm_api.problems import as_mdm_error, problem_document, problem_response
from mdm_gitops.errors import (
    CATALOGUE,
    AuthRequired,
    DefinitionError,
    FilterError,
    Finding,
    InputError,
    Location,
    MdmError,
    WarehouseError,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_code_has_its_status_title_and_type(code: str) -> None:
    document = problem_document(
        MdmError("it went wrong", code=code), trace_id=TRACE, base_url="https://mdm.example/"
    )
    kind = CATALOGUE[code]
    assert (document["status"], document["title"]) == (kind.status, kind.title)
    assert document["type"] == f"https://mdm.example/problems/{code.lower().replace('_', '-')}"
    assert (document["code"], document["traceId"]) == (code, TRACE)
    assert document["detail"]


def test_members_cannot_be_replaced_by_details() -> None:
    error = InputError("no", status=200, type="x", detail="y", code="REQUEST_INVALID", extra=1)
    document = problem_document(error, trace_id=TRACE, base_url=None)
    assert document == {
        "type": "/problems/request-invalid",
        "title": "Request is not valid",
        "status": 400,
        "detail": "no",
        "code": "REQUEST_INVALID",
        "traceId": TRACE,
        "extra": 1,
    }


def test_findings_become_errors() -> None:
    error = DefinitionError(
        [
            Finding(
                rule="unknown-key",
                message="key 'nmae' is unknown",
                location=Location("entities/a.yaml", 3, 5),
                pointer="/columns/0/nmae",
                hint="did you mean 'name'?",
            ),
            Finding(rule="yaml-syntax", message="not YAML", location=Location("<body>", 1, 2)),
        ]
    )
    document = problem_document(error, trace_id=TRACE, base_url=None)
    assert document["errors"] == [
        {"pointer": "", "code": "yaml-syntax", "message": "not YAML", "line": 1},
        {
            "pointer": "/columns/0/nmae",
            "code": "unknown-key",
            "message": "key 'nmae' is unknown",
            "hint": "did you mean 'name'?",
            "line": 3,
            "file": "entities/a.yaml",
        },
    ]


def test_a_filter_error_tells_where_and_what_fits() -> None:
    error = FilterError("[x] is nothing", position=4, expected="a column", hint="did you mean [y]?")
    document = problem_document(error, trace_id=TRACE, base_url=None)
    assert (document["position"], document["expected"]) == (4, "a column")
    assert document["hint"] == "did you mean [y]?"


@pytest.mark.parametrize("code", ["WAREHOUSE_UNAVAILABLE", "WAREHOUSE_UNUSABLE", "INTERNAL"])
def test_what_tells_of_the_inside_stays_inside(code: str) -> None:
    error = WarehouseError("host db7, role admin", code=code, hint="psql db7", query="SELECT 1")
    text = json.dumps(problem_document(error, trace_id=TRACE, base_url=None))
    assert not any(word in text for word in ("db7", "admin", "psql", "SELECT"))


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (AuthRequired("no"), "www-authenticate", 'ApiKey realm="mdm-gitops", header="X-API-Key"'),
        (
            AuthRequired("no", headers={"WWW-Authenticate": 'Basic realm="mdm-gitops"'}),
            "www-authenticate",
            'Basic realm="mdm-gitops"',
        ),
        (WarehouseError("away"), "retry-after", "2"),
        (MdmError("no", code="METHOD_NOT_ALLOWED", allow=["GET", "HEAD"]), "allow", "GET, HEAD"),
    ],
)
def test_headers(error: MdmError, name: str, value: str) -> None:
    response = problem_response(error, trace_id=TRACE, base_url=None)
    assert response.headers[name] == value
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HTTPException(404), "NOT_FOUND"),
        (HTTPException(405), "METHOD_NOT_ALLOWED"),
        (HTTPException(413), "BODY_TOO_LARGE"),
        (HTTPException(418), "INTERNAL"),
        (ZeroDivisionError("secret"), "INTERNAL"),
        (InputError("mine"), "REQUEST_INVALID"),
    ],
)
def test_whatever_is_raised_becomes_one_of_ours(
    error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert as_mdm_error(error, trace_id=TRACE).kind_code == code
    assert bool(caplog.records) == (code == "INTERNAL")
