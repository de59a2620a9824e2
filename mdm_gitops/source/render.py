"""A definition as canonical YAML: what the API shows, exports and commits."""

from __future__ import annotations

from typing import Any, Final

from mdm_gitops.model.base import Definition
from mdm_gitops.model.entity import Entity
from mdm_gitops.source.layout import Collection, Entry, Layout, Scalar, block_of, print_layout

# Mappings that read best on one line, as long as they fit.
_ONE_LINE: Final = frozenset(("reference", "access", "lifecycle", "seed", "ui"))


def render_entity(entity: Entity) -> str:
    """Return *entity* as the text of its file; ``parse_entity`` gives it back unchanged."""
    return render(entity)


def render(definition: Definition) -> str:
    """Return *definition* as YAML: defaults left out, keys in the order of the model."""
    return print_layout(layout_of(definition.to_document()), header=[], footer=[])


def layout_of(value: Any, key: str = "") -> Layout:
    if isinstance(value, dict):
        entries = [
            Entry(key=Scalar(value=name), value=layout_of(inner, name))
            for name, inner in value.items()
        ]
        return Collection(sequence=False, flow=key in _ONE_LINE, entries=entries)
    if isinstance(value, list):
        entries = [Entry(key=None, value=layout_of(inner)) for inner in value]
        flow = not any(isinstance(inner, dict | list) for inner in value)
        return Collection(sequence=True, flow=flow, entries=entries)
    if isinstance(value, str):
        return Scalar(value=value, block=block_of(value))
    return Scalar(value=str(value), plain=_plain(value))


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)
