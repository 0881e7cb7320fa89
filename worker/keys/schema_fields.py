"""The fields of a key, found by id in the schemas of a table: the current one, or else a former one."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from worker.keys.key_set import KeyColumn, KeyColumnError, KeySet
from worker.keys.key_types import to_key_value


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
    known = set(schema.column_names)
    if missing := [name for name in columns if name not in known]:
        raise KeyColumnError(
            "unknown_key_column",
            f"the table has no column {', '.join(map(repr, missing))}",
            "Name key columns as the table's current schema does.",
        )
    return tuple(sorted(schema.find_field(name).field_id for name in columns))


def _key_column(field_id: int, schemas: Sequence[Schema]) -> KeyColumn:
    for schema in schemas:
        try:
            field = schema.find_field(field_id)
        except ValueError:
            continue
        key_type = _key_type(field, schema)
        assert isinstance(field.field_type, types.PrimitiveType)
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
        return column if default is None else replace(column, initial_default=to_key_value(default, column))
    raise KeyColumnError(
        "unresolved_equality_field",
        f"equality field {field_id} is in no schema of the table",
        "Restore the schema that the deletes were written with, or remove them with their writer.",
    )


def _key_type(field: types.NestedField, schema: Schema) -> pa.DataType:
    name = schema.find_column_name(field.field_id) or field.name
    match field.field_type:
        case types.IntegerType() | types.LongType():
            return pa.int64()
        case types.DateType():
            return pa.int32()
        case (
            types.TimeType()
            | types.TimestampType()
            | types.TimestamptzType()
            | types.TimestampNanoType()
            | types.TimestamptzNanoType()
        ):
            return pa.int64()
        case types.DecimalType(scale=scale):
            return pa.decimal128(38, scale)
        case types.StringType():
            return pa.string()
        case types.BinaryType() | types.FixedType() | types.UUIDType():
            return pa.binary()
        case types.BooleanType():
            return pa.bool_()
        case types.FloatType() | types.DoubleType():
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


def _fields_to(struct: types.StructType, field_id: int) -> tuple[types.NestedField, ...]:
    """From the top-level field down to the one with the id; none if it is not there."""
    for field in struct.fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, types.StructType):
            below = _fields_to(field.field_type, field_id)
            if below:
                return (field, *below)
        elif isinstance(field.field_type, types.ListType | types.MapType) and _contains(
            field.field_type, field_id
        ):
            raise KeyColumnError(
                "unsupported_key_type",
                f"equality field {field_id} lies inside the list or map {field.name}",
                "Give the writer a key outside lists and maps.",
            )
    return ()


def _contains(field_type: types.IcebergType, field_id: int) -> bool:
    match field_type:
        case types.StructType(fields=fields):
            return any(f.field_id == field_id or _contains(f.field_type, field_id) for f in fields)
        case types.ListType(element_id=element_id, element_type=element):
            return element_id == field_id or _contains(element, field_id)
        case types.MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value):
            return field_id in (key_id, value_id) or _contains(key, field_id) or _contains(value, field_id)
        case _:
            return False
