"""Parquet files with columns of types that Arrow does not know or mistakes: all are read as they are."""

import io
import struct
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.io import thrift
from worker.io.file_formats import FORMATS
from worker.io.parquet_footers import moments_of_int96
from worker.io.parquet_rows import ParquetFooter, rows_at

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


DAY = 86_400_000_000_000


def int96(nanos: int, day: int) -> bytes:
    return struct.pack("<qi", nanos, day + 2_440_588)


@pytest.mark.parametrize(("unit", "scale"), [("us", 1_000), ("ns", 1)])
@given(data=st.data(), is_of_arrow=st.booleans())
def test_moments_of_int96_are_what_readers_of_iceberg_make_of_them(
    unit: Literal["us", "ns"], scale: int, data: st.DataObject, is_of_arrow: bool
) -> None:
    """Arrow writes those before 1970 with nanoseconds below zero."""
    low, high = (-719_162, 2_932_896) if unit == "us" else (-106_000, 106_000)  # days: of years 1 to 9999
    nanos = data.draw(st.lists(st.none() | st.integers(low * DAY, high * DAY)))
    values = []
    for one in nanos:
        day, rest = (0, 0) if one is None else divmod(one, DAY)
        if is_of_arrow and rest and day < 0:
            day, rest = day + 1, rest - DAY
        values.append(None if one is None else int96(rest, day))
    expected = []
    for one, value in zip(nanos, values, strict=True):
        below = 0 if one is None or value is None else struct.unpack("<qi", value)[0]
        # What is less than a microsecond is cut off, in whatever direction it counts.
        rest = (abs(below) % scale) * (1 if below >= 0 else -1)
        expected.append(None if one is None else (one - rest) // scale)
    read = moments_of_int96(pa.array([None, *values], pa.binary(12)).slice(1), unit)
    assert read.view(pa.int64()).to_pylist() == expected


@pytest.mark.parametrize("value", [int96(0, 2**31 - 1 - 2_440_588), int96(2**62, 0)])
def test_moments_that_no_microseconds_can_say_are_told(value: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid, match="INT96"):
        moments_of_int96(pa.array([value], pa.binary(12)), "us")


def test_moments_of_int96_come_from_files_as_they_are() -> None:
    moments = [datetime(9999, 12, 31), None, datetime(1969, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001
    rows = pa.table({"id": [1, 2, 3], "at": pa.array(moments, pa.timestamp("us"))})
    written = io.BytesIO()
    pq.write_table(rows, written, use_deprecated_int96_timestamps=True)
    source = pa.BufferReader(written.getvalue())
    (batch,) = FORMATS["parquet"](source).batches([("at",)])
    assert moments_of_int96(batch.column("at"), "us").to_pylist() == moments
    some = rows_at(source, ParquetFooter.read(source), ["at", "id"], np.array([0, 2]))
    (part,) = some.column("at").chunks
    assert moments_of_int96(part, "us").to_pylist() == [moments[0], moments[2]]
    assert some.column("id").to_pylist() == [1, 3]
