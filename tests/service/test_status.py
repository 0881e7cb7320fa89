"""The rules of job status, on their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.jobs.status import backoff_seconds, check_transition, status_after
from service.records.jobs import TRANSITIONS, AttemptStatus, JobKind, JobStatus

OUTCOMES = [outcome for outcome in AttemptStatus if outcome is not AttemptStatus.RUNNING]


@given(
    outcome=st.sampled_from(OUTCOMES),
    retryable=st.booleans(),
    cancel_requested=st.booleans(),
    failures=st.integers(0, 6),
)
def test_every_outcome_leads_to_a_status_that_a_running_job_may_take(
    outcome: AttemptStatus, retryable: bool, cancel_requested: bool, failures: int
) -> None:
    after = status_after(
        outcome, retryable=retryable, cancel_requested=cancel_requested, failures=failures, max_attempts=5
    )
    check_transition(JobStatus.RUNNING, after)
    if cancel_requested:
        assert after not in (JobStatus.QUEUED, JobStatus.FAILED)
    if after is JobStatus.QUEUED and outcome is not AttemptStatus.RELEASED:
        assert failures < 5


@pytest.mark.parametrize(
    ("outcome", "retryable", "failures", "after"),
    [
        (AttemptStatus.SUCCEEDED, False, 0, JobStatus.SUCCEEDED),
        (AttemptStatus.FAILED, True, 1, JobStatus.QUEUED),
        (AttemptStatus.FAILED, True, 5, JobStatus.FAILED),
        (AttemptStatus.FAILED, False, 1, JobStatus.FAILED),
        (AttemptStatus.LOST, False, 1, JobStatus.QUEUED),
        (AttemptStatus.LOST, False, 5, JobStatus.FAILED),
        (AttemptStatus.RELEASED, False, 5, JobStatus.QUEUED),
        (AttemptStatus.CANCELLED, False, 0, JobStatus.CANCELLED),
    ],
)
def test_the_outcome_of_an_attempt_decides_about_its_job(
    outcome: AttemptStatus, retryable: bool, failures: int, after: JobStatus
) -> None:
    assert (
        status_after(outcome, retryable=retryable, cancel_requested=False, failures=failures, max_attempts=5)
        is after
    )


def test_a_running_attempt_has_no_outcome() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        status_after(
            AttemptStatus.RUNNING, retryable=False, cancel_requested=False, failures=0, max_attempts=1
        )


@pytest.mark.parametrize("final", [JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED])
def test_an_ended_job_never_changes_again(final: JobStatus) -> None:
    assert final.is_final
    for after in JobStatus:
        with pytest.raises(ValueError, match="cannot become"):
            check_transition(final, after)


def test_what_users_may_do_follows_from_the_transitions() -> None:
    assert {status for status in JobStatus if status.is_cancelable} == {JobStatus.QUEUED, JobStatus.RUNNING}
    assert {status for status in JobStatus if status.is_retryable} == {JobStatus.FAILED, JobStatus.CANCELLED}
    assert set(TRANSITIONS) == set(JobStatus)


@given(
    failures=st.integers(1, 10_000),
    # Sixty doublings take a millisecond far beyond any limit.
    first=st.just(0.0) | st.floats(0.001, 1000),
    longest=st.floats(1000, 100_000),
)
def test_backoff_doubles_until_its_limit(failures: int, first: float, longest: float) -> None:
    delay = backoff_seconds(failures, first, longest)
    assert 0 <= delay <= longest
    assert backoff_seconds(failures + 1, first, longest) == pytest.approx(min(2 * delay, longest))


def test_only_the_dry_runs_of_what_changes_the_table_alone_write_nothing() -> None:
    assert all(kind.writes(dry_run=False) for kind in JobKind)
    assert {kind for kind in JobKind if not kind.writes(dry_run=True)} == {
        JobKind.CONVERT,
        JobKind.UPSERT,
        JobKind.DELETE,
        JobKind.PUBLISH,
        JobKind.EXPIRE_SNAPSHOTS,
        JobKind.REMOVE_ORPHAN_FILES,
        JobKind.REWRITE_DATA_FILES,
        JobKind.REWRITE_POSITION_DELETE_FILES,
        JobKind.REWRITE_MANIFESTS,
    }
