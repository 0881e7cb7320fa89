"""Rows and keys that somebody sends to be written, checked against the table's schema first of all.

Invariant: no error says what a row holds, since errors of jobs are kept and shown; rows are told by their
numbers, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from telemetry.plurals import counted
from worker.io.sorting import Int64Array
from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.read import key_batch
from worker.lookup.index_lookup import ANY_AGE, DeleteKeys
from worker.process.errors import JobError
from worker.query.json_keys import NOT_A_VALUE, single_value

Row = Mapping[str, Any]
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_NAMED_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class InvalidRowsError(JobError):
    code = "invalid_rows"
    title = "The rows do not fit the table"
    remedy = (
        "Give each row a value for each column of the table, as Iceberg writes single values in JSON, or"
        " null. Nothing was written."
    )


class DuplicateKeysError(JobError):
    code = "duplicate_keys"
    title = "Several of the rows have the same key"
    remedy = "Send one row for each key, or say that the last one counts (duplicates: last)."


def rows_of_json(schema: Schema, rows: Sequence[Row]) -> pa.Table:
    """The rows with the table's columns, by field id; a UUID as its 16 bytes. Raises InvalidRowsError."""
    columns = []
    for column, field in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
        if isinstance(field.type, pa.BaseExtensionType):
            field = field.with_type(field.type.storage_type)
        values = [_of_column(column, row, at) for at, row in enumerate(rows)]
        try:
            columns.append((field, pa.array(values, field.type)))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            raise InvalidRowsError(
                f"Column {column.name} of type {column.field_type} can't be written by key.",
                "Write rows of this table with its engine.",
            ) from None
    known = {column.name for column in schema.fields}
    for at, row in enumerate(rows):
        if unknown := row.keys() - known:  # whose names may be of what the row holds
            raise InvalidRowsError(
                f"Row {at} has {counted(len(unknown), 'value')} for what is no column of the table."
            )
    return pa.Table.from_arrays([array for _, array in columns], schema=pa.schema([f for f, _ in columns]))


def keys_of_rows(key_set: KeySet, rows: Sequence[Row], *, are_keys: bool) -> pa.RecordBatch:
    """The key of each row, as `KeySet.schema`.

    are_keys: the rows have a value for each key column by its dotted name, and nothing else.
    Raises InvalidRowsError.
    """
    if are_keys:
        names = set(key_set.column_names)
        for at, row in enumerate(rows):
            if row.keys() != names:
                told = ", ".join(sorted(names - row.keys())) or "more than the key"
                raise InvalidRowsError(
                    f"Row {at} lacks or has too much of the key ({', '.join(key_set.column_names)}): {told}.",
                    "Give each row a value for each column of the key, and no other. Nothing was deleted.",
                )
    arrays = []
    for column in key_set.columns:
        path = (column.name,) if are_keys else column.name_path
        values = [_key_value(column, _at(row, path), at) for at, row in enumerate(rows)]
        arrays.append(pa.array(values, column.key_type))
    return key_batch(key_set, arrays)


def last_of_each_key(keys: pa.RecordBatch) -> Int64Array:
    """The numbers of the rows that are the last with their key, ascending."""
    return np.sort(DeleteKeys.numbered(keys).sequence_numbers - ANY_AGE)


def _at(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _key_value(column: KeyColumn, given: Any, at: int) -> Any:
    return None if given is None else _single(given, column.iceberg_type, column.name, at)


def _of_column(column: types.NestedField, row: Row, at: int) -> Any:
    if column.name not in row:
        raise InvalidRowsError(f"Row {at} has no value for column {column.name}.")
    return _of_field(column, row[column.name], column.name, at)


def _of_field(field: types.NestedField, given: Any, name: str, at: int) -> Any:
    return _value(given, field.field_type, name, at, required=field.required)


def _value(given: Any, kind: types.IcebergType, name: str, at: int, *, required: bool) -> Any:
    """As Arrow takes it. name: of the column, dotted within others."""
    if given is None:
        if required:
            raise InvalidRowsError(f"Row {at} has null in column {name}, which is required.")
        return None
    match kind:
        case types.StructType():
            names = {field.name for field in kind.fields}
            if not isinstance(given, Mapping) or given.keys() != names:
                raise InvalidRowsError(f"Row {at}: {name} must be an object with {', '.join(sorted(names))}.")
            return {
                field.name: _of_field(field, given[field.name], f"{name}.{field.name}", at)
                for field in kind.fields
            }
        case types.ListType():
            if not isinstance(given, list):
                raise InvalidRowsError(f"Row {at}: {name} must be a list.")
            of_element = _of(kind.element_type, f"{name}.element", at, required=kind.element_required)
            return [of_element(one) for one in given]
        case types.MapType():
            return _map(given, kind, name, at)
    return _single(given, kind, name, at)


def _of(kind: types.IcebergType, name: str, at: int, *, required: bool) -> Callable[[Any], Any]:
    return lambda given: _value(given, kind, name, at, required=required)


def _map(given: Any, kind: types.MapType, name: str, at: int) -> list[tuple[Any, Any]]:
    """From Iceberg's form of it: a list of keys and one of values."""
    is_map = isinstance(given, Mapping) and given.keys() == {"keys", "values"}
    keys, values = (given["keys"], given["values"]) if is_map else (None, None)
    if not isinstance(keys, list) or not isinstance(values, list) or len(keys) != len(values):
        raise InvalidRowsError(f"Row {at}: {name} must have as many `keys` as `values`, each in a list.")
    of_key = _of(kind.key_type, f"{name}.key", at, required=True)
    of_value = _of(kind.value_type, f"{name}.value", at, required=kind.value_required)
    return [(of_key(key), of_value(value)) for key, value in zip(keys, values, strict=True)]


def _single(given: Any, kind: types.IcebergType, name: str, at: int) -> Any:
    try:
        if isinstance(kind, types.FloatType | types.DoubleType):
            return _float(given, kind)
        if isinstance(kind, types.PrimitiveType):
            return single_value(given, kind)
    except (*NOT_A_VALUE, StopIteration):
        pass
    raise InvalidRowsError(f"Row {at}: column {name} is of type {kind}, and what it has is no value of that.")


def _float(given: Any, kind: types.IcebergType) -> float:
    if isinstance(given, str) and given in _NAMED_FLOATS:
        return _NAMED_FLOATS[given]
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError
    value = float(given)
    if isinstance(kind, types.FloatType) and math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        raise OverflowError
    return value
