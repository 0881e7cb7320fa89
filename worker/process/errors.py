"""Why a job ends before its work is done.

A kind of failure is a type, which lies with what fails: the catalog's in worker.table.catalogs, those of a
commit in worker.table.commit_errors, and so on. Here are those of a worker as such.
"""

import traceback
from typing import Any, NamedTuple, Self


class Reason(NamedTuple):
    """Why something is refused: for programs, in words, and what to do."""

    code: str
    reason: str
    remedy: str


class JobError(Exception):
    """Why a job failed, in the words its user reads: what happened, the cause, and what to do.

    The type says what happened (`title`) and what to do (`remedy`); an error of it adds the cause.
    """

    code: str
    title: str
    remedy = ""
    retryable = False

    def __init__(self, detail: str, remedy: str = "") -> None:
        """remedy: where the type has none for all."""
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy or self.remedy

    @property
    def problem(self) -> dict[str, Any]:
        """As it is reported."""
        names = ("code", "title", "detail", "remedy", "retryable")
        return {name: getattr(self, name) for name in names}

    @property
    def reason(self) -> Reason:
        """Of something that is refused, in a job that goes on without it."""
        return Reason(self.code, self.detail, self.remedy)


class UnexpectedError(JobError):
    """An error that nobody foresaw: retried, since most are the environment's."""

    code = "internal_error"
    title = "The job met an unexpected error"
    remedy = "It is retried. If it stays, look at the worker's log and report it with this text."
    retryable = True

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """With its place."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        return cls(f"{type(error).__name__}: {error} (in {place.name}, line {place.lineno})")


class OutOfMemoryError(JobError):
    code = "out_of_memory"
    title = "The worker's memory was too small"
    remedy = "The next attempt holds half as much at once. If none succeeds, give the worker more memory."
    retryable = True


class SparkEndedError(JobError):
    code = "jvm_lost"
    title = "Spark has ended"
    remedy = OutOfMemoryError.remedy
    retryable = True

    def __init__(self) -> None:
        super().__init__(
            "The system may have killed its JVM for the memory that it took, or the cluster gave it up."
        )


class StorageFullError(JobError):
    code = "storage_full"
    title = "There is no room left"
    remedy = "Make room where the table, its index, or temporary files of the worker or of Spark lie."
    retryable = True


class StorageError(JobError):
    code = "storage_error"
    title = "The storage failed"
    remedy = "It is tried again. If it stays, check the store, its address and the worker's rights."
    retryable = True


class TimedOutError(JobError):
    code = "timed_out"
    title = "The attempt took longer than its policy allows"
    remedy = (
        "If such jobs need more time, raise it. With `max_delete_files_per_commit`, the next attempt of a"
        " conversion goes on where this one ended."
    )
    retryable = True

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"It was ended after {seconds:g} s (`retries.timeout_seconds`); what it had committed stays."
        )


class ReportRefusedError(JobError):
    code = "report_refused"
    title = "The job was done, but the service refused its report"
    remedy = "Update service and worker to the same version, then run the job again: it finds what was done."


class JobCancelledError(Exception):
    """The job was cancelled, or its attempt is no longer the job's; stop and leave nothing behind."""


class JobTimedOutError(JobCancelledError):
    """The attempt has run for as long as its policy lets it."""
