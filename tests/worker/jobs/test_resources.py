"""What a policy lets a job take of its worker is what it takes, and what it took is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs
from tests.patience import PATIENCE_SECONDS
from worker.attempt.job import Usage
from worker.jobs.pipeline import run_job
from worker.process.errors import JobCancelledError
from worker.spark.tasks import RESULTS_AT_ONCE, TaskRunner

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class Nap:
    """A task that tells from when to when it ran."""

    seconds: float = 0.3

    def run(self, _shared: None) -> tuple[float, float]:
        began = time.time()
        time.sleep(self.seconds)
        return began, time.time()


@dataclass(frozen=True, slots=True)
class Meeting:
    """A task that ends once all of them run."""

    together: threading.Barrier

    def run(self, _shared: None) -> None:
        self.together.wait(PATIENCE_SECONDS)


def at_once(runner: TaskRunner) -> int:
    """The most of four tasks that ran at the same time."""
    spans = list(runner.run([Nap()] * 4, None, planned_rows=1, on_progress=lambda _: None))
    return max(sum(began <= at < ended for began, ended in spans) for at, _ in spans)


@pytest.mark.parametrize(
    "local_rows",
    [pytest.param(0, marks=pytest.mark.exhaustive, id="spark"), pytest.param(10**9, id="driver")],
)
def test_no_more_tasks_run_at_a_time_than_are_allowed(spark: SparkSession, local_rows: int) -> None:
    runner = TaskRunner(spark, local_rows, 4)
    at_once(runner)  # Spark's Python processes have started
    assert at_once(runner.limited(1)) == 1
    if local_rows:  # on Spark that depends on its cores
        meeting = Meeting(threading.Barrier(4))
        list(runner.run([meeting] * 4, None, planned_rows=1, on_progress=lambda _: None))
    assert spark.sparkContext.getConf().get("spark.speculation") == "false"  # nor twice


@dataclass(frozen=True, slots=True)
class OnceMore:
    """A task that hangs for a while when it runs a second time, and leaves a mark when that ends."""

    directory: str
    number: int

    def run(self, _shared: None) -> int:
        first, second = (Path(self.directory) / f"{self.number}-{run}" for run in ("first", "second"))
        if not first.exists():
            first.touch()
            return self.number
        time.sleep(20)
        second.touch()
        return self.number


def test_what_spark_computes_again_for_an_executor_that_is_gone_can_be_cancelled(
    spark: SparkSession, tmp_path: Path
) -> None:
    def on_progress(_done: float) -> None:
        if is_lost:
            raise JobCancelledError

    is_lost = False
    tasks = [OnceMore(str(tmp_path), number) for number in range(2 * RESULTS_AT_ONCE)]
    results = TaskRunner(spark, -1).run(tasks, None, planned_rows=1, on_progress=on_progress)
    assert next(results) == 0
    context: Any = spark.sparkContext
    for kept in context._jsc.getPersistentRDDs().values():
        kept.unpersist(True)
    is_lost = True
    with pytest.raises(JobCancelledError):
        list(results)
    assert not list(tmp_path.glob("*-second"))


@dataclass(frozen=True, slots=True)
class Paired:
    def run(self, shared: str) -> list[tuple[int, str]]:
        return [(0, shared)]


@dataclass(frozen=True, slots=True)
class Joined:
    def run(self, values: Iterable[str]) -> str:
        return "".join(values)


def test_what_tasks_share_leaves_no_file_behind(spark: SparkSession) -> None:
    """It may be keys that are erased."""
    runner, tasks = TaskRunner(spark, -1), [Paired()]
    context: Any = spark.sparkContext
    before = set(Path(context._temp_dir).iterdir())
    assert list(runner.run(tasks, "key", planned_rows=1, on_progress=lambda _: None)) == [[(0, "key")]]
    assert list(runner.shuffle(tasks, "key", Joined(), 1, on_progress=lambda *_: None)) == ["key"]  # type: ignore[arg-type]
    assert set(Path(context._temp_dir).iterdir()) == before


def test_a_job_takes_what_its_policy_lets_it_and_tells_what_it_took(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(100)], files=4)
    table.delete_keys([{"id": 3}], equality_columns=["id"])
    before = visible_rows(spark, table_name)
    runners: list[TaskRunner] = []
    run = TaskRunner.run

    def watched(self: TaskRunner, *arguments: Any, **options: Any) -> Any:
        runners.append(self)
        return run(self, *arguments, **options)

    monkeypatch.setattr(TaskRunner, "run", watched)
    jobs.runner = TaskRunner(spark, parallelism=8)
    jobs.run("index", policy={"resources": {"max_tasks": 6, "memory_fraction": 0.3}})
    # A third is held as a quarter: halved twice, of the tasks at a time as of each task's part.
    assert {each.parallelism for each in runners} == {1}
    assert "At most 6 tasks run at a time, as the policy says." in jobs.reporter.decisions
    assert "The policy lets this job hold 1/4 of the usual at once." in jobs.reporter.decisions

    account = Usage()
    accounted: dict[str, Any] = {}

    def counting(assignment: Any, runner: Any, reporter: Any) -> Any:
        accounted["outcome"] = run_job(assignment, runner, reporter, account)
        return accounted["outcome"]

    monkeypatch.setattr("tests.jobs.run_job", counting)
    result = jobs.run("convert").result
    assert equality_delete_files(spark, table_name) == []
    assert visible_rows(spark, table_name) == before
    assert [stage["name"] for stage in account.stages] == [stage["name"] for stage in result["stages"]]
    looked_up = sum(each["bytes_read"] for each in result["key_sets"])
    assert account.bytes == result["bytes_read"] + result["bytes_written"] > looked_up > 0
    assert account.rows > 0
    for kind in ("verify", "rebuild"):
        so_far = account.bytes
        written = sum(each.get("bytes_written", 0) for each in jobs.run(kind).result["key_sets"])
        assert account.bytes - so_far > written, kind
