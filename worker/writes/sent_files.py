"""Files with rows or keys that somebody names: opened as a stranger's, and read once, in plain columns.

Invariant: of a file that changes while it is read nothing is used, and what a batch holds in memory is
bounded before it is decoded. Files are never deleted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from telemetry.plurals import counted
from trust.arrow_streams import ArrowStreamError, count_rows
from trust.locations import LocationNotAllowedError, parse_location
from worker.io.decimals import check_decimals
from worker.io.parquet_footers import moments_of_int96, parse_footer, read_tail
from worker.io.parquet_pages import Unpacked
from worker.io.sorting import Int64Array
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.writes.rows import InvalidRowsError

ROWS = 4_000_000
"""Of one write: their keys are held in memory."""
DECODED_BYTES = 4 * 1024**3
"""Of all rows of one write, which lie in a temporary file, compressed."""
ARROW_BYTES = 128 * 1024**2
"""Of a file of Arrow IPC, which is held as a whole."""
ROW_GROUP_BYTES = 1024**3
"""Of a row group of Parquet, as its pages say: a batch may hold as much, where one row has it all."""
_BATCH_ROWS = 65_536
_BATCH_BYTES = 32 * 1024**2
_ROW_BYTES = 256 * 1024**2
_COLUMNS = (
    "Give the files the columns of the table (of a delete: of the key), and no other. Nothing was written."
)
_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""What the two forms of Arrow IPC begin with."""


class UnreadableFileError(JobError):
    code = "unreadable_file"
    title = "A file of the request can't be read"
    remedy = "Name files of Parquet, or of Arrow IPC with plain columns, that stay until the job has ended."


class FileNotAllowedError(JobError):
    code = "file_not_allowed"
    title = "A file of the request lies where none is read"
    remedy = "Put the file into the table's store, at a place under ICESTREAM_ALLOWED_LOCATIONS."


class FileChangedError(JobError):
    code = "file_changed"
    title = "A file of the request changed while it was read"
    remedy = "Nothing was written; the next attempt reads it anew. Leave files alone until the job has ended."
    retryable = True


class TooLargeError(JobError):
    code = "too_many_rows"
    title = "The files have too much for one write"
    remedy = "Send them in several writes. Nothing was written."


@dataclass(frozen=True, slots=True)
class SentFile:
    """As it was at the first look, in seconds and nanoseconds by the store's clock."""

    location: str
    size_bytes: int
    modified_at_nanoseconds: int | None


def look_at(storage: Storage, location: str, table_location: str) -> SentFile:
    """Raises FileNotAllowedError, UnreadableFileError, or OSError (a retry can help)."""
    try:
        if parse_location(location).store != parse_location(table_location).store:
            raise FileNotAllowedError(f"{location} lies in another store than the table.")
        filesystem, path = storage.resolve(location)
    except LocationNotAllowedError as error:
        raise FileNotAllowedError(f"{error}.") from error
    found = filesystem.get_file_info(path)
    if found.type == pafs.FileType.NotFound:
        raise UnreadableFileError(f"There is no file {location}.")
    if found.type != pafs.FileType.File:  # a pipe would never end
        raise UnreadableFileError(f"{location} is no file.")
    return SentFile(location, found.size, found.mtime_ns)


@contextmanager
def opened(storage: Storage, file: SentFile, table_location: str) -> Iterator[_Parquet | _Arrow]:
    """Raises FileChangedError, UnreadableFileError, TooLargeError, or OSError (a retry can help)."""
    filesystem, path = storage.resolve(file.location)

    def read_again() -> None:
        with filesystem.open_input_file(path) as source:
            for _ in _opened(source, file).batches():
                pass

    def check_unchanged() -> None:
        if look_at(storage, file.location, table_location) != file:
            raise FileChangedError(f"{file.location} is another than it was.")

    try:
        # Not mapped into memory: whoever cuts a mapped file off ends this process.
        with filesystem.open_input_file(path) as source:
            yield _opened(source, file)
        check_unchanged()
    except (ArrowStreamError, pa.ArrowException, ValueError, OSError, EOFError) as error:
        check_unchanged()
        if storage.is_at_fault(error, [file.location], read_again):
            raise
        raise UnreadableFileError(f"{file.location} can't be read: {error}.") from error


def _opened(source: pa.NativeFile, file: SentFile) -> _Parquet | _Arrow:
    magic = source.read_at(min(8, source.size()), 0)
    if magic.startswith(b"PAR1"):
        return _Parquet(source)
    if magic.startswith((_FILE, _STREAM)):
        return _Arrow(source, file)
    raise pa.ArrowInvalid("it is neither Parquet nor Arrow IPC")


