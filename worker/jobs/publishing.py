"""Jobs that publish: what a staging branch has goes to the table's branch, without any equality delete.

plan -> read -> index | scan -> deletes -> commit -> index -> report. Whatever others commit meanwhile is
looked at before the commit is tried again. Safe to repeat: what is published is told from the branch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from pyiceberg.table.refs import MAIN_BRANCH

from staging.history import RENEWED, SKIPPED, SNAPSHOT_ID, Publication, StagingError, properties
from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.index.warehouse import IndexWarehouse
from worker.jobs.after_commit import AfterCommit, index_new_files
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.own_commits import Made, OwnCommit, commit_result
from worker.process.errors import JobCancelledError, JobError
from worker.publication.clearing import FILES_CLEARED, clear, postponed, renewed_at
from worker.publication.kept_parts import KeptParts
from worker.publication.plan import SUMMARY, Part, Plan
from worker.publication.staged import Staged, Stop
from worker.table.commit import CommittedSnapshot
from worker.table.commit_errors import CommitConflictError
from worker.table.files import DeleteFile, SnapshotFiles

CLEARING_ATTEMPTS = 10


class NotAStagingBranchError(JobError):
    """Publishing empties the branch that it publishes."""

    code = "not_a_staging_branch"
    title = "This branch can't be published"
    remedy = (
        "Name the branch that the writer commits to, and that nobody reads, with the enrolment; equality"
        " deletes of a branch itself are converted (kind convert)."
    )


def publish(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Publishes what the staging branch of the assignment has, in one commit on the table's branch."""
    if (source := job.assignment.job.publish.source) in (table.branch, MAIN_BRANCH):
        told = "is the table's own" if source == table.branch else "is read by all, and would be emptied"
        raise NotAStagingBranchError(f"branch {source} {told}")
    publication = _Publication(job, warehouse)
    return publication.outcome(publication.run(table))


class _Publication:
    """A job that publishes, and what it keeps from one plan to the next."""

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._warehouse = warehouse
        told = "what was staged since is left to the next job"
        self._own = OwnCommit(job, lambda summary: SNAPSHOT_ID in summary, told)
        self._kept = KeptParts(job, warehouse)

    def run(self, table: PinnedTable) -> Made[Part]:
        """The commit, made once however many attempts there are. Plans again while others come first."""
        busy = (
            "Nothing was published. Publish when the writers that commit to this table all the time are idle."
        )
        return self._own.make(table, self._resolved, self._kept.forget, busy, self._kept.lost)

    def _resolved(self, table: PinnedTable) -> tuple[Part, Callable[[], CommittedSnapshot | None]]:
        plan = Plan(self._job, table, self._kept)
        part = plan.resolve()
        return part, partial(plan.commit, part)

    # report

    def outcome(self, published: Made[Part]) -> Outcome:
        table, committed, part = published.table, published.snapshot, published.part
        job, dry_run = self._job, self._job.assignment.job.dry_run
        counts = {name: int(published.summary.get(key, 0)) for name, key in SUMMARY.items()}
        if committed is not None:
            job.reporter = AfterCommit(job.reporter)
        if published.lost:
            job.decide(f"Others committed first {counted(published.lost, 'time')}.")
        job.decide(_sentence(counts, job.assignment.job.publish.source, table.branch, dry_run=dry_run))
        stop = part.staged.stop if part is not None else None
        if part is not None and part.staged.skipped is not None:
            job.decide(_left_out(part.staged, table.branch))
        if part is not None:
            deletes, spec_id = part.staged.files.equality_deletes, table.metadata.default_spec_id
            if (told := spared(deletes, table.files, spec_id)) is not None:
                job.decide(told)
        if stop is not None:
            job.decide(
                f"Nothing is published from staged snapshot {stop.snapshot_id} on: {stop.why.reason}."
                f" {stop.remedy}"
            )
        of_commit = commit_result(job, table, committed)
        cleared = [] if dry_run else clear_dead_attempts(job)
        has_commit = committed is None
        if committed is not None and part is not None:
            added = set(part.staged.files.data_files.paths())
            looked_at = index_new_files(job, table, self._warehouse, lambda files: files.with_paths(added))
            has_commit, table = looked_at is not table, looked_at
        # Where nothing had to be committed, the head that was looked at has it all.
        done = part.publication(table) if part is not None and part.is_empty else None
        taken_off = None
        if not dry_run:
            taken_off = self._clear(table if has_commit else None, done, may_wait=stop is None)
        of_branch = taken_off.summary if taken_off is not None else {}
        last = part.staged.snapshots[-1].snapshot_id if part is not None and part.staged.snapshots else None
        if committed is not None:
            last = int(committed.summary[SNAPSHOT_ID])
        skipped = published.summary.get(SKIPPED)
        result: dict[str, Any] = {
            **of_commit,
            "staging_branch": job.assignment.job.publish.source,
            "published_snapshot_id": last,
            "skipped_snapshot_id": int(skipped) if skipped is not None else None,
            **counts,
            "files_cleared": int(of_branch.get(FILES_CLEARED, 0)),
            "renewed": RENEWED in of_branch,
            "stopped_at": _told(stop) if stop is not None else None,
            "deviations": [asdict(one) for one in part.deviations] if part else [],
            "key_sets": part.explanations if part else [],
        }
        if part is not None:  # no delete of the table's own branch ever names their keys
            job.key_sets.update(one.equality_ids for one in part.staged.files.equality_deletes)
        return outcome(job, table, self._warehouse, result, table.files, [], table.snapshot_id, cleared)

    def _clear(
        self, table: PinnedTable | None, done: Publication | None, *, may_wait: bool
    ) -> CommittedSnapshot | None:
        """Takes what is published off the staging branch. A trouble undoes nothing.

        table: as it was looked at after the commit; None if it was not. done: up to where all is published
        without a commit of this job. may_wait: until what came meanwhile is published.
        """
        job = self._job
        try:
            return self._cleared(table, done, may_wait=may_wait and done is None)
        except (JobCancelledError, JobError, StagingError, OSError) as error:
            why = str(error) or "the job was to end"
            job.decide(f"What is published is still on the staging branch: {why}. The next job takes it off.")
            return None

    def _cleared(
        self, table: PinnedTable | None, done: Publication | None, *, may_wait: bool
    ) -> CommittedSnapshot | None:
        job, source = self._job, self._job.assignment.job.publish.source
        renew = job.assignment.job.publish.renew
        for left in reversed(range(CLEARING_ATTEMPTS)):
            if table is None:
                table = pin_again(job, reads_files=False)
            published = done or Publication.last(table.metadata, source, table.branch)
            if published is None:
                return None
            first = renewed_at(table, source, published, is_asked=renew)
            if first is None and renew:
                job.decide(
                    f"Branch {source} does not begin anew: it has what is not published, nothing that was"
                    " published since it began, or its first snapshot not any more."
                )
            if first is None and may_wait and (why := postponed(table, source, published)) is not None:
                job.decide(f"What is published stays on branch {source} until a later job: {why}.")
                return None
            try:
                cleared = clear(job, table, published, first)
                if first is not None:
                    job.decide(
                        f"Branch {source} begins anew after snapshot {first.snapshot_id}: what it had since"
                        " may expire."
                    )
                return cleared
            except CommitConflictError as error:
                if (
                    may_wait and not renew
                ):  # for what the writer has committed meanwhile, which is published first
                    job.decide(f"What is published stays on branch {source} until a later job: {error}.")
                    return None
                if not left:
                    raise
                table = None
        return None


