"""``/healthz``: the process answers. ``/readyz``: it can serve. ``/problems/{code}``: what a code is."""

from __future__ import annotations

from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call, json_response
from mdm_api.operations import Access, Answer, Operation
from mdm_api.problems import kebab, no_such_path, problem_type
from mdm_gitops import __version__
from mdm_gitops.errors import CATALOGUE


async def get_health(call: Call) -> Response:
    return json_response({"status": "ok", "version": __version__})


async def get_readiness(call: Call) -> Response:
    """Ready when the database answers and its store is of our version."""
    services = call.services
    state = await services.with_connection(services.store.current)
    return json_response({"status": "ready", "entities": len(state.entities)})


async def get_problem(call: Call) -> Response:
    for code, kind in CATALOGUE.items():
        if kebab(code) == call.path("code"):
            base = call.services.settings.Server.ProblemBaseUrl
            return json_response(
                {
                    "type": problem_type(code, base),
                    "code": code,
                    "title": kind.title,
                    "status": kind.status,
                }
            )
    raise no_such_path()


operations = (
    Operation(
        method="GET",
        path="/healthz",
        handler=get_health,
        summary="Whether the process is alive",
        tag="Health",
        access=Access.PUBLIC,
        answers={200: Answer(description="It is.", schema=schemas.ref("Health"))},
    ),
    Operation(
        method="GET",
        path="/readyz",
        handler=get_readiness,
        summary="Whether requests can be served",
        tag="Health",
        access=Access.PUBLIC,
        answers={200: Answer(description="They can.", schema=schemas.ref("Health"))},
        errors=("WAREHOUSE_UNAVAILABLE",),
    ),
    Operation(
        method="GET",
        path="/problems/{code}",
        handler=get_problem,
        summary="What the code of a problem means",
        tag="Health",
        access=Access.PUBLIC,
        path_parameters={"code": "The last part of a problem's `type`."},
        answers={200: Answer(description="The kind of problem.", schema={"type": "object"})},
        errors=("NOT_FOUND",),
    ),
)