class _Parquet:
    def __init__(self, source: pa.NativeFile) -> None:
        metadata = pq.read_metadata(source)
        columns = [metadata.schema.column(at) for at in range(metadata.num_columns)]
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        pages = [[Unpacked.of(source, group.column(at)) for at in range(len(columns))] for group in groups]
        self._file = pq.ParquetFile(
            source,
            metadata=parse_footer(*read_tail(source)),
            # A few bytes may name one long text many times: it is not repeated before it was measured. Where
            # each is written out, Arrow would only hold those of a whole row group.
            read_dictionary=[
                column.path
                for at, column in enumerate(columns)
                if column.physical_type == "BYTE_ARRAY" and not all(one[at].is_plain for one in pages)
            ],
            page_checksum_verification=True,
        )
        # Spark's old form of a moment, which is one of UTC.
        self._moments = {one.path for one in columns if one.physical_type == "INT96"}
        check_decimals(self._file.schema_arrow)
        self.names: list[str] = self._file.schema_arrow.names
        self.rows = int(metadata.num_rows)
        self.decoded_bytes = 0
        self._at_once: list[int] = []  # rows, by row group
        for group, of_group in zip(groups, pages, strict=True):
            group_bytes = _decoded_bytes(group, columns, of_group)
            if group_bytes > ROW_GROUP_BYTES:
                raise TooLargeError(
                    f"It has a row group of {group_bytes:,} bytes; {ROW_GROUP_BYTES:,} are read at once.",
                    "Write smaller row groups. Nothing was written.",
                )
            row_bytes = group_bytes // max(1, group.num_rows) + 1
            self._at_once.append(max(1, min(_BATCH_ROWS, 2 * _BATCH_BYTES // row_bytes)))
            self.decoded_bytes += group_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Each of one row group, so that none is larger than that, wherever its long texts are."""
        for group, at_once in enumerate(self._at_once):
            for batch in self._file.iter_batches(at_once, row_groups=[group], use_threads=False):
                columns = [
                    moments_of_int96(column, "us").cast(pa.timestamp("us", "UTC"))
                    if name in self._moments
                    else column
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _decoded_bytes(
    group: pq.RowGroupMetaData, columns: Sequence[pq.ColumnSchema], pages: Sequence[Unpacked]
) -> int:
    """Of a row group, before texts are repeated: what its footer says, or its pages, if that is more."""
    total = 0
    for at, (column, found) in enumerate(zip(columns, pages, strict=True)):
        chunk = group.column(at)
        values = max(chunk.num_values, found.values)
        total += max(values * (column.length or 8), chunk.total_uncompressed_size, found.size_bytes)
    return total


class _Arrow:
    """Plain columns only, since those of Arrow's own reader may grow to anything."""

    def __init__(self, source: pa.NativeFile, file: SentFile) -> None:
        if file.size_bytes > ARROW_BYTES:
            raise TooLargeError(
                f"{file.location} has {file.size_bytes:,} bytes; of Arrow IPC {ARROW_BYTES:,} are read.",
                "Write it as Parquet, or as several files. Nothing was written.",
            )
        content = source.read_at(file.size_bytes, 0)
        if content.startswith(_FILE):  # a stream, with a footer behind it that tells nothing more
            footer_bytes = int.from_bytes(content[-10:-6], "little")
            content = content[8 : max(8, len(content) - 10 - footer_bytes)]
        self.rows = count_rows(content)
        self.decoded_bytes = len(content)
        self._reader = pa.ipc.open_stream(pa.py_buffer(content))
        self.names: list[str] = self._reader.schema.names

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._reader:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(start, _BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class SentPart:
    """Some rows of a file, in plain columns. start: the number of the first of them in the file, from 0."""

    location: str
    start: int
    rows: pa.Table


def read_files(
    storage: Storage, locations: Sequence[str], table_location: str, columns: Collection[str]
) -> Iterator[SentPart]:
    """The rows of all files in order. columns: their names, of which a file must have each, and no other.

    Raises as `look_at` and `opened`, and TooLargeError.
    """
    files = [look_at(storage, location, table_location) for location in locations]
    rows = decoded_bytes = 0
    for file in files:
        with opened(storage, file, table_location) as source:
            _check_columns(file.location, source.names, columns)
            _check_size(rows + source.rows, decoded_bytes + source.decoded_bytes)
            start = 0
            for batch in source.batches():
                batch.validate(full=True)
                for part, part_bytes in _plain_parts(batch, file.location, start):
                    rows, decoded_bytes = rows + part.num_rows, decoded_bytes + part_bytes
                    _check_size(rows, decoded_bytes)
                    yield SentPart(file.location, start, part)
                    start += part.num_rows


def _check_columns(location: str, names: Sequence[str], wanted: Collection[str]) -> None:
    if len(names) > len(set(names)):
        raise InvalidRowsError(f"{location} has two columns of one name.", _COLUMNS)
    if missing := [name for name in wanted if name not in names]:
        raise InvalidRowsError(f"{location} has no column {missing[0]}.", _COLUMNS)
    if more := set(names) - set(wanted):  # whose names may be of what the rows hold
        raise InvalidRowsError(f"{location} has {counted(len(more), 'column')} too many.", _COLUMNS)


def _check_size(rows: int, decoded_bytes: int) -> None:
    if rows > ROWS:
        raise TooLargeError(f"They have {rows:,} rows; {ROWS:,} are written at once.")
    if decoded_bytes > DECODED_BYTES:
        raise TooLargeError(f"Their rows have more than {DECODED_BYTES:,} bytes.")


def _plain_parts(batch: pa.RecordBatch, location: str, start: int) -> Iterator[tuple[pa.Table, int]]:
    """Some rows at a time without dictionaries, and how many bytes these have, about."""
    ends = np.cumsum(sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64)))
    at = before = 0
    while at < batch.num_rows:
        end = max(at + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")))
        part_bytes = int(ends[end - 1]) - before
        if part_bytes > _ROW_BYTES:
            raise TooLargeError(f"{location}: row {start + at} has {part_bytes:,} bytes.")
        columns = [one.slice(at, end - at) for one in batch.columns]
        plain = [one.cast(kind) if (kind := _plain(one.type)) != one.type else one for one in columns]
        yield pa.table(plain, names=batch.schema.names), part_bytes
        at, before = end, int(ends[end - 1])


def _sizes(array: pa.Array) -> Int64Array:
    """The bytes of each row without dictionaries, about."""
    kind, test = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if test.is_dictionary(kind):
        of_values = _sizes(array.dictionary)
        indices = array.indices.cast(pa.int64()).fill_null(len(of_values)).to_numpy()
        sizes: Int64Array = np.append(of_values, 1)[indices]
        return sizes
    if test.is_struct(kind):
        return sum((_sizes(child) for child in array.flatten()), np.ones(len(array), np.int64))
    if _is_list(kind):
        lengths, children = list_values(array)
        ends = np.cumsum(lengths)
        of_values = np.sum([_sizes(child) for child in children], axis=0)
        before = np.concatenate([[0], np.cumsum(of_values)])
        return np.asarray(before[ends] - before[ends - lengths] + 8, np.int64)
    if kind in (pa.string_view(), pa.binary_view()):  # each view begins with its length
        views = np.frombuffer(array.buffers()[1], np.int32)[4 * array.offset :: 4][: len(array)]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64) + 16
    if test.is_primitive(kind) or test.is_fixed_size_binary(kind) or test.is_decimal(kind):
        return np.full(len(array), kind.bit_width // 8 + 1, np.int64)
    if test.is_null(kind):
        return np.ones(len(array), np.int64)
    lengths = pc.binary_length(array).cast(pa.int64()).fill_null(0)
    return np.asarray(lengths, np.int64) + 8


def list_values(array: pa.Array) -> tuple[Int64Array, list[pa.Array]]:
    """Of lists how many values each row has, and all values; of maps, all keys and all values."""
    is_there = array.is_valid()
    here = array.filter(is_there)  # so that the children have nothing of others
    children = [here.keys, here.items] if pa.types.is_map(array.type) else [here.flatten()]
    lengths = np.zeros(len(array), np.int64)
    if pa.types.is_fixed_size_list(array.type):
        lengths[:] = array.type.list_size
    else:
        lengths[is_there.to_numpy(zero_copy_only=False)] = np.diff(here.offsets.to_numpy())
    return lengths * is_there.to_numpy(zero_copy_only=False), children


def _is_list(kind: pa.DataType) -> bool:
    test = pa.types
    is_one = test.is_list(kind) or test.is_large_list(kind) or test.is_fixed_size_list(kind)
    return bool(is_one or test.is_map(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries."""
    test = pa.types
    if test.is_dictionary(kind):
        # Many of a dictionary's texts, each once, may have more bytes than a column of strings holds.
        return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(
            kind.value_type, kind.value_type
        )
    if test.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if test.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_plain(key.type)), item.with_type(_plain(item.type)))
    if test.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if test.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
