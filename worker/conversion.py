"""The conversion: equality deletes become deletion vectors (V3) or position deletes (V2), in one commit.

plan -> read -> index | scan -> deletes -> commit. Safe to repeat: what is done already is found to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from worker.commit import (
    CommitConflictError,
    CommitStateUnknownError,
    CommittedSnapshot,
    RowDelta,
    commit_row_delta,
    find_commits,
)
from worker.control_plane import Assignment
from worker.deletes import (
    DeleteFileLocations,
    DeleteGranularity,
    UnreadableDeleteFileError,
    WrittenDeletes,
    existing_deletes,
    plan_deletes,
    remove_written,
    write_planned,
)
from worker.index import damage_of, open_index
from worker.job import Job, JobError, Outcome, PinnedTable, Unconvertible, outcome, pin_table
from worker.plan import DataFile, DeleteFile, KeySetDeletes, Source, applies, plan_conversion
from worker.positions import MEMORY_POSITIONS, Positions, in_batches, union
from worker.read import KeyColumnError, KeySet, key_reader, resolve_key_set
from worker.resolution import Choice, PendingDeletes, Resolved, explain
from worker.session import JobCancelledError
from worker.sorted_runs import IndexWarehouse
from worker.sorting import Int64Array
from worker.storage import Storage

PLANNING_ATTEMPTS = 5
FILES_PER_DELETES_TASK = 500
_TASKS_WITHOUT_OUTPUT = 10


def convert_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Replaces the live equality deletes by deletion vectors (V3) or position deletes (V2), in one commit."""
    assignment = job.assignment
    for attempt in range(PLANNING_ATTEMPTS):
        # Before each plan: the commit of an earlier attempt may arrive late, and be what this plan met.
        if assignment.attempt > 1 and not assignment.job.dry_run:
            done = find_commits(table.java_table, assignment.table.branch, assignment.job.id)
            if done:
                return _recovered(job, pin_table(job), warehouse, done)
        conversion = Conversion(job, table, warehouse, attempt)
        try:
            return conversion.run()
        except CommitConflictError as error:
            job.decide(f"The table changed while this job ran, so it plans again: {error}.")
            conversion.remove_outputs()
        except CommitStateUnknownError as error:
            done = find_commits(table.java_table, assignment.table.branch, assignment.job.id)
            if done:
                return _recovered(job, table, warehouse, done)
            raise JobError(
                "commit_state_unknown",
                "The catalog did not say whether the commit happened",
                str(error),
                "Nothing was removed. The next attempt looks for the commit in the table's history.",
                retryable=True,
            ) from error
        except Exception:
            if not conversion.may_be_committed:
                conversion.remove_outputs()
            raise
        with job.stage("plan"):
            table = pin_table(job)
    raise JobError(
        "commit_conflict",
        "Other commits came first every time",
        f"the plan was overtaken {PLANNING_ATTEMPTS} times",
        "Run the conversion when compaction or MERGE on this table is idle.",
        retryable=True,
    )


