"""``access-tests.yaml`` as values: what somebody must, and must not, be able to see and do.

A test says who asks for what, and what has to come of it. It is judged with the very rules and row
filters that requests are judged with (``access.testing``, ``data.access_tests``); here is only its
shape.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from mdm_gitops.model.access import Action
from mdm_gitops.model.base import Definition
from mdm_gitops.model.entity import Scalar, Strings

ACCESS_TESTS_FILE: Final = "access-tests.yaml"
MAX_TESTS: Final = 2_000
MAX_KEYS: Final = 1_000
# The value of the key column, or all key columns by name.
Key = Scalar | dict[str, Scalar]
Keys = Annotated[tuple[Key, ...], Field(strict=False, max_length=MAX_KEYS)]


class Expectation(Definition):
    """What somebody who has the action reaches. What is left out is not looked at."""

    rows: Keys | None = None  # exactly these
    count: Annotated[int, Field(ge=0)] | None = None
    all: bool = False
    includes: Keys = ()
    excludes: Keys = ()
    masked: Strings = ()
    visible: Strings = ()

    @property
    def named_rows(self) -> tuple[Key, ...]:
        """All keys that the test speaks of, in the order they are written in."""
        return (*(self.rows or ()), *self.includes, *self.excludes)

    @property
    def asks_for_rows(self) -> bool:
        counted = self.rows is not None or self.count is not None or self.all
        return counted or bool(self.includes or self.excludes)


class AccessTest(Definition):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    principal: Annotated[str, Field(min_length=1, max_length=320)]
    groups: Strings = ()
    roles: Strings = ()
    entity: str
    action: Annotated[Action, Field(strict=False)] = Action.READ
    expect: Expectation | Literal["denied", "allowed"]


class AccessTests(Definition, defer_build=False):
    tests: Annotated[tuple[AccessTest, ...], Field(strict=False, max_length=MAX_TESTS)] = ()
