"""Data files are written anew without erased rows, and exchanged for the old ones in a `RewriteFiles`.

rows of the keys -> successors of their data files -> commit -> manifests. Invariants: the visible rows are
the same before and after. A successor has the rows of its data file in their order, with their ids, and a
data sequence number at which the same pending equality deletes apply to it. The commit happens on the very
head that was looked at, or not at all.

Iceberg forgets what it commits here when it drops equality deletes that are older than all data files
(apache/iceberg#10962): those that a successor would need are converted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.deletes.locations import DeleteFileLocations, data_file_locations, unannounced_plan
from worker.deletes.puffin import positions_of
from worker.deletes.stage import DeletesStage, announce
from worker.deletes.write import WrittenDeletes, delete_files
from worker.erasure.snapshot_properties import REWRITE, Totals, step_properties
from worker.io.sorting import Int64Array
from worker.process.errors import JobError
from worker.process.slots import Threads
from worker.query.places import Places
from worker.query.snapshot import TableSnapshot
from worker.spark.jvm import java_object, jvm_of
from worker.table import row_delta
from worker.table.catalogs import java_message, raise_lack_of_memory
from worker.table.commit import HEADS_AT_MOST, CommitFate, CommittedSnapshot, commit_snapshot
from worker.table.commit_errors import CommitConflictError, prepared
from worker.table.files import DataFile, DeleteFile
from worker.table.plan import applies
from worker.table.row_delta import java_list, layout_of_new_rows, loads_no_class
from worker.writes.live_rows import KeysInTable

_FILES_AT_ONCE = 4
"""Each holds a row group of its successor, which is 128 MiB unless the table says otherwise."""
_NOTHING = np.empty(0, np.int64)
_SOURCE = Path(__file__).with_name("RewrittenFiles.java")


class UnwritableSuccessorError(JobError):
    code = "data_file_not_rewritten"
    title = "A data file could not be written anew without the erased rows"
    remedy = (
        "The rows are deleted, and still in the file. Look at the cause: restore a file that is damaged, or"
        " rewrite the table's data files with its engine, and erase again."
    )
    retryable = True


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A data file with the positions of the rows that its successor lacks, ascending; and the position
    deletes that concern it alone."""

    file: DataFile
    dropped: Int64Array
    deletes: tuple[DeleteFile, ...]

    @property
    def name(self) -> tuple[str, int, bytes]:
        """Those with the same have the same successor."""
        return self.file.path, self.file.data_sequence_number, self.dropped.tobytes()


# What data files they are of, the old ones, the new ones, and vectors that move.
_Successors = tuple[list[object], list[JavaObject], list[JavaObject], WrittenDeletes]
_NONE: _Successors = ([], [], [], WrittenDeletes())


