"""Where do the rows lie that the equality deletes delete? Answered from the index, or by scanning files.

Both sources return the same shape, `Matches`. Input are the delete keys: distinct (partition_id, null
mask, key), each with the highest data sequence number that deletes it; a row is deleted iff its file's
number is smaller (so the highest number alone decides).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from worker.index.dictionary import PARTITION_ID, FileDictionary, owners
from worker.index.footers import Footer, KeyRanges, comparable, fit_in_memory, footer, footers
from worker.index.key_set_index import ROW_ADDRESS
from worker.index.run_files import ROW_GROUP_ROWS, RunFile
from worker.io.row_groups import GAP_BYTES, RowGroups
from worker.io.sorting import Int64Array, contiguous, sort_rows
from worker.io.storage import Storage
from worker.keys.key_set import NULL_MASK, KeyColumnError
from worker.keys.read import KeyReader, missing_file
from worker.lookup.matching import KeyMatcher, match_sorted
from worker.process.deadline import check_time
from worker.process.errors import Reason
from worker.process.memory import holding
from worker.table.files import DataFile, DataFiles

GLOBAL = -1  # partition_id of delete keys that apply in every partition
ANY_AGE = 2**62  # above every data sequence number
MAX_SEQUENCE_NUMBER = "max_data_sequence_number"
_READ_ROWS = 1_048_576  # rows of the index decoded at a time by one task
_READ_BYTES = 256 * 1024**2  # the same bound for wide keys
_FETCH_BYTES = 32 * 1024**2  # that a task asks a store for at once, encoded
_TASK_ROWS = 500_000  # of one file that a task reads at least, and
_TASKS_PER_THREAD = 4  # so many tasks at most otherwise, so that threads share large files evenly
_MANY_ROWS = 10_000_000  # planned, from which on footers are asked whether it will be as many
_NO_ROWS = np.empty(0, np.int64)
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A data file that could not be read, and why; a retry can't help."""

    ordinal: int
    why: Reason


@dataclass(frozen=True, slots=True)
class Matches:
    """Rows to delete, as (file ordinal, position) pairs: 0-based, any order, pairs may repeat.

    `ordinals` index the list of data files that the call was about. Counters explain the cost.
    """

    ordinals: Int64Array
    positions: Int64Array
    row_groups_read: int = 0
    row_groups_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0
    failures: tuple[ReadFailure, ...] = ()

    def without_rows(self) -> Matches:
        """The counters and failures alone."""
        return replace(self, ordinals=_NO_ROWS, positions=_NO_ROWS)

    @staticmethod
    def failed(failure: ReadFailure) -> Matches:
        return Matches(_NO_ROWS, _NO_ROWS, failures=(failure,))

    @staticmethod
    def combined(parts: Sequence[Matches]) -> Matches:
        if not parts:
            return Matches(_NO_ROWS, _NO_ROWS)
        return Matches(
            np.concatenate([p.ordinals for p in parts]),
            np.concatenate([p.positions for p in parts]),
            sum(p.row_groups_read for p in parts),
            sum(p.row_groups_total for p in parts),
            sum(p.bytes_read for p in parts),
            sum(p.rows_read for p in parts),
            tuple(failure for p in parts for failure in p.failures),
        )


