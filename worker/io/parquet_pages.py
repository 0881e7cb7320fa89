"""Pages of Parquet files: how large they are once they are decoded, and some of them as a file of their own.

A value of a dictionary is written once and may stand in a million rows, so that 30 KB may hold a GB. Rows are
therefore decoded in batches of few bytes: what is in them at most is known before, from the longest value of
each dictionary, and from what other values have together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.io import thrift
from worker.io.thrift import Struct

BATCH_BYTES = 32 * 1024**2
"""Of values in a batch, about: no row is split."""
_DELTA_ROWS = 1_024
"""In a batch at most where a value may begin as the one before it: how long it is, only decoding tells."""
DELTA_BYTE_ARRAY = 7
BYTE_ARRAY = 6
MAGIC = b"PAR1"
_DICTIONARY_BYTES = 16 * 1024**2  # of one that is looked at; a larger one counts as a single value
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_PLAIN, _RLE = 0, 3
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6, "LZ4": 7}
# Fields of Parquet's structs (parquet.thrift).
_PAGE_KIND, _PAGE_BYTES, _STORED_BYTES, _DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 1, 2, 3, 5, 7, 8
_ENCODING_OF = {_DATA_PAGE: 2, _DATA_PAGE_V2: 4}  # of its values
_WINDOW_BYTES = 64 * 1024  # are read at the place of a page's header
_HEADER_BYTES = 16 * 1024**2  # of a page's header at most, as Arrow has it
_PAGES = 100_000  # of a column chunk whose headers are looked at: it takes seconds


@dataclass(frozen=True, slots=True)
class Batch:
    """rows: at most. size_bytes: that so many rows have, about."""

    rows: int
    size_bytes: int

    @classmethod
    def of(cls, row_bytes: float, most_rows: int, *, has_deltas: bool) -> Batch:
        """has_deltas: some column is encoded as DELTA_BYTE_ARRAY."""
        most_rows = min(most_rows, _DELTA_ROWS) if has_deltas else most_rows
        rows = max(1, min(most_rows, int(BATCH_BYTES / max(row_bytes, 1))))
        return cls(rows, ceil(rows * row_bytes))


def batch_of(
    source: pa.NativeFile, metadata: pq.FileMetaData, groups: Iterable[int], leaves: Sequence[int], rows: int
) -> Batch:
    """How many rows are decoded at a time. leaves: as of `leaves_of`.

    Raises pa.ArrowException or ValueError when the file is damaged, and OSError.
    """
    most_bytes, has_deltas = 0.0, False
    for group in groups:
        of_group = metadata.row_group(group)
        row_bytes = 0.0
        for leaf in leaves:
            chunk = of_group.column(leaf)
            row_bytes += (
                _value_bytes(source, metadata, chunk, leaf) * chunk.num_values / max(of_group.num_rows, 1)
            )
            has_deltas |= "DELTA_BYTE_ARRAY" in chunk.encodings
        most_bytes = max(most_bytes, row_bytes)
    return Batch.of(most_bytes, min(rows, metadata.num_rows), has_deltas=has_deltas)


def leaves_of(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """The numbers of leaves. columns: dotted, of leaves or of what leaves are in."""
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    below = tuple(f"{column}." for column in columns)
    return [leaf for leaf, path in enumerate(paths) if f"{path}.".startswith(below)]


def _value_bytes(
    source: pa.NativeFile, metadata: pq.FileMetaData, chunk: pq.ColumnChunkMetaData, leaf: int
) -> float:
    if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int(metadata.schema.column(leaf).length)
    if chunk.physical_type != "BYTE_ARRAY":
        return 8
    apart: float = chunk.total_uncompressed_size / max(chunk.num_values, 1)
    if (
        not _DICTIONARIES & {*chunk.encodings}
        or chunk.num_values * chunk.total_uncompressed_size <= BATCH_BYTES
    ):
        return apart
    # Some writers tell no place of a dictionary, or none that is right: it is what comes first.
    begin = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    size = chunk.data_page_offset - begin or min(chunk.total_compressed_size, _DICTIONARY_BYTES)
    return max(apart, longest_value(source.read_at(size, begin), chunk.compression))


def longest_value(dictionary: bytes, compression: str) -> int:
    """Bytes of it; 0 for another page. dictionary: a page of values of varying length, and whatever follows.

    Raises pa.ArrowException or ValueError.
    """
    header, at = thrift.decode(dictionary)
    if _DICTIONARY_PAGE not in header:
        return 0
    try:
        count, size = int(header[_DICTIONARY_PAGE][1][1][1]), page_bytes(header)
        stored = dictionary[at : at + int(header[_STORED_BYTES][1])]
    except (LookupError, TypeError) as error:
        raise ValueError(f"a dictionary makes no sense: {type(error).__name__}: {error}") from error
    if compression not in _CODECS or size > _DICTIONARY_BYTES:
        return size
    # Its values are written as those of a data page without nulls.
    of_page = {
        1: (thrift.I32, count),
        2: (thrift.I32, _PLAIN),
        3: (thrift.I32, _RLE),
        4: (thrift.I32, _RLE),
    }
    page = thrift.encode(
        {
            _PAGE_KIND: (thrift.I32, 0),
            _PAGE_BYTES: (thrift.I32, size),
            _STORED_BYTES: (thrift.I32, len(stored)),
            _DATA_PAGE: (thrift.STRUCT, of_page),
        }
    )
    chunk: Struct = {
        1: (thrift.I32, BYTE_ARRAY),
        2: (thrift.LIST, (thrift.I32, [_PLAIN])),
        3: (thrift.LIST, (thrift.BINARY, [b"v"])),
        4: (thrift.I32, _CODECS[compression]),
        6: (thrift.I64, len(page) + size),
    }
    element: Struct = {1: (thrift.I32, BYTE_ARRAY), 3: (thrift.I32, 0), 4: (thrift.BINARY, b"v")}
    values = pq.ParquetFile(file_of_pages([page + stored], chunk, element, count)).read(use_threads=False)
    return int(pc.max(pc.binary_length(values.column(0))).as_py() or 0)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a column chunk comes to by the headers of its pages, by which Arrow goes: a footer may say less.

    is_plain: values are written one after the other, so that none is longer than its page.
    """

    size_bytes: int
    values: int
    is_plain: bool

    @classmethod
    def of(cls, source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> Unpacked:
        """Raises ValueError when it is damaged, or has too many pages, and OSError."""
        offsets = (chunk.data_page_offset, chunk.dictionary_page_offset)
        at = held_at = min(one for one in offsets if one is not None and one > 0)
        stop = at + chunk.total_compressed_size
        held, size_bytes, values, is_plain = b"", 0, 0, True
        for _ in range(_PAGES):
            if at >= stop:
                return cls(size_bytes, values, is_plain)
            if at - held_at >= len(held) // 2:
                held, held_at = source.read_at(min(_WINDOW_BYTES, stop - at), at), at
            try:
                header, length = thrift.decode(held, at - held_at)
            except ValueError:  # it has long statistics, or is damaged
                held, held_at = source.read_at(min(_HEADER_BYTES, stop - at), at), at
                header, length = thrift.decode(held)
            end = length + held_at
            try:
                stored, unpacked = int(header[_STORED_BYTES][1]), page_bytes(header)
                kind = next((one for one in _ENCODING_OF if one in header), _DICTIONARY_PAGE)
                count = int(header[kind][1][1][1]) if kind in header else 0
                is_plain &= kind in _ENCODING_OF and header[kind][1][_ENCODING_OF[kind]][1] == _PLAIN
            except (LookupError, TypeError) as error:
                raise ValueError(f"a page makes no sense: {type(error).__name__}: {error}") from error
            if min(stored, unpacked, count) < 0:
                raise ValueError("a page has fewer than no bytes or values")
            size_bytes, values = size_bytes + max(stored, unpacked), values + count
            at = end + stored
        raise ValueError(f"a column chunk has more than {_PAGES:,} pages")


def page_bytes(header: Struct) -> int:
    """Of a page once it is unpacked, by its header."""
    return int(header[_PAGE_BYTES][1])


def file_of_pages(
    pages: Sequence[bytes],
    chunk: Struct,
    element: Struct,
    count: int,
    *,
    has_dictionary: bool = False,
    further: Struct | None = None,
) -> pa.BufferReader:
    """A file of one column. pages: the dictionary first, if there is one. chunk: what metadata of a column
    chunk says beside where pages lie. element: of the schema. further: what the footer says besides."""
    size = sum(map(len, pages))
    meta_data = chunk | {
        5: (thrift.I64, count),
        7: (thrift.I64, size),
        9: (thrift.I64, len(MAGIC) + (len(pages[0]) if has_dictionary else 0)),
    }
    if has_dictionary:
        meta_data[11] = (thrift.I64, len(MAGIC))
    column: Struct = {2: (thrift.I64, 0), 3: (thrift.STRUCT, meta_data)}
    row_group: Struct = {
        1: (thrift.LIST, (thrift.STRUCT, [column])),
        2: (thrift.I64, size),
        3: (thrift.I64, count),
    }
    root: Struct = {4: (thrift.BINARY, b"schema"), 5: (thrift.I32, 1)}
    footer = thrift.encode(
        {1: (thrift.I32, 2)}
        | (further or {})
        | {
            2: (thrift.LIST, (thrift.STRUCT, [root, element])),
            3: (thrift.I64, count),
            4: (thrift.LIST, (thrift.STRUCT, [row_group])),
        }
    )
    return pa.BufferReader(b"".join([MAGIC, *pages, footer, len(footer).to_bytes(4, "little"), MAGIC]))
