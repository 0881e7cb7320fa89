"""Where the live rows of a write's keys lie at a head of the branch; at a later one, by what is new there.

Invariant: a data file never changes, so the places of keys in it are looked for once. Whether they are live
is asked at each head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from worker.attempt.indexes import start_anew
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import StaleAttemptError
from worker.index.key_set_index import KeySetIndex, damage_of
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.io.sorting import Int64Array
from worker.keys.key_set import KeySet
from worker.lookup.index_lookup import Matches
from worker.lookup.positions import Positions
from worker.process.errors import JobCancelledError, JobError
from worker.query.errors import AnswerTooLargeError
from worker.query.places import Coverage, Places
from worker.query.rows import rows_at
from worker.query.snapshot import TableSnapshot
from worker.table.files import DataFile, DataFiles, DeleteFile

_KEPT_BYTES = 320 * 1024**2
MATCHES = 5_000_000
"""Rows with the keys of one write, live or not: each takes some hundred bytes."""


class TooManyRowsError(JobError):
    code = "too_many_rows"
    title = "The keys have too many rows"
    remedy = "Nothing was written. Write fewer keys at once, or delete the rows with the table's engine."


class KeysInTable:
    """The keys of a write, and what was found of them in data files so far.

    index: None if there is none, or it turned out to be damaged.
    """

    def __init__(
        self,
        job: Job,
        warehouse: IndexWarehouse,
        key_set: KeySet,
        keys: pa.RecordBatch,
        index: KeySetIndex | None,
    ) -> None:
        """keys: distinct, as `KeySet.schema`."""
        self._job = job
        self._warehouse = warehouse
        self._key_set = key_set
        self._keys = keys
        self.index = index
        self._cache = Cache(_KEPT_BYTES)
        self._forget()

    def _forget(self) -> None:
        self._before: Places | None = None
        self.matches = 0
        self.files_from_index = 0
        self.files_scanned = 0
        self.rows_scanned = 0

    def live_rows(self, table: PinnedTable) -> LiveRows:
        """The live rows of the keys at the head that was pinned. Raises as `rows`."""
        return LiveRows.of(*self.rows(table))

    def rows(self, table: PinnedTable) -> tuple[TableSnapshot, Places]:
        """The rows of the keys at the head that was pinned, live or not: looked for in data files that no
        earlier plan saw.

        Data files are scanned if the index is damaged. Raises TooManyRowsError, UnreadableError, or OSError
        (a retry can help).
        """
        try:
            return self._rows(table)
        except (JobCancelledError, StaleAttemptError):
            raise
        except Exception:
            damage = damage_of(self.index) if self.index is not None else None
            if damage is None:
                raise
            self._job.decide(
                f"Key set {self._key_set}: the index can't be used, so data files are scanned: {damage}."
            )
            if not self._job.assignment.job.dry_run:
                start_anew(self._job, table, self._warehouse, self._key_set)
            self.index = None
            self._forget()
            return self._rows(table)

    def _rows(self, table: PinnedTable) -> tuple[TableSnapshot, Places]:
        snapshot = TableSnapshot(
            table.storage, table.metadata, table.snapshot, self._cache, is_head=True, files=table.files
        )
        files, before = table.files.data_files, self._before
        unseen = None if before is None else np.flatnonzero(files.are_new(before.data_files))
        coverage = Coverage(
            snapshot,
            self._key_set,
            self.index,
            only=unseen,
            run_tasks=self._run_tasks,
            parallelism=self._job.runner.parallelism,
        )
        try:
            places = coverage.find(self._keys, MATCHES)
        except AnswerTooLargeError as error:
            raise TooManyRowsError(str(error)) from error
        self.files_scanned += places.data_files_scanned
        self.rows_scanned += places.rows_scanned
        self.files_from_index += coverage.files_from_index
        if before is not None:
            seen = _moved(before, files)
            coverage.mark_deleted(self._keys, seen)
            places = _joined(seen, places)
        self._before = places
        self.matches = len(places.keys)
        return snapshot, places

    def _run_tasks(
        self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int, row_cost: float = 1.0
    ) -> Iterator[Any]:
        with self._job.stage(stage) if stage == "scan" else nullcontext():
            yield from self._job.each_task(stage, tasks, shared, planned_rows, row_cost)


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Rows that readers of a snapshot see: `keys[i]` is the number of the key that row i has."""

    snapshot: TableSnapshot
    places: Places

    @classmethod
    def of(cls, snapshot: TableSnapshot, places: Places) -> Self:
        return cls(snapshot, _select(places, np.flatnonzero(places.is_live)))

    @property
    def keys(self) -> Int64Array:
        return self.places.keys

    def positions(self, chosen: Int64Array, memory_fraction: float) -> Positions:
        """Of some of the rows, by their data files."""
        found = Positions(self.places.data_files, memory_fraction)
        found.add(Matches(self.places.ordinals[chosen], self.places.positions[chosen]))
        return found

    def column(self, name: str) -> pa.Array:
        """What the rows hold in a column. Raises UnreadableError, or OSError (a retry can help)."""
        rows = rows_at(self.snapshot, self.places, self.snapshot.schema.select(name))
        column = rows.column(name).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def touched(self, chosen: Int64Array) -> dict[DataFile, tuple[bytes, tuple[DeleteFile, ...]]]:
        """Of each data file with some of the rows: their positions, and the deletes that it has.

        Where two heads say the same, the same delete files are right for both.
        """
        ordinals, positions = self.places.ordinals[chosen], self.places.positions[chosen]
        order = np.lexsort((positions, ordinals))
        used, starts = np.unique(ordinals[order], return_index=True)
        of_files = np.split(positions[order], starts[1:]) if len(used) else []
        files = list(self.places.data_files.select(used))
        deletes = self.snapshot.deletes_of(files)
        return {
            file: (of_file.tobytes(), of_deletes)
            for file, of_file, of_deletes in zip(files, of_files, deletes, strict=True)
        }


