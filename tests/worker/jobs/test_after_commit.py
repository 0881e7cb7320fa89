"""What happens after a commit: no trouble there fails a job that has succeeded."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.jobs import RecordingReporter
from trust.bounds import LimitExceededError
from trust.egress import HostNotAllowedError
from trust.locations import LocationNotAllowedError
from worker.attempt.job import Job
from worker.contract.control_plane import ControlPlaneError, RefusedReportError, StaleAttemptError
from worker.index.key_set_index import DamagedIndexError
from worker.jobs.after_commit import index_new_files
from worker.process.errors import JobCancelledError, StorageError

TABLE: Any = SimpleNamespace()


def indexed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """What a job tells that meets an error when it would index what it has committed."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("worker.jobs.after_commit.pin_committed", fail)
    nothing: Any = None
    job = Job(nothing, nothing, RecordingReporter())
    assert index_new_files(job, TABLE, nothing, lambda files: files) is TABLE
    return job.decisions


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("no more"), "no more"),
        (DamagedIndexError("a file is gone"), "DamagedIndexError: a file is gone"),
        (LocationNotAllowedError("file:/etc"), "file:/etc"),
        (HostNotAllowedError("example.org"), "example.org"),
        (LimitExceededError("too much", "Less."), "too much"),
        (RefusedReportError("no addresses"), "no addresses"),
        (StorageError("timed out"), "timed out"),
        (KeyError("nobody foresaw this"), "nobody foresaw this"),
        (JobCancelledError(), "the job was to end"),
    ],
)
def test_what_goes_wrong_after_the_commit_is_told_and_left_to_an_index_job(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    (sentence,) = indexed(monkeypatch, error)
    assert sentence.startswith("The new data files are not indexed yet: ")
    assert told in sentence


@pytest.mark.parametrize("error", [StaleAttemptError("taken away"), ControlPlaneError("no answer")])
def test_an_attempt_that_can_not_report_ends(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        indexed(monkeypatch, error)
