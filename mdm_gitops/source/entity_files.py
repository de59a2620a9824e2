"""Saving and removing an entity, as changes of files: for ``source.commits``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Entity, fold
from mdm_gitops.source.commits import Files
from mdm_gitops.source.documents import YamlDocument
from mdm_gitops.source.merge import merge_entity
from mdm_gitops.source.render import render_entity

_FOLDER: Final = "entities"
_LONGEST_SUBJECT: Final = 100


def path_of(files: Mapping[str, bytes], name: str) -> str | None:
    """Return the file that defines entity *name*; a file bears the name of its entity."""
    wanted = fold(name)
    return next(
        (
            path
            for path in sorted(files)
            if path.startswith(f"{_FOLDER}/")
            and path.endswith(".yaml")
            and fold(PurePosixPath(path).stem) == wanted
        ),
        None,
    )


def entity_at(files: Mapping[str, bytes], path: str) -> Entity | None:
    """Return the entity that the file *path* defines, None if it cannot be read."""
    try:
        return YamlDocument(path, files[path]).as_model(Entity, "entity")
    except DefinitionError:
        return None


def saved(
    files: Mapping[str, bytes], entity: Entity, *, instead_of: str = "", text: bytes | None = None
) -> Files:
    """Return the files to write so that *entity* is defined.

    The present file is changed no more than it has to be. A new one holds *text*, the author's own
    YAML, if there is one. *instead_of* is the former name of an entity that gets another.
    """
    path = path_of(files, instead_of or entity.name)
    if path is None:
        return {new_path(files, entity): text or render_entity(entity).encode()}
    merged = merge_entity(files[path], entity)
    if not instead_of or fold(instead_of) == entity.folded:
        return {path: merged}
    moved = {path: None, str(PurePosixPath(path).with_name(f"{entity.name}.yaml")): merged}
    seed = seed_of(files, instead_of)
    if seed is not None:
        moved |= {seed: None, f"seed/{entity.name}.json": files[seed]}
    return moved


def removed(files: Mapping[str, bytes], name: str) -> Files:
    """Return what to remove so that entity *name* is not defined: its file, and its seed."""
    return {path: None for path in (path_of(files, name), seed_of(files, name)) if path is not None}


def seed_of(files: Mapping[str, bytes], name: str) -> str | None:
    wanted = fold(name)
    found = (path for path in files if path.startswith("seed/") and path.endswith(".json"))
    return next((path for path in found if fold(PurePosixPath(path).stem) == wanted), None)


def new_path(files: Mapping[str, bytes], entity: Entity) -> str:
    """Return where a new entity goes: to where most others of its domain are."""
    folders: Counter[str] = Counter()
    for path in files:
        if path.startswith(f"{_FOLDER}/") and path.endswith(".yaml"):
            other = entity_at(files, path)
            if other is not None and other.domain == entity.domain:
                folders[str(PurePosixPath(path).parent)] += 1
    folder = min(folders, key=lambda each: (-folders[each], each), default=_FOLDER)
    return f"{folder}/{entity.name}.yaml"


def what_changed(old: Entity | None, new: Entity) -> str:
    """Return the subject of a commit that takes *old* to *new*."""
    if old is None:
        return f"Define {new.name}"
    if old.folded != new.folded:
        return f"Rename {old.name} to {new.name}"
    before, after = old.to_document(), new.to_document()
    words = [*_columns(before.pop("columns"), after.pop("columns"))]
    words += [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return _cut(f"Change {new.name}: {', '.join(words)}") if words else f"Change {new.name}"


def _columns(before: list[Any], after: list[Any]) -> list[str]:
    old, new = ({column["name"]: column for column in each} for each in (before, after))
    added = [f"+{name}" for name in new if name not in old]
    gone = [f"-{name}" for name in old if name not in new]
    return [*added, *gone, *(name for name in new if name in old and old[name] != new[name])]


def _cut(subject: str) -> str:
    if len(subject) <= _LONGEST_SUBJECT:
        return subject
    return subject[: _LONGEST_SUBJECT - 4].rpartition(",")[0] + ", ..."
