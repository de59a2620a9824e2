"""The prose holds: links lead somewhere, every key is told, YAML in it is YAML that we accept.

So do the commands with their options, the names of settings, and the tables of codes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from mdm_gitops.cli import main as program
from mdm_gitops.model import ChangeClass, Entity, Permissions, Project, Webhooks
from mdm_gitops.model.access import PermissionItem, Webhook
from mdm_gitops.model.access_tests import AccessTest, AccessTests, Expectation
from mdm_gitops.model.base import Definition
from mdm_gitops.model.checks import check_entity
from mdm_gitops.model.entity import (
    Access,
    Column,
    ColumnUi,
    Consumption,
    ConsumptionView,
    Lifecycle,
    Reference,
    Search,
    SeedOptions,
    Similarity,
    SimilarityColumn,
    SortColumn,
    Survivorship,
    SurvivorshipColumn,
    SurvivorshipSources,
    UniqueConstraint,
)
from mdm_gitops.model.project import (
    CommittedAllowance,
    Domain,
    Environment,
    ModeOverride,
    Policy,
    Reconcile,
    SyncWindow,
    WebhookOverlay,
)
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.plan import HazardCode, RefusalCode
from mdm_gitops.settings import setting_names

ROOT = Path(__file__).parents[2]
PAGES = sorted(chain(ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("examples/**/*.md")))

ENTITY_PAGE = "docs/reference/entity-yaml.md"
LAYOUT_PAGE = "docs/reference/repository-layout.md"
PAGE_OF: dict[type[Definition], str] = {
    Entity: ENTITY_PAGE,
    Column: ENTITY_PAGE,
    Access: ENTITY_PAGE,
    ColumnUi: ENTITY_PAGE,
    Consumption: ENTITY_PAGE,
    ConsumptionView: ENTITY_PAGE,
    Lifecycle: ENTITY_PAGE,
    Reference: ENTITY_PAGE,
    SeedOptions: ENTITY_PAGE,
    Search: ENTITY_PAGE,
    Similarity: ENTITY_PAGE,
    SimilarityColumn: ENTITY_PAGE,
    SortColumn: ENTITY_PAGE,
    Survivorship: ENTITY_PAGE,
    SurvivorshipColumn: ENTITY_PAGE,
    SurvivorshipSources: ENTITY_PAGE,
    UniqueConstraint: ENTITY_PAGE,
    Project: LAYOUT_PAGE,
    Domain: LAYOUT_PAGE,
    Policy: LAYOUT_PAGE,
    CommittedAllowance: LAYOUT_PAGE,
    Reconcile: LAYOUT_PAGE,
    ModeOverride: LAYOUT_PAGE,
    SyncWindow: LAYOUT_PAGE,
    Environment: LAYOUT_PAGE,
    WebhookOverlay: LAYOUT_PAGE,
    Permissions: LAYOUT_PAGE,
    PermissionItem: LAYOUT_PAGE,
    Webhooks: LAYOUT_PAGE,
    Webhook: LAYOUT_PAGE,
    AccessTests: LAYOUT_PAGE,
    AccessTest: LAYOUT_PAGE,
    Expectation: LAYOUT_PAGE,
}
# A YAML block whose first line is a comment with a path is a whole file of that kind.
KIND_OF_FILE: dict[str, type[Definition]] = {
    "mdm.yaml": Project,
    "permissions.yaml": Permissions,
    "webhooks.yaml": Webhooks,
    "access-tests.yaml": AccessTests,
}
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Return the page without its blocks of code, where a bracket is no link."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchor_of(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def broken_links(page: Path) -> Iterator[str]:
    for match in LINK.finditer(prose(page)):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aimed = (page.parent / path).resolve() if path else page
        if not aimed.exists():
            yield f"{target} is not there"
        elif anchor:
            anchors = {anchor_of(each["text"]) for each in HEADING.finditer(prose(aimed))}
            if anchor not in anchors:
                yield f"{target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](other.md) [b](#a-title) [c](#b-title) [d](https://x.invalid)\n")
    assert list(broken_links(page)) == [
        "other.md is not there",
        "#b-title has no such heading",
    ]


NAMED_TEST = re.compile(r"`(?P<module>test_\w+)::(?P<name>test_\w+)`")
TABLE_ROW = re.compile(r"(?m)^\| (?!tried |---).*$")


def test_each_threat_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "concepts" / "security.md").read_text("utf-8")
    rows = TABLE_ROW.findall(text)
    assert len(rows) >= 35
    assert [row for row in rows if not NAMED_TEST.search(row)] == []
    modules = {path.stem: path.read_text("utf-8") for path in ROOT.glob("tests/*/test_*.py")}
    named = [(match["module"], match["name"]) for match in NAMED_TEST.finditer(text)]
    missing = [
        f"{module}::{name}"
        for module, name in named
        if not re.search(rf"(?m)^ *(async )?def {name}\(", modules.get(module, ""))
    ]
    assert missing == []


def test_each_page_of_docs_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached: set[Path] = set()
    waiting = [index]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = (match["target"].partition("#")[0] for match in LINK.finditer(prose(page)))
        waiting += [(page.parent / target).resolve() for target in targets if target]
    assert set(ROOT.glob("docs/**/*.md")) - reached == set()


@pytest.mark.parametrize("shape", PAGE_OF, ids=lambda shape: shape.__name__)
def test_each_key_is_told(shape: type[Definition]) -> None:
    text = (ROOT / PAGE_OF[shape]).read_text("utf-8")
    keys = {field.alias or name for name, field in shape.model_fields.items()}
    missing = {key for key in keys if f"`{key}`" not in text and f"\n{key}:" not in text}
    assert missing == set()


def test_each_shape_has_a_page() -> None:
    def below(shape: type[Definition]) -> Iterator[type[Definition]]:
        for child in shape.__subclasses__():
            yield child
            yield from below(child)

    of_files = {shape for shape in below(Definition) if shape.__module__ in MODULES_OF_FILES}
    assert of_files == set(PAGE_OF)


MODULES_OF_FILES = {
    "mdm_gitops.model.entity",
    "mdm_gitops.model.access",
    "mdm_gitops.model.access_tests",
    "mdm_gitops.model.project",
}


def yaml_blocks() -> list[tuple[str, str]]:
    return [
        (f"{name_of(page)}:{number}", match["body"])
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text("utf-8")))
        if match["info"].split(" ")[0] == "yaml"
    ]


@pytest.mark.parametrize(("place", "body"), yaml_blocks(), ids=[p for p, _ in yaml_blocks()])
def test_yaml_in_the_docs_is_accepted(place: str, body: str) -> None:
    document: Any = yaml.safe_load(body)
    first_line = body.partition("\n")[0]
    file = re.fullmatch(r"# ([a-z_/-]+\.yaml)", first_line)
    if file is None:
        fragment = (
            document["columns"]
            if isinstance(document, dict) and "columns" in document
            else document
        )
        for item in fragment if isinstance(fragment, list) else []:
            Column.model_validate(item)
        return
    kind = Entity if file[1].startswith("entities/") else KIND_OF_FILE[file[1]]
    definition = kind.model_validate(document)
    if isinstance(definition, Entity):
        assert list(check_entity(definition)) == []


# --- commands -------------------------------------------------------------------------------------


def commands_told(text: str) -> list[str]:
    """Return the lines that a reader would type."""
    lines = (line for block in FENCE.finditer(text) for line in block["body"].splitlines())
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def wrong_in(command: str) -> str:
    """Return what does not exist of *command*; empty when all of it does."""
    words = [w for w in shlex.split(command, comments=True) if not re.match(r"[A-Za-z_]+=", w)]
    name = words[0].rpartition("/")[2]
    if name == "make" and len(words) > 1:
        return "" if re.search(rf"^{words[1]}:", MAKEFILE, re.MULTILINE) else words[1]
    if name != "mdm-gitops":
        return ""
    given = words[1 : words.index("--")] if "--" in words else words[1:]
    node: click.Command = program
    for word in given:
        if word.startswith("-"):
            option = word.partition("=")[0]
            if all(option not in parameter.opts for parameter in node.params):
                return f"{option} of {node.name}"
        elif isinstance(node, click.Group):
            found = node.get_command(click.Context(node), word)
            if found is None:
                return word
            node = found
    return ""


MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_command_exists_with_its_options(page: Path) -> None:
    told = commands_told(page.read_text("utf-8"))
    assert [(command, wrong_in(command)) for command in told if wrong_in(command)] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("mdm-gitops plan --explain my-data", ""),
        ("mdm-gitops plan --explian", "--explian of plan"),
        ("mdm-gitops db psql -- --nonsense", ""),
        ("mdm-gitops db pslq", "pslq"),
        ("Mdm__Database__Url=x mdm-gitops aply  # a comment", "aply"),
        ("make tset", "tset"),
        ("git frobnicate", ""),
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, wrong: str) -> None:
    assert wrong_in(command) == wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_setting_exists(page: Path) -> None:
    told = set(re.findall(r"\bMdm__\w*[A-Za-z]\b", page.read_text("utf-8")))
    sections = {name.rpartition("__")[0] for name in setting_names()}
    assert told - set(setting_names()) - sections == set()


# --- tables of codes ------------------------------------------------------------------------------


def first_cells(heading: str) -> set[str]:
    """Return the code words in the first column of the first table under *heading*."""
    page = (ROOT / "docs" / "concepts" / "plan-and-apply.md").read_text("utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]
    return {word for cell in rows for word in re.findall(r"[\w-]+", cell)}


@pytest.mark.parametrize(
    ("heading", "codes"),
    [
        ("Classes", set(ChangeClass)),
        ("Hazards", set(HazardCode)),
        ("Refusals", set(RefusalCode)),
        ("Phases", set(Phase)),
    ],
)
def test_each_code_is_told_and_no_other(heading: str, codes: set[str]) -> None:
    assert first_cells(heading) == {str(code) for code in codes}
