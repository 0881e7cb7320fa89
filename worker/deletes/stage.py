"""The stage of a conversion that writes delete files, as tasks of some data files each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from pyiceberg.table.metadata import TableMetadata

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import AnnouncedPlan
from worker.deletes.existing import UnreadableDeleteFileError, existing_deletes, outdated_vectors
from worker.deletes.locations import DeleteFileLocations, output_locations, unannounced_plan
from worker.deletes.merge import Blocked, DeleteGranularity, plan_deletes
from worker.deletes.vector_files import shares_files, to_be_moved
from worker.deletes.write import WrittenDeletes, count_names, remove_written, write_planned
from worker.io.sorting import Int64Array
from worker.io.storage import DryStorage, Storage
from worker.lookup.positions import MEMORY_POSITIONS, Positions, in_batches, union
from worker.process.errors import Reason
from worker.table.commit import CLOCK_TOLERANCE_SECONDS
from worker.table.commit_errors import ClockAheadError
from worker.table.files import DataFile, DeleteFile, DeleteFiles, PartitionKey

FILES_PER_DELETES_TASK = 500
VECTORS_PER_MOVE = 50  # each may hold as many positions as its data file has rows

LOST_TYPE = Reason(
    "lost_partition_type",
    "its partition is of a column that was dropped, so Iceberg can't write delete files into it",
    "Rewrite the partition's data files (rewrite_data_files with remove-dangling-deletes=true), which puts"
    " them under the current partition spec.",
)


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """What a task came to, and what that depends on beside the positions of its data files."""

    outcome: WrittenDeletes
    files: Set[DataFile]
    existing: Set[DeleteFile]
    granularity: DeleteGranularity
    moves: bool
    locations: DeleteFileLocations

    @classmethod
    def by(cls, task: DeletesTask, outcome: WrittenDeletes) -> _Written:
        files, existing = frozenset(task.positions), frozenset(task.existing)
        return cls(outcome, files, existing, task.granularity, task.moves, task.locations)


class DeletesStage:
    """Writes the delete files of one plan, which whoever follows can find and remove, and so can this."""

    def __init__(
        self,
        job: Job,
        table: PinnedTable,
        number: int,
        *,
        dry_run: bool,
        files_per_task: int = FILES_PER_DELETES_TASK,
    ) -> None:
        """number: of this attempt's plans. files_per_task: data files at most."""
        self._job = job
        self._table = table
        self._dry_run = dry_run
        self._files_per_task = files_per_task
        self._announced = unannounced_plan(table, number)
        self._told: AnnouncedPlan | None = None
        """What was announced last."""
        self._removes: str | None = None
        self._locations: list[tuple[DeleteFileLocations, int]] = []  # and how many names
        self._written: list[_Written] = []
        self._before: list[_Written] = []  # at the head before

    def write(self, positions: Sequence[Positions], removes: str | None = None) -> WrittenDeletes:
        """As many data files at a time as have no more positions than the driver should hold.

        removes: what the commit will remove, by all that is known. That is told before a single task writes,
        so that the commit need tell nothing; if the attempt dies in between, its files stay until it is gone.
        """
        self._removes = removes
        found = {file for one in positions for file in one.data_files()}
        lost, ordered = self._ordered(found)
        outcome = self._run(ordered, positions)
        outcome = WrittenDeletes.union([outcome, self.move_neighbours(outcome.removed, positions)])
        blocked = tuple(Blocked(file, LOST_TYPE) for file in lost)
        return replace(outcome, blocked=outcome.blocked + blocked)

    def write_at(self, table: PinnedTable, positions: Sequence[Positions]) -> WrittenDeletes:
        """The same at a later head, where nothing that was written is committed yet.

        positions: each data file that was given before has the same ones. What a task wrote stays where its
        data files and their deletes are what they were; the rest of it is removed.
        """
        self._table = table
        self._before, self._written = self._written, []
        outcome = self.write(positions)
        for one in self._before:
            if one not in self._written:
                names = self._count_names(len(one.files), one.granularity)
                self._remove(one.locations, names)
        return outcome

    def move_neighbours(
        self, removed: Sequence[DeleteFile], positions: Sequence[Positions] = ()
    ) -> WrittenDeletes:
        """Writes deletion vectors anew that share a file with some that are removed, as `to_be_moved` says.

        positions: of data files with new deletes.
        """
        live, kind = self._table.files, self._job.assignment.job.kind
        # An erasure moves all, since a file's footer has paths, which may tell keys.
        may_stay = self._shares_files and kind != "erase"
        parts = not self._shares_files and kind == "convert"
        chosen, later = to_be_moved(
            removed, live.position_deletes, live.data_files, may_stay=may_stay, parts=parts
        )
        if later and not self._dry_run:
            self._job.decide(
                f"{later:,} deletion vectors still share files, which the policy does not let them any more:"
                " the next conversion moves them, also where nothing is pending."
            )
        if not chosen:
            return WrittenDeletes()
        _, movable = self._ordered(set(chosen))
        found = positions or [Positions(chosen, self._job.memory_fraction)]
        moved = self._run(movable, found, moves=True)
        vectors = len({file.path for file in chosen})
        self._tell_of_moves(len(moved.added), vectors - len(moved.added))
        # One that can't be read or written stays where it is.
        return replace(moved, blocked=(), missing=False)

    def announce(self, removes: str | None = None, only_on: int | None = None) -> None:
        """Lets whoever follows know what this plan may leave behind; see `announce`."""
        files_per_task = max((names for _, names in self._locations), default=0)
        known = {"tasks": len(self._locations), "files_per_task": files_per_task}
        known_of_commit = {"removes": removes, "only_on": only_on}
        plan = self._announced.model_copy(update=known | known_of_commit)
        # Whether a publication may still go on to a head, the service says each time.
        is_told = plan == self._told and only_on is None
        announce(self._job, None if is_told else plan)
        self._told = plan

    def remove_written(self) -> None:
        """Deletes what this plan wrote; only after an error that says that it was not committed."""
        for locations, names in self._locations:
            self._remove(locations, names)

    def _remove(self, locations: DeleteFileLocations, names: int) -> None:
        if not self._dry_run:
            remove_written(self._table.storage, locations, self._table.metadata.format_version, names)

    def _ordered(self, found: Set[DataFile]) -> tuple[list[DataFile], list[DataFile]]:
        """Those that no delete file can be written for, and the others in order of partition and path.

        After each follow the other live files of its path, which new deletes would hit as well. Those that
        are not live any more are left out.
        """
        by_path: dict[str, list[DataFile]] = defaultdict(list)
        for file in set(self._table.files.data_files.with_paths({file.path for file in found})):
            by_path[file.path].append(file)
        untyped = partitions_without_type(
            self._table.metadata, (file for files in by_path.values() for file in files)
        )
        lost: list[DataFile] = []
        ordered: list[list[DataFile]] = []
        for files in by_path.values():
            if any(file.partition in untyped for file in files):
                lost += files
            else:
                ordered.append(sorted(files, key=_in_order))
        ordered.sort(key=lambda files: _in_order(files[0]))
        return lost, [file for files in ordered for file in files]

    def _run(
        self, files: Sequence[DataFile], positions: Sequence[Positions], *, moves: bool = False
    ) -> WrittenDeletes:
        bound = int(MEMORY_POSITIONS * self._job.memory_fraction)
        existing = _deletes_by_scope(files, self._table.files.position_deletes)
        written = self._still_right(files, existing, moves=moves)
        done = {file for one in written for file in one.files}
        files = [file for file in files if file not in done]
        for batch in in_batches(files, positions, len(files), bound):
            files_at_most = VECTORS_PER_MOVE if moves else self._files_per_task
            groups = in_batches(batch, positions, files_at_most, bound // 8)
            tasks = [self._task(group, positions, existing, moves=moves) for group in groups]
            if tasks and not self._dry_run:
                # More takes so long that the lease is renewed before the commit anyway.
                self.announce(self._removes if len(self._locations) == 1 else None)
            if moves:  # how many positions their vectors hold is not known before they are read
                rows = sum(file.record_count for file in batch)
            else:
                rows = sum(len(found) for task in tasks for found in task.positions.values())
            outcomes = self._job.run_tasks("deletes", tasks, None, rows)
            written += map(_Written.by, tasks, outcomes)
        self._written += written
        return WrittenDeletes.union([one.outcome for one in written])

    def _still_right(
        self,
        files: Sequence[DataFile],
        existing: Mapping[str | PartitionKey, Sequence[DeleteFile]],
        *,
        moves: bool,
    ) -> list[_Written]:
        """What was written for some of the files, with the deletes that they have now."""
        by_path: dict[str, set[DataFile]] = defaultdict(set)
        for file in files:
            by_path[file.path].add(file)

        def is_right(one: _Written) -> bool:
            of_paths = {file for path in {file.path for file in one.files} for file in by_path.get(path, ())}
            return (
                one.moves == moves
                and one.granularity is self._granularity
                and of_paths == one.files
                and one.existing == frozenset(_deletes_of(one.files, existing))
            )

        return [one for one in self._before if is_right(one)]

    @property
    def _granularity(self) -> DeleteGranularity:
        return DeleteGranularity.of_table(self._table.metadata.properties)

    @cached_property
    def _shares_files(self) -> bool:
        return self._table.metadata.format_version >= 3 and shares_files(self._job)

    def _count_names(self, data_files: int, granularity: DeleteGranularity) -> int:
        version = self._table.metadata.format_version
        return count_names(data_files, version, granularity, shares_files=self._shares_files)

    def _task(
        self,
        files: Sequence[DataFile],
        positions: Sequence[Positions],
        existing: Mapping[str | PartitionKey, Sequence[DeleteFile]],
        *,
        moves: bool,
    ) -> DeletesTask:
        metadata, assignment = self._table.metadata, self._job.assignment
        number = len(self._locations)
        locations = output_locations(assignment.job.id, assignment.attempt, self._announced, number)
        names = self._count_names(len(files), self._granularity)
        self._locations.append((locations, names))
        return DeletesTask(
            self._table.storage,
            {file: union(positions, file) for file in files},
            _deletes_of(files, existing),
            metadata.format_version,
            self._granularity,
            locations,
            moves,
            self._shares_files,
            self._dry_run,
        )

    def _tell_of_moves(self, moved: int, left: int) -> None:
        if self._dry_run:
            return
        if moved and self._shares_files:
            self._job.decide(
                f"{moved:,} deletion vectors move, since others of their files are not live any more."
            )
        elif moved:
            self._job.decide(
                f"{moved:,} deletion vectors move to files of their own: they shared one with others, and"
                " Iceberg's expireSnapshots() deletes such a file once one of its vectors is replaced."
            )
        if left:
            self._job.decide(
                f"{left:,} deletion vectors stay in files with vectors that are replaced, since they can't be"
                " read or written anew: expire snapshots with Spark's procedure, which spares such files."
            )


def announce(job: Job, plan: AnnouncedPlan | None) -> None:
    """Confirms the lease, and lets whoever follows know what a plan may leave behind; None if he does.

    Raises ClockAheadError.
    """
    if plan is None:
        job.reporter.confirm_lease()
    else:
        job.reporter.announce(plan)
    ahead = job.reporter.seconds_ahead  # as the answer says
    if ahead > CLOCK_TOLERANCE_SECONDS:
        raise ClockAheadError(
            f"this worker's clock is {ahead:,.0f} seconds ahead of the service's; after a commit at that"
            " time, Iceberg would refuse those of all writers whose clocks are right"
        )


@dataclass(frozen=True, slots=True)
class DeletesTask:
    """Merges new positions with the existing deletes of some data files and writes the result. Pickles.

    moves: writes the vectors of all data files anew, also where there is no new position. shares_files: see
    `write_planned`.
    """

    storage: Storage
    positions: Mapping[DataFile, Int64Array]
    existing: Sequence[DeleteFile]
    format_version: int
    granularity: DeleteGranularity
    locations: DeleteFileLocations
    moves: bool
    shares_files: bool
    dry_run: bool

    def run(self, _: object) -> WrittenDeletes:
        positions = dict(self.positions)
        blocked: list[Blocked] = []
        missing = False
        while True:
            try:
                known = existing_deletes(self.storage, positions, self.existing)
                break
            except UnreadableDeleteFileError as error:
                lost = [error.delete_file]
                if error.missing:  # and with it all of its vectors
                    lost = [one for one in self.existing if one.path == error.delete_file.path]
                paths = {file.path for file in positions for one in lost if _speaks_of(one, file)}
                if not paths:
                    raise
                hit = [file for file in positions if file.path in paths]
                unreadable_deletes = Reason(
                    "unreadable_position_deletes",
                    f"its existing deletes can't be read: {error}",
                    "Restore the delete file, or remove it from the table with its writer.",
                )
                blocked += [Blocked(file, unreadable_deletes) for file in hit]
                missing |= error.missing
                for file in hit:
                    del positions[file]
        unreadable = [one.data_file for one in blocked]
        plan = plan_deletes(positions, known, self.format_version, self.granularity, moves=self.moves)
        storage = DryStorage(self.storage) if self.dry_run else self.storage
        written = write_planned(
            storage,
            plan,
            self.locations,
            list(self.positions),
            unreadable,
            shares_files=self.shares_files,
        )
        return replace(
            written,
            removed=(*written.removed, *outdated_vectors(plan.positions, self.existing)),
            blocked=(*blocked, *written.blocked),
            missing=missing,
        )


def partitions_without_type(
    metadata: TableMetadata, files: Iterable[DataFile | DeleteFile]
) -> set[PartitionKey]:
    """The partitions of the files into which Iceberg's Java library can't write any more."""
    return {one for one in {file.partition for file in files} if _has_lost_its_type(metadata, one)}


def _has_lost_its_type(metadata: TableMetadata, partition: PartitionKey) -> bool:
    """Whether a partition has a value of unknown type.

    The type of a partition field is that of its source column, unknown once that is dropped.
    """
    spec = next(spec for spec in metadata.partition_specs if spec.spec_id == partition.spec_id)
    known = metadata.schema().field_ids
    return any(
        field.source_id not in known and value is not None
        for field, value in zip(spec.fields, json.loads(partition.values), strict=True)
    )


def _in_order(file: DataFile) -> tuple[int, str, str, int]:
    return file.partition.spec_id, file.partition.values, file.path, file.data_sequence_number


def _speaks_of(delete: DeleteFile, file: DataFile) -> bool:
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file == file.path
    return delete.partition == file.partition


def _deletes_by_scope(
    files: Collection[DataFile], position_deletes: DeleteFiles
) -> dict[str | PartitionKey, list[DeleteFile]]:
    """The position deletes that may apply to some data files, by the path or partition they are for."""
    found: dict[str | PartitionKey, list[DeleteFile]] = {
        scope: [] for file in files for scope in (file.path, file.partition)
    }
    for delete in position_deletes.that_may_apply(files):
        named = delete.referenced_data_file
        found[delete.partition if named is None else named].append(delete)
    return found


def _deletes_of(
    group: Iterable[DataFile], by_scope: Mapping[str | PartitionKey, Sequence[DeleteFile]]
) -> tuple[DeleteFile, ...]:
    """Those that may apply to the data files of a group, each once."""
    scopes = dict.fromkeys(scope for file in group for scope in (file.path, file.partition))
    return tuple(delete for scope in scopes for delete in by_scope[scope])
