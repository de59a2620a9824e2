"""The process in which one scan for duplicates is carried out: it computes for seconds, a server must not.

``mdm_api.scanning`` starts it with ``python -m mdm_api.scan_process SCAN``; where the store is, its
environment says. Its standard input is a pipe whose other end the server holds, so that it ends with the
server, however that ended. Exit code: 0 when the scan has ended, as its row says; 3 when it was refused,
with the reason on the standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import Final
from uuid import UUID

from mdm_gitops.errors import MdmError
from mdm_gitops.warehouse.connect import SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas

URL_VARIABLE: Final = "MDM_SCAN_DATABASE_URL"
CONFIG_VARIABLE: Final = "MDM_SCAN_CONFIG_SCHEMA"
DATA_VARIABLE: Final = "MDM_SCAN_DATA_SCHEMA"
ROWS_VARIABLE: Final = "MDM_SCAN_MAX_ROWS"
REFUSED: Final = 3
# Rows are read for as long as it takes; the snapshot is given back before they are compared.
_LIMITS: Final = SessionLimits(statement_timeout_s=900.0, idle_in_transaction_timeout_s=300.0)


def main() -> int:
    # The server reads the names above; what scans takes 5 MB, which it does not need.
    from mdm_gitops.data.scan_run import Cancelled

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        asyncio.run(_scan(UUID(sys.argv[1])))
    except Cancelled:
        pass
    except MdmError as error:
        sys.stdout.write(str(error))
        return REFUSED
    return 0


def _end_with_parent() -> None:
    # Not the stream of Python, whose lock would keep the interpreter from ending.
    while os.read(0, 1):
        pass
    os._exit(1)


async def _scan(scan_id: UUID) -> None:
    from mdm_gitops.data.scan_run import run_scan

    url = os.environ[URL_VARIABLE]
    schemas = Schemas(config=os.environ[CONFIG_VARIABLE], data=os.environ[DATA_VARIABLE])
    name = "mdm-gitops scan"
    async with (
        await connect(url, application_name=name, limits=_LIMITS) as reading,
        await connect(url, application_name=name, limits=_LIMITS) as telling,
    ):
        await run_scan(
            reading,
            telling,
            schemas=schemas,
            scan_id=scan_id,
            max_rows=int(os.environ[ROWS_VARIABLE]),
        )


if __name__ == "__main__":
    sys.exit(main())
