"""Reads key columns of data files and equality delete files as typed Arrow arrays, in row order.

Invariant: a key column is found by field id, and its values never depend on any delete. A column that a
file lacks takes its projected value (Iceberg spec, "Column Projection").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from worker.io.file_formats import BATCH_ROWS, FORMATS, Path, field_id_of, open_columns
from worker.io.storage import Storage
from worker.table.files import DataFile, DeleteFile

NULL_MASK = "null_mask"
_MASK_BITS = 31
NANOSECOND_TYPES = TimestampNanoType | TimestamptzNanoType


class KeyColumnError(Exception):
    """A key can't be resolved, typed or read: the equality deletes that need it are refused.

    `code` names the reason for programs, the message says it in words, `remedy` what to do. A retry can't
    help.
    """

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One equality field. `field_id_path` leads from the top-level column down to the leaf.

    Values are kept in `key_type`, which widening (int -> long, decimal precision) does not change;
    `initial_default` is in that representation too.
    """

    field_id: int
    name: str  # dotted, as in the schema it was found in
    field_id_path: tuple[int, ...]
    iceberg_type: PrimitiveType
    key_type: pa.DataType
    initial_default: Any = None
    name_path: tuple[str, ...] = ()  # as `field_id_path`, in the schema it was found in

    @property
    def column_name(self) -> str:
        """The column's name in the index: by id, so that renaming the Iceberg column changes nothing."""
        return f"key_{self.field_id}"


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of equality field ids and how to read them; columns are in ascending field id."""

    columns: tuple[KeyColumn, ...]

    @property
    def equality_field_ids(self) -> tuple[int, ...]:
        return tuple(column.field_id for column in self.columns)

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        """null_mask: int32 (bit i set: column i is null and holds a placeholder), then the key columns.

        After more than 31 of them come further masks, of 31 columns each, which are matched like keys.
        """
        masks = [NULL_MASK, *(f"{NULL_MASK}_{at}" for at in range(_MASK_BITS, len(self.columns), _MASK_BITS))]
        first, *further = [pa.field(name, pa.int32(), nullable=False) for name in masks]
        keys = [pa.field(c.column_name, c.key_type, nullable=False) for c in self.columns]
        return pa.schema([first, *keys, *further])

    def is_null(self, at: int, values: Sequence[Any]) -> bool:
        """Whether the column in place `at` is null in a row of `schema`."""
        mask, bit = divmod(at, _MASK_BITS)
        return bool(values[len(self.columns) + mask if mask else 0] >> bit & 1)

    def __str__(self) -> str:
        return "(" + ", ".join(self.column_names) + ")"


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the key columns of one key set from files of one table. Pickles, for use in tasks."""

    storage: Storage
    key_set: KeySet
    name_mapping: str | None  # JSON, for files without field ids
    identity_partitions: Mapping[int, Mapping[int, int]]  # spec id -> source field id -> index in the tuple

    def read_data_file(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Every row's key, in row order, whether deleted or not: batches of `key_set.schema`.

        Raises KeyColumnError, FileNotFoundError, OSError (a retry can help).
        """
        partition = json.loads(file.partition.values)
        constants = {
            field_id: partition[index]
            for field_id, index in self.identity_partitions.get(file.partition.spec_id, {}).items()
        }
        yield from self._read(file, constants, required=False)

    def read_delete_file(self, file: DeleteFile) -> Iterator[pa.RecordBatch]:
        """Every delete key of an equality delete file; further columns of the file are ignored.

        Raises KeyColumnError also if the file lacks one of its equality columns.
        """
        yield from self._read(file, {}, required=True)

    def _read(
        self, file: DataFile | DeleteFile, constants: Mapping[int, Any], *, required: bool
    ) -> Iterator[pa.RecordBatch]:
        if file.encrypted:
            raise KeyColumnError(
                "encrypted_file",
                f"{file.path} is encrypted and no keys are at hand",
                "Rewrite the files unencrypted, or convert with a writer that holds the table's keys.",
            )
        if file.file_format not in FORMATS:
            raise KeyColumnError(
                "unsupported_file_format",
                f"{file.path} is {file.file_format.upper()}; key columns are read from Parquet, ORC and Avro",
                "Rewrite the file as Parquet (rewrite_data_files with write.format.default=parquet).",
            )
        try:
            yield from self._read_columns(file, constants, required=required)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError, EOFError) as error:

            def read_again() -> None:
                for _ in self._read_columns(file, constants, required=required):
                    pass

            if self.storage.is_at_fault(error, [file.path], read_again):
                raise
            raise KeyColumnError(
                "corrupt_file",
                f"{file.path} is not a readable {file.file_format.upper()} file: {error}",
                "Restore the file, or remove it from the table with its writer.",
            ) from error

    def _read_columns(
        self, file: DataFile | DeleteFile, constants: Mapping[int, Any], *, required: bool
    ) -> Iterator[pa.RecordBatch]:
        with open_columns(self.storage, file.path, file.file_format, file.file_size_bytes) as source:
            paths = self._paths(source.schema, file.file_format, constants)
            leaves = {
                c.field_id: paths[c.field_id_path] for c in self.key_set.columns if c.field_id_path in paths
            }
            missing = [c for c in self.key_set.columns if c.field_id not in leaves]
            if required and missing:
                raise KeyColumnError(
                    "missing_equality_column",
                    f"{file.path} lacks its equality column {missing[0].name} (field {missing[0].field_id})",
                    "Have the writer of the deletes fix the file; nothing can be matched without the column.",
                )
            projected = {c.field_id: _projected(c, constants, paths) for c in missing}
            parents = {i: one.parent for i, one in projected.items() if one.parent is not None}
            found = [*leaves.values(), *parents.values()]
            if file.file_format == "orc":
                _refuse_timestamps(file, source.schema, found)
            if source.rows is not None:
                _check_rows(file, source.rows)
            if not found:
                for start in range(0, file.record_count, BATCH_ROWS):
                    yield self._to_key_batch({}, projected, min(BATCH_ROWS, file.record_count - start))
                return
            rows = 0
            for batch in source.batches(found):
                arrays = {i: _column(batch, path) for i, path in (leaves | parents).items()}
                yield self._to_key_batch(arrays, projected, batch.num_rows)
                rows += batch.num_rows
            _check_rows(file, rows)

    def _paths(
        self, schema: pa.Schema, file_format: str, constants: Mapping[int, Any]
    ) -> dict[tuple[int, ...], Path]:
        """Path of field ids -> path of names, for the fields that the file has.

        A file without ids gives a partition's columns no value of their own (spec, "Column Projection"); its
        others are told by the table's name mapping and without one as Iceberg does: in Parquet by position,
        in ORC and Avro by name.
        """
        paths = _paths_by_id(schema)
        if paths:
            return paths
        if self.name_mapping is not None:
            paths = _mapped_paths(list(NameMapping.model_validate_json(self.name_mapping)), schema)
        elif file_format == "parquet":
            paths = {(position,): (name,) for position, name in enumerate(schema.names, start=1)}
        else:
            paths = _named_paths(self.key_set.columns, schema)
        return {ids: path for ids, path in paths.items() if ids[-1] not in constants}

    def _to_key_batch(
        self, columns: Mapping[int, pa.Array], projected: Mapping[int, _Projected], rows: int
    ) -> pa.RecordBatch:
        """columns: by field id, those of the file, or the parent structs of those that it lacks."""
        arrays: list[pa.Array] = []
        schema = self.key_set.schema
        masks = [pa.repeat(pa.scalar(0, pa.int32()), rows)] * (len(schema) - len(self.key_set.columns))
        for at, column in enumerate(self.key_set.columns):
            read = columns.get(column.field_id)
            if column.field_id in projected:
                array = _repeated(column, projected[column.field_id].value, read, rows)
            else:
                array = to_key_type(read, column)
            if array.null_count:
                mask, bit = divmod(at, _MASK_BITS)
                null_bit = pc.if_else(
                    array.is_null(), pa.scalar(1 << bit, pa.int32()), pa.scalar(0, pa.int32())
                )
                masks[mask] = pc.bit_wise_or(masks[mask], null_bit)
                array = array.fill_null(placeholder(column.key_type))
            arrays.append(array)
        return pa.RecordBatch.from_arrays([masks[0], *arrays, *masks[1:]], schema=schema)


def _refuse_timestamps(
    file: DataFile | DeleteFile, schema: pa.Schema, paths: Sequence[Sequence[str]]
) -> None:
    """Arrow's ORC reader turns timestamps into nanoseconds that wrap around: two may look the same."""
    for path in paths:
        leaf: pa.DataType = pa.struct(list(schema))
        for name in path:
            leaf = leaf.field(name).type
        if pa.types.is_timestamp(leaf):
            raise KeyColumnError(
                "unsupported_orc_timestamp",
                f"{file.path} is an ORC file whose key column {'.'.join(path)} is a timestamp, and those"
                " outside the years 1678 to 2261 can't be told apart there",
                "Rewrite the file as Parquet (rewrite_data_files with write.format.default=parquet).",
            )


def _check_rows(file: DataFile | DeleteFile, rows: int) -> None:
    if rows != file.record_count:
        raise KeyColumnError(
            "corrupt_file",
            f"{file.path} holds {rows} rows, but its manifest says {file.record_count}",
            "Restore the file that the manifest describes.",
        )


def key_reader(metadata: TableMetadata, storage: Storage, key_set: KeySet) -> KeyReader:
    """The reader of a key set for the table that `metadata` describes."""
    mapping = metadata.name_mapping()
    return KeyReader(
        storage,
        key_set,
        mapping.model_dump_json() if mapping is not None else None,
        {spec.spec_id: _identity_positions(spec) for spec in metadata.partition_specs},
    )


def resolve_key_set(metadata: TableMetadata, equality_field_ids: Sequence[int]) -> KeySet:
    """The columns of a set of equality field ids, found in the current schema or, if dropped, a former one.

    Raises KeyColumnError: unresolved id, float or double, a type that is no key.
    """
    current = next(s for s in metadata.schemas if s.schema_id == metadata.current_schema_id)
    former = sorted((s for s in metadata.schemas if s is not current), key=lambda s: -s.schema_id)
    return KeySet(tuple(_key_column(i, [current, *former]) for i in sorted(equality_field_ids)))


def column_names_of(metadata: TableMetadata, field_ids: Sequence[int]) -> list[str]:
    """What people call these fields, also where they can't be a key: by their latest schema's names."""
    latest_first = sorted(
        metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id)
    )[::-1]
    return [
        next((name for s in latest_first if (name := s.find_column_name(field_id))), f"field {field_id}")
        for field_id in sorted(field_ids)
    ]


