"""Rows of a table of Arrow, in values that Python can hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conformance.readers import Row


def rows_of(table: pa.Table) -> list[Row]:
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Python's moments have microseconds.
        texts = column.cast(pa.timestamp("ns")).cast(pa.string())
        column = pc.binary_join_element_wise(texts, "Z", "") if kind.tz else texts
    values: list[Any] = column.to_pylist()
    return values
