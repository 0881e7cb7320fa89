"""A program that reads damaged streams of Arrow as a lookup server does: each is refused, or has its rows.

Apart from the tests, since what Arrow does not survive would end these as well.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
from pyiceberg import types
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from trust.arrow_streams import ArrowStreamError, count_rows
from worker.keys.schema_fields import resolve_key_set
from worker.query.arrow import keys_of_arrow, read_stream, shown_keys
from worker.query.errors import InvalidArrowError, InvalidKeyError

_MEMORY_BYTES = 8 * 1024**3
_WORDS = (0, 1, -1, 7, 64, 2**24 - 95_534, 2**31 - 20_353_215, 2**31 - 1, -(2**31))
_BYTES = 1_500
_MOMENT = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - one column has no zone
_KEYS = [
    (types.LongType(), pa.array([1, None], pa.int32())),
    (types.BooleanType(), pa.array([True, None])),
    (types.DecimalType(20, 2), pa.array([Decimal("1.50"), None], pa.decimal128(18, 2))),
    (types.DecimalType(38, 2), pa.array([Decimal("1.50"), None], pa.decimal256(60, 2))),
    (types.StringType(), pa.array(["a text of more than twelve bytes", "b"], pa.string_view())),
    (types.StringType(), pa.array(["a", None], pa.large_string())),
    (types.BinaryType(), pa.array([b"more than twelve bytes", b""], pa.binary_view())),
    (types.BinaryType(), pa.array([b"a", None])),
    (types.FixedType(2), pa.array([b"ab", None], pa.binary(2))),
    (types.DateType(), pa.array([date(2026, 1, 2), None], pa.date64())),
    (types.TimeType(), pa.array([time(3, 4, 5), None], pa.time32("s"))),
    (types.TimestampType(), pa.array([_MOMENT, None], pa.timestamp("ns"))),
    (types.TimestamptzType(), pa.array([_MOMENT.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC"))),
]


def _damaged(stream: bytes) -> Iterator[bytes]:
    """Each word as another number, and some bytes."""
    for at in range(0, len(stream) - 3, 4):
        for word in _WORDS:
            yield stream[:at] + struct.pack("<i", word) + stream[at + 4 :]
    drawn = random.Random(17)
    for _ in range(_BYTES):
        at = drawn.randrange(len(stream))
        yield stream[:at] + drawn.randbytes(1) + stream[at + 1 :]


def main() -> None:
    # What takes all memory shall end this program and not the machine.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    faulthandler.enable()
    schema = Schema(
        *(types.NestedField(at, f"k{at}", kind, required=False) for at, (kind, _) in enumerate(_KEYS, 1))
    )
    metadata = new_table_metadata(
        schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t", {"format-version": "3"}
    )
    key_set = resolve_key_set(metadata, [field.field_id for field in schema.fields])
    table = pa.table({f"k{at}": array for at, (_, array) in enumerate(_KEYS, 1)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    read = 0
    for stream in _damaged(bytes(sink.getvalue())):
        try:
            rows = count_rows(stream)
            keys = read_stream(stream)
            assert keys.num_rows == rows
            shown_keys(key_set, keys_of_arrow(key_set, keys))
            read += 1
        except (ArrowStreamError, InvalidArrowError, InvalidKeyError):
            pass
        except Exception:
            sys.stderr.write(f"{stream.hex()}\n")
            raise
    assert read, "Nothing was read."


if __name__ == "__main__":
    main()
