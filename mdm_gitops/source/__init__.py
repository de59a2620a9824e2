"""From files to definitions and back: guarded YAML and JSON in, canonical YAML out.

Nothing here touches a database, and nothing but ``source.git`` starts a program.
"""

from __future__ import annotations

from mdm_gitops.source.fmt import format_yaml
from mdm_gitops.source.render import render_entity
from mdm_gitops.source.repository import (
    check_entity_in,
    folder_tree,
    parse_entity,
    read_folder,
    read_revision,
    read_tree,
    read_tree_leniently,
    read_tree_over,
)
from mdm_gitops.source.tree import Entry, FolderTree, MappingTree, Tree

__all__ = [
    "Entry",
    "FolderTree",
    "MappingTree",
    "Tree",
    "check_entity_in",
    "folder_tree",
    "format_yaml",
    "parse_entity",
    "read_folder",
    "read_revision",
    "read_tree",
    "read_tree_leniently",
    "read_tree_over",
    "render_entity",
]
