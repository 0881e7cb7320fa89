"""What docs/benchmarks.md says of scale follows from the code, and is counted on small tables."""

from __future__ import annotations

import math
import re
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyroaring import BitMap64
from werkzeug.serving import make_server

from tests.benchmarks import planning
from tests.benchmarks.planning import ROWS_PER_FILE, measure_planning
from tests.s3 import S3
from worker.deletes.puffin import read_deletion_vector
from worker.deletes.write import write_deletion_vectors
from worker.index.build import COMMIT_ROWS, RUN_ROWS, build_tasks, commit_batches
from worker.index.compaction import FILE_ROWS
from worker.index.dictionary import IndexedFile
from worker.index.run_files import ROW_GROUP_ROWS
from worker.io import paths
from worker.io.storage import Storage
from worker.keys.read import KeyReader
from worker.lookup.positions import MEMORY_POSITIONS
from worker.lookup.resolution import DRIVER_KEYS
from worker.spark.tasks import RESULTS_AT_ONCE
from worker.table import manifests
from worker.table.files import (
    DataFile,
    DeleteFile,
    DeleteFiles,
    FileContent,
    NewDeleteFile,
    PartitionKey,
)

PAGE = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
SCALE = PAGE.partition("\n## Scale\n")[2]
ROWS, FILES, DELETES = 10**12, 10**7, 10**8
BYTES_OF_FILE, BYTES_OF_LISTED_FILE, BYTES_FOR_A_MOMENT = 36, 52, 200
BYTES_OF_DELETE_FILE = 68
CHARACTERS_OF_PATH = 120
KEYS = round(DELETES / 6)
BYTES_OF_VECTOR_FILE, BYTES_OF_VECTOR = 420, 760
"""Of one with two positions: in the store, and in the driver's memory."""
REQUESTS_OF_WRITE = REQUESTS_OF_READ = 1


def figures() -> dict[str, str]:
    """The first and the last column of the page's tables."""
    rows = re.findall(r"^\| (.*?) \|.*\| (.*?) \|$", SCALE, re.MULTILINE)
    return {what: figure for what, figure in rows if what != "what"}


def hit(places: float) -> float:
    """How many of so many places the keys of a conversion fall into, evenly."""
    return places * -math.expm1(-KEYS / places)


def test_every_figure_follows_from_the_code() -> None:
    groups = hit(ROWS / ROW_GROUP_ROWS)
    touched = hit(FILES)
    assert figures() == {
        "size of the index": f"{ROWS * 3.5 / 1e9:,.0f} GB",
        "tasks that build it": f"{ROWS // RUN_ROWS:,}",
        "commits of the build": f"{math.ceil(ROWS / COMMIT_ROWS):,}",
        "tasks of the build at a time, at most": f"{COMMIT_ROWS // RUN_ROWS}",
        "files of the index, once merged": f"{ROWS // FILE_ROWS:,}",
        "keys of a conversion": f"{KEYS:,}",
        "ranges that a conversion's keys are sorted into": f"{math.ceil(KEYS / DRIVER_KEYS)}",
        "rows of the index that one conversion decodes, at most": f"{min(ROWS, KEYS * ROW_GROUP_ROWS):,}",
        "row groups of the index that may hold a key": f"{groups:,.0f}",
        "ranges of them, of keys and addresses, at most": f"{2 * groups:,.0f}",
        "bytes of these": f"{groups * ROW_GROUP_ROWS * 3.5 / 1e9:,.0f} GB",
        "data files that get new deletes": f"{touched:,.0f}",
        "requests that write their vectors": f"{REQUESTS_OF_WRITE * round(touched):,}",
        "bytes of their vectors": f"{touched * BYTES_OF_VECTOR_FILE / 1e9:.1f} GB",
        "requests that read their old vectors, at most": f"{REQUESTS_OF_READ * round(touched):,}",
        "new vectors and the old ones, in the driver": f"{touched * 2 * BYTES_OF_VECTOR / 1e9:.1f} GB",
        "live files, from the manifests": f"{FILES * BYTES_OF_FILE / 1e9:.1f} GB",
        "the index's list of files": f"{FILES * BYTES_OF_LISTED_FILE / 1e9:.1f} GB",
        "both, and what is made of them for a moment": f"{FILES * BYTES_FOR_A_MOMENT / 1e9:.1f} GB",
        "a deletion vector of each live file": f"{FILES * BYTES_OF_DELETE_FILE / 1e9:.1f} GB",
        "text of the paths of both, in memory": f"{2 * paths.MEMORY_BYTES / 1e6:.0f} MB",
        "text of the paths of both, in temporary files": f"{2 * FILES * CHARACTERS_OF_PATH / 1e9:.1f} GB",
        "delete keys": f"{DRIVER_KEYS * 16 / 1e6:.0f} MB",
        "positions, of a key set, in memory": f"{MEMORY_POSITIONS * 8 / 1e6:.0f} MB",
        "results of a stage on Spark, at a time": f"{RESULTS_AT_ONCE}",
    }


@pytest.fixture(scope="module")
def files() -> list[DataFile]:
    """Some batches of a table with files of 100,000 rows."""
    unpartitioned = PartitionKey(0, "[]")
    count = 2 * COMMIT_ROWS // ROWS_PER_FILE + 1
    return [DataFile(f"{i}", "parquet", unpartitioned, ROWS_PER_FILE, 1, 1) for i in range(count)]