def field_ids_of(schema: Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """The sorted field ids of columns named by dotted path. Raises KeyColumnError for an unknown name."""
    try:
        return tuple(sorted(schema.find_field(name).field_id for name in columns))
    except ValueError as error:
        raise KeyColumnError(
            "unknown_key_column",
            f"the table has no column {', '.join(map(repr, columns))}: {error}",
            "Declare key columns by their names in the table's current schema.",
        ) from error


def _key_column(field_id: int, schemas: Sequence[Schema]) -> KeyColumn:
    for schema in schemas:
        try:
            field = schema.find_field(field_id)
        except ValueError:
            continue
        key_type = _key_type(field, schema)
        assert isinstance(field.field_type, PrimitiveType)
        fields = _fields_to(schema.as_struct(), field_id)
        default = field.initial_default
        column = KeyColumn(
            field_id,
            schema.find_column_name(field_id) or field.name,
            tuple(above.field_id for above in fields),
            field.field_type,
            key_type,
            name_path=tuple(above.name for above in fields),
        )
        return column if default is None else replace(column, initial_default=_key_value(default, column))
    raise KeyColumnError(
        "unresolved_equality_field",
        f"equality field {field_id} is in no schema of the table",
        "Restore the schema that the deletes were written with, or remove them with their writer.",
    )


def _key_type(field: NestedField, schema: Schema) -> pa.DataType:
    name = schema.find_column_name(field.field_id) or field.name
    match field.field_type:
        case IntegerType() | LongType():
            return pa.int64()
        case DateType():
            return pa.int32()
        case TimeType() | TimestampType() | TimestamptzType() | TimestampNanoType() | TimestamptzNanoType():
            return pa.int64()
        case DecimalType(scale=scale):
            return pa.decimal128(38, scale)
        case StringType():
            return pa.string()
        case BinaryType() | FixedType() | UUIDType():
            return pa.binary()
        case BooleanType():
            return pa.bool_()
        case FloatType() | DoubleType():
            raise KeyColumnError(
                "float_key",
                f"column {name} is a {field.field_type}; the Iceberg spec forbids floating-point keys,"
                " and engines disagree on NaN and -0.0",
                "Give the writer a key without floating-point columns.",
            )
        case _:
            raise KeyColumnError(
                "unsupported_key_type",
                f"column {name} of type {field.field_type} can't be a key",
                "Give the writer a key of primitive columns.",
            )


def _fields_to(struct: StructType, field_id: int) -> tuple[NestedField, ...]:
    """From the top-level field down to the one with the id; none if it is not there."""
    for field in struct.fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, StructType):
            below = _fields_to(field.field_type, field_id)
            if below:
                return (field, *below)
        elif isinstance(field.field_type, ListType | MapType) and _contains(field.field_type, field_id):
            raise KeyColumnError(
                "unsupported_key_type",
                f"equality field {field_id} lies inside the list or map {field.name}",
                "Give the writer a key outside lists and maps.",
            )
    return ()


