"""What somebody sends to be written, in a request or in files: keys in memory, rows in a temporary file.

Invariant: all rows were checked against the table's schema before anything is looked up or written, and no
error says what a row holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.io.sorting import Int64Array, contiguous
from worker.keys.key_set import KeySet
from worker.keys.key_types import to_key_type
from worker.keys.read import key_batch
from worker.query.arrow import values_of_type
from worker.writes.rows import InvalidRowsError, keys_of_rows, rows_of_json
from worker.writes.sent_files import SentPart, TooLargeError, list_values, read_files

PART_ROWS = 131_072
_PART_BYTES = 32 * 1024**2
KEY_BYTES = 256 * 1024**2
"""Of all keys of a write."""
_NO_FIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
_TYPES = "Give each column of the file a type whose values the table's holds. Nothing was written."


@dataclass(frozen=True, slots=True)
class Sent:
    """keys: of each row, as `KeySet.schema`. rows: None for keys alone."""

    keys: pa.RecordBatch
    rows: KeptRows | None


class KeptRows:
    """Rows with the table's columns, by field id, in a file without a name: in parts, each as Parquet."""

    def __init__(self, memory_fraction: float = 1.0) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="icestream-rows-")  # noqa: SIM115
        self._part_rows = max(1, int(PART_ROWS * memory_fraction))
        self._part_bytes = int(_PART_BYTES * memory_fraction)
        self._parts: list[tuple[int, int, int]] = []  # offset, bytes, number of its first row
        self._pending: list[pa.Table] = []
        self._rows = 0

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._rows

    def add(self, rows: pa.Table) -> None:
        """Raises OSError when the disk is full."""
        self._pending.append(rows)
        self._rows += rows.num_rows
        pending = self._pending
        is_full = sum(one.num_rows for one in pending) >= self._part_rows
        if is_full or sum(one.nbytes for one in pending) >= self._part_bytes:
            self.end()

    def end(self) -> None:
        """After the last ones were added."""
        if not self._pending:
            return
        part = pa.concat_tables(self._pending)
        for start in range(0, part.num_rows, self._part_rows):
            rows = part.slice(start, self._part_rows)
            content = _parquet(rows)
            self._file.seek(0, 2)
            number = self._rows - part.num_rows + start
            self._parts.append((self._file.tell(), len(content), number))
            self._file.write(content)
        self._pending.clear()

    def column(self, name: str) -> pa.Array:
        """Of all rows."""
        parts = [pq.read_table(pa.BufferReader(part), columns=[name]) for _, part in self._contents()]
        return contiguous(pa.concat_tables(parts).column(name))

    def parts(self, chosen: Int64Array) -> Iterator[tuple[int, bytes]]:
        """Of the rows with these numbers, which ascend: how many there are in a part, and the part."""
        for start, content in self._contents():
            metadata = pq.read_metadata(pa.BufferReader(content))
            low, high = np.searchsorted(chosen, [start, start + metadata.num_rows])
            if low == high:
                continue
            if high - low < metadata.num_rows:
                rows = pq.read_table(pa.BufferReader(content))
                content = _parquet(rows.take(pa.array(chosen[low:high] - start)))
            yield int(high - low), content

    def _contents(self) -> Iterator[tuple[int, bytes]]:
        for offset, size_bytes, start in self._parts:
            self._file.seek(offset)
            yield start, self._file.read(size_bytes)


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return bytes(sink.getvalue())


def read_sent(job: Job, table: PinnedTable, key_set: KeySet) -> Sent:
    """What the job is to write. Raises InvalidRowsError, as `read_files`, or OSError (a retry can help)."""
    schema, assigned = table.metadata.schema(), job.assignment.job
    are_keys = assigned.names_keys
    kept = None if are_keys else KeptRows(job.memory_fraction)
    sent = job.assignment.rows or []
    if sent and kept is not None:
        kept.add(rows_of_json(schema, sent))
    keys = [keys_of_rows(key_set, sent, are_keys=are_keys)] if sent else []
    if files := assigned.write.files:
        columns = key_set.column_names if are_keys else [column.name for column in schema.fields]
        rows = key_bytes = 0
        for part in read_files(table.storage, files, table.metadata.location, columns):
            if kept is None:
                keys.append(_keys_of_part(key_set, part))
            else:
                fitting = rows_of_part(schema, part)
                kept.add(fitting)
                keys.append(_keys_of_table(key_set, fitting))
            rows += part.rows.num_rows
            key_bytes += keys[-1].nbytes
            if key_bytes > KEY_BYTES:
                raise TooLargeError(f"Their keys have more than {KEY_BYTES:,} bytes.")
            job.reporter.progress("read", rows, rows, "rows")
    if kept is not None:
        kept.end()
    if not sum(map(len, keys)):
        raise InvalidRowsError("There are none.", "Send at least one row.")
    return Sent(pa.concat_batches(keys), kept)


