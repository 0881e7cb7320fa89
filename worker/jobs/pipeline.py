"""The kinds of jobs, each composed of the stages: plan -> read -> index | lookup -> deletes -> commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from trust.bounds import LimitExceededError, OutOfTimeError
from trust.egress import AmbiguousHostError, HostNotAllowedError
from trust.locations import LocationNotAllowedError
from trust.rest_answers import SentElsewhereError
from worker.attempt.job import Account, Job, Reporter
from worker.attempt.outcome import Outcome
from worker.attempt.pinned_table import PinnedTable, index_storage, pin_table
from worker.contract.control_plane import OUT_OF_MEMORY, Assignment, ControlPlaneError, StaleAttemptError
from worker.index.sorted_runs import IndexCommitConflictError, IndexWarehouse
from worker.io.storage import causes_of, lacks_own_memory
from worker.jobs.conversion import convert_table
from worker.jobs.indexing import compact_index, index_table, rebuild_index
from worker.jobs.removal import drop_index
from worker.jobs.verification import verify_index
from worker.process.errors import JobCancelledError, JobError
from worker.spark.tasks import TaskRunner

# Errors whose text is all that there is of what happened in another process.
_ABROAD = (Py4JError, PySparkException)
# Of a Python process of Spark's, the system kills whichever takes most; Spark knows only that it is gone.
_SIGNS = ("MemoryError", "OutOfMemoryError", "Python worker exited unexpectedly")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_KINDS: dict[str, Callable[[Job, PinnedTable, IndexWarehouse], Outcome]] = {
    "index": index_table,
    "convert": convert_table,
    "compact": compact_index,
    "rebuild": rebuild_index,
    "verify": verify_index,
}


def run_job(
    assignment: Assignment, runner: TaskRunner, reporter: Reporter, account: Account | None = None
) -> Outcome:
    """Runs one attempt of a job, from a freshly loaded table. Raises JobError with the cause in words.

    account: where to count what it takes.
    """
    job = Job(assignment, runner, reporter, account=account or Account())
    if tasks := assignment.policy.resources.max_tasks:
        job.runner = runner.limited(tasks)
        job.decide(f"At most {tasks} tasks run at a time, as the policy says.")
    if job.own_halvings:
        job.runner = job.runner.smaller(job.own_halvings)
        died = job.own_halvings - job.halvings_of_policy
        job.decide(
            (
                f"{died} earlier attempts may have died of too little memory, so this one holds"
                if died
                else "The policy lets this job hold"
            )
            + f" 1/{2**job.own_halvings} of the usual at once."
        )
    try:
        return _run(job)
    except IndexCommitConflictError as error:
        raise JobError(
            "index_conflict",
            "Another commit to the index came first",
            str(error),
            "Nothing to do: it was a late one of an attempt that had lost its job, and the next attempt plans"
            " on what is there now.",
            retryable=True,
        ) from error
    except LocationNotAllowedError as error:
        raise JobError(
            "location_not_allowed",
            "The table leads outside the allowed places",
            str(error),
            "If that is meant, add it to the service's ICESTREAM_ALLOWED_LOCATIONS and start that again.",
        ) from error
    except AmbiguousHostError as error:
        raise JobError(
            "host_not_allowed",
            "The catalog names a host in a way that not all programs read alike",
            str(error),
            f"Correct {error.key} in the catalog's record.",
        ) from error
    except HostNotAllowedError as error:
        raise JobError(
            "host_not_allowed",
            "The catalog leads to a host that is not allowed",
            str(error),
            "If that is meant, add it to the service's ICESTREAM_ALLOWED_HOSTS and start that again.",
        ) from error
    except SentElsewhereError as error:
        raise JobError(
            "catalog_redirects", "The catalog sends callers elsewhere", error.detail, error.remedy
        ) from error
    except LimitExceededError as error:
        raise JobError(
            "catalog_limit_exceeded",
            "The catalog answers with more than is taken of it",
            str(error),
            error.remedy,
            retryable=isinstance(error, OutOfTimeError),
        ) from error
    except Exception as error:
        if isinstance(error, JobError | JobCancelledError | StaleAttemptError | ControlPlaneError):
            raise
        if lacks_memory(error):
            raise JobError(
                OUT_OF_MEMORY,
                "The worker's memory was too small",
                str(error) or type(error).__name__,
                "The next attempt holds half as much at once. If none succeeds, give the worker more memory.",
                retryable=True,
            ) from error
        full = lack_of_room(error)
        if full is not None:
            raise JobError(
                "storage_full",
                "There is no room left",
                full,
                "Make room where the table, its index, or temporary files of the worker or of Spark lie.",
                retryable=True,
            ) from error
        if isinstance(error, OSError):
            raise JobError(
                "storage_error",
                "The storage failed",
                str(error),
                "It is tried again. If it stays, check the store, its address and the worker's rights.",
                retryable=True,
            ) from error
        raise


def lacks_memory(error: BaseException) -> bool:
    """Whether an error, or a cause of it, tells of too little memory: here, in Java or in a task."""
    if lacks_own_memory(error):
        return True
    for one in causes_of(error):
        words = f"{type(one).__name__} {one}" if isinstance(one, _ABROAD) else type(one).__name__
        if any(sign in words for sign in _SIGNS):
            return True
    return False


def lack_of_room(error: BaseException) -> str | None:
    """What a full disk said, here, in Java or in a task; None if the error tells of nothing such."""
    for one in causes_of(error):
        if isinstance(one, OSError) and one.errno in _FULL:
            return str(one)
        if isinstance(one, _ABROAD):
            lines = str(one).splitlines()
            found = [line.strip() for line in lines if any(os.strerror(code) in line for code in _FULL)]
            if found:
                return found[0]
    return None


def _run(job: Job) -> Outcome:
    assignment = job.assignment
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
        storage = index_storage(assignment, table.storage)
        warehouse = IndexWarehouse(assignment.index.warehouse, storage)
    return run(job, table, warehouse)
