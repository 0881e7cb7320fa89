"""What callers give, as it is sent: tables of Arrow, and values in JSON as Iceberg writes single ones (spec,
Appendix D)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa


def arrow_reader(given: Any) -> pa.RecordBatchReader | None:
    """Of whatever is or exports Arrow, without what numbers the rows of a frame."""
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if not hasattr(given, "__arrow_c_stream__"):
        return None
    reader = pa.RecordBatchReader.from_stream(given)
    numbers = _row_numbers(reader.schema)
    if not numbers:
        return reader
    names = [name for name in reader.schema.names if name not in numbers]
    schema = pa.schema([reader.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in reader))


def _row_numbers(schema: pa.Schema) -> set[str]:
    """Columns that pandas makes of an index without a name, as any frame has that was filtered or sorted."""
    told = schema.pandas_metadata or {}
    indexes = [name for name in told.get("index_columns", ()) if isinstance(name, str)]
    unnamed = [one["field_name"] for one in told.get("columns", ()) if one["name"] is None]
    return set(indexes).intersection(unnamed)


def rows_of(given: Any) -> list[dict[str, Any]]:
    """Of mappings. Raises TypeError for anything else, such as one mapping alone."""
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Iterable):
        raise TypeError("give a table of Arrow, a frame, or a list with a mapping for each row or key")
    return [dict(row) for row in given]


def in_arrow(given: Any) -> Any:
    """Whatever is or exports Arrow, as a table of it; anything else as it is."""
    reader = arrow_reader(given)
    return given if reader is None else reader.read_all()


def json_value(value: Any) -> Any:
    """Of a column's single value. Raises TypeError for anything else."""
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return value.hex()
    raise TypeError(f"{value!r} is no value of a column")
