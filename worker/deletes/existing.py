"""What readers skip in data files already: reads deletion vectors and position delete files.

Every function works on any group of data files by itself, with picklable arguments and results, so groups run
as local threads or as Spark tasks alike.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from worker.deletes.puffin import (
    CorruptDeletionVectorError,
    Positions,
    bitmap_of,
    read_deletion_vector,
    read_deletion_vectors,
)
from worker.io.decimals import check_decimals
from worker.io.file_formats import FORMATS, check_size, field_id_of, open_columns
from worker.io.row_groups import close_together
from worker.io.storage import Storage
from worker.process.slots import Threads
from worker.table.files import DataFile, DeleteFile, FileContent, PartitionKey

T = TypeVar("T")
FILE_PATH_FIELD_ID = 2147483546
POS_FIELD_ID = 2147483545
FILES_AT_ONCE = 8
"""That are read, written or deleted: such small ones mostly wait for the store."""
SMALL_FILES_AT_ONCE = 32
"""Of files that hold little more than a vector."""
_SMALL_BYTES = 1024**2
_RUN_BYTES = 1024**2
"""Of vectors of a file that are read together; a larger one is read by itself."""
_AHEAD_BYTES, _AHEAD_RANGES = 32 * 1024**2, 4096
"""Of vectors of many files that are asked for at once."""


class UnreadableDeleteFileError(Exception):
    """An existing position delete file or deletion vector can't be read; a retry can't help.

    Data files that it applies to can't get new deletes, because these would have to include its positions.
    """

    def __init__(self, delete_file: DeleteFile, reason: str, missing: bool = False) -> None:
        super().__init__(f"{delete_file.path}: {reason}")
        self.delete_file = delete_file
        self.reason = reason
        self.missing = missing

    def __reduce__(self) -> tuple[object, ...]:
        return UnreadableDeleteFileError, (self.delete_file, self.reason, self.missing)


@dataclass(frozen=True, slots=True)
class ExistingDeletes:
    """What readers skip in one data file already, without equality deletes."""

    positions: BitMap64
    deletion_vector: DeleteFile | None = None
    # Position delete files that speak of this data file only, and their positions.
    file_scoped: tuple[DeleteFile, ...] = ()
    file_scoped_positions: BitMap64 = field(default_factory=BitMap64)


def existing_deletes(
    storage: Storage, data_files: Iterable[DataFile], position_deletes: Iterable[DeleteFile]
) -> dict[DataFile, ExistingDeletes]:
    """What readers skip in each data file already; files without deletes are left out.

    Each position delete file is read once, whatever the number of data files it speaks of.
    Raises UnreadableDeleteFileError, or OSError (a retry can help).
    """
    vectors, files = _applicable(data_files, position_deletes)
    existing: dict[DataFile, ExistingDeletes] = {}
    positions: dict[DataFile, BitMap64] = defaultdict(BitMap64)
    file_scoped: dict[DataFile, list[DeleteFile]] = defaultdict(list)
    file_scoped_positions: dict[DataFile, BitMap64] = defaultdict(BitMap64)
    runs = _in_runs(dict.fromkeys(vectors.values()))
    ahead = storage.read_ahead(islice(_small_ranges(runs), _AHEAD_RANGES))
    are_small = all(file.file_size_bytes <= _SMALL_BYTES for file in files)
    with Threads(SMALL_FILES_AT_ONCE if are_small else FILES_AT_ONCE) as threads:
        read_vectors = threads.map(lambda run: _read_vectors(storage, ahead, run), runs)
        read_files = threads.map(
            lambda one: _read_position_deletes(storage, (one[0], {file.path for file in one[1]})),
            files.items(),
        )
        of_vectors = dict(zip(chain.from_iterable(runs), chain.from_iterable(read_vectors), strict=True))
        for data_file, vector in vectors.items():
            existing[data_file] = ExistingDeletes(of_vectors[vector], vector)
        for (file, applied_to), deleted in zip(files.items(), read_files, strict=True):
            by_path: dict[str, BitMap64] = defaultdict(BitMap64)
            for path, part in deleted:
                by_path[path] |= bitmap_of(part)
            for data_file in applied_to:
                bitmap = by_path.get(data_file.path, BitMap64())
                if file.referenced_data_file is not None:
                    file_scoped[data_file].append(file)
                    file_scoped_positions[data_file] |= bitmap
                if bitmap:
                    positions[data_file] |= bitmap
    for data_file in positions.keys() | file_scoped.keys():
        existing[data_file] = ExistingDeletes(
            positions[data_file],
            file_scoped=tuple(file_scoped[data_file]),
            file_scoped_positions=file_scoped_positions[data_file],
        )
    return existing


def outdated_vectors(data_files: Iterable[DataFile], deletes: Iterable[DeleteFile]) -> list[DeleteFile]:
    """The deletion vectors that are older than the data file of their path, which was added again after them.

    data_files: the oldest of each path. Readers skip nothing by these vectors, but a data file may have one
    only (spec, "Deletion Vectors"): whoever writes it another one has to remove them.
    """
    numbers = {file.path: file.data_sequence_number for file in data_files}
    return [
        one
        for one in deletes
        if one.is_deletion_vector
        and one.data_sequence_number < numbers.get(one.referenced_data_file or "", 0)
    ]


def named_data_files(storage: Storage, delete: DeleteFile) -> set[str]:
    """The paths of the data files of which a position delete file or a vector says something.

    Raises UnreadableDeleteFileError, or OSError (a retry can help).
    """
    if delete.referenced_data_file is not None:
        return {delete.referenced_data_file}

    def read() -> set[str]:
        found: set[str] = set()
        for batch in _position_batches(storage, delete):
            found.update(pc.unique(batch.column(0).cast(pa.string())).to_pylist())
        return found

    return _readable(storage, delete, read)


def _applicable(
    data_files: Iterable[DataFile], position_deletes: Iterable[DeleteFile]
) -> tuple[dict[DataFile, DeleteFile], dict[DeleteFile, Set[DataFile]]]:
    """The deletion vector of each data file, and each position delete file with those it applies to."""
    by_path: dict[str, list[DataFile]] = defaultdict(list)
    by_partition: dict[PartitionKey, list[DataFile]] = defaultdict(list)
    for data_file in data_files:
        by_path[data_file.path].append(data_file)
        by_partition[data_file.partition].append(data_file)
    vectors: dict[DataFile, DeleteFile] = {}
    files: dict[DeleteFile, Set[DataFile]] = {}
    for delete in position_deletes:
        if delete.content is not FileContent.POSITION_DELETES:
            continue
        if delete.referenced_data_file is None:
            candidates = by_partition.get(delete.partition, [])
        else:
            # Compared as written, because readers do: a position delete whose path is spelled otherwise
            # (file:/x, file:///x) hides no row today, and merging it would delete rows that are visible.
            of_path = by_path.get(delete.referenced_data_file, ())
            candidates = [file for file in of_path if file.partition == delete.partition]
        hit = {file for file in candidates if file.data_sequence_number <= delete.data_sequence_number}
        if not delete.is_deletion_vector:
            files[delete] = hit
        else:
            for file in hit:
                if vectors.setdefault(file, delete) is not delete:
                    raise UnreadableDeleteFileError(delete, f"{file.path} has a second deletion vector")
    # A vector is the truth for its data file: it had to include the older position deletes when it was
    # written, and readers skip nothing else. Should it lack one of them, that row is visible and stays so.
    undecided = {delete: hit - vectors.keys() for delete, hit in files.items()}
    return vectors, {delete: hit for delete, hit in undecided.items() if hit}


def _in_runs(vectors: Iterable[DeleteFile]) -> list[list[DeleteFile]]:
    """Vectors that one request reads together: those of a file that lie close to each other."""
    by_path: dict[str, list[DeleteFile]] = defaultdict(list)
    for vector in vectors:
        by_path[vector.path].append(vector)
    runs = (
        close_together(sorted(vectors, key=_told_bounds), _told_bounds, _RUN_BYTES)
        for vectors in by_path.values()
    )
    return list(chain.from_iterable(runs))


def _told_bounds(vector: DeleteFile) -> tuple[int, int]:
    """Where it starts and ends, as its manifest says: which may be anything."""
    start = vector.content_offset or 0
    return start, start + (vector.content_size_bytes or 0)


def _range_of(vector: DeleteFile) -> tuple[int, int]:
    """Raises CorruptDeletionVectorError for one that can't be, before anything is read."""
    offset, end = _told_bounds(vector)
    if vector.content_offset is None or not 0 <= offset < end <= vector.file_size_bytes:
        told = f"[{vector.content_offset}, +{vector.content_size_bytes})"
        raise CorruptDeletionVectorError(
            f"its manifest says that the deletion vector lies at {told} of {vector.file_size_bytes} bytes"
        )
    return offset, end - offset


