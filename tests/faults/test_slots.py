"""A worker that runs two jobs at a time and dies or is asked to stop: both end right, by the next process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.faults.cluster import Cluster
from tests.faults.control_plane import LEASE_SECONDS
from tests.faults.injection import Fault
from tests.faults.subjects import Subject, prepare
from tests.patience import wait_until

pytestmark = pytest.mark.integration
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker's process with two slots."""
    allowed = [tmp_path_factory.getbasetemp().as_uri()]
    environment = {"ICESTREAM_WORKER_SLOTS": "2"}
    cluster = Cluster(tmp_path_factory.mktemp("slots"), allowed, workers=1, environment=environment)
    try:
        cluster.register(catalog)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def subjects(cluster: Cluster, spark: SparkSession, catalog: Catalog) -> list[Subject]:
    """One table of each format version."""
    return [
        Subject(cluster, spark, f"{catalog.name}.db.slots{next(_numbers)}", version) for version in (2, 3)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "point", "ends"),
    [
        ("convert", "iceberg", signal.SIGKILL),
        ("index", "entries", signal.SIGKILL),
        ("convert", "iceberg", signal.SIGTERM),
    ],
)
def test_both_jobs_of_a_process_that_ends_are_done_by_the_next_one(
    kind: str, point: str, ends: signal.Signals, cluster: Cluster, subjects: list[Subject]
) -> None:
    for subject in subjects:
        prepare(subject, kind)
    # Whichever comes first waits before its commit, and the other one after it.
    faults = [Fault(point, "before", "hold"), Fault(point, "after", "hold")]
    fired = cluster.inject(*faults)
    job_ids = [cluster.submit(subject.table_id, kind) for subject in subjects]
    for fault in faults:
        cluster.wait_until_fired(fired, fault)
    (process,) = cluster.workers
    running = [cluster.get(f"/jobs/{job_id}")["attempts"] for job_id in job_ids]
    assert {attempt["worker_name"] for (attempt,) in running} == {f"{process.name}/{n}" for n in (1, 2)}

    pid = process.pid
    process.send(ends)
    wait_until(lambda: process.pid != pid, "the process to end")
    if ends == signal.SIGKILL:
        cluster.lose_attempts(2)
    jobs = [cluster.wait_for_job(job_id) for job_id in job_ids]
    for subject, job in zip(subjects, jobs, strict=True):
        subject.check_end(kind, job)
        ended, done = job["attempts"]
        if ends == signal.SIGKILL:
            assert (ended["status"], ended["error"]["code"]) == ("lost", "worker_lost")
            cluster.recovery(job["id"], ended, done).check(LEASE_SECONDS)
        else:
            assert ended["status"] == "released"
