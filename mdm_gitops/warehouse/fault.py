"""Named points at which a test can kill the process, to prove that the next run converges.

Does nothing unless ``MDM_FAULT_AT`` names the point; then the process dies as by kill -9, with no
chance to tidy up.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "MDM_FAULT_AT"


def reach(point: str) -> None:
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
