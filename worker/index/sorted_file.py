"""One file of a sorted run, read whole: is it in order, and what manifest and statistics say of it?

Invariant: what is said of it has places and no keys, since results of jobs outlive rows that are erased.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.index.checksums import read_footer
from worker.index.key_set_index import decode
from worker.index.run_files import DECODED_BYTES, SYSTEM_COLUMNS, RunFile
from worker.io.row_groups import RowGroups
from worker.io.sorting import Int64Array, contiguous
from worker.io.storage import Storage

_READ_ROWS = 262_144  # of the index that a task decodes at a time
_READ_BYTES = 128 * 1024**2  # the same bound for wide keys

Key = tuple[Any, ...]


class SortedFile:
    """One file of a sorted run, and after `read` all that is wrong with it. Pickles."""

    def __init__(self, storage: Storage, file: RunFile, schema: pa.Schema, key_columns: int) -> None:
        """schema: of all columns; the first `key_columns` of them are the primary key."""
        self.file = file
        self.schema = schema
        self.storage = storage
        self.faults: list[str] = []
        self.is_readable = True
        self.first: Key = ()
        self.last: Key = ()
        self._names = schema.names[:key_columns]
        self._rows = 0
        self._unordered = 0
        self._bounds: list[tuple[Any, Any]] = []

    def read(self) -> Iterator[pa.Table]:
        """All rows, some row groups at a time. Raises OSError when the store doesn't answer."""
        location = self.file.location
        try:
            with self.storage.open_input(location) as source:
                metadata = read_footer(source)
                for groups in _chunks(metadata):
                    columns = [*SYSTEM_COLUMNS, *self.schema.names]
                    rows = RowGroups(source, metadata).read(groups, columns)
                    self._check_system_columns(rows)
                    rows = rows.select(self.schema.names).cast(self.schema)
                    self._check(rows, metadata, groups)
                    yield rows
        except FileNotFoundError:
            self._cannot_be_read(f"{location} is missing")
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            if self.storage.is_at_fault(error, [location], partial(decode, self.storage, location)):
                raise
            self._cannot_be_read(f"{location} can't be decoded: {error}")
        else:
            self._compare_with_manifest()

    def _check_system_columns(self, rows: pa.Table) -> None:
        """Every row is an insert: to Paimon's readers, another kind deletes."""
        for name in SYSTEM_COLUMNS:
            bounds = pc.min_max(rows[name]).as_py()
            if set(bounds.values()) - {0, None}:
                self.faults.append(f"{self.file.location}: {name} is not 0 in every row")

    def _cannot_be_read(self, why: str) -> None:
        self.faults = [why]
        self.is_readable = False

    def _check(self, rows: pa.Table, metadata: pq.FileMetaData, groups: Sequence[int]) -> None:
        columns = [contiguous(rows[name]) for name in self._names]
        if self.last and self.last >= (first := tuple(column[0].as_py() for column in columns)):
            self._is_unordered(self._rows, self.last, first)
        for row in _unordered(columns).tolist():
            before, after = (tuple(column[i].as_py() for column in columns) for i in (row, row + 1))
            self._is_unordered(self._rows + row + 1, before, after)
        self.first = self.first or tuple(column[0].as_py() for column in columns)
        self.last = tuple(column[-1].as_py() for column in columns)
        self._rows += rows.num_rows
        sizes = [metadata.row_group(group).num_rows for group in groups]
        bounds = [_bounds(column, sizes) for column in columns]
        self._compare_with_statistics(metadata, groups, bounds)
        whole = [(min(low for low, _ in b), max(high for _, high in b)) for b in bounds]
        self._bounds = [
            (min(low, other_low), max(high, other_high))
            for (low, high), (other_low, other_high) in zip(self._bounds or whole, whole, strict=True)
        ]

    def _is_unordered(self, row: int, before: Key, after: Key) -> None:
        if not self._unordered:
            how = "is row" if before == after else "must not follow row"
            self.faults.append(f"{self.file.location}: row {row} {how} {row - 1}")
        self._unordered += 1

    def _compare_with_statistics(
        self, metadata: pq.FileMetaData, groups: Sequence[int], bounds: Sequence[Sequence[tuple[Any, Any]]]
    ) -> None:
        """Those of row groups that a lookup skips what it does not want by."""
        at = [metadata.schema.names.index(name) for name in self._names]
        for number, group in enumerate(groups):
            row_group = metadata.row_group(group)
            for name, column, of_groups in zip(self._names, at, bounds, strict=True):
                told = row_group.column(column).statistics
                if told is None or not told.has_min_max:
                    continue
                low, high = of_groups[number]
                if (told.min, told.max) != (low, high):
                    self._add_wrong_bounds(f"the statistics of row group {group}", name)

    def _compare_with_manifest(self) -> None:
        file = self.file
        if self._rows != file.rows:
            self.faults.append(f"{file.location}: {self._rows:,} rows, {file.rows:,} in the manifest")
        if not self._rows:
            return
        if (self.first, self.last) != (file.min_key, file.max_key):
            self._add_wrong_bounds("the manifest", "keys")
        told = zip(file.lower_bounds, file.upper_bounds, strict=True)
        for name, (low, high), (told_low, told_high) in zip(self._names, self._bounds, told, strict=True):
            if told_low not in (None, low) or told_high not in (None, high):
                self._add_wrong_bounds("the manifest", name)

    def _add_wrong_bounds(self, who: str, what: str) -> None:
        self.faults.append(f"{self.file.location}: {what} with other bounds than {who}")


