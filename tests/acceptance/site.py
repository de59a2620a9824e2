"""A server with a few entities, and a person's terminal in front of it: what the tests share that
run commands against a server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.processes import KEY, environment
from tests.support import program
from tests.support.providers import Provider

PROJECT = """name: lab
apiVersion: mdm-gitops/v1
domains: [{name: ref}, {name: sales}]
"""
COUNTRY = """name: country
domain: ref
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, maxLength: 2, nullable: false}
  - {name: name, dataType: string, autocomplete: true}
  - {name: people, dataType: int, minValue: 0}
"""
CUSTOMER = """name: customer
domain: sales
approvalRequired: true
allowSameAuthorApproval: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: country, dataType: string, reference: {entity: country}}
"""
PLACE = """name: place
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: name, dataType: string}
similarity:
  columns: [{name: name, matchMode: fuzzy}]
"""
PERMISSIONS = "permissions:\n  - {users: [root], domains: ['*'], actions: [admin]}\n"
FILES = {
    "mdm.yaml": PROJECT,
    "entities/country.yaml": COUNTRY,
    "entities/customer.yaml": CUSTOMER,
    "entities/place.yaml": PLACE,
    "permissions.yaml": PERMISSIONS,
}


@dataclass(frozen=True)
class Shell:
    """A person's terminal, or a job's: a folder, variables, and what commands answer."""

    folder: Path
    url: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, *arguments: str | Path, code: int = 0, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**self.variables, **variables}
        done = program.run(*arguments, env=environment(**variables), cwd=self.folder, stdin=stdin)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str | Path, code: int = 0, **more: Any) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **more).stdout)

    def lines(self, *arguments: str | Path, **more: Any) -> list[list[str]]:
        """Return what is printed where there is no terminal: cells with tabs between them."""
        return [line.split("\t") for line in self(*arguments, **more).stdout.splitlines()]

    def put(self, entity: str, **values: Any) -> dict[str, Any]:
        """Create a row without a command: what a test begins with."""
        answer = httpx2.post(
            f"{self.url}/api/v1/entities/{entity}/data",
            json=values,
            headers={"X-API-Key": KEY},
            verify=False,
        )
        assert answer.status_code in (201, 202), answer.text
        row: dict[str, Any] = answer.json()
        return row

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@dataclass(frozen=True)
class Site:
    url: str
    database_url: str
    provider: Provider
