"""Too little memory is told from damage, and makes the next attempt hold less."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs
from tests.worker.lookup.test_lookup import key_set_of, write_data_file
from worker.attempt.job import SMALLEST_FRACTION, Job
from worker.contract.control_plane import Assignment
from worker.deletes.stage import DeletesTask
from worker.index.build import build_tasks
from worker.index.compaction import CompactionTask
from worker.index.dictionary import assign_row_addresses
from worker.index.footers import comparable
from worker.index.run_files import RunWriter
from worker.io.storage import Storage
from worker.jobs.foreign_errors import lacks_memory
from worker.keys.read import KeyReader
from worker.lookup.positions import Positions
from worker.process.errors import JobError
from worker.spark.tasks import TaskRunner
from worker.table import catalogs, row_delta


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
        (PySparkException("SparkException: Python worker exited unexpectedly (crashed)"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (caused_by(RuntimeError("can't start new thread")), True),
        (OSError("no room"), False),
        (raised_again(), False),
        (ValueError("a file named MemoryError.parquet"), False),
    ],
)
def test_too_little_memory_is_known_wherever_it_was(error: Exception, expected: bool) -> None:
    assert lacks_memory(error) is expected


def test_keys_for_whose_values_there_is_no_memory_are_told_as_such() -> None:
    class Keys:
        type = pa.binary()

        def to_numpy(self, **_: object) -> None:
            raise pa.ArrowException("Unknown error: Wrapping some key failed")

    with pytest.raises(MemoryError, match="Wrapping some key"):
        comparable(cast("pa.Array", Keys()))


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
    ("attempts", "fraction"),
    [
        ([], 1),
        ([previous("released"), previous("failed", "storage_error")], 1),
        ([previous("lost", "claim_answer_lost")], 1),
        ([previous("lost", "worker_lost")], 1 / 2),
        ([previous("failed", "out_of_memory"), previous("lost", "worker_lost")], 1 / 4),
        ([previous("failed", "jvm_lost")], 1 / 2),
        ([previous("lost", "worker_lost")] * 50, SMALLEST_FRACTION),
    ],
)
def test_each_attempt_that_may_have_lacked_memory_halves_the_next(
    attempts: list[dict[str, Any]], fraction: float
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
    assert Job(assignment, nothing, nothing).own_memory_fraction == fraction


def test_a_build_that_holds_less_writes_more_and_smaller_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.index.build.RUN_ROWS", 40)
    monkeypatch.setattr("worker.io.file_formats.BATCH_ROWS", 5)
    file = write_data_file(tmp_path, "f.parquet", ("long",), [(i,) for i in range(100)], "p", 1)
    reader = KeyReader(Storage(), key_set_of("long"), None, {})

    def runs(fraction: float) -> list[int]:
        indexed = assign_row_addresses([file], 0, {})
        tasks = build_tasks(reader, reader.storage, tmp_path.as_uri(), indexed, 1, fraction)
        return [run.rows for task in tasks for run in task.run(None).runs]

    assert runs(1) == [40, 40, 20]
    assert runs(1 / 4) == [10] * 10


class Meter:
    """How much jobs do at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delete_tasks = self.spills = self.compacted_parts = self.runs = 0
        run, spill, read, close = DeletesTask.run, Positions._spill, CompactionTask._read, RunWriter.close

        def counted_run(task: DeletesTask, shared: object) -> Any:
            self.delete_tasks += 1
            return run(task, shared)

        def counted_spill(positions: Positions) -> None:
            self.spills += 1
            spill(positions)

        def counted_read(*arguments: Any) -> Any:
            self.compacted_parts += 1
            return read(*arguments)

        def counted_close(writer: RunWriter) -> Any:
            self.runs += 1
            return close(writer)

        monkeypatch.setattr(RunWriter, "close", counted_close)
        monkeypatch.setattr(DeletesTask, "run", counted_run)
        monkeypatch.setattr(Positions, "_spill", counted_spill)
        monkeypatch.setattr(CompactionTask, "_read", counted_read)


