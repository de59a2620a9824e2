"""From a tree of files to ``Definitions``: the one way in, for folders, commits and packages.

Each file is read on its own, so that one broken file hides nothing of the others; then everything
is checked against everything, and all findings are raised at once. It is long because one class
holds what has been read so far: each check needs the files of the others, and may find any of them
missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, TypeVar

from mdm_gitops.errors import DefinitionError, Finding, InputError, Location
from mdm_gitops.model.access import PermissionItem, Permissions, Webhook, Webhooks
from mdm_gitops.model.access_checks import (
    check_environments,
    check_permissions,
    check_project,
    check_reconcile,
    check_webhooks,
)
from mdm_gitops.model.access_test_checks import check_access_tests
from mdm_gitops.model.access_tests import ACCESS_TESTS_FILE, AccessTests
from mdm_gitops.model.base import Definition
from mdm_gitops.model.checks import (
    DEFAULT_RESERVED_SCHEMAS,
    check_all_entities,
    check_between,
    check_entity,
)
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.known import Known
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Problem
from mdm_gitops.model.project import Project
from mdm_gitops.model.repository import Definitions, Seed
from mdm_gitops.model.seed_checks import check_names, check_rows, normalise_names
from mdm_gitops.source.crosscheck import check_row_filters
from mdm_gitops.source.documents import MORE_FINDINGS, RowsDocument, YamlDocument, findings_of
from mdm_gitops.source.git import GitTree, commit_of, resolve_revision
from mdm_gitops.source.limits import MAX_FILES, MAX_JSON_BYTES, MAX_YAML_BYTES
from mdm_gitops.source.tree import LOOKALIKES, Entry, FolderTree, MappingTree, Tree

Shape = TypeVar("Shape", bound=Definition)
_NOT_READ: Final[Mapping[str, Mapping[str, str]]] = {
    "entities": dict.fromkeys((".yml", ".json", ".YAML", ".YML"), ".yaml"),
    "seed": dict.fromkeys((".csv", ".yaml", ".yml", ".jsonl", ".ndjson", ".JSON"), ".json"),
}


def read_folder(
    root: Path, *, reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS
) -> Definitions:
    """Read the definitions in the folder *root*.

    ``commit`` is that of HEAD if *root* is the root of a Git work tree, with ``+dirty`` when a
    definition file differs from it, and None for a plain folder.

    Raises:
        DefinitionError: with all findings of all files.
    """
    tree = folder_tree(root)
    return read_tree(tree, commit=commit_of(tree.root), reserved_schemas=reserved_schemas)


def read_project(root: Path) -> Project:
    """Read mdm.yaml alone; what it says of other files is not looked at.

    Raises:
        DefinitionError: with all findings of that file.
    """
    document = YamlDocument("mdm.yaml", folder_tree(root).read("mdm.yaml"))
    project = document.as_model(Project, "project")
    problems = list(check_project(project))
    if problems:
        raise DefinitionError(findings_of(problems, document))
    return project


def folder_tree(root: Path) -> FolderTree:
    """Return the folder as a tree; raise InputError if it is none."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"{root} {what}", hint="give the folder that holds mdm.yaml")
    return FolderTree(root.resolve())


def read_revision(
    repo: Path, rev: str, *, reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS
) -> Definitions:
    """Read the definitions in commit *rev* of the repository at *repo*, without a checkout."""
    commit = resolve_revision(repo, rev)
    return read_tree(GitTree(repo, commit), commit=commit, reserved_schemas=reserved_schemas)


