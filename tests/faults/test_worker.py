"""A worker that dies, sleeps or fails at any point: the job ends right, once, and leaves nothing behind.

Real processes: the service, and two workers with Spark whose faults are injected at named points.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.faults.cluster import (
    IMPATIENT,
    KEEP_SECONDS,
    LEASE_SECONDS,
    Cluster,
    WorkerProcess,
)
from tests.faults.injection import Fault, When, fired_in
from tests.faults.injection import fired as has_fired
from tests.faults.proxy import CUT, HANG, PASS, Mode
from tests.faults.recovery import TALLY, Recovery, summary
from tests.faults.tables import (
    assert_no_content_is_unnamed,
    assert_nothing_is_left,
    commits_by_job,
    orphans,
    strays,
)
from tests.integration.icestream import Json
from tests.patience import wait_until
from tests.thorough import thorough_unless
from worker.deletes.existing import FILES_AT_ONCE
from worker.index.key_set_index import database_name

pytestmark = pytest.mark.integration

BATCH = 2_000
LARGE = 400_000  # rows, which take 60 bytes each to sort
LARGE_FRACTION = 0.125  # of what a job holds usually: all of these and hardly more
ROOM = 25 * LARGE  # bytes: too few for all or half of them, enough for a quarter
# Whatever is large is taken from the system when it is needed, and given back when it isn't.
EXACT_MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}


class Subject:
    """A table with an index, and what must be visible in it."""

    def __init__(
        self,
        cluster: Cluster,
        spark: SparkSession,
        identifier: str,
        format_version: Any,
        policy: str = "impatient",
        *,
        batch: int = BATCH,
        store: Mapping[str, str] | None = None,
    ) -> None:
        """batch: rows that each `write` adds. store: properties of the table's, if it is not a local one."""
        self.cluster, self.spark = cluster, spark
        self._batch, self._store = batch, store
        self.table = TableBuilder.create(
            spark, identifier, "id bigint, v bigint", format_version=format_version
        )
        self.table.writer = "iceberg" if store else "arrow"
        self.table_id = cluster.enroll(identifier, key_sets=[["id"]], policy=policy)
        self.rows: Counter[tuple[int, int]] = Counter()
        self._next = 0
        self.write()

    def write(self, files: int = 3) -> None:
        """Some data files, and deletes of one row in four of these and of older ones."""
        ids = range(self._next, self._next + self._batch)
        self._next += self._batch
        self.table.append(pa.table({"id": ids, "v": ids}), files=files)
        gone = [i for i in range(self._next) if (i + self._next // self._batch) % 4 == 0]
        self.table.delete_keys(pa.table({"id": gone}))
        self.rows.update((i, i) for i in ids)
        for i in gone:
            self.rows.pop((i, i), None)

    def check_rows(self) -> None:
        assert visible_rows(self.spark, self.table.identifier) == self.rows

    def check_end(self, kind: str, job: Json, *, commits: int = 1) -> None:
        """What holds after any job, however many attempts it took."""
        assert job["status"] == "succeeded", job
        TALLY.add(job["attempts"], LEASE_SECONDS)
        self.check_rows()
        assert commits_by_job(self.table)[job["id"]] == (commits if kind == "convert" else 0)
        assert [attempt["status"] for attempt in job["attempts"]].count("succeeded") == 1
        assert job["attempts"][-1]["status"] == "succeeded"
        assert all(attempt["ended_at"] for attempt in job["attempts"])
        assert self.cluster.get("/jobs", status="running")["items"] == []
        assert not [one for one in self.cluster.get("/workers")["items"] if one["job_id"]]
        events = self.cluster.get(f"/jobs/{job['id']}/events", limit=500)["items"]
        kinds = Counter(event["kind"] for event in events)
        assert kinds["job.running"] == len(job["attempts"])
        if kind == "convert":
            assert_nothing_is_left(self.table, self._store)
        if kind in ("index", "rebuild"):
            (key_set,) = self.cluster.get(f"/tables/{self.table_id}/health")["key_sets"]
            assert key_set["coverage"] == 1.0


@pytest.fixture(scope="module")
def recoveries() -> Iterator[list[Recovery]]:
    """Of each attempt whose worker was killed; told at the end, for a report."""
    known: list[Recovery] = []
    yield known
    if known:
        sys.stdout.write(f"\n{summary(known)}; the lease is {LEASE_SECONDS} s\n")


@pytest.fixture(scope="module")
def cluster(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    allowed = [tmp_path_factory.getbasetemp().as_uri()]
    cluster = Cluster(directory, allowed, environment=EXACT_MEMORY)
    try:
        cluster.register(catalog)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def subjects(cluster: Cluster, spark: SparkSession, catalog: Catalog) -> Callable[[int], Subject]:
    """One table of each format version; every case adds to it."""
    known: dict[int, Subject] = {}

    def subject(format_version: int) -> Subject:
        if format_version not in known:
            name = f"{catalog.name}.db.v{format_version}"
            known[format_version] = Subject(cluster, spark, name, format_version)
        return known[format_version]

    return subject


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
}
KILLS = [(kind, point, when) for kind, points in POINTS.items() for point, when in points]
# The rest by `make thorough`: each starts a JVM anew.
ALWAYS = {
    ("convert", "delete-file", "after"),
    ("convert", "iceberg", "before"),
    ("convert", "iceberg", "after"),
    ("index", "entries", "after"),
    ("compact", "entries", "after"),
    ("rebuild", "dictionary", "after"),
}


@pytest.mark.parametrize(("kind", "point", "when"), thorough_unless(ALWAYS.__contains__, KILLS))
def test_a_killed_worker(
    kind: str,
    point: str,
    when: When,
    cluster: Cluster,
    subjects: Callable[[int], Subject],
    recoveries: list[Recovery],
) -> None:
    # Both formats take their turn.
    subject = subjects(2 + KILLS.index((kind, point, when)) % 2)
    prepare(subject, kind)
    in_the_middle = point == "delete-file"
    if in_the_middle:
        subject.write(files=2 * FILES_AT_ONCE)
    fault = Fault(point, when, "kill", skip=FILES_AT_ONCE + 1 if in_the_middle else 0)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
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


def prepare(subject: Subject, kind: str) -> None:
    """Work for a job of this kind, with an index to look up in."""
    subject.cluster.inject()
    subject.write()
    if kind != "index":
        subject.cluster.run(subject.table_id, "index")
    if kind == "compact":
        subject.write()
        subject.cluster.run(subject.table_id, "index")


def gave_up(sleeper: WorkerProcess, told: int) -> bool:
    """Whether a worker's log has it, beyond the characters that it had told before."""
    return any(words in sleeper.log[told:] for words in ("was taken away", "came too late"))


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
    thorough_unless(
        {
            ("convert", "iceberg", "before", 0),
            ("convert", "delete-file", "after", 1),
            ("index", "dictionary", "before", 0),
            ("compact", "snapshot", "before", 2),
        }.__contains__,
        SLEEPS,
    ),
)
def test_a_worker_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    kind: str, point: str, when: When, skip: int, cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(2 + SLEEPS.index((kind, point, when, skip)) % 2)
    prepare(subject, kind)
    if point == "snapshot":
        time.sleep(KEEP_SECONDS)  # then there is something to clean up
    fault = Fault(point, when, "stop", skip=skip)
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    sleeper = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    try:
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
    wait_until(lambda: gave_up(sleeper, told), "the sleeper to give up")
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


@pytest.mark.thorough
def test_a_worker_dies_or_sleeps_at_any_point_whatever_comes_before(
    cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    """The same again: SEED=... make thorough ARGS="-k whatever_comes_before"."""
    seed = os.environ.get("SEED") or secrets.token_hex(4)
    sys.stdout.write(f"\nSEED={seed}\n")
    chance = random.Random(seed)
    for _ in range(6):
        kind, point, when = chance.choice(KILLS)
        subject = subjects(chance.choice((2, 3)))
        for _ in range(chance.randrange(3)):
            subject.write(files=chance.randint(1, 12))
        prepare(subject, kind)
        fault = Fault(point, when, chance.choice(("kill", "stop")), skip=chance.choice((0, 0, 1, 3)))
        sys.stdout.write(f"{kind} of version {subject.table.metadata.format_version}: {fault}\n")
        fired = cluster.inject(fault)
        job_id = cluster.submit(subject.table_id, kind)
        job = cluster.wait_for_job(job_id)
        cluster.inject()
        # It may pass that point less often than that.
        if fault.action == "stop" and has_fired(fired, fault):
            sleeper = cluster.worker_of(job["attempts"][0])
            told = len(sleeper.log)
            sleeper.send(signal.SIGCONT)
            if job["attempts"][0]["status"] == "lost":
                wait_until(lambda: gave_up(sleeper, told), "the sleeper to give up")  # noqa: B023
        subject.check_end(kind, job)
        assert {attempt["status"] for attempt in job["attempts"][:-1]} <= {"lost"}
        cluster.run(subject.table_id, "convert")
        assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0
        assert cluster.get(f"/jobs/{job_id}") == job
        assert_nothing_is_left(subject.table)
        subject.check_rows()


@pytest.mark.parametrize(
    ("point", "later"),
    thorough_unless(
        lambda case: case == ("iceberg", None),
        [("delete-files", "convert"), ("iceberg", "convert"), ("iceberg", None), ("entries", "index")],
    ),
)
def test_a_worker_that_sleeps_until_its_job_was_cancelled(
    point: str, later: str | None, cluster: Cluster, subjects: Callable[[int], Subject]
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
        job = cluster.wait_for_job(job_id)
        assert job["status"] == "cancelled"
        if later is not None:
            cluster.run(subject.table_id, later)
        snapshot_id, told = subject.table.snapshot_id, len(sleeper.log)
    finally:
        sleeper.send(signal.SIGCONT)
    wait_until(lambda: gave_up(sleeper, told), "the sleeper to give up")
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


# And how the attempts before the last one end; None: the first one does the job.
ERRORS: list[tuple[str, str, When, str, str | None]] = [
    ("convert", "claim", "before", "error", None),
    ("convert", "claim", "after", "timeout", "claim_answer_lost"),
    ("convert", "heartbeat", "before", "error", None),
    ("convert", "heartbeat", "after", "timeout", None),
    ("index", "addresses", "before", "error", None),
    ("index", "addresses", "after", "timeout", None),
    ("convert", "finish", "before", "error", None),
    ("convert", "finish", "after", "timeout", None),
    ("index", "run", "before", "error", "storage_full"),
    ("index", "entries", "before", "error", "storage_error"),
    ("index", "entries", "after", "timeout", "storage_error"),
    ("index", "dictionary", "after", "timeout", "storage_error"),
    ("index", "snapshot", "after", "timeout", "storage_error"),
    ("compact", "entries", "after", "timeout", "storage_error"),
    ("convert", "delete-files", "before", "error", "storage_full"),
    ("convert", "delete-files", "after", "timeout", "storage_full"),
    ("convert", "iceberg", "before", "error", "commit_state_unknown"),
    ("convert", "iceberg", "after", "timeout", None),
    ("convert", "stage.report", "before", "error", "storage_error"),
]


@pytest.mark.parametrize(
    ("kind", "point", "when", "action", "code"),
    thorough_unless(lambda case: case[2] == "after" or case[1] in ("run", "delete-files"), ERRORS),
)
def test_a_point_that_fails_or_does_not_answer(
    kind: str,
    point: str,
    when: When,
    action: str,
    code: str | None,
    cluster: Cluster,
    subjects: Callable[[int], Subject],
) -> None:
    subject = subjects(2 + ERRORS.index((kind, point, when, action, code)) % 2)
    prepare(subject, kind)
    fault = Fault(point, when, action)
    fired = cluster.inject(fault)
    job = cluster.wait_for_job(cluster.submit(subject.table_id, kind))
    subject.check_end(kind, job)
    cluster.wait_until_fired(fired, fault)
    # Whoever reads the history learns what happened.
    errors = [attempt["error"] for attempt in job["attempts"][:-1]]
    assert [error["code"] for error in errors] == ([code] if code else [])
    assert all(error["detail"] for error in errors)


def test_a_killed_worker_between_two_commits_of_a_job(
    cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    cluster.inject()
    convert = {"enabled": False, "max_delete_files_per_commit": 1}
    settings = {**IMPATIENT, "convert": convert}
    cluster.post("/policies", {"name": "steps", "settings": settings})
    subjects = []
    for format_version in (2, 3):
        name = f"{catalog.name}.db.steps{format_version}"
        subjects.append(Subject(cluster, spark, name, format_version, policy="steps"))
        subjects[-1].write()
        subjects[-1].write()
    # Each batch passes these points once: it dies in the second one.
    for subject, fault in (
        (subjects[0], Fault("delete-files", "after", "kill", skip=1)),
        (subjects[1], Fault("iceberg", "before", "kill", skip=1)),
        (subjects[0], Fault("iceberg", "after", "kill", skip=1)),
    ):
        cluster.inject(fault)
        job = cluster.wait_for_job(cluster.submit(subject.table_id, "convert"))
        subject.check_end("convert", job, commits=3)
        assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
        assert job["result"]["commits"] == commits_by_job(subject.table)[job["id"]] == 3
        cluster.inject()
        for _ in range(3):
            subject.write()


@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_files_of_a_job_that_nobody_tries_again_are_removed_by_the_next_one(
    format_version: int, cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(format_version)
    prepare(subject, "convert")
    fault = Fault("delete-files", "after", "kill")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.post(f"/jobs/{job_id}/cancel", {})
    assert cluster.wait_for_job(job_id)["status"] == "cancelled"
    assert orphans(subject.table)
    # Whoever removes them may die, too.
    cluster.inject(Fault("leftovers", "after", "kill"))
    job = cluster.wait_for_job(cluster.submit(subject.table_id, "compact"))
    assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
    assert orphans(subject.table) == set()
    subject.check_rows()


@pytest.mark.parametrize(
    ("format_version", "mode"), thorough_unless(lambda case: case[1] == HANG, [(2, CUT), (3, HANG)])
)
def test_a_worker_that_can_not_reach_the_service_gives_its_job_up(
    format_version: int, mode: Mode, cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(format_version)
    prepare(subject, "convert")
    fault = Fault("delete-files", "after", f"sleep:{3 * LEASE_SECONDS}")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.network.set(mode)
    try:
        wait_until(lambda: cluster.get(f"/jobs/{job_id}")["status"] == "queued", "the attempt to be lost")
    finally:
        cluster.network.set(PASS)
    job = cluster.wait_for_job(job_id)
    subject.check_end("convert", job)
    errors = [attempt["error"] and attempt["error"]["code"] for attempt in job["attempts"]]
    assert errors == ["worker_lost", None]


def test_a_killed_worker_while_it_drops_an_index(
    cluster: Cluster, spark: SparkSession, catalog: Catalog
) -> None:
    for fault in (Fault("drop", "before", "kill"), Fault("drop", "after", "kill")):
        cluster.inject()
        subject = Subject(cluster, spark, f"{catalog.name}.db.dropped_{fault.when}", 3)
        cluster.run(subject.table_id, "index")
        database = cluster.index_place / f"{database_name(str(subject.table.metadata.table_uuid), 'main')}.db"
        assert database.exists()
        fired = cluster.inject(fault)
        assert cluster.http.delete(f"/tables/{subject.table_id}?drop_index=true").is_success
        cluster.wait_until_fired(fired, fault)
        (drop,) = [
            job for job in cluster.get("/jobs", kind="drop_index")["items"] if job["status"] != "succeeded"
        ]
        job = cluster.wait_for_job(drop["id"])
        assert [attempt["status"] for attempt in job["attempts"]] == ["lost", "succeeded"]
        assert not database.exists()
        subject.check_rows()


@pytest.mark.parametrize(("point", "when"), [("addresses", "after"), ("entries", "before")])
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
        wait_until(lambda: drops() == 1, "the index to be dropped")
        assert not database.exists()
    finally:
        sleeper.send(signal.SIGCONT)
    wait_until(lambda: drops() == 2, "the index to be dropped again")
    assert not database.exists()
    assert cluster.get(f"/jobs/{job_id}")["status"] == "cancelled"


DRAINS: list[tuple[str, str, When]] = [
    ("convert", "stage.lookup", "before"),
    ("convert", "delete-file", "after"),  # others are written meanwhile
    ("convert", "iceberg", "before"),
    ("index", "run", "after"),
    ("convert", "iceberg", "after"),  # the next attempt finds the commit
]


@pytest.mark.parametrize(
    ("kind", "point", "when"),
    thorough_unless(lambda case: case[1] in ("delete-file", "run") or case[2] == "after", DRAINS),
)
def test_a_worker_that_is_asked_to_stop_hands_its_job_back_within_a_bound(
    kind: str, point: str, when: When, cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(2 + DRAINS.index((kind, point, when)) % 2)
    prepare(subject, kind)
    # As a read from a store that hangs: nobody waits for it.
    check_drain(cluster, subject, kind, Fault(point, when, "sleep:3600"))


def check_drain(cluster: Cluster, subject: Subject, kind: str, fault: Fault) -> None:
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    worker = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    pid = worker.pid
    worker.send(signal.SIGTERM)
    # After STOP_SECONDS, or on its own, it would end without handing anything back.
    wait_until(lambda: worker.pid != pid, "the worker to end")
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    assert [attempt["status"] for attempt in job["attempts"]] == ["released", "succeeded"]


RESTARTS: list[tuple[str, str, When]] = [
    ("convert", "stage.lookup", "after"),
    ("convert", "iceberg", "after"),
    ("convert", "finish", "before"),
    ("index", "entries", "before"),
]


@pytest.mark.parametrize(
    ("kind", "point", "when"), thorough_unless(lambda case: case[1] == "iceberg", RESTARTS)
)
def test_a_service_that_is_killed_while_a_worker_is_at_work(
    kind: str, point: str, when: When, cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(2 + RESTARTS.index((kind, point, when)) % 2)
    prepare(subject, kind)
    fault = Fault(point, when, "sleep:1")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, kind)
    cluster.wait_until_fired(fired, fault)
    cluster.kill_service()
    job = cluster.wait_for_job(job_id)
    subject.check_end(kind, job)
    # It may take longer than the lease to start again; then the worker gives the attempt up.
    assert [attempt["status"] for attempt in job["attempts"]] in (["succeeded"], ["lost", "succeeded"])


@pytest.mark.parametrize("place", ["in a thread", pytest.param("on Spark", marks=pytest.mark.thorough)])
def test_a_task_that_hangs_is_given_up_after_the_time_of_the_policy(
    place: str, cluster: Cluster, subjects: Callable[[int], Subject], request: pytest.FixtureRequest
) -> None:
    if place == "on Spark":
        request.getfixturevalue("on_spark")
    retries = {**IMPATIENT["retries"], "timeout_seconds": 20}  # an attempt that hangs nowhere takes less
    name = place.replace(" ", "_")
    cluster.post("/policies", {"name": name, "settings": {**IMPATIENT, "retries": retries}})
    known = subjects(3)
    subject = Subject(cluster, known.spark, f"{known.table.identifier}_{name}", 3, policy=name)
    fault = Fault("delete-files", "before", "sleep:3600")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    worker = cluster.worker_of(cluster.get(f"/jobs/{job_id}")["attempts"][0])
    told = len(worker.log)
    hung = Path(f"/proc/{fired_in(fired, fault)}")
    job = cluster.wait_for_job(job_id)
    subject.check_end("convert", job)
    assert (job["attempts"][0]["status"], job["attempts"][0]["error"]["code"]) == ("failed", "timed_out")
    # Whatever runs the task ends, be it the worker itself, and the worker takes further jobs.
    wait_until(lambda: not hung.exists(), "the process that hangs to end")
    assert ("still hangs" in worker.log[told:]) == (place == "in a thread")


def test_a_worker_that_dies_again_and_again_is_tried_smaller_and_not_for_ever(
    cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(3)
    prepare(subject, "index")
    cluster.inject(Fault("run", "before", "kill", times=2))
    job = cluster.wait_for_job(cluster.submit(subject.table_id, "index"))
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


def test_a_worker_that_dies_every_time_ends_the_job(
    cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    settings = {**IMPATIENT, "retries": {"max_attempts": 2, "backoff_seconds": 0.2, "max_backoff_seconds": 1}}
    cluster.post("/policies", {"name": "brief", "settings": settings})
    subject = Subject(cluster, subjects(3).spark, f"{subjects(3).table.identifier}_brief", 3, policy="brief")
    cluster.inject(Fault("delete-files", "after", "kill", times=100))
    job = cluster.wait_for_job(cluster.submit(subject.table_id, "convert"))
    cluster.inject()
    assert job["status"] == "failed"
    assert [attempt["error"]["code"] for attempt in job["attempts"]] == ["worker_lost", "worker_lost"]
    subject.check_rows()
    cluster.run(subject.table_id, "convert")
    subject.check_rows()
    assert_nothing_is_left(subject.table)


def test_a_jvm_that_hangs_costs_an_attempt(cluster: Cluster, subjects: Callable[[int], Subject]) -> None:
    """Its job's lease is renewed by a thread that needs no JVM."""
    subject = subjects(3)
    prepare(subject, "convert")
    fault = Fault("iceberg", "before", "sleep:2")
    fired = cluster.inject(fault)
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
    """Stages run in Spark's Python processes, as large ones do."""
    file = cluster.directory / "on-spark"
    file.touch()
    yield
    file.unlink()


@pytest.mark.usefixtures("on_spark")
class TestOnSpark:
    def test_a_process_that_is_killed_is_tried_again_smaller(
        self, cluster: Cluster, subjects: Callable[[int], Subject]
    ) -> None:
        for kind, point in (("convert", "delete-files"), ("index", "run")):
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
        self, cluster: Cluster, subjects: Callable[[int], Subject]
    ) -> None:
        subject = subjects(3)
        prepare(subject, "convert")
        check_drain(cluster, subject, "convert", Fault("delete-files", "before", "sleep:3600"))

    def test_a_job_that_is_cancelled_ends_within_seconds(
        self, cluster: Cluster, subjects: Callable[[int], Subject]
    ) -> None:
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
        cluster.post("/policies", {"name": "small", "settings": settings})
        self.table_id = cluster.enroll(identifier, key_sets=[["key"]], policy="small")

    def append(self) -> None:
        """One row, and an index of all."""
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
        room = self.cluster.directory / "room"
        room.write_text(str(ROOM))
        try:
            job = self.cluster.wait_for_job(self.cluster.submit(self.table_id, kind))
        finally:
            room.unlink()
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


@pytest.fixture(scope="module")
def large(cluster: Cluster, spark: SparkSession, catalog: Catalog) -> Large:
    return Large(cluster, spark, f"{catalog.name}.db.large")


def test_an_index_that_does_not_fit_in_memory_is_built_in_smaller_parts(large: Large) -> None:
    large.run("index")
    assert (large.key_set["entries"], large.key_set["coverage"]) == (large.rows, 1.0)


def test_a_compaction_that_does_not_fit_in_memory_merges_smaller_parts(large: Large) -> None:
    large.append()
    assert large.key_set["sorted_runs"] > 1
    large.run("compact")
    assert (large.key_set["entries"], large.key_set["sorted_runs"]) == (large.rows, 1)


def test_a_conversion_that_does_not_fit_in_memory_takes_its_keys_in_ranges(large: Large) -> None:
    large.append()
    deleted = large.delete()
    result = large.run("convert")
    assert (result["rows_deleted"], result["key_sets"][0]["keys"]) == (deleted, deleted)
    assert result["key_sets"][0]["key_ranges"] > 1
    assert_nothing_is_left(large.table)
    assert large.table.spark.table(large.table.identifier).count() == large.rows


def test_a_worker_whose_clock_is_ahead_leaves_the_table_to_its_writer(
    cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    subject = subjects(3)
    prepare(subject, "convert")
    clock = cluster.directory / "service" / "clock"
    clock.write_text("-3600")  # of the service: its workers are ahead
    try:
        job_id = cluster.submit(subject.table_id, "convert")
        wait_until(lambda: cluster.get(f"/jobs/{job_id}")["error"], "the first attempt to end")
    finally:
        clock.unlink()
    job = cluster.wait_for_job(job_id)
    assert job["attempts"][0]["error"]["code"] == "clock_ahead"
    subject.check_end("convert", job)


def test_the_index_is_whole_and_its_place_holds_nothing_else(
    cluster: Cluster, subjects: Callable[[int], Subject]
) -> None:
    """After all of the faults above."""
    cluster.inject()
    for format_version in (2, 3):
        subject = subjects(format_version)
        cluster.run(subject.table_id, "index")
        cluster.run(subject.table_id, "convert")
        assert equality_delete_files(subject.spark, subject.table.identifier) == []
        subject.check_rows()
        assert cluster.run(subject.table_id, "verify")["key_sets"][0]["differences"] == 0

        for _ in range(3):
            # What is younger than some seconds stays; see KEEP_SECONDS.
            time.sleep(KEEP_SECONDS)
            cluster.run(subject.table_id, "compact")
        assert strays(subject.table, cluster.index_place.as_uri()) == set()
        assert_no_content_is_unnamed(subject.table)
        subject.check_rows()


def test_a_real_worker_knows_nothing_of_faults() -> None:
    code = (
        "import sys, worker.agent.main; from worker.agent.main import WorkerSettings;"
        "assert not any('fault' in name for name in WorkerSettings.model_fields);"
        "assert not any('fault' in name for name in sys.modules if name.startswith('worker'))"
    )
    status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code])
    assert status == 0
    folder = Path(__file__).parents[2] / "worker"
    assert not [path for path in folder.rglob("*.py") if "ICESTREAM_FAULTS" in path.read_text()]