def _small_ranges(runs: Iterable[Sequence[DeleteFile]]) -> Iterator[tuple[str, int, int]]:
    """What a request for each run would read, as long as there is room for it."""
    room = _AHEAD_BYTES
    for vectors in runs:
        with suppress(CorruptDeletionVectorError):
            ranges = [_range_of(vector) for vector in vectors]
            start = min(offset for offset, _ in ranges)
            size = max(offset + length for offset, length in ranges) - start
            if size <= min(room, _RUN_BYTES) and not any(one.encrypted for one in vectors):
                room -= size
                yield vectors[0].path, start, size


def _read_vectors(storage: Storage, ahead: Storage, vectors: Sequence[DeleteFile]) -> list[BitMap64]:
    """Those of a run. ahead: has read some of them."""
    if (len(vectors) > 1 or ahead is not storage) and not any(one.encrypted for one in vectors):
        # If one can't be read, it is to be told which, and it is read once more before.
        with suppress(OSError, pa.ArrowException, CorruptDeletionVectorError, ValueError):
            ranges = [(*_range_of(vector), vector.record_count) for vector in vectors]
            return read_deletion_vectors(ahead, vectors[0].path, ranges)
    return [_read_vector(storage, vector) for vector in vectors]


def _read_vector(storage: Storage, vector: DeleteFile) -> BitMap64:
    def read() -> BitMap64:
        return read_deletion_vector(storage, vector.path, *_range_of(vector), vector.record_count)

    return _readable(storage, vector, read)


