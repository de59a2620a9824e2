from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model import Entity
from mdm_gitops.source import format_yaml, parse_entity, render_entity
from mdm_gitops.source.layout import is_plain, quoted
from mdm_gitops.source.yaml_reader import load_yaml

BEFORE = """\
# yaml-language-server: $schema=../schemas/entity.json
# Customers we know
domain:   "sales"   # owned by Ann
name: 'customer'


# the business key
keyColumns:
    - code # never changes

description: |
     First line
       indented

columns:
- dataType: string
  name: code
  nullable: false
  # pattern: [A-Z]+
  #   (not yet)
# the second
- {name: b, dataType: 'int', reference: {entity: "x"}} # on one line
-
  # inner
  name: c
  allowedValues: [a, # one
    "b",   'no', "12"
    # two
    ]
  dataType: string
  description: >-
    folded text
    goes on
historyEnabled: true
# end
"""

AFTER = """\
# yaml-language-server: $schema=../schemas/entity.json
name: customer
# Customers we know
domain: sales  # owned by Ann

description: |
  First line
    indented
historyEnabled: true

# the business key
keyColumns:
  - code  # never changes

columns:
  - name: code
    dataType: string
    nullable: false
    # pattern: [A-Z]+
    #   (not yet)
  # the second
  - {name: b, dataType: int, reference: {entity: x}}  # on one line
  # inner
  - name: c
    description: >-
      folded text
      goes on
    dataType: string
    allowedValues:
      - a  # one
      - b
      - "no"
      - "12"
      # two
# end
"""


def test_keys_are_ordered_and_comments_move_along() -> None:
    assert format_yaml(BEFORE.encode(), "entities/customer.yaml") == AFTER
    assert format_yaml(AFTER.encode(), "entities/customer.yaml") == AFTER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: 1\r\nb:   2\r\n", "a: 1\nb: 2\n"),
        ("a: 1", "a: 1\n"),
        ("# only a comment\n", "# only a comment\n"),
        ("", ""),
        ("\n\n\na: 1\n\n\n\nb: 2\n\n\n", "a: 1\n\nb: 2\n"),
        ("---\na: 1\n...\n", "a: 1\n"),
        ("# top\n\n---\na: 1\n", "# top\n\na: 1\n"),
        ("a: {}\nb: [ ]\nc:\nd: ~\n", "a: {}\nb: []\nc:\nd: ~\n"),
        ("a: 'it''s'\nb: 'x\\y'\nc: \"\\x41\"\n", "a: it's\nb: 'x\\y'\nc: A\n"),
        ('a: "#x"\nb: "a # b"\nc: "a: b"\nd: "x:y"\n', 'a: "#x"\nb: "a # b"\nc: "a: b"\nd: x:y\n'),
        ("a: ['x:y', 'q']\n", 'a: ["x:y", q]\n'),
        ("a: plain\n  on two lines\n", "a: plain on two lines\n"),
        ('a: "two\\nlines"\n', "a: |-\n  two\n  lines\n"),
        ("a: |2\n    x\n   y\n", 'a: "  x\\n y\\n"\n'),
        ("a: |+\n  x\n\n", 'a: "x\\n\\n"\n'),
        ("a: | # why\n   x\n", "a: | # why\n  x\n"),
        ("a:\n- - 1\n  - 2\n- 3\n", "a:\n  - - 1\n    - 2\n  - 3\n"),
        ("a:\n  # deep\nb: 1\n", "a:\n# deep\nb: 1\n"),
        ("- 1\n-   2 # two\n", "- 1\n- 2  # two\n"),
        ("just text\n", "just text\n"),
        ("a: [" + ", ".join(["word"] * 30) + "]\n", "a:\n" + "  - word\n" * 30),
        ("a: [1, # one\n  2]\n", "a:\n  - 1  # one\n  - 2\n"),
        ("a: {b: [1,\n 2], c: 3} # x\n", "a: {b: [1, 2], c: 3}  # x\n"),
        ("- # dash\n  - b\n", "# dash\n- - b\n"),
        ("a: 1\nq: # key\n  b\n", "a: 1\n# key\nq: b\n"),
        ("a: # key\n  - 1\n", "a:  # key\n  - 1\n"),
        ("a: |\n  b", "a: b\n"),
        ("? a\n: b\n", "a: b\n"),
        ("no: 1\n'yes': 2\n", 'no: 1\n"yes": 2\n'),
    ],
)
def test_the_canonical_form(before: str, after: str) -> None:
    assert format_yaml(before.encode(), "x.yaml") == after
    assert format_yaml(after.encode(), "x.yaml") == after


def test_each_kind_of_file_has_its_own_order_of_keys() -> None:
    text = b"webhooks:\n  - url: https://x.test\n    name: w\n"
    assert format_yaml(text, "webhooks.yaml") == (
        "webhooks:\n  - name: w\n    url: https://x.test\n"
    )
    text = b"domains:\n  - displayName: S\n    name: s\napiVersion: mdm-gitops/v1\nname: x\n"
    assert format_yaml(text, "mdm.yaml") == (
        "name: x\napiVersion: mdm-gitops/v1\ndomains:\n  - name: s\n    displayName: S\n"
    )


def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"entities/a.yaml:1:4"):
        format_yaml(b"a: *x\n", "entities/a.yaml")


