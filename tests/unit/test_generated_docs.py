"""The generated pages say what the code says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mdm_gitops.settings import setting_names

ROOT = Path(__file__).parents[2]


def test_they_are_up_to_date() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_setting_is_told_with_a_meaning() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `Mdm__")]
    assert [row.split("`")[1] for row in rows] != []
    assert sorted(row.split("`")[1] for row in rows) == sorted(setting_names())
    assert all(len(row.rsplit("|", 2)[1].strip()) > 10 for row in rows)
