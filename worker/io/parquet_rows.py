"""Rows of a Parquet file at some positions: of each column the pages that hold them are read, and no more.

Arrow decodes whole column chunks, often of a million rows. So a column's dictionary and the wanted pages are
put together as a file of one column, whose footer says what the original's says of it, and Arrow reads that:
codecs, encodings, types and checksums of pages stay its own. Where the pages lie tells the offset index, or
else the pages' headers, for which all of a small column chunk is read from a store. Columns with others in
them are read as Arrow reads them, and so is what tells of pages at too great a length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.io import thrift
from worker.io.decimals import check_decimals
from worker.io.parquet_footers import make_readable, parse_footer, read_tail
from worker.io.parquet_pages import (
    BATCH_BYTES,
    BYTE_ARRAY,
    DELTA_BYTE_ARRAY,
    Batch,
    batch_of,
    file_of_pages,
    leaves_of,
    page_bytes,
)
from worker.io.row_groups import side_by_side
from worker.io.sorting import Int64Array
from worker.io.thrift import Struct
from worker.process.deadline import check_time
from worker.process.memory import holding

_FOOTER_BYTES = 512 * 1024  # that are looked at here: more take longer than reading whole column chunks
_FACTOR = 60  # by which a footer is larger in memory of Arrow's
_INDEX_BYTES = 64 * 1024  # of an offset index that is looked at: of more than 5,000 pages
_HEADER_BYTES = 8 * 1024  # of a page's header that is looked at: of statistics it may hold two values
_HEADERS_BYTES = 256 * 1024  # of those of a column chunk together
_WINDOW_BYTES = 64 * 1024  # are read at the place of a page's header
_CHUNK_BYTES = 2 * 1024**2  # of which a store is asked at once for all headers, with the pages
_BYTES_AT_ONCE = 64 * 1024**2  # of pages of several columns: beyond it, one column is read after the other
_PAGE_BYTES_UNPACKED = 256 * 1024**2  # of a page that is read, once it is unpacked: it is as a whole
_BATCH_ROWS = 262_144  # are decoded at a time
_INDEX_IN_DICTIONARY = 8  # bytes of a row whose value stays in the dictionary
_DATA_PAGES = {0: 5, 3: 8}  # kinds, and the field of the page header that tells the number of values
# Fields of Parquet's structs (parquet.thrift).
_VERSION, _SCHEMA, _ROW_GROUPS, _CREATED_BY = 1, 2, 4, 6
_TYPE, _REPETITION, _NAME, _CHILDREN, _REPEATED = 1, 3, 4, 5, 2
_CHUNKS = 1
_META_DATA, _OFFSET_INDEX_AT, _OFFSET_INDEX_BYTES = 3, 4, 5
_ENCODINGS, _COMPRESSED_BYTES, _DATA_PAGE_AT, _INDEX_PAGE_AT, _DICTIONARY_AT = 2, 7, 9, 10, 11
_STATISTICS_AND_LATER = 12
_PAGE_LOCATIONS, _PAGE_AT, _PAGE_BYTES, _FIRST_ROW = 1, 1, 2, 3
_PAGE_KIND, _PAGE_CONTENT_BYTES = 1, 3


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    """What a file says of itself. leaves: of top-level columns without others in them, the place of the chunk
    and the element of the schema; none if the footer is too large to be looked at, or has too many values."""

    metadata: pq.FileMetaData
    schema: pa.Schema
    leaves: Mapping[str, tuple[int, Struct]]
    struct: Struct
    size_bytes: int

    @classmethod
    def read(cls, source: pa.NativeFile) -> ParquetFooter:
        """Raises pa.ArrowException or ValueError when it is damaged, and OSError."""
        tail, length = read_tail(source)
        metadata = parse_footer(tail, length)
        struct: Struct = {}
        values = 0
        with _told_as_damage(), suppress(thrift.TooManyValuesError):
            if length <= _FOOTER_BYTES:
                struct, _, values = thrift.decode_counted(tail, len(tail) - length)
                make_readable(struct[_SCHEMA][1][1])
        with _told_as_damage():
            leaves = _leaves(struct)
        schema = pq.ParquetFile(pa.BufferReader(tail), metadata=metadata).schema_arrow
        check_decimals(schema)
        return cls(metadata, schema, leaves, struct, _FACTOR * length + thrift.VALUE_BYTES * values)

    def group_rows(self) -> Int64Array:
        groups = range(self.metadata.num_row_groups)
        return np.array([self.metadata.row_group(group).num_rows for group in groups], np.int64)

    def chunk(self, group: int, leaf: int) -> Struct:
        groups: list[Struct] = self.struct[_ROW_GROUPS][1][1]
        chunk: Struct = groups[group][_CHUNKS][1][1][leaf]
        return chunk


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the data pages of a column chunk lie, in bytes, and the first row of each in its row group.

    start: of the chunk; what lies between it and the first page is the dictionary. There are none if what
    tells of them is too large to be looked at: then Arrow reads the chunk.
    """

    start: int
    begins: Int64Array
    ends: Int64Array
    first_rows: Int64Array

    @property
    def size_bytes(self) -> int:
        return 3 * self.begins.nbytes + 200


