"""Where do the rows lie that the equality deletes delete? Answered from the index, or by scanning files.

Both sources return the same shape, `Matches`. Input are the delete keys: distinct (partition_id, null
mask, key), each with the highest data sequence number that deletes it; a row is deleted iff its file's
number is smaller (so the highest number alone decides).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from worker.index import ADDRESS, PARTITION_ID, FileDictionary, Int64Array
from worker.matching import KeyMatcher
from worker.plan import DataFile
from worker.read import NULL_MASK, KeyColumnError, KeyReader
from worker.sorted_runs import RunFile
from worker.storage import Storage

GLOBAL = -1  # partition_id of delete keys that apply in every partition
MAX_SEQUENCE_NUMBER = "max_data_sequence_number"
_READ_ROWS = 1_048_576  # rows of the index decoded at a time by one task


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A data file that could not be read, and why; a retry can't help."""

    ordinal: int
    code: str
    reason: str
    remedy: str


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

    @staticmethod
    def failed(failure: ReadFailure) -> Matches:
        return Matches(np.empty(0, np.int64), np.empty(0, np.int64), failures=(failure,))

    @staticmethod
    def combined(parts: Sequence[Matches]) -> Matches:
        if not parts:
            return Matches(np.empty(0, np.int64), np.empty(0, np.int64))
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
    """Distinct delete keys of one key set, sorted by partition_id and key. Pickles."""

    def __init__(self, rows: pa.Table) -> None:
        """rows: partition_id, null_mask, key columns, max_data_sequence_number; distinct but for the last."""
        self.rows = rows.combine_chunks()
        self.key_names = rows.schema.names[1:-1]
        self.partition_ids: Int64Array = self.rows[PARTITION_ID].to_numpy()
        self.sequence_numbers: Int64Array = self.rows[MAX_SEQUENCE_NUMBER].to_numpy()
        self._matchers: dict[tuple[int, int], tuple[KeyMatcher, Int64Array] | None] = {}

    @classmethod
    def of(cls, batches: Iterable[tuple[int, int, pa.RecordBatch]], schema: pa.Schema) -> DeleteKeys:
        """From (partition_id or GLOBAL, data sequence number, keys) of equality delete files.

        schema: of the keys (`KeySet.schema`).
        """
        tables = [
            pa.Table.from_batches([keys])
            .add_column(0, PARTITION_ID, pa.repeat(pa.scalar(partition_id, pa.int64()), keys.num_rows))
            .append_column(MAX_SEQUENCE_NUMBER, pa.repeat(pa.scalar(number, pa.int64()), keys.num_rows))
            for partition_id, number, keys in batches
        ]
        names = [PARTITION_ID, *schema.names]
        if not tables:
            empty = {
                name: pa.array([], field_type)
                for name, field_type in zip(schema.names, schema.types, strict=True)
            }
            return cls(
                pa.table(
                    {
                        PARTITION_ID: pa.array([], pa.int64()),
                        **empty,
                        MAX_SEQUENCE_NUMBER: pa.array([], pa.int64()),
                    }
                )
            )
        grouped = pa.concat_tables(tables).group_by(names).aggregate([(MAX_SEQUENCE_NUMBER, "max")])
        rows = grouped.rename_columns([*names, MAX_SEQUENCE_NUMBER])
        return cls(rows.sort_by([(name, "ascending") for name in names]))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __reduce__(self) -> tuple[type[DeleteKeys], tuple[pa.Table]]:
        return DeleteKeys, (self.rows,)

    def matcher(self, partition_id: int, null_mask: int | None) -> tuple[KeyMatcher, Int64Array] | None:
        """Matches keys of one partition (or GLOBAL); also the rows of `self.rows` that its keys are.

        With a null_mask, only keys of that mask, by their columns alone; with None, mask and columns.
        """
        cache_key = (partition_id, -1 if null_mask is None else null_mask)
        if cache_key not in self._matchers:
            start, end = np.searchsorted(self.partition_ids, [partition_id, partition_id + 1])
            selected = np.arange(start, end)
            names = self.key_names
            if null_mask is not None:
                selected = selected[self.rows[NULL_MASK].to_numpy()[start:end] == null_mask]
                names = names[1:]
            keys = self.rows.select(names).take(pa.array(selected))
            self._matchers[cache_key] = (
                (KeyMatcher([keys[name].combine_chunks() for name in names]), selected)
                if len(selected)
                else None
            )
        return self._matchers[cache_key]

    def match(self, keys: pa.RecordBatch, partition_id: int) -> tuple[Int64Array, Int64Array]:
        """(row, highest deleting sequence number) for rows of one partition that some key deletes.

        keys: `KeySet.schema` columns. A row that scoped and global keys match is returned twice.
        """
        mask: npt.NDArray[np.int32] = keys.column(NULL_MASK).to_numpy()
        uniform = not len(mask) or (mask[0] == mask).all()
        null_mask = int(mask[0]) if uniform and len(mask) else None
        columns = [
            keys.column(name) for name in (self.key_names if null_mask is None else self.key_names[1:])
        ]
        rows, numbers = [], []
        for scope in (partition_id, GLOBAL):
            matcher = self.matcher(scope, null_mask)
            if matcher is None:
                continue
            probe = matcher[0].probe(columns)
            rows.append(probe.rows)
            numbers.append(self.sequence_numbers[matcher[1][probe.keys]])
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(numbers)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Reads the key columns of some data files and matches them. Pickles.

    files: (ordinal, partition_id, file).
    """

    reader: KeyReader
    files: tuple[tuple[int, int, DataFile], ...]

    def run(self, deletes: DeleteKeys) -> Matches:
        return Matches.combined([self._scan(deletes, *file) for file in self.files])

    def _scan(self, deletes: DeleteKeys, ordinal: int, partition_id: int, file: DataFile) -> Matches:
        positions = []
        start = size = 0
        try:
            for keys in self.reader.read_data_file(file):
                rows, numbers = deletes.match(keys, partition_id)
                positions.append(start + rows[numbers > file.data_sequence_number])
                start += keys.num_rows
                size += keys.nbytes
        except KeyColumnError as error:
            return Matches.failed(ReadFailure(ordinal, error.code, str(error), error.remedy))
        except FileNotFoundError as error:
            return Matches.failed(ReadFailure(ordinal, "missing_file", str(error), "Restore the file."))
        found = np.concatenate(positions) if positions else np.empty(0, np.int64)
        return Matches(np.full(len(found), ordinal), found, bytes_read=size, rows_read=start)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Statistics of one index file's row groups, as arrays in file order; keys only of the first column."""

    partition_low: Int64Array
    partition_high: Int64Array
    key_low: pa.Array | None  # None: some row group lacks statistics, so nothing is pruned by key
    key_high: pa.Array | None
    rows: Int64Array
    bytes: Int64Array  # compressed size of the columns that a lookup reads

    @classmethod
    def of(cls, metadata: pq.FileMetaData, key_type: pa.DataType) -> RowGroups:
        names = metadata.schema.names
        partition_column, key_column = names.index(PARTITION_ID), names.index(PARTITION_ID) + 2
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        partitions = [group.column(partition_column).statistics for group in groups]
        keys = [group.column(key_column).statistics for group in groups]
        bounded = all(s is not None and s.has_min_max for s in keys)
        return cls(
            np.array([s.min for s in partitions], np.int64),
            np.array([s.max for s in partitions], np.int64),
            pa.array([s.min for s in keys], key_type) if bounded else None,
            pa.array([s.max for s in keys], key_type) if bounded else None,
            np.array([group.num_rows for group in groups], np.int64),
            np.array(
                [
                    sum(group.column(c).total_compressed_size for c in range(2, len(names)))
                    for group in groups
                ],
                np.int64,
            ),
        )


