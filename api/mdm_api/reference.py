"""The pages ``docs/reference/rest-api.md`` and ``errors.md``, made from the tables of the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mdm_api.openapi import error_codes
from mdm_api.operations import Access, Operation, Parameter
from mdm_api.table import OPERATIONS
from mdm_gitops.access import Tier
from mdm_gitops.errors import CATALOGUE

_ACCESS: Final = {
    Access.PUBLIC: " Open to anybody.",
    Access.SIGNED_IN: "",
    Access.GLOBAL_ADMIN: " For a Global Admin.",
}

_INTRODUCTION: Final = """\
# REST API

The same is served as OpenAPI 3.1 at `/swagger/v1/swagger.json`, and to try out at `/swagger`.

## Signing in

Send an API key in the header `X-API-Key`, an access token of the identity provider as
`Authorization: Bearer`, or the cookie of a session, one of them: two of different kinds are 400. See
[Signing in](../guides/signing-in.md). The first start prints the API key of a Global Admin, once;
`Mdm__Auth__BootstrapApiKey` sets it instead. Under `/swagger`, and only there, a browser may also send
the key as password of HTTP Basic, with any user name. Without a valid credential everything under
`/api` answers 401, also paths that do not exist. Rights, keys and sessions are not cached past a change:
the next request sees it.

What a key may do is given to the name `apikey:<name>` in permissions.yaml. An entity that the
caller may not read answers 404, exactly as one that does not exist; the same holds for rows outside
of a row filter. The action `admin` implies the other four in its scope.

## Rows

- Members are spelt as in the definition; `_sys_id`, `_sys_version`, `_sys_created_at`,
  `_sys_created_by`, `_sys_last_modified_at`, `_sys_last_modified_by`, `_sys_is_deleted`,
  `_sys_deleted_at` and `_sys_state` (active, pending, rejected, deleted) are added.
- `decimal` and `long` are JSON numbers with all their digits, as stored: `41285.00` keeps its
  zeros. A client whose numbers are floating point must read them as text to keep them.
- `datetime` is ISO 8601 in UTC with `Z`, with a fraction only where there is one.
- A value of a restricted column is `"***"` unless the caller holds `viewrestricted`, also where
  there is no value. Sorting, filtering and expanding by such a column is 403 `COLUMN_RESTRICTED`.
- `state=pending` lists the proposals of an entity that needs approval: `_sys_version` is the version
  they are based on (0 for a new row), and `_sys_operation`, `_sys_batch_name`, `_sys_comment`,
  `_sys_submitted_at`, `_sys_submitted_by` are added. Without approval the list is empty.
- `expand=country` adds `_expanded: {"country": {...}}`; the column itself keeps its value. Null
  stands for a row that is not there, or that the caller may not see.
- The order is total: it ends in `_sys_id`. Nulls come last ascending and first descending.
  `nextAfter` is null on the last page. A cursor belongs to its entity, state and sort.

```sh
curl -s -H "X-API-Key: $MDM_API_KEY" -G http://127.0.0.1:8080/api/v1/entities/country/data \\
  --data-urlencode "filter=[name] STARTSWITH 'S'" -d sort=-name -d take=5 -d count=true
```

## States of a definition

| State | Meaning |
|---|---|
| draft | defined, never deployed |
| deployed | as defined |
| changed | deployed, and the definitions say something else by now, or nothing |
| failed | its definition cannot be used, or its last deployment failed and left it behind |
| removed | taken out of use; its tables are archived |

## Rules for all requests

Each operation needs a valid credential unless it says otherwise; the rights per entity decide what is
shown.

A query parameter that does not exist is refused, as is one given twice. Bodies are strict JSON: no
NaN, no repeated keys, bounded depth and size (`Mdm__Server__MaxBodyBytes`). Errors are problem
documents, see [errors](errors.md); `traceId` is that of the request's `traceparent`, if it has one.
"""

_ERRORS: Final = """\
# Errors