def _told(stop: Stop) -> dict[str, Any]:
    return {"snapshot_id": stop.snapshot_id, **stop.why._asdict(), "remedy": stop.remedy}


def _left_out(staged: Staged, target: str) -> str:
    """What a skipped snapshot is, as its own summary has it: its manifests may be damaged."""
    skipped = staged.skipped
    assert skipped is not None
    (snapshot,) = (one for one in staged.snapshots if one.snapshot_id == skipped.snapshot_id)
    rows, files, by_key, by_position = (
        told if (told := properties(snapshot).get(f"added-{name}", "0")).isdecimal() else "?"
        for name in ("records", "data-files", "equality-deletes", "position-deletes")
    )
    return (
        f"Staged snapshot {skipped.snapshot_id} is skipped, as the request says: {skipped.why.reason}."
        f" Branch {target} gets none of the rows that it adds ({rows} in {files} data files), and keeps those"
        f" that it deletes ({by_key} deletes by key, {by_position} by position)."
    )


def spared(deletes: Sequence[DeleteFile], files: SnapshotFiles, current_spec_id: int) -> str | None:
    """What is told of deletes by key that Iceberg confines to a partition spec: rows of another, they spare.

    deletes: staged ones. files: of the target. Rows that came under another spec later don't count: these are
    hit by their key.
    """
    data_files, of_all = files.data_files, files.global_spec_ids
    specs = np.array([kind.partition.spec_id for kind in data_files.kinds], np.int32)
    confined = [one for one in deletes if one.partition.spec_id not in of_all]
    if not any({*specs.tolist()} - {one.partition.spec_id} for one in confined):
        return None
    spec_of, numbers = specs[data_files.kind_of], data_files.data_sequence_numbers
    oldest = {int(spec): int(numbers[spec_of == spec].min()) for spec in np.unique(spec_of)}
    found = [
        one
        for one in confined
        if any(
            spec != one.partition.spec_id and number < one.data_sequence_number
            for spec, number in oldest.items()
        )
    ]
    if not found:
        return None
    is_former = any(one.partition.spec_id != current_spec_id for one in found)
    return (
        f"{counted(len(found), 'staged equality delete file')} of a partition: rows that lay under another"
        " partition spec before, these spare, as Iceberg has it."
        + (" Some are of a former spec: start the writer anew." if is_former else "")
    )


def _sentence(counts: Mapping[str, int], source: str, target: str, *, dry_run: bool) -> str:
    if not counts["staged_snapshots"]:
        return f"Branch {source} has nothing that can be published on {target}."
    return (
        f"{'To be published' if dry_run else 'Published'} on {target}:"
        f" {counted(counts['staged_snapshots'], 'snapshot')} of branch {source}, with"
        f" {counted(counts['rows_added'], 'row')} added and {counted(counts['rows_deleted'], 'row')} deleted."
    )
