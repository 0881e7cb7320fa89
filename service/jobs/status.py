"""What a job's status may become; pure, so that the rules can be tested without a database."""

from service.records.jobs import TRANSITIONS, AttemptStatus, JobStatus


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