@lru_cache(maxsize=1024)
def footer(storage: Storage, location: str, key_type: pa.DataType) -> tuple[pq.FileMetaData, RowGroups]:
    """Footers of immutable files are kept for as long as the process lives."""
    with storage.open_input(location) as source:
        metadata = pq.read_metadata(source)
    return metadata, RowGroups.of(metadata, key_type)


@dataclass(frozen=True, slots=True)
class LookupTask:
    """Looks delete keys up in some files of the index. Pickles."""

    storage: Storage
    files: tuple[RunFile, ...]

    def run(self, deletes: DeleteKeys) -> AddressMatches:
        return AddressMatches.combined([self._look_up(deletes, file) for file in self.files])

    def _look_up(self, deletes: DeleteKeys, file: RunFile) -> AddressMatches:
        key_type = deletes.rows.schema.field(deletes.key_names[1]).type
        metadata, groups = footer(self.storage, file.location, key_type)
        selected = surviving_row_groups(groups, deletes)
        parts = [AddressMatches.none(len(groups.rows))]
        if len(selected):
            with self.storage.open_input(file.location) as source:
                parquet = pq.ParquetFile(source, metadata=metadata)
                for chunk in _chunks(selected, groups.rows):
                    parts.append(self._read(parquet, chunk, groups, deletes))
        return AddressMatches.combined(parts)

    def _read(
        self, parquet: pq.ParquetFile, chunk: Int64Array, groups: RowGroups, deletes: DeleteKeys
    ) -> AddressMatches:
        names = [PARTITION_ID, *deletes.key_names]
        table = parquet.read_row_groups(chunk.tolist(), columns=names, use_threads=False).combine_chunks()
        rows, numbers = _match_entries(table, deletes)
        addresses = np.empty(0, np.int64)
        if len(rows):
            column = parquet.read_row_groups(chunk.tolist(), columns=[ADDRESS], use_threads=False)
            addresses = column[ADDRESS].to_numpy()[rows]
        return AddressMatches(
            addresses, numbers, len(chunk), 0, int(groups.bytes[chunk].sum()), table.num_rows
        )