def rows_of_part(schema: Schema, part: SentPart) -> pa.Table:
    """The rows with the table's columns, by field id; a UUID as its 16 bytes. Raises InvalidRowsError."""
    fields, arrays = [], []
    for column, field in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        if isinstance(field.type, pa.BaseExtensionType):
            field = field.with_type(field.type.storage_type)
        given, kind = contiguous(part.rows.column(column.name)), column.field_type
        convert = (
            partial(values_of_type, kind=kind)
            if isinstance(kind, types.PrimitiveType)
            else partial(_nested, kind=kind, wanted=field.type)
        )
        array = _converted(given, convert, part, column.name, kind)
        numbers = np.arange(part.start, part.start + len(array))
        if missing := _missing(array, column, column.name, numbers):
            at, name = missing
            raise InvalidRowsError(f"{part.location}: row {at} has null in column {name}, which is required.")
        fields.append(field.with_type(array.type))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _keys_of_part(key_set: KeySet, part: SentPart) -> pa.RecordBatch:
    arrays = []
    for column in key_set.columns:
        given, kind = contiguous(part.rows.column(column.name)), column.iceberg_type
        values = _converted(given, partial(values_of_type, kind=kind), part, column.name, kind)
        arrays.append(to_key_type(values, column))
    return key_batch(key_set, arrays)


def _keys_of_table(key_set: KeySet, rows: pa.Table) -> pa.RecordBatch:
    arrays = []
    for column in key_set.columns:
        top, *below = column.name_path
        array = contiguous(rows.column(top))
        arrays.append(to_key_type(pc.struct_field(array, below) if below else array, column))
    return key_batch(key_set, arrays)


def _converted(
    array: pa.Array,
    convert: Callable[[pa.Array], pa.Array],
    part: SentPart,
    name: str,
    kind: types.IcebergType,
) -> pa.Array:
    """Raises InvalidRowsError, which names the first row that does not fit."""

    def fits(start: int, end: int) -> bool:
        try:
            convert(array.slice(start, end - start))
        except _NO_FIT:
            return False
        return True

    try:
        return convert(array)
    except _NO_FIT:
        pass
    if not fits(0, 0):
        told = f"{part.location}: column {name} is of type {kind}, which {array.type} does not fit."
        raise InvalidRowsError(told, _TYPES)
    low, high = 0, len(array)  # the first one that does not fit is in between
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(low, middle) else (low, middle)
    told = f"column {name} is of type {kind}, and what it has is no value of that."
    raise InvalidRowsError(f"{part.location}: row {part.start + low}: {told}", _TYPES)


def _nested(array: pa.Array, kind: types.IcebergType, wanted: pa.DataType) -> pa.Array:
    """Raises pa.ArrowException or ValueError."""
    if not _fits(array.type, kind):
        raise ValueError("it is another kind of value")
    return array.cast(_optional(wanted))


def _optional(kind: pa.DataType) -> pa.DataType:
    """The same with nulls anywhere: `_missing` tells better than a cast where there must be none."""
    test = pa.types
    if test.is_struct(kind):
        return pa.struct([field.with_type(_optional(field.type)).with_nullable(True) for field in kind])
    if test.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_optional(kind.value_type)).with_nullable(True))
    if test.is_map(kind):
        key, item = (one.with_type(_optional(one.type)) for one in (kind.key_field, kind.item_field))
        return pa.map_(key, item.with_nullable(True))
    return kind


def _fits(given: pa.DataType, kind: types.IcebergType) -> bool:
    """Whether Arrow's own cast of what is nested takes values as they are."""
    test = pa.types
    match kind:
        case types.StructType(fields=fields):
            names = [field.name for field in fields]
            is_same = test.is_struct(given) and [field.name for field in given] == names
            return is_same and all(_fits(given.field(n).type, f.field_type) for n, f in enumerate(fields))
        case types.ListType():
            is_list = test.is_list(given) or test.is_large_list(given) or test.is_fixed_size_list(given)
            return is_list and _fits(given.value_type, kind.element_type)
        case types.MapType():
            return (
                test.is_map(given)
                and _fits(given.key_type, kind.key_type)
                and _fits(given.item_type, kind.value_type)
            )
        case types.FloatType():
            return bool(test.is_float32(given) or test.is_null(given))
    assert isinstance(kind, types.PrimitiveType)
    try:
        values_of_type(pa.array([], given), kind)
    except _NO_FIT:
        return False
    return True


def _missing(
    array: pa.Array, field: types.NestedField, name: str, numbers: Int64Array
) -> tuple[int, str] | None:
    """The number of the first row with null where a value is required, and where that is."""
    is_there = array.is_valid().to_numpy(zero_copy_only=False)
    if field.required and not is_there.all():
        return int(numbers[np.argmin(is_there)]), name
    kind = field.field_type
    if isinstance(kind, types.PrimitiveType):
        return None
    array, numbers = array.filter(pa.array(is_there)), numbers[is_there]
    inner: Sequence[tuple[pa.Array, types.NestedField]]
    if isinstance(kind, types.StructType):
        inner = [(pc.struct_field(array, [at]), one) for at, one in enumerate(kind.fields)]
    else:
        assert isinstance(kind, types.ListType | types.MapType)
        lengths, children = list_values(array)
        numbers = np.repeat(numbers, lengths)
        of_each = (
            [kind.element_field] if isinstance(kind, types.ListType) else [kind.key_field, kind.value_field]
        )
        inner = list(zip(children, of_each, strict=True))
    found = (_missing(values, one, f"{name}.{one.name}", numbers) for values, one in inner)
    return next((one for one in found if one is not None), None)
