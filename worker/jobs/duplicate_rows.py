"""Rows of equal keys: sorted runs, range by range of keys, against the rows that are live.

Runs are sorted by partition and key, and equal keys are wanted in whatever partitions. So each task reads one
range of keys from all runs, of which the row groups tell what they may hold.

Invariant: a row of the table is met once, as an entry of one run, and all rows of a key in one task. What a
task holds is bounded also where so many rows have one key that no range is small enough.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from worker.deletes.existing import UnreadableDeleteFileError, existing_deletes
from worker.deletes.puffin import bitmap_of, positions_of
from worker.index.compaction import KeyRange, Prefix, cuts_between, rows_inside
from worker.index.dictionary import PARTITION_ID
from worker.index.footers import Footer, footer, footers
from worker.index.key_set_index import ROW_ADDRESS
from worker.index.run_files import RunFile, write_run
from worker.io.row_groups import RowGroups
from worker.io.sorting import Int64Array, contiguous, sort_order, sort_rows, take
from worker.io.storage import Storage
from worker.keys.key_set import MASK_BITS, KeySet
from worker.keys.key_types import from_key_type, to_words
from worker.lookup.index_lookup import ANY_AGE, LiveRows, RowAddressMatches
from worker.table.files import DataFile, DataFiles, DeleteFile

REPORTED_PLACES = 10  # of each key in the report
SHOWN_KEYS = 20  # in a result, and
SHOWN_PLACES = 5  # of each of them
_SHOWN_CHARACTERS = 200  # of a value
_PORTIONS_AT_ONCE = (
    3  # that a task holds of a range, which is about one portion unless many rows have one key
)
_GROUPS_AT_ONCE = 100_000  # keys that are written at a time
_ORDINAL, _POSITION, _COUNT = "ordinal", "position", "count"
_PLACE = pa.struct([pa.field("data_file", pa.string()), pa.field("position", pa.int64())])


@dataclass(frozen=True)
class SnapshotRows:
    """The rows of a snapshot, by their addresses, and which of them are deleted. Pickles.

    indexed: rows below `end`. uncovered: ordinals of the other data files, whose rows have the addresses
    from `bases` on, ascending. deleted: numbers of rows, see `row_numbers`.
    """

    data_files: DataFiles
    indexed: LiveRows | None
    end: int
    uncovered: Int64Array
    bases: Int64Array
    deleted: BitMap64

    @cached_property
    def _first_numbers(self) -> Int64Array:
        return first_numbers(self.data_files)

    @property
    def has_copies(self) -> bool:
        return self.indexed is not None and self.indexed.has_copies

    def live(self, row_addresses: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(which of the addresses, ordinal of the data file, position) of each live row.

        A data file that is live twice has each row twice. Addresses that no live file owns have none.
        """
        others = np.flatnonzero(row_addresses >= self.end)
        files = np.searchsorted(self.bases, row_addresses[others], side="right") - 1
        which, ordinals, positions = others, self.uncovered[files], row_addresses[others] - self.bases[files]
        if self.indexed is not None:
            asked = np.flatnonzero(row_addresses < self.end)
            found, numbers = self.indexed.numbered(RowAddressMatches(row_addresses[asked], asked + ANY_AGE))
            which = np.concatenate([which, numbers - ANY_AGE])
            ordinals = np.concatenate([ordinals, found.ordinals])
            positions = np.concatenate([positions, found.positions])
        if self.deleted and len(which):
            numbers = self._first_numbers[ordinals] + positions
            hidden = positions_of(bitmap_of(numbers) & self.deleted)
            is_live = np.isin(numbers, hidden, invert=True)
            which, ordinals, positions = which[is_live], ordinals[is_live], positions[is_live]
        return which, ordinals, positions


def first_numbers(data_files: DataFiles) -> Int64Array:
    """Rows of a snapshot are numbered, data file by data file: the number of each one's first."""
    counts = data_files.record_counts
    numbers: Int64Array = np.cumsum(counts) - counts
    return numbers