LINES = st.lists(
    st.sampled_from(
        [
            "name: a", "  b: c", "- x", "  - y", "    - z: 1", "# c0", "  # c2", "    # c4", "",
            "k: [1, 2] # t", "l: {a: b}", "m: |", "  text", "   more", "n: 'q' # r", "columns:",
            "  - name: x", "    dataType: int", "domain: d", "o: [1,", "  # in", "  2]", "p: >-",
            "- # dash", "q: # key", "key: 'a", "  b'", "? z", ": y", "---",
        ]
    ),
    max_size=14,
)  # fmt: skip


@example(["", "", "n: q", "name: a"])
@given(LINES)
def test_fmt_keeps_meaning_and_comments_and_is_idempotent(lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    try:
        value = load_yaml(data, "x.yaml")
    except DefinitionError:
        assume(False)
    formatted = format_yaml(data, "x.yaml")
    assert load_yaml(formatted.encode(), "x.yaml") == value
    assert format_yaml(formatted.encode(), "x.yaml") == formatted
    for line in lines:
        if line.lstrip().startswith("# c"):
            assert formatted.count(line.strip()) == "\n".join(lines).count(line.strip())


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("#:'\"\\ \n\t-[]{},&*!|>%@`~=?\x85"),
    max_size=20,
) | st.sampled_from(["no", "Yes", "null", "014", "1.5", "2020-01-01", "1:20", "y", "=", "<<", ""])


@given(TEXTS, st.booleans())
def test_text_reads_the_same_in_yaml_1_1_and_1_2(text: str, flow: bool) -> None:
    token = quoted(text, flow=flow)
    written = f"[{token}, {token}]\n" if flow else f"k: {token}\n"
    old, new = yaml.safe_load(written), load_yaml(written.encode(), "x.yaml")
    assert old == new == ([text, text] if flow else {"k": text})


@pytest.mark.parametrize("text", ["name", "Two words", "Größe", "a/b", "it's", "x-1", "日本"])
def test_usual_text_has_no_quotes(text: str) -> None:
    assert is_plain(text, flow=True)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(_[a-z0-9]{1,4})?", fullmatch=True).filter(
    lambda name: name not in ("summary", "validate", "xmin", "xmax", "cmin", "cmax", "ctid")
)
OPTIONAL_TEXT = st.none() | TEXTS


@st.composite
def entities(draw: st.DrawFn) -> Entity:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    columns: list[dict[str, Any]] = [
        {
            "name": name,
            "dataType": draw(st.sampled_from(["string", "text", "bool", "date", "decimal"])),
            "displayName": draw(OPTIONAL_TEXT),
            "description": draw(OPTIONAL_TEXT),
            "nullable": number > 0 and draw(st.booleans()),
            "classification": draw(st.sampled_from(["public", "internal", "restricted"])),
            "ui": draw(st.none() | st.fixed_dictionaries({"message": OPTIONAL_TEXT})),
            "reference": draw(st.none() | st.fixed_dictionaries({"entity": NAMES})),
        }
        for number, name in enumerate(names)
    ]
    texts = draw(st.lists(TEXTS.filter(lambda text: "\x00" not in text), max_size=3, unique=True))
    columns[0] |= {"dataType": "string", "allowedValues": texts}
    return Entity.model_validate(
        {
            "name": draw(NAMES),
            "domain": draw(TEXTS),
            "description": draw(OPTIONAL_TEXT),
            "historyEnabled": draw(st.booleans()),
            "keyColumns": draw(st.sampled_from([[], [names[0]]])),
            "sortColumns": draw(st.sampled_from([[], [{"column": names[0], "direction": "desc"}]])),
            "lifecycle": {"preventRemove": draw(st.booleans())},
            "survivorship": draw(
                st.sampled_from([{}, {"rules": ["longest"]}, {"rules": ["mostRecent", "survivor"]}])
            ),
            "similarity": draw(
                st.none()
                | st.fixed_dictionaries(
                    {
                        "minScore": st.floats(0, 1),
                        "columns": st.just([{"name": names[0], "weight": 1.5}]),
                    }
                )
            ),
            "columns": columns,
        }
    )


@given(entities())
def test_render_and_parse_are_inverse(entity: Entity) -> None:
    text = render_entity(entity)
    again = parse_entity(text)
    assert again == entity
    assert again.content_hash() == entity.content_hash()
    assert render_entity(again) == text


@given(entities())
def test_what_is_rendered_is_what_fmt_leaves_alone(entity: Entity) -> None:
    text = render_entity(entity)
    assert format_yaml(text.encode(), "entities/x.yaml") == text


@given(entities(), st.integers(1, 6), st.booleans(), st.randoms(use_true_random=False))
def test_fmt_never_changes_what_an_entity_means(
    entity: Entity, indent: int, flow: bool, random: Any
) -> None:
    document = entity.to_document()
    pairs = list(document.items())
    random.shuffle(pairs)
    text = yaml.safe_dump(
        dict(pairs), indent=indent, default_flow_style=flow, sort_keys=False, allow_unicode=True
    )
    text = text.replace("\x85", "\\x85") if not flow else json.dumps(dict(pairs))
    try:
        before = parse_entity(text)
    except DefinitionError:
        assume(False)
    formatted = format_yaml(text.encode(), "entities/x.yaml")
    assert parse_entity(formatted).content_hash() == before.content_hash()
    assert format_yaml(formatted.encode(), "entities/x.yaml") == formatted
