"""The process that drops scratch databases when the one that made them is gone without doing so.

Its parent writes one line of JSON, the address and the names, and ``done`` at the end. The pipe
closes however the parent ends; without ``done`` the databases are dropped. The address comes by the
pipe because the list of processes is for everybody to read.
"""

from __future__ import annotations

import json
import sys


async def _drop(url: str, names: list[str]) -> None:
    # Loaded when they are needed, which is hardly ever: everybody waits for this process to end.
    from mdm_gitops.warehouse.connect import connect
    from mdm_gitops.warehouse.scratch import drop_all

    async with await connect(url, application_name="mdm-gitops scratch keeper") as admin:
        await drop_all(admin, names)


def main() -> None:
    task = sys.stdin.readline()
    ended = sys.stdin.readline()
    if task.endswith("\n") and ended != "done\n":
        import asyncio

        given = json.loads(task)
        asyncio.run(_drop(given["url"], given["names"]))


if __name__ == "__main__":
    main()
