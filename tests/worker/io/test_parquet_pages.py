"""Rows are decoded in batches of few bytes, however small the file is that has them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.arrow_memory import measured
from worker.io import parquet_pages, thrift
from worker.io.file_formats import FORMATS
from worker.io.parquet_rows import ParquetFooter, rows_at

ROWS, LENGTH = 3_000, 10_000
BATCH_BYTES = 500_000
SHORT = ["short"] * ROWS
LONG = "x" * LENGTH
DELTA = {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}
WRITTEN: dict[str, tuple[Callable[[], pa.Array], dict[str, Any]]] = {
    "a dictionary": (lambda: pa.array([*SHORT[: ROWS // 2], *[LONG] * (ROWS // 2)]), {}),
    "a dictionary and nulls": (lambda: pa.array([None, LONG] * (ROWS // 2)), {"compression": "none"}),
    "a dictionary of large texts": (lambda: pa.array([LONG] * ROWS, pa.large_string()), {}),
    "no dictionary": (lambda: pa.array([LONG] * ROWS), {"use_dictionary": False, "compression": "zstd"}),
    "differences": (lambda: pa.array([LONG] * ROWS), DELTA),
    "a struct": (lambda: pa.array([{"a": LONG}] * ROWS), {"compression": "gzip"}),
    "a list": (lambda: pa.array([[], [LONG, LONG]] * (ROWS // 2)), {}),
    "fixed": (lambda: pa.array([LONG.encode()] * ROWS, pa.binary(LENGTH)), {}),
    "numbers in a list": (lambda: pa.array([[7] * 1_000] * ROWS), {}),
}


@pytest.fixture(params=WRITTEN)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, pa.Table]:
    make_column, how = WRITTEN[request.param]
    table = pa.table({"v": make_column()})
    pq.write_table(table, tmp_path / "file.parquet", data_page_size=100_000, write_batch_size=10, **how)
    return tmp_path / "file.parquet", table


@pytest.mark.parametrize("told", [None, 0])
def test_a_dictionary_whose_place_is_not_told_is_found(
    told: int | None, tmp_path: Path, held: pa.MemoryPool
) -> None:
    path, table = tmp_path / "file.parquet", pa.table({"v": [LONG] * ROWS})
    pq.write_table(table, path)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer, _ = thrift.decode(content, len(content) - 8 - length)
    [group] = footer[4][1][1]
    chunk = group[1][1][1][0][3][1]
    if told is None:
        chunk[9] = chunk.pop(11)  # data pages begin where the dictionary does
    else:
        chunk[9], chunk[11] = chunk[11], (thrift.I64, told)
    end = thrift.encode(footer)
    path.write_bytes(content[: -8 - length] + end + len(end).to_bytes(4, "little") + b"PAR1")
    with pa.memory_map(str(path)) as source:
        batches = [len(one) for one in FORMATS["parquet"](source).batches([("v",)])]
    assert (sum(batches), max(batches)) == (ROWS, BATCH_BYTES // LENGTH)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[pa.MemoryPool]:
    """Tells how much Arrow has held at most."""
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", BATCH_BYTES)
    monkeypatch.setattr(parquet_pages, "_DELTA_ROWS", BATCH_BYTES // LENGTH)
    with measured() as pool:
        yield pool


def test_keys_are_read_in_batches_of_few_bytes(written: tuple[Path, pa.Table], held: pa.MemoryPool) -> None:
    path, table = written
    start = 0
    with pa.memory_map(str(path)) as source:
        for batch in FORMATS["parquet"](source).batches([("v",)]):
            assert batch.column("v").equals(table["v"].slice(start, len(batch)).combine_chunks())
            start += len(batch)
    assert start == ROWS
    assert held.max_memory() < 6 * BATCH_BYTES


def test_rows_that_are_too_many_bytes_are_never_held(
    written: tuple[Path, pa.Table], held: pa.MemoryPool
) -> None:
    path, _ = written
    expected = []

    def expect(size_bytes: int) -> None:
        expected.append(size_bytes)
        if sum(expected) > BATCH_BYTES:
            raise RuntimeError

    with pa.memory_map(str(path)) as source, pytest.raises(RuntimeError):
        rows_at(source, ParquetFooter.read(source), ["v"], np.arange(ROWS), expect=expect)
    assert held.max_memory() < 6 * BATCH_BYTES


def test_rows_are_the_same_however_many_are_decoded_at_a_time(
    written: tuple[Path, pa.Table], held: pa.MemoryPool
) -> None:
    path, table = written
    positions = np.random.default_rng(1).permutation(ROWS)[:200]
    with pa.memory_map(str(path)) as source:
        found = rows_at(source, ParquetFooter.read(source), ["v"], positions)
    assert found.equals(table.take(pa.array(positions)).combine_chunks())
