"""What a package changes in a repository, as a change of files. Pure.

Entities, seeds and webhooks go by name, permissions and domains are added. What is there and says
something else is only overwritten on demand; nothing is ever removed. Policy, environments and tests
of access say what holds in one place, and are not taken to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from mdm_gitops.errors import Conflict, DefinitionError
from mdm_gitops.model.access import Permissions, Webhooks
from mdm_gitops.model.base import Definition
from mdm_gitops.model.project import Project
from mdm_gitops.source.commits import Files
from mdm_gitops.source.documents import YamlDocument
from mdm_gitops.source.edit import append_item, replace_item
from mdm_gitops.source.entity_files import entity_at, path_of, seed_of
from mdm_gitops.source.package_reader import Package

Shape = TypeVar("Shape", bound=Definition)
_PROJECT: Final = "mdm.yaml"
_PERMISSIONS: Final = "permissions.yaml"
_WEBHOOKS: Final = "webhooks.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    overwrite: bool = False
    permissions: bool = False
    webhooks: bool = False
    seeds: bool = False


def merge_package(files: Mapping[str, bytes], package: Package, options: MergeOptions) -> Files:
    """Return what to write into *files* so that they hold the package.

    The package need not be whole: what it refers to may be there already. So whether the result is
    sound is seen when all of it is read.

    Raises:
        Conflict: something is there and differs (``PACKAGE_CONFLICT``); all of it is named.
        DefinitionError: a file of the package that has to be taken apart cannot be read.
    """
    merge = _Merge(files, package, options)
    merge.project()
    for entity in package.manifest.entities:
        merge.entity(entity.name)
        if options.seeds:
            merge.seed(entity.name)
    if options.permissions:
        merge.permissions()
    if options.webhooks:
        merge.webhooks()
    if merge.conflicts:
        named = ", ".join(merge.conflicts[:5])
        more = f" and {len(merge.conflicts) - 5} more" if len(merge.conflicts) > 5 else ""
        raise Conflict(
            f"already there and different: {named}{more}",
            hint="overwriteExisting=true replaces them",
            code="PACKAGE_CONFLICT",
            conflicts=merge.conflicts,
        )
    return merge.written


class _Merge:
    def __init__(self, files: Mapping[str, bytes], package: Package, options: MergeOptions) -> None:
        self._files = files
        self._package = package.files
        self._options = options
        self.written: dict[str, bytes | None] = {}
        self.conflicts: list[str] = []

    def project(self) -> None:
        if _PROJECT not in self._package:
            return
        if _PROJECT not in self._files:
            self.written[_PROJECT] = self._package[_PROJECT]
            return
        present = self._read(_PROJECT, Project, "project")
        known = {domain.name for domain in present.domains} if present else set()
        data = self._files[_PROJECT]
        for domain in self._given(_PROJECT, Project, "project").domains:
            if domain.name not in known:
                data = append_item(data, "domains", domain)
        self.written[_PROJECT] = data

    def entity(self, name: str) -> None:
        there, given = path_of(self._files, name), path_of(self._package, name)
        assert given is not None, "the manifest was compared with the files"
        data = self._package[given]
        if there is None:
            self.written[given] = data
        elif self._files[there] != data and not self._same(there, given):
            self._differs(f"entity {name}")
            self.written[there] = data

    def seed(self, name: str) -> None:
        there, given = seed_of(self._files, name), seed_of(self._package, name)
        if given is None:
            return
        if there is not None and self._files[there] != self._package[given]:
            self._differs(f"seed of {name}")
        self.written[there or given] = self._package[given]

    def permissions(self) -> None:
        if _PERMISSIONS not in self._package:
            return
        present = self._read(_PERMISSIONS, Permissions, "permissions")
        if present is None or not present.permissions:
            self.written[_PERMISSIONS] = self._package[_PERMISSIONS]
            return
        known = {grant for item in present.permissions for grant in item.grants()}
        data = self._files[_PERMISSIONS]
        for item in self._given(_PERMISSIONS, Permissions, "permissions").permissions:
            if not known.issuperset(item.grants()):
                data = append_item(data, "permissions", item)
        self.written[_PERMISSIONS] = data

    def webhooks(self) -> None:
        if _WEBHOOKS not in self._package:
            return
        present = self._read(_WEBHOOKS, Webhooks, "webhooks")
        if present is None or not present.webhooks:
            self.written[_WEBHOOKS] = self._package[_WEBHOOKS]
            return
        numbers = {webhook.name: n for n, webhook in enumerate(present.webhooks)}
        data = self._files[_WEBHOOKS]
        for webhook in self._given(_WEBHOOKS, Webhooks, "webhooks").webhooks:
            number = numbers.get(webhook.name)
            if number is None:
                data = append_item(data, "webhooks", webhook)
            elif present.webhooks[number] != webhook:
                self._differs(f"webhook {webhook.name}")
                data = replace_item(data, "webhooks", number, webhook)
        self.written[_WEBHOOKS] = data

    def _same(self, there: str, given: str) -> bool:
        """Whether two files say the same of an entity, in whatever words."""
        present = entity_at(self._files, there)
        return present is not None and present == entity_at(self._package, given)

    def _differs(self, what: str) -> None:
        if not self._options.overwrite:
            self.conflicts.append(what)

    def _given(self, path: str, model: type[Shape], schema: str) -> Shape:
        return YamlDocument(path, self._package[path]).as_model(model, schema)

    def _read(self, path: str, model: type[Shape], schema: str) -> Shape | None:
        try:
            return YamlDocument(path, self._files[path]).as_model(model, schema)
        except (KeyError, DefinitionError):
            return None  # what is wrong there is told when all of it is checked