KeepPages: TypeAlias = Callable[[tuple[int, int], Callable[[], Pages]], Pages]
"""(row group, chunk) and what makes them known."""


def make_known(_: tuple[int, int], make: Callable[[], Pages]) -> Pages:
    return make()


Expect: TypeAlias = Callable[[int], None]
"""Is told how many bytes come, before they are held; what it raises ends the reading."""


def expect_any(_: int) -> None:
    pass


class LargePageError(ValueError):
    """A page is right, and larger than any that is read."""


def rows_at(
    source: pa.NativeFile,
    footer: ParquetFooter,
    names: Sequence[str],
    positions: Int64Array,
    keep: KeepPages = make_known,
    expect: Expect = expect_any,
) -> pa.Table:
    """The top-level columns `names` of the rows at `positions` of the file, in the order of these.

    Raises pa.ArrowException or ValueError when the file is damaged, LargePageError, OSError, and what
    `expect` raises.
    """
    rows = footer.group_rows()
    ends = np.cumsum(rows)
    if len(positions) and not 0 <= positions.min() <= positions.max() < (ends[-1] if len(ends) else 0):
        raise ValueError(f"it has {ends[-1] if len(ends) else 0} rows, and not one at {positions.max()}")
    of_group = np.searchsorted(ends, positions, side="right")
    parts, order = [], []
    for group in np.unique(of_group).tolist():
        check_time()
        here = np.flatnonzero(of_group == group)
        order.append(here)
        parts.append(
            _rows_of_group(source, footer, names, group, positions[here] - (ends - rows)[group], keep, expect)
        )
    fields = pa.schema([footer.schema.field(name) for name in names])
    if not parts:
        return fields.empty_table()
    return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


def _rows_of_group(
    source: pa.NativeFile,
    footer: ParquetFooter,
    names: Sequence[str],
    group: int,
    rows: Int64Array,
    keep: KeepPages,
    expect: Expect,
) -> pa.Table:
    """rows: their places in the row group."""

    def pages_of(name: str) -> Pages:
        leaf, _ = footer.leaves[name]
        return keep((group, leaf), lambda: _pages(source, footer, group, leaf))

    single = [name for name in names if name in footer.leaves]
    with _told_as_damage():
        found = zip(single, side_by_side(pages_of, single, waits=not _is_local(source)), strict=True)
        pages = {name: one for name, one in found if len(one.begins)}
        columns = _single_columns(source, footer, pages, group, rows, expect)
    if others := [name for name in names if name not in columns]:
        file = pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True)
        for name in others:
            leaves = leaves_of(footer.metadata, [name])
            batch = batch_of(source, footer.metadata, [group], leaves, _BATCH_ROWS)
            read = file.iter_batches(batch.rows, row_groups=[group], columns=[name], use_threads=False)
            kind = footer.schema.field(name).type
            with holding(batch.size_bytes):
                columns[name] = _taken((one.column(name) for one in read), rows, kind, expect)
    return pa.table([columns[name] for name in names], pa.schema([footer.schema.field(n) for n in names]))


def _single_columns(
    source: pa.NativeFile,
    footer: ParquetFooter,
    pages_of: Mapping[str, Pages],
    group: int,
    rows: Int64Array,
    expect: Expect,
) -> dict[str, pa.ChunkedArray]:
    wanted = {name: _wanted(pages, rows) for name, pages in pages_of.items()}
    group_rows = footer.metadata.row_group(group).num_rows
    columns = {}
    for name, one, parts in _contents(source, wanted):
        pages = pages_of[name]
        lasts = np.append(pages.first_rows[1:], group_rows)
        counts = (lasts - pages.first_rows)[one]
        has_dictionary = pages.start < int(pages.begins[0])
        page_of_row = np.searchsorted(pages.first_rows[one], rows, side="right") - 1
        starts = np.cumsum(counts) - counts
        places = rows - pages.first_rows[one][page_of_row] + starts[page_of_row]
        values = _decoded(footer, group, name, parts, int(counts.sum()), has_dictionary)
        columns[name] = _taken(values, places, footer.schema.field(name).type, expect)
    return columns


