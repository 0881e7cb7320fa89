"""The tasks of a build take about as long as each other, and as many of them run at a time as can."""

import pytest

from worker.index.build import RUN_ROWS, build_tasks
from worker.index.dictionary import IndexedFile
from worker.io.storage import Storage
from worker.keys.read import KeyReader
from worker.table.files import DataFile, PartitionKey


def rows_of_tasks(files: list[int], parallelism: int) -> list[int]:
    """files: the rows of each."""
    unpartitioned = PartitionKey(0, "[]")
    indexed = [
        IndexedFile(DataFile(f"{number}", "parquet", unpartitioned, rows, 1, 1), sum(files[:number]), 0)
        for number, rows in enumerate(files)
    ]
    reader: KeyReader = None  # type: ignore[assignment]  # nothing is read
    return [task.rows for task in build_tasks(reader, Storage(), "", indexed, parallelism)]


@pytest.mark.parametrize(
    ("files", "rows", "parallelism", "tasks"),
    [(5_460, 10_240, 4, 16), (5_460, 10_240, 2, 14), (50, 1_000_000, 2, 14), (50, 100_000, 4, 4)],
)
def test_tasks_are_a_multiple_of_those_that_run_at_a_time(
    files: int, rows: int, parallelism: int, tasks: int
) -> None:
    found = rows_of_tasks([rows] * files, parallelism)
    assert len(found) == tasks
    assert max(found) <= RUN_ROWS
    assert max(found) - min(found) <= rows


def test_a_large_file_is_a_task_of_its_own_and_the_rest_is_divided() -> None:
    large, rest = 50_000_000, [100_000] * 240
    first, *others = rows_of_tasks([large, *rest], 2)
    assert first == large
    assert sum(others) == sum(rest)
    assert len(others) <= 8
