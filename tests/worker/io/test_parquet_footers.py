"""Parquet files with columns of types that are newer than Arrow: the others are read as ever."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worker.io import thrift
from worker.io.file_formats import FORMATS
from worker.io.parquet_rows import ParquetFooter

SCHEMA, LOGICAL_TYPE = 2, 10
ROWS = pa.table(
    {
        "id": pa.array(range(1_000), pa.int64()),
        "shape": pa.array([{"at": b"x", "since": i} for i in range(1_000)]),
        "since": pa.array(range(1_000), pa.timestamp("us", "UTC")),
    }
)


def annotated(types: dict[int, Any], rows: pa.Table = ROWS) -> bytes:
    """A Parquet file whose elements of the schema have these logical types, by their places."""
    written = io.BytesIO()
    pq.write_table(rows, written, store_schema=False)
    content = written.getvalue()
    length = int.from_bytes(content[-8:-4], "little")
    start = len(content) - length - 8
    footer, _ = thrift.decode(content, start)
    for at, kind in types.items():
        footer[SCHEMA][1][1][at][LOGICAL_TYPE] = thrift.STRUCT, kind
    again = thrift.encode(footer)
    return content[:start] + again + len(again).to_bytes(4, "little") + b"PAR1"


NEW = {
    2: {16: (thrift.STRUCT, {1: (thrift.BYTE, 1)})},
    3: {17: (thrift.STRUCT, {1: (thrift.BINARY, b"crs")})},
}


def test_columns_beside_those_of_new_types_are_read() -> None:
    content = annotated(NEW)
    with pytest.raises((OSError, pa.ArrowException), match="LogicalType"):
        pq.read_metadata(pa.BufferReader(content))
    file = FORMATS["parquet"](pa.BufferReader(content))
    assert file.rows == 1_000
    read = pa.Table.from_batches(file.batches([("id",), ("since",)]))
    assert read.column("id").to_pylist() == list(range(1_000))
    assert read.column("since").type == pa.timestamp("us", "UTC")
    assert ParquetFooter.read(pa.BufferReader(content)).schema == file.schema


def test_a_footer_that_is_longer_than_what_is_read_at_first_is_read() -> None:
    wide = pa.table({f"a column of a long name {i}": [i] for i in range(1_000)})
    content = annotated({1: NEW[2]}, wide)
    (batch,) = FORMATS["parquet"](pa.BufferReader(content)).batches([("a column of a long name 999",)])
    assert batch.to_pydict() == {"a column of a long name 999": [999]}


@pytest.mark.parametrize("at", range(1, 60, 7))
def test_a_damaged_footer_of_new_types_is_told_as_damage(at: int) -> None:
    content = annotated(NEW)
    length = int.from_bytes(content[-8:-4], "little")
    start = len(content) - length - 8
    damaged = content[: start + at] + b"\xff" * 9 + content[start + at + 9 :]
    with pytest.raises((OSError, pa.ArrowException)):
        FORMATS["parquet"](pa.BufferReader(damaged))