def _taken(
    batches: Iterable[pa.Array], places: Int64Array, kind: pa.DataType, expect: Expect
) -> pa.ChunkedArray:
    """What is at `places` of a column, in the order of these. batches: of all its values."""
    parts, order, start = [pa.array([], kind)], [np.empty(0, np.int64)], 0
    for batch in batches:
        here = np.flatnonzero((places >= start) & (places < start + len(batch)))
        found = batch.take(pa.array(places[here] - start))
        expect(_plain_bytes(found))
        parts.append(found.cast(kind))
        order.append(here)
        start += len(batch)
    in_order = np.concatenate(order)
    values = pa.chunked_array(parts, kind)
    if (np.diff(in_order) > 0).all():
        return values
    return values.take(pa.array(np.argsort(in_order, kind="stable")))


def _plain_bytes(values: pa.Array) -> int:
    """That they have without a dictionary."""
    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _wanted(pages: Pages, rows: Int64Array) -> tuple[Int64Array, list[tuple[int, int]]]:
    """The pages that hold some rows, and (begin, end) of each, behind those of the dictionary."""
    chosen = np.unique(np.searchsorted(pages.first_rows, rows, side="right") - 1)
    of_pages = zip(pages.begins[chosen].tolist(), pages.ends[chosen].tolist(), strict=True)
    ranges = [(pages.start, int(pages.begins[0])), *of_pages]
    return chosen, [(begin, end) for begin, end in ranges if begin < end]


def _contents(
    source: pa.NativeFile, wanted: Mapping[str, tuple[Int64Array, list[tuple[int, int]]]]
) -> Iterator[tuple[str, Int64Array, list[bytes]]]:
    """Of each column what its ranges hold; columns are read at once as long as they are small."""

    def read(asked: tuple[int, int]) -> bytes:
        begin, end = asked
        content: bytes = source.read_at(end - begin, begin)
        return content

    sizes = [sum(end - begin for begin, end in ranges) for _, ranges in wanted.values()]
    is_small = sum(sizes) <= _BYTES_AT_ONCE
    columns = list(wanted.items())
    for some in [columns] if is_small else [[one] for one in columns]:
        asked = [one for _, (_, ranges) in some for one in ranges]
        with holding(sum(end - begin for begin, end in asked)):
            contents = iter(list(side_by_side(read, asked, waits=not _is_local(source))))
            for name, (chosen, ranges) in some:
                yield name, chosen, [next(contents) for _ in ranges]


def _decoded(
    footer: ParquetFooter, group: int, name: str, parts: Sequence[bytes], count: int, has_dictionary: bool
) -> Iterator[pa.Array]:
    """The values of a column's dictionary and some of its pages, in batches."""
    leaf, element = footer.leaves[name]
    told: Struct = footer.chunk(group, leaf)[_META_DATA][1]
    meta_data = {field: value for field, value in told.items() if field < _STATISTICS_AND_LATER}
    for field in (_INDEX_PAGE_AT, _DICTIONARY_AT):
        meta_data.pop(field, None)
    further: Struct = {_VERSION: (thrift.I32, int(footer.struct[_VERSION][1]))}
    kind, _ = created_by = footer.struct.get(_CREATED_BY, (0, None))
    if kind == thrift.BINARY:  # by which Arrow knows the mistakes of some writers
        further[_CREATED_BY] = created_by
    sizes = [page_bytes(thrift.decode(part)[0]) for part in parts]
    if max(sizes) > _PAGE_BYTES_UNPACKED:
        raise LargePageError(
            f"a page of {name} has {max(sizes):,} bytes, and at most {_PAGE_BYTES_UNPACKED:,} are read"
        )
    in_dictionary = [name] if has_dictionary and element[_TYPE][1] == BYTE_ARRAY else None
    width = footer.metadata.schema.column(leaf).length  # of fixed values; 0 of others
    row_bytes = _INDEX_IN_DICTIONARY if in_dictionary else max(width, sum(sizes) / max(count, 1))
    batch = Batch.of(row_bytes, _BATCH_ROWS, has_deltas=DELTA_BYTE_ARRAY in told[_ENCODINGS][1][1])
    content = file_of_pages(parts, meta_data, element, count, has_dictionary=has_dictionary, further=further)
    read = 0
    with holding(max(sizes) + min(sum(sizes), BATCH_BYTES)):
        file = pq.ParquetFile(content, read_dictionary=in_dictionary, page_checksum_verification=True)
        for one in file.iter_batches(batch.rows, use_threads=False):
            read += one.num_rows
            yield one.column(0)
    if read != count:
        raise ValueError(f"pages of {name} have {read} values and not {count}")