class Rewrite:
    """The data files of one job that are written anew."""

    def __init__(
        self,
        job: Job,
        in_table: KeysInTable,
        next_number: Callable[[], int],
        convert: Callable[[PinnedTable, Sequence[DeleteFile]], PinnedTable],
    ) -> None:
        """next_number: of this attempt's plans. convert: makes something better of equality deletes, as far
        as it can, and returns the table as it is then."""
        self._job = job
        self._in_table = in_table
        self._next_number = next_number
        self._number = 0
        self._convert = convert
        self._converted: set[str] = set()
        self._table: PinnedTable | None = None
        self._names: list[str] = []
        self._moves: DeletesStage | None = None
        self._successors = _NONE
        self._fate = CommitFate()

    def run(self, table: PinnedTable) -> PinnedTable:
        """Until no data file of the branch's head has a row of the keys that is not visible. Returns the
        table as it is then.

        Raises CommitConflictError when others always come first, UnwritableSuccessorError, or as
        `KeysInTable.rows`.
        """
        for _ in range(HEADS_AT_MOST):
            with self._job.stage("lookup"):
                snapshot, rows = self._in_table.rows(table)
                doomed = _doomed(table, snapshot, rows)
            if not doomed:
                self._remove_written()
                return table
            if needed := _needed(table, doomed):
                table = self._without(table, needed)
                continue
            try:
                self._exchange(table, doomed)
            except CommitConflictError as error:
                self._job.tell_of_change(error)
            except Exception:
                self._remove_written()
                raise
            table = pin_again(self._job)
        self._remove_written()
        remedy = (
            "The rows are deleted, and still in data files. Erase when the others that commit here are idle."
        )
        raise CommitConflictError(f"others committed first {HEADS_AT_MOST:,} times", remedy)

    def _without(self, table: PinnedTable, needed: Sequence[DeleteFile]) -> PinnedTable:
        left = next((one.path for one in needed if one.path in self._converted), None)
        if left is not None:
            raise UnwritableSuccessorError(
                f"the equality delete {left} hits rows in data files that are to be written anew, and can't"
                " be converted",
                "Run a job of kind convert, which tells why, and erase again.",
            )
        self._converted |= {one.path for one in needed}
        return self._convert(table, needed)

    def _exchange(self, table: PinnedTable, doomed: Sequence[_Doomed]) -> CommittedSnapshot:
        """Writes successors, unless an earlier plan has, and commits them."""
        job = self._job
        layout = layout_of_new_rows(table.metadata)
        deletes = [delete for one in doomed for delete in one.deletes]
        beside = {one.path for one in deletes if one.is_deletion_vector}
        neighbours = table.files.position_deletes.with_paths(beside)
        names: list[object] = [layout, neighbours, *(one.name for one in doomed)]
        if self._successors[0] != names:
            self._remove_written()
            with job.stage("deletes"):
                self._moves = DeletesStage(job, table, self._next_number(), dry_run=False)
                moved = self._moves.move_neighbours(deletes)
            with job.stage("rewrite"):
                self._successors = names, *self._written(table, doomed), moved
        _, old, new, moved = self._successors
        new_bytes = sum(int(file.fileSizeInBytes()) for file in new)
        old_bytes = sum(int(file.fileSizeInBytes()) for file in old)
        summary = Totals(
            data_files_rewritten=len(old), bytes_rewritten=old_bytes, bytes_written=new_bytes
        ).summary
        job.usage.bytes += old_bytes + new_bytes
        sequence_number = max(one.file.data_sequence_number for one in doomed)
        snapshot_id = table.snapshot_id
        assert snapshot_id is not None
        with prepared():
            validator = row_delta.head_unmoved(table.java_table, snapshot_id)
            removed = list(row_delta.java_delete_files(table.java_table, [*deletes, *moved.removed]))
            added = list(row_delta.java_new_delete_files(table.java_table, moved.added))

        def announce_all() -> None:
            self._announce(table, only_on=snapshot_id)
            if self._moves is not None and moved.added:
                self._moves.announce(only_on=snapshot_id)

        with self._fate.decided(announce_all) as confirm_lease, job.stage("commit"):
            committed = commit_snapshot(
                table.java_table,
                job.assignment.table.branch,
                snapshot_id,
                step_properties(job, REWRITE, summary),
                lambda properties, condemned, place: java_rewrite(
                    row_delta.guarded(table.java_table, place, layout)
                    .newRewrite()
                    .toBranch(job.assignment.table.branch)
                    .validateFromSnapshot(snapshot_id)
                    .validateWith(validator)
                    .dataSequenceNumber(sequence_number),
                    [*old, *removed],
                    [*new, *added],
                    properties,
                    condemned,
                ),
                confirm_lease=confirm_lease,
                check_location=table.storage.io.check,
            )
        self._forget()
        job.decide(
            f"{counted(len(old), 'data file')} with {counted(old_bytes, 'byte')} written anew as"
            f" {counted(len(new), 'data file')} with {counted(new_bytes, 'byte')}."
        )
        return committed

    def _written(
        self, table: PinnedTable, doomed: Sequence[_Doomed]
    ) -> tuple[list[JavaObject], list[JavaObject]]:
        """The old data files, and the successors of those that have rows left, as Java knows them."""
        dropped = {(one.file.path, one.file.data_sequence_number): one.dropped for one in doomed}
        for path, _ in dropped:
            table.storage.io.check(path)
        self._number = self._next_number()
        java_table = loads_no_class(table.java_table, layout_of_new_rows(table.metadata))
        with _told_as_unwritable():
            paths = java_list(jvm_of(java_table), sorted({path for path, _ in dropped}))
            source = java_object(
                java_table, _SOURCE, "RewrittenFiles", java_table, str(table.snapshot_id), paths
            )
            old = list(source.files())
            keys = [(str(file.location()), int(file.dataSequenceNumber())) for file in old]
        if len({path for path, _ in keys}) < len(keys):
            raise UnwritableSuccessorError("the table names a data file twice, and both would be exchanged")
        if set(keys) != set(dropped):
            raise UnwritableSuccessorError("the manifests do not name the data files that were looked up")
        left = [n for n, file in enumerate(old) if len(dropped[keys[n]]) < file.recordCount()]
        places = self._places(table)
        names = [places.data_file(n, str(old[at].format()).lower()) for n, at in enumerate(left)]
        for name in names:
            table.storage.io.check(name)
        self._names = names
        if names:
            self._announce(table)

        def write(name: str, at: int) -> JavaObject:
            with _told_as_unwritable():
                return source.write(old[at], name, dropped[keys[at]].astype(">i8").tobytes())

        new = []
        with Threads(max(1, int(_FILES_AT_ONCE * self._job.memory_fraction)), "rewrite") as threads:
            for file in threads.map(write, names, left):
                new.append(file)
                self._job.reporter.progress("rewrite", len(new), len(left), "files")
        return old, new

    def _places(self, table: PinnedTable) -> DeleteFileLocations:
        assignment, plan = self._job.assignment, unannounced_plan(table, self._number)
        return data_file_locations(assignment.job.id, assignment.attempt, plan)

    def _announce(self, table: PinnedTable, only_on: int | None = None) -> None:
        """Lets whoever follows know what this plan may leave behind.

        only_on: the head that a commit needs.
        """
        plan = unannounced_plan(table, self._number)
        announce(self._job, plan.model_copy(update={"data_files": len(self._names), "only_on": only_on}))
        self._table = table

    def _remove_written(self) -> None:
        if self._table is not None and not self._fate.may_be_committed:
            delete_files(self._table.storage, self._names)
            if self._moves is not None:
                self._moves.remove_written()
            self._forget()

    def _forget(self) -> None:
        self._names, self._moves, self._successors = [], None, _NONE
        self._fate = CommitFate()


