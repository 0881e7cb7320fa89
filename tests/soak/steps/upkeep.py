"""Steps that let go of what nobody needs, by jobs that may die, with another writer between two attempts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.deaths import killed_at_call_of
from tests.soak.drawing import Step
from tests.soak.steps.maintenance import MaintenanceSteps
from tests.soak.steps.rewritings import OTHERS, RewriteSteps
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome
from worker.io.storage import Storage

_DEATHS: tuple[tuple[Any, str], ...] = ((Job, "run_action"), (Storage, "delete"))


class UpkeepSteps(RewriteSteps, MaintenanceSteps):
    """Jobs of kind `expire_snapshots`, `rewrite_manifests` and `remove_orphan_files`."""

    def expire_snapshots(self, rng: Random) -> str:
        parameters = {"older_than_seconds": 0, "retain_last": rng.choice([1, 1, 2, 4])}
        before = len(self.table.snapshot_ids)
        said = self._tried(rng, "expire_snapshots", parameters=parameters)
        return f"{said}{before} snapshots became {len(self.table.snapshot_ids)}, {self._checked(rng)}"

    def rewrite_manifests(self, rng: Random) -> str:
        said = self._tried(rng, "rewrite_manifests")
        return f"{said}{self._checked(rng)}"

    def remove_orphan_files(self, rng: Random) -> str:
        self.rewrite = None  # who has not committed by now has given up: these files are orphans
        how: dict[str, Any] = {"parameters": {"older_than_seconds": 0}}
        listed = self.jobs.run("remove_orphan_files", dry_run=True, **how).result["orphans"]
        how |= {"orphan_files": listed["files"], "orphans_older_than": listed["older_than"]}
        said = self._tried(rng, "remove_orphan_files", **how)
        return f"{said}{listed['orphan_files']} files listed, {self._checked(rng)}"

    def _tried(self, rng: Random, kind: str, **how: Any) -> str:
        """One job, and what happened on the way."""
        job_id = f"{kind}-{rng.getrandbits(32)}"
        dies = rng.choice([None, None, *_DEATHS])
        when, between = rng.choice(["before", "after"]), Step(rng.choice(OTHERS), rng.getrandbits(32))
        run: Callable[..., Outcome] = self.jobs.run
        if dies is None:
            run(kind, job_id=job_id, **how)
            self._catch_up()
            return ""
        owner, call = dies
        with killed_at_call_of(owner, call, when) as death:
            run(kind, job_id=job_id, **how)
        self._catch_up()
        if not death.happened:
            return ""
        said = f"died {when} {call}, then {between.kind} ({self.do(between)}), "
        run(kind, job_id=job_id, attempt=2, ended_attempts=[self.jobs.reporter.left_by(job_id)], **how)
        self._catch_up()
        return said

    def _catch_up(self) -> None:
        """Snapshots are gone, or new ones show the same as the head."""
        self._note_new_snapshots()
        for snapshot_id in self.model.snapshots.keys() - self.table.snapshot_ids:
            del self.model.snapshots[snapshot_id]
        self.may_conflict = True

    def _checked(self, rng: Random) -> str:
        self._check_files_are_there()
        past = f", {self._check_past(rng)}" if self.model.snapshots else ""
        return self._check(rng) + past
