"""Random valid definitions, and random edits of them that stay valid: the input of the law tests.

A repository is drawn as documents (what YAML would hold) and built by the product's own reader, so
an invalid one cannot slip through. Values of columns come from small pools that survive most casts,
so that rows stay in the way of new rules often, but not always.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import assume, note
from hypothesis import strategies as st

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree

ENTITIES = ("alpha", "beta", "gamma", "delta")
COLUMNS = ("c1", "c2", "c3", "c4", "c5", "c6")
TYPES = ("string", "text", "int", "long", "decimal", "bool", "date", "datetime", "guid", "json")
# What a column of the type may become without losing the values of the pools below.
RETYPES = {
    "string": ("text", "int", "long", "decimal", "date", "json"),
    "text": ("string", "int", "decimal"),
    "int": ("long", "decimal", "string"),
    "long": ("int", "decimal", "text"),
    "decimal": ("string", "int", "long"),
    "bool": ("string",),
    "date": ("datetime", "string"),
    "datetime": ("date", "string"),
    "guid": ("string",),
    "json": ("string", "text"),
}
_GUIDS = ("5f0c2a52-0d1d-4a8e-9a52-3b1f6ad9f001", "5f0c2a52-0d1d-4a8e-9a52-3b1f6ad9f002")
VALUES: dict[str, tuple[Any, ...]] = {
    "string": ("7", "007", "12", "2024-02-29", "x'y", "\\d", "é", ""),
    "text": ("7", "007", "1.50", "12", "line\nbreak"),
    "int": (0, 7, 12, -3, 2_000_000_000),
    "long": (0, 7, 12, 3_000_000_000),
    "decimal": ("0", "7.00", "1.50", "12"),
    "bool": (True, False),
    "date": ("2024-02-29", "1999-12-31"),
    "datetime": ("2024-02-29T00:00:00Z", "2024-02-29T12:30:15.25Z"),
    "guid": _GUIDS,
    "json": ({"a": [1, None, "x"]}, [], "text", 7),
}


@st.composite
def rules(draw: st.DrawFn, data_type: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if draw(st.booleans()):
        return found
    if data_type in ("string", "text"):
        kind = draw(st.sampled_from(("pattern", "maxLength", "allowedValues", "none")))
        if kind == "pattern":
            found["pattern"] = draw(st.sampled_from((r"[^ ]*", r".{0,40}", r"[\s\S]*", r"\d*")))
        if kind == "maxLength":
            found["maxLength"] = draw(st.sampled_from((3, 12, 40)))
        if kind == "allowedValues":
            found["allowedValues"] = list(VALUES[data_type])
    elif data_type in ("int", "long"):
        found["minValue"] = draw(st.sampled_from((-10, 0)))
        if draw(st.booleans()):
            found["maxValue"] = 2_000_000_000 if data_type == "int" else 4_000_000_000
    elif data_type == "decimal":
        found["precision"], found["scale"] = draw(st.sampled_from(((10, 2), (12, 2), (20, 4))))
    elif data_type == "date":
        found["maxValue"] = "2030-01-01"
    return found


@st.composite
def columns(draw: st.DrawFn, name: str) -> dict[str, Any]:
    data_type = draw(st.sampled_from(TYPES))
    column: dict[str, Any] = {"name": name, "dataType": data_type, **draw(rules(data_type))}
    if draw(st.booleans()) and data_type not in ("json",):
        column["default"] = _default(draw, column)
        column["nullable"] = draw(st.booleans())
    if column.get("default") is None:
        column.pop("default", None)
        column.pop("nullable", None)
    if draw(st.integers(0, 4)) == 0:
        column["classification"] = draw(st.sampled_from(("public", "restricted")))
    return column


def _default(draw: st.DrawFn, column: dict[str, Any]) -> Any:
    if column.get("pattern") == r"\d*":
        return "7"
    if "maxLength" in column:
        return "7"
    if column["dataType"] in ("int", "long"):
        return 7
    return draw(st.sampled_from(VALUES[column["dataType"]]))


@st.composite
def entities(draw: st.DrawFn, name: str) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(COLUMNS), unique=True, max_size=4))
    entity: dict[str, Any] = {
        "name": name,
        "domain": "lab",
        "keyColumns": ["code"],
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False},
            *(draw(columns(column)) for column in names),
        ],
    }
    for flag in ("historyEnabled", "approvalRequired"):
        if draw(st.booleans()):
            entity[flag] = True
    if draw(st.integers(0, 2)) == 0:
        view = {"schema": "lab_views", "name": f"{name}_view"}
        view["includeDeleted"] = draw(st.booleans())
        view["includeSystemColumns"] = draw(st.booleans())
        entity["consumption"] = {"views": [view]}
    if draw(st.booleans()):
        entity["search"] = {"enabled": True}
    return entity


Documents = dict[str, dict[str, Any]]
Edit = Callable[[st.DrawFn, Documents, Documents], None]


@st.composite
def repositories(draw: st.DrawFn) -> Documents:
    names = draw(st.lists(st.sampled_from(ENTITIES), unique=True, min_size=1, max_size=3))
    documents = {name: draw(entities(name)) for name in names}
    for entity in documents.values():
        if draw(st.integers(0, 2)) == 0:
            _add_reference(draw, documents, entity)
        _maybe_unique(draw, entity)
    return documents


def _add_reference(draw: st.DrawFn, documents: Documents, entity: dict[str, Any]) -> None:
    target = draw(st.sampled_from(sorted(documents)))
    name = f"ref_{target}"
    if any(column["name"] == name for column in entity["columns"]):
        return
    entity["columns"].append({"name": name, "dataType": "string", "reference": {"entity": target}})


def _maybe_unique(draw: st.DrawFn, entity: dict[str, Any]) -> None:
    plain = [c["name"] for c in entity["columns"] if c["dataType"] != "json"]
    if len(plain) > 1 and draw(st.integers(0, 2)) == 0:
        chosen = draw(st.lists(st.sampled_from(plain), unique=True, min_size=1, max_size=2))
        entity["uniqueConstraints"] = [{"name": "together", "columns": chosen}]


@st.composite
def edited(
    draw: st.DrawFn, documents: Documents, *, edits: Sequence[Edit] | None = None
) -> Documents:
    """Draw a repository that *documents* could become in one commit."""
    new = copy.deepcopy(documents)
    for document in new.values():
        _forget_directives(document)
    for _ in range(draw(st.integers(1, 5))):
        edit = draw(st.sampled_from(edits or EDITS))
        edit(draw, new, documents)
    return new


def _forget_directives(document: dict[str, Any]) -> None:
    document.pop("renamedFrom", None)
    for column in document["columns"]:
        column.pop("renamedFrom", None)


def _pick(draw: st.DrawFn, documents: Documents) -> dict[str, Any] | None:
    if not documents:
        return None
    return documents[draw(st.sampled_from(sorted(documents)))]


def _pick_column(draw: st.DrawFn, entity: dict[str, Any]) -> dict[str, Any] | None:
    plain = [c for c in entity["columns"] if c["name"] != "code"]
    return draw(st.sampled_from(plain)) if plain else None


def rename_column(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    column = _pick_column(draw, entity) if entity else None
    if entity is None or column is None or "renamedFrom" in column:
        return
    taken = {c["name"] for c in entity["columns"]}
    before = {c["name"] for c in old.get(_origin(entity), {"columns": []})["columns"]}
    free = [n for n in ("r1", "r2", *COLUMNS) if n not in taken | before]
    if not free or column["name"] not in before:
        return
    _rename(entity, column, draw(st.sampled_from(free)))


def _origin(entity: dict[str, Any]) -> str:
    return str(entity.get("renamedFrom", entity["name"]))


def _rename(entity: dict[str, Any], column: dict[str, Any], name: str) -> None:
    was = column["name"]
    column["renamedFrom"], column["name"] = was, name
    for constraint in (*entity.get("uniqueConstraints", ()), entity.get("search", {})):
        constraint["columns"] = [name if c == was else c for c in constraint.get("columns", ())]


def swap_columns(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is None:
        return
    before = {c["name"] for c in old.get(_origin(entity), {"columns": []})["columns"]}
    plain = [
        c
        for c in entity["columns"]
        if c["name"] in before and c["name"] != "code" and "renamedFrom" not in c
    ]
    if len(plain) < 2:
        return
    one, two = plain[:2]
    first, second = one["name"], two["name"]
    one["renamedFrom"], one["name"] = first, second
    two["renamedFrom"], two["name"] = second, first
    exchange = {first: second, second: first}
    for constraint in (*entity.get("uniqueConstraints", ()), entity.get("search", {})):
        constraint["columns"] = [exchange.get(c, c) for c in constraint.get("columns", ())]


def retype_column(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    column = _pick_column(draw, entity) if entity else None
    if entity is None or column is None or "reference" in column:
        return
    for key in ("pattern", "maxLength", "allowedValues", "minValue", "maxValue"):
        column.pop(key, None)
    for key in ("precision", "scale", "default"):
        column.pop(key, None)
    column["dataType"] = draw(st.sampled_from(RETYPES[column["dataType"]]))
    column["nullable"] = True
    if column["dataType"] not in ("string", "text"):
        _no_longer_searched(entity, column)


def _no_longer_searched(entity: dict[str, Any], column: dict[str, Any]) -> None:
    search = entity.get("search", {})
    if column["name"] in search.get("columns", ()):
        search["columns"].remove(column["name"])


def change_digits(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    for entity in documents.values():
        for column in entity["columns"]:
            if column["dataType"] == "decimal":
                digits = draw(st.sampled_from(((), (12, 2), (20, 2), (20, 4))))
                column.pop("precision", None)
                column.pop("scale", None)
                if digits:
                    column["precision"], column["scale"] = digits


def remove_column(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    column = _pick_column(draw, entity) if entity else None
    if entity is None or column is None or "renamedFrom" in column:
        return  # the other half of a swap would be left with a name that still stands
    entity["columns"].remove(column)
    _no_longer_searched(entity, column)
    kept = [c for c in entity.get("uniqueConstraints", ()) if column["name"] not in c["columns"]]
    entity["uniqueConstraints"] = kept


def add_column(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is None:
        return
    free = [n for n in COLUMNS if n not in {c["name"] for c in entity["columns"]}]
    if free:
        entity["columns"].append(draw(columns(draw(st.sampled_from(free)))))


def change_rules(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    column = _pick_column(draw, entity) if entity else None
    if column is None or "reference" in column:
        return
    for key in ("pattern", "maxLength", "allowedValues", "minValue", "maxValue", "default"):
        column.pop(key, None)
    fresh = draw(rules(column["dataType"]))
    column.update({k: v for k, v in fresh.items() if k not in ("precision", "scale")})
    column["nullable"] = draw(st.booleans())
    if column["dataType"] != "json":
        column["unique"] = draw(st.integers(0, 3)) == 0


def toggle(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is not None:
        flag = draw(st.sampled_from(("historyEnabled", "approvalRequired")))
        entity[flag] = not entity.get(flag, False)


def change_references(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is not None:
        _add_reference(draw, documents, entity)


def change_unique(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is not None:
        entity.pop("uniqueConstraints", None)
        _maybe_unique(draw, entity)


def change_views(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is not None:
        view = {"schema": "lab_views", "name": f"{entity['name']}_view"}
        view["includeSystemColumns"] = draw(st.booleans())
        entity["consumption"] = draw(st.sampled_from(({"views": []}, {"views": [view]})))


def change_search(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is None:
        return
    text = [c["name"] for c in entity["columns"] if c["dataType"] in ("string", "text")]
    plain = [c for c in text if c in _searchable(entity)]
    chosen = draw(st.lists(st.sampled_from(plain), unique=True, max_size=2)) if plain else []
    entity["search"] = {"enabled": draw(st.integers(0, 3)) > 0, "columns": chosen}


def _searchable(entity: dict[str, Any]) -> set[str]:
    return {c["name"] for c in entity["columns"] if c.get("classification") != "restricted"}


def describe(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    entity = _pick(draw, documents)
    if entity is not None:
        entity["displayName"] = draw(st.sampled_from(("One", "Two")))


def add_entity(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    free = [n for n in ENTITIES if n not in documents and n not in old]
    if free:
        name = draw(st.sampled_from(free))
        documents[name] = draw(entities(name))


def remove_entity(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    if len(documents) < 2:
        return
    name = draw(st.sampled_from(sorted(documents)))
    del documents[name]
    for entity in documents.values():
        gone = [c for c in entity["columns"] if c.get("reference", {}).get("entity") == name]
        entity["columns"] = [c for c in entity["columns"] if c not in gone]
        for column in gone:
            _no_longer_searched(entity, column)
        names = {c["name"] for c in gone}
        entity["uniqueConstraints"] = [
            c for c in entity.get("uniqueConstraints", ()) if not names & set(c["columns"])
        ]


def rename_entity(draw: st.DrawFn, documents: Documents, old: Documents) -> None:
    free = [n for n in ("omega", *ENTITIES) if n not in documents and n not in old]
    standing = sorted(n for n, e in documents.items() if n in old and "renamedFrom" not in e)
    if not free or not standing:
        return
    was, name = draw(st.sampled_from(standing)), draw(st.sampled_from(free))
    entity = documents.pop(was)
    entity["renamedFrom"], entity["name"] = was, name
    documents[name] = entity
    for other in documents.values():
        for column in other["columns"]:
            if column.get("reference", {}).get("entity") == was:
                column["reference"] = {"entity": name}


EDITS = (
    rename_column,
    rename_column,
    swap_columns,
    retype_column,
    retype_column,
    change_digits,
    remove_column,
    add_column,
    change_rules,
    change_rules,
    toggle,
    toggle,
    change_references,
    change_unique,
    change_views,
    change_search,
    change_search,
    describe,
    add_entity,
    remove_entity,
    rename_entity,
)


def build(documents: Documents) -> Definitions | None:
    """Return the definitions of *documents*, or None where the edits made them contradict."""
    files = {"mdm.yaml": _PROJECT}
    for name, document in documents.items():
        files[f"entities/{name}.yaml"] = json.dumps(document).encode()
    try:
        return read_tree(files)
    except DefinitionError:
        return None


_PROJECT = json.dumps(
    {
        "name": "lab",
        "apiVersion": "mdm-gitops/v1",
        "domains": [{"name": "lab"}],
        "policy": {"maxRemovedEntities": 100, "maxRemovedPercent": 100},
    }
).encode()


def drawn(
    data: st.DataObject, *, edits: int, start: int
) -> tuple[list[Definitions], random.Random]:
    """Draw definitions and as many edits of them, each of the one before, and chance for their rows.

    *start* is the seed, which a failure tells.
    """
    documents = [data.draw(repositories())]
    for _ in range(edits):
        documents.append(data.draw(edited(documents[-1])))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    definitions = [each for each in map(build, documents) if each is not None]
    assume(len(definitions) == len(documents))
    note(f"seed {start}")
    for name, document in zip("ABCDEFGH", documents, strict=False):
        note(f"{name} = {document}")
    return definitions, chance
