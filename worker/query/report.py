"""An answer as JSON: values as Iceberg writes single values (spec, Appendix D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, PrimitiveType

from worker.query.places import Coverage, Places, matched_files


def report(
    coverage: Coverage,
    keys: Sequence[Mapping[str, Any]],
    places: Places,
    rows: pa.Table | None,
    schema: Schema | None,
) -> dict[str, Any]:
    """keys: as they were asked. rows: of `schema`, one for each place; None if none were asked for."""
    matches: list[list[dict[str, Any]]] = [[] for _ in keys]
    shown = json_rows(rows, schema) if rows is not None and schema is not None else None
    files, of_match = matched_files(coverage, places)
    told = zip(places.keys.tolist(), of_match.tolist(), places.deleted_by, strict=True)
    for at, (key, in_file, deleted_by) in enumerate(told):
        file, partition = files[in_file]
        match = {
            "data_file": file.path,
            "position": int(places.positions[at]),
            "partition": partition,
            "data_sequence_number": file.data_sequence_number,
            "live": deleted_by is None,
            "deleted_by": deleted_by,
        }
        matches[key].append(match | {"row": None if shown is None else shown[at]})
    results = [{"key": key, "matches": found} for key, found in zip(keys, matches, strict=True)]
    return facts(coverage, places) | {"results": results}


def facts(coverage: Coverage, places: Places) -> dict[str, Any]:
    """What an answer says of all keys together."""
    table = coverage.table
    return {
        "snapshot_id": None if table.snapshot is None else table.snapshot.snapshot_id,
        "key_columns": coverage.key_set.column_names,
        "data_files_from_index": len(places.data_files) - places.data_files_scanned,
        "data_files_scanned": places.data_files_scanned,
        "rows_scanned": places.rows_scanned,
    }


def json_rows(rows: pa.Table, schema: Schema) -> list[dict[str, Any]]:
    as_in_schema = schema_to_pyarrow(schema, include_field_ids=False)
    columns = {}
    for field, in_arrow in zip(schema.fields, as_in_schema, strict=True):
        whole = rows[field.name].cast(in_arrow.type).cast(_whole(in_arrow.type))
        columns[field.name] = [_json(field.field_type, value) for value in whole.to_pylist()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _whole(kind: pa.DataType) -> pa.DataType:
    """The type with whole numbers in the place of moments: Python's end at the year 9999."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_whole(field.type))

    test = pa.types
    if test.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if test.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field))
    if test.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if test.is_list(kind):
        return pa.list_(inner(kind.value_field))
    if test.is_temporal(kind):
        return pa.int32() if test.is_date32(kind) else pa.int64()
    return kind


def _json(kind: IcebergType, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case types.StructType(fields=fields):
            return {field.name: _json(field.field_type, value[field.name]) for field in fields}
        case types.ListType(element_type=element):
            return [_json(element, one) for one in value]
        case types.MapType(key_type=key_type, value_type=value_type):
            pairs = value.items() if isinstance(value, Mapping) else value
            return [{"key": _json(key_type, key), "value": _json(value_type, one)} for key, one in pairs]
        case types.FloatType() | types.DoubleType():
            return value if value == value and abs(value) != float("inf") else str(value)
        case types.DateType():
            return _day(value)
        case types.TimeType():
            return _moment(value, 6).partition("T")[2]
        case types.TimestampType() | types.TimestamptzType():
            return _moment(value, 6) + ("+00:00" if isinstance(kind, types.TimestamptzType) else "")
        case types.TimestampNanoType() | types.TimestamptzNanoType():
            return _moment(value, 9) + ("+00:00" if isinstance(kind, types.TimestamptzNanoType) else "")
        case types.LongType() | types.IntegerType() | types.BooleanType() | types.StringType():
            return value
        case PrimitiveType():
            return to_json(kind, value)
    raise AssertionError(kind)


def _day(days: int) -> str:
    """Years of more than four digits, and those before 0, have a sign, as in ISO 8601."""
    year, month, day = str(np.datetime64(days, "D")).rsplit("-", 2)
    number = int(year)
    sign = "-" if number < 0 else "+" if number > 9_999 else ""
    return f"{sign}{abs(number):04}-{month}-{day}"


def _moment(ticks: int, digits: int) -> str:
    """digits: of the part of a second that is told."""
    seconds, fraction = divmod(ticks, 10**digits)
    days, second = divmod(seconds, 24 * 60 * 60)
    written = f"{_day(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{written}.{fraction:0{digits}}" if fraction else written
