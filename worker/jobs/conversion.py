"""The conversion: equality deletes become deletion vectors (V3) or position deletes (V2), in one commit.

plan -> read -> index | scan -> deletes -> commit. Safe to repeat: what is done already is found to be done.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from trust.locations import LocationNotAllowedError
from trust.properties import LOCATION_PROVIDERS
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, Unconvertible, outcome
from worker.attempt.pinned_table import PinnedTable, pin_table
from worker.contract.control_plane import StaleAttemptError
from worker.index.key_set_index import DamagedIndexError, KeySetIndex, damage_of, open_index
from worker.index.sorted_runs import IndexWarehouse
from worker.io.sorting import Int64Array
from worker.io.storage import DryStorage, Storage
from worker.jobs.indexing import start_anew
from worker.jobs.leftovers import output_locations, remove_leftovers, unannounced
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import key_reader
from worker.keys.schema_fields import column_names_of, resolve_key_set
from worker.lookup.cost import Source, conversion_seconds
from worker.lookup.deviations import Deviation
from worker.lookup.positions import MEMORY_POSITIONS, Positions, in_batches, union
from worker.lookup.resolution import Choice, PendingDeletes, Resolved, explain, merge_explanations
from worker.process.errors import JobCancelledError, JobError
from worker.table.commit import (
    CLOCK_TOLERANCE_SECONDS,
    ClockAheadError,
    ClockBehindError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    CommittedSnapshot,
    RowDelta,
    check_clock,
    commit_row_delta,
    find_commits,
    find_head,
)
from worker.table.deletes import (
    DeleteFileLocations,
    DeleteGranularity,
    UnreadableDeleteFileError,
    WrittenDeletes,
    count_names,
    existing_deletes,
    plan_deletes,
    remove_written,
    sharing_a_file,
    write_planned,
)
from worker.table.files import DataFile, DataFiles, DeleteFile, PartitionKey
from worker.table.plan import KeySetDeletes, applies, in_commits, plan_conversion

PLANNING_ATTEMPTS = 5
FILES_PER_DELETES_TASK = 500
VECTORS_PER_MOVE = 50  # each may hold as many positions as its data file has rows

_LIVE_TWICE = (
    "its path is live more than once in the table: position deletes and deletion vectors go by path, and"
    " can't delete rows of one of these data files alone"
)
_LIVE_TWICE_REMEDY = (
    "Stop the table's writers and replace its rows by themselves, with INSERT OVERWRITE; or roll the table"
    " back to before the file was added again. No rewrite_data_files, DELETE, UPDATE or MERGE before that:"
    " Iceberg takes but one of the data files away then, and rows come back or twice."
)
_LOST_TYPE = "its partition is of a column that was dropped, so Iceberg can't write delete files into it"
_LOST_TYPE_REMEDY = (
    "Rewrite the partition's data files (rewrite_data_files with remove-dangling-deletes=true), which puts"
    " them under the current partition spec."
)

PLAN = "icestream.plan"
COMMITS_LEFT = "icestream.commits-left"
# Counts in a job's result, and the snapshot properties that keep them for an attempt that finds the commit.
SUMMARY = {
    "equality_delete_files_removed": "icestream.equality-delete-files-removed",
    "equality_deletes_resolved": "icestream.equality-deletes-resolved",
    "rows_deleted": "icestream.rows-deleted",
    "data_files_touched": "icestream.data-files-touched",
    "delete_files_added": "icestream.delete-files-added",
    "delete_files_removed": "icestream.delete-files-merged",
    "bytes_written": "icestream.bytes-written",
}


def convert_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Replaces the live equality deletes by deletion vectors (V3) or position deletes (V2).

    In one commit, or in several of at most `max_delete_files_per_commit` equality delete files, or of fewer
    after attempts that ran out of memory. Deletes that come while the job runs are left to the next one.
    """
    limit = job.assignment.policy.convert.max_delete_files_per_commit
    conversion = Conversion(job, warehouse)
    if conversion.was_committed(table):
        table = pin_table(job)
        conversion.look_at_what_is_left(table)
        return conversion.outcome(table)
    pending = table.files.equality_deletes
    if not pending:
        job.decide("The table holds no equality deletes: there is nothing to convert.")
    else:
        _tell_of_location_provider(job, table)
    allowed = limit or len(pending)
    bound = min(allowed, ceil(len(pending) / 2**job.commit_halvings))
    batches = in_commits(pending, bound)
    if len(batches) > 1:
        why = "the policy allows" if bound == allowed else "since earlier attempts lacked memory, at most"
        job.decide(
            f"{len(pending):,} equality delete files take {len(batches):,} commits: {why} {bound:,} in each."
        )
    if job.assignment.job.dry_run:
        # Nothing is committed that the next batch would build upon.
        conversion.convert(table, pending, commits_left=0)
        converted = conversion.converted
        commits = sum(any(file.path in converted for file in batch) for batch in batches)
        return conversion.outcome(table, commits=commits)
    for number, batch in enumerate(batches):
        if number:
            job.decide(f"Commit {number + 1:,} of {len(batches):,}.")
            with job.stage("plan"):
                table = pin_table(job)
        table = conversion.convert(table, batch, commits_left=len(batches) - number - 1)
    return conversion.outcome(table)


