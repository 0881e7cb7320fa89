"""Tasks and JVMs that hang, processes that the system kills, and jobs that do not fit in memory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files
from tests.faults.cluster import IMPATIENT, Cluster
from tests.faults.control_plane import LEASE_SECONDS
from tests.faults.injection import Fault, fired_in
from tests.faults.subjects import Subject, Subjects, check_drain, prepare
from tests.faults.tables import assert_nothing_is_left, orphans
from tests.integration.icestream import Json
from tests.patience import wait_until

pytestmark = pytest.mark.integration

LARGE = 400_000  # rows, which take 60 bytes each to sort
LARGE_FRACTION = 0.125  # of what a job holds usually: all of these and hardly more
ROOM = 25 * LARGE  # bytes: too few for all or half of them, enough for a quarter
KILLED_ON_SPARK = {"convert": "delete-files", "index": "run"}


@pytest.mark.parametrize("place", ["in a thread", pytest.param("on Spark", marks=pytest.mark.exhaustive)])
def test_a_task_that_hangs_is_given_up_after_the_time_of_the_policy(
    place: str, cluster: Cluster, subjects: Subjects
) -> None:
    retries = {**IMPATIENT["retries"], "timeout_seconds": LEASE_SECONDS}
    name = place.replace(" ", "_")
    cluster.post("/policies", {"name": name, "settings": {**IMPATIENT, "retries": retries}})
    known = subjects(3)
    subject = Subject(cluster, known.spark, f"{known.table.identifier}_{name}", 3, policy=name)
    fault = Fault("delete-files", "before", "sleep:3600")
    fired = cluster.inject(fault)
    # In a thread, the job is not waited for any longer than this once its attempt is over.
    with cluster.on_spark() if place == "on Spark" else cluster.limits(hung_seconds=2 - LEASE_SECONDS):
        job_id = cluster.submit(subject.table_id, "convert")
        cluster.wait_until_fired(fired, fault)
    worker = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    told = len(worker.log)
    hung = Path(f"/proc/{fired_in(fired, fault)}")
    cluster.end_overdue_attempt()
    job = cluster.wait_for_job(job_id)
    subject.check_end("convert", job)
    assert (job["attempts"][0]["status"], job["attempts"][0]["error"]["code"]) == ("failed", "timed_out")
    # Whatever runs the task ends, be it the worker itself, and the worker takes further jobs.
    wait_until(lambda: not hung.exists(), "the process that hangs to end")
    assert ("still hangs" in worker.log[told:]) == (place == "in a thread")


@pytest.mark.thorough
def test_a_jvm_that_hangs_costs_an_attempt(cluster: Cluster, subjects: Subjects) -> None:
    """Its job's lease is renewed by a thread that needs no JVM."""
    subject = subjects(3)
    prepare(subject, "convert")
    fault = Fault("iceberg", "before", "sleep:2")
    fired = cluster.inject(fault)
    with cluster.limits(jvm_silence_seconds=2):
        job_id = cluster.submit(subject.table_id, "convert")
        cluster.wait_until_fired(fired, fault)
    worker = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    worker.send_to_jvm(signal.SIGSTOP)
    pending = len(equality_delete_files(subject.spark, subject.table.identifier))
    job = cluster.wait_for_job(job_id)
    # The heap may have been too small, so half as much is committed at once.
    subject.check_end("convert", job, commits=min(pending, 2))
    hung, done = job["attempts"]
    assert (hung["status"], hung["error"]["code"]) == ("failed", "jvm_lost")
    assert done["status"] == "succeeded"


@pytest.fixture
def on_spark(cluster: Cluster) -> Iterator[None]:
    with cluster.on_spark():
        yield


