"""Reads key columns of data files and equality delete files as typed Arrow arrays, in row order.

Invariant: a key column is found by field id, and its values never depend on any delete. A column that a
file lacks takes its projected value (Iceberg spec, "Column Projection").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from datetime import time as time_of_day
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_json
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

from worker.file_formats import BATCH_ROWS, FORMATS, field_id_of, open_columns
from worker.plan import DataFile, DeleteFile
from worker.storage import Storage

NULL_MASK = "null_mask"
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
        """null_mask: int32 (bit i set: column i is null and holds a placeholder), then the key columns."""
        return pa.schema(
            [pa.field(NULL_MASK, pa.int32(), nullable=False)]
            + [pa.field(c.column_name, c.key_type, nullable=False) for c in self.columns]
        )

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
        with self._corrupt_unless_unreadable(file):
            yield from self._read_columns(file, constants, required=required)

    def _read_columns(
        self, file: DataFile | DeleteFile, constants: Mapping[int, Any], *, required: bool
    ) -> Iterator[pa.RecordBatch]:
        with open_columns(self.storage, file.path, file.file_format) as source:
            leaves = _leaf_paths(source.schema, self.name_mapping)
            paths = {c.field_id: leaves.get(c.field_id) for c in self.key_set.columns}
            missing = [c for c in self.key_set.columns if paths[c.field_id] is None]
            if required and missing:
                raise KeyColumnError(
                    "missing_equality_column",
                    f"{file.path} lacks its equality column {missing[0].name} (field {missing[0].field_id})",
                    "Have the writer of the deletes fix the file; nothing can be matched without the column.",
                )
            found = [path for path in paths.values() if path is not None]
            if file.file_format == "orc":
                _refuse_timestamps(file, source.schema, found)
            if source.rows is not None:
                _check_rows(file, source.rows)
            if not found:
                for start in range(0, file.record_count, BATCH_ROWS):
                    yield self._to_key_batch({}, min(BATCH_ROWS, file.record_count - start), constants)
                return
            rows = 0
            for batch in source.batches(found):
                leaf = {i: _leaf(batch, path) for i, path in paths.items() if path is not None}
                yield self._to_key_batch(leaf, batch.num_rows, constants)
                rows += batch.num_rows
            _check_rows(file, rows)

    @contextmanager
    def _corrupt_unless_unreadable(self, file: DataFile | DeleteFile) -> Iterator[None]:
        """Says of a damaged file what is wrong; the store's own errors are worth a retry and go through."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError, EOFError) as error:
            if self.storage.is_at_fault(error, file.path):
                raise
            raise KeyColumnError(
                "corrupt_file",
                f"{file.path} is not a readable {file.file_format.upper()} file: {error}",
                "Restore the file, or remove it from the table with its writer.",
            ) from error

    def _to_key_batch(
        self, leaves: Mapping[int, pa.Array], rows: int, constants: Mapping[int, Any]
    ) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        null_mask: pa.Array = pa.repeat(pa.scalar(0, pa.int32()), rows)
        for bit, column in enumerate(self.key_set.columns):
            leaf = leaves.get(column.field_id)
            array = _constant(column, constants, rows) if leaf is None else to_key_type(leaf, column)
            if array.null_count:
                null_bit = pc.if_else(
                    array.is_null(), pa.scalar(1 << bit, pa.int32()), pa.scalar(0, pa.int32())
                )
                null_mask = pc.bit_wise_or(null_mask, null_bit)
                array = array.fill_null(placeholder(column.key_type))
            arrays.append(array)
        return pa.RecordBatch.from_arrays([null_mask, *arrays], schema=self.key_set.schema)


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
        default = field.initial_default
        column = KeyColumn(
            field_id,
            schema.find_column_name(field_id) or field.name,
            _field_id_path(schema.as_struct(), field_id),
            field.field_type,
            key_type,
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


def _field_id_path(struct: StructType, field_id: int) -> tuple[int, ...]:
    for field in struct.fields:
        if field.field_id == field_id:
            return (field_id,)
        if isinstance(field.field_type, StructType):
            below = _field_id_path(field.field_type, field_id)
            if below:
                return (field.field_id, *below)
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


def _constant(column: KeyColumn, constants: Mapping[int, Any], rows: int) -> pa.Array:
    """The projected value of a column that the file lacks: identity partition value, default, or null."""
    partition_value = constants.get(column.field_id)
    value = column.initial_default
    if partition_value is not None:
        value = _key_value(from_json(column.iceberg_type, partition_value), column)
    if value is None:
        return pa.nulls(rows, column.key_type)
    return pa.repeat(pa.scalar(value, column.key_type), rows)


def _key_value(value: Any, column: KeyColumn) -> Any:
    """A Python value of the column's Iceberg type, as the key's type holds it."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, date | datetime | time_of_day):
        return to_key_type(pa.array([value]), column)[0].as_py()
    return value


def _leaf_paths(schema: pa.Schema, name_mapping: str | None) -> dict[int, tuple[str, ...]]:
    """Field id -> names from the top-level column down, for every leaf outside lists and maps.

    A file that carries no ids takes them from the name mapping, and without one by position, as Iceberg
    does for files imported before ids existed.
    """
    paths: dict[int, tuple[str, ...]] = {}

    def visit(field: pa.Field, parents: tuple[str, ...]) -> bool:
        path = (*parents, field.name)
        field_id = field_id_of(field)
        if field_id is not None:
            paths[field_id] = path
        below = [visit(child, path) for child in field.type] if pa.types.is_struct(field.type) else []
        return field_id is not None or any(below)

    has_ids = sum(visit(field, ()) for field in schema) > 0
    if has_ids:
        return paths
    if name_mapping is None:
        return {position: (name,) for position, name in enumerate(schema.names, start=1)}
    mapping = NameMapping.model_validate_json(name_mapping)

    def visit_mapped(
        fields: list[MappedField], columns: pa.Schema | pa.StructType, parents: tuple[str, ...]
    ) -> None:
        for column in columns:
            mapped = next((m for m in fields if column.name in m.names), None)
            if mapped is None:
                continue
            if mapped.field_id is not None:
                paths[mapped.field_id] = (*parents, column.name)
            if pa.types.is_struct(column.type):
                visit_mapped(mapped.fields, column.type, (*parents, column.name))

    visit_mapped(list(mapping), schema, ())
    return paths


def _leaf(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """A leaf column; a null parent struct makes its leaf null."""
    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array
