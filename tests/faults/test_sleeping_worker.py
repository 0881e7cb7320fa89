"""A worker that stands still and wakes once its job is not its own any more: it changes nothing."""

from __future__ import annotations

import signal

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.faults.cluster import Cluster
from tests.faults.control_plane import LEASE_SECONDS
from tests.faults.injection import Fault, When
from tests.faults.subjects import (
    Subject,
    Subjects,
    check_that_the_index_is_whole_and_its_place_holds_nothing_else,
    prepare,
)
from tests.faults.tables import assert_nothing_is_left, commits_by_job, orphans
from tests.patience import wait_until
from tests.thorough import exhaustive_unless
from worker.index.key_set_index import database_name

pytestmark = pytest.mark.integration


SLEEPS: list[tuple[str, str, When, int]] = [  # the last is how often it goes well first
    ("convert", "delete-files", "before", 0),
    ("convert", "delete-files", "after", 0),
    ("convert", "iceberg", "before", 0),
    ("convert", "finish", "before", 0),
    ("index", "entries", "before", 0),
    ("index", "dictionary", "before", 0),
    ("compact", "entries", "before", 0),
    ("compact", "snapshot", "before", 2),  # of the clean-up, after those of the merge
    ("convert", "delete-file", "after", 1),  # of several: those that were written are removed while it sleeps
    ("rebuild", "dictionary", "before", 0),
]


@pytest.mark.parametrize(
    ("kind", "point", "when", "skip"),
    exhaustive_unless(lambda case: case == ("convert", "iceberg", "before", 0), SLEEPS),
)
def test_a_worker_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    kind: str, point: str, when: When, skip: int, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(2 + SLEEPS.index((kind, point, when, skip)) % 2)
    prepare(subject, kind)
    fault = Fault(point, when, "stop", skip=skip)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    sleeper = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    try:
        cluster.lose_attempts()
        job = cluster.wait_for_job(job_id)
        subject.check_end(kind, job)
        if point == "delete-file":
            assert any("files that attempt 1" in decision for decision in job["result"]["decisions"])
        # Compaction may drop what the sleeper has added to the index and not committed to the dictionary.
        cluster.run(subject.table_id, "compact")
        snapshot_id = subject.table.snapshot_id
        health = cluster.get(f"/tables/{subject.table_id}/health")
        pid, told = sleeper.pid, len(sleeper.log)
    finally:
        sleeper.send(signal.SIGCONT)
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    cluster.recovery(job_id, *job["attempts"]).check(LEASE_SECONDS)

    # It goes on where it was, and takes another job only after it has given up that one.
    wait_until(lambda: sleeper.gave_up(told), "the sleeper to give up")
    assert sleeper.pid == pid
    assert cluster.get(f"/jobs/{job_id}") == job
    assert subject.table.snapshot_id == snapshot_id
    cluster.run(subject.table_id, "verify")
    after = cluster.get(f"/tables/{subject.table_id}/health")
    for key_set in (*after["key_sets"], *health["key_sets"]):
        del key_set["lag_seconds"]  # goes on
    assert after["key_sets"] == health["key_sets"]
    assert orphans(subject.table) == set()
    subject.check_rows()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("point", "later"),
    exhaustive_unless(
        lambda case: case == ("iceberg", None),
        [("delete-files", "convert"), ("iceberg", "convert"), ("iceberg", None), ("entries", "index")],
    ),
)
def test_a_worker_that_sleeps_until_its_job_was_cancelled(
    point: str, later: str | None, cluster: Cluster, subjects: Subjects
) -> None:
    """later: what runs before it wakes. If nothing does, it commits what was right when it was planned."""
    subject = subjects(2)
    kind = "index" if point == "entries" else "convert"
    prepare(subject, kind)
    fault = Fault(point, "before", "stop")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    sleeper = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    try:
        cluster.post(f"/jobs/{job_id}/cancel", {})
        cluster.lose_attempts()
        job = cluster.wait_for_job(job_id)
        assert job["status"] == "cancelled"
        if later is not None:
            cluster.run(subject.table_id, later)
        snapshot_id, told = subject.table.snapshot_id, len(sleeper.log)
    finally:
        sleeper.send(signal.SIGCONT)
    wait_until(lambda: sleeper.gave_up(told), "the sleeper to give up")
    assert cluster.get(f"/jobs/{job_id}") == job
    assert (subject.table.snapshot_id == snapshot_id) == (later is not None)
    assert commits_by_job(subject.table)[job_id] == (later is None)
    subject.check_rows()
    # The next jobs find what it did, and remove what it left.
    cluster.run(subject.table_id, "index")
    cluster.run(subject.table_id, "convert")
    subject.check_rows()
    assert_nothing_is_left(subject.table)
    assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0


@pytest.mark.parametrize(
    ("point", "when"),
    exhaustive_unless(lambda case: case[0] == "entries", [("addresses", "after"), ("entries", "before")]),
)
def test_a_worker_that_wakes_after_the_index_was_dropped_leaves_nothing_in_its_place(
    point: str, when: When, cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    """It goes on with its runs, or with its commit, before it learns that its attempt is over."""
    cluster.inject()
    subject = Subject(cluster, spark, f"{catalog.name}.db.late_{point}", 3)
    database = cluster.index_place / f"{database_name(str(subject.table.metadata.table_uuid), 'main')}.db"

    def drops() -> int:
        jobs = cluster.get("/jobs", kind="drop_index", status="succeeded")["items"]
        return sum(job["table_id"] == subject.table_id for job in jobs)

    fault = Fault(point, when, "stop")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "index")
    cluster.wait_until_fired(fired, fault)
    sleeper = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    try:
        assert cluster.http.delete(f"/tables/{subject.table_id}?drop_index=true").is_success
        cluster.lose_attempts()
        wait_until(lambda: drops() == 1, "the index to be dropped")
        assert not database.exists()
    finally:
        sleeper.send(signal.SIGCONT)
    wait_until(lambda: drops() == 2, "the index to be dropped again")
    assert not database.exists()
    assert cluster.get(f"/jobs/{job_id}")["status"] == "cancelled"


@pytest.mark.exhaustive
def test_the_index_is_whole_and_its_place_holds_nothing_else(cluster: Cluster, subjects: Subjects) -> None:
    check_that_the_index_is_whole_and_its_place_holds_nothing_else(cluster, subjects)