def _pages(source: pa.NativeFile, footer: ParquetFooter, group: int, leaf: int) -> Pages:
    chunk = footer.chunk(group, leaf)
    told: Struct = chunk[_META_DATA][1]
    start = int(told[_DATA_PAGE_AT][1])
    if _DICTIONARY_AT in told and told[_DICTIONARY_AT][1] > 0:
        start = min(start, int(told[_DICTIONARY_AT][1]))
    size = int(told[_COMPRESSED_BYTES][1])
    if not 0 <= start <= start + size <= source.size():
        raise ValueError("a column chunk lies outside the file")
    found: list[tuple[int, int, int]] | None = None
    if _OFFSET_INDEX_AT not in chunk or _OFFSET_INDEX_BYTES not in chunk:
        found = _walked(source, start, size)
    elif (index_bytes := int(chunk[_OFFSET_INDEX_BYTES][1])) <= _INDEX_BYTES:
        content = source.read_at(max(0, index_bytes), int(chunk[_OFFSET_INDEX_AT][1]))
        found = [
            (page[_PAGE_AT][1], page[_PAGE_AT][1] + page[_PAGE_BYTES][1], page[_FIRST_ROW][1])
            for page in thrift.decode(content)[0][_PAGE_LOCATIONS][1][1]
        ]
    if found is None:
        return Pages(start, *np.empty((3, 0), np.int64))
    rows = footer.metadata.row_group(group).num_rows
    begins, ends, first_rows = np.array(found, np.int64).reshape(-1, 3).T
    is_whole = (
        len(found) and first_rows[0] == 0 and (np.diff(first_rows) >= 0).all() and first_rows[-1] < rows
    )
    are_apart = (begins < ends).all() and (ends[:-1] <= begins[1:]).all()
    if not is_whole or not are_apart or begins[0] < start or ends[-1] > start + size:
        raise ValueError("where the pages of a column chunk lie makes no sense")
    return Pages(start, begins, ends, first_rows)


def _walked(source: pa.NativeFile, start: int, size: int) -> list[tuple[int, int, int]] | None:
    """(begin, end, first row) of each data page, by the headers of all pages; None if these are too large."""
    found = []
    at, stop = start, start + size
    row = header_bytes = 0
    held, held_at = b"", start
    step = _WINDOW_BYTES if size > _CHUNK_BYTES or _is_local(source) else size
    while at < stop:
        window_end = min(at + _HEADER_BYTES, stop)
        if window_end > held_at + len(held):
            held, held_at = source.read_at(min(step, stop - at), at), at
        window = held[at - held_at : window_end - held_at]
        try:
            header, length = thrift.decode(window)
        except ValueError:
            if window_end < stop:  # Arrow tells whether it is larger, or damaged
                return None
            raise
        header_bytes += length
        if header_bytes > _HEADERS_BYTES:
            return None
        content_at = at + length
        end = content_at + int(header[_PAGE_CONTENT_BYTES][1])
        if end <= at:
            raise ValueError("a page has no bytes")
        values_in = _DATA_PAGES.get(header[_PAGE_KIND][1])
        if values_in is not None:
            found.append((at, end, row))
            row += int(header[values_in][1][1][1])
        at = end
    return found


def _is_local(source: pa.NativeFile) -> bool:
    return isinstance(source, pa.MemoryMappedFile)


def _leaves(struct: Struct) -> dict[str, tuple[int, Struct]]:
    if not struct:
        return {}
    elements: list[Struct] = struct[_SCHEMA][1][1]
    found: dict[str, tuple[int, Struct]] = {}
    repeated = set()
    leaf, at = 0, 1
    while at < len(elements):
        element = elements[at]
        name = element[_NAME][1].decode()
        if name in found:
            repeated.add(name)
        if _CHILDREN not in element and element.get(_REPETITION, (0, 0))[1] != _REPEATED:
            found[name] = leaf, element
        left = 1  # of what is in this column
        while left:
            children = elements[at].get(_CHILDREN, (0, 0))[1]
            leaf += not children
            left += children - 1
            at += 1
    return {name: one for name, one in found.items() if name not in repeated}


@contextmanager
def _told_as_damage() -> Iterator[None]:
    """What is not there, or is something else, in structs that a damaged file has."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its footer makes no sense: {type(error).__name__}: {error}") from error