@pytest.mark.integration
def test_a_conversion_that_holds_less_works_in_more_parts(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.lookup.resolution.DRIVER_KEYS", 100)
    # Cuts come from a sample, and matches from all keys, also where there are no cuts.
    monkeypatch.setattr("worker.lookup.resolution.SAMPLES_PER_RANGE", 8)
    monkeypatch.setattr("worker.lookup.positions.MEMORY_POSITIONS", 100)
    monkeypatch.setattr("worker.deletes.stage.MEMORY_POSITIONS", 480)
    table = TableBuilder.create(spark, table_name, format_version=3)
    for load in range(4):
        table.append([{"id": i, "region": "eu", "value": load} for i in range(load * 50, load * 50 + 50)])
    for start in range(2):
        table.delete_keys([{"id": i} for i in range(start, 200, 5)])
    before = visible_rows(spark, table_name)

    usual = Meter(monkeypatch)
    foretold = jobs.run("convert", dry_run=True).result
    assert (foretold["key_sets"][0]["key_ranges"], foretold["commits"]) == (1, 1)
    assert foretold["key_sets"][0]["keys"] == 80
    assert usual.spills == 0

    smaller = Meter(monkeypatch)
    foretold = jobs.run("convert", dry_run=True, out_of_memory=2).result
    assert foretold["key_sets"][0]["key_ranges"] > 1
    assert foretold["key_sets"][0]["keys"] == 80
    assert smaller.spills > 0
    assert smaller.delete_tasks > usual.delete_tasks - smaller.delete_tasks > 0

    # What is committed at once lies in the JVM's heap.
    result = jobs.run("convert", out_of_memory=1).result
    assert result["commits"] == 2
    assert any("since earlier attempts lacked memory" in sentence for sentence in result["decisions"])
    assert (visible_rows(spark, table_name), equality_delete_files(spark, table_name)) == (before, [])


@pytest.mark.integration
def test_index_jobs_that_hold_less_work_in_more_parts(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.index.build.RUN_ROWS", 200)
    monkeypatch.setattr("worker.index.compaction.TASK_ROWS", 200)
    monkeypatch.setattr("worker.io.file_formats.BATCH_ROWS", 10)
    monkeypatch.setattr("worker.index.run_files.ROW_GROUP_ROWS", 10)
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(200)])

    def work(lacking: int) -> Meter:
        meter = Meter(monkeypatch)
        jobs.run("rebuild", key_sets=[["id"]], out_of_memory=lacking)
        return meter

    usual = work(0)
    smaller = work(2)
    assert smaller.runs > usual.runs - smaller.runs
    assert smaller.compacted_parts > usual.compacted_parts - smaller.compacted_parts


class Twice:
    def __init__(self, number: int) -> None:
        self.number = number

    def run(self, _: object) -> int:
        return 2 * self.number


# Beside test_no_more_tasks_run_at_a_time_than_are_allowed.
@pytest.mark.exhaustive
@pytest.mark.integration
def test_fewer_tasks_run_at_a_time_on_spark_too(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    run_job = SparkContext.runJob

    def counted(context: SparkContext, rdd: Any, function: Any, partitions: Any = None) -> Any:
        at_once.append(len(partitions))
        return run_job(context, rdd, function, partitions)

    monkeypatch.setattr(SparkContext, "runJob", counted)
    tasks = [Twice(number) for number in range(5)]

    def run(runner: TaskRunner) -> list[int]:
        """How many tasks each Spark job had."""
        at_once.clear()
        progress: list[float] = []
        results = runner.run(tasks, None, planned_rows=1, on_progress=progress.append)
        assert list(results) == [0, 2, 4, 6, 8]
        assert progress == sorted(progress)
        return list(at_once)

    usual = TaskRunner(spark, local_rows=-1, parallelism=4)
    assert run(usual) == [5, 4, 1]  # computed all at once, handed over four at a time
    assert run(usual.smaller(1 / 2)) == [2, 2, 1, 4, 1]


@pytest.fixture
def full_heap(spark: SparkSession) -> Py4JJavaError:
    """Java's own error."""
    with pytest.raises(Py4JJavaError) as caught:
        spark._jvm.java.nio.ByteBuffer.allocate(2**31 - 1)  # type: ignore[union-attr]
    return caught.value


@pytest.mark.integration
@pytest.mark.parametrize("place", ["load", "prepare", "commit"])
def test_a_full_heap_of_java_is_told_as_such(
    spark: SparkSession,
    jobs: Jobs,
    table_name: str,
    full_heap: Py4JJavaError,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Any:
        raise full_heap

    class Operation:
        commit = fails

    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(20)])
    table.delete_keys([{"id": 1}])
    owner, name = {
        "load": (catalogs, "_open"),
        "prepare": (row_delta, "_json_of"),
        "commit": (row_delta, "java_row_delta"),
    }[place]
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, (lambda *_: Operation()) if place == "commit" else fails)
        with pytest.raises(JobError) as caught:
            jobs.run("convert", job_id="full")
    assert caught.value.code == "out_of_memory"
    assert "Spark's JVM" in caught.value.detail
    done = jobs.run("convert", job_id="full", attempt=2, out_of_memory=1)
    assert done.result["rows_deleted"] == 1
    assert equality_delete_files(spark, table_name) == []


@pytest.mark.integration
def test_the_processors_of_a_node_that_a_container_may_not_use_start_no_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task holds its part of the memory. Java knows what a container may use."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert TaskRunner(spark).parallelism < 64


def test_too_little_memory_is_no_damage_of_the_file_that_was_read() -> None:
    def fails(error: Exception) -> None:
        raise error

    shortage = RuntimeError("can't start new thread")
    for error in (MemoryError(), shortage, caused_by(shortage)):
        assert Storage({}).is_at_fault(error, [], lambda: None)
        assert Storage({}).is_at_fault(OSError("cut off"), [], lambda: fails(shortage))
    assert not Storage({}).is_at_fault(ValueError("no magic"), [], lambda: None)
