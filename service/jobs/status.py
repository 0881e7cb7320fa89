"""What a job's status may become; pure, so that the rules can be tested without a database."""

from enum import StrEnum


class JobKind(StrEnum):
    INDEX = "index"
    CONVERT = "convert"
    COMPACT = "compact"
    REBUILD = "rebuild"
    VERIFY = "verify"
    DROP_INDEX = "drop_index"
    """Not requested by itself: it follows the removal of its table."""

    def writes(self, *, dry_run: bool) -> bool:
        """Whether such a job needs the table and its index for itself.

        A verification does even if it rebuilds nothing: an index that changes meanwhile would look wrong.
        """
        return not (dry_run and self is JobKind.CONVERT)

    @property
    def persists(self) -> bool:
        """Whether a failure is never the end: nobody would look again at what such a job leaves behind."""
        return self is JobKind.DROP_INDEX

    @property
    def has_dry_run(self) -> bool:
        return self in (JobKind.CONVERT, JobKind.VERIFY)


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]

    @property
    def is_cancelable(self) -> bool:
        return JobStatus.CANCELLED in TRANSITIONS[self]

    @property
    def is_retryable(self) -> bool:
        """Whether a user may ask for the same job again."""
        return self in (JobStatus.FAILED, JobStatus.CANCELLED)


TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    # Back to queued: another attempt follows, or the attempt was handed back.
    JobStatus.RUNNING: frozenset(
        {JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}


class AttemptStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    """Handed back by a worker that shuts down."""
    LOST = "lost"
    """Its lease ran out, or its worker asked for other work."""


def status_after(
    outcome: AttemptStatus, *, retryable: bool, cancel_requested: bool, failures: int, max_attempts: int
) -> JobStatus:
    """What a running job becomes when its attempt ends with `outcome`.

    `failures` counts attempts used up, this one included. A cancelled job is not tried again, and a lost
    attempt is always worth another one: nothing is known to be wrong with the job.
    """
    match outcome:
        case AttemptStatus.RUNNING:
            raise ValueError("a running attempt has no outcome")
        case AttemptStatus.SUCCEEDED:
            return JobStatus.SUCCEEDED
        case AttemptStatus.CANCELLED:
            return JobStatus.CANCELLED
        case AttemptStatus.RELEASED:
            return JobStatus.CANCELLED if cancel_requested else JobStatus.QUEUED
        case AttemptStatus.FAILED | AttemptStatus.LOST:
            if cancel_requested:
                return JobStatus.CANCELLED
            worth_another = retryable or outcome is AttemptStatus.LOST
            return JobStatus.QUEUED if worth_another and failures < max_attempts else JobStatus.FAILED


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """How long to wait after the given number of failures (1 or more): doubled each time, up to `longest`."""
    # The exponent is bounded because a float overflows long before `failures` does.
    return min(first * 2.0 ** min(failures - 1, 60), longest)


def check_transition(before: JobStatus, after: JobStatus) -> None:
    """Raise ValueError for a change of status that must not happen."""
    if after not in TRANSITIONS[before]:
        raise ValueError(f"a {before.value} job cannot become {after.value}")
