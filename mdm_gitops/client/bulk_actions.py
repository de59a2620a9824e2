"""Many rows changed or deleted at once: looked at first, then done to exactly these rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdm_gitops.client.paths import path
from mdm_gitops.client.problems import problem_of
from mdm_gitops.client.values import Json
from mdm_gitops.errors import InputError, MdmError

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client
    from mdm_gitops.client.transport import Answer

_LINES: Final = {"Accept": "application/x-ndjson"}
_MAX_LINE: Final = 16_777_216


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPreview:
    """What a bulk action would do; only the one with *token* does it to these rows."""

    match_count: int
    not_allowed: int
    sample: tuple[Json, ...]
    token: str


class BulkActions:
    """Bulk actions on rows of *entity*."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str) -> str:
        return path("/entities/{entity}/data/bulk-action" + rest, entity=self._entity)

    async def preview(self, action: Mapping[str, Any]) -> BulkPreview:
        """Look at *action*: the ``BulkAction`` of docs/reference/rest-api.md."""
        found = await self._client.request("POST", self._path("/preview"), json=dict(action))
        return BulkPreview(
            match_count=found["matchCount"],
            not_allowed=found["notAllowed"],
            sample=tuple(found["sample"]),
            token=found["previewToken"],
        )

    async def execute(
        self,
        action: Mapping[str, Any],
        token: str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Json:
        """Do *action* as it was looked at; *progress* is told how many of how many are done.

        Raises:
            ApiError: ``BULK_ACTION_STALE``, the rows are not those of the preview any more.
        """
        asked = {**action, "previewToken": token}
        opened = self._client.opened(
            "POST", self._path("/execute"), json=asked, headers=_LINES, is_long=True
        )
        async with opened as answer:
            async for line in _lines(answer):
                if "result" in line:
                    return dict(line["result"])
                if "problem" in line:
                    problem = line["problem"]
                    raise problem_of(problem["status"], json.dumps(problem).encode())
                if progress is not None:
                    progress(line["progress"]["done"], line["progress"]["of"])
        raise MdmError("the answer ended before its result", code="INTERRUPTED")


async def _lines(answer: Answer) -> AsyncIterator[Json]:
    rest = b""
    async for chunk in answer.chunks():
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise InputError("a line of the answer has no end")
        for line in whole:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        yield json.loads(rest)
