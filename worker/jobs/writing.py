"""Jobs that write rows by key: `upsert` adds rows and deletes those of their keys, `delete` deletes these.

plan -> lookup -> deletes and rows -> commit -> index -> report. Whatever others commit meanwhile is looked at
before the commit is tried again: by what is new in it alone, so in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable
from worker.index.warehouse import IndexWarehouse
from worker.jobs.after_commit import AfterCommit, index_new_files
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.own_commits import Made, OwnCommit, commit_result
from worker.table.commit import CommittedSnapshot
from worker.table.files import DataFiles
from worker.table.row_delta import layout_of_new_rows
from worker.writes.plan import LEFT_OUT, Part, Plan, totals


def write_rows(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Writes the rows of the assignment in one commit; does nothing if an earlier attempt has."""
    write = RowWrite(job, warehouse)
    return write.outcome(write.run(table))


class RowWrite:
    """A job that writes rows: what it planned last."""

    def __init__(
        self, job: Job, warehouse: IndexWarehouse, properties: Mapping[str, str] | None = None
    ) -> None:
        """properties: of the snapshot, which tell it from other commits of the job."""
        self._job = job
        self._warehouse = warehouse
        self._properties = properties or {}
        self._own = OwnCommit(job, self._is_it, "there is nothing left to write")
        self._plan: Plan | None = None

    @property
    def plans(self) -> int:
        """How many numbers of plans it has taken."""
        return 0 if self._plan is None else self._plan.number

    def run(self, table: PinnedTable) -> Made[Part]:
        """The commit, made once however many attempts there are. Plans again while others come first."""
        busy = "Nothing was written. Write when the others that commit to this table all the time are idle."
        return self._own.make(table, self._resolved, self._remove_written, busy)

    def _resolved(self, table: PinnedTable) -> tuple[Part, Callable[[], CommittedSnapshot | None]]:
        plan = self._plan_for(table)
        part = plan.resolve(table)
        return part, partial(plan.commit, table, part, self._properties)

    def _plan_for(self, table: PinnedTable) -> Plan:
        """The one that there is, unless it was made for another schema, spec or format version."""
        if self._plan is not None and self._plan.layout == layout_of_new_rows(table.metadata):
            return self._plan
        self._remove_written()
        self._plan = Plan(self._job, table, self._warehouse, self.plans)
        return self._plan

    def _is_it(self, summary: Mapping[str, str]) -> bool:
        return self._properties.items() <= summary.items()

    def _remove_written(self) -> None:
        if self._plan is not None and not self._plan.fate.may_be_committed:
            self._plan.remove_written()

    # report

    def outcome(self, written: Made[Part]) -> Outcome:
        table, summary, committed, part = written.table, written.summary, written.snapshot, written.part
        job = self._job
        plan = self._plan if part is not None else None
        counts = totals(summary)
        if committed is not None:
            job.reporter = AfterCommit(job.reporter)
        if written.lost:
            job.decide(f"Others committed first {counted(written.lost, 'time')}.")
        job.decide(_sentence(counts, dry_run=job.assignment.job.dry_run))
        of_commit = commit_result(job, table, committed)
        cleared = [] if job.assignment.job.dry_run else clear_dead_attempts(job)
        if committed is not None:
            table = index_new_files(
                job, table, self._warehouse, lambda files: _files_of_job(files, job.assignment.job.id)
            )
        left_out = json.loads(summary[LEFT_OUT]) if LEFT_OUT in summary else []
        result: dict[str, Any] = {
            **of_commit,
            **counts,
            "left_out": left_out,
            "key_sets": [plan.explanation()] if plan else [],
        }
        return outcome(job, table, self._warehouse, result, table.files, [], table.snapshot_id, cleared)


def _files_of_job(files: DataFiles, job_id: str) -> DataFiles:
    """By their names, which no other job writes."""
    parts = [
        pc.match_substring(piece, f"/icestream-{job_id}-").to_numpy(zero_copy_only=False)
        for piece in files.path_pieces()
    ]
    return files.select(np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *parts])))


def _sentence(counts: Mapping[str, int], *, dry_run: bool) -> str:
    added, deleted = counted(counts["rows_added"], "row"), counted(counts["rows_deleted"], "row")
    told = f"{added} added and {deleted} deleted"
    if counts["rows_left_out"]:
        told += f"; {counted(counts['rows_left_out'], 'row')} left out, as the request says"
    return f"{'A write would come to: ' if dry_run else ''}{told}."
