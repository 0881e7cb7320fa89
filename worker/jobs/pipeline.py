"""The kinds of jobs, each composed of the stages: plan -> read -> index | lookup -> deletes -> commit."""

import math
from collections.abc import Callable

from worker.attempt.job import Job, Reporter, Usage
from worker.attempt.outcome import Outcome
from worker.attempt.pinned_table import PinnedTable, index_storage, pin_table
from worker.contract.control_plane import Assignment, ControlPlaneError, StaleAttemptError
from worker.index.warehouse import IndexWarehouse
from worker.jobs.conversion import convert_table
from worker.jobs.data_file_rewriting import rewrite_data_files
from worker.jobs.erasure import erase
from worker.jobs.foreign_errors import meaning_of
from worker.jobs.indexing import compact_index, drop_index, index_table, rebuild_index
from worker.jobs.manifest_rewriting import rewrite_manifests
from worker.jobs.orphan_removal import remove_orphans
from worker.jobs.position_delete_rewriting import rewrite_position_delete_files
from worker.jobs.publishing import publish
from worker.jobs.report_duplicates import report_duplicates
from worker.jobs.snapshot_expiry import expire_snapshots
from worker.jobs.verification import verify_index
from worker.jobs.writing import write_rows
from worker.process.errors import JobCancelledError, JobError
from worker.spark.tasks import TaskRunner

_KINDS: dict[str, Callable[[Job, PinnedTable, IndexWarehouse], Outcome]] = {
    "index": index_table,
    "convert": convert_table,
    "compact": compact_index,
    "rebuild": rebuild_index,
    "verify": verify_index,
    "report_duplicates": report_duplicates,
    "upsert": write_rows,
    "delete": write_rows,
    "erase": erase,
    "publish": publish,
    "expire_snapshots": expire_snapshots,
    "rewrite_manifests": rewrite_manifests,
    "rewrite_data_files": rewrite_data_files,
    "remove_orphan_files": remove_orphans,
    "rewrite_position_delete_files": rewrite_position_delete_files,
}


class UnsupportedJobKindError(JobError):
    code = "unsupported_job_kind"
    title = "This worker does not know that kind of job"
    remedy = "Update the worker to the service's version."


def run_job(
    assignment: Assignment, runner: TaskRunner, reporter: Reporter, usage: Usage | None = None
) -> Outcome:
    """Runs one attempt of a job, from a freshly loaded table. Raises JobError with the cause in words.

    usage: where to count what it takes.
    """
    job = Job(assignment, runner, reporter, usage=usage or Usage())
    if tasks := assignment.policy.resources.max_tasks:
        job.runner = runner.limited(tasks)
        job.decide(f"At most {tasks} tasks run at a time, as the policy says.")
    if job.own_memory_fraction < 1:
        job.runner = job.runner.smaller(job.own_memory_fraction)
        died = round(math.log2(job.memory_fraction_of_policy / job.own_memory_fraction))
        lost = f"{died} earlier attempts may have died of too little memory, so this one holds"
        why = lost if died else "The policy lets this job hold"
        job.decide(f"{why} 1/{1 / job.own_memory_fraction:.0f} of the usual at once.")
    try:
        return _run(job)
    except (JobError, JobCancelledError, StaleAttemptError, ControlPlaneError):
        raise
    except Exception as error:
        known = meaning_of(error)
        if known is None:
            raise
        raise known from error


def _run(job: Job) -> Outcome:
    assignment = job.assignment
    if assignment.job.kind == "drop_index":
        return drop_index(job)
    run = _KINDS.get(assignment.job.kind)
    if run is None:
        known = ", ".join(sorted(_KINDS))
        raise UnsupportedJobKindError(f"it runs no {assignment.job.kind} jobs; it knows {known}")
    with job.stage("plan"):
        table = pin_table(job)
        storage = index_storage(assignment, table.storage)
        warehouse = IndexWarehouse(assignment.index.warehouse, storage)
    return run(job, table, warehouse)
