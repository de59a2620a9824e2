"""Named points at which a test can kill the process, to prove that the next run converges.

Does nothing unless ``MDM_FAULT_AT`` names the point (``flip#3``: when it is reached for the third
time); then the process dies as by kill -9, with no chance to tidy up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "MDM_FAULT_AT"

_reached: Final[Counter[str]] = Counter()


def reach(point: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _reached[point] += 1
    name, _, time = wanted.partition("#")
    if point == name and _reached[point] >= int(time or 1):
        os.kill(os.getpid(), signal.SIGKILL)
