"""The dictionary of an index: which data file owns which addresses. A file that it has is covered.

A covered file owns the addresses [base_address, base_address + record_count); address = base + position.

A data file is its path, its partition and its data sequence number: one that was removed and added again
under the same path is another one, which may hold other rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from worker.index.checksums import read_footer
from worker.index.run_files import ROW_GROUP_ROWS, RunFile
from worker.io.paths import PIECE, PathPlaces, Paths
from worker.io.row_groups import RowGroups
from worker.io.sorting import Int64Array
from worker.io.storage import Storage
from worker.table.files import DataFile, DataFiles, PartitionKey

PARTITION_ID = "partition_id"


DICTIONARY_SCHEMA = pa.schema(
    [
        pa.field("base_address", pa.int64(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("file_format", pa.string(), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("partition_values", pa.string(), nullable=False),
        pa.field(PARTITION_ID, pa.int64(), nullable=False),
        pa.field("data_sequence_number", pa.int64(), nullable=False),
        pa.field("indexed_at_millis", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A data file's place in the index: its rows' addresses are base_address + position.

    An empty file takes one address too, so that base addresses are unique.
    """

    file: DataFile
    base_address: int
    partition_id: int


class FileDictionary:
    """The covered files, ordered by base address; address -> file by binary search.

    In columns, 52 bytes a file beside its path's text: there may be ten million.
    """

    def __init__(self, parts: Iterable[pa.Table], before: FileDictionary | None = None) -> None:
        """parts: `DICTIONARY_SCHEMA`, in any order, base addresses unique and ranges disjoint.

        before: has further files, none of which is among the parts.
        """
        names = ("base_address", "record_count", PARTITION_ID, "data_sequence_number")
        numbers = [np.empty((len(names), 0), np.int64)]
        partition_of = [np.empty(0, np.int32)]
        self._partitions: dict[PartitionKey, int] = {}

        def paths() -> Iterator[pa.Array]:
            if before is not None:
                numbers.append(before._columns)
                partition_of.append(before._partition_of)
                self._partitions |= before._partitions
                yield from before._paths.pieces(before._order)
            for part in parts:
                numbers.append(np.array([part[name].to_numpy() for name in names], np.int64))
                partition_of.append(self._partitions_in(part))
                yield from part["path"].chunks

        self._paths = Paths(paths())
        together = np.concatenate(numbers, axis=1)
        numbers.clear()
        self._order: Int64Array
        self._order = np.argsort(together[0], kind="stable")  # where the path of each row is
        self.base_addresses: Int64Array
        self.record_counts: Int64Array
        self.partition_ids: Int64Array
        self.base_addresses, self.record_counts, self.partition_ids, self._numbers = together[:, self._order]
        self._partition_of = np.concatenate(partition_of)[self._order]
        self._kept: tuple[PathPlaces, Int64Array] | None = None

    @property
    def _columns(self) -> Int64Array:
        return np.array([self.base_addresses, self.record_counts, self.partition_ids, self._numbers])

    def _partitions_in(self, part: pa.Table) -> npt.NDArray[np.int32]:
        """The partition of each row, by its number."""
        values = part["partition_values"].combine_chunks().dictionary_encode()
        count = len(values.dictionary)
        codes = part["spec_id"].to_numpy().astype(np.int64) * count + values.indices.to_numpy()
        distinct, of_row = np.unique(codes, return_inverse=True)
        keys = (
            PartitionKey(code // count, values.dictionary[code % count].as_py()) for code in distinct.tolist()
        )
        numbers = [self._partitions.setdefault(key, len(self._partitions)) for key in keys]
        return np.array(numbers, np.int32)[of_row]

    def __len__(self) -> int:
        return len(self.base_addresses)

    def path_of(self, row: int) -> str:
        return self._paths[int(self._order[row])]

    @property
    def end_address(self) -> int:
        """The first address above every range."""
        return int((self.base_addresses + self.record_counts).max()) if len(self) else 0

    def rows_of(self, files: DataFiles) -> Int64Array:
        """The dictionary row under which each file is covered; -1 for one that is not.

        A file is covered if the index holds every row of it, under its partition.
        """
        rows = np.full(len(files), -1, np.int64)
        here = np.array([self._partitions.get(kind.partition, -1) for kind in files.kinds], np.int32)
        here = here[files.kind_of]
        for ordinals, found in self.pairs(files):
            # A path that is live in two partitions has a row, and entries, under each.
            same = self._partition_of[found] == here[ordinals]
            rows[ordinals[same]] = found[same]
        return rows

    def covers(self, files: DataFiles) -> npt.NDArray[np.bool_]:
        """Which of the files are covered."""
        covered: npt.NDArray[np.bool_] = self.rows_of(files) >= 0
        return covered

    def are_live(self, files: DataFiles) -> npt.NDArray[np.bool_]:
        """Which rows are of some live file, in whatever partition."""
        live = np.zeros(len(self), np.bool_)
        for _, rows in self.pairs(files):
            live[rows] = True
        return live

    def pairs(self, files: DataFiles) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Which of the files, by ordinal, has the path and the data sequence number of which row: every pair,
        some at a time."""
        named, rows = self._by_path()
        numbers = files.data_sequence_numbers
        for ordinals, places in named.pairs(files.path_pieces()):
            found = rows[places]
            same = self._numbers[found] == numbers[ordinals]
            yield ordinals[same], found[same]

    def repeated_paths(self) -> list[str]:
        """Those of data files that more than one row has, in order."""
        named, rows = self._by_path()
        found = set()
        for ones, others in named.pairs(self._paths.pieces()):
            one, other = rows[ones], rows[others]
            twice = (ones < others) & (self._partition_of[one] == self._partition_of[other])
            twice &= self._numbers[one] == self._numbers[other]
            found |= {self._paths[int(place)] for place in ones[twice]}
        return sorted(found)

    def _by_path(self) -> tuple[PathPlaces, Int64Array]:
        """Where paths lie in the order in which they came, and of each the row that has it.

        Of few files, that is kept: a job asks half a dozen times.
        """
        if self._kept is not None:
            return self._kept
        rows = np.empty(len(self), np.int64)
        rows[self._order] = np.arange(len(self))
        made = PathPlaces(self._paths), rows
        if len(self) <= PIECE:
            self._kept = made
        return made

    def __getstate__(self) -> dict[str, object]:
        """Another process has other hashes."""
        return {**vars(self), "_kept": None}

    def partitions(self) -> dict[PartitionKey, tuple[int, ...]]:
        """Partition -> partition_id of every partition that has a covered file.

        More than one only after an attempt that had lost its job committed all the same.
        """
        _, first = np.unique(self._partition_of, return_index=True)  # all partitions have a file
        usual = self.partition_ids[first]
        others = np.flatnonzero(self.partition_ids != usual[self._partition_of])
        found = {number: {partition_id: None} for number, partition_id in enumerate(usual.tolist())}
        for number, partition_id in zip(
            self._partition_of[others].tolist(), self.partition_ids[others].tolist(), strict=True
        ):
            found[number][partition_id] = None
        return {partition: tuple(found[number]) for partition, number in self._partitions.items()}

    def ordinals(self, row_addresses: Int64Array) -> Int64Array:
        """The dictionary row of each address; -1 for an address that no covered file owns."""
        return owners(self.base_addresses, self.record_counts, row_addresses)


def owners(base_addresses: Int64Array, record_counts: Int64Array, row_addresses: Int64Array) -> Int64Array:
    """Which of the ranges, ascending and disjoint, each address lies in; -1 for none."""
    if not len(base_addresses):
        return np.full(len(row_addresses), -1, np.int64)
    found = np.searchsorted(base_addresses, row_addresses, side="right") - 1
    inside = (found >= 0) & (row_addresses < base_addresses[found] + record_counts[found])
    return np.where(inside, found, -1)


def read_parts(storage: Storage, files: Iterable[RunFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Their rows, some row groups at a time."""
    for file in files:
        with storage.open_input(file.location, file.size_bytes) as source:
            metadata = read_footer(source)
            groups = range(metadata.num_row_groups)
            for start in range(0, len(groups), PIECE // ROW_GROUP_ROWS):
                chosen = groups[start : start + PIECE // ROW_GROUP_ROWS]
                yield RowGroups(source, metadata).read(chosen, schema.names)


def uncovered_files(data_files: DataFiles, dictionary: FileDictionary) -> DataFiles:
    """What is left to index: of a data file that is live more than once, one."""
    return data_files.where(~dictionary.covers(data_files)).without_copies()


def assign_row_addresses(
    files: Sequence[DataFile], base_address: int, partitions: Mapping[PartitionKey, Sequence[int]]
) -> list[IndexedFile]:
    """Gives each file its range from `base_address` on, in order; new partitions take their first file's."""
    indexed = []
    known = {partition: ids[0] for partition, ids in partitions.items()}
    for file in files:
        partition_id = known.setdefault(file.partition, base_address)
        indexed.append(IndexedFile(file, base_address, partition_id))
        base_address += max(1, file.record_count)
    return indexed


def row_addresses_needed(files: Iterable[DataFile]) -> int:
    return sum(max(1, file.record_count) for file in files)


def dictionary_rows(files: Sequence[IndexedFile]) -> pa.Table:
    now = int(time.time() * 1000)
    rows = [
        (
            f.base_address,
            f.file.record_count,
            f.file.path,
            f.file.file_format,
            f.file.partition.spec_id,
            f.file.partition.values,
            f.partition_id,
            f.file.data_sequence_number,
            now,
        )
        for f in sorted(files, key=lambda f: f.base_address)
    ]
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), DICTIONARY_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=DICTIONARY_SCHEMA)