def _read_position_deletes(
    storage: Storage, applied: tuple[DeleteFile, Set[str]]
) -> list[tuple[str, Positions]]:
    """The deleted positions per data file that a file applies to; a path may come several times."""
    delete, paths = applied

    def read() -> list[tuple[str, Positions]]:
        if delete.file_format not in FORMATS:
            raise pa.ArrowInvalid(f"position deletes can't be {delete.file_format} files")
        wanted = pa.array(list(paths), pa.string())
        deleted: list[tuple[str, Positions]] = []
        rows = 0
        for batch in _position_batches(storage, delete):
            deleted += _group_by_path(batch.column(0), batch.column(1), wanted)
            rows += batch.num_rows
        _check_rows(delete, rows)
        return deleted

    return _readable(storage, delete, read)


def _check_rows(delete: DeleteFile, rows: int) -> None:
    if rows != delete.record_count:
        raise ValueError(f"it holds {rows} rows, but its manifest says {delete.record_count}")


def _readable(storage: Storage, delete: DeleteFile, read: Callable[[], T]) -> T:
    if delete.encrypted:
        raise UnreadableDeleteFileError(delete, "it is encrypted")
    try:
        return read()
    except FileNotFoundError as error:
        raise UnreadableDeleteFileError(delete, "it is missing", missing=True) from error
    except (OSError, pa.ArrowException, CorruptDeletionVectorError, ValueError, KeyError) as error:
        if storage.is_at_fault(error, [delete.path], read):
            raise
        raise UnreadableDeleteFileError(delete, str(error)) from error


def _group_by_path(paths: pa.Array, positions: pa.Array, wanted: pa.Array) -> Iterator[tuple[str, Positions]]:
    """Splits positions by path without a Python object per row."""
    encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
    values = encoded.dictionary.cast(pa.string())
    is_wanted = pc.is_in(values, wanted).to_numpy(zero_copy_only=False)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    found = positions.to_numpy(zero_copy_only=False)
    keep = is_wanted[codes]
    codes, found = codes[keep], found[keep]
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    codes, found = codes[order], found[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    for code, part in zip(codes[starts], np.split(found, starts[1:]), strict=True):
        yield values[int(code)].as_py(), part


def _parquet_batches(storage: Storage, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
    with storage.open_input(delete.path) as source:
        check_size(source, delete.file_size_bytes)
        footer = pq.ParquetFile(source)
        _check_rows(delete, footer.metadata.num_rows)  # before so many are held
        check_decimals(footer.schema_arrow)
        names = _column_names(footer.schema_arrow)
        # Paths stay dictionary-encoded, so that grouping compares integers.
        file = pq.ParquetFile(
            source, metadata=footer.metadata, read_dictionary=names[:1], page_checksum_verification=True
        )
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index, names).select(names).to_batches()


def _position_batches(storage: Storage, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
    """Batches of two columns: path and position."""
    if delete.file_format == "parquet":
        yield from _parquet_batches(storage, delete)
        return
    with open_columns(storage, delete.path, delete.file_format, delete.file_size_bytes) as file:
        names = _column_names(file.schema)
        for batch in file.batches([(name,) for name in names]):
            yield batch.select(names)


def _column_names(schema: pa.Schema) -> list[str]:
    """The names of path and position, found by field id; by the spec's names in files without ids."""
    by_id = {field_id_of(field): field.name for field in schema}
    return [
        by_id.get(field_id, name)
        for field_id, name in ((FILE_PATH_FIELD_ID, "file_path"), (POS_FIELD_ID, "pos"))
    ]