A request that fails is answered with a problem document (RFC 9457, `application/problem+json`):

```json
{
  "type": "/problems/entity-not-found",
  "title": "No such entity",
  "status": 404,
  "detail": "there is no entity 'contry'",
  "code": "ENTITY_NOT_FOUND",
  "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
  "hint": "did you mean 'country'?"
}
```

`code` is for programs: it is never renamed and never changes its meaning. `type` is the code in
kebab case after `Mdm__Server__ProblemBaseUrl`. `hint` is there where one helps. A definition that is
not valid adds `errors: [{pointer, code, message, hint, line, file}]`, a filter `position` (characters
from 0) and `expected`. 401 carries `WWW-Authenticate`, 503 `Retry-After`, 405 `Allow`. Texts of the
database never appear; the log of the server has them under the `traceId`.

The command line prints the same sentence and hint, and ends with the exit code of the table.

| Code | Status | Exit code | Title |
|---|---|---|---|
"""


def errors_page() -> str:
    rows = (
        f"| `{code}` | {kind.status} | {kind.exit_code} | {kind.title} |"
        for code, kind in sorted(CATALOGUE.items())
    )
    return _ERRORS + "\n".join(rows) + "\n"


def rest_api_page() -> str:
    by_tag: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        by_tag.setdefault(operation.tag, []).append(operation)
    lines = [_INTRODUCTION]
    for tag, operations in by_tag.items():
        lines += [f"## {tag}", ""]
        for operation in operations:
            lines += _operation(operation)
    return "\n".join(lines).rstrip() + "\n"


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}"
    yield ""
    yield f"{operation.summary}.{_ACCESS[operation.access]}{_tier(operation)}"
    yield ""
    if operation.description:
        yield operation.description
        yield ""
    if operation.parameters:
        yield "| Query parameter | Value | Default | Meaning |"
        yield "|---|---|---|---|"
        yield from (_parameter(parameter) for parameter in operation.parameters)
        yield ""
    if operation.body is not None:
        kinds = ", ".join(f"`{each}`" for each in operation.body.schemas)
        optional = "" if operation.body.required else " Optional."
        yield f"Body ({kinds}): {operation.body.description}{optional}{_members(operation)}"
        yield ""
    for status, answer in operation.answers.items():
        yield f"Answers {status}: {answer.description}"
    yield "Errors: " + ", ".join(f"`{code}`" for code in error_codes(operation)) + "."
    yield ""


def _tier(operation: Operation) -> str:
    if operation.tier is Tier.COMMUNITY:
        return ""
    below = " Below that it is not there (404)." if operation.absent_below_tier else ""
    return f" Tier {operation.tier.value}.{below}"


def _members(operation: Operation) -> str:
    """Name the members of a JSON body whose schema is one of our small ones."""
    from mdm_api.schemas import components

    assert operation.body is not None
    schema = operation.body.schemas.get("application/json", {})
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in ("", "Entity"):
        return ""
    properties: Mapping[str, Any] = components()[name].get("properties", {})
    return " JSON members: " + ", ".join(f"`{each}`" for each in properties) + "."


def _parameter(parameter: Parameter) -> str:
    default = "none" if parameter.default is None else f"`{str(parameter.default).lower()}`"
    default = "required" if parameter.required else default
    value = ", ".join(f"`{choice}`" for choice in parameter.choices) or parameter.kind.value
    if parameter.minimum is not None:
        upper = f" to {parameter.maximum:,}" if parameter.maximum is not None else " or more"
        value = f"{value}, {parameter.minimum:,}{upper}"
    example = f" Example: `{parameter.example}`" if parameter.example else ""
    tier = "" if parameter.tier is Tier.COMMUNITY else f" Tier {parameter.tier.value}."
    return f"| `{parameter.name}` | {value} | {default} | {parameter.description}{tier}{example} |"