def _chunks(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups in order, as many at a time as fit the memory bound of a task."""
    row_bytes = int((metadata.metadata or {}).get(DECODED_BYTES.encode(), 0)) / max(1, metadata.num_rows)
    rows_at_most = min(_READ_ROWS, _READ_BYTES / row_bytes) if row_bytes else _READ_ROWS
    chunk: list[int] = []
    rows = 0
    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).num_rows
        if not more:
            continue
        if chunk and rows + more > rows_at_most:
            yield chunk
            chunk, rows = [], 0
        chunk.append(group)
        rows += more
    if chunk:
        yield chunk


def _unordered(columns: Sequence[pa.Array]) -> Int64Array:
    """Rows whose next one is not greater."""
    pairs = max(0, len(columns[0]) - 1)
    wrong, undecided = np.zeros(pairs, np.bool_), np.ones(pairs, np.bool_)
    for column in columns:
        if pa.types.is_integer(column.type):
            numbers = column.to_numpy()
            greater, equal = numbers[:-1] > numbers[1:], numbers[:-1] == numbers[1:]
        else:
            before, after = column.slice(0, pairs), column.slice(1)
            greater, equal = (
                compare(before, after).to_numpy(zero_copy_only=False) for compare in (pc.greater, pc.equal)
            )
        wrong |= undecided & greater
        undecided &= equal
        if not undecided.any():
            break
    return np.flatnonzero(wrong | undecided)


def _bounds(column: pa.Array, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    """The least and the greatest value of as many rows at a time."""
    starts = np.cumsum(sizes, dtype=np.int64) - np.array(sizes, np.int64)
    if pa.types.is_integer(column.type):
        numbers = column.to_numpy()
        lows, highs = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
        return list(zip(lows.tolist(), highs.tolist(), strict=True))
    of_groups = (
        pc.min_max(column.slice(start, size)).as_py() for start, size in zip(starts, sizes, strict=True)
    )
    return [(bounds["min"], bounds["max"]) for bounds in of_groups]


def faults_of(checks: Sequence[SortedFile]) -> list[str]:
    """Those of files that were read, and files of one run that overlap."""
    faults = [fault for check in checks for fault in check.faults]
    by_level: dict[int, list[SortedFile]] = defaultdict(list)
    for check in checks:
        if check.file.level and check.first:
            by_level[check.file.level].append(check)
    for level, files in by_level.items():
        for low, high in pairwise(sorted(files, key=lambda check: check.first)):
            if low.last >= high.first:
                faults.append(f"{low.file.location} and {high.file.location} overlap at level {level}")
    return faults
