"""Why a job ends before its work is done."""

from __future__ import annotations


class JobError(Exception):
    """Why a job failed, in the words its user reads: what happened, the cause, and what to do."""

    def __init__(self, code: str, title: str, detail: str, remedy: str, *, retryable: bool = False) -> None:
        super().__init__(f"{title}: {detail}")
        self.code = code
        self.title = title
        self.detail = detail
        self.remedy = remedy
        self.retryable = retryable


class JobCancelledError(Exception):
    """The job was cancelled, or its attempt is no longer the job's; stop and leave nothing behind."""


class JobTimedOutError(JobCancelledError):
    """The attempt has run for as long as its policy lets it."""