@dataclass(frozen=True, slots=True)
class DeletedTask:
    """Reads the position deletes of some data files: the numbers of their rows, or why not. Pickles.

    first_numbers: of the data files. deletes: all that may apply to them.
    """

    storage: Storage
    data_files: tuple[DataFile, ...]
    first_numbers: tuple[int, ...]
    deletes: tuple[DeleteFile, ...]

    def run(self, _: object) -> BitMap64 | str:
        try:
            found = existing_deletes(self.storage, self.data_files, self.deletes)
        except UnreadableDeleteFileError as error:
            return str(error)
        numbers = [np.empty(0, np.int64)]
        for file, first in zip(self.data_files, self.first_numbers, strict=True):
            if file in found:
                positions = positions_of(found[file].positions)
                # One behind the last row would be another file's.
                numbers.append(first + positions[positions < file.record_count])
        return bitmap_of(np.concatenate(numbers))


@dataclass(frozen=True, slots=True)
class Source:
    """Row groups of a file that may hold keys of a range. rows: that they have."""

    file: RunFile
    row_groups: Int64Array
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranges of keys, each with what to read for it; empty ones are left out.

    scattered: files of many partitions that keep a range from being small enough, and those of which the
    ranges together would read each row more than `most_reads` times: to be sorted by keys alone before.
    """

    ranges: tuple[tuple[KeyRange, tuple[Source, ...]], ...]
    scattered: tuple[RunFile, ...]


def plan_ranges(
    storage: Storage,
    files: Sequence[RunFile],
    key_set: KeySet,
    rows_at_most: int,
    bytes_at_most: int,
    most_reads: float,
) -> Plan:
    """Cuts the keys of some files into ranges with about so many rows and decoded bytes."""
    key_types = _key_types(key_set)
    known = list(zip(files, footers(storage, files, key_types), strict=True))
    bounds = [
        [of_file.ranges.prefixes(group, any_partition=True) for group in range(len(of_file.rows))]
        for _, of_file in known
    ]
    cuts = cuts_between(
        (first, share)
        for (_, of_file), of_groups in zip(known, bounds, strict=True)
        for (first, _), share in zip(
            of_groups, of_file.filled(rows_at_most, bytes_at_most).tolist(), strict=True
        )
    )
    sources: list[list[Source]] = [[] for _ in range(len(cuts) + 1)]
    filled = np.zeros(len(cuts) + 1)
    scattered = []
    wide: list[tuple[RunFile, set[int]]] = []
    for (file, of_file), of_groups in zip(known, bounds, strict=True):
        groups: dict[int, list[int]] = defaultdict(list)
        read = 0
        for group, (first, last) in enumerate(of_groups):
            low, high = _ranges_of(first, last, cuts)
            read += (high - low + 1) * int(of_file.rows[group])
            for number in range(low, high + 1):
                groups[number].append(group)
        if read > most_reads * file.rows:
            scattered.append(file)
        shares = of_file.filled(rows_at_most, bytes_at_most)
        if int(of_file.ranges.partition_low.min()) != int(of_file.ranges.partition_high.max()):
            wide.append((file, set(groups)))
        for number, chosen in groups.items():
            places = np.array(chosen, np.int64)
            filled[number] += shares[places].sum()
            sources[number].append(Source(file, places, int(of_file.rows[places].sum())))
    full = set(np.flatnonzero(filled > _PORTIONS_AT_ONCE).tolist())
    scattered += [file for file, of_ranges in wide if of_ranges & full and file not in scattered]
    bounded = pairwise([None, *cuts, None])
    return Plan(
        tuple(
            (KeyRange(low, high), tuple(of_range))
            for (low, high), of_range in zip(bounded, sources, strict=True)
            if of_range
        ),
        tuple(scattered),
    )


def _key_types(key_set: KeySet) -> tuple[pa.DataType, ...]:
    """Of all that follows the null mask: keys, and further masks."""
    return tuple(field.type for field in key_set.schema)[1:]


def _ranges_of(first: Prefix, last: Prefix, cuts: Sequence[Prefix]) -> tuple[int, int]:
    """The first and the last range, by its number, that may hold what begins with `first` to `last`."""
    return bisect_right(cuts, first), bisect_right(cuts, last, key=lambda cut: cut[: len(last)])


@dataclass(frozen=True, slots=True)
class SortTask:
    """Sorts a file of an index by keys alone, into runs of one partition. Pickles. Nothing is committed."""

    storage: Storage
    file: RunFile
    schema: pa.Schema
    location: str
    rows_at_most: int
    bytes_at_most: int

    def run(self, _: object) -> list[RunFile]:
        known = footer(self.storage, self.file, tuple(field.type for field in self.schema)[2:-1])
        names = self.schema.names
        runs: list[RunFile] = []
        with self.storage.open_input(self.file.location, self.file.size_bytes) as source:
            row_groups = RowGroups(source, known.metadata)
            for groups in _portions(known, np.arange(len(known.rows)), self.rows_at_most, self.bytes_at_most):
                entries = row_groups.read(groups.tolist(), names).cast(self.schema)
                one_partition = pa.array(np.zeros(entries.num_rows, np.int64))
                entries = entries.set_column(0, self.schema.field(PARTITION_ID), one_partition)
                runs += write_run(self.storage, self.location, sort_rows(entries), primary_key=names)
        return runs


def _portions(known: Footer, groups: Int64Array, rows_at_most: int, bytes_at_most: int) -> list[Int64Array]:
    """Row groups in order, in portions that are about as large."""
    filled = np.cumsum(known.filled(rows_at_most, bytes_at_most)[groups]).astype(np.int64)
    return np.split(groups, np.flatnonzero(np.diff(filled)) + 1) if len(groups) else []


@dataclass(frozen=True, slots=True)
class Found:
    """Duplicates in one range of keys. shown: the first of them."""

    number: int
    keys: int
    rows: int
    bytes_read: int
    bytes_written: int
    shown: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Finds the keys of a range that have more than one live row, and writes them down. Pickles.

    number: of the range. report: the file to write; none is written if there are none.
    """

    storage: Storage
    key_set: KeySet
    number: int
    key_range: KeyRange
    sources: tuple[Source, ...]
    rows_at_most: int
    bytes_at_most: int
    report: str

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    def run(self, rows: SnapshotRows) -> Found:
        found, bytes_read = self._live_rows(rows)
        groups = Groups.of(found, self._names) if found is not None else None
        if groups is None or not len(groups := groups.repeated()):
            return Found(self.number, 0, 0, bytes_read, 0, ())
        written = self._write(groups, rows.data_files)
        shown = self._shown(groups.slice(0, SHOWN_KEYS), rows.data_files)
        return Found(self.number, len(groups), int(groups.counts.sum()), bytes_read, written, shown)

    @property
    def _names(self) -> list[str]:
        """Of the columns by which keys are equal."""
        return list(self.key_set.schema.names)

    def _live_rows(self, rows: SnapshotRows) -> tuple[pa.Table | None, int]:
        """Rows with their counts: all of a range at once, where only those of repeated keys are looked at.

        Or else portion by portion, of which not more rows of a key are kept than are wanted.
        """
        known = [
            (source, footer(self.storage, source.file, _key_types(self.key_set))) for source in self.sources
        ]
        filled = sum(
            float(of_file.filled(self.rows_at_most, self.bytes_at_most)[source.row_groups].sum())
            for source, of_file in known
        )
        bytes_read = sum(
            int((of_file.key_bytes + of_file.address_bytes)[source.row_groups].sum())
            for source, of_file in known
        )
        if filled <= _PORTIONS_AT_ONCE:
            parts = [part for one, of_file in known for part in self._read(one.file, of_file, one.row_groups)]
            entries = pa.concat_tables(parts) if parts else None
            if entries is None or not entries.num_rows:
                return None, bytes_read
            if not rows.has_copies:
                entries = _of_repeated_keys(entries, self._names, is_sorted=len(parts) == 1)
            return _live(entries, rows), bytes_read
        found: pa.Table | None = None
        for one, of_file in known:
            for groups in _portions(of_file, one.row_groups, self.rows_at_most, self.bytes_at_most):
                for part in self._read(one.file, of_file, groups):
                    live = _live(part, rows)
                    together = live if found is None else pa.concat_tables([found, live])
                    found = Groups.of(together, self._names).kept()
        return found, bytes_read

    def _read(self, file: RunFile, known: Footer, groups: Int64Array) -> Iterator[pa.Table]:
        """Keys and addresses within the range: a sorted table for each partition."""
        ranges = known.ranges
        low, high = ranges.partition_low[groups], ranges.partition_high[groups]
        has_many = len(groups) > 0 and (low != low[0]).any() | (high != low[0]).any()
        names = [*([PARTITION_ID] if has_many else []), *self._names, ROW_ADDRESS]
        schema = pa.schema([*self.key_set.schema, pa.field(ROW_ADDRESS, pa.int64(), nullable=False)])
        with self.storage.open_input(file.location, file.size_bytes) as source:
            entries = RowGroups(source, known.metadata).read(groups.tolist(), names)
        starts = np.array([0])
        if has_many:
            partitions = contiguous(entries[PARTITION_ID]).to_numpy()
            starts = np.flatnonzero(np.diff(partitions, prepend=partitions[0] - 1))
        entries = entries.select(schema.names).cast(schema)
        for start, end in pairwise([*starts.tolist(), entries.num_rows]):
            inside = rows_inside(entries.slice(start, end - start), self.key_range)
            if inside.num_rows:
                yield inside

    def _write(self, groups: Groups, data_files: DataFiles) -> int:
        """The size of the file."""
        with self.storage.open_output(self.report) as sink:
            writer: pq.ParquetWriter | None = None
            for start in range(0, len(groups), _GROUPS_AT_ONCE):
                table = self._report(groups.slice(start, _GROUPS_AT_ONCE), data_files)
                writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd")
                writer.write_table(table)
            assert writer is not None
            writer.close()
            return int(sink.tell())

    def _report(self, groups: Groups, data_files: DataFiles) -> pa.Table:
        firsts = groups.firsts()
        keys = []
        for at, column in enumerate(self.key_set.columns):
            mask, bit = divmod(at, MASK_BITS)
            nulls = contiguous(firsts[self._mask_name(mask)]).to_numpy() >> bit & 1
            values = from_key_type(contiguous(firsts[column.column_name]), column)
            keys.append(pc.if_else(pa.array(nulls == 1), pa.scalar(None, values.type), values))
        paths = _paths(data_files, groups.column(_ORDINAL))
        places = pa.StructArray.from_arrays([paths, pa.array(groups.column(_POSITION))], fields=list(_PLACE))
        offsets = pa.array([*groups.starts.tolist(), groups.rows.num_rows], pa.int32())
        return pa.table(
            {
                "key": pa.StructArray.from_arrays(keys, self.key_set.column_names),
                "live_rows": pa.array(groups.counts),
                "examples": pa.ListArray.from_arrays(offsets, places),
            }
        )

    def _mask_name(self, mask: int) -> str:
        names = self._names
        return names[len(self.key_set.columns) + mask if mask else 0]

    def _shown(self, groups: Groups, data_files: DataFiles) -> tuple[dict[str, Any], ...]:
        names = self._names
        values = zip(*(groups.firsts()[name].to_pylist() for name in names), strict=True)
        ordinals, positions = groups.column(_ORDINAL), groups.column(_POSITION)
        shown = []
        for key, start, end, count in zip(
            values,
            groups.starts,
            [*groups.starts[1:], groups.rows.num_rows],
            groups.counts.tolist(),
            strict=True,
        ):
            places = slice(start, min(end, start + SHOWN_PLACES))
            files = data_files.select(ordinals[places])
            shown.append(
                {
                    "key": {
                        column.name: None
                        if self.key_set.is_null(at, key)
                        else _cut(to_words(key[1 + at], column))
                        for at, column in enumerate(self.key_set.columns)
                    },
                    "live_rows": count,
                    "places": [
                        {"data_file": file.path, "position": position}
                        for file, position in zip(files, positions[places].tolist(), strict=True)
                    ],
                }
            )
        return tuple(shown)


