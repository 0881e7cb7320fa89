"""What a job that has committed still does: it has succeeded, whatever happens to it now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from telemetry.plurals import counted
from worker.attempt.indexes import indexes
from worker.attempt.job import Job, Reporter
from worker.attempt.pinned_table import PinnedTable, pin_committed
from worker.contract.control_plane import (
    AnnouncedPlan,
    ControlPlaneError,
    RefusedReportError,
    StaleAttemptError,
)
from worker.index.dictionary import row_addresses_needed, uncovered_files
from worker.index.warehouse import IndexWarehouse
from worker.jobs.foreign_errors import meaning_of
from worker.jobs.indexing import index_key_set
from worker.process.errors import JobCancelledError, JobError, UnexpectedError
from worker.table.files import DataFiles

log = logging.getLogger(__name__)
_FILES_LOOKED_AT = 10_000


def expect_new_files(job: Job, table: PinnedTable, rows_at_most: float = inf) -> None:
    """Has the row addresses of what `index_new_files` will index granted along with a call that comes anyway.

    Of the indexes that the job has opened, where it takes no time to see what they lack: what is missing then
    is asked for when it is known.
    """
    files = table.files.data_files
    if len(files) > _FILES_LOOKED_AT:
        return
    new = [uncovered_files(files, index.dictionary) for index in job.indexes.values()]
    job.reporter.expect_row_addresses(
        sum(row_addresses_needed(each) for each in new if each.record_count <= rows_at_most)
    )


def index_new_files(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    new_ones: Callable[[DataFiles], DataFiles],
    rows_at_most: float = inf,
) -> PinnedTable:
    """The table with the commit, whose new files the index has: the next job needs no scan of them.

    new_ones: chooses them among the data files of the branch. rows_at_most: of more, which an index lacks, it
    gets none.

    A trouble here, of whatever kind, undoes nothing, and neither does a cancellation: the next index job goes
    on.
    """
    try:
        with job.stage("plan"):
            table = pin_committed(job, table)
        new = new_ones(table.files.data_files)
        for index in indexes(job, table, warehouse) if len(new) else []:
            if (rows := uncovered_files(new, index.dictionary).record_count) <= rows_at_most:
                index_key_set(job, table, warehouse, index.key_set, only=new, index=index)
            else:
                job.decide(f"Key set {index.key_set}: {counted(rows, 'new row')} left to the next index job.")
    except JobCancelledError:
        _leave(job, "the job was to end")
    except Exception as error:
        if isinstance(error, StaleAttemptError | ControlPlaneError) and not isinstance(
            error, RefusedReportError
        ):
            raise  # whatever this attempt did, it could not say so
        _leave(job, str(_told(error)))
    return table


def _leave(job: Job, why: str) -> None:
    job.decide(f"The new data files are not indexed yet: {why}. The next index job does it.")


def _told(error: Exception) -> JobError:
    known = error if isinstance(error, JobError) else meaning_of(error)
    if known is None:
        log.exception("New data files are not indexed")
        known = UnexpectedError.of(error)
    return known


@dataclass(frozen=True, slots=True)
class AfterCommit:
    """Tells what a job does that has committed: it has succeeded, and whoever cancels it comes too late."""

    reporter: Reporter

    @property
    def seconds_ahead(self) -> float:
        return self.reporter.seconds_ahead

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        with suppress(JobCancelledError):
            self.reporter.progress(stage, done, total, unit, message)

    def decide(self, sentence: str) -> None:
        with suppress(JobCancelledError):
            self.reporter.decide(sentence)

    def confirm_lease(self, *, anew: bool = False) -> None:
        self.reporter.confirm_lease(anew=anew)

    def announce(self, plan: AnnouncedPlan) -> None:
        self.reporter.announce(plan)

    def expect_row_addresses(self, rows: int) -> None:
        self.reporter.expect_row_addresses(rows)

    def grant_row_addresses(self, rows: int, at_least: int) -> int:
        return self.reporter.grant_row_addresses(rows, at_least)