class DeleteKeys:
    """Distinct delete keys of one key set, sorted by partition_id, null mask and key. Pickles."""

    def __init__(self, rows: pa.Table) -> None:
        """rows: partition_id, null_mask, key columns, max_data_sequence_number; sorted, keys distinct."""
        self.rows = rows.combine_chunks()
        self.key_names = rows.schema.names[1:-1]
        self.partition_ids: Int64Array = self.rows[PARTITION_ID].to_numpy()
        self.null_masks: npt.NDArray[np.int32] = self.rows[NULL_MASK].to_numpy()
        self.sequence_numbers: Int64Array = self.rows[MAX_SEQUENCE_NUMBER].to_numpy()
        self._matchers: dict[tuple[int, int], tuple[KeyMatcher, Int64Array] | None] = {}
        self._comparable: dict[int, npt.NDArray[Any]] = {}

    @classmethod
    def of(cls, batches: Iterable[tuple[int, int, pa.RecordBatch]], schema: pa.Schema) -> DeleteKeys:
        """From (partition_id or GLOBAL, data sequence number, keys) of equality delete files.

        schema: of the keys (`KeySet.schema`).
        """
        full = pa.schema(
            [
                pa.field(PARTITION_ID, pa.int64()),
                *(pa.field(field.name, field.type) for field in schema),
                pa.field(MAX_SEQUENCE_NUMBER, pa.int64()),
            ]
        )
        tables = [
            pa.Table.from_arrays(
                [
                    pa.repeat(pa.scalar(partition_id, pa.int64()), keys.num_rows),
                    *keys.columns,
                    pa.repeat(pa.scalar(number, pa.int64()), keys.num_rows),
                ],
                schema=full,
            )
            for partition_id, number, keys in batches
        ]
        return cls(_distinct(pa.concat_tables(tables).combine_chunks()) if tables else full.empty_table())

    @classmethod
    def numbered(cls, keys: pa.RecordBatch) -> DeleteKeys:
        """Keys that are looked for whatever the age of their rows, in every partition.

        keys: `KeySet.schema`; of equal ones, the last. The numbers of matches, less ANY_AGE, are their rows.
        """
        columns = {
            PARTITION_ID: pa.repeat(pa.scalar(GLOBAL, pa.int64()), keys.num_rows),
            **dict(zip(keys.schema.names, keys.columns, strict=True)),
            MAX_SEQUENCE_NUMBER: pa.array(np.arange(keys.num_rows) + ANY_AGE),
        }
        return cls(_distinct(pa.table(columns)))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __reduce__(self) -> tuple[type[DeleteKeys], tuple[pa.Table]]:
        return DeleteKeys, (self.rows,)

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        return tuple(self.rows.schema.field(name).type for name in self.key_names[1:])

    def values(self, column: int) -> npt.NDArray[Any]:
        """Values of one key column, as numpy compares them: numbers, or Python objects."""
        if column not in self._comparable:
            self._comparable[column] = comparable(self.rows[self.key_names[1 + column]].chunk(0))
        return self._comparable[column]

    @cached_property
    def scopes(self) -> list[tuple[int, int, int, int]]:
        """(partition_id, null mask, start, end): the rows that share both, in order."""
        changes = (np.diff(self.partition_ids) != 0) | (np.diff(self.null_masks) != 0)
        starts = np.unique(np.concatenate([[0], np.flatnonzero(changes) + 1, [len(self)]]))
        return [
            (int(self.partition_ids[start]), int(self.null_masks[start]), int(start), int(end))
            for start, end in pairwise(starts)
        ]

    def find_in_sorted(
        self, columns: Sequence[pa.Array], partition_id: int, null_mask: int
    ) -> tuple[Int64Array, Int64Array]:
        """(row, highest deleting sequence number) for entries that some key deletes.

        columns: the key columns of entries of one partition and null mask, in the index's order. A row that
        scoped and global keys match is returned twice.
        """
        rows, numbers = [_NO_ROWS], [_NO_ROWS]
        for scope in (partition_id, GLOBAL):
            start, end = self._rows_of(scope, null_mask)
            if start == end or not len(columns[0]):
                continue
            start, end = (
                self._bound(start, end, [comparable(column.slice(0, 1))[0] for column in columns], "left"),
                self._bound(
                    start, end, [comparable(column.slice(len(column) - 1))[0] for column in columns], "right"
                ),
            )
            if start == end:
                continue
            found, keys = self._match(columns, start, end)
            rows.append(found)
            numbers.append(self.sequence_numbers[start + keys])
        return np.concatenate(rows), np.concatenate(numbers)

    def _match(self, columns: Sequence[pa.Array], start: int, end: int) -> tuple[Int64Array, Int64Array]:
        """(row of the entries, key from `start` on) of each pair that is equal; the columns are sorted."""
        is_integer = pa.types.is_integer(columns[0].type)
        if is_integer and len(columns) == 1:
            return match_sorted(columns[0].to_numpy(), self.values(0)[start:end])
        selected = self.rows.slice(start, end - start)
        matcher = KeyMatcher([selected[name].combine_chunks() for name in self.key_names[1:]])
        if not is_integer:
            probe = matcher.probe(columns)
            return probe.rows, probe.keys
        # What the first column excludes costs a binary search, while a hash of every entry costs far more.
        left, _ = match_sorted(columns[0].to_numpy(), np.unique(self.values(0)[start:end]))
        probe = matcher.probe([column.take(pa.array(left)) for column in columns])
        return left[probe.rows], probe.keys

    def _bound(self, start: int, end: int, key: Sequence[Any], side: Literal["left", "right"]) -> int:
        """Where a key would be inserted among the rows from start to end, left or right of an equal one."""
        for column, value in enumerate(key):
            values = self.values(column)[start:end]
            low, high = (start + int(np.searchsorted(values, value, side=s)) for s in _SIDES)
            start, end = low, high
            if low == high:
                break
        return start if side == "left" else end

    def _rows_of(self, partition_id: int, null_mask: int) -> tuple[int, int]:
        start, end = np.searchsorted(self.partition_ids, [partition_id, partition_id + 1]).tolist()
        low, high = np.searchsorted(self.null_masks[start:end], [null_mask, null_mask + 1]).tolist()
        return start + low, start + high

    def find(self, keys: pa.RecordBatch, partition_id: int) -> tuple[Int64Array, Int64Array]:
        """The same for rows of one partition in any order.

        keys: `KeySet.schema` columns.
        """
        mask: npt.NDArray[np.int32] = keys.column(NULL_MASK).to_numpy()
        uniform = not len(mask) or (mask[0] == mask).all()
        null_mask = int(mask[0]) if uniform and len(mask) else None
        columns = [
            keys.column(name) for name in (self.key_names if null_mask is None else self.key_names[1:])
        ]
        rows, numbers = [_NO_ROWS], [_NO_ROWS]
        for scope in (partition_id, GLOBAL):
            matcher = self._matcher(scope, null_mask)
            if matcher is None:
                continue
            probe = matcher[0].probe(columns)
            rows.append(probe.rows)
            numbers.append(self.sequence_numbers[matcher[1][probe.keys]])
        return np.concatenate(rows), np.concatenate(numbers)

    def _matcher(self, partition_id: int, null_mask: int | None) -> tuple[KeyMatcher, Int64Array] | None:
        """Matches keys of one partition (or GLOBAL); also the rows of `self.rows` that its keys are.

        With a null_mask, only keys of that mask, by their columns alone; with None, mask and columns.
        """
        cache_key = (partition_id, -1 if null_mask is None else null_mask)
        if cache_key not in self._matchers:
            names = self.key_names
            if null_mask is None:
                start, end = np.searchsorted(self.partition_ids, [partition_id, partition_id + 1]).tolist()
            else:
                start, end = self._rows_of(partition_id, null_mask)
                names = names[1:]
            keys = self.rows.slice(start, end - start)
            self._matchers[cache_key] = (
                (KeyMatcher([keys[name].combine_chunks() for name in names]), np.arange(start, end))
                if start < end
                else None
            )
        return self._matchers[cache_key]