def _contains(field_type: IcebergType, field_id: int) -> bool:
    match field_type:
        case StructType(fields=fields):
            return any(f.field_id == field_id or _contains(f.field_type, field_id) for f in fields)
        case ListType(element_id=element_id, element_type=element):
            return element_id == field_id or _contains(element, field_id)
        case MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value):
            return field_id in (key_id, value_id) or _contains(key, field_id) or _contains(value, field_id)
        case _:
            return False


def _identity_positions(spec: PartitionSpec) -> dict[int, int]:
    return {
        field.source_id: index
        for index, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }


def to_key_type(array: pa.Array, column: KeyColumn) -> pa.Array:
    """Values of a file's column in the key's representation.

    Raises KeyColumnError when the file's type can't be widened to the key's without loss.
    """
    try:
        return _cast(array, column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise KeyColumnError(
            "unreadable_key_type",
            f"column {column.name} ({column.iceberg_type}) is stored as {array.type}: {error}",
            "Rewrite the file with a writer that follows the table's schema.",
        ) from error


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_fixed_size_binary(kind)
    return bool(text or types.is_binary(kind) or types.is_large_binary(kind))


# Types of one kind differ in width only. Arrow would turn text or fractions into numbers as well.
_KINDS = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, _is_text_or_bytes)


