"""Which column, which entity is which: every rule of ``plan.identity``, with its ambiguous cases.

A definition is written short: ``a`` is a text column, ``a:int`` one of another type, ``b<a`` a column
b that is renamedFrom a. Each case deploys some definitions one after the other and tells what the
plan of a last one moves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import RefusalCode
from tests.support.scenario import column, definitions, entity
from tests.support.simulated import Warehouse

_MOVES = (
    "add-column",
    "rename-column",
    "remove-column",
    "restore-column",
    "retype-column",
    "create-entity",
    "rename-entity",
    "remove-entity",
    "restore-entity",
)


def columns_of(text: str) -> Definitions:
    """Return an entity ``item`` with the columns of *text*, without key columns."""
    found = []
    for word in text.split():
        name, old, data_type = _word(word)
        renamed = {"renamedFrom": old} if old else {}
        found.append(column(name, data_type or "string", **renamed))
    return definitions({"name": "item", "domain": "lab", "columns": found})


def entities_of(text: str) -> Definitions:
    """Return entities by name, each with a column of its own type, so that they differ."""
    found = []
    for word in text.split():
        name, old, data_type = _word(word)
        renamed = {"renamedFrom": old} if old else {}
        found.append(entity(name, column("x", data_type or "string"), **renamed))
    policy = {"maxRemovedEntities": 50, "maxRemovedPercent": 100}
    return definitions(*found, policy=policy)


def _word(word: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(\w+)(?:<(\w+))?(?::(\w+))?", word)
    assert match is not None, word
    return match[1], match[2] or "", match[3] or ""


def _moves(warehouse: Warehouse, wanted: Definitions) -> list[str]:
    told = (line for line in warehouse.told(wanted) if line.startswith(_MOVES))
    return [_short(line) for line in told]


def _short(line: str) -> str:
    """Return a change without what identity does not decide."""
    kind, _, *facts = line.split(" ")
    named = dict(fact.split("=", 1) for fact in facts if "=" in fact)
    name = named.get("column", "").strip("(")
    match kind:
        case "add-column":
            return f"add {name}"
        case "rename-column":
            return f"rename {name}" + (" back" if "reverted" in named else "")
        case "remove-column":
            return f"archive {name} as {named['archived_as']}"
        case "restore-column":
            return f"restore {named['archived_as']} as {name}"
        case "retype-column":
            source = f" from {named['restored_from']}" if "restored_from" in named else ""
            return f"retype {named['source']} to {name}{source}"
        case "rename-entity":
            back = " back" if "reverted" in named else ""
            return f"rename {named['tables']}{back}"
        case "remove-entity" | "restore-entity":
            return f"{kind.removesuffix('-entity')} {named['tables']}"
        case _:
            return line.replace("-entity", "").partition(" tables=")[0]


@dataclass(frozen=True, kw_only=True)
class Case:
    before: tuple[str, ...]
    wanted: str
    moves: tuple[str, ...]


def case(*before: str, wanted: str, moves: str) -> Case:
    told = tuple(filter(None, (move.strip() for move in moves.split(";"))))
    return Case(before=before, wanted=wanted, moves=told)


COLUMNS = {
    # --- by name
    "nothing moves": case("a b", wanted="b a", moves=""),
    "a name that is new is a new column": case("a", wanted="a b", moves="add b"),
    "a name that is gone is archived": case("a b", wanted="a", moves="archive b as _arch_1_b"),
    "without a directive a new name is never a rename": case(
        "a b", wanted="a c", moves="add c; archive b as _arch_1_b"
    ),
    # --- 1: a directive
    "a directive renames": case("a b", wanted="a c<b", moves="rename b>c"),
    "a directive that has been followed stays without effect": case(
        "a b", "a c<b", wanted="a c<b", moves=""
    ),
    "also when columns are added beside it": case("a b", "a c<b", wanted="a c<b d", moves="add d"),
    "a directive may be dropped once it was followed, in a new definition": case(
        "a b", "a c<b", wanted="a c d", moves="add d"
    ),
    "a chain over two commits": case("a", "b<a", wanted="c<b", moves="rename b>c"),
    "the column is found under its last name only": case(
        "a", "b<a", "c<b", wanted="c<b d", moves="add d"
    ),
    "two trade names": case("a b", wanted="b<a a<b", moves="rename b>_aside_b>a; rename a>_aside_a>b"),
    "three go round": case(
        "a b c",
        wanted="b<a c<b a<c",
        moves="rename a>_aside_a>b; rename b>_aside_b>c; rename c>_aside_c>a",
    ),
    "one takes the name that another leaves": case(
        "a b", wanted="b<a c<b", moves="rename a>_aside_a>b; rename b>c"
    ),
    "renamed, and a new one takes the old name": case(
        "a", wanted="b<a a", moves="rename a>b; add a"
    ),
    "renamed and retyped at once": case("a", wanted="b<a:int", moves="retype a to b"),
    "a directive from an archived name brings the archive back": case(
        "a b", "a", wanted="a c<b", moves="restore _arch_1_b as c"
    ),
    "of two archives that fit the newest comes": case(
        "a b", "a", "a b:int", "a", "a b", "a", wanted="a c<b", moves="restore _arch_3_b as c"
    ),
    "a directive of the first deployment says nothing": case("b<a", wanted="b<a c", moves="add c"),
    # --- 2: withdrawn directives
    "a revert renames back": case("a b", "a c<b", wanted="a b", moves="rename c>b back"),
    "a revert of two renames goes back in one step": case(
        "a", "b<a", "c<b", wanted="a", moves="rename c>a back"
    ),
    "a revert of the second only": case("a", "b<a", "c<b", wanted="b<a", moves="rename c>b back"),
    "a revert of a trade": case(
        "a b", "b<a a<b", wanted="a b", moves="rename b>_aside_b>a back; rename a>_aside_a>b back"
    ),
    "a revert with another change beside it": case(
        "a b", "a c<b", wanted="a b d", moves="rename c>b back; add d"
    ),
    "the old name beside the new one is a new column": case(
        "a", "b<a", wanted="b a", moves="add a"
    ),
    "after a trade without its directives, the names stay where they are": case(
        "a b", "b<a a<b", wanted="a b c", moves="add c"
    ),
    # --- 3 and 4: names and archives
    "a name that comes back is its archive": case(
        "a b", "a", wanted="a b", moves="restore _arch_1_b as b"
    ),
    "an archive of another type is left alone": case("a b", "a", wanted="a b:int", moves="add b"),
    "and still comes back when its type is asked for": case(
        "a b", "a", "a b:int", "a", wanted="a b", moves="restore _arch_1_b as b"
    ),
    "of two archives of one name the newest comes": case(
        "a b", "a c<b", "a c b", "a", wanted="a b d", moves="restore _arch_2_b as b; add d"
    ),
    "to the letter, what had the name then goes before the newest": case(
        "a b", "a c<b", "a c b", "a", wanted="a b", moves="restore _arch_1_c as b"
    ),
    "an archive is found by an earlier name": case(
        "a b", "a c<b", "a", wanted="a b", moves="restore _arch_1_c as b"
    ),
    "a column that stands goes before an archive": case(
        "a b", "a", "a b:int", wanted="a b d", moves="retype b to b from _arch_1_b; add d"
    ),
    "to the letter, the archive goes before a column that stands": case(
        "a b", "a", "a b:int", wanted="a b", moves="archive b as _arch_2_b; restore _arch_1_b as b"
    ),
    # --- types
    "another type is the same column": case("a", wanted="a:int", moves="retype a to a"),
    "and back takes the archive": case(
        "a", "a:int", wanted="a", moves="retype a to a from _arch_1_a"
    ),
    "an archive of a retype is not a column of its own": case(
        "a b", "a b:int", wanted="a b:int c", moves="add c"
    ),
}  # fmt: skip


@pytest.mark.parametrize("found", COLUMNS.values(), ids=COLUMNS)
def test_columns(found: Case) -> None:
    warehouse = Warehouse(*(columns_of(text) for text in found.before))
    plan = warehouse.plan(columns_of(found.wanted))
    assert not plan.refusals
    assert sorted(_moves(warehouse, columns_of(found.wanted))) == sorted(found.moves)


@pytest.mark.parametrize("found", COLUMNS.values(), ids=COLUMNS)
def test_each_way_leads_back(found: Case) -> None:
    """Whatever was done, the definition before asks for the columns that it had then."""
    if not found.before:
        return
    steps = [columns_of(text) for text in found.before]
    warehouse = Warehouse(*steps)
    keys = {name: c.key for name, c in warehouse.records["item"].active_columns.items()}
    warehouse.deploy(columns_of(found.wanted))
    warehouse.deploy(steps[-1])
    after = {name: c.key for name, c in warehouse.records["item"].active_columns.items()}
    assert after == keys


ENTITIES = {
    "nothing moves": case("e f", wanted="f e", moves=""),
    "a new one": case("e", wanted="e f", moves="create f"),
    "one that is gone": case("e f", wanted="e", moves="remove f>f__archive_1"),
    "without a directive never a rename": case(
        "e f", wanted="e g", moves="create g; remove f>f__archive_1"
    ),
    "a directive": case("e", wanted="f<e", moves="rename e>f"),
    "followed already": case("e", "f<e", wanted="f<e", moves=""),
    "dropped after it was followed, with a change beside it": case(
        "e", "f<e", wanted="f:int", moves="retype x to x"
    ),
    "a chain over two commits": case("e", "f<e", wanted="g<f", moves="rename f>g"),
    "two trade names": case(
        "e f", wanted="f<e e<f", moves="rename f>_aside_f>e; rename e>_aside_e>f"
    ),
    "renamed, and a new one takes the old name": case(
        "e", wanted="f<e e:int", moves="rename e>f; create e"
    ),
    "renamed, and a copy of it takes the old name": case(
        "e", wanted="f<e e", moves="rename e>f; create e"
    ),
    "renamed, and later a copy of it takes the old name": case(
        "e", "f<e", wanted="f<e e", moves="create e"
    ),
    "the same when the directive is dropped with it": case(
        "e", "f<e", wanted="f e", moves="create e"
    ),
    "and when the renamed one has changed since": case(
        "e", "f<e", "f:int", wanted="f:int e", moves="create e"
    ),
    "a revert of both": case(
        "e", "f<e e", wanted="e", moves="rename f>e back; remove e>e__archive_1"
    ),
    "and again": case(
        "e", "f<e e", "e", wanted="f<e e", moves="rename e>f back; restore e__archive_1>e"
    ),
    "what still carries its directive goes back when it is withdrawn": case(
        "e", "f<e e", wanted="e:int", moves="rename f>e back; remove e>e__archive_2; retype x to x"
    ),
    "what carries none any more is archived": case(
        "e", "f<e e", "f:int e", wanted="e:int", moves="remove f>f__archive_3; retype x to x"
    ),
    "a revert": case("e", "f<e", wanted="e", moves="rename f>e back"),
    "a revert of two in one step": case("e", "f<e", "g<f", wanted="e", moves="rename g>e back"),
    "a revert of a trade": case(
        "e:int f", "f<e:int e<f", wanted="e:int f",
        moves="rename f>_aside_f>e back; rename e>_aside_e>f back",
    ),
    "the old name beside the new one is a new entity": case(
        "e", "f<e", wanted="f e", moves="create e"
    ),
    "one that comes back": case("e f", "e", wanted="e f", moves="restore f__archive_1>f"),
    "one that comes back with another column type": case(
        "e f", "e", wanted="e f:int", moves="restore f__archive_1>f; retype x to x"
    ),
    "one that comes back under a new name": case(
        "e f", "e", wanted="e g<f", moves="restore f__archive_1>g"
    ),
    "one that comes back under its first name": case(
        "e f", "e g<f", "e", wanted="e f", moves="restore g__archive_1>f"
    ),
    "of two archives the newest": case(
        "e f", "e", "e f g", "e g", wanted="e f g", moves="restore f__archive_2>f"
    ),
}  # fmt: skip


@pytest.mark.parametrize("found", ENTITIES.values(), ids=ENTITIES)
def test_entities(found: Case) -> None:
    warehouse = Warehouse(*(entities_of(text) for text in found.before))
    plan = warehouse.plan(entities_of(found.wanted))
    assert not plan.refusals
    assert sorted(_moves(warehouse, entities_of(found.wanted))) == sorted(found.moves)


REFUSED_COLUMNS = {
    "from what never was": ("a", "a c<x", RefusalCode.RENAME_UNMATCHED),
    "from what was archived with another type": ("a b:int|a", "a c<b", RefusalCode.RENAME_UNMATCHED),
    "onto what stands, and the source goes": ("a b", "b<a", RefusalCode.RENAME_AMBIGUOUS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "wanted", "code"), REFUSED_COLUMNS.values(), ids=REFUSED_COLUMNS
)
def test_a_directive_on_a_column_that_cannot_be_followed_is_refused(
    before: str, wanted: str, code: RefusalCode
) -> None:
    warehouse = Warehouse(*(columns_of(text) for text in before.split("|")))
    refusals = warehouse.plan(columns_of(wanted)).refusals
    assert [refusal.code for refusal in refusals] == [code]
    assert refusals[0].hint


REFUSED_ENTITIES = {
    "from what never was": ("e", "e f<x", RefusalCode.RENAME_UNMATCHED),
    "onto what stands, and the source goes": ("e f", "f<e", RefusalCode.RENAME_AMBIGUOUS),
}


@pytest.mark.parametrize(
    ("before", "wanted", "code"), REFUSED_ENTITIES.values(), ids=REFUSED_ENTITIES
)
def test_a_directive_on_an_entity_that_cannot_be_followed_is_refused(
    before: str, wanted: str, code: RefusalCode
) -> None:
    warehouse = Warehouse(*(entities_of(text) for text in before.split("|")))
    refusals = warehouse.plan(entities_of(wanted)).refusals
    assert [refusal.code for refusal in refusals] == [code]
    assert refusals[0].hint


def test_the_first_deployment_follows_no_directive() -> None:
    """A repository that was renamed in long ago is deployed to an empty warehouse as it is."""
    assert Warehouse().plan(entities_of("f<e")).refusals == ()
    assert Warehouse().plan(columns_of("b<a")).refusals == ()
