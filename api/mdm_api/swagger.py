"""``/swagger``: the description of the API, for programs and for people.

Swagger UI comes from its package and runs offline: nothing is loaded from elsewhere, and the page's
own script is a file, so that the content security policy needs no exception for scripts. For Global
Admins; a browser signs in with any user name and the API key as password.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from starlette.responses import Response

from mdm_api.call import Call, json_response
from mdm_api.openapi import openapi_document
from mdm_api.operations import Access, Answer, Operation
from mdm_api.problems import no_such_path

_HTML: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mdm-gitops API</title>
<link rel="stylesheet" href="/swagger/swagger-ui.css">
<link rel="icon" href="/swagger/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/swagger/swagger-ui-bundle.js"></script>
<script src="/swagger/init.js"></script>
</body>
</html>
"""
_INIT: Final = """window.ui = SwaggerUIBundle({
  // An absolute address: a page that was opened with a key in its URL may not fetch a relative one.
  url: window.location.origin + "/swagger/v1/swagger.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
# Swagger UI sets style attributes and draws icons from data: addresses.
_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    " object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}


async def get_openapi(call: Call) -> Response:
    from mdm_api.table import OPERATIONS

    server_url = call.services.settings.Server.PublicUrl
    return json_response(openapi_document(OPERATIONS, server_url=server_url))


async def get_swagger_ui(call: Call) -> Response:
    return _page(_HTML, "text/html")


async def get_swagger_file(call: Call) -> Response:
    name = call.path("file")
    if name == "init.js":
        return _page(_INIT, "text/javascript")
    if name not in _FILES:
        raise no_such_path()
    return _page(_bundled(name), _FILES[name], cache_control="private, max-age=3600")


def _page(content: str | bytes, media_type: str, *, cache_control: str = "no-store") -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": cache_control}
    return Response(content, media_type=media_type, headers=headers)


@cache
def _bundled(name: str) -> bytes:
    return (files("swagger_ui") / "static" / name).read_bytes()


_TAG: Final = "Documentation"

operations = (
    Operation(
        method="GET",
        path="/swagger/v1/swagger.json",
        handler=get_openapi,
        summary="This description (OpenAPI 3.1)",
        tag=_TAG,
        access=Access.SIGNED_IN,
        with_basic=True,
        answers={200: Answer(description="The document.", schema={"type": "object"})},
    ),
    Operation(
        method="GET",
        path="/swagger",
        handler=get_swagger_ui,
        summary="Try the API in a browser",
        tag=_TAG,
        access=Access.GLOBAL_ADMIN,
        with_basic=True,
        answers={
            200: Answer(description="A page.", media_type="text/html", schema={"type": "string"})
        },
    ),
    Operation(
        method="GET",
        path="/swagger/{file}",
        handler=get_swagger_file,
        summary="Files of that page",
        tag=_TAG,
        access=Access.GLOBAL_ADMIN,
        with_basic=True,
        path_parameters={"file": "Name of the file."},
        answers={
            200: Answer(
                description="The file.", media_type="text/javascript", schema={"type": "string"}
            )
        },
        errors=("NOT_FOUND",),
    ),
)
