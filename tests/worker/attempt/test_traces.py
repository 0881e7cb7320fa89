"""What runs on Spark is a part of its stage's trace, and Spark says of which stage."""

from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from telemetry.traces import start_traces, stop_traces
from tests.jobs import RecordingReporter
from tests.traces import attributes
from tests.traces import collected as collected
from worker.attempt.job import Job
from worker.contract.control_plane import Assignment
from worker.spark.tasks import TaskRunner

pytestmark = pytest.mark.integration
ASSIGNMENT = {
    "job": {"id": "j-1", "kind": "index", "dry_run": False},
    "attempt": 2,
    "previous_attempts": [],
    "ended_attempts": [],
    "lease_seconds": 30,
    "table": {"id": "t", "identifier": ["db", "t"], "branch": "main"},
    "catalog": {"name": "local", "type": "sql", "properties": {}},
    "index": {"warehouse": "file:///nowhere"},
    "policy": {},
}


@dataclass(frozen=True)
class Plus:
    """A task."""

    one: int

    def run(self, shared: int) -> int:
        return self.one + shared


def test_what_a_stage_runs_on_spark_is_a_part_of_it_and_names_its_job(
    spark: SparkSession, collected: list[Any]
) -> None:
    assert start_traces("test") is not None
    assignment = Assignment.model_validate(ASSIGNMENT)
    job = Job(assignment, TaskRunner(spark, local_rows=-1), RecordingReporter())
    with job.stage("lookup"):
        assert sorted(job.run_tasks("lookup", [Plus(1), Plus(2)], 10, planned_rows=2)) == [11, 12]
    stop_traces()

    (stage,) = (span for span in collected if span.name == "lookup")
    on_spark = [span for span in collected if span.name == "spark"]
    context: Any = spark.sparkContext
    descriptions = set()
    for span in on_spark:
        assert (span.trace_id, span.parent_span_id) == (stage.trace_id, stage.span_id)
        told = attributes(span)
        assert told["icestream.application"] == context.applicationId
        spark_jobs = context.statusTracker().getJobIdsForGroup(told["icestream.job_group"])
        assert spark_jobs
        store = context._jsc.sc().statusStore()
        descriptions |= {store.job(one).description().get() for one in spark_jobs}
    of_stage = "lookup of job j-1, attempt 2"
    assert descriptions == {f"icestream {of_stage}", f"icestream results of {of_stage}"}