def _cast(array: pa.Array, column: KeyColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    source = array.type
    if source == column.key_type:
        return array
    if pa.types.is_timestamp(source) or pa.types.is_time(source):
        unit = "ns" if isinstance(column.iceberg_type, NANOSECOND_TYPES) else "us"
        if pa.types.is_timestamp(source):
            return array.cast(pa.timestamp(unit)).view(pa.int64())
        return array.cast(pa.time64(unit)).view(pa.int64())
    if pa.types.is_date32(source):
        days: pa.Array = array.view(pa.int32())
        # A date column may have been promoted to a timestamp (format version 3).
        return days if column.key_type == pa.int32() else _days_to_ticks(days, column)
    if not pa.types.is_null(source) and not any(
        is_kind(source) and is_kind(column.key_type) for is_kind in _KINDS
    ):
        raise pa.ArrowInvalid("it is no type that the column ever had")
    return array.cast(column.key_type)


def _days_to_ticks(days: pa.Array, column: KeyColumn) -> pa.Array:
    ticks = 86_400_000_000_000 if isinstance(column.iceberg_type, NANOSECOND_TYPES) else 86_400_000_000
    return pc.multiply_checked(days.cast(pa.int64()), ticks)


def placeholder(key_type: pa.DataType) -> pa.Scalar:
    """The value that stands in a null key's column; the null mask tells it from the same real value."""
    if pa.types.is_string(key_type):
        return pa.scalar("", key_type)
    if pa.types.is_binary(key_type):
        return pa.scalar(b"", key_type)
    if pa.types.is_boolean(key_type):
        return pa.scalar(False, key_type)
    return pa.scalar(0, pa.int32()).cast(key_type)


@dataclass(frozen=True, slots=True)
class _Projected:
    """The value of a key column that a file lacks; null wherever the parent struct is null."""

    value: Any
    parent: Path | None = None


def _projected(
    column: KeyColumn, constants: Mapping[int, Any], paths: Mapping[tuple[int, ...], Path]
) -> _Projected:
    """Identity partition value (a null one too), default, or null; null if the file lacks the parent."""
    if column.field_id in constants:
        value = _from_single_value(constants[column.field_id], column)
    else:
        value = column.initial_default
    *above, _ = column.field_id_path
    if value is None or not above:
        return _Projected(value)
    parent = paths.get(tuple(above))
    return _Projected(None if parent is None else value, parent)


def _repeated(column: KeyColumn, value: Any, parent: pa.Array | None, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, column.key_type)
    values = pa.repeat(pa.scalar(value, column.key_type), rows)
    return values if parent is None else pc.if_else(parent.is_valid(), values, None)


def _from_single_value(value: Any, column: KeyColumn) -> Any:
    """A value of a partition tuple in JSON (spec, Appendix D), as the key's type holds it."""
    if value is None:
        return None
    match column.iceberg_type:
        case DateType():
            return int(np.datetime64(value, "D").astype(np.int64))
        case TimestampType() | TimestamptzType():
            return int(np.datetime64(value.removesuffix("+00:00"), "us").astype(np.int64))
        case TimestampNanoType() | TimestamptzNanoType():
            return int(np.datetime64(value.removesuffix("+00:00"), "ns").astype(np.int64))
        case TimeType():
            return _key_value(time_of_day.fromisoformat(value), column)
        case DecimalType():
            return Decimal(value)
        case UUIDType():
            return UUID(value).bytes
        case FixedType() | BinaryType():
            return bytes.fromhex(value)
        case _:
            return value


def _key_value(value: Any, column: KeyColumn) -> Any:
    """A Python value of the column's Iceberg type, as the key's type holds it."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, date | datetime | time_of_day):
        return to_key_type(pa.array([value]), column)[0].as_py()
    return value


def _paths_by_id(schema: pa.Schema) -> dict[tuple[int, ...], Path]:
    """The fields outside lists and maps that carry ids; empty if the file carries none."""
    paths: dict[tuple[int, ...], Path] = {}

    def visit(fields: Iterable[pa.Field], ids: tuple[int, ...], names: Path) -> None:
        for field in fields:
            field_id = field_id_of(field)
            if field_id is None:
                continue
            paths[(*ids, field_id)] = (*names, field.name)
            if pa.types.is_struct(field.type):
                visit(field.type, (*ids, field_id), (*names, field.name))

    visit(schema, (), ())
    return paths


def _mapped_paths(
    mapping: Sequence[MappedField], fields: Iterable[pa.Field], ids: tuple[int, ...] = (), names: Path = ()
) -> dict[tuple[int, ...], Path]:
    """The same for a file without ids, by the table's name mapping."""
    paths: dict[tuple[int, ...], Path] = {}
    for field in fields:
        mapped = next((one for one in mapping if field.name in one.names), None)
        if mapped is None or mapped.field_id is None:
            continue
        below = (*ids, mapped.field_id), (*names, field.name)
        paths[below[0]] = below[1]
        if pa.types.is_struct(field.type):
            paths |= _mapped_paths(mapped.fields, field.type, *below)
    return paths


def _named_paths(columns: Iterable[KeyColumn], schema: pa.Schema) -> dict[tuple[int, ...], Path]:
    """The same by the names of the columns in the table's schema."""
    paths: dict[tuple[int, ...], Path] = {}
    for column in columns:
        fields: pa.DataType = pa.struct(list(schema))
        for depth, name in enumerate(column.name_path, start=1):
            if not pa.types.is_struct(fields) or fields.get_field_index(name) < 0:
                break
            paths[column.field_id_path[:depth]] = column.name_path[:depth]
            fields = fields.field(name).type
    return paths


def _column(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """A column of the file; a null parent struct makes its leaf null."""
    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array
