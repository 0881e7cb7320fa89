"""The kinds of jobs, each composed of the stages: plan -> read -> index | lookup -> deletes -> commit."""

from __future__ import annotations

from collections.abc import Callable

from worker.control_plane import Assignment
from worker.conversion import convert_table
from worker.indexing import compact_index, index_table, rebuild_index
from worker.job import Job, JobError, Outcome, PinnedTable, Reporter, pin_table
from worker.removal import drop_index
from worker.session import TaskRunner
from worker.sorted_runs import IndexCommitConflictError, IndexWarehouse
from worker.verification import verify_index

_KINDS: dict[str, Callable[[Job, PinnedTable, IndexWarehouse], Outcome]] = {
    "index": index_table,
    "convert": convert_table,
    "compact": compact_index,
    "rebuild": rebuild_index,
    "verify": verify_index,
}


def run_job(assignment: Assignment, runner: TaskRunner, reporter: Reporter) -> Outcome:
    """Runs one attempt of a job, from a freshly loaded table. Raises JobError with the cause in words."""
    job = Job(assignment, runner, reporter)
    if assignment.job.kind == "drop_index":
        return drop_index(job)
    run = _KINDS.get(assignment.job.kind)
    if run is None:
        raise JobError(
            "unsupported_job_kind",
            f"This worker runs no {assignment.job.kind} jobs",
            f"it knows {', '.join(sorted(_KINDS))}",
            "Update the worker to the service's version.",
        )
    with job.stage("plan"):
        table = pin_table(job)
        warehouse = IndexWarehouse(assignment.index.warehouse, table.storage)
    try:
        return run(job, table, warehouse)
    except IndexCommitConflictError as error:
        raise JobError(
            "index_conflict",
            "Another commit to the index came first",
            str(error),
            "Nothing to do: it was a late one of an attempt that had lost its job, and the next attempt plans"
            " on what is there now.",
            retryable=True,
        ) from error
