"""Files and streams with decimals of a scale that none has, which Arrow's casts go wrong by."""

import base64
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCALES = (41, -60, 16_711_682)
"""A cast by these gives another value, or ends the process."""


def column(scale: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.decimal128(20, scale), 1, [None, pa.py_buffer((17).to_bytes(16, "little"))]
    )


def parquet_file(path: Path, name: str) -> Path:
    """Of one column, of field id 1, which is as it should be; the file tells Arrow another type."""
    field = pa.field(name, pa.decimal128(20, 2), metadata={"PARQUET:field_id": "1"})
    rows = pa.table([pa.array([Decimal("0.17")], field.type)], pa.schema([field]))
    wrong = pa.schema([pa.field(name, pa.decimal256(76, max(SCALES)))])
    with pq.ParquetWriter(path, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        told = base64.b64encode(wrong.serialize().to_pybytes())
        writer.add_key_value_metadata({"ARROW:schema": told.decode()})
    return path
