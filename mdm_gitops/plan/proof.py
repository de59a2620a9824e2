"""What carrying out a plan elsewhere has shown: the result, and how it is told.

``warehouse.proving`` makes it. All formats of a plan use the words of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from mdm_gitops.plan.human import plural


class ProofState(StrEnum):
    PROVEN = "proven"
    FAILED = "failed"
    NOT_MADE = "not-made"  # there was nothing that could be carried out


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """*problems* are whole sentences, without a final period; empty only where it is proven."""

    state: ProofState
    place: str  # what it was carried out on
    steps: int = 0
    statements: int = 0
    relations: int = 0  # tables and views that were compared with what the definitions ask for
    problems: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.state is ProofState.FAILED


def proof_words(proof: Proof) -> str:
    """Return the result as one sentence; problems are told apart from it."""
    match proof.state:
        case ProofState.PROVEN:
            return (
                f"carried out on {proof.place}: {plural(proof.steps, 'step')} with"
                f" {plural(proof.statements, 'statement')} ran, {plural(proof.relations, 'relation')}"
                " came out as the definitions ask for, a second plan is empty"
            )
        case ProofState.FAILED:
            return f"carried out on {proof.place}, this plan does not lead where it should"
        case ProofState.NOT_MADE:
            return "there is no proof"
        case _:
            assert_never(proof.state)


def proof_document(proof: Proof) -> dict[str, Any]:
    return {
        "state": proof.state.value,
        "place": proof.place,
        "steps": proof.steps,
        "statements": proof.statements,
        "relations": proof.relations,
        "message": proof_words(proof),
        "problems": list(proof.problems),
    }
