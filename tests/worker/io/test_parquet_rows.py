"""Rows at some positions are those that Arrow reads, however a file is written, and of few of its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import decimals
from worker.io import parquet_rows, thrift
from worker.io.parquet_rows import Pages, ParquetFooter, rows_at

ROWS = 5_000
_NUMBERS = np.arange(ROWS)
TABLE = pa.table(
    {
        "id": pa.array(_NUMBERS * 7_919 % ROWS),
        "few": pa.array([None if i % 7 == 0 else f"value {i % 5}" for i in range(ROWS)]),
        "text": pa.array([f"text {i * 31}" for i in range(ROWS)]),
        "amount": pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
        "flag": pa.array([i % 3 == 0 for i in range(ROWS)]),
        "at": pa.array(_NUMBERS * 10**6, pa.timestamp("us", "UTC")),
        "bytes": pa.array([bytes([i % 256]) * 4 for i in range(ROWS)], pa.binary(4)),
        "nothing": pa.array([None] * ROWS, pa.int32()),
        "list": pa.array([list(range(i % 4)) for i in range(ROWS)]),
        "struct.x": pa.array(
            [{"a": i, "b": None} for i in range(ROWS)], pa.struct([("a", "int64"), ("b", "int8")])
        ),
    }
)
NAMES = TABLE.schema.names
WRITTEN: list[dict[str, Any]] = [
    {"write_page_index": True, "compression": "zstd"},
    {"write_page_index": False, "compression": "snappy", "write_page_checksum": True},
    {"data_page_version": "2.0", "use_dictionary": False, "row_group_size": 1_700},
    {"compression": "none", "use_dictionary": ["few"], "row_group_size": 1_000, "version": "1.0"},
    {"write_page_index": True, "compression": "gzip", "dictionary_pagesize_limit": 1_000},
]


@pytest.fixture(scope="module", params=range(len(WRITTEN)))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "file.parquet"
    pq.write_table(TABLE, path, data_page_size=1_000, write_batch_size=64, **WRITTEN[request.param])
    return path


@given(st.lists(st.integers(0, ROWS - 1)), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
@settings(max_examples=30, deadline=None)
def test_rows_are_those_that_arrow_reads(path: Path, positions: list[int], names: list[str]) -> None:
    with pa.memory_map(str(path)) as source:
        found = rows_at(source, ParquetFooter.read(source), names, np.array(positions, np.int64))
    assert found.to_pylist() == TABLE.select(names).take(pa.array(positions, pa.int64())).to_pylist()
    assert found.schema.names == names


class Recording:
    """An open file that counts what is read of it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.bytes_read = 0

    def size(self) -> int:
        return len(self.content)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        self.bytes_read += nbytes
        return self.content[offset : offset + nbytes]


