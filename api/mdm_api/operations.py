"""What an operation of the API is: one value that says everything about it, once.

The table of operations (``mdm_api.table``) makes the routes and the OpenAPI document, so a route
that is not described, or is described in another way than it works, cannot exist. Query parameters
are read by their declarations: an unknown one is refused, with the nearest known name as a hint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import QueryParams
from starlette.responses import Response

from mdm_gitops.access import Tier
from mdm_gitops.errors import InputError
from mdm_gitops.model.suggest import did_you_mean

if TYPE_CHECKING:
    from mdm_api.call import Call

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_MAX_VALUE_LENGTH: Final = 32_768


class Access(StrEnum):
    """Who may call an operation at all. What it then shows is decided by the rights per entity."""

    PUBLIC = "public"
    SIGNED_IN = "signed-in"
    GLOBAL_ADMIN = "global-admin"


class Kind(StrEnum):
    TEXT = "string"
    NUMBER = "integer"
    FLAG = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query parameter. It may be given once; *choices* are its only values if there are any.

    Whoever gives one that needs a higher *tier* than the server has gets 403 ``TIER_REQUIRED``.
    """

    name: str
    description: str
    kind: Kind = Kind.TEXT
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    example: Any = None
    required: bool = False
    tier: Tier = Tier.COMMUNITY

    def read(self, text: str) -> Any:
        """Return the typed value of *text*, or raise InputError."""
        if len(text) > _MAX_VALUE_LENGTH:
            raise self._wrong(f"is longer than {_MAX_VALUE_LENGTH} characters")
        if "\x00" in text:
            raise self._wrong("holds a NUL character")
        match self.kind:
            case Kind.NUMBER:
                return self._number(text)
            case Kind.FLAG:
                if text.lower() not in ("true", "false"):
                    raise self._wrong("must be true or false")
                return text.lower() == "true"
            case Kind.TEXT:
                if self.choices and text not in self.choices:
                    raise self._wrong(f"must be one of {', '.join(self.choices)}")
                return text

    def _number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise self._wrong("must be a whole number")
        number = int(text)
        low, high = self.minimum, self.maximum
        if (low is not None and number < low) or (high is not None and number > high):
            upper = f" to {high}" if high is not None else " or more"
            raise self._wrong(f"must be {low}{upper}")
        return number

    def _wrong(self, message: str) -> InputError:
        return InputError(f"{self.name} {message}", parameter=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    description: str
    schemas: Mapping[str, Any]  # media type -> JSON Schema
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    description: str
    schema: Any = None
    media_type: str = JSON
    others: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Schemas of the same in other media types, which the caller may ask for."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


Handler = Callable[["Call"], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    access: Access
    answers: Mapping[int, Answer]
    errors: tuple[str, ...] = ()  # codes of the catalogue, beside those that any operation has
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    path_parameters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: Body | None = None
    takes_any_query: bool = False  # others add parameters that we do not know
    with_basic: bool = False  # a browser may sign in with a key as password
    checks_late: bool = False
    """The handler proves the state of the store in its own statement (``Call.reading``)."""
    tier: Tier = Tier.COMMUNITY
    """The lowest tier that has it; below it is 403 ``TIER_REQUIRED`` for everybody."""
    absent_below_tier: bool = False
    """Below its tier it is answered like a path that is not there: 404 ``NOT_FOUND``."""
    name: str = ""  # where the handler's name is not the name of this operation alone
    rest: str = ""  # the path parameter that stands last and may hold slashes

    @property
    def operation_id(self) -> str:
        return self.name or self.handler.__name__

    def read_query(self, query: QueryParams) -> dict[str, Any]:
        """Return all parameters with their values or defaults.

        Raises:
            InputError: one is unknown, given twice, of a wrong value, or missing.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {parameter.name: parameter.default for parameter in self.parameters}
        seen = set()
        for name, text in query.multi_items():
            if name not in known and self.takes_any_query:
                continue
            if name not in known:
                raise InputError(
                    f"there is no query parameter {name[:60]!r} here",
                    hint=did_you_mean(name, known),
                    parameter=name[:60],
                )
            if name in seen:
                raise InputError(f"{name} is given twice", parameter=name)
            seen.add(name)
            if text != "" or known[name].kind is not Kind.TEXT:
                values[name] = known[name].read(text)
        for parameter in self.parameters:
            if parameter.required and values[parameter.name] is None:
                raise InputError(f"{parameter.name} is missing", parameter=parameter.name)
        return values


def also_without_version(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return *operations*, and the same under ``/api/`` instead of ``/api/v1/``."""
    given = tuple(operations)
    return (
        *given,
        *(
            replace(
                each,
                path=each.path.replace("/api/v1/", "/api/", 1),
                name=f"{each.operation_id}_unversioned",
            )
            for each in given
        ),
    )
