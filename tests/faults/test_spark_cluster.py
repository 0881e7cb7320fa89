"""Jobs on a standalone cluster of Spark, whose executors die in the middle of a stage: the job ends right."""

from __future__ import annotations

import os
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, visible_rows
from tests.faults.cluster import ROOT, Cluster, submit_arguments
from tests.faults.injection import FAULTS_FILE_VARIABLE, Fault
from tests.faults.subjects import Subject
from tests.faults.tables import orphans, strays
from tests.patience import PATIENCE_SECONDS
from tests.standalone_spark import EXECUTORS, standalone_cluster
from tests.thorough import EXHAUSTIVE, first_always

pytestmark = pytest.mark.integration


# Tasks of an only executor that dies wait for the next one; of two, the other one goes on.
@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=EXHAUSTIVE)], ids=["one", "two"])
def cluster(
    request: pytest.FixtureRequest, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Stages run on the cluster, however small."""
    directory = tmp_path_factory.mktemp("service")
    (directory / "on-spark").touch()
    executors = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        FAULTS_FILE_VARIABLE: str(directory / "faults.json"),
    }
    with standalone_cluster(tmp_path_factory.mktemp("spark"), executors, request.param) as master:
        environment = {
            "ICESTREAM_SPARK_MASTER": master,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": submit_arguments(EXECUTORS),
        }
        allowed = [tmp_path_factory.getbasetemp().as_uri()]
        cluster = Cluster(directory, allowed, workers=1, environment=environment)
        try:
            cluster.register(catalog)
            yield cluster
        finally:
            cluster.close()


@first_always("case", [("convert", "deletes", "delete-file"), ("index", "index", "run")], EXHAUSTIVE)
def test_jobs_survive_executors_that_are_killed(
    case: tuple[str, str, str], cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    kind, name, point = case
    subject = Subject(cluster, spark, f"{catalog.name}.db.on_{cluster.directory.name}_{kind}", 3)
    (worker,) = cluster.workers
    fault = Fault(point, "after", "kill-executor")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    # Spark runs the tasks of a lost executor again.
    (attempt,) = job["attempts"]
    (stage,) = [one for one in attempt["stages"] if one["name"] == name]
    assert stage["tasks_on_spark"] > 0
    assert stage["failed_tasks"] > 0
    assert stage["task_seconds"] > 0
    assert stage["tasks_in_driver"] == 0
    if kind == "index":
        for _ in range(2):
            cluster.run(subject.table_id, "compact")
        assert strays(subject.table, cluster.index_place.as_uri()) == set()
    if kind == "convert":  # Iceberg's own tasks, on a table of ours
        request = {"kind": "rewrite_data_files", "parameters": {"min_input_files": 2}}
        written = cluster.wait_for_job(cluster.post(f"/tables/{subject.table_id}/jobs", request)["id"])
        assert written["result"]["data_files"]["data_files_added"] == 1
        assert visible_rows(spark, subject.table.identifier) == subject.rows
    assert orphans(subject.table) == set()
    assert "Spark's executors run tasks with the same packages" in worker.log


@pytest.mark.exhaustive
def test_a_worker_whose_executors_lack_its_packages_says_so_and_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    # One that is left to Spark: threads of the driver start it just as executors do.
    place = {
        "ICESTREAM_SPARK_MASTER": "local[1]",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
    }
    process = cluster.start(["-m", "worker.agent.main"], "unfit", {"ICESTREAM_WORKER_NAME": "unfit", **place})
    assert process.wait(timeout=PATIENCE_SECONDS) == 1
    (told,) = cluster.get("/workers", search="unfit")["items"]
    assert f"{python} on " in told["problem"]
    assert f"pyarrow is missing ({version('pyarrow')} here)" in told["problem"]
    assert told["alive"] is False
    assert told["problem"] in (cluster.directory / "unfit.log").read_text()


@pytest.mark.exhaustive
def test_a_worker_of_another_spark_than_its_cluster_says_so_and_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    older = ROOT / "build" / "spark-3.5" / "pyspark"
    with standalone_cluster(tmp_path, {}, executors=0, home=older) as master:
        place = {"ICESTREAM_SPARK_MASTER": master, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
        name = {"ICESTREAM_WORKER_NAME": "newer"}
        process = cluster.start(["-m", "worker.agent.main"], "newer", {**name, **place})
        assert process.wait(timeout=PATIENCE_SECONDS) == 1
    (told,) = cluster.get("/workers", search="newer")["items"]
    assert f"Spark {version('pyspark')} has not started on {master}: " in told["problem"]
    assert "For another version, install that of PySpark" in told["problem"]
