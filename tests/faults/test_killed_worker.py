"""A worker that dies at any point: the job ends right, once, and leaves nothing behind.

Real processes: the service, and two workers with Spark whose faults are injected at named points.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.faults.cluster import IMPATIENT, Cluster
from tests.faults.control_plane import LEASE_SECONDS
from tests.faults.injection import Fault, When
from tests.faults.injection import fired as has_fired
from tests.faults.recovery import Recovery, summary
from tests.faults.subjects import (
    STAGING,
    Subject,
    Subjects,
    check_that_the_index_is_whole_and_its_place_holds_nothing_else,
    prepare,
    version_for,
)
from tests.faults.tables import assert_nothing_is_left, commits_by_job, orphans
from tests.integration.icestream import FINAL, Json
from tests.patience import wait_until
from tests.thorough import exhaustive_unless
from worker.deletes.existing import FILES_AT_ONCE
from worker.index.key_set_index import database_name

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def recoveries() -> Iterator[list[Recovery]]:
    """Of each attempt whose worker was killed; told at the end, for a report."""
    known: list[Recovery] = []
    yield known
    if known:
        sys.stdout.write(f"\n{summary(known)}; the lease is {LEASE_SECONDS} s\n")


# What a kind of job passes, in order: points at which its worker is killed.
POINTS: dict[str, list[tuple[str, When]]] = {
    "convert": [
        ("stage.plan", "after"),
        ("stage.read", "after"),
        ("stage.lookup", "after"),
        ("delete-file", "after"),
        ("stage.deletes", "after"),
        ("iceberg", "before"),
        ("iceberg", "after"),
        ("stage.commit", "after"),
        ("stage.report", "after"),
        ("finish", "before"),
        ("finish", "after"),
    ],
    "index": [
        ("addresses", "after"),
        ("run", "after"),
        ("entries", "before"),
        ("entries", "after"),
        ("snapshot", "after"),
        ("dictionary", "before"),
        ("dictionary", "after"),
        ("finish", "before"),
        ("finish", "after"),
    ],
    "compact": [
        ("run", "after"),
        ("dictionary", "after"),
        ("entries", "before"),
        ("entries", "after"),
        ("stage.clean_up", "after"),
    ],
    "rebuild": [("stage.index", "before"), ("dictionary", "after"), ("stage.report", "before")],
    "verify": [("stage.report", "before")],
    "rewrite_data_files": [
        ("stage.rewrite", "after"),
        ("iceberg", "before"),
        ("iceberg", "after"),
        ("stage.report", "before"),
    ],
    "rewrite_position_delete_files": [
        ("stage.rewrite", "after"),
        ("iceberg", "before"),
        ("iceberg", "after"),
        ("finish", "before"),
    ],
    # These commit within the action of Iceberg's that gives its name to the stage.
    "rewrite_manifests": [("stage.rewrite", "before"), ("stage.rewrite", "after"), ("finish", "before")],
    "expire_snapshots": [
        ("stage.expire", "before"),
        ("stage.expire", "after"),
        ("removal", "before"),
        ("removal", "after"),
        ("finish", "before"),
    ],
    "remove_orphan_files": [
        ("stage.search", "after"),
        ("removal", "before"),
        ("removal", "after"),
        ("finish", "before"),
    ],
}
IN_THE_MIDDLE = {"delete-file": FILES_AT_ONCE + 1, "removal": 2}
"""Of several: so many go well first."""
KILLS = [(kind, point, when) for kind, points in POINTS.items() for point, when in points]


# The rest by `make exhaustive`: each starts a JVM anew.
@pytest.mark.parametrize(
    ("kind", "point", "when"), exhaustive_unless(lambda case: case == ("convert", "iceberg", "after"), KILLS)
)
def test_a_killed_worker(
    kind: str,
    point: str,
    when: When,
    cluster: Cluster,
    subjects: Subjects,
    recoveries: list[Recovery],
) -> None:
    subject = subjects(version_for(kind, KILLS.index((kind, point, when))))
    prepare(subject, kind)
    in_the_middle = point == "delete-file"
    if in_the_middle:
        subject.write(files=2 * FILES_AT_ONCE)
    fault = Fault(point, when, "kill", skip=IN_THE_MIDDLE.get(point, 0))
    fired = cluster.inject(fault)
    job_id = subject.submit(kind)
    cluster.wait_until_fired(fired, fault)
    if (point, when) != ("finish", "after"):
        cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    if in_the_middle:
        assert any("files that attempt 1" in decision for decision in job["result"]["decisions"])
    if (point, when) == ("finish", "after"):
        assert [attempt["status"] for attempt in job["attempts"]] == ["succeeded"]
        return
    lost, done = job["attempts"]
    assert (lost["status"], lost["error"]["code"]) == ("lost", "worker_lost")
    assert done["attempt"] == 2
    recovery = cluster.recovery(job_id, lost, done)
    recovery.check(LEASE_SECONDS)
    recoveries.append(recovery)


WRITES: list[tuple[str, When]] = [
    ("iceberg", "after"),
    ("stage.lookup", "after"),
    ("delete-file", "after"),
    ("stage.rows", "after"),
    ("iceberg", "before"),
    ("stage.commit", "after"),
    ("stage.index", "after"),
    ("finish", "before"),
]


# With every change it dies at its commits in the process of the tests (tests/worker/jobs/test_writing.py).
@pytest.mark.exhaustive
@pytest.mark.parametrize(("point", "when"), WRITES)
def test_a_killed_worker_that_writes_rows(
    point: str, when: When, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(2 + WRITES.index((point, when)) % 2)
    prepare(subject, "convert")
    fault = Fault(point, when, "kill")
    fired = cluster.inject(fault)
    job_id = subject.upsert()
    cluster.wait_until_fired(fired, fault)
    cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    subject.check_end("upsert", job)
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    assert (job["result"]["rows_added"], job["result"]["rows_deleted"]) == (10, 5)
    cluster.run(subject.table_id, "convert")
    assert_nothing_is_left(subject.table)
    assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0
    subject.check_rows()


PUBLICATIONS: list[tuple[str, When, str]] = [
    ("iceberg", "before", "kill"),
    ("iceberg", "after", "kill"),
    ("delete-file", "after", "kill"),
    ("stage.clear", "before", "kill"),
    ("clearing", "before", "kill"),
    ("clearing", "after", "kill"),
    ("clearing", "after", "timeout"),
    ("finish", "before", "kill"),
]


# Likewise, of publications (tests/worker/jobs/test_publishing_conflicts.py, test_publishing_clearing.py).
@pytest.mark.exhaustive
@pytest.mark.parametrize(("point", "when", "action"), PUBLICATIONS)
def test_a_killed_worker_that_publishes(
    point: str, when: When, action: str, cluster: Cluster, subjects: Subjects
) -> None:
    """Or one whose last commit, which takes what is published off its branch, is not answered."""
    subject = subjects(2 + PUBLICATIONS.index((point, when, action)) % 2, "published")
    prepare(subject, "convert")
    cluster.run(subject.table_id, "convert")
    subject.stage()
    fault = Fault(point, when, action)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "publish")
    cluster.wait_until_fired(fired, fault)
    if action == "kill":
        cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    assert job["status"] == "succeeded", job
    ended = [attempt["status"] for attempt in job["attempts"]]
    assert ended == (["lost", "succeeded"] if action == "kill" else ["succeeded"])
    subject.check_rows()
    assert_nothing_is_left(subject.table)
    again = cluster.run(subject.table_id, "publish")
    assert (again["staged_snapshots"], again["commits"]) == (0, 0), "nothing comes twice"
    assert commits_by_job(subject.table)[job_id] == 2, "one on each branch"
    of_branch = f"SELECT 1 FROM {subject.table.identifier}.files VERSION AS OF '{STAGING}'"
    assert subject.spark.sql(of_branch).count() == 0
    assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0


# Likewise, of erasures (tests/worker/erasure/test_erasure.py).
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("point", "when"),
    [
        ("stage.rewrite", "after"),
        ("iceberg", "after"),
        ("stage.index", "after"),
        ("stage.expire", "after"),
        ("finish", "before"),
    ],
)
def test_a_killed_worker_that_erases(point: str, when: When, cluster: Cluster, subjects: Subjects) -> None:
    subject = subjects(3)
    prepare(subject, "convert")
    fault = Fault(point, when, "kill")
    fired = cluster.inject(fault)
    job_id = subject.erase()
    cluster.wait_until_fired(fired, fault)
    cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    assert job["status"] == "succeeded", job
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    report = job["result"]["erasure"]
    assert report["counts"] == {"gone": 6, "held": 0, "invisible": 0, "unknown": 0}, str(report["held"])
    assert report["rows_deleted"] == 5
    subject.check_rows()
    cluster.run(subject.table_id, "convert")
    assert_nothing_is_left(subject.table)
    assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0
    subject.check_rows()


@pytest.mark.exhaustive
def test_an_erasure_waits_until_a_killed_write_has_gone_on(cluster: Cluster, subjects: Subjects) -> None:
    """Between the write's attempts it would let the snapshot expire by which the second finds the first's
    commit, and that one would bring the erased rows back."""
    subject = subjects(3)
    prepare(subject, "convert")
    fault = Fault("iceberg", "after", "kill")
    fired = cluster.inject(fault)
    write_id = subject.upsert()
    cluster.wait_until_fired(fired, fault)
    erasure_id = subject.erase()
    cluster.lose_attempts()
    erased = cluster.wait_for_job(erasure_id)
    written = cluster.get(f"/jobs/{write_id}")
    assert [attempt["status"] for attempt in written["attempts"]] == ["lost", "succeeded"]
    assert written["ended_at"] <= erased["started_at"]
    assert erased["result"]["erasure"]["counts"]["gone"] == 6, erased
    subject.check_rows()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("point", "when", "format_version"),
    [("delete-files", "after", 2), ("iceberg", "before", 3), ("iceberg", "after", 2)],
)
def test_a_killed_worker_between_two_commits_of_a_job(
    point: str, when: When, format_version: int, cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    cluster.inject()
    policy = f"steps_{point}_{when}".replace("-", "_")
    convert = {"enabled": False, "max_delete_files_per_commit": 1}
    cluster.post("/policies", {"name": policy, "settings": {**IMPATIENT, "convert": convert}})
    subject = Subject(cluster, spark, f"{catalog.name}.db.{policy}", format_version, policy=policy)
    subject.write()
    subject.write()
    # Each batch passes these points once: it dies in the second one.
    fault = Fault(point, when, "kill", skip=1)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    subject.check_end("convert", job, commits=3)
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    assert job["result"]["commits"] == commits_by_job(subject.table)[job["id"]] == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_files_of_a_job_that_nobody_tries_again_are_removed_by_the_next_one(
    format_version: int, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(format_version)
    prepare(subject, "convert")
    fault = Fault("delete-files", "after", "kill")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.post(f"/jobs/{job_id}/cancel", {})
    cluster.lose_attempts()
    assert cluster.wait_for_job(job_id)["status"] == "cancelled"
    assert orphans(subject.table)
    # Whoever removes them may die, too.
    fault = Fault("abandoned-files", "after", "kill")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.lose_attempts()
    job = cluster.wait_for_job(job_id)
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    assert orphans(subject.table) == set()
    subject.check_rows()


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", ["after", "before"])
def test_a_killed_worker_while_it_drops_an_index(
    when: When, cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    cluster.inject()
    subject = Subject(cluster, spark, f"{catalog.name}.db.dropped_{when}", 3)
    cluster.run(subject.table_id, "index")
    database = cluster.index_place / f"{database_name(str(subject.table.metadata.table_uuid), 'main')}.db"
    assert database.exists()
    fault = Fault("drop", when, "kill")
    fired = cluster.inject(fault)
    assert cluster.http.delete(f"/tables/{subject.table_id}?drop_index=true").is_success
    cluster.wait_until_fired(fired, fault)
    (drop,) = [
        job for job in cluster.get("/jobs", kind="drop_index")["items"] if job["status"] != "succeeded"
    ]
    cluster.lose_attempts()
    job = cluster.wait_for_job(drop["id"])
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    assert not database.exists()
    subject.check_rows()


def run_and_kill(cluster: Cluster, subject: Subject, kind: str, fault: Fault, *, times: int) -> Json:
    """A job in which the fault kills so many attempts, each once the one before is known to be lost."""
    directory = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    for number in range(1, times + 1):
        wait_until(lambda killed=number: has_fired(directory, fault) == killed, "the worker to die")  # type: ignore[misc]
        cluster.lose_attempts()
    return cluster.wait_for_job(job_id)


@pytest.mark.exhaustive
def test_a_worker_that_dies_again_and_again_is_tried_smaller_and_not_for_ever(
    cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(3)
    prepare(subject, "index")
    job = run_and_kill(cluster, subject, "index", Fault("run", "before", "kill", times=2), times=2)
    subject.check_end("index", job)
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "lost", "succeeded"]
    assert any("holds 1/4 of the usual" in decision for decision in job["result"]["decisions"])

    prepare(subject, "index")
    cluster.inject(Fault("run", "before", "error", times=100))
    job = cluster.wait_for_job(cluster.submit(subject.table_id, "index"))
    assert (job["status"], len(job["attempts"])) == ("failed", 6)
    assert job["error"]["code"] == "storage_full"
    cluster.inject()
    cluster.run(subject.table_id, "index")
    subject.check_rows()


@pytest.mark.exhaustive
def test_a_worker_that_dies_every_time_ends_the_job(cluster: Cluster, subjects: Subjects) -> None:
    settings = {**IMPATIENT, "retries": {"max_attempts": 2, "backoff_seconds": 0.2, "max_backoff_seconds": 1}}
    cluster.post("/policies", {"name": "brief", "settings": settings})
    subject = Subject(cluster, subjects(3).spark, f"{subjects(3).table.identifier}_brief", 3, policy="brief")
    job = run_and_kill(
        cluster, subject, "convert", Fault("delete-files", "after", "kill", times=100), times=2
    )
    cluster.inject()
    assert job["status"] == "failed"
    assert [attempt["error"]["code"] for attempt in job["attempts"]] == ["worker_lost", "worker_lost"]
    subject.check_rows()
    cluster.run(subject.table_id, "convert")
    subject.check_rows()
    assert_nothing_is_left(subject.table)


@pytest.mark.exhaustive
def test_a_worker_dies_or_sleeps_at_any_point_whatever_comes_before(
    cluster: Cluster, subjects: Subjects
) -> None:
    """The same again: SEED=... make exhaustive ARGS="-k whatever_comes_before"."""
    seed = os.environ.get("SEED") or secrets.token_hex(4)
    sys.stdout.write(f"\nSEED={seed}\n")
    chance = random.Random(seed)
    for _ in range(6):
        kind, point, when = chance.choice(KILLS)
        subject = subjects(version_for(kind, chance.randrange(2)))
        for _ in range(chance.randrange(3)):
            subject.write(files=chance.randint(1, 12))
        prepare(subject, kind)
        fault = Fault(point, when, chance.choice(("kill", "stop")), skip=chance.choice((0, 0, 1, 3)))
        sys.stdout.write(f"{kind} of version {subject.table.metadata.format_version}: {fault}\n")
        fired = cluster.inject(fault)
        job_id = subject.submit(kind)
        # It may pass that point less often than that, and be done when it does.
        wait_until(
            lambda: has_fired(fired, fault) or cluster.get(f"/jobs/{job_id}")["status"] in FINAL,  # noqa: B023
            "the fault or the end",
        )
        if cluster.get(f"/jobs/{job_id}")["status"] not in FINAL:
            cluster.lose_attempts()
        job = cluster.wait_for_job(job_id)
        cluster.inject()
        if fault.action == "stop" and has_fired(fired, fault):
            sleeper = cluster.worker_of(job["attempts"][0])
            told = len(sleeper.log)
            sleeper.send(signal.SIGCONT)
            if job["attempts"][0]["status"] == "lost":
                wait_until(lambda: sleeper.gave_up(told), "the sleeper to give up")  # noqa: B023
        subject.check_end(kind, job)
        assert {attempt["status"] for attempt in job["attempts"][:-1]} <= {"lost"}
        cluster.run(subject.table_id, "convert")
        assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0
        assert cluster.get(f"/jobs/{job_id}") == job
        assert_nothing_is_left(subject.table)
        subject.check_rows()


@pytest.mark.exhaustive
def test_the_index_is_whole_and_its_place_holds_nothing_else(cluster: Cluster, subjects: Subjects) -> None:
    check_that_the_index_is_whole_and_its_place_holds_nothing_else(cluster, subjects)