def _tell_of_location_provider(job: Job, table: PinnedTable) -> None:
    metadata = table.metadata
    named = [key for key in LOCATION_PROVIDERS if key in metadata.properties]
    if named:
        folder = DeleteFileLocations(metadata.location, metadata.properties, "").folder
        job.decide(
            f"The table names a class that would say where its files go ({', '.join(named)}). A class that a"
            f" table names is not loaded: new delete files go below {folder}."
        )


class Conversion:
    """A conversion job: what its attempts committed, and what this one resolved and refused."""

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._warehouse = warehouse
        self._commits: dict[int, CommittedSnapshot] = {}  # by snapshot id
        self._parts: list[Part] = []
        self._head: int | None = None  # the snapshot after the last batch
        self._plans = 0

    def convert(self, table: PinnedTable, batch: Sequence[DeleteFile], commits_left: int) -> PinnedTable:
        """Converts a batch of live equality deletes in one commit; returns the table as it was planned last.

        commits_left: to be made by the job after this one. Plans again while other commits come first, and
        raises JobError when they always do.
        """
        job = self._job
        for attempt in range(PLANNING_ATTEMPTS):
            if attempt:
                with job.stage("plan"):
                    table = pin_table(job)
            # Before each plan: the commit of an earlier attempt may arrive late, and be what this plan met.
            if self.was_committed(table):
                return pin_table(job)
            # By path, as Iceberg removes them: one of these may have been committed once more.
            paths = {file.path for file in batch}
            still = [file for file in table.files.equality_deletes if file.path in paths]
            plan = Plan(job, table, self._warehouse, self._plans, still, commits_left=commits_left)
            try:
                if still and not plan.dry_run:
                    check_clock(table.java_table)  # before the work, which would be for nothing
                part = plan.resolve(is_first=attempt == 0)
                self._commit(plan, part)
                self._parts.append(part)
                return table
            except CommitConflictError as error:
                self._plans += 1
                job.decide(f"The table changed while this job ran, so it plans again: {error}.")
                plan.remove_outputs()
            except ClockBehindError as error:
                plan.remove_outputs()
                raise JobError(
                    "clock_behind",
                    "The clock of this worker or of the table's writer is wrong",
                    str(error),
                    "Set both clocks right. It is tried again, and succeeds once this worker's clock has"
                    " reached the time of the last commit.",
                    retryable=True,
                ) from error
            except ClockAheadError as error:
                plan.remove_outputs()
                raise JobError(
                    "clock_ahead",
                    "The clock of this worker or of the service is wrong",
                    str(error),
                    "Set both clocks right. It is tried again, also by other workers.",
                    retryable=True,
                ) from error
            except CommitError as error:
                plan.remove_outputs()
                raise JobError(
                    "commit_failed",
                    "The deletes could not be committed",
                    str(error),
                    "The table is as it was. Look at the cause, most likely the catalog, and retry.",
                    retryable=True,
                ) from error
            except Exception:
                if not plan.may_be_committed:
                    plan.remove_outputs()
                raise
        raise JobError(
            "commit_conflict",
            "Other commits came first every time",
            f"the plan was overtaken {PLANNING_ATTEMPTS} times",
            "Run the conversion when compaction or MERGE on this table is idle.",
            retryable=True,
        )

    def was_committed(self, table: PinnedTable) -> bool:
        """Whether an earlier attempt has committed all of the job before it was lost."""
        assignment = self._job.assignment
        if assignment.attempt == 1 or assignment.job.dry_run:
            return False
        try:
            self._find_commits(table)
        except CommitError as error:
            raise JobError(
                "catalog_unreachable",
                "The catalog can't be asked for what earlier attempts committed",
                str(error),
                "It is tried again. If it stays, check the catalog's address and credentials.",
                retryable=True,
            ) from error
        return any(commit.summary.get(COMMITS_LEFT, "0") == "0" for commit in self._commits.values())

    def look_at_what_is_left(self, table: PinnedTable) -> None:
        """Resolves the pending deletes without converting them, so that what stays is told with a reason."""
        pending = table.files.equality_deletes
        if pending:
            left = Plan(self._job, table, self._warehouse, self._plans, pending, dry_run=True)
            part = left.resolve(is_first=False)
            self._parts.append(Part([], part.refused, [], [], DeletesOutcome.union([])))

    def _commit(self, plan: Plan, part: Part) -> None:
        self._head = plan.table.snapshot_id
        try:
            committed = plan.commit(part)
        except CommitStateUnknownError as error:
            with suppress(CommitError):  # the catalog may still be away
                self._find_commits(plan.table)
            ours = [commit for commit in self._commits.values() if plan.is_of(commit)]
            if ours:
                self._plans += 1
                self._head = ours[0].snapshot_id
                return
            raise JobError(
                "commit_state_unknown",
                "The catalog did not say whether the commit happened",
                str(error),
                "Nothing was removed. The next attempt looks for the commit in the table's history.",
                retryable=True,
            ) from error
        if committed is not None:
            self._plans += 1
            self._commits[committed.snapshot_id] = committed
            self._head = committed.snapshot_id

    def _find_commits(self, table: PinnedTable) -> None:
        """Adds the commits of this job that the table's history shows."""
        assignment = self._job.assignment
        for commit in find_commits(table.java_table, assignment.table.branch, assignment.job.id):
            if commit.snapshot_id in self._commits:
                continue
            self._commits[commit.snapshot_id] = commit
            left = int(commit.summary.get(COMMITS_LEFT, 0))
            self._job.decide(
                f"Attempt {commit.attempt} committed snapshot {commit.snapshot_id} before it was lost:"
                f" {'the rest is left to do' if left else 'there is nothing left to do'}."
            )

    # report

    @property
    def converted(self) -> set[str]:
        """Paths of the equality deletes that this attempt removed, or a dry run would remove."""
        return {file.path for part in self._parts for file in part.delete_files}

    def outcome(self, table: PinnedTable, commits: int | None = None) -> Outcome:
        """The result, and the health of what is left.

        table: as it was planned last. commits: how many a dry run foretells.
        """
        dry_run = self._job.assignment.job.dry_run
        refused = list({one.file_path: one for part in self._parts for one in part.refused}.values())
        made = sorted(self._commits.values(), key=lambda commit: commit.sequence_number)
        summaries = [part.summary for part in self._parts] if dry_run else [one.summary for one in made]
        totals = {name: sum(int(s.get(key, 0)) for s in summaries) for name, key in SUMMARY.items()}
        vectors = table.metadata.format_version >= 3
        result = {
            "dry_run": dry_run,
            "iceberg_snapshot_id_before": made[0].parent_snapshot_id if made else table.snapshot_id,
            "iceberg_snapshot_id_after": made[-1].snapshot_id if made else None,
            **totals,
            "deletion_vectors_added": totals["delete_files_added"] if vectors else 0,
            "position_delete_files_added": 0 if vectors else totals["delete_files_added"],
            "commits": len(made) if commits is None else commits,
            "bytes_read": sum(part.bytes_read for part in self._parts),
            "deviations": [asdict(one) for part in self._parts for one in part.deviations],
            "key_sets": merge_explanations([one for part in self._parts for one in part.explanations]),
        }
        gone = set() if dry_run else self.converted
        left = tuple(file for file in table.files.delete_files if file.path not in gone)
        after = replace(table.files, delete_files=left)
        cleared = [] if dry_run else remove_leftovers(self._job)
        head = self._head or table.snapshot_id
        told = outcome(self._job, table, self._warehouse, result, after, refused, head, cleared)
        if dry_run and self.converted:
            measured = {stage["name"]: stage["seconds"] for stage in self._job.stages}
            seconds = conversion_seconds(measured, commits or 0, totals["delete_files_added"])
            told.result["estimated_seconds"] = round(seconds, 3)
        return told


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan resolved: the equality delete files that it removes, and what it writes for them."""

    explanations: list[dict[str, Any]]
    refused: list[Unconvertible]
    deviations: list[Deviation]
    delete_files: list[DeleteFile]
    deletes: DeletesOutcome

    @property
    def bytes_read(self) -> int:
        """Of the index, of data files, and of the equality deletes that are converted."""
        found = sum(one["bytes_read"] for one in self.explanations)
        return int(found) + sum(file.file_size_bytes for file in self.delete_files)

    @property
    def summary(self) -> dict[str, str]:
        """Snapshot properties that tell what the commit did; see `SUMMARY`."""
        counts = {
            "equality_delete_files_removed": len(self.delete_files),
            "equality_deletes_resolved": sum(file.record_count for file in self.delete_files),
            "rows_deleted": self.deletes.rows_deleted,
            "data_files_touched": self.deletes.data_files_touched,
            "delete_files_added": self.deletes.delete_files_added,
            "delete_files_removed": self.deletes.delete_files_removed,
            "bytes_written": self.deletes.bytes_written,
        }
        return {SUMMARY[name]: str(count) for name, count in counts.items()}


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
        """number: of this attempt's plans. batch: the equality deletes to convert, live in the table."""
        self.job = job
        self.table = table
        self.warehouse = warehouse
        self.dry_run = dry_run or job.assignment.job.dry_run
        self._commits_left = commits_left
        self._number = number
        self._batch = batch
        self._outputs = unannounced(table, number)
        self._locations: list[tuple[DeleteFileLocations, int]] = []  # and how many names
        self.may_be_committed = False

    def resolve(self, *, is_first: bool) -> Part:
        """Finds the rows that the batch deletes and writes their new delete files.

        is_first: whether no other plan for this batch came before. Raises CommitConflictError when the table
        has changed since.
        """
        job = self.job
        untyped = self._without_type(self._batch)
        lost = [file for file in self._batch if file.partition in untyped]
        refused = [
            Unconvertible(file.path, "lost_partition_type", _LOST_TYPE, _LOST_TYPE_REMEDY) for file in lost
        ]
        batch = [file for file in self._batch if file.partition not in untyped]
        resolved = [self._resolve(key_set) for key_set in plan_conversion(self.table.files, batch)]
        refused += [refusal for one in resolved for refusal in one.refused]
        resolved_files = [file for one in resolved for file in one.delete_files]
        with job.stage("deletes"):
            deletes = self._write_deletes([one.positions for one in resolved])
        missing = deletes.missing or any(one.code == "missing_file" for one in refused)
        if missing and is_first and self._was_overtaken():
            # Replaced and expired since the plan was made, most likely: a newer plan will not need it.
            raise CommitConflictError("a file that the plan needs is gone")
        refused += self._blocked(resolved_files, deletes.blocked)
        left = {refusal.file_path for refusal in refused}
        # Iceberg removes by path: one that is live twice goes or stays as a whole.
        delete_files = [file for file in resolved_files if file.path not in left]
        if not delete_files:
            deletes = DeletesOutcome.union([])  # nothing is committed for deletes that all stay
        job.account.bytes += sum(file.file_size_bytes for file in delete_files)
        if not job.assignment.job.dry_run:
            job.account.bytes += deletes.bytes_written
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
        if not part.delete_files:
            self.remove_outputs()
            return None
        with self.job.stage("commit"):
            return self._commit(part)

    def _was_overtaken(self) -> bool:
        """Whether the branch has another head than the one that was planned on."""
        table = self.table
        return find_head(table.java_table, table.branch) != table.snapshot_id

    # read, index | lookup

    def _resolve(self, plan: KeySetDeletes) -> Resolved:
        """Finds the rows that one key set's deletes delete; what can't be resolved is refused."""
        job, table = self.job, self.table
        try:
            key_set = resolve_key_set(table.metadata, plan.equality_field_ids)
        except KeyColumnError as error:
            refused = [Unconvertible(f.path, error.code, str(error), error.remedy) for f in plan.delete_files]
            columns = column_names_of(table.metadata, plan.equality_field_ids)
            explanation = explain(plan.equality_field_ids, columns, Choice(Source.NONE, str(error)))
            return Resolved((), tuple(refused), Positions(DataFiles.of(())), explanation)
        reader = key_reader(table.metadata, table.storage, key_set)
        with job.stage("plan"):
            index = self._open_index(key_set)
        with job.stage("read"):
            pending = PendingDeletes.read(job, table, plan, reader, index)
        try:
            return pending.resolve()
        except (JobCancelledError, StaleAttemptError):
            raise
        except Exception:
            damage = damage_of(index) if index is not None else None
            if damage is None:
                raise
            self._give_up_index(key_set, damage)
            return replace(pending, index=None).resolve()

    def _open_index(self, key_set: KeySet) -> KeySetIndex | None:
        try:
            return open_index(self.warehouse, self.table.index_database, key_set)
        except DamagedIndexError as error:
            self._give_up_index(key_set, str(error))
            return None

    def _give_up_index(self, key_set: KeySet, damage: str) -> None:
        self.job.decide(f"Key set {key_set}: the index can't be used, so data files are scanned: {damage}.")
        if not self.dry_run:
            start_anew(self.job, self.table, self.warehouse, key_set)

    # deletes

    def _write_deletes(self, positions: Sequence[Positions]) -> DeletesOutcome:
        """As many data files at a time as have no more positions than the driver should hold."""
        found = {file for one in positions for file in one.data_files()}
        lost, ordered = self._ordered(found)
        outcome = self._run_deletes(ordered, positions)
        live = self.table.files
        shared = sharing_a_file(outcome.removed, live.position_deletes, live.data_files)
        if shared:
            _, movable = self._ordered(set(shared))
            moved = self._run_deletes(movable, positions, moves=True)
            vectors = len({file.path for file in shared})
            self._tell_of_moves(moved.delete_files_added, vectors - moved.delete_files_added)
            # One that can't be read or written stays where it is.
            outcome = DeletesOutcome.union([outcome, replace(moved, blocked=(), missing=False)])
        blocked = tuple(Blocked(file, "lost_partition_type", _LOST_TYPE, _LOST_TYPE_REMEDY) for file in lost)
        return replace(outcome, blocked=outcome.blocked + blocked)

    def _ordered(self, found: Set[DataFile]) -> tuple[list[DataFile], list[DataFile]]:
        """Those that no delete file can be written for, and the others in order of partition and path.

        After each follow the other live files of its path, which new deletes would hit as well.
        """
        live = self.table.files.data_files.with_paths({file.path for file in found})
        by_path: dict[str, list[DataFile]] = defaultdict(list)
        for file in found | set(live) if len(live) > len(found) else found:
            by_path[file.path].append(file)
        untyped = self._without_type(file for files in by_path.values() for file in files)
        lost: list[DataFile] = []
        ordered: list[list[DataFile]] = []
        for files in by_path.values():
            if any(file.partition in untyped for file in files):
                lost += files
            else:
                ordered.append(sorted(files, key=_in_order))
        ordered.sort(key=lambda files: _in_order(files[0]))
        return lost, [file for files in ordered for file in files]

    def _tell_of_moves(self, moved: int, left: int) -> None:
        if self.dry_run:
            return
        if moved:
            self.job.decide(
                f"{moved:,} deletion vectors move to files of their own: they shared one with vectors that"
                " are replaced, and Iceberg's expireSnapshots() deletes such files."
            )
        if left:
            self.job.decide(
                f"{left:,} deletion vectors stay in files with vectors that are replaced, since they can't be"
                " read or written anew: expire snapshots with Spark's procedure, which spares such files."
            )

    def _run_deletes(
        self, files: Sequence[DataFile], positions: Sequence[Positions], *, moves: bool = False
    ) -> DeletesOutcome:
        outcomes: list[DeletesOutcome] = []
        bound = MEMORY_POSITIONS >> self.job.halvings
        existing = _deletes_by_scope(files, self.table.files.position_deletes)
        for batch in in_batches(files, positions, len(files), bound):
            files_at_most = VECTORS_PER_MOVE if moves else FILES_PER_DELETES_TASK
            groups = in_batches(batch, positions, files_at_most, bound // 8)
            tasks = [self._deletes_task(group, positions, existing, moves=moves) for group in groups]
            if tasks and not self.dry_run:
                self._announce()
            if moves:  # how many positions their vectors hold is not known before they are read
                rows = sum(file.record_count for file in batch)
            else:
                rows = sum(len(found) for task in tasks for found in task.positions.values())
            outcomes += self.job.run_tasks("deletes", tasks, None, rows)
        return DeletesOutcome.union(outcomes)

    def _without_type(self, files: Iterable[DataFile | DeleteFile]) -> set[PartitionKey]:
        """The partitions of the files into which Iceberg's Java library can't write any more."""
        return {one for one in {file.partition for file in files} if self._has_lost_its_type(one)}

    def _has_lost_its_type(self, partition: PartitionKey) -> bool:
        """Whether a partition has a value of unknown type.

        The type of a partition field is that of its source column, unknown once that is dropped.
        """
        metadata = self.table.metadata
        spec = next(spec for spec in metadata.partition_specs if spec.spec_id == partition.spec_id)
        known = metadata.schema().field_ids
        return any(
            field.source_id not in known and value is not None
            for field, value in zip(spec.fields, json.loads(partition.values), strict=True)
        )

    def _deletes_task(
        self,
        files: Sequence[DataFile],
        positions: Sequence[Positions],
        existing: Mapping[str | PartitionKey, Sequence[DeleteFile]],
        *,
        moves: bool,
    ) -> DeletesTask:
        metadata, assignment = self.table.metadata, self.job.assignment
        number = len(self._locations)
        locations = output_locations(assignment.job.id, assignment.attempt, self._outputs, number)
        granularity = DeleteGranularity.of_table(metadata.properties)
        self._locations.append((locations, count_names(len(files), metadata.format_version, granularity)))
        return DeletesTask(
            self.table.storage,
            {file: union(positions, file) for file in files},
            _deletes_of(files, existing),
            metadata.format_version,
            granularity,
            locations,
            moves,
            self.dry_run,
        )

    def _blocked(self, delete_files: Sequence[DeleteFile], blocked: Sequence[Blocked]) -> list[Unconvertible]:
        """Equality deletes that apply to a data file for which no new deletes can be written: they stay."""
        refused = {}
        global_spec_ids = self.table.files.global_spec_ids
        for one in blocked:
            for delete in delete_files:
                is_spared = one.spares is not None and applies(delete, one.spares, global_spec_ids)
                if applies(delete, one.data_file, global_spec_ids) and not is_spared:
                    reason = f"it applies to {one.data_file.path}, and {one.reason}"
                    refused[delete.path] = Unconvertible(delete.path, one.code, reason, one.remedy)
        return list(refused.values())

    # commit

    def _commit(self, part: Part) -> CommittedSnapshot:
        assignment, snapshot_id = self.job.assignment, self.table.snapshot_id
        assert snapshot_id is not None
        written = part.deletes.written

        def confirm_lease() -> None:
            self.may_be_committed = False
            self._announce(removes=part.delete_files[0].path)
            self.may_be_committed = True

        try:
            return commit_row_delta(
                self.table.java_table,
                RowDelta(
                    branch=assignment.table.branch,
                    starting_snapshot_id=snapshot_id,
                    job_id=assignment.job.id,
                    attempt=assignment.attempt,
                    added=written.added,
                    removed=(*written.removed, *part.delete_files),
                    referenced_data_files=written.data_files,
                    summary={
                        **part.summary,
                        PLAN: str(self._number),
                        COMMITS_LEFT: str(self._commits_left),
                    },
                ),
                confirm_lease=confirm_lease,
                check_location=self.table.storage.io.check,
            )
        except (CommitError, LocationNotAllowedError) as error:
            self.may_be_committed = isinstance(error, CommitStateUnknownError)
            raise

    def _announce(self, removes: str | None = None) -> None:
        """Renews the lease, and lets whoever follows know what this plan may leave behind.

        Raises ClockAheadError.
        """
        files_per_task = max((names for _, names in self._locations), default=0)
        known = {"tasks": len(self._locations), "files_per_task": files_per_task, "removes": removes}
        self.job.reporter.announce(self._outputs.model_copy(update=known))
        ahead = self.job.reporter.seconds_ahead  # as the answer says
        if ahead > CLOCK_TOLERANCE_SECONDS:
            raise ClockAheadError(
                f"this worker's clock is {ahead:,.0f} seconds ahead of the service's; after a commit at that"
                " time, Iceberg would refuse those of all writers whose clocks are right"
            )

    def is_of(self, commit: CommittedSnapshot) -> bool:
        """Whether a commit of the job is this plan's."""
        number = int(commit.summary.get(PLAN, 0))
        return (commit.attempt, number) == (self.job.assignment.attempt, self._number)

    def remove_outputs(self) -> None:
        """Deletes what this plan wrote; only after an error that says that it was not committed."""
        if self.dry_run:
            return
        for locations, names in self._locations:
            remove_written(self.table.storage, locations, self.table.metadata.format_version, names)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A data file that is left alone, and why: no new deletes can be written for it.

    spares: deletes that apply to this data file as well are not affected.
    """

    data_file: DataFile
    code: str
    reason: str
    remedy: str
    spares: DataFile | None = None


@dataclass(frozen=True, slots=True)
class DeletesOutcome:
    """What was written, and the counts of the plan, which a dry run has too."""

    written: WrittenDeletes
    bytes_written: int
    rows_deleted: int
    data_files_touched: int
    delete_files_added: int
    removed: tuple[DeleteFile, ...]
    blocked: tuple[Blocked, ...]
    missing: bool  # whether some are blocked because a file is gone

    @property
    def delete_files_removed(self) -> int:
        return len(self.removed)

    @classmethod
    def union(cls, parts: Sequence[DeletesOutcome]) -> DeletesOutcome:
        return cls(
            WrittenDeletes.union(part.written for part in parts),
            sum(part.bytes_written for part in parts),
            sum(part.rows_deleted for part in parts),
            sum(part.data_files_touched for part in parts),
            sum(part.delete_files_added for part in parts),
            tuple(file for part in parts for file in part.removed),
            tuple(one for part in parts for one in part.blocked),
            any(part.missing for part in parts),
        )


@dataclass(frozen=True, slots=True)
class DeletesTask:
    """Merges new positions with the existing deletes of some data files and writes the result. Pickles.

    moves: writes the vectors of all data files anew, also where there is no new position.
    """

    storage: Storage
    positions: Mapping[DataFile, Int64Array]
    existing: Sequence[DeleteFile]
    format_version: int
    granularity: DeleteGranularity
    locations: DeleteFileLocations
    moves: bool
    dry_run: bool

    def run(self, _: object) -> DeletesOutcome:
        positions = dict(self.positions)
        blocked: list[Blocked] = []
        missing = False
        while True:
            try:
                known = existing_deletes(self.storage, positions, self.existing)
                break
            except UnreadableDeleteFileError as error:
                paths = {file.path for file in positions if _speaks_of(error.delete_file, file)}
                if not paths:
                    raise
                hit = [file for file in positions if file.path in paths]
                blocked += [
                    Blocked(
                        file,
                        "unreadable_position_deletes",
                        f"its existing deletes can't be read: {error}",
                        "Restore the delete file, or remove it from the table with its writer.",
                    )
                    for file in hit
                ]
                missing |= error.missing
                for file in hit:
                    del positions[file]
        unreadable = [one.data_file for one in blocked]
        plan = plan_deletes(positions, known, self.format_version, self.granularity, moves=self.moves)
        blocked += [
            Blocked(one.data_file, "data_file_live_twice", _LIVE_TWICE, _LIVE_TWICE_REMEDY, one.spares)
            for one in plan.unlike
        ]
        storage = DryStorage(self.storage.properties) if self.dry_run else self.storage
        written = write_planned(storage, plan, self.locations, list(self.positions), unreadable)
        return DeletesOutcome(
            WrittenDeletes() if self.dry_run else written,
            sum(file.file_size_bytes for file in written.added),
            plan.rows_deleted,
            plan.data_files_touched,
            written.delete_files_added,
            plan.removed,
            tuple(blocked),
            missing,
        )


def _in_order(file: DataFile) -> tuple[int, str, str, int]:
    return file.partition.spec_id, file.partition.values, file.path, file.data_sequence_number


def _speaks_of(delete: DeleteFile, file: DataFile) -> bool:
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file == file.path
    return delete.partition == file.partition


def _deletes_by_scope(
    files: Iterable[DataFile], position_deletes: Iterable[DeleteFile]
) -> dict[str | PartitionKey, list[DeleteFile]]:
    """The position deletes that may apply to some data files, by the path or partition they are for."""
    found: dict[str | PartitionKey, list[DeleteFile]] = {
        scope: [] for file in files for scope in (file.path, file.partition)
    }
    for delete in position_deletes:
        scope = delete.referenced_data_file or delete.partition
        if scope in found:
            found[scope].append(delete)
    return found


def _deletes_of(
    group: Iterable[DataFile], by_scope: Mapping[str | PartitionKey, Sequence[DeleteFile]]
) -> tuple[DeleteFile, ...]:
    """Those that may apply to the data files of a group, each once."""
    scopes = dict.fromkeys(scope for file in group for scope in (file.path, file.partition))
    return tuple(delete for scope in scopes for delete in by_scope[scope])
