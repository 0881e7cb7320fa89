"""Reads row groups of Parquet files; from a store where every request waits, with many requests at a time.

Arrow asks for one column chunk after the other as it decodes them, with `pre_buffer`, too.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stores.ranges import RangeReader
from worker.io.sorting import is_bytes
from worker.process.slots import Threads

A = TypeVar("A")
B = TypeVar("B")
Content: TypeAlias = bytes | memoryview

REQUESTS = 32  # at a time, of all tasks of a process: a request costs its latency, and hardly any CPU
GAP_BYTES = 128 * 1024  # are read rather than left out: this takes no longer than another request of many
_REQUEST_BYTES = 8 * 1024**2  # at most, if more than one column chunk is asked for

_threads = Threads(REQUESTS, "fetch")


class RowGroups:
    """The row groups of one file. What was read of a remote file is kept, encoded, for what is read next."""

    def __init__(self, source: pa.NativeFile, metadata: pq.FileMetaData) -> None:
        self._metadata = metadata
        self._remote, self._source = as_fetched(source)

    @property
    def are_remote(self) -> bool:
        return self._remote is not None

    def fetch(self, row_groups: Iterable[int], names: Sequence[str]) -> None:
        """Asks a store at once for columns that are read afterwards, one after the other."""
        if self._remote is not None:
            self._remote.fetch(_column_chunks(self._metadata, row_groups, names))

    def read(self, row_groups: Iterable[int], names: Sequence[str]) -> pa.Table:
        """The columns `names`, none of them nested, of row groups in their order. Raises as Arrow does."""
        groups = list(row_groups)
        self.fetch(groups, names)
        rows = self._parquet.read_row_groups(groups, columns=list(names), use_threads=False)
        for name in names:
            if is_bytes(rows.schema.field(name).type):
                self._check_encoding(rows[name], groups, name)
        return rows

    @cached_property
    def _parquet(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._source, metadata=self._metadata, page_checksum_verification=True)

    def _check_encoding(self, values: pa.ChunkedArray, groups: Sequence[int], name: str) -> None:
        """Raises pa.ArrowInvalid when a page was decoded by another encoding than it has.

        The header of a page has no checksum, and one bit of it tells the two delta encodings of bytes apart.
        Decoded by the wrong one, a page begins with an empty value: only then are bounds compared.
        """
        if pc.min(pc.binary_length(values)).as_py() != 0:
            return
        column, start = self._metadata.schema.names.index(name), 0
        for group in map(self._metadata.row_group, groups):
            bounds = pc.min_max(values.slice(start, group.num_rows).cast(pa.binary())).as_py()
            start += group.num_rows
            told = group.column(column).statistics
            if told is not None and told.has_min_max:
                low, high = (v.encode() if isinstance(v, str) else v for v in (told.min, told.max))
                if (bounds["min"], bounds["max"]) != (low, high):
                    raise pa.ArrowInvalid(f"values of {name} lie outside the bounds of their row group")


def side_by_side(request: Callable[[A], B], asked: Iterable[A], *, waits: bool = True) -> Iterator[B]:
    """The answers, in the order of what is asked: many at a time wait for the store.

    waits: not so for local files, of which one is read after the other.
    """
    return _threads.map(request, asked) if waits else map(request, asked)


def _column_chunks(
    metadata: pq.FileMetaData, row_groups: Iterable[int], names: Sequence[str]
) -> list[tuple[int, int]]:
    """(start, end) of each, in bytes, ascending."""
    all_names = metadata.schema.names
    columns = [all_names.index(name) for name in names]
    groups = map(metadata.row_group, row_groups)
    return sorted(chunk_range(chunk) for group in groups for chunk in map(group.column, columns))


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """(start, end) of its pages, in bytes, as Arrow reads them: not all writers say where a dictionary is."""
    start: int = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    return start, start + chunk.total_compressed_size


def read_ranges(source: pa.NativeFile, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    """(start, end) of each in bytes, ascending and apart: those that lie close together with one request.

    What an answer holds is there for as long as one of its ranges is.
    """
    merged = _merged(ranges)
    starts = [start for start, _ in merged]
    contents = {
        start: memoryview(content) for start, content in zip(starts, _requested(source, merged), strict=True)
    }
    found = []
    for start, end in ranges:
        first = starts[bisect_right(starts, start) - 1]
        found.append(contents[first][start - first : end - first])
    return found


def _requested(source: Any, ranges: Sequence[tuple[int, int]]) -> Iterable[bytes]:
    if hasattr(source, "read_many"):
        answers: list[bytes] = source.read_many(ranges)
        return answers
    # A single one is made here: who asks may be one of the threads, and would wait for another.
    return side_by_side(
        lambda bounds: source.read_at(bounds[1] - bounds[0], bounds[0]), ranges, waits=len(ranges) > 1
    )


def close_together(
    items: Iterable[A], range_of: Callable[[A], tuple[int, int]], most_bytes: int
) -> Iterator[list[A]]:
    """Those that one request of so many bytes at most reads together; one that is larger by itself.

    range_of: (start, end) of each, in bytes; items come in the order of these.
    """
    run: list[A] = []
    first = last = 0
    for item in items:
        start, end = range_of(item)
        if run and start - last <= GAP_BYTES and end - first <= most_bytes:
            last = max(end, last)
        else:
            if run:
                yield run
            run, first, last = [], start, end
        run.append(item)
    if run:
        yield run


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that lie close together as one."""
    runs = close_together(ranges, lambda one: one, _REQUEST_BYTES)
    return [(run[0][0], max(end for _, end in run)) for run in runs]


class Fetched(RangeReader):
    """A file of a store: some ranges were asked for at once, and the rest is read when it is needed."""

    def __init__(self, source: pa.NativeFile) -> None:
        super().__init__(source.size())
        self._source = source
        self._parts: dict[tuple[int, int], Content] = {}
        self._starts: list[tuple[int, int]] = []

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """ranges: (start, end) in bytes, ascending; what is there already is not read again."""
        missing = [(start, end) for start, end in ranges if self._held(start, end) is None]
        if hasattr(self._source, "read_ranges"):  # it keeps them one by one
            parts = self._source.read_ranges(missing)
        else:
            missing = _merged(missing)
            parts = list(_requested(self._source, missing))
        self._parts |= zip(missing, parts, strict=True)
        self._starts = sorted(self._parts)

    def forget(self) -> None:
        """What was asked for at once: all of it was read."""
        self._parts, self._starts = {}, []

    def _held(self, start: int, end: int) -> pa.Buffer | None:
        place = bisect_right(self._starts, (start, self._size + 1)) - 1
        if place < 0:
            return None
        first, last = self._starts[place]
        return (
            pa.py_buffer(self._parts[first, last]).slice(start - first, end - start) if end <= last else None
        )

    def read(self, size: int = -1) -> Any:
        """Bytes, or a buffer of Arrow's."""
        start, end = self.advance(size)
        held = self._held(start, end)
        return self._source.read_at(end - start, start) if held is None else held


def as_fetched(source: pa.NativeFile) -> tuple[Fetched | None, pa.NativeFile]:
    """Of a store: what ranges are asked for by, and a file of Arrow that has them. A local one as it is."""
    if isinstance(source, pa.MemoryMappedFile):
        return None, source
    fetched = Fetched(source)
    return fetched, pa.PythonFile(fetched, mode="r")
