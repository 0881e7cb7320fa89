"""What a job commits, once however many attempts it has: looked up in the table's history, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.table.catalogs import CatalogUnreachableError
from worker.table.commit import HEADS_AT_MOST, CommittedSnapshot, check_clock, find_commits
from worker.table.commit_errors import CommitConflictError, CommitError, CommitStateUnknownError


class Summarized(Protocol):
    @property
    def summary(self) -> Mapping[str, str]: ...


P = TypeVar("P", bound=Summarized)


def told_as_unreachable(
    error: CommitError, what: str = "earlier attempts committed"
) -> CatalogUnreachableError:
    """A table whose history can't be read is one to come back to."""
    return CatalogUnreachableError(f"it can't be asked for what {what}: {error}")


def commit_result(job: Job, table: PinnedTable, committed: CommittedSnapshot | None) -> dict[str, Any]:
    """What a result says of the one commit of its job. table: at the head that the job has looked at."""
    return {
        "dry_run": job.assignment.job.dry_run,
        "iceberg_snapshot_id_before": (
            table.snapshot_id if committed is None else committed.parent_snapshot_id
        ),
        "iceberg_snapshot_id_after": None if committed is None else committed.snapshot_id,
        "commits": 0 if committed is None else 1,
    }


def commits_of(job: Job, table: PinnedTable) -> list[CommittedSnapshot]:
    """As `find_commits`: of all attempts. The job knows then the keys of the deletes that they resolved."""
    found = find_commits(table.java_table, table.branch, job.assignment.job.id)
    for commit in found:
        job.key_sets |= commit.key_sets
    return found


@dataclass(frozen=True, slots=True)
class Made(Generic[P]):
    """table: at the head that was looked at last. summary: what the job came to, as snapshots keep it.
    snapshot: None if there was nothing to commit. part: of this attempt; None if an earlier one did it. lost:
    how often others came first."""

    table: PinnedTable
    summary: Mapping[str, str]
    snapshot: CommittedSnapshot | None
    part: P | None = None
    lost: int = 0


class OwnCommit:
    """The one commit of a job that makes one: by any of its attempts."""

    def __init__(self, job: Job, is_it: Callable[[Mapping[str, str]], bool], nothing_left: str) -> None:
        """is_it: tells it from other commits of the job, by the summary of its snapshot. nothing_left: is
        said when an earlier attempt has made it."""
        self._job = job
        self._is_it = is_it
        self._nothing_left = nothing_left
        self.seen: dict[int, CommittedSnapshot] = {}
        """Whatever the job is known to have committed, by snapshot id."""

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

    def make(
        self,
        table: PinnedTable,
        resolve: Callable[[PinnedTable], tuple[P, Callable[[], CommittedSnapshot | None]]],
        forget: Callable[[], None],
        busy: str,
        when_lost: Callable[[], None] = lambda: None,
    ) -> Made[P]:
        """Makes it at a head that was looked at, unless an earlier attempt has. Looks again while others come
        first.

        resolve: what the job comes to at a head, with its files written, and what commits that. forget:
        deletes what was written, unless it may be committed. busy: what to do where others always come first.
        """
        job = self._job
        try:
            for lost in range(HEADS_AT_MOST):
                if lost:
                    table = pin_again(job)
                # Each time: the commit of an earlier attempt may arrive late, and be what this one met.
                if committed := self.of_earlier_attempt(table):
                    forget()
                    return Made(table, committed.summary, committed)
                if not job.assignment.job.dry_run:
                    check_clock(table.java_table)
                try:
                    part, commit = resolve(table)
                    committed = self.made_by(table, commit)
                except CommitConflictError as error:
                    if not lost:
                        job.tell_of_change(error)
                    when_lost()
                else:
                    if committed is None:
                        forget()
                    return Made(table, part.summary, committed, part, lost)
            raise CommitConflictError(f"others committed first {HEADS_AT_MOST:,} times", busy)
        except Exception:
            forget()
            raise

    def _find(self, table: PinnedTable) -> CommittedSnapshot | None:
        found = commits_of(self._job, table)
        self.seen |= {one.snapshot_id: one for one in found}
        return next((one for one in found if self._is_it(one.summary)), None)
