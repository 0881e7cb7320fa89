"""Delete files that an attempt wrote and neither committed nor removed: whoever follows removes them.

An attempt announces each plan to the control plane before it writes, and again before it commits, then with
an equality delete file that the commit removes. So it is known by name what a dead attempt may have left,
without listing anything, and what can't be committed any more: a plan that was never about to be, and one
that would remove a file that is gone, which Iceberg refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from worker.control_plane import AttemptId, Leftovers
from worker.deletes import DeleteFileLocations, remove_written
from worker.job import Job, JobError, PinnedTable, pin_table
from worker.manifests import UnsupportedTableError, delete_files_of_all_snapshots


def output_locations(
    table: PinnedTable, job_id: str, attempt: int, plan: int, task: int
) -> DeleteFileLocations:
    """Where a task of a plan writes: names that no other attempt writes, and that anybody can tell."""
    prefix = f"{_plan_prefix(job_id, attempt, plan)}{task:05d}"
    return DeleteFileLocations(table.metadata.location, table.metadata.properties, prefix)


def _plan_prefix(job_id: str, attempt: int, plan: int) -> str:
    return f"icestream-{job_id}-{attempt}-{plan}-"


def remove_leftovers(job: Job) -> list[AttemptId]:
    """Deletes what earlier attempts of the table's jobs left; returns those of which nothing is left.

    A trouble here undoes nothing of the job: it is told, and the next job tries again.
    """
    cleared: list[AttemptId] = []
    if not job.assignment.leftovers:
        return cleared
    try:
        table = pin_table(job)  # as it is after all that these attempts did, and this one
        needed = cache(lambda: delete_files_of_all_snapshots(table.metadata, table.storage.io))
        for left in job.assignment.leftovers:
            if _remove(job, table, left, needed):
                cleared.append(AttemptId(job_id=left.job_id, attempt=left.attempt))
    except (JobError, OSError, UnsupportedTableError) as error:
        job.decide(f"Files that earlier attempts left behind can't be removed yet: {error}.")
    return cleared


def _remove(job: Job, table: PinnedTable, left: Leftovers, needed: Callable[[], set[str]]) -> bool:
    """Whether nothing of the attempt's is left. needed: delete files that some snapshot shows."""
    live = {file.path for file in table.files.equality_deletes}
    whose = f"attempt {left.attempt} of job {left.job_id} left behind"
    removed = 0
    is_cleared = True
    for plan in left.plans:
        if plan.removes in live:
            job.decide(f"Files that {whose} stay for now: its commit may still come.")
            is_cleared = False
            continue
        prefix = _plan_prefix(left.job_id, left.attempt, plan.number)
        if plan.removes is not None and any(f"/{prefix}" in path for path in needed()):
            continue  # it was committed
        for task in range(plan.tasks):
            locations = output_locations(table, left.job_id, left.attempt, plan.number, task)
            removed += remove_written(table.storage, locations)
    if removed:
        job.decide(f"Removed {removed:,} files that {whose}.")
    return is_cleared
