"""Trees as text, proven once per shape: what differs in quoted names and literals alone is alike.

Printing a tree and reading it back takes milliseconds, and a plan of many entities prints thousands
that are alike. The shape of a tree is the tree without its quoted names, strings and whole numbers:
its atoms. What stands between quotes does not change how the text around it is read, so a text that
was read back with marks in place of the atoms holds for all atoms. A shape that is met only once is
read back as it is, which costs less, unless its atoms are long: the rows of a seed are one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from sqlglot import ErrorLevel, exp, parse_one
from sqlglot.errors import SqlglotError

DIALECT: Final = "postgres"
_MAX_SHAPES: Final = 4_096
_MAX_ATOMS: Final = 1_024  # larger statements are not many, and their templates would be large
_LONG_ATOMS: Final = (
    5_000  # characters, from which on it costs less to read back marks in their place
)
_MARK: Final = re.compile(r"(\"§\d+§\"|'§\d+§'|\b9876\d{6}6789\b)")

Shape = tuple[Any, ...]
Atom = exp.Identifier | exp.Literal


@dataclass(frozen=True, slots=True)
class _Template:
    """The text between the atoms, and which atom stands in each gap."""

    texts: tuple[str, ...]
    order: tuple[int, ...]

    def filled(self, atoms: list[Atom]) -> str:
        parts = [self.texts[0]]
        for index, text in zip(self.order, self.texts[1:], strict=True):
            parts += (_printed(atoms[index]), text)
        return "".join(parts)


_templates: dict[Shape, _Template | None] = {}  # None: met once, or not to be had
_lock = Lock()


def print_proven(tree: exp.Expr) -> str:
    """Return the SQL of *tree*; it, or one of the same shape, has been read back and compared.

    Raises:
        RuntimeError: sqlglot prints it as something else.
    """
    atoms: list[Atom] = []
    parts: list[Any] = []
    _take_apart(tree, parts, atoms)
    if len(atoms) > _MAX_ATOMS:
        return _print_and_read_back(tree)
    shape = tuple(parts)
    template = _templates.get(shape)
    if template is not None:
        return template.filled(atoms)
    sql = _print(tree)
    if shape in _templates or sum(len(atom.this) for atom in atoms) > _LONG_ATOMS:
        template = _template(tree, atoms, sql)
    if template is None:
        _read_back(tree, sql)
    with _lock:
        if len(_templates) >= _MAX_SHAPES:
            _templates.clear()
        _templates[shape] = template
    return sql


def print_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _print_and_read_back(tree: exp.Expr) -> str:
    sql = _print(tree)
    _read_back(tree, sql)
    return sql


def _print(tree: exp.Expr) -> str:
    """sqlglot's own verdict on what a dialect supports is ignored: it warns of forms that it prints
    well and is silent about others that it mangles."""
    return tree.sql(dialect=DIALECT, unsupported_level=ErrorLevel.IGNORE, comments=False)


def _read_back(tree: exp.Expr, sql: str) -> None:
    again = parse_one(sql, dialect=DIALECT)
    if isinstance(again, exp.Command) or again != tree:
        raise RuntimeError(f"sqlglot lost part of the statement: {sql}")


# --- shapes ---------------------------------------------------------------------------------------


def _take_apart(node: exp.Expr, parts: list[Any], atoms: list[Atom]) -> None:
    """Append the shape of *node* to *parts* and its atoms to *atoms*."""
    kind = _kind_of_atom(node)
    if kind is not None:
        parts.append(kind)
        atoms.append(node)  # type: ignore[arg-type]
        return
    parts.append(node.__class__)
    if node.__class__ is exp.Interval:  # what stands between its quotes is read
        parts.append(_print(node))
        return
    for name, value in node.args.items():
        if value is None or value is False:
            continue
        parts.append(name)
        if isinstance(value, exp.Expr):
            _take_apart(value, parts, atoms)
        elif value.__class__ is list:
            parts += (list, len(value))
            for item in value:
                if isinstance(item, exp.Expr):
                    _take_apart(item, parts, atoms)
                else:
                    parts += (item.__class__, item)
        else:
            parts += (value.__class__, value)  # True and 1 are equal
    parts.append(None)


def _kind_of_atom(node: exp.Expr) -> str | None:
    args = node.args
    if node.__class__ is exp.Identifier:
        return "name" if args.get("quoted") is True and len(args) == 2 else None
    if node.__class__ is not exp.Literal:
        return None
    if args["is_string"]:
        return "string"
    return "number" if args["this"].isdigit() else None


def _printed(atom: Atom) -> str:
    text: str = atom.args["this"]
    if atom.__class__ is exp.Identifier:
        return print_name(text)
    return "'" + text.replace("'", "''") + "'" if atom.args["is_string"] else text


# --- templates ------------------------------------------------------------------------------------


def _template(tree: exp.Expr, atoms: list[Atom], sql: str) -> _Template | None:
    """Return the template of *tree*, whose text is *sql*; None if its text depends on its atoms."""
    marked = tree.copy()
    again: list[Atom] = []
    _take_apart(marked, [], again)
    for number, atom in enumerate(again):
        atom.set("this", _mark(atom, number))
    try:
        texts = _MARK.split(_print_and_read_back(marked))
    except (RuntimeError, SqlglotError):
        return None
    place = {_printed(atom): number for number, atom in enumerate(again)}
    template = _Template(texts=tuple(texts[::2]), order=tuple(place[mark] for mark in texts[1::2]))
    holds_each = sorted(template.order) == list(range(len(atoms)))
    return template if holds_each and template.filled(atoms) == sql else None


def _mark(atom: Atom, number: int) -> str:
    is_number = atom.__class__ is exp.Literal and not atom.args["is_string"]
    return f"9876{number:06d}6789" if is_number else f"§{number}§"
