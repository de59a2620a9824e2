"""A repository of definitions on disk, small enough to be read in a test, and edits of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = """\
name: small
apiVersion: mdm-gitops/v1
domains:
  - name: core
policy:
  autoApply: [safe, data-dependent]
"""
COUNTRY = """\
name: country
domain: core
keyColumns: [code]
columns:
  - name: code
    dataType: string
    nullable: false
  - name: name
    dataType: string
"""
PERMISSIONS = """\
permissions:
  - users: [group:readers]
    domains: [core]
    entities: []
    actions: [read]
"""
ROWS = ({"code": "CH", "name": "Switzerland"}, {"code": "DE", "name": "Germany"})


class SmallRepository:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.country = root / "entities" / "country.yaml"
        self.write("mdm.yaml", PROJECT)
        self.write("entities/country.yaml", COUNTRY)
        self.write("permissions.yaml", PERMISSIONS)
        self.seed(ROWS)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def seed(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.write("seed/country.json", json.dumps(rows))

    def edit(self, old: str, new: str, path: str = "entities/country.yaml") -> None:
        text = (self.root / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} is in {path} {text.count(old)} times"
        self.write(path, text.replace(old, new))

    def add_column(self, name: str, *rest: str) -> None:
        lines = [f"  - name: {name}", "    dataType: string", *(f"    {line}" for line in rest)]
        text = self.country.read_text(encoding="utf-8")
        self.write("entities/country.yaml", text + "\n".join(lines) + "\n")

    def remove_last_column(self) -> None:
        text = self.country.read_text(encoding="utf-8")
        self.write("entities/country.yaml", text[: text.rindex("  - name:")])

    def commit(self, message: str = "change") -> str:
        """Commit everything, making it a repository first where it is none; return the hash."""
        if not (self.root / ".git").exists():
            self._git("init", "--quiet", "--initial-branch=main")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", message)
        return self._git("rev-parse", "HEAD").strip()

    def files(self) -> list[str]:
        """Return the files of the last commit."""
        return self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines()

    def _git(self, *arguments: str) -> str:
        options = ("-c", "user.name=test", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=0")
        done = subprocess.run(
            ("git", *options, *arguments), cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout
