"""What an attempt keeps from one plan to the next, so that a later one costs by what is new.

Invariant: what a staged delete deletes of a data file is the same at every head, for files never change. So
each data file is asked about once, and what is written for it stays as long as it and its other deletes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from py4j.java_gateway import JavaObject
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from staging.history import skipped_numbers
from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.outcome import Unconvertible
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.existing import existing_deletes, named_data_files
from worker.deletes.locations import layout_of
from worker.deletes.puffin import positions_of
from worker.deletes.stage import DeletesStage
from worker.deletes.write import WrittenDeletes
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.lookup.deviations import Deviation
from worker.lookup.index_lookup import Matches
from worker.lookup.positions import Positions
from worker.lookup.resolution import Resolved, RowsOfKeySet, merge_explanations
from worker.publication.other_specs import LaterFiles
from worker.publication.staged import ReadBefore, Staged
from worker.table.commit import CommitFate
from worker.table.files import DataFile, DataFiles, DeleteFile
from worker.table.plan import plan_conversion
from worker.table.row_delta import layout_of_new_rows

LOST_PLANS = 5
"""After so many, the next ones take half as many staged snapshots."""
_FILES_PER_TASK = 50
"""Data files whose deletes are written anew together, where others change those of one."""


class KeptParts:
    """By one attempt: what its last plan found, for the next one. fate: of what is written."""

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._warehouse = warehouse
        self._read_before = ReadBefore()
        self._found: Found | None = None
        self._numbers = count()
        self._lost = 0
        self._at_most: int | None = None
        self.fate = CommitFate()

    def staged(self, table: PinnedTable, waiting: Sequence[Snapshot]) -> Staged:
        """What a plan is about: what the last one was about, if that still waits. Raises as `Staged.read`."""
        found, waiting = self._found, waiting[: self._at_most]
        metadata, branch, io = table.metadata, table.branch, table.storage.io
        if found is not None and found.is_of(metadata, waiting):
            staged = found.staged.without_files_of(metadata, branch, io, self._read_before)
            if staged is found.staged:
                return staged
        self.forget()
        asked = self._job.assignment.job.publish
        # One that waits again, after a rollback of the target, is not left out any more.
        left_out = skipped_numbers(metadata, asked.source, branch) - {one.sequence_number for one in waiting}
        return Staged.read(metadata, waiting, branch, io, self._read_before, asked.skip, left_out)

    def found(self, staged: Staged, view: PinnedTable) -> Found:
        """view: the target with what is staged."""
        if self._found is None or self._found.staged is not staged:
            self.forget()
            self._found = Found(self._job, self._warehouse, staged, view, next(self._numbers))
        return self._found

    def lost(self) -> None:
        """Others have committed since the plan. A smaller part takes less time than they leave for it."""
        self._lost += 1
        taken = len(self._found.staged.snapshots) if self._found is not None else 0
        if self._lost % LOST_PLANS == 0 and taken > 1:
            self._at_most = taken // 2
            self._job.decide(
                f"Others committed first {counted(self._lost, 'time')}, so this job publishes"
                f" {self._at_most:,} of {taken:,} staged snapshots, and the next one the rest."
            )

    def forget(self) -> None:
        """Removes what is written; only where it is known that it was not committed."""
        if self._found is not None and not self.fate.may_be_committed:
            self._found.deletes.remove_written()
            self._found = None


class Found:
    """What some staged snapshots come to at the heads of all plans.

    deviations, explanations: of all plans together. deletes: writes their deletes.
    """

    def __init__(
        self, job: Job, warehouse: IndexWarehouse, staged: Staged, view: PinnedTable, number: int
    ) -> None:
        """number: of the attempt's plans."""
        self.staged = staged
        self._job = job
        self._warehouse = warehouse
        self._ground = _ground(view.metadata)
        self._dry_run = job.assignment.job.dry_run
        self.deletes = DeletesStage(job, view, number, dry_run=self._dry_run, files_per_task=_FILES_PER_TASK)
        self._key_sets: dict[tuple[int, ...], RowsOfKeySet] = {}
        self._explanations: dict[tuple[int, ...], dict[str, Any]] = {}
        self._deviations: dict[Deviation, None] = {}
        self._positions: list[Positions] = []
        self._named: dict[str, DeleteFile] | None = None
        self._asked: set[DataFile] = set()
        self._asked_by_key: set[DataFile] = set()
        self._java_data_files: JavaObject | None = None

    @property
    def explanations(self) -> list[dict[str, Any]]:
        return list(self._explanations.values())

    @property
    def deviations(self) -> list[Deviation]:
        return list(self._deviations)

    def is_of(self, metadata: TableMetadata, waiting: Sequence[Snapshot]) -> bool:
        """Whether these snapshots are the first that wait, of a table whose files are read as before."""
        ids = [one.snapshot_id for one in waiting]
        own = [one.snapshot_id for one in self.staged.snapshots]
        stop = self.staged.stop
        return (
            _ground(metadata) == self._ground
            and bool(own)
            and ids[: len(own)] == own
            and (stop is None or stop.snapshot_id in ids)
        )

    def find(self, view: PinnedTable, equality_deletes: Iterable[DeleteFile]) -> list[Unconvertible]:
        """Looks for the rows that equality deletes delete in new data files; which of them are refused."""
        refused: list[Unconvertible] = []
        for deletes in plan_conversion(view.files, equality_deletes):
            ids = deletes.equality_field_ids
            if ids not in self._key_sets:
                self._key_sets[ids] = self._rows_of_key_set()
            resolved = self._key_sets[ids].find(view, deletes)
            refused += resolved.refused
            self._take(ids, resolved)
        return refused

    def find_in_later(self, later: LaterFiles, target: PinnedTable) -> tuple[list[Unconvertible], int | None]:
        """The same in data files of other specs, each of which is asked about once; and the lowest sequence
        number of an unclear delete that has the key of one of their rows."""
        files = [file for file in later.data_files if file not in self._asked_by_key]
        self._asked_by_key.update(files)
        view = replace(later, data_files=DataFiles.of(files)).seen_by(target)
        refused, _ = self._found_by_key(view, later.exact, takes=True)
        refused_unclear, matches = self._found_by_key(view, later.unclear)
        if not matches:
            return refused + refused_unclear, None
        for number in sorted({one.data_sequence_number for one in later.unclear}):
            some = [one for one in later.unclear if one.data_sequence_number == number]
            if self._found_by_key(view, some)[1]:
                return refused, number
        raise AssertionError("one of them has found rows")

    def _found_by_key(
        self, view: PinnedTable, equality_deletes: Iterable[DeleteFile], *, takes: bool = False
    ) -> tuple[list[Unconvertible], int]:
        refused: list[Unconvertible] = []
        matches = 0
        for deletes in plan_conversion(view.files, equality_deletes):
            resolved = self._rows_of_key_set().find(view, deletes)
            refused += resolved.refused
            matches += resolved.positions.matches
            if takes:
                self._take(deletes.equality_field_ids, resolved)
        return refused, matches

    def _rows_of_key_set(self) -> RowsOfKeySet:
        return RowsOfKeySet(self._job, self._warehouse, dry_run=self._dry_run)

    def _take(self, ids: tuple[int, ...], resolved: Resolved) -> None:
        self._deviations |= dict.fromkeys(resolved.deviations)
        if ids not in self._explanations:
            self._explanations[ids] = resolved.explanation
        else:
            of_new_ones = resolved.explanation | {"keys": 0, "key_ranges": 0}
            (self._explanations[ids],) = merge_explanations([of_new_ones, self._explanations[ids]])
        if resolved.positions.matches:
            self._positions.append(resolved.positions)

    def named_by(self, storage: Storage, position_deletes: Iterable[DeleteFile]) -> Mapping[str, DeleteFile]:
        """The paths of the data files that position deletes name, and the first delete that names each.

        Raises UnreadableDeleteFileError, or OSError (a retry can help).
        """
        if self._named is None:
            self._named = {
                path: delete
                for delete in sorted(position_deletes, key=lambda one: -one.data_sequence_number)
                for path in named_data_files(storage, delete)
            }
        return self._named

    def take_named(
        self, storage: Storage, files: Iterable[DataFile], position_deletes: Sequence[DeleteFile]
    ) -> None:
        """Takes from the position deletes what they delete of data files, of which some may be known.

        Raises as `named_by`.
        """
        new = [file for file in files if file not in self._asked]
        if not new:
            return
        skipped = existing_deletes(storage, new, position_deletes)
        found = Positions(DataFiles.of(new), self._job.memory_fraction)
        for ordinal, file in enumerate(new):
            if file in skipped:
                positions = positions_of(skipped[file].positions).astype(np.int64)
                found.add(Matches(np.full(len(positions), ordinal, np.int64), positions))
        self._positions.append(found)
        self._asked.update(new)

    def write(self, view: PinnedTable) -> WrittenDeletes:
        """The deletes of all that was found, as the data files are at this head."""
        return self.deletes.write_at(view, self._positions)

    @property
    def positions(self) -> Sequence[Positions]:
        return self._positions

    def java_data_files(self, java_table: JavaObject) -> JavaObject:
        """Java's list of the staged data files. Raises CommitError."""
        if self._java_data_files is None:
            self._java_data_files = self.staged.java_data_files(java_table)
        return self._java_data_files


def _ground(metadata: TableMetadata) -> object:
    """What of a table says how keys are read and where deletes go."""
    return layout_of_new_rows(metadata), layout_of(metadata)
