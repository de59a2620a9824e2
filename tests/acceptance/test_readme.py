"""The READMEs show what the tool prints: the same edit of the same example gives the same answer.

In the plan of the project's README only what differs from run to run is levelled: the commit, the
live state, and sizes on disk. Of the examples' READMEs each suggested change is made.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
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
# path -> (what to look for, what to put there) ...; none: the file is removed
Edits = Mapping[str, tuple[tuple[str, str], ...]]
EDITS: Edits = {
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


class Copy:
    """A copy of an example as a repository, and its warehouse."""

    def __init__(self, example: str, root: Path, url: str) -> None:
        self.root, self.url = root / example, url
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT / "examples" / example, self.root, ignore=ignored)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("Start from the example")

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def edit(self, edits: Edits) -> None:
        for path, pairs in edits.items():
            file = self.root / path
            if not pairs:
                file.unlink()
                continue
            text = file.read_text(encoding="utf-8")
            for old, new in pairs:
                text, found = re.subn(old, new, text)
                assert found, f"{old!r} is not in {path}"
            file.write_text(text, encoding="utf-8")

    def apply(self) -> None:
        self.mdm("apply", "--auto-approve", "--allow", "WIDENS_ACCESS:*")

    def git(self, *arguments: str) -> None:
        options = ("-c", "user.name=test", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=0")
        subprocess.run(("git", *options, *arguments), cwd=self.root, check=True)

    def mdm(self, command: str, *options: str, code: int = 0) -> str:
        """Return what the command prints; its output tells all, its talk is left out."""
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
def hub(tmp_path: Path, database_url: str) -> Copy:
    copy = Copy("customer-hub", tmp_path, database_url)
    copy.apply()
    return copy


def test_the_plan_in_the_readme(hub: Copy) -> None:
    shown = PLAN.search(README)
    assert shown is not None
    hub.sql(BY_HAND)
    hub.edit(EDITS)
    hub.commit("Rename the telephone, tidy up products, add Iberia")
    told = hub.mdm("plan", "--detailed-exitcode", code=3)
    assert levelled(told) == levelled(shown[1])


def test_the_options_that_the_plan_prints_let_it_in_and_git_revert_undoes_it(hub: Copy) -> None:
    hub.sql(BY_HAND)
    hub.sql(CORRECTED)
    before = hub.sql(ROWS)
    hub.edit(EDITS)
    hub.commit("Rename the telephone, tidy up products, add Iberia")
    for step in ("apply", "revert"):
        if step == "revert":
            hub.git("revert", "--no-edit", "HEAD")
        flags = re.findall(r"^  --allow (\S+)", hub.mdm("plan"), re.MULTILINE)
        assert flags
        hub.mdm("apply", "--auto-approve", *(part for flag in flags for part in ("--allow", flag)))
        assert "nothing to do" in hub.mdm("plan", "--detailed-exitcode")
    assert hub.sql(ROWS) == before


# what the example's README suggests -> edits, the command, its exit code, what it must tell
Case = tuple[Edits, str, int, tuple[str, ...]]
CUSTOMER_HUB: dict[str, Case] = {
    "`customer.email`: `nullable: false`": (
        {
            "entities/customer/customer.yaml": (
                ("    maxLength: 254\n    pattern", "    nullable: false\n    pattern"),
            )
        },
        "validate",
        1,
        ("seed/customer.json:", "email is missing, but required"),
    ),
    "`product.currency`: `allowedValues: [EUR, GBP, JPY, USD]`": (
        {"entities/product/product.yaml": (EDITS["entities/product/product.yaml"][1],)},
        "plan",
        3,
        ("BLOCKED: 3 rows hold none of the allowed values", "currency 'SEK'"),
    ),
    "`product.weight_g`: `dataType: int`": (
        {"entities/product/product.yaml": (EDITS["entities/product/product.yaml"][0],)},
        "plan",
        2,
        ("weight_g long → int", "kept as archive 1", "rewrites 403 rows"),
    ),
    "`customer.phone` renamed to `telephone`": (
        {path: EDITS[path] for path in ("entities/customer/customer.yaml", "seed/customer.json")},
        "plan",
        2,
        ("phone → telephone", "data kept"),
    ),
    "take the `rowFilterDsl` away from `group:sales-emea`": (
        {"permissions.yaml": EDITS["permissions.yaml"]},
        "plan",
        2,
        ("row filter removed", "security-widening", "--allow WIDENS_ACCESS:customer"),
    ),
    "`approvalRequired: true` on `product`": (
        {"entities/product/product.yaml": (("\nname: ", "\napprovalRequired: true\nname: "),)},
        "plan",
        2,
        ("~ product safe", "changes wait for an approver"),
    ),
    "Remove `entities/customer/customer_bank_account.yaml` and its seed": (
        {"entities/customer/customer_bank_account.yaml": (), "seed/customer_bank_account.json": ()},
        "validate",
        1,
        ("permissions.yaml:", "entity 'customer_bank_account' does not exist"),
    ),
}
REFERENCE_DATA: dict[str, Case] = {
    "Give `currency.name` the rule `unique: true`": (
        {"entities/currency.yaml": (("  - name: name\n", "  - name: name\n    unique: true\n"),)},
        "validate",
        1,
        ("seed/currency.json:", "is that of row 151 too"),
    ),
    'give `currency.name` the rule `pattern: "[A-Z].*"`': (
        {
            "entities/currency.yaml": (
                ("  - name: name\n", '  - name: name\n    pattern: "[A-Z].*"\n'),
            )
        },
        "plan",
        3,
        ("BLOCKED: 1 row does not match", "name 'euro'"),
    ),
    "Remove `flag` from `country` and from its seed": (
        {
            "entities/country.yaml": (("  - name: flag\n(    .*\n)+", ""),),
            "seed/country.json": ((', "flag": "[^"]*"', ""),),
        },
        "plan",
        2,
        ("flag", "kept as archive 1", "view reference.country "),
    ),
    "Remove `entities/country.yaml` and its seed": (
        {"entities/country.yaml": (), "seed/country.json": ()},
        "validate",
        1,
        ("entities/subdivision.yaml:", "webhooks.yaml:", "entity 'country' does not exist"),
    ),
    "Remove `subdivision` and the webhook too": (
        {
            "entities/country.yaml": (),
            "seed/country.json": (),
            "entities/subdivision.yaml": (),
            "seed/subdivision.json": (),
            "webhooks.yaml": (),
        },
        "plan",
        3,
        ("PREVENT_REMOVE entity country is protected", "PRUNE_CAP 2 of 4 entities"),
    ),
    "Change a `language` by hand": (
        {},
        "plan",
        2,
        ("~ language 7,923 rows: 1 changed (also where a person changed them)",),
    ),
}
EXAMPLES = {
    "customer-hub": (CUSTOMER_HUB, BY_HAND),
    "reference-data": (
        REFERENCE_DATA,
        """
        UPDATE mdm_data.currency SET name = lower(name) WHERE code = 'EUR';
        UPDATE mdm_data.language SET name = 'Tok', _sys_last_modified_by = 'user:dana'
         WHERE code = 'tok'
        """,
    ),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_change_that_an_example_suggests(
    example: str, tmp_path: Path, database_url: str
) -> None:
    readme = (ROOT / "examples" / example / "README.md").read_text(encoding="utf-8")
    suggested = " ".join(readme.split())
    copy = Copy(example, tmp_path, database_url)
    copy.apply()
    cases, by_hand = EXAMPLES[example]
    copy.sql(by_hand)
    for words, (edits, command, code, expected) in cases.items():
        assert words in suggested
        copy.edit(edits)
        options = ["--detailed-exitcode"] if command == "plan" else []
        told = copy.mdm(command, *options, code=code)
        flowing = " ".join(told.split())
        assert [text for text in expected if text not in flowing] == [], told
        copy.git("checkout", "--quiet", ".")