def parse_entity(
    text: str | bytes,
    path: str = "<body>",
    *,
    reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS,
) -> Entity:
    """Return the entity that *text* defines; what it refers to is not looked up.

    Raises:
        DefinitionError: with all findings; their locations name *path*.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    document = YamlDocument(path, data)
    entity = document.as_model(Entity, "entity")
    problems = list(check_entity(entity, reserved_schemas=reserved_schemas))
    if problems:
        raise DefinitionError(findings_of(problems, document))
    return entity


def check_entity_in(
    definitions: Definitions,
    text: str | bytes,
    path: str = "<body>",
    *,
    reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS,
) -> Entity:
    """Return the entity that *text* defines, if it fits among the others of *definitions*.

    It takes the place of the entity of its name. Raises DefinitionError like ``parse_entity``.
    """
    entity = parse_entity(text, path, reserved_schemas=reserved_schemas)
    entities = {**definitions.entities, entity.folded: entity}
    domains = tuple(domain.name for domain in definitions.project.domains)
    problems = list(check_between(entity, Known(entities=entities, domains=domains)))
    others = check_all_entities(sorted(entities.values(), key=lambda each: each is entity))
    problems += (problem for owner, problem in others if owner is entity)
    if problems:
        data = text.encode() if isinstance(text, str) else text
        raise DefinitionError(findings_of(problems, YamlDocument(path, data)))
    return entity


def read_tree(
    files: Mapping[str, bytes] | Tree,
    *,
    commit: str | None = None,
    reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS,
) -> Definitions:
    """Read the definitions in *files*; see ``read_folder``."""
    reading = _read(files, reserved_schemas)
    if reading.findings:
        raise DefinitionError(_sorted(reading.findings))
    return reading.definitions(commit)


def read_tree_leniently(
    files: Mapping[str, bytes] | Tree,
    *,
    commit: str | None = None,
    reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS,
) -> tuple[Definitions, tuple[Finding, ...]]:
    """Read what is sound of *files*: entities with findings, and all that needs them, are left out.

    An entity that is left out is not one that was removed: a caller that acts on the result must
    leave alone every entity, seed and permission that the findings speak of.

    Raises:
        DefinitionError: mdm.yaml, permissions.yaml or webhooks.yaml itself is wrong. These hold for
            all entities, and half of a set of permissions is a different set.
    """
    reading = _read(files, reserved_schemas)
    shared = [each for each in reading.findings if _holds_for_all(each.location.path)]
    if shared or reading.project is None:
        raise DefinitionError(_sorted(reading.findings))
    left_out = reading.leave_out_broken()
    return reading.definitions(commit), tuple(_sorted([*reading.findings, *left_out]))


def read_tree_over(
    files: Mapping[str, bytes] | Tree,
    deployed: Mapping[str, Entity],
    *,
    commit: str | None = None,
    reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS,
) -> tuple[Definitions, tuple[Finding, ...]]:
    """Read what is sound of *files*, and for the rest what is *deployed* (by folded name).

    So that one bad file holds up its own entity and no other: an entity with findings stays what it
    is, and while there are findings none is removed, because a broken file may be the new name of an
    old entity. Only an entity that is new and broken is not there at all.

    Raises:
        DefinitionError: mdm.yaml, permissions.yaml or webhooks.yaml is wrong, or the sound files do
            not go with what is deployed.
    """
    reading = _read(files, reserved_schemas)
    if not reading.findings:
        return reading.definitions(commit), ()
    shared = [each for each in reading.findings if "/" not in each.location.path]
    if shared or reading.project is None:
        raise DefinitionError(_sorted(reading.findings))
    left_out = reading.leave_out_broken(kept=frozenset(deployed))
    renamed = {fold(each.renamed_from or "") for each in reading.entities.values()}
    for name, entity in deployed.items():
        if name not in renamed:
            reading.entities.setdefault(name, entity)
    definitions = reading.definitions(commit)
    if _contradictions(definitions):
        raise DefinitionError(_sorted(reading.findings))
    return definitions, tuple(_sorted([*reading.findings, *left_out]))


def _contradictions(definitions: Definitions) -> bool:
    entities = definitions.entities
    domains = tuple(domain.name for domain in definitions.project.domains)
    known = Known(entities=entities, domains=domains)
    items = definitions.permissions.permissions
    return bool(
        any(any(check_between(entity, known)) for entity in entities.values())
        or any(check_all_entities(entities.values()))
        or any(known.unknown_entity(name, ()) for item in items for name in item.entities)
        or any(check_row_filters(definitions))
    )


def _read(files: Mapping[str, bytes] | Tree, reserved_schemas: Sequence[str]) -> _Reading:
    tree = MappingTree(files) if isinstance(files, Mapping) else files
    reading = _Reading(tree=tree)
    reading.read_files()
    reading.check(reserved_schemas)
    return reading


@dataclass
class _Reading:
    """The state of one reading; parts that are wrong are absent, and a finding says why."""

    tree: Tree
    findings: list[Finding] = field(default_factory=list)
    documents: dict[str, YamlDocument] = field(default_factory=dict)
    project: Project | None = None
    permissions: Permissions | None = None
    webhooks: Webhooks | None = None
    access_tests: AccessTests | None = None
    test_places: dict[str, Location] = field(default_factory=dict)
    entities: dict[str, Entity] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)  # folded entity name -> file
    unreadable: set[str] = field(default_factory=set)
    seed_files: dict[str, RowsDocument] = field(default_factory=dict)
    seeds: dict[str, Seed] = field(default_factory=dict)

    def read_files(self) -> None:
        entries = list(self.tree.entries())
        if len(entries) > MAX_FILES:
            self._add("too-many-files", f"more than {MAX_FILES:,} definition files", "entities")
            return
        if not any(entry.path == "mdm.yaml" for entry in entries):
            hint = "`mdm-gitops init` makes a first repository"
            self._add("no-project", "there is no mdm.yaml in this folder", "mdm.yaml", hint=hint)
        for entry in entries:
            self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> None:
        top, _, rest = entry.path.partition("/")
        problem = entry.problem or _why_not_read(entry)
        if problem:
            self._add("not-readable", problem, _printable(entry.path))
            self._note_unreadable(entry.path)
        elif not rest:
            self._read_root_file(entry.path)
        elif top == "entities" and entry.path.endswith(".yaml"):
            self._read_entity(entry.path)
        elif top == "seed" and entry.path.endswith(".json"):
            self._read_seed(entry.path)

    def _note_unreadable(self, path: str) -> None:
        if path.startswith("entities/"):
            self.unreadable.add(fold(PurePosixPath(path).stem))

    def _read_root_file(self, path: str) -> None:
        if path == "mdm.yaml":
            self.project = self._shaped(path, Project, "project")
        elif path == "permissions.yaml":
            self.permissions = self._shaped(path, Permissions, "permissions")
        elif path == ACCESS_TESTS_FILE:
            self.access_tests = self._shaped(path, AccessTests, "access-tests")
        else:
            self.webhooks = self._shaped(path, Webhooks, "webhooks")

    def _shaped(self, path: str, model: type[Shape], schema_name: str) -> Shape | None:
        data = self._bytes(path)
        if data is None:
            return None
        document = self.documents[path] = YamlDocument(path, data)
        try:
            return document.as_model(model, schema_name)
        except DefinitionError as exc:
            self.findings += exc.findings
            return None

    def _bytes(self, path: str) -> bytes | None:
        try:
            return self.tree.read(path)
        except OSError as exc:
            self._add("not-readable", f"cannot be read: {exc.strerror or exc}", path)
            return None

    def _read_entity(self, path: str) -> None:
        entity = self._shaped(path, Entity, "entity")
        if entity is None:
            self._note_unreadable(path)
            return
        first = self.paths.setdefault(entity.folded, path)
        if first != path:
            problem = Problem(
                rule="duplicate-name",
                message=f"entity {entity.name!r} is already defined in {first}",
                pointer=("name",),
            )
            self.findings += findings_of([problem], self.documents[path])
            self.unreadable.add(entity.folded)  # nobody knows which of them is meant
            return
        self.entities[entity.folded] = entity
        if fold(PurePosixPath(path).stem) != entity.folded:
            problem = Problem(
                rule="file-name",
                message=f"entity {entity.name!r} is not in a file of its name",
                pointer=("name",),
                hint=f"rename the file to {entity.name}.yaml, or the entity",
            )
            self.findings += findings_of([problem], self.documents[path])

    def _read_seed(self, path: str) -> None:
        data = self._bytes(path)
        if data is None:
            return
        name = fold(PurePosixPath(path).stem)
        first = self.seed_files.setdefault(name, RowsDocument(path, data))
        if first.path != path:
            self._add("duplicate-seed", f"{first.path} is already the seed of that entity", path)

    def check(self, reserved_schemas: Sequence[str]) -> None:
        known = Known(
            entities=self.entities,
            domains=None
            if self.project is None
            else tuple(domain.name for domain in self.project.domains),
            unreadable=frozenset(self.unreadable),
        )
        for name, entity in self.entities.items():
            problems = [
                *check_entity(entity, reserved_schemas=reserved_schemas),
                *check_between(entity, known),
            ]
            self._note(problems, self.paths[name])
        for entity, problem in check_all_entities(self.entities.values()):
            self._note([problem], self.paths[entity.folded])
        self._check_root_files(known)
        for name, document in self.seed_files.items():
            self._check_seed(document, known, name)

    def _check_root_files(self, known: Known) -> None:
        if self.project is not None:
            # Where webhooks.yaml has findings, nobody knows what names it would have.
            broken = self.webhooks is None and "webhooks.yaml" in self.documents
            webhooks = None if broken else self.webhooks or Webhooks()
            problems = (
                *check_project(self.project),
                *check_environments(self.project, webhooks),
                *check_reconcile(self.project, known),
            )
            self._note(problems, "mdm.yaml")
        if self.webhooks is not None:
            self._note(check_webhooks(self.webhooks, known), "webhooks.yaml")
        if self.access_tests is not None:
            self._check_access_tests(self.access_tests, known)
        if self.permissions is not None:
            self._note(check_permissions(self.permissions, known), "permissions.yaml")
            if self.project is not None:
                self._note(check_row_filters(self.definitions(None)), "permissions.yaml")

    def _check_seed(self, document: RowsDocument, known: Known, name: str) -> None:
        entity = self.entities.get(name)
        if entity is None:
            unknown = known.unknown_entity(PurePosixPath(document.path).stem, ())
            if unknown is not None:
                self._add(unknown.rule, unknown.message, document.path, hint=unknown.hint)
            return
        try:
            rows = document.rows
        except DefinitionError as exc:
            self.findings += exc.findings
            return
        problems = list(check_names(entity, rows))
        if not problems and not self._has_findings(self.paths[name]):
            named = normalise_names(entity, rows)
            problems = list(check_rows(entity, named))
            if not problems:
                self.seeds[name] = Seed.of(name, tuple(named))
        self.findings += findings_of(problems, document)

    def _has_findings(self, path: str) -> bool:
        return any(finding.location.path == path for finding in self.findings)

    def _note(self, problems: Iterable[Problem], path: str) -> None:
        found = list(problems)
        if found:
            self.findings += findings_of(found, self.documents[path])

    def _add(self, rule: str, message: str, path: str, *, hint: str = "") -> None:
        self.findings.append(
            Finding(rule=rule, message=message, location=Location(path), hint=hint)
        )

    def leave_out_broken(self, kept: frozenset[str] = frozenset()) -> list[Finding]:
        """Take entities with findings out, and all that needs them; return what else goes.

        Rights and webhooks on those that are *kept* in another form stay.
        """
        bad = {name for name, path in self.paths.items() if self._has_findings(path)}
        bad |= self.unreadable
        added: list[Finding] = []
        while dependents := {
            name: target
            for name, entity in self.entities.items()
            if name not in bad and (target := _reference_into(entity, bad))
        }:
            bad |= dependents.keys()
            for name, target in dependents.items():
                message = f"left out because it refers to {target!r}, which has findings"
                location = Location(self.paths[name])
                added.append(Finding(rule="left-out", message=message, location=location))
        self._take_out(bad, kept)
        return added

    def _take_out(self, bad: set[str], kept: frozenset[str]) -> None:
        for name in bad:
            self.entities.pop(name, None)
            self.seeds.pop(name, None)
        bad = bad - kept
        if self.permissions is not None:
            items = _without(self.permissions.permissions, bad)
            self.permissions = Permissions(permissions=items)
        if self.webhooks is not None:
            self.webhooks = Webhooks(webhooks=_without(self.webhooks.webhooks, bad))
        if self.access_tests is not None:
            wrong = self._has_findings(ACCESS_TESTS_FILE)
            left = (t for t in self.access_tests.tests if not wrong and fold(t.entity) not in bad)
            self.access_tests = AccessTests(tests=tuple(left))

    def definitions(self, commit: str | None) -> Definitions:
        assert self.project is not None, "asked for after the findings"
        return Definitions(
            project=self.project,
            entities=MappingProxyType(dict(sorted(self.entities.items()))),
            permissions=self.permissions or Permissions(),
            webhooks=self.webhooks or Webhooks(),
            seeds=MappingProxyType(dict(sorted(self.seeds.items()))),
            access_tests=self.access_tests or AccessTests(),
            test_places=MappingProxyType(self.test_places),
            commit=commit,
        )

    def _check_access_tests(self, tests: AccessTests, known: Known) -> None:
        self._note(check_access_tests(tests, known), ACCESS_TESTS_FILE)
        places = [(("tests", number), False) for number in range(len(tests.tests))]
        located = self.documents[ACCESS_TESTS_FILE].locate(places)
        names = (test.name for test in tests.tests)
        self.test_places = dict(zip(names, located, strict=True))


Scoped = TypeVar("Scoped", PermissionItem, Webhook)


def _without(items: Iterable[Scoped], bad: set[str]) -> tuple[Scoped, ...]:
    """Take *bad* entities out of each item's list; an item of which nothing is left goes too.

    An empty list would mean "all", and turn a right on one entity into one on its whole domain.
    """
    kept = []
    for item in items:
        names = tuple(name for name in item.entities if fold(name) not in bad)
        if names or not item.entities:
            kept.append(item.model_copy(update={"entities": names}))
    return tuple(kept)


def _holds_for_all(path: str) -> bool:
    """Whether a finding there leaves nothing that can be used; tests of access only refuse plans."""
    return "/" not in path and path != ACCESS_TESTS_FILE


def _reference_into(entity: Entity, bad: set[str]) -> str:
    targets = (column.reference.entity for column in entity.columns if column.reference)
    return next((target for target in targets if fold(target) in bad), "")


def _printable(path: str) -> str:
    """A path may hold anything; a message may not."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in path)


def _why_not_read(entry: Entry) -> str:
    path = PurePosixPath(entry.path)
    if entry.path in LOOKALIKES:
        return f"is not read; its name must be {LOOKALIKES[entry.path]}"
    right = _NOT_READ.get(path.parts[0], {}).get(path.suffix)
    if right is not None:
        return f"is not read; files in {path.parts[0]} end in {right}"
    limit = MAX_JSON_BYTES if path.suffix == ".json" else MAX_YAML_BYTES
    if path.suffix in (".json", ".yaml") and entry.size > limit:
        return f"has {entry.size:,} bytes, at most {limit:,} are allowed"
    if path.parts[0] == "seed" and len(path.parts) > 2 and path.suffix == ".json":
        return "is not read; seeds have no sub-folders"
    return ""


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(
        dict.fromkeys(findings),
        key=lambda each: (each.location, each.rule == MORE_FINDINGS, each.message),
    )