def test_of_a_column_only_the_pages_of_the_rows_are_read(path: Path) -> None:
    source: Any = Recording(path.read_bytes())
    footer = ParquetFooter.read(source)
    known: dict[tuple[int, int], Pages] = {}

    def keep(chunk: tuple[int, int], make: Callable[[], Pages]) -> Pages:
        return known[chunk] if chunk in known else known.setdefault(chunk, make())

    for position in (ROWS // 2, ROWS // 2 + 1):
        source.bytes_read = 0
        found = rows_at(source, footer, ["amount"], np.array([position]), keep)
        assert found["amount"].to_pylist() == [Decimal(position) / 100]
    chunk = footer.metadata.row_group(0).column(3)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    dictionary = chunk.data_page_offset - start
    assert source.bytes_read - dictionary < (chunk.total_compressed_size - dictionary) / 2


@pytest.mark.parametrize("position", [-1, ROWS])
def test_a_row_that_the_file_lacks_is_damage(path: Path, position: int) -> None:
    with pa.memory_map(str(path)) as source, pytest.raises(ValueError, match="it has 5000 rows"):
        rows_at(source, ParquetFooter.read(source), ["id"], np.array([position]))


def test_decimals_of_no_scale_are_damage(tmp_path: Path) -> None:
    path = decimals.parquet_file(tmp_path / "a", "k")
    with pa.memory_map(str(path)) as source, pytest.raises(pa.ArrowInvalid, match="scale is not from 0"):
        ParquetFooter.read(source)


def test_a_large_footer_is_left_to_arrow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "_FOOTER_BYTES", 10)
    with pa.memory_map(str(path)) as source:
        footer = ParquetFooter.read(source)
        assert not footer.leaves
        found = rows_at(source, footer, ["text", "id"], np.array([17, 3]))
    assert found.to_pylist() == TABLE.select(["text", "id"]).take([17, 3]).to_pylist()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damage_is_noticed_or_changes_nothing_but_values(path: Path, data: st.DataObject) -> None:
    """Any byte of the footer, of the index of pages and of their headers: never another kind of error."""
    content = bytearray(path.read_bytes())
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    place = data.draw(st.integers(max(0, len(content) - footer_bytes - 2_000), len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    source = pa.BufferReader(bytes(content))
    try:
        footer = ParquetFooter.read(source)
        names = [name for name in footer.leaves if name in NAMES] or footer.schema.names[:1]
        rows_at(source, footer, names, np.array([0, ROWS - 1]))
    except (ValueError, OSError, pa.ArrowException, MemoryError):
        pass


@pytest.mark.parametrize(
    ("module", "bound"),
    [
        (thrift, "VALUES"),
        (parquet_rows, "_INDEX_BYTES"),
        (parquet_rows, "_HEADER_BYTES"),
        (parquet_rows, "_HEADERS_BYTES"),
    ],
)
def test_what_is_too_large_to_be_looked_at_is_left_to_arrow(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, bound: str
) -> None:
    monkeypatch.setattr(module, bound, 10)
    with pa.memory_map(str(path)) as source:
        footer = ParquetFooter.read(source)
        has_index = footer.metadata.row_group(0).column(0).has_offset_index
        assert bool(footer.leaves) == (bound != "VALUES")
        known: list[Pages] = []

        def keep(_: tuple[int, int], make: Callable[[], Pages]) -> Pages:
            known.append(make())
            return known[-1]

        found = rows_at(source, footer, ["text", "id"], np.array([17, 3]), keep)
    assert found.to_pylist() == TABLE.select(["text", "id"]).take([17, 3]).to_pylist()
    is_of_index = bound == "_INDEX_BYTES"
    assert all(bool(len(pages.begins)) == (is_of_index != has_index) for pages in known)


def test_a_footer_is_held_for_no_less_than_it_takes() -> None:
    """Of the smallest values, by which a footer of few bytes is large."""
    written: thrift.Struct = {
        40: (thrift.LIST, (thrift.STRUCT, [{1: (thrift.LIST, (thrift.I32, []))} for _ in range(30_000)])),
    }
    content = thrift.encode(written)
    tracemalloc.start()
    try:
        struct, _, values = thrift.decode_counted(content)
        assert tracemalloc.get_traced_memory()[0] <= values * thrift.VALUE_BYTES
    finally:
        tracemalloc.stop()
    assert struct == written


def test_pages_that_lie_on_each_other_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(TABLE.select(["id"]), path, data_page_size=1_000, write_batch_size=64, **WRITTEN[0])
    content = path.read_bytes()
    chunk = ParquetFooter.read(pa.BufferReader(content)).chunk(0, 0)
    at, size = chunk[4][1], chunk[5][1]
    index, _ = thrift.decode(content, at)
    pages = index[1][1][1]
    pages[1][1] = pages[0][1]
    written = thrift.encode(index)
    assert len(written) <= size
    hostile = content[:at] + written.ljust(size, b"\0") + content[at + size :]
    with pytest.raises(ValueError, match="where the pages"):
        rows_at(pa.BufferReader(hostile), ParquetFooter.read(pa.BufferReader(hostile)), ["id"], np.array([0]))


def test_an_index_of_pages_of_less_than_nothing_is_damage(path: Path) -> None:
    with pa.memory_map(str(path)) as source:
        footer = ParquetFooter.read(source)
        footer.chunk(0, 0).update({4: (thrift.I64, 4), 5: (thrift.I32, -1)})
        with pytest.raises(ValueError, match="ends before its end"):
            rows_at(source, footer, ["id"], np.array([0]))


def test_headers_are_read_without_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = tmp_path / "file.parquet", 200_000
    table = pa.table({"id": np.arange(rows)})
    pq.write_table(table, path, data_page_size=400_000, compression="none", use_dictionary=False)
    source: Any = Recording(path.read_bytes())
    monkeypatch.setattr(parquet_rows, "_CHUNK_BYTES", 1_000_000)
    assert rows_at(source, ParquetFooter.read(source), ["id"], np.array([rows - 1])).to_pylist() == [
        {"id": rows - 1}
    ]
    assert source.bytes_read < table.nbytes / 2


def test_headers_are_found_across_what_is_read_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "_HEADER_BYTES", 300)
    monkeypatch.setattr(parquet_rows, "_WINDOW_BYTES", 1_500)
    positions = np.arange(0, ROWS, 50)
    with pa.memory_map(str(path)) as source:
        found = rows_at(source, ParquetFooter.read(source), ["few", "text", "amount"], positions)
    assert found.equals(TABLE.select(["few", "text", "amount"]).take(pa.array(positions)).combine_chunks())


def test_large_columns_are_read_one_after_the_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[tuple[int, int]]] = []

    def side_by_side(read: Callable[[Any], Any], ranges: list[Any], *, waits: bool) -> list[Any]:
        assert waits
        asked.append([one for one in ranges if isinstance(one, tuple)])
        return list(map(read, ranges))

    monkeypatch.setattr(parquet_rows, "side_by_side", side_by_side)
    source = pa.BufferReader(path.read_bytes())
    footer = ParquetFooter.read(source)
    names, positions = ["text", "amount"], np.array([17, 3])
    together = rows_at(source, footer, names, positions)
    [at_once] = filter(None, asked)
    asked.clear()
    monkeypatch.setattr(parquet_rows, "_BYTES_AT_ONCE", sum(end - begin for begin, end in at_once) - 1)
    assert rows_at(source, footer, names, positions).equals(together)
    first, second = filter(None, asked)
    assert first + second == at_once