def _distinct(rows: pa.Table) -> pa.Table:
    """Sorted by all columns but the last, which is the highest of equal rows."""
    if not rows.num_rows:
        return rows
    ordered = sort_rows(rows)
    # The last of equal rows has the highest number.
    last = np.ones(rows.num_rows, np.bool_)
    last[:-1] = np.logical_or.reduce([_changes(column.chunk(0)) for column in ordered.columns[:-1]])
    return ordered if last.all() else ordered.filter(pa.array(last))


def _changes(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a value differs from the next one."""
    changes: npt.NDArray[np.bool_] = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(
        zero_copy_only=False
    )
    return changes


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Reads the key columns of some data files and matches them. Pickles.

    ordinals, partition_ids: of the files, one each.
    """

    reader: KeyReader
    files: DataFiles
    ordinals: Int64Array
    partition_ids: Int64Array

    def run(self, deletes: DeleteKeys) -> Matches:
        files = zip(self.ordinals.tolist(), self.partition_ids.tolist(), self.files, strict=True)
        return Matches.combined([self._scan(deletes, *file) for file in files])

    def _scan(self, deletes: DeleteKeys, ordinal: int, partition_id: int, file: DataFile) -> Matches:
        positions = []
        start = size = 0
        try:
            for keys in self.reader.read_data_file(file):
                rows, numbers = deletes.find(keys, partition_id)
                positions.append(start + rows[numbers > file.data_sequence_number])
                start += keys.num_rows
                size += keys.nbytes
        except KeyColumnError as error:
            return Matches.failed(ReadFailure(ordinal, error.reason))
        except FileNotFoundError as error:
            return Matches.failed(ReadFailure(ordinal, missing_file(error)))
        found = np.concatenate(positions) if positions else np.empty(0, np.int64)
        return Matches(np.full(len(found), ordinal), found, bytes_read=size, rows_read=start)


@dataclass(frozen=True, slots=True)
class LookupTask:
    """Looks delete keys up in one file of the index, or in a part of its row groups. Pickles.

    planned_rows: that it decodes, about, by the bounds of the file's keys.
    """

    storage: Storage
    file: RunFile
    planned_rows: int
    part: int = 0
    parts: int = 1

    def run(self, deletes: DeleteKeys) -> RowAddressMatches:
        known = footer(self.storage, self.file, deletes.key_types)
        selected = self._share(may_hold(known.ranges, deletes), known.rows)
        found = [RowAddressMatches.none(len(known.rows) if self.part == 0 else 0)]
        if len(selected):
            with self.storage.open_input(self.file.location, self.file.size_bytes) as source:
                for chunks in _fetches(_chunks(selected, known), known):
                    row_groups = RowGroups(source, known.metadata)
                    with holding(_fetch(row_groups, chunks, known, deletes)):
                        for chunk in chunks:
                            with holding(int(known.decoded_bytes[chunk].sum())):
                                found.append(_read(row_groups, chunk, known, deletes))
        return RowAddressMatches.combined(found)

    def _share(self, selected: Int64Array, rows: Int64Array) -> Int64Array:
        """This part's row groups: those of few keys are one part's, which asks the store for all at once."""
        parts = min(self.parts, -(-int(rows[selected].sum()) // _TASK_ROWS))
        return np.array_split(selected, parts)[self.part] if self.part < parts else _NO_ROWS


@dataclass(frozen=True, slots=True)
class RowAddressMatches:
    """Row addresses that some delete key equals, with the key's highest sequence number."""

    row_addresses: Int64Array
    sequence_numbers: Int64Array
    row_groups_read: int = 0
    row_groups_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0

    @staticmethod
    def none(row_groups_total: int) -> RowAddressMatches:
        return RowAddressMatches(_NO_ROWS, _NO_ROWS, 0, row_groups_total)

    @staticmethod
    def combined(parts: Sequence[RowAddressMatches]) -> RowAddressMatches:
        """Of at least one part."""
        return RowAddressMatches(
            np.concatenate([p.row_addresses for p in parts]),
            np.concatenate([p.sequence_numbers for p in parts]),
            sum(p.row_groups_read for p in parts),
            sum(p.row_groups_total for p in parts),
            sum(p.bytes_read for p in parts),
            sum(p.rows_read for p in parts),
        )


class LiveRows:
    """Turns row addresses into rows of the wanted data files: live, older than their delete."""

    def __init__(self, dictionary: FileDictionary, data_files: DataFiles, asked: Int64Array) -> None:
        """asked: the ordinals of the data files that are asked about."""
        files = data_files.select(asked)
        rows = dictionary.rows_of(files)
        covered = np.flatnonzero(rows >= 0)
        covered = covered[np.argsort(rows[covered], kind="stable")]
        # A row of the dictionary is for all copies of a data file that a table has more than once.
        rows, self._first, self._copies = np.unique(rows[covered], return_index=True, return_counts=True)
        self._ordinals = asked[covered]
        self._data_sequence_numbers = files.data_sequence_numbers[covered]
        self._base_addresses = dictionary.base_addresses[rows]
        self._record_counts = dictionary.record_counts[rows]

    @property
    def has_copies(self) -> bool:
        """Whether one entry may be a row of several files: some share path and partition."""
        return bool((self._copies > 1).any())

    def of(self, found: RowAddressMatches) -> Matches:
        """Entries of other files are dropped, as are addresses that no committed file owns."""
        return self.numbered(found)[0]

    def numbered(self, found: RowAddressMatches) -> tuple[Matches, Int64Array]:
        """The same, and of each match the sequence number of the key that it matched."""
        rows = owners(self._base_addresses, self._record_counts, found.row_addresses)
        known = np.flatnonzero(rows >= 0)
        rows = rows[known]
        copies = self._copies[rows]
        files = np.repeat(self._first[rows] - _starts(copies), copies) + np.arange(copies.sum())
        rows, known = np.repeat(rows, copies), np.repeat(known, copies)
        keep = found.sequence_numbers[known] > self._data_sequence_numbers[files]
        rows, known, files = rows[keep], known[keep], files[keep]
        matches = Matches(
            self._ordinals[files],
            found.row_addresses[known] - self._base_addresses[rows],
            found.row_groups_read,
            found.row_groups_total,
            found.bytes_read,
            found.rows_read,
        )
        return matches, found.sequence_numbers[known]


def lookup_tasks(
    storage: Storage, files: Sequence[RunFile], deletes: DeleteKeys, parallelism: int
) -> list[LookupTask]:
    """Tasks for the files whose key ranges may hold a delete key, large ones in parts."""
    if not files:
        return []
    low, high = [f.lower_bounds for f in files], [f.upper_bounds for f in files]
    ranges = KeyRanges.of(low, high, deletes.key_types)
    keys = _keys_within(ranges, deletes)
    held = may_hold(ranges, deletes).tolist()
    planned = [(files[i], min(files[i].rows, int(keys[i]) * ROW_GROUP_ROWS)) for i in held]
    task_rows = max(_TASK_ROWS, sum(rows for _, rows in planned) // (_TASKS_PER_THREAD * parallelism))
    tasks = []
    for file, rows in planned:
        parts = max(1, -(-rows // task_rows))
        tasks += [LookupTask(storage, file, rows // parts, part, parts) for part in range(parts)]
    return tasks


def planned_rows(storage: Storage, tasks: Sequence[LookupTask], deletes: DeleteKeys) -> int:
    """How many entries of the index tasks decode, about: if they plan for many, by the footers.

    Each key counts a row group in each sorted run otherwise, while keys that lie close together share some.
    """
    planned = sum(task.planned_rows for task in tasks)
    files = list(dict.fromkeys(task.file for task in tasks))
    if planned < _MANY_ROWS or not fit_in_memory(files, deletes.key_types):
        return planned
    return _rows_in(storage, files, deletes)


def rows_to_read(storage: Storage, files: Sequence[RunFile], deletes: DeleteKeys) -> int:
    """How many entries of the index a lookup decodes, by the statistics in the footers."""
    touched = dict.fromkeys(task.file for task in lookup_tasks(storage, files, deletes, 1))
    return _rows_in(storage, touched, deletes)


def _rows_in(storage: Storage, files: Iterable[RunFile], deletes: DeleteKeys) -> int:
    return sum(
        int(known.rows[may_hold(known.ranges, deletes)].sum())
        for known in footers(storage, files, deletes.key_types)
    )


def may_hold(ranges: KeyRanges, deletes: DeleteKeys) -> Int64Array:
    """The pieces whose ranges may hold a delete key; ascending."""
    survivors = np.zeros(len(ranges), np.bool_)
    for partition_id, null_mask, start, end in deletes.scopes:
        inside = ~survivors & (ranges.mask_low <= null_mask) & (ranges.mask_high >= null_mask)
        if partition_id != GLOBAL:
            inside &= (ranges.partition_low <= partition_id) & (ranges.partition_high >= partition_id)
        pieces = np.flatnonzero(inside)
        if len(pieces):
            survivors[pieces] = _hold(ranges, pieces, deletes, start, end) if ranges.key_low else True
    return np.flatnonzero(survivors)


def _keys_within(ranges: KeyRanges, deletes: DeleteKeys) -> Int64Array:
    """How many of the delete keys each piece may hold at most: those within the bounds of its first column.

    Each of them touches one of its row groups; a sorted run in many files has a key in one of these.
    """
    counts = np.zeros(len(ranges), np.int64)
    for _, _, start, end in deletes.scopes:
        if not ranges.key_low:
            counts += end - start
            continue
        keys = deletes.values(0)[start:end]
        counts += np.searchsorted(keys, ranges.key_high[0], side="right")
        counts -= np.searchsorted(keys, ranges.key_low[0], side="left")
    return counts


def _hold(
    ranges: KeyRanges, pieces: Int64Array, deletes: DeleteKeys, start: int, end: int, column: int = 0
) -> npt.NDArray[np.bool_]:
    """Which pieces may hold one of the delete keys from start to end, by this and the later columns."""
    keys = deletes.values(column)[start:end]
    lower, upper = ranges.key_low[column][pieces], ranges.key_high[column][pieces]
    # Some key lies within: the keys below `lower` and the keys up to `upper` differ in number.
    low = np.searchsorted(keys, lower, side="left")
    high = np.searchsorted(keys, upper, side="right")
    held: npt.NDArray[np.bool_] = low < high
    if column + 1 < len(ranges.key_low):
        # Where a piece has one value only, the next column is sorted within it, and its bounds count.
        constant = np.flatnonzero(held & (lower == upper))
        for first in np.unique(low[constant]):
            same = constant[low[constant] == first]
            within = start + int(first), start + int(high[same[0]])
            held[same] = _hold(ranges, pieces[same], deletes, *within, column + 1)
    return held


def _chunks(row_groups: Int64Array, known: Footer) -> list[Int64Array]:
    """Row groups in order, as many at a time as fit the memory bound of a task.

    A chunk lies in one partition and null mask, or else its row groups all lie across some.
    """
    uniform = known.ranges.uniform()[row_groups]
    boundaries = np.zeros(len(row_groups), np.bool_)
    for budget, sizes in ((_READ_ROWS, known.rows), (_READ_BYTES, known.decoded_bytes)):
        filled = np.cumsum(sizes[row_groups]) // budget
        boundaries[1:] |= filled[1:] != filled[:-1]
    for values in (known.ranges.partition_low[row_groups], known.ranges.mask_low[row_groups]):
        boundaries[1:] |= (values[1:] != values[:-1]) & uniform[1:] & uniform[:-1]
    boundaries[1:] |= uniform[1:] != uniform[:-1]
    return np.split(row_groups, np.flatnonzero(boundaries))


def _fetches(chunks: Sequence[Int64Array], known: Footer) -> list[list[Int64Array]]:
    """Chunks in order, as many at a time as a task asks a store for at once."""
    sizes = [int((known.key_bytes[chunk] + known.address_bytes[chunk]).sum()) for chunk in chunks]
    filled = np.cumsum(sizes) // _FETCH_BYTES
    ends = [*np.flatnonzero(np.diff(filled) != 0) + 1, len(chunks)]
    return [list(chunks[start:end]) for start, end in pairwise([0, *ends])]


def _fetch(row_groups: RowGroups, chunks: Sequence[Int64Array], known: Footer, deletes: DeleteKeys) -> int:
    """Asks a store for what is read first; how many bytes of it are held."""
    if not row_groups.are_remote:
        return 0
    together = np.concatenate(chunks)
    uniform = known.ranges.uniform()[together]
    # Addresses that take no longer than another request, which would have to wait for the keys.
    has_addresses = int(known.address_bytes[together].max()) <= GAP_BYTES
    names = [*deletes.key_names[1:], *([ROW_ADDRESS] if has_addresses else [])]
    row_groups.fetch(together[uniform].tolist(), names)
    row_groups.fetch(together[~uniform].tolist(), [PARTITION_ID, NULL_MASK, *names])
    sizes = known.key_bytes + known.address_bytes if has_addresses else known.key_bytes
    return int(sizes[together].sum())


def _read(row_groups: RowGroups, chunk: Int64Array, known: Footer, deletes: DeleteKeys) -> RowAddressMatches:
    """Keys first, then the addresses of the row groups where something was found."""
    check_time()
    ranges, key_names = known.ranges, deletes.key_names[1:]
    if ranges.uniform()[chunk[0]]:
        columns = _read_columns(row_groups, chunk, key_names)
        partition_id, null_mask = int(ranges.partition_low[chunk[0]]), int(ranges.mask_low[chunk[0]])
        rows, numbers = deletes.find_in_sorted(columns, partition_id, null_mask)
    else:
        rows, numbers = _find_in_mixed(
            _read_columns(row_groups, chunk, [PARTITION_ID, NULL_MASK, *key_names]), deletes
        )
    row_addresses, bytes_read = _NO_ROWS, int(known.key_bytes[chunk].sum())
    if len(rows):
        ends = np.cumsum(known.rows[chunk])
        groups, of_group = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
        (column,) = _read_columns(row_groups, chunk[groups], [ROW_ADDRESS])
        # From the row's place in the chunk to its place in the row groups that were read.
        moved = (ends - known.rows[chunk])[groups] - _starts(known.rows[chunk[groups]])
        row_addresses = column.to_numpy()[rows - moved[of_group]]
        bytes_read += int(known.address_bytes[chunk[groups]].sum())
    return RowAddressMatches(row_addresses, numbers, len(chunk), 0, bytes_read, int(known.rows[chunk].sum()))


def _read_columns(row_groups: RowGroups, chosen: Int64Array, names: Sequence[str]) -> list[pa.Array]:
    table = row_groups.read(chosen.tolist(), names)
    return [contiguous(table[name]) for name in names]


def _find_in_mixed(columns: Sequence[pa.Array], deletes: DeleteKeys) -> tuple[Int64Array, Int64Array]:
    """Entries of several partitions or null masks, which sort before the keys: one slice after the other."""
    partition_ids: Int64Array = columns[0].to_numpy()
    null_masks: npt.NDArray[np.int32] = columns[1].to_numpy()
    changes = (np.diff(partition_ids) != 0) | (np.diff(null_masks) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(partition_ids)]])
    rows, numbers = [], []
    for start, end in pairwise(starts.tolist()):
        found, highest = deletes.find_in_sorted(
            [column.slice(start, end - start) for column in columns[2:]],
            int(partition_ids[start]),
            int(null_masks[start]),
        )
        rows.append(start + found)
        numbers.append(highest)
    return np.concatenate(rows), np.concatenate(numbers)


def _starts(lengths: Int64Array) -> Int64Array:
    starts: Int64Array = np.cumsum(lengths) - lengths
    return starts
