"""The README shows what the tool prints: the same edit of the same example gives the same plan.

Only what differs from run to run is levelled: the commit, the live state, and sizes on disk.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.processes import mdm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLAN = re.compile(r"```text\n(customer-hub @ .*?\n)```", re.DOTALL)

# Somebody has entered three products by hand, with currencies that the new rule does not know.
BY_HAND = """
INSERT INTO mdm_data.product (_sys_id, sku, name, category, currency, _sys_created_at,
    _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
SELECT ('019a0000-0000-7000-8000-00000000000' || n)::uuid, 'KI-9000' || n, 'Sample ' || n,
       'KITC-COFF', currency, '2026-01-01', 'user:dana', '2026-01-01', 'user:dana'
  FROM (VALUES (1, 'CHF'), (2, 'CHF'), (3, 'SEK')) AS r (n, currency)
"""
CORRECTED = "UPDATE mdm_data.product SET currency = 'EUR' WHERE currency IN ('CHF', 'SEK')"
# What must be the same again after the commit was reverted.
ROWS = """
SELECT md5(string_agg(concat_ws('|', sku, currency, weight_g, discontinued_on), ';' ORDER BY sku))
       || (SELECT md5(string_agg(concat_ws('|', customer_number, phone), ';' ORDER BY _sys_id))
             FROM mdm_data.customer)
  FROM mdm_data.product
"""
IBERIA = (
    '{"code": "IBERIA", "name": "Spain and Portugal", "area": "EMEA",'
    ' "manager": "ada@example.com", "steward_group": "stewards-emea"},\n'
)
# path -> (what to look for, what to put there)
EDITS = {
    "entities/customer/customer.yaml": (
        (
            "  - name: phone\n    display",
            "  - name: telephone\n    renamedFrom: phone\n    display",
        ),
        ("    - name: phone\n", "    - name: telephone\n"),
    ),
    "entities/product/product.yaml": (
        ("    dataType: long\n", "    dataType: int\n"),
        ("    default: EUR\n", "    default: EUR\n    allowedValues: [EUR, GBP, JPY, USD]\n"),
        ("  - name: discontinued_on\n(    .*\n)+", ""),
        ("columns: \\[sku, list_price", "columns: [sku, name, list_price"),
    ),
    "seed/customer.json": (('"phone": ', '"telephone": '),),
    "seed/product.json": ((', "discontinued_on": "[^"]*"', ""),),
    "seed/sales_region.json": (
        ('{"code": "LATAM"', IBERIA + '{"code": "LATAM"'),
        ('"North America"', '"United States and Canada"'),
    ),
    "permissions.yaml": (("    rowFilterDsl: \"\\[region\\].\\[area\\] = 'EMEA'\"\n", ""),),
    "webhooks.yaml": (("up to date\n    is_active: false", "up to date\n    is_active: true"),),
}


class Hub:
    """A copy of the example as a repository, and its warehouse."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root / "customer-hub", url
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT / "examples" / "customer-hub", self.root, ignore=ignored)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("Start from the example")

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def edit(self) -> None:
        for path, edits in EDITS.items():
            file = self.root / path
            text = file.read_text(encoding="utf-8")
            for old, new in edits:
                text, found = re.subn(old, new, text)
                assert found, f"{old!r} is not in {path}"
            file.write_text(text, encoding="utf-8")
        self.commit("Rename the telephone, tidy up products, add Iberia")

    def git(self, *arguments: str) -> None:
        options = ("-c", "user.name=test", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=0")
        subprocess.run(("git", *options, *arguments), cwd=self.root, check=True)

    def mdm(self, command: str, *options: str, code: int = 0) -> str:
        done = mdm(command, self.root, *options, code=code, Mdm__Database__Url=self.url)
        return done.stdout

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as conn:
            cursor = conn.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def levelled(plan: str) -> str:
    plan = re.sub(r"^customer-hub @ \w{7}, warehouse \w{8}\n", "customer-hub @ _\n", plan)
    return re.sub(r"\(\d[\d.]* [kM]B\)", "(_ kB)", plan)


@pytest.fixture
def hub(tmp_path: Path, database_url: str) -> Hub:
    return Hub(tmp_path, database_url)


def test_the_plan_in_the_readme(hub: Hub) -> None:
    shown = PLAN.search(README)
    assert shown is not None
    hub.mdm("apply", "--auto-approve", "--allow", "WIDENS_ACCESS:*")
    hub.sql(BY_HAND)
    hub.edit()
    told = hub.mdm("plan", "--detailed-exitcode", code=3)
    assert levelled(told) == levelled(shown[1])


def test_the_options_that_the_plan_prints_let_it_in_and_git_revert_undoes_it(hub: Hub) -> None:
    hub.mdm("apply", "--auto-approve", "--allow", "WIDENS_ACCESS:*")
    hub.sql(BY_HAND)
    hub.sql(CORRECTED)
    before = hub.sql(ROWS)
    for change in (hub.edit, lambda: hub.git("revert", "--no-edit", "HEAD")):
        change()
        flags = re.findall(r"^  --allow (\S+)", hub.mdm("plan"), re.MULTILINE)
        assert flags
        hub.mdm("apply", "--auto-approve", *(part for flag in flags for part in ("--allow", flag)))
        assert "nothing to do" in hub.mdm("plan", "--detailed-exitcode")
    assert hub.sql(ROWS) == before