@dataclass(frozen=True, slots=True)
class AddressMatches:
    """Row addresses that some delete key equals, with the key's highest sequence number."""

    addresses: Int64Array
    sequence_numbers: Int64Array
    row_groups_read: int = 0
    row_groups_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0

    @staticmethod
    def none(row_groups_total: int) -> AddressMatches:
        return AddressMatches(np.empty(0, np.int64), np.empty(0, np.int64), 0, row_groups_total)

    @staticmethod
    def combined(parts: Sequence[AddressMatches]) -> AddressMatches:
        if not parts:
            return AddressMatches.none(0)
        return AddressMatches(
            np.concatenate([p.addresses for p in parts]),
            np.concatenate([p.sequence_numbers for p in parts]),
            sum(p.row_groups_read for p in parts),
            sum(p.row_groups_total for p in parts),
            sum(p.bytes_read for p in parts),
            sum(p.rows_read for p in parts),
        )

    def resolve(self, dictionary: FileDictionary, ordinals: Mapping[str, int]) -> Matches:
        """Rows of the wanted files only: live, older than their delete.

        ordinals: path -> ordinal of the data files asked about; entries of other files are dropped, as are
        addresses that no committed file owns.
        """
        wanted = np.array([ordinals.get(path, -1) for path in dictionary.paths], np.int64)
        rows = dictionary.ordinals(self.addresses)
        found = np.flatnonzero(rows >= 0)
        rows = rows[found]
        keep = (wanted[rows] >= 0) & (self.sequence_numbers[found] > dictionary.data_sequence_numbers[rows])
        rows, found = rows[keep], found[keep]
        return Matches(
            wanted[rows],
            self.addresses[found] - dictionary.base_addresses[rows],
            self.row_groups_read,
            self.row_groups_total,
            self.bytes_read,
            self.rows_read,
        )


def surviving_row_groups(groups: RowGroups, deletes: DeleteKeys) -> Int64Array:
    """Row groups whose partition and key ranges may hold a delete key; ascending."""
    survivors = np.zeros(len(groups.rows), np.bool_)
    first_key = deletes.rows[deletes.key_names[1]].combine_chunks()
    for partition_id in np.unique(deletes.partition_ids):
        start, end = np.searchsorted(deletes.partition_ids, [partition_id, partition_id + 1])
        if partition_id == GLOBAL:
            inside = np.ones(len(groups.rows), np.bool_)
        else:
            inside = (groups.partition_low <= partition_id) & (groups.partition_high >= partition_id)
        candidates = np.flatnonzero(inside & ~survivors)
        if not len(candidates):
            continue
        if groups.key_low is None or groups.key_high is None:
            survivors[candidates] = True
            continue
        # Some key k with low <= k <= high: the keys below low and the keys up to high differ in number.
        keys = _ordered(first_key.slice(start, end - start))
        low = np.searchsorted(
            keys, _ordered(groups.key_low.take(pa.array(candidates)), sort=False), side="left"
        )
        high = np.searchsorted(
            keys, _ordered(groups.key_high.take(pa.array(candidates)), sort=False), side="right"
        )
        survivors[candidates[low < high]] = True
    return np.flatnonzero(survivors)


def _ordered(values: pa.Array, *, sort: bool = True) -> npt.NDArray[Any]:
    """Values as a numpy array that compares like Arrow does; strings as bytes (byte order)."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    array = values.to_numpy(zero_copy_only=False)
    return np.sort(array) if sort else array


def _chunks(row_groups: Int64Array, rows: Int64Array) -> list[Int64Array]:
    """Row groups in order, as many at a time as fit the memory bound of a task."""
    boundaries = np.cumsum(rows[row_groups]) // _READ_ROWS
    return np.split(row_groups, np.flatnonzero(np.diff(boundaries)) + 1)


def _match_entries(entries: pa.Table, deletes: DeleteKeys) -> tuple[Int64Array, Int64Array]:
    """Matches sorted entries partition by partition: each is a slice, since partition_id sorts first."""
    partition_ids: Int64Array = entries[PARTITION_ID].to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(partition_ids)) + 1])
    ends = np.append(starts[1:], len(partition_ids))
    rows, numbers = [], []
    keys = entries.drop_columns([PARTITION_ID])
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        batch = keys.slice(start, end - start).combine_chunks().to_batches()[0]
        found, sequence_numbers = deletes.match(batch, int(partition_ids[start]))
        rows.append(start + found)
        numbers.append(sequence_numbers)
    return np.concatenate(rows), np.concatenate(numbers)
