"""Too little memory is told from damage, and makes the next attempt hold less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tests.worker.test_lookup import key_set_of, write_data_file
from worker.control_plane import Assignment
from worker.index import assign_addresses, build_tasks
from worker.job import MAX_HALVINGS, Job
from worker.pipeline import lacks_memory
from worker.read import KeyReader
from worker.storage import Storage


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("failed")
    error.__cause__ = cause
    return error


def raised_again() -> Exception:
    """An error that is its own context's context, as when a library's wrapper of it is taken off."""
    first = OSError("no answer")
    first.__context__ = RuntimeError("failed")
    first.__context__.__context__ = first
    return first


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (pa.ArrowMemoryError("malloc of size 64 failed"), True),
        (caused_by(MemoryError()), True),
        (Py4JError("java.lang.OutOfMemoryError: Java heap space"), True),
        (PySparkException("... numpy._core._exceptions._ArrayMemoryError: Unable to allocate"), True),
        (PySparkException("the worker said: MemoryError"), True),
        (OSError("no room"), False),
        (raised_again(), False),
        (ValueError("a file named MemoryError.parquet"), False),
    ],
)
def test_too_little_memory_is_known_wherever_it_was(error: Exception, expected: bool) -> None:
    assert lacks_memory(error) is expected


def test_it_is_no_damage_of_the_file_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_data_file(tmp_path, "f.parquet", ("long",), [(i,) for i in range(10)], "p", 1)
    reader = KeyReader(Storage(), key_set_of("long"), None, {})

    def fails(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails)
    with pytest.raises(MemoryError):
        list(reader.read_data_file(file))


def previous(status: str, code: str | None = None) -> dict[str, Any]:
    return {"status": status, "error": {"code": code} if code else None}


@pytest.mark.parametrize(
    ("attempts", "halvings"),
    [
        ([], 0),
        ([previous("released"), previous("failed", "storage_error")], 0),
        ([previous("lost", "claim_answer_lost")], 0),
        ([previous("lost", "worker_lost")], 1),
        ([previous("failed", "out_of_memory"), previous("lost", "worker_lost")], 2),
        ([previous("lost", "worker_lost")] * 50, MAX_HALVINGS),
    ],
)
def test_each_attempt_that_may_have_lacked_memory_halves_the_next(
    attempts: list[dict[str, Any]], halvings: int
) -> None:
    assignment = Assignment.model_validate(
        {
            "job": {"id": "j", "kind": "index"},
            "attempt": len(attempts) + 1,
            "previous_attempts": attempts,
            "lease_seconds": 30,
            "table": {"id": "t", "identifier": ["db", "t"], "branch": "main"},
            "catalog": {"name": "c", "type": "sql", "properties": {}},
            "index": {"warehouse": "file:///index"},
        }
    )
    nothing: Any = None
    assert Job(assignment, nothing, nothing).halvings == halvings


def test_a_build_that_holds_less_writes_more_and_smaller_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.index.RUN_ROWS", 40)
    monkeypatch.setattr("worker.file_formats.BATCH_ROWS", 5)
    file = write_data_file(tmp_path, "f.parquet", ("long",), [(i,) for i in range(100)], "p", 1)
    reader = KeyReader(Storage(), key_set_of("long"), None, {})

    def runs(halvings: int) -> list[int]:
        indexed = assign_addresses([file], 0, {})
        tasks = build_tasks(reader, tmp_path.as_uri(), indexed, 1, halvings)
        return [run.rows for task in tasks for run in task.run(None).runs]

    assert runs(0) == [40, 40, 20]
    assert runs(2) == [10] * 10
