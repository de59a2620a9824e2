"""What all definition values share: frozen, closed, camelCase outside and snake_case inside."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from mdm_gitops.model.values import canonical_json

# Which fields were given, kept once for all values of which the same ones were: of a warehouse of
# 15,000 columns a set for each takes 10 MB.
_GIVEN: Final[dict[frozenset[str], set[str]]] = {}


class Definition(BaseModel):
    """A part of a definition file. Built from parsed YAML with ``model_validate``; then valid.

    Strict: text is text and a number is a number. YAML has already decided which one it is, and
    turning ``version: 1.10`` into ``"1.1"`` in silence loses what the author meant.

    Of a part only what reads the whole is built; what is read by itself says ``defer_build=False``,
    since not every version of pydantic lets two threads build the same.
    """

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def model_post_init(self, context: Any, /) -> None:
        given = self.model_fields_set
        shared = _GIVEN.setdefault(frozenset(given), given)
        object.__setattr__(self, "__pydantic_fields_set__", shared)

    def to_document(self) -> dict[str, Any]:
        """Return the value as a file would hold it: interface spellings, defaults left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def content_hash(self) -> str:
        """SHA-256 of the canonical document: equal for equal meaning, whatever the file's form."""
        return self.digest

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(canonical_json(self.to_document()).encode()).hexdigest()

    def __copy__(self) -> Self:
        """Return a copy without what was worked out of the values: it is about to get others."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied
