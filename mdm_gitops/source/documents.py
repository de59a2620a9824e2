"""Definition files in memory: what they say, and where each part of it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from mdm_gitops.errors import DefinitionError, Finding, Location
from mdm_gitops.model.base import Definition
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.source.json_reader import load_rows
from mdm_gitops.source.json_reader import locate_all as locate_all_json
from mdm_gitops.source.limits import MAX_FINDINGS_PER_FILE
from mdm_gitops.source.yaml_nodes import Node, compose
from mdm_gitops.source.yaml_nodes import locate as locate_yaml
from mdm_gitops.source.yaml_reader import load_yaml

Shape = TypeVar("Shape", bound=Definition)
MORE_FINDINGS: Final = "more-findings"
_NOTHING: Final = Location("")


@dataclass
class YamlDocument:
    """One YAML file. The tree with positions is made when the first location is asked for."""

    path: str
    data: bytes

    @cached_property
    def _root(self) -> Node | None:
        return compose(self.data)

    def locate(self, places: Sequence[tuple[Pointer, bool]]) -> list[Location]:
        return [
            locate_yaml(self._root, pointer, self.path, key=on_key) for pointer, on_key in places
        ]

    def as_model(self, model: type[Shape], schema_name: str) -> Shape:
        """Return the document as a value of *model*, or raise DefinitionError with all findings."""
        value = load_yaml(self.data, self.path)  # not kept: of a thousand files it is megabytes
        try:
            return model.model_validate(value, by_alias=True, by_name=False)
        except ValidationError as exc:
            from mdm_gitops.source.explain import explain  # loads jsonschema: half of the start

            problems = explain(schema_name, value, exc)
        raise DefinitionError(findings_of(problems, self))


@dataclass
class RowsDocument:
    """One seed file."""

    path: str
    data: bytes = field(repr=False)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return load_rows(self.data, self.path)

    def locate(self, places: Sequence[tuple[Pointer, bool]]) -> list[Location]:
        return locate_all_json(self.data.decode(), places, self.path)


def findings_of(
    problems: Iterable[Problem], document: YamlDocument | RowsDocument
) -> list[Finding]:
    """Return *problems* with their places; of a great many only the first, and how many more."""
    found = list(problems)
    kept = found[:MAX_FINDINGS_PER_FILE]
    locations = document.locate([(problem.pointer, problem.on_key) for problem in kept])
    findings = [
        Finding(
            rule=problem.rule,
            message=problem.message,
            location=location,
            pointer=json_pointer(problem.pointer),
            hint=problem.hint,
        )
        for problem, location in zip(kept, locations, strict=True)
    ]
    if len(found) > len(kept):
        message = f"{len(found) - len(kept)} more findings in this file are not listed"
        last = max((finding.location for finding in findings), default=_NOTHING)
        findings.append(Finding(rule=MORE_FINDINGS, message=message, location=last))
    return findings


def json_pointer(pointer: Pointer) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in pointer)
