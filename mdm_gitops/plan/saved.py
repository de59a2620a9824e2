"""A saved plan: what ``plan --out`` writes and ``apply FILE`` reads.

It names what it was made for and carries nothing that could be run: applying it makes the plan
again under the lock and goes on only if it is still the same, so a tampered file can at most be
refused. Two warehouses may look the same, so it also names the one that it is for: the environment,
which the apply has to be told as well, and the database itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mdm_gitops.errors import InputError, PlanStale
from mdm_gitops.plan.document import to_document
from mdm_gitops.plan.plan import Plan

FORMAT: Final = "mdm-gitops/saved-plan/v2"
MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    plan_id: str
    desired_hash: str
    live_fingerprint: str
    base_commit: str | None
    environment: str  # "" for none
    database: str  # as ``warehouse.session.database_identity`` has it
    directory: Path
    target: tuple[str, ...]
    document: dict[str, Any]  # the plan for a reader; never acted on

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        directory: Path,
        target: tuple[str, ...],
        environment: str,
        database: str,
    ) -> SavedPlan:
        return cls(
            plan_id=plan.plan_id,
            desired_hash=plan.desired_hash,
            live_fingerprint=plan.live_fingerprint,
            base_commit=plan.base_commit,
            environment=environment,
            database=database,
            directory=directory,
            target=target,
            document=to_document(plan),
        )

    def refuse_elsewhere(self, *, environment: str, database: str | None = None) -> None:
        """Raise PlanStale unless it was made for *environment*, and for *database* once that is known."""
        if self.environment != environment:
            made, asked = (f"environment {name}" if name else "no environment"
                           for name in (self.environment, environment))  # fmt: skip
            raise PlanStale(
                f"saved plan {self.plan_id} was made for {made}, and this is for {asked}",
                hint=f"Apply it with --env {self.environment}, or make a new plan and review it"
                if self.environment
                else "Apply it without --env and MDM_ENV, or make a new plan and review it",
            )
        if database is not None and self.database != database:
            raise PlanStale(
                f"saved plan {self.plan_id} was made for another database",
                hint="Make a new plan with --out and review it",
            )

    def to_text(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "planId": self.plan_id,
                "desiredHash": self.desired_hash,
                "liveFingerprint": self.live_fingerprint,
                "baseCommit": self.base_commit,
                "environment": self.environment,
                "database": self.database,
                "directory": str(self.directory),
                "target": list(self.target),
                "plan": self.document,
            },
            indent=2,
            ensure_ascii=False,
        )

    @classmethod
    def read(cls, path: Path) -> SavedPlan:
        """Read what ``to_text`` wrote.

        Raises:
            InputError: the file is something else.
        """
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError
            return cls(
                plan_id=str(found["planId"]),
                desired_hash=str(found["desiredHash"]),
                live_fingerprint=str(found["liveFingerprint"]),
                base_commit=found["baseCommit"],
                environment=str(found["environment"]),
                database=str(found["database"]),
                directory=Path(found["directory"]),
                target=tuple(str(name) for name in found["target"]),
                document=dict(found["plan"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{path} is not a saved plan", hint="Make one with: mdm-gitops plan --out FILE"
            ) from None