class Conversion:
    """One plan of a conversion, from the pinned snapshot to its commit."""

    def __init__(
        self, job: Job, table: PinnedTable, warehouse: IndexWarehouse, planning_attempt: int
    ) -> None:
        self.job = job
        self.table = table
        self.warehouse = warehouse
        self.dry_run = job.assignment.job.dry_run
        self._planning_attempt = planning_attempt
        self._prefix = _output_prefix(job.assignment, job.assignment.attempt, planning_attempt)
        self._locations: list[DeleteFileLocations] = []
        self.may_be_committed = False

    def run(self) -> Outcome:
        job, files = self.job, self.table.files
        plans = plan_conversion(files)
        if not plans:
            job.decide("The table holds no equality deletes: there is nothing to convert.")
        resolved = [self._resolve(plan) for plan in plans]
        refused = [refusal for one in resolved for refusal in one.refused]
        positions = [one.positions for one in resolved]
        delete_files = [file for one in resolved for file in one.delete_files]
        with job.stage("deletes"):
            deletes = self._write_deletes(positions)
        if deletes.missing and self._planning_attempt == 0:
            # Expired since the plan was made, most likely: a newer plan will not need it.
            raise CommitConflictError("a delete file that the plan needs is gone")
        blocked = self._blocked(delete_files, deletes.unreadable)
        refused += blocked
        delete_files = [file for file in delete_files if file.path not in {one.file_path for one in blocked}]
        for refusal in refused:
            job.decide(f"{refusal.file_path} stays in the table: {refusal.reason}.")
        committed: CommittedSnapshot | None = None
        if delete_files and not self.dry_run:
            with job.stage("commit"):
                committed = self._commit(deletes, delete_files)
            if not refused:
                self._remove_leftovers()
        elif not self.dry_run:
            self.remove_outputs()
        result = self._result(resolved, delete_files, deletes, committed)
        left = set(files.delete_files) - (set() if self.dry_run else set(delete_files))
        after = replace(files, delete_files=tuple(f for f in files.delete_files if f in left))
        head = committed.snapshot_id if committed else self.table.snapshot_id
        return outcome(job, self.table, self.warehouse, result, after, refused, head)

    # read, index | lookup

    def _resolve(self, plan: KeySetDeletes) -> Resolved:
        """Finds the rows that one key set's deletes delete; what can't be resolved is refused."""
        job, table = self.job, self.table
        try:
            key_set = resolve_key_set(table.metadata, plan.equality_field_ids)
        except KeyColumnError as error:
            refused = [Unconvertible(f.path, error.code, str(error), error.remedy) for f in plan.delete_files]
            choice = Choice(Source.NONE, str(error))
            return Resolved((), tuple(refused), Positions(()), explain(plan.equality_field_ids, [], choice))
        reader = key_reader(table.metadata, table.storage, key_set)
        with job.stage("plan"):
            index = open_index(self.warehouse, table.index_database, key_set)
        with job.stage("read"):
            pending = PendingDeletes.read(job, table, plan, reader, index)
        try:
            return pending.resolve()
        except JobCancelledError:
            raise
        except Exception:
            damage = damage_of(index, table.storage) if index is not None else None
            if damage is None:
                raise
            self._give_up_index(key_set, damage)
            return replace(pending, index=None).resolve()

    def _give_up_index(self, key_set: KeySet, damage: str) -> None:
        """A damaged index is not used again: an empty generation follows, for the next index job to fill."""
        self.job.decide(f"Key set {key_set}: the index can't be used, so data files are scanned: {damage}.")
        if not self.dry_run:
            self.job.reporter.confirm_lease()
            open_index(self.warehouse, self.table.index_database, key_set, rebuild=True)
            self.job.decide(f"Key set {key_set}: its index starts anew; the next index job fills it.")

    # deletes

    def _write_deletes(self, positions: Sequence[Positions]) -> DeletesOutcome:
        """As many data files at a time as have no more positions than the driver should hold."""
        found = {file for one in positions for file in one.data_files()}
        ordered = sorted(found, key=lambda f: (f.partition.spec_id, f.partition.values, f.path))
        outcomes: list[DeletesOutcome] = []
        number = count()
        for batch in in_batches(ordered, positions, len(ordered), MEMORY_POSITIONS):
            groups = in_batches(batch, positions, FILES_PER_DELETES_TASK, MEMORY_POSITIONS // 8)
            tasks = [self._deletes_task(next(number), group, positions) for group in groups]
            rows = sum(len(found) for task in tasks for found in task.positions.values())
            outcomes += self.job.run_tasks("deletes", tasks, None, rows)
        return DeletesOutcome.union(outcomes)

    def _deletes_task(
        self, number: int, files: Sequence[DataFile], positions: Sequence[Positions]
    ) -> DeletesTask:
        metadata = self.table.metadata
        locations = DeleteFileLocations(
            metadata.location, metadata.properties, f"{self._prefix}-{number:05d}"
        )
        self._locations.append(locations)
        return DeletesTask(
            self.table.storage,
            {file: union(positions, file) for file in files},
            _deletes_of(files, self.table.files.position_deletes),
            metadata.format_version,
            DeleteGranularity.of_table(metadata.properties),
            locations,
            self.dry_run,
        )

    def _blocked(
        self, delete_files: Sequence[DeleteFile], unreadable: Sequence[tuple[DataFile, str]]
    ) -> list[Unconvertible]:
        """Equality deletes that apply to a data file whose existing deletes can't be read: they stay."""
        blocked = {}
        for data_file, reason in unreadable:
            for delete in delete_files:
                if applies(delete, data_file, self.table.files.global_spec_ids):
                    blocked[delete.path] = Unconvertible(
                        delete.path,
                        "unreadable_position_deletes",
                        f"it applies to {data_file.path}, whose existing deletes can't be read: {reason}",
                        "Restore the delete file, or remove it from the table with its writer.",
                    )
        return list(blocked.values())

    # commit

    def _commit(self, deletes: DeletesOutcome, delete_files: Sequence[DeleteFile]) -> CommittedSnapshot:
        assignment, snapshot_id = self.job.assignment, self.table.snapshot_id
        assert snapshot_id is not None
        self.job.reporter.confirm_lease()
        self.may_be_committed = True
        return commit_row_delta(
            self.table.java_table,
            RowDelta(
                branch=assignment.table.branch,
                starting_snapshot_id=snapshot_id,
                job_id=assignment.job.id,
                attempt=assignment.attempt,
                added=deletes.written.added,
                removed=(*deletes.written.removed, *delete_files),
                referenced_data_files=deletes.written.data_files,
                summary={
                    "icestream.equality-delete-files-removed": str(len(delete_files)),
                    "icestream.equality-deletes-resolved": str(sum(f.record_count for f in delete_files)),
                    "icestream.rows-deleted": str(deletes.rows_deleted),
                    "icestream.data-files-touched": str(deletes.data_files_touched),
                    "icestream.delete-files-merged": str(deletes.delete_files_removed),
                },
            ),
        )

    def remove_outputs(self) -> None:
        """Deletes what this plan wrote; only after an error that says that it was not committed."""
        for locations in self._locations:
            remove_written(self.table.storage, locations)

    def _remove_leftovers(self) -> None:
        """Deletes what dead attempts of this job wrote.

        Only after this attempt's commit, and only if that left no equality delete of its plan: whatever a
        late commit of theirs would remove is gone, so it fails, and can't refer to a file deleted here. An
        attempt that committed between this one's plan and its commit is in the history, and keeps its files.
        """
        assignment, metadata = self.job.assignment, self.table.metadata
        commits = find_commits(self.table.java_table, assignment.table.branch, assignment.job.id)
        committed = {commit.attempt for commit in commits}
        for attempt in sorted(set(range(1, assignment.attempt)) - committed):
            for planning_attempt in range(PLANNING_ATTEMPTS):
                prefix = _output_prefix(assignment, attempt, planning_attempt)
                number = misses = 0
                # A task of which every row was deleted already has written nothing.
                while misses < _TASKS_WITHOUT_OUTPUT:
                    locations = DeleteFileLocations(
                        metadata.location, metadata.properties, f"{prefix}-{number:05d}"
                    )
                    number += 1
                    if remove_written(self.table.storage, locations):
                        misses = 0
                        self.job.decide(f"Removed files that attempt {attempt} left behind.")
                    else:
                        misses += 1

    # report

    def _result(
        self,
        resolved: Sequence[Resolved],
        delete_files: Sequence[DeleteFile],
        deletes: DeletesOutcome,
        committed: CommittedSnapshot | None,
    ) -> dict[str, Any]:
        vectors = self.table.metadata.format_version >= 3
        return {
            "dry_run": self.dry_run,
            "iceberg_snapshot_id_before": self.table.snapshot_id,
            "iceberg_snapshot_id_after": committed.snapshot_id if committed else None,
            "equality_delete_files_removed": len(delete_files),
            "equality_deletes_resolved": sum(file.record_count for file in delete_files),
            "rows_deleted": deletes.rows_deleted,
            "data_files_touched": deletes.data_files_touched,
            "delete_files_added": deletes.delete_files_added,
            "delete_files_removed": deletes.delete_files_removed,
            "deletion_vectors_added": deletes.delete_files_added if vectors else 0,
            "position_delete_files_added": 0 if vectors else deletes.delete_files_added,
            "commits": 1 if committed else 0,
            "key_sets": [one.explanation for one in resolved],
        }


@dataclass(frozen=True, slots=True)
class DeletesOutcome:
    """What was written, and the counts of the plan, which a dry run has too."""

    written: WrittenDeletes
    rows_deleted: int
    data_files_touched: int
    delete_files_added: int
    delete_files_removed: int
    unreadable: tuple[tuple[DataFile, str], ...]  # data files left alone: their deletes can't be read
    missing: bool  # whether that is because a file is gone

    @classmethod
    def union(cls, parts: Sequence[DeletesOutcome]) -> DeletesOutcome:
        return cls(
            WrittenDeletes.union(part.written for part in parts),
            sum(part.rows_deleted for part in parts),
            sum(part.data_files_touched for part in parts),
            sum(part.delete_files_added for part in parts),
            sum(part.delete_files_removed for part in parts),
            tuple(one for part in parts for one in part.unreadable),
            any(part.missing for part in parts),
        )


@dataclass(frozen=True, slots=True)
class DeletesTask:
    """Merges new positions with the existing deletes of some data files and writes the result. Pickles."""

    storage: Storage
    positions: Mapping[DataFile, Int64Array]
    existing: Sequence[DeleteFile]
    format_version: int
    granularity: DeleteGranularity
    locations: DeleteFileLocations
    dry_run: bool

    def run(self, _: object) -> DeletesOutcome:
        positions = dict(self.positions)
        unreadable: list[tuple[DataFile, str]] = []
        missing = False
        while True:
            try:
                known = existing_deletes(self.storage, positions, self.existing)
                break
            except UnreadableDeleteFileError as error:
                hit = [file for file in positions if _speaks_of(error.delete_file, file)]
                if not hit:
                    raise
                unreadable += [(file, str(error)) for file in hit]
                missing |= error.missing
                for file in hit:
                    del positions[file]
        plan = plan_deletes(positions, known, self.format_version, self.granularity)
        written = WrittenDeletes() if self.dry_run else write_planned(self.storage, plan, self.locations)
        return DeletesOutcome(
            written,
            plan.rows_deleted,
            plan.data_files_touched,
            plan.delete_files_added,
            plan.delete_files_removed,
            tuple(unreadable),
            missing,
        )


def _speaks_of(delete: DeleteFile, file: DataFile) -> bool:
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file == file.path
    return delete.partition == file.partition


def _output_prefix(assignment: Assignment, attempt: int, planning_attempt: int) -> str:
    """Names that no other attempt writes, and that the next attempt can find without listing anything."""
    return f"icestream-{assignment.job.id}-{attempt}-{planning_attempt}"


def _deletes_of(group: Sequence[DataFile], position_deletes: Iterable[DeleteFile]) -> tuple[DeleteFile, ...]:
    """The position deletes that may apply to the data files of a group."""
    paths = {file.path for file in group}
    partitions = {file.partition for file in group}
    return tuple(
        delete
        for delete in position_deletes
        if (
            delete.referenced_data_file in paths
            if delete.referenced_data_file
            else delete.partition in partitions
        )
    )


def _recovered(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, commits: Sequence[CommittedSnapshot]
) -> Outcome:
    """The result of a commit that an earlier attempt made and could not report."""
    job.decide(
        f"Attempt {commits[0].attempt} committed snapshot {commits[0].snapshot_id} before it was lost:"
        " there is nothing left to do."
    )

    def total(name: str) -> int:
        return sum(int(commit.summary.get(name, 0)) for commit in commits)

    result: dict[str, Any] = {
        "dry_run": False,
        "iceberg_snapshot_id_before": commits[-1].parent_snapshot_id,
        "iceberg_snapshot_id_after": commits[0].snapshot_id,
        "equality_delete_files_removed": total("icestream.equality-delete-files-removed"),
        "equality_deletes_resolved": total("icestream.equality-deletes-resolved"),
        "rows_deleted": total("icestream.rows-deleted"),
        "data_files_touched": total("icestream.data-files-touched"),
        "delete_files_added": total("added-delete-files"),
        "delete_files_removed": total("icestream.delete-files-merged"),
        "deletion_vectors_added": total("added-dvs"),
        "position_delete_files_added": total("added-position-delete-files"),
        "commits": len(commits),
        "key_sets": [],
    }
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)
