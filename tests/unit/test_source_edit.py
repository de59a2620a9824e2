"""Splicing items of lists: what is meant is what is read again, and nothing else of the text moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.model.access import PermissionItem
from mdm_gitops.source.edit import append_item, replace_item
from mdm_gitops.source.yaml_reader import load_yaml


def item(user: str) -> PermissionItem:
    return PermissionItem.model_validate({"users": [user], "domains": ["*"], "actions": ["read"]})


FILES = {
    "block": """\
# who may what
permissions:
  # the team
  - users: [ana]   # the boss
    domains: ["*"]
    actions: [admin]

  # everybody
  - {users: [all], domains: [ref], actions: [read]}

# the end
""",
    "no indentation": "permissions:\n- users: [ana]\n  domains: ['*']\n  actions: [read]\n- users: [bob]\n  domains: ['*']\n  actions: [read]\n",
    "flow": 'permissions: [{users: [ana], domains: ["*"], actions: [read]}, {users: [bob], domains: [ref], actions: [read]}]\n',
    "no line feed at the end": "permissions:\n  - users: [ana]\n    domains: [ref]\n    actions: [read]\n  - users: [bob]\n    domains: [ref]\n    actions: [read]",
    "dash on its own line": "permissions:\n  -\n    users: [ana]\n    domains: [ref]\n    actions: [read]\n  - users: [bob]\n    domains: [ref]\n    actions:\n      - read\n",
}


def users(data: bytes) -> list[str]:
    return [each["users"][0] for each in load_yaml(data, "permissions.yaml")["permissions"] or []]


@pytest.mark.parametrize("name", FILES)
def test_append_replace_and_remove(name: str) -> None:
    data = FILES[name].encode()
    before = users(data)
    assert users(append_item(data, "permissions", item("new"))) == [*before, "new"]
    for index in range(len(before)):
        others = [*before]
        others[index] = "new"
        assert users(replace_item(data, "permissions", index, item("new"))) == others
        del others[index]
        assert users(replace_item(data, "permissions", index, None)) == others
    emptied = data
    for _ in before:
        emptied = replace_item(emptied, "permissions", 0, None)
    assert users(emptied) == []
    assert users(append_item(emptied, "permissions", item("new"))) == ["new"]


def test_all_lines_of_others_stay() -> None:
    text = FILES["block"]
    appended = append_item(text.encode(), "permissions", item("new")).decode()
    assert [line for line in text.splitlines() if line not in appended.splitlines()] == []
    removed = replace_item(text.encode(), "permissions", 0, None).decode()
    gone = [line for line in text.splitlines() if line not in removed.splitlines()]
    assert gone == ["  - users: [ana]   # the boss", '    domains: ["*"]', "    actions: [admin]"]


@pytest.mark.parametrize(
    "text",
    ["", "permissions:\n", "permissions: []\n", "permissions: [] # none yet\n", "# nothing\n"],
)
def test_an_empty_file_gets_its_first_item(text: str) -> None:
    assert users(append_item(text.encode(), "permissions", item("new"))) == ["new"]
    assert users(append_item(None, "permissions", item("new"))) == ["new"]


@given(st.lists(st.sampled_from(["append", "replace", "remove"]), max_size=12), st.randoms())
def test_any_walk_of_edits_means_what_it_says(steps: list[str], chance: object) -> None:
    data, expected = FILES["block"].encode(), ["ana", "all"]
    for number, step in enumerate(steps):
        name = f"u{number}"
        if step == "append" or not expected:
            data = append_item(data, "permissions", item(name))
            expected.append(name)
            continue
        index = chance.randrange(len(expected))  # type: ignore[attr-defined]
        data = replace_item(data, "permissions", index, item(name) if step == "replace" else None)
        if step == "replace":
            expected[index] = name
        else:
            del expected[index]
        assert users(data) == expected
    assert b"# who may what" in data and b"# the end" in data
