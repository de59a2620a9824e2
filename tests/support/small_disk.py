"""A small file system that can be filled to the last byte, and freed again. Needs the right to mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = bytes(65_536)
_AGAIN_S: Final = 0.02


def why_not() -> str:
    """Return why there can be none here, "" where there can."""
    if os.geteuid() != 0:
        return "only root mounts file systems"
    with tempfile.TemporaryDirectory() as folder:
        done = _mount(Path(folder), megabytes=1)
        if done.returncode:
            return f"no file system of its own: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


class SmallDisk:
    """``with SmallDisk(megabytes=160) as disk``: mounted at ``disk.folder``."""

    def __init__(self, *, megabytes: int) -> None:
        self._megabytes = megabytes
        self._stop = threading.Event()
        self._filling: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="mdm-disk-"))
        done = _mount(self.folder, megabytes=self._megabytes)
        assert done.returncode == 0, done.stderr
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        self.folder.rmdir()

    def fill(self) -> None:
        """Take all room, and what becomes free from now on."""
        self._stop.clear()
        self._filling = threading.Thread(target=self._keep_full, daemon=True)
        self._fill_once()
        self._filling.start()

    def free(self) -> None:
        if self._filling is not None:
            self._stop.set()
            self._filling.join()
            self._filling = None
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def _keep_full(self) -> None:
        while not self._stop.wait(_AGAIN_S):
            self._fill_once()

    def _fill_once(self) -> None:
        # Unbuffered: what is left of a chunk at the end is written in part.
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as ballast:
            while ballast.write(_CHUNK):
                pass


def _mount(folder: Path, *, megabytes: int) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "none", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
