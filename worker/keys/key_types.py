"""Values of key columns in the key's representation, which widening a column does not change."""

from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types

from worker.io.parquet_footers import INT96_BYTES, moments_of_int96
from worker.keys.key_set import KeyColumn, KeyColumnError

NANOSECOND_TYPES = types.TimestampNanoType | types.TimestamptzNanoType
MOMENTS = types.TimestampType | types.TimestamptzType | NANOSECOND_TYPES


def to_key_type(array: pa.Array, column: KeyColumn) -> pa.Array:
    """Values of a file's column in the key's representation.

    Raises KeyColumnError when the file's type can't be widened to the key's without loss.
    """
    try:
        return _cast(array, column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise KeyColumnError(
            "unreadable_key_type",
            f"column {column.name} ({column.iceberg_type}) is stored as {array.type}: {error}",
            "Rewrite the file with a writer that follows the table's schema.",
        ) from error


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_fixed_size_binary(kind)
    return bool(text or types.is_binary(kind) or types.is_large_binary(kind))


# Types of one kind differ in width only. Arrow would turn text or fractions into numbers as well.
_KINDS = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, _is_text_or_bytes)


def _cast(array: pa.Array, column: KeyColumn) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    source = array.type
    if source == column.key_type:
        return array
    unit: Literal["us", "ns"] = "ns" if isinstance(column.iceberg_type, NANOSECOND_TYPES) else "us"
    if isinstance(column.iceberg_type, MOMENTS) and source == pa.binary(INT96_BYTES):
        return moments_of_int96(array, unit).view(pa.int64())
    if pa.types.is_timestamp(source) and source.unit == "ns" and unit == "us":
        # Spark takes their numbers for microseconds, Iceberg's generic reader does not.
        raise pa.ArrowInvalid("readers of Iceberg disagree about which moments these nanoseconds are")
    if pa.types.is_timestamp(source) or pa.types.is_time(source):
        if pa.types.is_timestamp(source):
            return array.cast(pa.timestamp(unit)).view(pa.int64())
        return array.cast(pa.time64(unit)).view(pa.int64())
    if pa.types.is_date32(source):
        days: pa.Array = array.view(pa.int32())
        # A date column may have been promoted to a timestamp (format version 3).
        return days if column.key_type == pa.int32() else _days_to_ticks(days, column)
    if not pa.types.is_null(source) and not any(
        is_kind(source) and is_kind(column.key_type) for is_kind in _KINDS
    ):
        raise pa.ArrowInvalid("it is no type that the column ever had")
    return array.cast(column.key_type)


def _days_to_ticks(days: pa.Array, column: KeyColumn) -> pa.Array:
    ticks = 86_400_000_000_000 if isinstance(column.iceberg_type, NANOSECOND_TYPES) else 86_400_000_000
    return pc.multiply_checked(days.cast(pa.int64()), ticks)


def placeholder(key_type: pa.DataType) -> pa.Scalar:
    """The value that stands in a null key's column; the null mask tells it from the same real value."""
    if pa.types.is_string(key_type):
        return pa.scalar("", key_type)
    if pa.types.is_binary(key_type):
        return pa.scalar(b"", key_type)
    if pa.types.is_boolean(key_type):
        return pa.scalar(False, key_type)
    return pa.scalar(0, pa.int32()).cast(key_type)


def from_single_value(value: Any, column: KeyColumn) -> Any:
    """A value of a partition tuple in JSON (spec, Appendix D), as the key's type holds it."""
    if value is None:
        return None
    match column.iceberg_type:
        case types.DateType():
            return int(np.datetime64(value, "D").astype(np.int64))
        case types.TimestampType() | types.TimestamptzType():
            return int(np.datetime64(value.removesuffix("+00:00"), "us").astype(np.int64))
        case types.TimestampNanoType() | types.TimestamptzNanoType():
            return int(np.datetime64(value.removesuffix("+00:00"), "ns").astype(np.int64))
        case types.TimeType():
            return to_key_value(time_of_day.fromisoformat(value), column)
        case types.DecimalType():
            return Decimal(value)
        case types.UUIDType():
            return UUID(value).bytes
        case types.FixedType() | types.BinaryType():
            return bytes.fromhex(value)
        case _:
            return value


def from_key_type(array: pa.Array, column: KeyColumn) -> pa.Array:
    """Values in the key's representation as the column's Iceberg type has them in Arrow."""
    match column.iceberg_type:
        case types.IntegerType():
            return array.cast(pa.int32())
        case types.DateType():
            return array.view(pa.date32())
        case types.TimeType():
            return array.view(pa.time64("us"))
        case types.TimestampType():
            return array.view(pa.timestamp("us"))
        case types.TimestamptzType():
            return array.view(pa.timestamp("us", "UTC"))
        case types.TimestampNanoType():
            return array.view(pa.timestamp("ns"))
        case types.TimestamptzNanoType():
            return array.view(pa.timestamp("ns", "UTC"))
        case types.DecimalType(precision=precision, scale=scale):
            return array.cast(pa.decimal128(precision, scale))
        case _:
            return array


def to_words(value: Any, column: KeyColumn) -> str | int | bool:
    """A value in the key's representation as people write it: of any year, and of any length."""
    match column.iceberg_type:
        case types.DateType():
            return str(np.datetime64(value, "D"))
        case types.TimestampType() | types.TimestamptzType() | types.TimeType():
            written = str(np.datetime64(value, "us"))
        case types.TimestampNanoType() | types.TimestamptzNanoType():
            written = str(np.datetime64(value, "ns"))
        case types.UUIDType() if len(value) == 16:
            return str(UUID(bytes=value))
        case _:
            if isinstance(value, bytes):
                return value.hex()
            return value if isinstance(value, int) else str(value)
    if isinstance(column.iceberg_type, types.TimeType):
        return written.rpartition("T")[2]
    is_instant = isinstance(column.iceberg_type, types.TimestamptzType | types.TimestamptzNanoType)
    return f"{written}+00:00" if is_instant else written


def to_key_value(value: Any, column: KeyColumn) -> Any:
    """A Python value of the column's Iceberg type, as the key's type holds it."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, date | datetime | time_of_day):
        return to_key_type(pa.array([value]), column)[0].as_py()
    return value
