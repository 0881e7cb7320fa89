"""What callers give, as it is sent: tables of Arrow, and values in JSON as Iceberg writes single ones (spec,
Appendix D)."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa


def arrow_reader(given: Any) -> pa.RecordBatchReader | None:
    """Of whatever is or exports Arrow."""
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    return pa.RecordBatchReader.from_stream(given) if hasattr(given, "__arrow_c_stream__") else None


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