def _moved(before: Places, files: DataFiles) -> Places:
    """The same rows as far as their data files are among `files`, by the ordinals of these, none marked."""
    used, of_row = np.unique(before.ordinals, return_inverse=True)
    numbers: dict[DataFile, int] = {}  # one that the table has twice is equal to itself
    number_of_used = [numbers.setdefault(file, len(numbers)) for file in before.data_files.select(used)]
    rows = np.stack([before.keys, np.array(number_of_used, np.int64)[of_row], before.positions])
    keys, of_file, positions = np.unique(rows, axis=1)
    ordinals, number_of = _ordinals_of(files, numbers)
    order = np.argsort(number_of, kind="stable")
    low, high = (np.searchsorted(number_of[order], of_file, side=side) for side in ("left", "right"))
    counts = high - low
    row = np.repeat(np.arange(len(keys)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return replace(
        before,
        keys=keys[row],
        data_files=files,
        ordinals=ordinals[order[low[row] + within]],
        positions=positions[row],
        deletes=np.zeros(len(row), np.uint8),
    )


def _ordinals_of(files: DataFiles, numbers: Mapping[DataFile, int]) -> tuple[Int64Array, Int64Array]:
    """Where some data files are among others, and the number of each."""
    ordinals = np.flatnonzero(files.are_named({file.path for file in numbers}))
    found = np.array([numbers.get(file, -1) for file in files.select(ordinals)], np.int64)
    return ordinals[found >= 0], found[found >= 0]


def _joined(one: Places, other: Places) -> Places:
    """Of the same data files."""
    return replace(
        other,
        keys=np.concatenate([one.keys, other.keys]),
        ordinals=np.concatenate([one.ordinals, other.ordinals]),
        positions=np.concatenate([one.positions, other.positions]),
        deletes=np.concatenate([one.deletes, other.deletes]),
    )


def _select(places: Places, chosen: Int64Array) -> Places:
    return replace(
        places,
        keys=places.keys[chosen],
        ordinals=places.ordinals[chosen],
        positions=places.positions[chosen],
        deletes=places.deletes[chosen],
    )