@dataclass(frozen=True, slots=True)
class Groups:
    """Live rows in the order of their keys, at most so many of a key as are wanted, and how many it has.

    starts: where each key begins.
    """

    rows: pa.Table
    starts: Int64Array
    counts: Int64Array

    @classmethod
    def of(cls, rows: pa.Table, key_names: Sequence[str]) -> Groups:
        """rows: keys, ordinal, position and how many rows each stands for."""
        if not rows.num_rows:
            return cls(rows, np.empty(0, np.int64), np.empty(0, np.int64))
        ordered = take(rows, sort_order([contiguous(column) for column in rows.columns[:-1]]))
        starts = np.flatnonzero(np.concatenate([[True], ~_equal_to_next(ordered.select(key_names))]))
        counts = np.add.reduceat(ordered[_COUNT].to_numpy(), starts)
        lengths = np.diff(starts, append=ordered.num_rows)
        rank = np.arange(ordered.num_rows) - np.repeat(starts, lengths)
        kept = np.minimum(lengths, REPORTED_PLACES)
        return cls(ordered.filter(pa.array(rank < REPORTED_PLACES)), np.cumsum(kept) - kept, counts)

    def __len__(self) -> int:
        return len(self.starts)

    def repeated(self) -> Groups:
        """Keys that more than one row has."""
        chosen = self.counts > 1
        lengths = np.diff(self.starts, append=self.rows.num_rows)
        rows = self.rows.filter(pa.array(np.repeat(chosen, lengths)))
        kept = lengths[chosen]
        return Groups(rows, np.cumsum(kept) - kept, self.counts[chosen])

    def kept(self) -> pa.Table:
        """The rows as `of` takes them: the first of each key stands for those that were left out."""
        counts = np.zeros(self.rows.num_rows, np.int64)
        counts[self.starts] = self.counts
        return self.rows.set_column(self.rows.num_columns - 1, _COUNT, pa.array(counts))

    def slice(self, start: int, length: int) -> Groups:
        ends = np.append(self.starts, self.rows.num_rows)
        end = min(start + length, len(self))
        first = int(ends[start])
        rows = self.rows.slice(first, int(ends[end]) - first)
        return Groups(rows, self.starts[start:end] - first, self.counts[start:end])

    def firsts(self) -> pa.Table:
        """A row of each key."""
        return self.rows.take(pa.array(self.starts))

    def column(self, name: str) -> Int64Array:
        values: Int64Array = self.rows[name].to_numpy()
        return values


