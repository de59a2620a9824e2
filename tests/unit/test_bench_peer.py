"""That the peer of the benchmarks says what it lacks, and is installed once; not the peer itself."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

_INSTALL = Path(__file__).parents[2] / "benchmarks" / "peer_install.py"

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the peer is measured on Linux only",
)


def test_without_node_the_command_says_so_and_makes_nothing(tmp_path: Path) -> None:
    done = _install(tmp_path / "peer", path=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith("error: the peer needs Node and npm")
    assert "hint: " in done.stderr
    assert not (tmp_path / "peer").exists()


def test_what_is_installed_needs_no_npm_again(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    (folder / "installed").touch()

    done = _install(folder, path=tmp_path)

    assert (done.returncode, done.stdout) == (0, f"the peer is in {folder}\n")


def _install(folder: Path, *, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_INSTALL)],
        env={"PATH": str(path), "MDM_BENCH_PEER_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
