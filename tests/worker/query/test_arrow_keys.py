"""Keys of every type as Arrow: what is taken without loss, what is refused, and what answers show of it."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import PrimitiveType

from tests import decimals
from worker.keys.key_set import KeySet
from worker.keys.schema_fields import resolve_key_set
from worker.query import arrow
from worker.query.arrow import keys_of_arrow, shown_keys
from worker.query.errors import InvalidKeyError
from worker.query.json_keys import keys_of_json

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 600, UTC)
NAMED = UUID("0c9f6f0e-2f6b-4c39-8a1e-5b0e4d1c7a11")
LONG = types.LongType()


def key_set(kind: PrimitiveType) -> KeySet:
    schema = Schema(types.NestedField(1, "k", kind, required=False))
    metadata = new_table_metadata(
        schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t", {"format-version": "3"}
    )
    return resolve_key_set(metadata, [1])


@pytest.mark.parametrize(
    ("kind", "array", "in_json"),
    [
        (types.BooleanType(), pa.array([True]), True),
        (types.IntegerType(), pa.array([-7], pa.int64()), -7),
        (LONG, pa.array([7], pa.uint8()), 7),
        (LONG, pa.array([2**63 - 1], pa.uint64()), str(2**63 - 1)),
        (LONG, pa.nulls(1), None),
        (types.DecimalType(9, 2), pa.array([Decimal("1.50")], pa.decimal256(60, 4)), "1.50"),
        (types.DecimalType(9, 2), pa.array([7], pa.int16()), "7.00"),
        (types.StringType(), pa.array(["é"], pa.large_string()), "é"),
        (
            types.StringType(),
            pa.array(["a text of more than twelve bytes"], pa.string_view()),
            "a text of more than twelve bytes",
        ),
        (types.BinaryType(), pa.array([b"\0a"], pa.binary(2)), "0061"),
        (types.BinaryType(), pa.array([b"\0a"], pa.binary_view()), "0061"),
        (types.FixedType(2), pa.array([b"\0a"], pa.large_binary()), "0061"),
        (types.UUIDType(), pa.array([NAMED.bytes], pa.uuid()), str(NAMED)),
        (types.UUIDType(), pa.array([NAMED.bytes]), str(NAMED)),
        (types.UUIDType(), pa.array([str(NAMED).upper()]), str(NAMED)),
        (types.DateType(), pa.array([date(2026, 1, 2)], pa.date64()), "2026-01-02"),
        (types.TimeType(), pa.array([time(3, 4, 5)], pa.time32("s")), "03:04:05"),
        (
            types.TimestampType(),
            pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("ns")),
            "2026-01-02T03:04:05.000600",
        ),
        (
            types.TimestamptzType(),
            pa.array([MOMENT], pa.timestamp("us", "Asia/Tokyo")),
            "2026-01-02T03:04:05.000600+00:00",
        ),
        (
            types.TimestamptzType(),
            pa.array([MOMENT], pa.timestamp("us", "UTC")),
            "2026-01-01T21:34:05.000600-05:30",
        ),
        (types.TimestampNanoType(), pa.array([1], pa.timestamp("s")), "1970-01-01T00:00:01"),
        (
            types.TimestamptzNanoType(),
            pa.array([1], pa.timestamp("ns", "UTC")),
            "1970-01-01T00:00:00.000000001Z",
        ),
    ],
)
def test_keys_are_the_same_in_arrow_and_in_json(kind: PrimitiveType, array: pa.Array, in_json: Any) -> None:
    keys = key_set(kind)
    given = pa.table({"k": pa.chunked_array([array, array.slice(0, 0), pa.nulls(1, array.type)])})
    found = keys_of_arrow(keys, given)
    assert found.equals(keys_of_json(keys, [{"k": in_json}, {"k": None}]))
    shown = shown_keys(keys, found)
    assert keys_of_arrow(keys, shown).equals(found)
    assert shown["k"].null_count == (2 if in_json is None else 1)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (LONG, pa.array([1.0])),
        (LONG, pa.array(["1"])),
        (LONG, pa.array([True])),
        (LONG, pa.array([2**63], pa.uint64())),
        (types.IntegerType(), pa.array([2**31])),
        (types.DecimalType(9, 2), pa.array([Decimal("1.501")])),
        (types.DecimalType(4, 2), pa.array([Decimal("123.00")])),
        (types.DecimalType(4, 2), pa.array([2**62])),
        (types.DecimalType(4, 2), pa.array([1.5])),
        *((types.DecimalType(20, 2), decimals.column(scale)) for scale in decimals.SCALES),
        (types.StringType(), pa.array([b"a"])),
        (types.BinaryType(), pa.array(["a"])),
        (types.FixedType(2), pa.array([b"abc"])),
        (types.UUIDType(), pa.array([b"abc"])),
        (types.UUIDType(), pa.array(["abc"])),
        (types.DateType(), pa.array([0], pa.int32())),
        (types.DateType(), pa.array([0], pa.timestamp("s"))),
        (types.TimeType(), pa.array([1], pa.time64("ns"))),
        (types.TimestampType(), pa.array([1], pa.timestamp("ns"))),
        (types.TimestampType(), pa.array([2**62], pa.timestamp("s"))),
        (types.TimestampType(), pa.array([0], pa.timestamp("us", "UTC"))),
        (types.TimestamptzType(), pa.array([0], pa.timestamp("us"))),
        (types.BooleanType(), pa.array([1])),
    ],
)
def test_what_would_lose_something_is_refused(kind: PrimitiveType, array: pa.Array) -> None:
    with pytest.raises(InvalidKeyError, match="Column k is of type"):
        keys_of_arrow(key_set(kind), pa.table({"k": array}))


def test_columns_that_are_not_those_of_the_key_are_refused() -> None:
    for names in (["j"], ["k", "j"], ["k", "k"], []):
        with pytest.raises(InvalidKeyError, match="not k"):
            keys_of_arrow(key_set(LONG), pa.table([[1]] * len(names), names=names))


def test_views_of_one_long_text_are_counted_as_often_as_it_is_viewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "KEY_BYTES", 10_000)
    view = struct.pack("<i4sii", 1_000, b"xxxx", 0, 0)
    text = pa.py_buffer(b"x" * 1_000)

    def viewed(times: int) -> pa.Table:
        """So often, and as often something that is null."""
        validity = pa.array([True, False] * times).buffers()[1]
        buffers = [validity, pa.py_buffer(view * 2 * times), text]
        return pa.table({"k": pa.Array.from_buffers(pa.string_view(), 2 * times, buffers)})

    keys = key_set(types.StringType())
    assert keys_of_arrow(keys, viewed(10)).num_rows == 20
    with pytest.raises(InvalidKeyError, match="more than 10,000 bytes"):
        keys_of_arrow(keys, viewed(11))
