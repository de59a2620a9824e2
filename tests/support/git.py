"""Git as a person would call it, whatever the account says of names and signatures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Run git in *folder*, with more *variables* of the environment; return what it prints."""
    options = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(
        ("git", *options, "-c", "commit.gpgsign=false", *arguments),
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    return done.stdout.strip()
