"""A script as text for ``psql``: the same statements that ``apply`` runs, with words for a reader.

Running it by hand skips what ``apply`` does around it: the comparison with the live state, the
lock against a second run, batches and retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import metadata
from mdm_gitops.warehouse.script import Script, ScriptStep

LOCK_TIMEOUT_S: Final = 3.0  # a blocked ALTER queues every reader behind it
# CONCURRENTLY also waits for old snapshots on tables that have nothing to do with it.
CONCURRENT_LOCK_TIMEOUT_S: Final = 600.0

_SETTINGS: Final = (
    ("search_path", "''"),
    ("timezone", "'UTC'"),
    ("datestyle", "'ISO'"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("client_min_messages", "warning"),  # IF EXISTS need not say that nothing was there
)
_IF_IT_FAILS: Final = {
    Phase.PREPARE: "nobody sees a difference yet; a new plan goes on from here",
    Phase.FLIP: "all of this transaction is taken back; the steps before it stay and do no harm",
    Phase.ENFORCE: "the rule does not hold for all rows yet; a new plan tries again",
    Phase.SEED: "the rows of this step are taken back; a new plan tries again",
    Phase.LINK: "the reference is not proven; a new plan tries again",
    Phase.FINISH: "only the record is behind; a new plan sets it right",
}


def to_psql(script: Script) -> str:
    """Return *script* for ``psql -f``; it stops at the first error."""
    return "\n".join(_lines(script)) + "\n"


def _lines(script: Script) -> Iterator[str]:
    yield _comment(f"plan {script.plan_id} of project {script.project}")
    asked = f", asked for by {script.actor}" if script.actor else ""
    yield _comment(f"commit {script.commit or 'none'}{asked}")
    yield _comment(
        f"{plural(len(script.steps), 'step')}; run with: psql -v ON_ERROR_STOP=1 -f THIS_FILE"
    )
    if not script.steps:
        yield _comment("nothing to do")
        return
    yield "\\set ON_ERROR_STOP on"
    for name, value in _SETTINGS:
        yield f"SET {name} = {value};"
    for step in script.steps:
        yield from _step_lines(step, len(script.steps))
    yield ""
    yield _comment("the run itself, for the list of deployments")
    yield f"{_deployment(script)};"


def _step_lines(step: ScriptStep, total: int) -> Iterator[str]:
    yield ""
    yield _comment(f"step {step.number} of {total}, {step.phase.value}: {step.title}")
    yield _comment(f"lock: {_lock_words(step)}")
    yield _comment(f"if it fails: {_IF_IT_FAILS[step.phase]}")
    if step.transactional:
        yield "BEGIN;"
        yield f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s';"
    else:
        yield f"SET lock_timeout = '{CONCURRENT_LOCK_TIMEOUT_S:g}s';"
    for statement in step.statements:
        yield _comment(statement.title)
        yield f"{statement.sql};"
    yield "COMMIT;" if step.transactional else "RESET lock_timeout;"


def _lock_words(step: ScriptStep) -> str:
    words = "none on rows" if step.lock is Lock.NONE else step.lock.value
    if step.scans:
        return f"{words}, held while each row is read"
    return f"{words}, brief"


def _comment(words: str) -> str:
    """Return one line of comment, whatever is in *words*."""
    return f"-- {' '.join(words.split())}"


def _deployment(script: Script) -> str:
    return metadata.deployment(
        plan_id=script.plan_id,
        commit=script.commit,
        actor=script.actor,
        entities=script.entities,
        schemas=script.schemas,
    )
