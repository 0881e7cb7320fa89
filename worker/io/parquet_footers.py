"""Footers of Parquet files, also of those whose columns have types that Arrow does not know.

Arrow 19 refuses a whole file for a column that is annotated as a variant, a geometry or a geography. Without
the annotation they are a struct and bytes, as which they are stored; nobody reads their values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from worker.io import thrift
from worker.io.thrift import Struct

_TAIL_BYTES = 64 * 1024  # are asked for at first, as Arrow does; indexes of pages mostly lie in them
_LENGTH_BYTES = 8  # of the footer's length and the magic number behind it
_MAGIC = b"PAR1"
# Fields of Parquet's structs (parquet.thrift).
_SCHEMA, _LOGICAL_TYPE = 2, 10
_KNOWN_TYPES = frozenset(range(1, 16))  # of that union: those that Arrow 19 knows, up to FLOAT16


def read_tail(source: pa.NativeFile) -> tuple[bytes, int]:
    """The end of a file with all of its footer, and how many bytes of it are the footer, with its length and
    what is behind that."""
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    length = int.from_bytes(tail[-_LENGTH_BYTES:-4], "little") + _LENGTH_BYTES
    if len(tail) < length <= size:
        tail = source.read_at(length, size - length)
    return tail, length


def parse_footer(tail: bytes, length: int) -> pq.FileMetaData:
    """Of what `read_tail` returns. Raises pa.ArrowException or OSError when it is damaged."""
    try:
        return pq.read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError):
        if (readable := _without_new_types(tail[-length:-_LENGTH_BYTES])) is None:
            raise
    ended = readable + len(readable).to_bytes(4, "little") + _MAGIC
    return pq.read_metadata(pa.BufferReader(_MAGIC + ended))


def _without_new_types(footer: bytes) -> bytes | None:
    """None if it has none, or is damaged."""
    try:
        first, end = thrift.decode_until(footer, _SCHEMA)
        elements: list[Struct] = first[_SCHEMA][1][1]
        is_changed = False
        for element in elements:
            _, annotated = element.get(_LOGICAL_TYPE, (thrift.STRUCT, {}))
            if annotated.keys() - _KNOWN_TYPES:
                del element[_LOGICAL_TYPE]
                is_changed = True
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    # What follows counts on from the last field.
    return thrift.encode(first)[:-1] + footer[end:] if is_changed and max(first) == _SCHEMA else None