@pytest.mark.exhaustive
@pytest.mark.usefixtures("on_spark")
class TestOnSpark:
    @pytest.mark.parametrize(("kind", "point"), [*KILLED_ON_SPARK.items()])
    def test_a_process_that_is_killed_is_tried_again_smaller(
        self, kind: str, point: str, cluster: Cluster, subjects: Subjects
    ) -> None:
        subject = subjects(2)
        prepare(subject, kind)
        pending = len(equality_delete_files(subject.spark, subject.table.identifier))
        fault = Fault(point, "after", "kill")
        fired = cluster.inject(fault)
        job = cluster.wait_for_job(cluster.submit(subject.table_id, kind))
        cluster.wait_until_fired(fired, fault)
        subject.check_end(kind, job, commits=min(pending, 2))
        assert job["attempts"][0]["error"]["code"] == "out_of_memory", job
        assert any("holds 1/2 of the usual" in decision for decision in job["result"]["decisions"])

    def test_a_worker_that_is_asked_to_stop_hands_its_job_back(
        self, cluster: Cluster, subjects: Subjects
    ) -> None:
        subject = subjects(3)
        prepare(subject, "convert")
        check_drain(cluster, subject, "convert", Fault("delete-files", "before", "sleep:3600"))

    def test_a_job_that_is_cancelled_ends_within_seconds(self, cluster: Cluster, subjects: Subjects) -> None:
        subject = subjects(3)
        prepare(subject, "convert")
        fault = Fault("delete-files", "after", "sleep:3600")
        fired = cluster.inject(fault)
        job_id = cluster.submit(subject.table_id, "convert")
        cluster.wait_until_fired(fired, fault)
        cluster.post(f"/jobs/{job_id}/cancel", {})
        assert cluster.wait_for_job(job_id)["status"] == "cancelled"
        task = Path(f"/proc/{fired_in(fired, fault)}")
        wait_until(lambda: not task.exists(), "Spark to end the task")
        assert orphans(subject.table) == set()
        cluster.run(subject.table_id, "convert")
        subject.check_rows()
        assert_nothing_is_left(subject.table)


class Large:
    """A table whose jobs don't fit in the memory that their worker is given to sort in."""

    def __init__(self, cluster: Cluster, spark: SparkSession, identifier: str) -> None:
        self.cluster = cluster
        self.table = TableBuilder.create(spark, identifier, "id bigint, key string", format_version=3)
        self._keys = keys = [f"{i:032d}" for i in np.random.default_rng(1).permutation(LARGE).tolist()]
        self.table.append(pa.table({"id": range(LARGE), "key": keys}), files=16)
        self.rows = LARGE
        settings = {**IMPATIENT, "resources": {"memory_fraction": LARGE_FRACTION}}
        policy = self.table.identifier.rpartition(".")[2]
        cluster.post("/policies", {"name": policy, "settings": settings})
        self.table_id = cluster.enroll(identifier, key_sets=[["key"]], policy=policy)

    def append(self) -> None:
        """One more row, in a sorted run of its own."""
        self.cluster.inject()
        self.cluster.run(self.table_id, "index")
        self.table.append([{"id": self.rows, "key": f"more {self.rows}"}])
        self.rows += 1
        self.cluster.run(self.table_id, "index")

    def delete(self) -> int:
        """Most of its keys, in one equality delete file; how many."""
        deletes = pa.table({"key": self._keys[: LARGE - 1_000]})
        self.table.delete_keys(deletes, equality_columns=["key"])
        self.rows -= len(deletes)
        return len(deletes)

    def run(self, kind: str) -> Json:
        """The result of a job whose first attempt lacks memory: told, or the system killed its worker."""
        self.cluster.inject()
        with self.cluster.room(ROOM):
            job = self.cluster.wait_for_job(self.cluster.submit(self.table_id, kind))
        assert job["status"] == "succeeded", job
        failed = job["attempts"][0]
        assert failed["error"]["code"] in ("out_of_memory", "worker_lost"), failed
        assert any("died of too little memory" in decision for decision in job["result"]["decisions"])
        result: Json = job["result"]
        return result

    @property
    def key_set(self) -> Json:
        (key_set,) = self.cluster.get(f"/tables/{self.table_id}/health")["key_sets"]
        return cast("Json", key_set)


@pytest.fixture
def large(cluster: Cluster, spark: SparkSession, catalog: Catalog, request: pytest.FixtureRequest) -> Large:
    return Large(cluster, spark, f"{catalog.name}.db.{request.function.__name__}")


@pytest.mark.exhaustive
def test_an_index_and_a_conversion_that_do_not_fit_in_memory_work_in_smaller_parts(large: Large) -> None:
    large.run("index")
    assert (large.key_set["entries"], large.key_set["coverage"]) == (large.rows, 1.0)
    large.append()
    deleted = large.delete()
    result = large.run("convert")
    assert (result["rows_deleted"], result["key_sets"][0]["keys"]) == (deleted, deleted)
    assert result["key_sets"][0]["key_ranges"] > 1
    assert_nothing_is_left(large.table)
    assert large.table.spark.table(large.table.identifier).count() == large.rows


@pytest.mark.exhaustive
def test_a_compaction_that_does_not_fit_in_memory_merges_smaller_parts(large: Large) -> None:
    large.append()
    assert large.key_set["sorted_runs"] > 1
    large.run("compact")
    assert (large.key_set["entries"], large.key_set["sorted_runs"]) == (large.rows, 1)
