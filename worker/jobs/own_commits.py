"""What a job has committed itself: looked up in the table's history, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.table.catalogs import CatalogUnreachableError
from worker.table.commit import CommittedSnapshot, find_commits
from worker.table.commit_errors import CommitError, CommitStateUnknownError


def told_as_unreachable(
    error: CommitError, what: str = "earlier attempts committed"
) -> CatalogUnreachableError:
    """A table whose history can't be read is one to come back to."""
    return CatalogUnreachableError(f"it can't be asked for what {what}: {error}")


def commits_of(job: Job, table: PinnedTable) -> list[CommittedSnapshot]:
    """As `find_commits`: of all attempts. The job knows then the keys of the deletes that they resolved."""
    found = find_commits(table.java_table, table.branch, job.assignment.job.id)
    for commit in found:
        job.key_sets |= commit.key_sets
    return found


class OwnCommit:
    """The one commit of a job that makes one: by any of its attempts."""

    def __init__(self, job: Job, is_it: Callable[[Mapping[str, str]], bool], nothing_left: str) -> None:
        """is_it: tells it from other commits of the job, by the summary of its snapshot. nothing_left: is
        said when an earlier attempt has made it."""
        self._job = job
        self._is_it = is_it
        self._nothing_left = nothing_left

    def of_earlier_attempt(self, table: PinnedTable) -> CommittedSnapshot | None:
        """What an earlier attempt has committed before it was lost. Raises CatalogUnreachableError."""
        assignment = self._job.assignment
        if assignment.attempt == 1 or assignment.job.dry_run:
            return None
        try:
            found = self._find(table)
        except CommitError as error:
            raise told_as_unreachable(error) from error
        if found is not None:
            self._job.decide(
                f"Attempt {found.attempt} committed snapshot {found.snapshot_id} before it was lost:"
                f" {self._nothing_left}."
            )
        return found

    def made_by(
        self, table: PinnedTable, commit: Callable[[], CommittedSnapshot | None]
    ) -> CommittedSnapshot | None:
        """What `commit` returns, also if its answer was lost and the table shows it; raises as it does."""
        try:
            return commit()
        except CommitStateUnknownError:
            with suppress(CommitError):  # the catalog may still be away
                ours = self._find(table)
                if ours is not None and ours.attempt == self._job.assignment.attempt:
                    return ours
            raise

    def _find(self, table: PinnedTable) -> CommittedSnapshot | None:
        found = commits_of(self._job, table)
        return next((one for one in found if self._is_it(one.summary)), None)
