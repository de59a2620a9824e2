"""From files to definitions and back: guarded YAML and JSON in, canonical YAML out.

Nothing here touches a database, and nothing but ``source.git`` starts a program.
"""

from __future__ import annotations

from mdm_gitops.source.repository import (
    folder_tree,
    read_folder,
    read_revision,
    read_tree,
    read_tree_leniently,
)
from mdm_gitops.source.tree import Entry, FolderTree, MappingTree, Tree

__all__ = [
    "Entry",
    "FolderTree",
    "MappingTree",
    "Tree",
    "folder_tree",
    "read_folder",
    "read_revision",
    "read_tree",
    "read_tree_leniently",
]
