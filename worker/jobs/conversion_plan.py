"""One plan of a conversion, from the pinned snapshot to its commit.

plan -> read -> index | scan -> deletes -> commit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from worker.attempt.job import Job
from worker.attempt.outcome import Unconvertible
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.commit import check_overtaken, commit_deletes
from worker.deletes.merge import Blocked
from worker.deletes.stage import LOST_TYPE, DeletesStage, partitions_without_type
from worker.deletes.write import WrittenDeletes
from worker.index.warehouse import IndexWarehouse
from worker.jobs.after_commit import expect_new_files
from worker.lookup.deviations import Deviation
from worker.lookup.resolution import find_rows
from worker.table.commit import CommitFate, CommittedSnapshot, told_key_sets
from worker.table.files import DeleteFile
from worker.table.plan import applies, plan_conversion

PLAN = "icestream.plan"
COMMITS_LEFT = "icestream.commits-left"
INDEXED_ROWS = 10_000_000
"""Of new data files that a conversion indexes at most: of more, it would keep others waiting."""
# Counts in a job's result, and the snapshot properties that keep them for an attempt that finds the commit.
SUMMARY = {
    name: f"icestream.{name.replace('_', '-')}"
    for name in (
        "equality_delete_files_removed",
        "equality_deletes_resolved",
        "rows_deleted",
        "data_files_touched",
        "delete_files_added",
        "bytes_written",
    )
} | {"delete_files_removed": "icestream.delete-files-merged"}


def counts(summaries: Collection[Mapping[str, str]]) -> dict[str, int]:
    """What these came to, by names of a job's result; 0 for what none of them tells."""
    return {name: sum(int(one.get(key, 0)) for one in summaries) for name, key in SUMMARY.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan resolved: the equality delete files that it removes, and what it writes for them."""

    explanations: list[dict[str, Any]]
    refused: list[Unconvertible]
    deviations: list[Deviation]
    delete_files: list[DeleteFile]
    deletes: WrittenDeletes

    @property
    def bytes_read(self) -> int:
        """Of the index, of data files, and of the equality deletes that are converted."""
        found = sum(one["bytes_read"] for one in self.explanations)
        return int(found) + sum(file.file_size_bytes for file in self.delete_files)

    @property
    def summary(self) -> dict[str, str]:
        """Snapshot properties that tell what the commit did; see `SUMMARY`."""
        told = {
            "equality_delete_files_removed": len(self.delete_files),
            "equality_deletes_resolved": sum(file.record_count for file in self.delete_files),
            "rows_deleted": self.deletes.rows_deleted,
            "data_files_touched": len(self.deletes.data_files),
            "delete_files_added": len(self.deletes.added),
            "delete_files_removed": len(self.deletes.removed),
            "bytes_written": self.deletes.bytes_written,
        }
        kept = {SUMMARY[name]: str(count) for name, count in told.items()}
        return kept | told_key_sets(self.delete_files)


class Plan:
    """One plan, from the pinned snapshot to its commit."""

    def __init__(
        self,
        job: Job,
        table: PinnedTable,
        warehouse: IndexWarehouse,
        number: int,
        batch: Sequence[DeleteFile],
        *,
        commits_left: int = 0,
        dry_run: bool = False,
    ) -> None:
        """number: of this attempt's plans. batch: the equality deletes to convert, live in the table; without
        one, only vectors move that may not share files any more.
        """
        self.job = job
        self.table = table
        self._warehouse = warehouse
        self.dry_run = dry_run or job.assignment.job.dry_run
        self._commits_left = commits_left
        self._number = number
        self._batch = batch
        self.deletes = DeletesStage(job, table, number, dry_run=self.dry_run)
        self.fate = CommitFate()

    def resolve(self, *, is_first: bool) -> Part:
        """Finds the rows that the batch deletes and writes their new delete files.

        is_first: whether no other plan for this batch came before. Raises CommitConflictError when the table
        has changed since.
        """
        job = self.job
        untyped = partitions_without_type(self.table.metadata, self._batch)
        lost = [file for file in self._batch if file.partition in untyped]
        refused = [Unconvertible(file.path, *LOST_TYPE) for file in lost]
        batch = [file for file in self._batch if file.partition not in untyped]
        resolved = [
            find_rows(job, self.table, self._warehouse, deletes, dry_run=self.dry_run)
            for deletes in plan_conversion(self.table.files, batch)
        ]
        refused += [refusal for one in resolved for refusal in one.refused]
        resolved_files = [file for one in resolved for file in one.delete_files]
        if job.assignment.index.takes_new_files and not self._commits_left and not self.dry_run:
            expect_new_files(job, self.table, INDEXED_ROWS)
        with job.stage("deletes"):
            removes = resolved_files[0].path if resolved_files else None
            deletes = self.deletes.write([one.positions for one in resolved], removes)
        missing = deletes.missing or any(one.code == "missing_file" for one in refused)
        if missing and is_first:
            check_overtaken(self.table)
        refused += self._blocked(resolved_files, deletes.blocked)
        left = {refusal.file_path for refusal in refused}
        # Iceberg removes by path: one that is live twice goes or stays as a whole.
        delete_files = [file for file in resolved_files if file.path not in left]
        if not delete_files and (self._batch or self.dry_run):
            deletes = WrittenDeletes()  # nothing is committed for deletes that all stay
        job.usage.bytes += sum(file.file_size_bytes for file in delete_files)
        if not job.assignment.job.dry_run:
            job.usage.bytes += deletes.bytes_written
        for refusal in refused:
            job.decide(f"{refusal.file_path} stays in the table: {refusal.reason}.")
        wrong = [one for key_set in resolved for one in key_set.deviations if one.file_path not in left]
        for code in sorted({one.code for one in wrong}):
            of_code = [one for one in wrong if one.code == code]
            job.decide(
                "Spark and Flink may show other rows after this conversion: Iceberg's Java reader does not"
                f" apply {len(of_code):,} equality delete files as the spec says. {of_code[0].file_path}:"
                f" {of_code[0].reason}."
            )
        return Part([one.explanation for one in resolved], refused, wrong, delete_files, deletes)

    def commit(self, part: Part) -> CommittedSnapshot | None:
        """Commits what was resolved; None if there is nothing to commit, or in a dry run."""
        if self.dry_run:
            return None
        if not part.delete_files and not part.deletes.added:
            self.deletes.remove_written()
            return None
        with self.job.stage("commit"):
            return self._commit(part)

    def _blocked(self, delete_files: Sequence[DeleteFile], blocked: Sequence[Blocked]) -> list[Unconvertible]:
        """Equality deletes that apply to a data file for which no new deletes can be written: they stay."""
        refused = {}
        global_spec_ids = self.table.files.global_spec_ids
        for one in blocked:
            for delete in delete_files:
                is_spared = one.spares is not None and applies(delete, one.spares, global_spec_ids)
                if applies(delete, one.data_file, global_spec_ids) and not is_spared:
                    code, why, remedy = one.why
                    reason = f"it applies to {one.data_file.path}, and {why}"
                    refused[delete.path] = Unconvertible(delete.path, code, reason, remedy)
        return list(refused.values())

    def _commit(self, part: Part) -> CommittedSnapshot:
        summary = {**part.summary, PLAN: str(self._number), COMMITS_LEFT: str(self._commits_left)}
        removes = [*part.delete_files, *part.deletes.removed][0].path
        with self.fate.decided(partial(self.deletes.announce, removes)) as confirm_lease:
            return commit_deletes(
                self.job, self.table, part.deletes, summary, confirm_lease, resolved=part.delete_files
            )

    def is_of(self, commit: CommittedSnapshot) -> bool:
        """Whether a commit of the job is this plan's."""
        number = int(commit.summary.get(PLAN, 0))
        return (commit.attempt, number) == (self.job.assignment.attempt, self._number)
