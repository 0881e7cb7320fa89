"""The figures of docs/scale.md follow from the code, and what they count is counted on small tables."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.benchmarks import planning
from tests.benchmarks.planning import ROWS_PER_FILE, measure_planning
from worker import manifests, paths, session
from worker.compaction import FILE_ROWS
from worker.index import COMMIT_ROWS, RUN_ROWS, IndexedFile, build_tasks, commit_batches
from worker.plan import DataFile, PartitionKey
from worker.positions import MEMORY_POSITIONS
from worker.read import KeyReader
from worker.resolution import DRIVER_KEYS
from worker.sorted_runs import ROW_GROUP_ROWS
from worker.storage import Storage

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
ROWS, FILES, DELETES = 10**12, 10**7, 10**8
BYTES_OF_FILE, BYTES_OF_LISTED_FILE, BYTES_FOR_A_MOMENT = 36, 44, 200
CHARACTERS_OF_PATH = 120
KEYS = round(DELETES / 6)


def figures() -> dict[str, str]:
    """The first and the last column of the page's tables."""
    rows = re.findall(r"^\| (.*?) \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
    return {what: figure for what, figure in rows if what != "what"}


def test_every_figure_follows_from_the_code() -> None:
    assert figures() == {
        "size of the index": f"{ROWS * 3.5 / 1e9:,.0f} GB",
        "tasks that build it": f"{ROWS // RUN_ROWS:,}",
        "commits of the build": f"{math.ceil(ROWS / COMMIT_ROWS):,}",
        "tasks of the build at a time, at most": f"{COMMIT_ROWS // RUN_ROWS}",
        "files of the index, once merged": f"{ROWS // FILE_ROWS:,}",
        "keys of a conversion": f"{KEYS:,}",
        "ranges that a conversion's keys are sorted into": f"{math.ceil(KEYS / DRIVER_KEYS)}",
        "rows of the index that one conversion decodes, at most": f"{min(ROWS, KEYS * ROW_GROUP_ROWS):,}",
        "live files, from the manifests": f"{FILES * BYTES_OF_FILE / 1e9:.1f} GB",
        "the index's list of files": f"{FILES * BYTES_OF_LISTED_FILE / 1e9:.1f} GB",
        "both, and what is made of them for a moment": f"{FILES * BYTES_FOR_A_MOMENT / 1e9:.1f} GB",
        "text of the paths of both, in memory": f"{2 * paths.MEMORY_BYTES / 1e6:.0f} MB",
        "text of the paths of both, in temporary files": f"{2 * FILES * CHARACTERS_OF_PATH / 1e9:.1f} GB",
        "delete keys": f"{DRIVER_KEYS * 16 / 1e6:.0f} MB",
        "positions, of a key set, in memory": f"{MEMORY_POSITIONS * 8 / 1e6:.0f} MB",
        "results of a stage on Spark, at a time": f"{session._RESULTS_AT_ONCE}",
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


def test_planning_holds_no_more_of_a_data_file_than_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a table with more data files takes more; their paths' text lies in temporary files."""
    monkeypatch.setattr(planning, "FILES_PER_MANIFEST", 50)
    monkeypatch.setattr(manifests, "_READ_THREADS", 1)  # so that what is on its way is always the same
    monkeypatch.setattr(manifests, "_READ_AHEAD", 1)
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
