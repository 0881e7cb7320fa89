"""Reads row groups of Parquet files; from a store where every request waits, with many requests at a time.

Arrow asks for one column chunk after the other as it decodes them, with `pre_buffer`, too.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

A = TypeVar("A")
B = TypeVar("B")

REQUESTS = 32  # at a time, of all tasks of a process: a request costs its latency, and hardly any CPU
_GAP_BYTES = 64 * 1024  # are read rather than left out: this takes no longer than another request of many
_REQUEST_BYTES = 8 * 1024**2  # at most, if more than one column chunk is asked for

_threads = ThreadPoolExecutor(REQUESTS, "fetch")


def read_row_groups(
    source: pa.NativeFile, metadata: pq.FileMetaData, row_groups: Iterable[int], names: Sequence[str]
) -> pa.Table:
    """The columns `names` of some row groups, in their order. Raises as Arrow does.

    What is read of a remote file is held in memory, encoded, while it is decoded. No column is nested.
    """
    groups = list(row_groups)
    if not isinstance(source, pa.MemoryMappedFile):
        ranges = _merged(_column_chunks(metadata, groups, names))
        source = pa.PythonFile(_Fetched(source, ranges), mode="r")
    parquet = pq.ParquetFile(source, metadata=metadata)
    return parquet.read_row_groups(groups, columns=list(names), use_threads=False)


def side_by_side(request: Callable[[A], B], asked: Iterable[A]) -> Iterator[B]:
    """The answers, in the order of what is asked: many at a time wait for the store."""
    return _threads.map(request, asked)


def _column_chunks(
    metadata: pq.FileMetaData, row_groups: Iterable[int], names: Sequence[str]
) -> list[tuple[int, int]]:
    """(start, end) of each, in bytes, ascending."""
    all_names = metadata.schema.names
    columns = [all_names.index(name) for name in names]
    ranges = []
    for group in map(metadata.row_group, row_groups):
        for chunk in map(group.column, columns):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page:
                start = min(start, chunk.dictionary_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
    return sorted(ranges)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that lie close together as one."""
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and start - merged[-1][1] <= _GAP_BYTES and end - merged[-1][0] <= _REQUEST_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class _Fetched(io.RawIOBase):
    """A file of which some ranges were read at once, and the rest is read when it is asked for."""

    def __init__(self, source: pa.NativeFile, ranges: Sequence[tuple[int, int]]) -> None:
        self._source = source
        self._size: int = source.size()
        self._starts = [start for start, _ in ranges]
        self._parts: list[pa.Buffer] = [
            pa.py_buffer(part)
            for part in side_by_side(lambda bounds: source.read_at(bounds[1] - bounds[0], bounds[0]), ranges)
        ]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> pa.Buffer | bytes:  # Arrow takes any buffer
        size = self._size - self._at if size < 0 else size
        at, self._at = self._at, self._at + size
        place = bisect_right(self._starts, at) - 1
        if place >= 0:
            part = self._parts[place].slice(min(at - self._starts[place], len(self._parts[place])))
            if len(part) >= size:
                return part.slice(0, size)
        found: bytes = self._source.read_at(size, at)
        return found
