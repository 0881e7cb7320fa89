"""Footers of the index's Parquet files: what each row group may hold, as arrays, kept between jobs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from worker.index.checksums import read_footer
from worker.index.dictionary import PARTITION_ID
from worker.index.run_files import DECODED_BYTES, ROW_GROUP_ROWS, SYSTEM_COLUMNS, RunFile
from worker.io.cache import Cache
from worker.io.row_groups import side_by_side
from worker.io.sorting import Int64Array
from worker.io.storage import Storage

_KEPT_BYTES = 192 * 1024**2
KEPT = Cache(_KEPT_BYTES)
_FACTOR = 6  # by which a footer is larger in memory
_CHUNK_BYTES = 120  # of a column chunk in a footer, and some more


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """What each of some pieces of the index (row groups, or files) may hold.

    Bounds are inclusive, one array per key column, up to the first column of which some piece tells none.
    """

    partition_low: Int64Array
    partition_high: Int64Array
    mask_low: Int64Array
    mask_high: Int64Array
    key_low: tuple[npt.NDArray[Any], ...]
    key_high: tuple[npt.NDArray[Any], ...]

    @classmethod
    def of(
        cls, low: Sequence[Sequence[Any]], high: Sequence[Sequence[Any]], key_types: Sequence[pa.DataType]
    ) -> Self:
        """low and high: of each piece the bounds of partition_id, null mask and keys (None: unknown)."""
        known = 0
        while known < len(key_types) and all(b[2 + known] is not None for b in (*low, *high)):
            known += 1
        keys = [
            tuple(
                comparable(pa.array([bounds[2 + column] for bounds in side], key_type))
                for column, key_type in enumerate(key_types[:known])
            )
            for side in (low, high)
        ]
        return cls(
            np.array([bounds[0] for bounds in low], np.int64),
            np.array([bounds[0] for bounds in high], np.int64),
            np.array([bounds[1] for bounds in low], np.int64),
            np.array([bounds[1] for bounds in high], np.int64),
            keys[0],
            keys[1],
        )

    def __len__(self) -> int:
        return len(self.partition_low)

    def uniform(self) -> npt.NDArray[np.bool_]:
        """Where all entries have the same partition and null mask."""
        same: npt.NDArray[np.bool_] = (self.partition_low == self.partition_high) & (
            self.mask_low == self.mask_high
        )
        return same

    def prefixes(self, piece: int, *, any_partition: bool = False) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the first and last entries of a piece begin with, as far as its bounds tell.

        any_partition: without the partition, what they would begin with if they were sorted without it.

        Entries are sorted: where the columns so far are constant, the next one's bounds are its first and
        last value, and those of the columns after it say nothing.
        """
        first, last = [], []
        columns = [
            (self.partition_low, self.partition_high),
            (self.mask_low, self.mask_high),
            *zip(self.key_low, self.key_high, strict=True),
        ]
        for low, high in columns[1:] if any_partition else columns:
            first.append(low[piece])
            last.append(high[piece])
            if low[piece] != high[piece]:
                break
        return tuple(first), tuple(last)


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of one index file, with what its readers need as arrays in the order of row groups."""

    metadata: pq.FileMetaData
    ranges: KeyRanges
    rows: Int64Array
    key_bytes: Int64Array  # compressed, of all the table's own columns but the last, which is the address
    address_bytes: Int64Array
    decoded_bytes: Int64Array  # in memory, of all the table's own columns

    def filled(self, rows_at_most: int, bytes_at_most: int) -> npt.NDArray[np.float64]:
        """Which share of such a part each row group fills, by the bound that it comes closer to."""
        return np.maximum(self.rows / rows_at_most, self.decoded_bytes / bytes_at_most)

    @classmethod
    def of(cls, metadata: pq.FileMetaData, key_types: Sequence[pa.DataType]) -> Self:
        names = metadata.schema.names
        first = names.index(PARTITION_ID)
        low, high, sizes = [], [], []
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            columns = [group.column(c) for c in range(first, len(names))]
            statistics = [column.statistics for column in columns[: 2 + len(key_types)]]
            bounded = [s is not None and s.has_min_max for s in statistics]
            low.append([s.min if known else None for s, known in zip(statistics, bounded, strict=True)])
            high.append([s.max if known else None for s, known in zip(statistics, bounded, strict=True)])
            compressed = [column.total_compressed_size for column in columns]
            sizes.append((group.num_rows, sum(compressed[:-1]), compressed[-1]))
        rows, key_bytes, address_bytes = np.array(sizes, np.int64).reshape(-1, 3).T
        decoded = int((metadata.metadata or {}).get(DECODED_BYTES.encode(), 0))
        decoded_bytes = rows * decoded // max(1, metadata.num_rows)
        return cls(
            metadata, KeyRanges.of(low, high, key_types), rows, key_bytes, address_bytes, decoded_bytes
        )


def footer(storage: Storage, file: RunFile, key_types: tuple[pa.DataType, ...]) -> Footer:
    """Footers of immutable files are kept from one job to the next."""

    def read() -> Footer:
        with storage.open_input(file.location, file.size_bytes) as source:
            return Footer.of(read_footer(source, _expected_bytes(file, key_types)), key_types)

    name = (storage.identity, file.location, key_types)
    return KEPT.get(name, read, lambda known: _FACTOR * known.metadata.serialized_size)


def footers(
    storage: Storage, files: Iterable[RunFile], key_types: tuple[pa.DataType, ...]
) -> Iterator[Footer]:
    """In order. Those of remote files are asked for side by side."""
    asked = list(files)

    def read(file: RunFile) -> Footer:
        return footer(storage, file, key_types)

    is_local = all(storage.is_local(file.location) for file in asked)
    return side_by_side(read, asked, waits=not is_local)


def fit_in_memory(files: Iterable[RunFile], key_types: tuple[pa.DataType, ...]) -> bool:
    """Whether the footers of all of them are kept, once they are read."""
    return _FACTOR * sum(_expected_bytes(file, key_types) for file in files) <= _KEPT_BYTES


def _expected_bytes(file: RunFile, key_types: tuple[pa.DataType, ...]) -> int:
    """Of a footer in its file."""
    columns = len(SYSTEM_COLUMNS) + 2 + len(key_types) + 1
    return -(-file.rows // ROW_GROUP_ROWS) * columns * _CHUNK_BYTES


def comparable(values: pa.Array) -> npt.NDArray[Any]:
    """Values as a numpy array that compares like Arrow sorts; strings as bytes (byte order)."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    try:
        array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        # Arrow can't make a Python object of some bytes, for which there is no other reason.
        raise MemoryError(str(error)) from error
    return array