def java_rewrite(
    operation: JavaObject,
    removed: Sequence[JavaObject],
    added: Sequence[JavaObject],
    properties: Mapping[str, str],
    condemned: JavaObject,
) -> JavaObject:
    """A `RewriteFiles` of data and delete files, not yet committed.

    condemned: gets the manifests that Iceberg would delete.
    """
    for file in removed:
        operation.deleteFile(file)
    for file in added:
        operation.addFile(file)
    return row_delta.described(operation, properties, condemned)


def _doomed(table: PinnedTable, snapshot: TableSnapshot, rows: Places) -> list[_Doomed]:
    """The data files that hold invisible rows of the keys, as far as one commit can exchange them.

    A commit gives all its new files one data sequence number. So these are files to which the same pending
    equality deletes apply: those with a higher one.
    """
    dead = np.flatnonzero(~rows.is_live)
    if not len(dead):
        return []
    ordinals, positions = rows.ordinals[dead], rows.positions[dead]
    order = np.lexsort((positions, ordinals))
    used, starts = np.unique(ordinals[order], return_index=True)
    files = list(rows.data_files.select(used))
    of_files = np.split(positions[order], starts[1:])
    pending = np.sort(table.files.equality_deletes.data_sequence_numbers)
    numbers = np.array([file.data_sequence_number for file in files], np.int64)
    not_applied = np.searchsorted(pending, numbers, side="right")
    chosen = np.flatnonzero(not_applied == not_applied.min()).tolist()
    of_chosen = [files[at] for at in chosen]
    skipped, deletes = snapshot.skipped(of_chosen), snapshot.deletes_of(of_chosen)
    return [
        _Doomed(
            files[at],
            np.union1d(of_files[at], _NOTHING if found is None else positions_of(found[0])),
            tuple(one for one in of_file if one.referenced_data_file is not None),
        )
        for at, found, of_file in zip(chosen, skipped, deletes, strict=True)
    ]


def _needed(table: PinnedTable, doomed: Sequence[_Doomed]) -> list[DeleteFile]:
    """The pending equality deletes that the successors would need and not have.

    Iceberg drops those that are older than all other data files. And what a delete of a dropped column
    compares is in no successor.
    """
    data_files, pending = table.files.data_files, table.files.equality_deletes
    if not pending:
        return []
    values, counts = np.unique(data_files.data_sequence_numbers, return_counts=True)
    exchanged = data_files.with_paths({one.file.path for one in doomed})
    np.subtract.at(counts, np.searchsorted(values, exchanged.data_sequence_numbers), 1)
    newest = max(delete.data_sequence_number for delete in pending)
    oldest = min(values[counts > 0].tolist(), default=newest + 1)
    known = table.metadata.schema().field_ids
    return [
        delete
        for delete in pending
        if (delete.data_sequence_number < oldest or not known.issuperset(delete.equality_ids))
        and any(applies(delete, one.file, table.files.global_spec_ids) for one in doomed)
    ]


@contextmanager
def _told_as_unwritable() -> Iterator[None]:
    try:
        yield
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        raise UnwritableSuccessorError(java_message(error)) from None
