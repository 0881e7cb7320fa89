"""Footers of Parquet files, also of those whose columns have types that Arrow does not know, or mistakes.

Arrow 19 refuses a whole file for a column that is annotated as a variant, a geometry or a geography. Without
the annotation they are a struct and bytes, as which they are stored; nobody reads their values.

Moments of INT96, the old form of Impala, Hive and Spark, are 64 bits of nanoseconds to Arrow, which wrap
around outside the years 1677 to 2262, or microseconds, of which those before 1970 are wrong that Arrow itself
wrote. So they are told as the 12 bytes that they are, and `moments_of_int96` reads these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from worker.io import thrift
from worker.io.thrift import Struct

_TAIL_BYTES = 64 * 1024  # are asked for at first, as Arrow does; indexes of pages mostly lie in them
_LENGTH_BYTES = 8  # of the footer's length and the magic number behind it
_MAGIC = b"PAR1"
INT96_BYTES = 12
_EPOCH_DAY = 2_440_588  # of Julian days, 1970-01-01
_DAY = {"us": 86_400_000_000, "ns": 86_400_000_000_000}
# Fields of Parquet's structs (parquet.thrift).
_SCHEMA, _TYPE, _LENGTH, _LOGICAL_TYPE = 2, 1, 2, 10
_INT96, _FIXED_LEN_BYTE_ARRAY = 3, 7
_KNOWN_TYPES = frozenset(range(1, 16))  # of that union: those that Arrow 19 knows, up to FLOAT16


def read_tail(source: pa.NativeFile, expected_bytes: int = 0) -> tuple[bytes, int]:
    """The end of a file with all of its footer, and how many bytes of it are the footer, with its length and
    what is behind that; in one request if the footer has no more bytes than expected, else in two."""
    size = source.size()
    first = min(size, max(expected_bytes, _TAIL_BYTES))
    tail = source.read_at(first, size - first)
    length = int.from_bytes(tail[-_LENGTH_BYTES:-4], "little") + _LENGTH_BYTES
    if len(tail) < length <= size:
        tail = source.read_at(length, size - length)
    return tail, length


def parse_footer(tail: bytes, length: int) -> pq.FileMetaData:
    """Of what `read_tail` returns. Raises pa.ArrowException or OSError when it is damaged."""
    try:
        found = pq.read_metadata(pa.BufferReader(tail))
        columns = (found.schema.column(leaf) for leaf in range(found.num_columns))
        if all(column.physical_type != "INT96" for column in columns):
            return found
    except (pa.ArrowException, OSError):
        if (readable := _readable(tail[-length:-_LENGTH_BYTES])) is None:
            raise
    else:
        if (readable := _readable(tail[-length:-_LENGTH_BYTES])) is None:
            raise pa.ArrowInvalid("its footer makes no sense")
    ended = readable + len(readable).to_bytes(4, "little") + _MAGIC
    return pq.read_metadata(pa.BufferReader(_MAGIC + ended))


def _readable(footer: bytes) -> bytes | None:
    """None if there is nothing to change, or it is damaged."""
    try:
        first, end = thrift.decode_until(footer, _SCHEMA)
        is_changed = make_readable(first[_SCHEMA][1][1])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    # What follows counts on from the last field.
    return thrift.encode(first)[:-1] + footer[end:] if is_changed and max(first) == _SCHEMA else None


def make_readable(elements: Iterable[Struct]) -> bool:
    """Changes those elements of a schema that Arrow does not know or mistakes; whether there are any.

    Raises LookupError, TypeError or AttributeError when they are damaged.
    """
    is_changed = False
    for element in elements:
        _, annotated = element.get(_LOGICAL_TYPE, (thrift.STRUCT, {}))
        if annotated.keys() - _KNOWN_TYPES:
            del element[_LOGICAL_TYPE]
            is_changed = True
        if element.get(_TYPE, (0, None))[1] == _INT96:
            element[_TYPE] = thrift.I32, _FIXED_LEN_BYTE_ARRAY
            element[_LENGTH] = thrift.I32, INT96_BYTES
            is_changed = True
    return is_changed


def moments_of_int96(values: pa.Array, unit: Literal["us", "ns"]) -> pa.Array:
    """Timestamps without a zone of the 12 bytes that they are: nanoseconds of a day, and the Julian day.

    As Iceberg's readers have it, what is less than a microsecond is cut off. Raises pa.ArrowInvalid for what
    64 bits can't say.
    """
    _, content = values.buffers()
    if content is None or values.null_count == len(values):
        return pa.nulls(len(values), pa.timestamp(unit))
    raw = np.frombuffer(content, np.dtype([("nanos", "<i8"), ("day", "<i4")]))
    raw = raw[values.offset : values.offset + len(values)]
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    days = np.where(is_null, 0, raw["day"].astype(np.int64) - _EPOCH_DAY)
    nanos = np.where(is_null, 0, raw["nanos"])
    parts = nanos if unit == "ns" else np.sign(nanos) * (np.abs(nanos) // 1000)
    # Their sum is no more than a day away from `days` in any file that is right.
    if (np.abs(days) > np.iinfo(np.int64).max // _DAY[unit] - 1).any() or (np.abs(parts) > _DAY[unit]).any():
        raise pa.ArrowInvalid(f"a moment of INT96 is none that 64 bits of {unit} can say")
    return pa.array(days * _DAY[unit] + parts, pa.int64(), mask=is_null).view(pa.timestamp(unit))
