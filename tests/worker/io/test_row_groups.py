"""Row groups are read with few requests, many at a time, and come as Arrow reads them."""

import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.patience import PATIENCE_SECONDS
from worker.index.dictionary import PARTITION_ID
from worker.index.footers import footers
from worker.index.key_set_index import ROW_ADDRESS, decode
from worker.index.run_files import RunFile, write_run
from worker.io.file_formats import FORMATS
from worker.io.row_groups import REQUESTS, RowGroups
from worker.io.storage import Storage
from worker.keys.key_set import NULL_MASK

ROWS = 64_000
GROUPS = 64


class Remote:
    """A file of a store whose answers come once so many requests wait as can."""

    def __init__(self, content: bytes, at_once: int) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self._barrier = threading.Barrier(at_once)

    def size(self) -> int:
        return len(self.content)

    def read_at(self, size: int, offset: int) -> bytes:
        self.asked.append((offset, size))
        self._barrier.wait(PATIENCE_SECONDS)
        return self.content[offset : offset + size]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ids, long words between them, and a column with a dictionary."""
    random = np.random.default_rng(0)
    words = pa.array([random.bytes(100) for _ in range(ROWS)])
    rows = pa.table({"id": np.arange(ROWS), "word": words, "name": [f"n{i % 7}" for i in range(ROWS)]})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=ROWS // GROUPS, use_dictionary=["name"])
    return tmp_path / "x.parquet"


def test_the_column_chunks_of_many_row_groups_are_asked_for_at_once(path: Path) -> None:
    metadata = pq.read_metadata(path)
    remote = Remote(path.read_bytes(), REQUESTS)
    groups = list(range(0, GROUPS, 2))[:REQUESTS]
    rows = RowGroups(remote, metadata).read(groups, ["id"])
    assert rows.equals(pq.ParquetFile(path).read_row_groups(groups, columns=["id"]))
    wanted = sum(metadata.row_group(group).column(0).total_compressed_size for group in groups)
    assert sum(size for _, size in remote.asked) == wanted
    assert len(remote.asked) == len(groups)


def test_neighbours_are_one_request(path: Path) -> None:
    metadata = pq.read_metadata(path)
    remote = Remote(path.read_bytes(), 1)
    rows = RowGroups(remote, metadata).read(range(10, 20), ["id", "word", "name"])
    assert rows.equals(pq.ParquetFile(path).read_row_groups(range(10, 20)))
    assert len(remote.asked) == 1


def test_what_a_request_brought_along_is_not_asked_for_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.io.row_groups.GAP_BYTES", 1024**2)
    metadata = pq.read_metadata(path)
    remote = Remote(path.read_bytes(), 1)
    row_groups = RowGroups(remote, metadata)
    ids = row_groups.read(range(5), ["id"])
    (asked,) = remote.asked  # with what lies between
    assert row_groups.read([1, 3], ["name"]).num_rows == 2 * ROWS // GROUPS
    assert remote.asked == [asked]
    assert ids.equals(pq.ParquetFile(path).read_row_groups(range(5), columns=["id"]))


def columns_of(remote: Remote, at_once: int, name: str) -> pa.Table:
    """What is read of a data file, whose column chunks come once so many requests wait."""
    file = FORMATS["parquet"](remote)
    remote.asked.clear()
    remote._barrier = threading.Barrier(at_once)
    return pa.Table.from_batches(file.batches([(name,)]))


def test_column_chunks_of_a_data_file_are_asked_for_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.io.row_groups.GAP_BYTES", 0)
    remote = Remote(path.read_bytes(), 1)
    ids = columns_of(remote, REQUESTS, "id")
    assert ids.equals(pq.read_table(path, columns=["id"]))
    assert len(remote.asked) == GROUPS


# Ids take 8 KB in each row group and words 100 KB, which lie between ids and are read along.
@pytest.mark.parametrize(
    ("name", "most", "requests"), [("word", 1024**2, 8), ("word", 50 * 1024, GROUPS), ("id", 1024**2, 7)]
)
def test_so_many_bytes_of_a_data_file_are_asked_for_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int, requests: int
) -> None:
    monkeypatch.setattr("worker.io.file_formats.AHEAD_BYTES", most)
    remote = Remote(path.read_bytes(), 1)
    assert columns_of(remote, 1, name).equals(pq.read_table(path, columns=[name]))
    assert len(remote.asked) == requests
    assert max(size for _, size in remote.asked) <= max(most, 110 * 1024)


def test_what_was_asked_for_ahead_is_kept_until_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.io.file_formats.AHEAD_BYTES", 1024**2)
    remote = Remote(path.read_bytes(), 1)
    file: Any = FORMATS["parquet"](remote)
    batches = file.batches([("id",), ("name",)])
    first = next(batches)
    asked = len(remote.asked)
    rows = [first, *batches]
    assert len(remote.asked) > asked
    assert pa.Table.from_batches(rows).equals(pq.read_table(path, columns=["id", "name"]))
    assert not file._fetched._parts


@pytest.mark.parametrize("impossible", [[(-5, 100)], [(0, 10 * 1024**3), (10 * 1024**3, 0)]])
def test_nothing_is_asked_for_by_a_footer_that_can_not_be_right(
    path: Path, monkeypatch: pytest.MonkeyPatch, impossible: list[tuple[int, int]]
) -> None:
    chunks = cycle(impossible)
    monkeypatch.setattr("worker.io.file_formats.chunk_range", lambda _: next(chunks))
    remote = Remote(path.read_bytes(), 1)
    assert columns_of(remote, 1, "id").equals(pq.read_table(path, columns=["id"]))
    assert all(0 <= start <= start + size <= remote.size() for start, size in remote.asked)


def test_arrow_opens_a_file_once_whatever_is_read_of_it(path: Path) -> None:
    with (
        pa.memory_map(str(path)) as source,
        patch("worker.io.row_groups.pq.ParquetFile", wraps=pq.ParquetFile) as opened,
    ):
        row_groups = RowGroups(source, pq.read_metadata(path))
        ids, names = (row_groups.read([3, 1], [name]) for name in ("id", "name"))
    assert opened.call_count == 1
    assert ids.num_rows == names.num_rows == 2 * ROWS // GROUPS


def test_what_was_not_foreseen_is_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.io.row_groups._column_chunks", lambda *_: [(0, 100), (5_000, 5_100)])
    remote = Remote(path.read_bytes(), 1)
    rows = RowGroups(remote, pq.read_metadata(path)).read([3, 1], ["name", "id"])
    assert rows.equals(pq.ParquetFile(path).read_row_groups([3, 1], columns=["name", "id"]))
    assert len(remote.asked) > 2


def test_a_store_that_fails_is_told(path: Path) -> None:
    remote = Remote(path.read_bytes()[: 100 * 1024], 1)
    with pytest.raises((OSError, pa.ArrowException)):
        RowGroups(remote, pq.read_metadata(path)).read([GROUPS - 1], ["word"])

    class Broken(Remote):
        def read_at(self, size: int, offset: int) -> bytes:
            raise OSError(f"no answer for {size} bytes from {offset}")

    with pytest.raises(OSError, match="no answer"):
        RowGroups(Broken(path.read_bytes(), 1), pq.read_metadata(path)).read([1], ["id"])


def test_footers_of_remote_files_are_asked_for_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(8)

    def read(*_: object) -> Iterator[str]:
        barrier.wait(PATIENCE_SECONDS)
        return iter(())

    monkeypatch.setattr("worker.index.footers.footer", read)
    monkeypatch.setattr(Storage, "is_local", lambda *_: False)
    files = [RunFile(f"{path}{i}", "", 0, 0, (), (), (), ()) for i in range(8)]
    assert len(list(footers(Storage(), files, ()))) == 8


def test_a_flipped_bit_in_a_page_of_the_index_is_noticed(tmp_path: Path) -> None:
    """Encodings notice some: others would be the address of another row."""
    random = np.random.default_rng(0)
    entries = pa.table(
        {
            PARTITION_ID: np.zeros(ROWS, np.int64),
            NULL_MASK: np.zeros(ROWS, np.int32),
            "id": random.integers(1, 9, ROWS).cumsum(),
            ROW_ADDRESS: random.permutation(ROWS),
        }
    )
    storage = Storage()
    (run,) = write_run(storage, str(tmp_path), entries, primary_key=entries.schema.names)
    path = Path(run.location)
    intact, metadata = path.read_bytes(), pq.read_metadata(path)
    noticed = unnoticed = 0
    for name in ("id", ROW_ADDRESS):
        chunk = metadata.row_group(0).column(metadata.schema.names.index(name))
        for back in range(1, 200, 7):
            damaged = bytearray(intact)
            damaged[chunk.data_page_offset + chunk.total_compressed_size - back] ^= 1
            path.unlink()  # what an earlier read has mapped stays what it was
            path.write_bytes(damaged)
            with storage.open_input(run.location) as source, pytest.raises((OSError, pa.ArrowException)):
                RowGroups(source, metadata).read([0], [name])
            noticed += 1
            with pytest.raises((OSError, pa.ArrowException)):
                decode(storage, run.location)
            try:
                unnoticed += pq.ParquetFile(path).read_row_group(0, [name]).num_rows > 0
            except (OSError, pa.ArrowException):
                continue
    assert noticed > unnoticed > 0  # by whoever does not look at the checksums