def _of_repeated_keys(entries: pa.Table, key_names: Sequence[str], *, is_sorted: bool) -> pa.Table:
    """Those entries whose key another one has."""
    keys = entries.select(key_names)
    order = None
    if not is_sorted:
        order = sort_order([contiguous(column) for column in keys.columns])
        keys = take(keys, order)
    same = _equal_to_next(keys)
    places = np.flatnonzero(np.concatenate([[False], same]) | np.concatenate([same, [False]]))
    return entries.take(pa.array(places if order is None else order[places]))


def _equal_to_next(keys: pa.Table) -> npt.NDArray[np.bool_]:
    same = np.ones(max(0, keys.num_rows - 1), np.bool_)
    for column in map(contiguous, keys.columns):
        if pa.types.is_integer(column.type):
            numbers = column.to_numpy()
            same &= numbers[1:] == numbers[:-1]
        else:
            equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
            same &= equal.to_numpy(zero_copy_only=False)
    return same


def _live(entries: pa.Table, rows: SnapshotRows) -> pa.Table:
    """The live rows that some entries are of, each with its data file, position, and a count of 1."""
    which, ordinals, positions = rows.live(contiguous(entries[ROW_ADDRESS]).to_numpy())
    found = entries.drop_columns([ROW_ADDRESS]).take(pa.array(which))
    for name, values in (
        (_ORDINAL, ordinals),
        (_POSITION, positions),
        (_COUNT, np.ones(len(which), np.int64)),
    ):
        found = found.append_column(name, pa.array(values, pa.int64()))
    return found


def _paths(data_files: DataFiles, ordinals: Int64Array) -> pa.Array:
    used, which = np.unique(ordinals, return_inverse=True)
    paths = pa.array([file.path for file in data_files.select(used)], pa.string())
    return paths.take(pa.array(which))


def _cut(value: str | int | bool) -> str | int | bool:
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return value[:_SHOWN_CHARACTERS] + "…"
    return value