def test_a_build_has_as_many_tasks_and_commits_as_the_page_says(files: list[DataFile]) -> None:
    batches = list(commit_batches(files))
    assert len(batches) == math.ceil(len(files) * ROWS_PER_FILE / COMMIT_ROWS) == 3
    indexed = [IndexedFile(file, i * ROWS_PER_FILE, 0) for i, file in enumerate(batches[0])]
    reader: KeyReader = None  # type: ignore[assignment]  # nothing is read
    assert len(build_tasks(reader, Storage(), "", indexed, parallelism=8)) == COMMIT_ROWS // RUN_ROWS


@pytest.mark.exhaustive
def test_planning_holds_no_more_of_a_data_file_than_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a table with more data files takes more; their paths' text lies in temporary files."""
    monkeypatch.setattr(planning, "FILES_PER_MANIFEST", 50)
    monkeypatch.setattr(manifests, "READ_THREADS", 1)  # so that what is on its way is always the same
    monkeypatch.setattr(manifests, "READ_AHEAD", 1)
    monkeypatch.setattr(paths, "PIECE", 100)
    monkeypatch.setattr(paths, "MEMORY_BYTES", 1)
    small, large = measure_planning(1_000, 10), measure_planning(2_500, 10)
    assert large.manifests == 51

    def grown(what: str) -> float:
        more: int = getattr(large, what) - getattr(small, what)
        return more / 1_500

    assert grown("files_bytes") < BYTES_OF_FILE + 4
    assert grown("dictionary_bytes") < BYTES_OF_LISTED_FILE + 4
    assert grown("peak_bytes") < BYTES_FOR_A_MOMENT


def test_the_measured_planning_is_that_of_the_page() -> None:
    """Of a table with ten data files for each delete file, whose text of paths lies in memory."""

    def of_each(step: str) -> int:
        (found,) = re.findall(rf"^\| {step} \|.*\| (\d+) B \|$", PAGE, re.MULTILINE)
        return int(found)

    of_data_file, of_delete_file = BYTES_OF_FILE + 4, BYTES_OF_DELETE_FILE + 4
    of_live = (10 * of_data_file + of_delete_file) / 11 + CHARACTERS_OF_PATH
    assert BYTES_OF_FILE < of_each("read the live files from the manifests") < of_live
    assert (
        BYTES_OF_LISTED_FILE
        < of_each("open the index's list of files")
        < BYTES_OF_LISTED_FILE + 4 + CHARACTERS_OF_PATH
    )


def test_a_vector_takes_as_many_bytes_and_requests_as_the_page_says() -> None:
    """In an S3 server of this process, which counts requests."""
    asked: list[str] = []
    inner = DomainDispatcherApplication(create_backend_app)

    def counting(environ: Any, start_response: Any) -> Any:
        asked.append(environ["REQUEST_METHOD"])
        return inner(environ, start_response)

    server = make_server("127.0.0.1", 0, counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        s3 = S3(server.server_port)
        bucket = s3.create_bucket("bucket")
        storage = Storage(s3.properties())
        unpartitioned = PartitionKey(0, "[]")
        path = "d".rjust(CHARACTERS_OF_PATH, "d")
        found = {
            DataFile(f"{path}{n}", "parquet", unpartitioned, ROWS_PER_FILE, 1, 1): BitMap64([7, 70_000])
            for n in range(2)
        }
        asked.clear()
        written = write_deletion_vectors(storage, lambda file: f"{bucket}/{file.path}", found)
        assert len({one.path for one in written}) == len(found)
        assert len(asked) == REQUESTS_OF_WRITE * len(found)
        assert BYTES_OF_VECTOR_FILE * 0.9 < written[0].file_size_bytes <= BYTES_OF_VECTOR_FILE
        asked.clear()
        one = written[0]
        assert one.content_offset is not None
        assert one.content_size_bytes is not None
        read_deletion_vector(storage, one.path, one.content_offset, one.content_size_bytes)
        assert len(asked) == REQUESTS_OF_READ
    finally:
        server.shutdown()
        server.server_close()


UNPARTITIONED = PartitionKey(0, "[]")


def vector_paths(number: int) -> tuple[str, str]:
    return str(number).rjust(CHARACTERS_OF_PATH, "v"), str(number).rjust(CHARACTERS_OF_PATH, "d")


def new_vector(number: int) -> NewDeleteFile:
    vector, data_file = vector_paths(number)
    size = 1_000 + number
    return NewDeleteFile(vector, "puffin", UNPARTITIONED, number, size, data_file, 4, size)


def live_vector(number: int) -> DeleteFile:
    vector, data_file = vector_paths(number)
    return DeleteFile(
        FileContent.POSITION_DELETES,
        vector,
        "puffin",
        UNPARTITIONED,
        number,
        1_000 + number,
        1_000 + number,
        referenced_data_file=data_file,
        content_offset=4,
        content_size_bytes=1_000 + number,
        added_snapshot_id=10**12 + number,
    )


def test_a_vector_that_a_commit_adds_or_removes_takes_no_more_than_the_page_says() -> None:
    """A new one, as a task hands it back, and an old one, as it goes to a task."""
    count = 1_000
    for make in (new_vector, live_vector):
        tracemalloc.start()
        try:
            made = [make(number) for number in range(count)]
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert BYTES_OF_VECTOR * 0.7 < taken / len(made) <= BYTES_OF_VECTOR


def test_a_live_vector_takes_no_more_than_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what more of them take more; the text of both paths lies in temporary files."""
    monkeypatch.setattr(paths, "MEMORY_BYTES", 1)

    def held(count: int) -> int:
        tracemalloc.start()
        try:
            files, taken = planning.held(lambda: DeleteFiles.of(map(live_vector, range(count))))
        finally:
            tracemalloc.stop()
        assert len(files) == count
        return taken

    assert (held(20_000) - held(10_000)) / 10_000 == pytest.approx(BYTES_OF_DELETE_FILE, abs=1)
