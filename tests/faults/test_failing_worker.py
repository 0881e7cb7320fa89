"""Calls, writes and commits of a worker that fail or are not answered, and a worker that is asked to stop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster
from tests.faults.injection import Fault, When, release
from tests.faults.proxy import CUT, HANG, PASS, Mode
from tests.faults.subjects import (
    Subjects,
    check_drain,
    check_that_the_index_is_whole_and_its_place_holds_nothing_else,
    prepare,
)
from tests.patience import wait_until
from tests.thorough import EXHAUSTIVE, exhaustive_unless, first_always
from worker.agent.main import WorkerSettings

pytestmark = pytest.mark.integration


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


@pytest.mark.thorough
@first_always("kind", ["index", "convert"], EXHAUSTIVE)
def test_points_that_fail_or_do_not_answer_one_after_the_other(
    kind: str, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(3)
    prepare(subject, kind)
    cases = [case[1:] for case in ERRORS if case[0] == kind]
    faults = [Fault(point, when, action) for point, when, action, _ in cases]
    fired = cluster.inject(*faults)
    job = cluster.wait_for_job(cluster.submit(subject.table_id, kind))
    subject.check_end(kind, job)
    for fault in faults:
        cluster.wait_until_fired(fired, fault)
    errors = Counter(attempt["error"]["code"] for attempt in job["attempts"][:-1])
    assert errors == Counter(code for *_, code in cases if code)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "point", "when", "action", "code"), ERRORS)
def test_a_point_that_fails_or_does_not_answer(
    kind: str,
    point: str,
    when: When,
    action: str,
    code: str | None,
    cluster: Cluster,
    subjects: Subjects,
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("format_version", "mode"), exhaustive_unless(lambda case: case[1] == HANG, [(2, CUT), (3, HANG)])
)
def test_a_worker_that_can_not_reach_the_service_gives_its_job_up(
    format_version: int, mode: Mode, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(format_version)
    prepare(subject, "convert")
    fault = Fault("delete-files", "after", "hold")
    fired = cluster.inject(fault)
    job_id = cluster.submit(subject.table_id, "convert")
    cluster.wait_until_fired(fired, fault)
    cluster.network.set(mode)
    try:
        cluster.lose_attempts()
    finally:
        cluster.network.set(PASS)
        release(fired)
    job = cluster.wait_for_job(job_id)
    subject.check_end("convert", job)
    errors = [attempt["error"] and attempt["error"]["code"] for attempt in job["attempts"]]
    assert errors == ["worker_lost", None]


DRAINS: list[tuple[str, str, When]] = [
    ("convert", "stage.lookup", "before"),
    ("convert", "delete-file", "after"),  # others are written meanwhile
    ("convert", "iceberg", "before"),
    ("index", "run", "after"),
    ("convert", "iceberg", "after"),  # the next attempt finds the commit
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "point", "when"),
    exhaustive_unless(lambda case: case[1] == "stage.lookup", DRAINS),
)
def test_a_worker_that_is_asked_to_stop_hands_its_job_back_within_a_bound(
    kind: str, point: str, when: When, cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(2 + DRAINS.index((kind, point, when)) % 2)
    prepare(subject, kind)
    # As a read from a store that hangs: nobody waits for it.
    check_drain(cluster, subject, kind, Fault(point, when, "sleep:3600"))


RESTARTS: list[tuple[str, str, When]] = [
    ("convert", "stage.lookup", "after"),
    ("convert", "iceberg", "after"),
    ("convert", "finish", "before"),
    ("index", "entries", "before"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "point", "when"), exhaustive_unless(lambda case: case[1] == "iceberg", RESTARTS)
)
def test_a_service_that_is_killed_while_a_worker_is_at_work(
    kind: str, point: str, when: When, cluster: Cluster, subjects: Subjects
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
    assert [attempt["status"] for attempt in job["attempts"]] == ["succeeded"]


@pytest.mark.thorough
def test_a_worker_whose_clock_is_ahead_leaves_the_table_to_its_writer(
    cluster: Cluster, subjects: Subjects
) -> None:
    subject = subjects(3)
    prepare(subject, "convert")
    with cluster.at(-3600):
        job_id = cluster.submit(subject.table_id, "convert")
        wait_until(lambda: cluster.get(f"/jobs/{job_id}")["error"], "the first attempt to end")
    job = cluster.wait_for_job(job_id)
    assert job["attempts"][0]["error"]["code"] == "clock_ahead"
    subject.check_end("convert", job)


@pytest.mark.exhaustive
def test_the_index_is_whole_and_its_place_holds_nothing_else(cluster: Cluster, subjects: Subjects) -> None:
    check_that_the_index_is_whole_and_its_place_holds_nothing_else(cluster, subjects)


def test_a_real_worker_knows_nothing_of_faults() -> None:
    assert not any("fault" in name for name in WorkerSettings.model_fields)
    folder = Path(__file__).parents[2] / "worker"
    assert not [path for path in folder.rglob("*.py") if "ICESTREAM_FAULTS" in path.read_text()]
    assert not [path for path in folder.rglob("*.py") if "tests.faults" in path.read_text()]
