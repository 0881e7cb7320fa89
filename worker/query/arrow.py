"""Keys and answers as Arrow: keys of any type that a column's holds without loss, and a row for each match.

An answer keeps apart what has the names of a table's columns: `key` and `row` are structs, whose fields no
other column's name can be mistaken for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from trust.arrow_streams import ArrowStreamError, count_rows
from worker.contract.lookups import KEYS
from worker.io.decimals import check_decimal
from worker.io.sorting import is_bytes
from worker.keys.key_set import MASK_BITS, KeyColumn, KeySet
from worker.keys.key_types import to_key_type
from worker.keys.read import key_batch
from worker.query.errors import InvalidArrowError, InvalidKeyError
from worker.query.places import Coverage, Places, matched_files

FACTS = "icestream"
"""The entry of the schema's metadata that tells, in JSON, what an answer in JSON has beside its results."""
KEY_BYTES = 64 * 1024**2
"""Of all keys together. In views, keys share their bytes, and a small stream may have many long ones."""
_MATCH_FIELDS = [
    pa.field("data_file", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("partition", pa.string()),
    pa.field("data_sequence_number", pa.int64()),
    pa.field("live", pa.bool_()),
    pa.field("deleted_by", pa.string()),
]


def read_stream(stream: bytes) -> pa.Table:
    """The keys that a stranger sent. Raises InvalidArrowError."""
    try:
        rows = count_rows(stream)
        if not 0 < rows <= KEYS:
            raise InvalidArrowError(f"It has {rows:,} keys; 1 to {KEYS:,} are answered at once.")
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except ArrowStreamError as error:
        raise InvalidArrowError(str(error)) from error
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidArrowError(f"It can't be read: {error}.") from error
    if table.num_rows != rows:
        raise InvalidArrowError(f"It has {table.num_rows:,} rows where it says {rows:,}.")
    return table


def keys_of_arrow(key_set: KeySet, keys: pa.Table) -> pa.RecordBatch:
    """keys: a column for each of the key, in any order, of types that the key's hold without loss.

    Raises InvalidKeyError.
    """
    if sorted(keys.column_names) != sorted(key_set.column_names):
        raise InvalidKeyError(
            f"The keys have the columns {', '.join(keys.column_names) or 'none'},"
            f" not {', '.join(key_set.column_names)}."
        )
    arrays, size = [], 0
    for column in key_set.columns:
        array = keys[column.name].combine_chunks()
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        size += _size(array)
        if size > KEY_BYTES:
            raise InvalidKeyError(f"The keys have more than {KEY_BYTES:,} bytes.")
        try:
            arrays.append(_as_key(array, column))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidKeyError(
                f"Column {column.name} is of type {column.iceberg_type}, and what came as {array.type} does"
                f" not fit: {error}."
            ) from error
    return key_batch(key_set, arrays)


def _size(array: pa.Array) -> int:
    if array.type in (pa.string_view(), pa.binary_view()):
        # Each view begins with its length.
        views = np.frombuffer(array.buffers()[1], np.int32)[4 * array.offset :: 4][: len(array)]
        return int(views[array.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    return int(array.nbytes)


def _as_key(array: pa.Array, column: KeyColumn) -> pa.Array:
    """Raises pa.ArrowException or ValueError."""
    if isinstance(column.iceberg_type, types.FloatType | types.DoubleType):
        raise ValueError("it is no key")
    return to_key_type(values_of_type(array, column.iceberg_type), column)


def values_of_type(array: pa.Array, kind: types.PrimitiveType) -> pa.Array:
    """Values as a column of that type has them in Arrow, if it holds them without loss; of a UUID its bytes.

    A float is the nearest one. Raises pa.ArrowException or ValueError.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    given, test = array.type, pa.types
    check_decimal(given)
    wanted = schema_to_pyarrow(kind, include_field_ids=False)
    if isinstance(wanted, pa.BaseExtensionType):
        wanted = wanted.storage_type
    match kind:
        case _ if test.is_null(given):
            return array.cast(wanted)
        case types.IntegerType() | types.LongType() if test.is_integer(given):
            return array.cast(wanted)
        case types.BooleanType() if test.is_boolean(given):
            return array
        case types.FloatType() if test.is_float64(given):
            return _nearest_floats(array)
        case types.FloatType() | types.DoubleType() if test.is_floating(given) or test.is_integer(given):
            return array.cast(wanted)
        case types.DecimalType() if test.is_decimal(given):
            return array.cast(wanted)
        case types.DecimalType(scale=scale) if test.is_integer(given):
            wide = array.cast(pa.decimal128(38, 0) if test.is_uint64(given) else pa.int64())
            return wide.cast(pa.decimal256(76, scale)).cast(wanted)
        case types.DateType() if test.is_date(given):
            return array.cast(wanted)
        case types.TimeType() if test.is_time(given):
            return array.cast(wanted)
        case types.TimestampType() | types.TimestampNanoType() if test.is_timestamp(given) and not given.tz:
            return array.cast(wanted)
        case types.TimestamptzType() | types.TimestamptzNanoType() if test.is_timestamp(given) and given.tz:
            return array.cast(wanted)
        case types.StringType() if _is_text(given):
            return array.cast(wanted)
        case types.UUIDType() if _is_text(given):
            return pa.array([None if one is None else UUID(one).bytes for one in array.to_pylist()], wanted)
        case types.UUIDType() | types.FixedType() | types.BinaryType() if _is_bytes(given):
            return array.cast(wanted)
    raise ValueError("it is another kind of value")


def _nearest_floats(array: pa.Array) -> pa.Array:
    floats = array.cast(pa.float32(), safe=False)
    if pc.any(pc.and_(pc.is_inf(floats), pc.is_finite(array))).as_py():
        raise ValueError("it is out of range")
    return floats


def _is_text(kind: pa.DataType) -> bool:
    return bool(kind in (pa.string(), pa.large_string(), pa.string_view()))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(kind) or kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def key_schema(key_set: KeySet) -> Schema:
    """The key's columns, by the names that they are asked by."""
    return Schema(
        *(
            types.NestedField(column.field_id, column.name, column.iceberg_type, required=False)
            for column in key_set.columns
        )
    )


def shown_keys(key_set: KeySet, asked: pa.RecordBatch) -> pa.Table:
    """Keys of `KeySet.schema` as columns of the types that the table's have."""
    schema = schema_to_pyarrow(key_schema(key_set), include_field_ids=False)
    arrays = []
    for at, (column, field) in enumerate(zip(key_set.columns, schema, strict=True)):
        mask, bit = divmod(at, MASK_BITS)
        masks = asked.column(len(key_set.columns) + mask if mask else 0).to_numpy()
        is_null = pa.array((masks >> bit & 1).astype(np.bool_))
        values = pc.if_else(is_null, pa.scalar(None, column.key_type), asked.column(1 + at))
        arrays.append(_shown(values, field.type))
    return pa.table(arrays, schema=schema)


def _shown(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, values.cast(kind.storage_type))
    if pa.types.is_temporal(kind):
        return values.view(kind)
    return values.cast(kind)


def answer_schema(key_set: KeySet, selected: Schema | None) -> pa.Schema:
    """key, key_index (of the question, from 0), then of the match, which are null for a key without any, and
    row."""
    key = pa.struct(list(schema_to_pyarrow(key_schema(key_set), include_field_ids=False)))
    fields = [pa.field("key", key), pa.field("key_index", pa.int32()), *_MATCH_FIELDS]
    if selected is not None:
        row = pa.struct([_optional(one) for one in schema_to_pyarrow(selected, include_field_ids=False)])
        fields.append(pa.field("row", row))
    return pa.schema(fields)


def _optional(field: pa.Field) -> pa.Field:
    """A key without rows has none of the columns, required or not."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(one) for one in kind])
    return field.with_type(kind).with_nullable(True)


def arrow_answer(
    coverage: Coverage,
    asked: pa.RecordBatch,
    places: Places,
    rows: pa.Table | None,
    selected: Schema | None,
) -> pa.Table:
    """A row for each match, and one for each key without any, in the order of keys: as `answer_schema`."""
    missing = np.setdiff1d(np.arange(asked.num_rows), places.keys)
    order = np.argsort(np.concatenate([places.keys, missing]), kind="stable")
    keys = np.concatenate([places.keys, missing])[order]
    # Where each row of the answer has its match.
    matches = pa.array(order, mask=order >= len(places.keys))
    columns = {
        "key": _struct(shown_keys(coverage.key_set, asked)).take(pa.array(keys)),
        "key_index": pa.array(keys.astype(np.int32)),
        **{name: array.take(matches) for name, array in _told(coverage, places).items()},
    }
    if rows is not None:
        columns["row"] = _struct(rows).take(matches)
    return pa.table(columns).cast(answer_schema(coverage.key_set, selected))


def repeated_key_bytes(asked: pa.RecordBatch, places: Places) -> int:
    """That an answer in Arrow has of keys, each of which stands beside each of its matches."""
    matches = np.bincount(places.keys, minlength=asked.num_rows)
    size = 0
    for column in asked.columns:
        if is_bytes(column.type):
            size += int(pc.binary_length(column).to_numpy().astype(np.int64) @ matches)
        else:
            size += column.type.bit_width // 8 * int(matches.sum())
    return size


def _told(coverage: Coverage, places: Places) -> dict[str, pa.Array]:
    """What an answer says of each match."""
    files, of_match = matched_files(coverage, places)
    of_files = {
        "data_file": pa.array([file.path for file, _ in files], pa.string()),
        "partition": pa.array([json.dumps(partition) for _, partition in files], pa.string()),
        "data_sequence_number": pa.array([file.data_sequence_number for file, _ in files], pa.int64()),
    }
    told = {name: array.take(pa.array(of_match)) for name, array in of_files.items()} | {
        "position": pa.array(places.positions, pa.int64()),
        "live": pa.array(places.is_live),
        "deleted_by": pa.array(places.deleted_by, pa.string()),
    }
    return {field.name: told[field.name] for field in _MATCH_FIELDS}


def _struct(table: pa.Table) -> pa.StructArray:
    columns = [one.combine_chunks() if one.num_chunks != 1 else one.chunk(0) for one in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def to_stream(answer: pa.Table, facts: Mapping[str, Any]) -> bytes:
    """An answer with its facts, as Arrow IPC."""
    schema = answer.schema.with_metadata({FACTS: json.dumps(facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(answer.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())
