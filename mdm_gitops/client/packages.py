"""Packages: definitions of one server as an archive, deployed on another."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from mdm_gitops.client.paths import path
from mdm_gitops.client.transport import Answer
from mdm_gitops.client.values import Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Packages:
    def __init__(self, client: Client) -> None:
        self._client = client

    def export(
        self,
        entities: Sequence[str] = (),
        *,
        dependencies: bool = True,
        permissions: bool = False,
        webhooks: bool = False,
        seed: bool = False,
        version: str | None = None,
    ) -> AbstractAsyncContextManager[Answer]:
        """Return a context with the archive; no *entities* means all."""
        asked = {
            "entityNames": [*entities],
            "autoIncludeDependencies": dependencies,
            "includePermissions": permissions,
            "includeWebhooks": webhooks,
            "includeSeed": seed,
            "version": version,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return self._client.opened("POST", path("/packages/export"), json=given, is_long=True)

    async def deploy(
        self,
        content: Callable[[], AsyncIterable[bytes]],
        *,
        size: int | None = None,
        name: str = "package.zip",
        overwrite_existing: bool = False,
        import_permissions: bool = False,
        import_webhooks: bool = False,
        import_seed: bool = False,
        allow: Sequence[str] = (),
    ) -> Json:
        """Deploy the archive that *content* yields, all of it or nothing."""
        boundary = secrets.token_hex(16)
        head, tail = _around(name, boundary)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        if size is not None:
            headers["Content-Length"] = str(len(head) + size + len(tail))
        answer = await self._client.request(
            "POST",
            path("/packages/deploy"),
            query={
                "overwriteExisting": overwrite_existing,
                "importPermissions": import_permissions,
                "importWebhooks": import_webhooks,
                "importSeed": import_seed,
                "allow": allow or None,
            },
            body=lambda: _form(head, content(), tail),
            headers=headers,
            is_long=True,
        )
        return dict(answer)


def _around(name: str, boundary: str) -> tuple[bytes, bytes]:
    """Return what stands before and after the one file of a form."""
    safe = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in name)
    head = (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{ascii(safe)[1:-1]}"\r\n'
        "Content-Type: application/zip\r\n\r\n"
    )
    return head.encode(), f"\r\n--{boundary}--\r\n".encode()


async def _form(head: bytes, content: AsyncIterable[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    async for chunk in content:
        yield chunk
    yield tail
