"""Who is asking: a user, a service or an API key, with the names that permissions may know it by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class PrincipalKind(StrEnum):
    USER = "user"
    APIKEY = "apikey"
    SERVICE = "service"


@dataclass(frozen=True, kw_only=True)
class Principal:
    kind: PrincipalKind
    name: str
    groups: tuple[str, ...] = ()
    is_global_admin: bool = False

    @cached_property
    def actor(self) -> str:
        """How deployments, rows and events name this principal: ``apikey:price-import``."""
        return f"{self.kind.value}:{self.name}"

    @property
    def me(self) -> str:
        """What ``me()`` in a filter is: a user's own name; else with the kind before it.

        Without the kind, an API key named like a person would see that person's rows.
        """
        return self.name if self.kind is PrincipalKind.USER else self.actor

    @cached_property
    def identities(self) -> frozenset[str]:
        """The spellings under which permissions can name this principal or one of its groups.

        Without a prefix a permission means a user or a group, never a key or a service.
        """
        names = {self.actor}
        if self.kind is PrincipalKind.USER and self.name:
            names.add(self.name)
        for group in self.groups:
            names |= {group, f"group:{group}"}
        return frozenset(names)


def principal_named(
    text: str, *, groups: Iterable[str] = (), is_global_admin: bool = False
) -> Principal:
    """Return the principal that a permission spells *text*: ``ana``, ``user:ana``, ``apikey:shop``.

    ``group:dach`` is somebody without a name of their own who is in that group.
    """
    prefix, colon, rest = text.partition(":")
    names = tuple(groups)
    if colon and prefix == "group":
        return Principal(
            kind=PrincipalKind.USER,
            name="",
            groups=(rest, *(name for name in names if name != rest)),
            is_global_admin=is_global_admin,
        )
    is_kind = colon and prefix in (kind.value for kind in PrincipalKind)
    return Principal(
        kind=PrincipalKind(prefix) if is_kind else PrincipalKind.USER,
        name=rest if is_kind else text,
        groups=names,
        is_global_admin=is_global_admin,
    )
