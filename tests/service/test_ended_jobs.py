"""What jobs that have ended tell of their table: what is indexed, what they cost, what the next one takes."""

from datetime import timedelta
from typing import Any

import pytest

from service.auth.models import SYSTEM
from service.db.database import Database, new_id
from service.jobs import queue
from service.policies.models import AttachmentRequest, PolicyRequest
from service.policies.service import attach_policy, create_policy
from service.records.health import TableHealth
from service.records.jobs import JobKind
from service.records.policies import Level
from service.records.tables import EnrolledTable
from service.scheduling import state
from service.scheduling.state import read_known, table_state
from tests.service.queue_calls import (
    FATAL,
    LATER,
    RETRYABLE,
    SETTINGS,
    START,
    add_tables,
    add_worker,
    claim,
    finish,
    job,
    request,
)

HISTORIES = {
    "all goes well": "ccccccc",
    "it has just failed": "cccccf",
    "it fails again and again": "cffffff",
    "it found nothing to do": "ccccii",
    "it never found anything to do": "iiiiii",
    "one had to be repeated": "ccccrc",
    "one was idle before": "cciccc",
    "there are few": "cf",
}


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_the_latest_jobs_tell_what_all_tell(
    database: Database, history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c: it committed something, f: it failed, i: it was idle, r: it committed at the second attempt."""
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    for number, each in enumerate(history):
        now = START + timedelta(hours=number)
        job_id = request(database, table, now=now, trigger="the policy")
        took = timedelta(seconds=10 + 3 * number)
        for attempt in (1, 2) if each == "r" else (1,):
            at = now + attempt * timedelta(minutes=20)
            assert claim(database, worker, at) is not None
            status = "failed" if each == "f" or (each == "r" and attempt == 1) else "succeeded"
            error = None if status == "succeeded" else RETRYABLE if each == "r" else FATAL
            result = {"commits": int(each != "i"), "equality_delete_files_removed": int(each != "i")}
            finish(database, job_id, attempt, status, at + took, error, result=result)
        assert job(database, job_id).status == ("failed" if each == "f" else "succeeded")

    def last_job() -> Any:
        with database.read() as session:
            row, health = session.get_one(EnrolledTable, table), TableHealth(table_id=table)
            known = read_known(session, row, LATER)
            return table_state(session, row, health, known, LATER).last[JobKind.CONVERT]

    told = last_job()
    monkeypatch.setattr(state, "_says_all", lambda *_: False)
    assert told == last_job()
    monkeypatch.setattr(state, "_says_all", lambda *_: True)
    assert (told == last_job()) is (history in ("ccccccc", "cciccc", "cf"))


@pytest.mark.parametrize("most", [1, 2])
def test_a_table_s_jobs_are_those_that_began_of_whatever_branch(
    database: Database, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(queue, "_MOST_ASKED", most)
    table, branch, other = add_tables(database, ["a", "a", "b"])
    worker, ours, foreign = add_worker(database), set[str](), set[str]()
    for number, (each, dry_run) in enumerate(
        [(table, False), (branch, False), (other, False), (table, True)]
    ):
        now = START + timedelta(hours=number)
        job_id = request(database, each, now=now, dry_run=dry_run)
        assert claim(database, worker, now) is not None
        finish(database, job_id, 1, "succeeded", now)
        (foreign if each == other or dry_run else ours).add(job_id)
    waiting = request(database, table, now=START + timedelta(days=1))
    with database.read() as session:
        claimed = {*ours, *foreign, waiting, new_id()}
        assert queue.jobs_of_table(session, session.get_one(EnrolledTable, table), claimed) == ours


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_a_rewriting_tells_from_which_share_of_deleted_rows_on_it_took_files(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    how: dict[str, Any] = {"parameters": {"delete_ratio_threshold": 0.02}, "trigger": "the policy"}
    job_id = request(database, table, JobKind.REWRITE_DATA_FILES, **how)
    assert claim(database, add_worker(database)) is not None
    finish(database, job_id, 1, "succeeded", LATER)
    with database.write() as session:
        row, health = session.get_one(EnrolledTable, table), session.get_one(TableHealth, table)
        found = table_state(session, row, health, read_known(session, row, LATER), LATER)
    last = found.last[JobKind.REWRITE_DATA_FILES]
    assert (last.delete_ratio, last.succeeded_at) == (0.02, LATER)


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize(
    ("kind", "dry_run", "status", "has_indexed", "has_verified"),
    [
        (JobKind.INDEX, False, "succeeded", True, False),
        (JobKind.INDEX, False, "failed", False, False),
        (JobKind.VERIFY, False, "succeeded", False, True),
        (JobKind.VERIFY, False, "failed", False, False),
        (JobKind.CONVERT, True, "succeeded", False, False),
    ],
)
def test_only_a_job_that_is_done_has_indexed_or_verified_what_its_worker_saw(
    kind: JobKind, dry_run: bool, status: str, has_indexed: bool, has_verified: bool, database: Database
) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table, kind, dry_run=dry_run)
    claim(database, add_worker(database))
    seen = {"iceberg_snapshot_id": 7, "key_sets": []}
    pending = {"pending_equality_delete_files": 0, "pending_equality_deletes": 0}
    finish(database, job_id, 1, status, error=FATAL if status == "failed" else None, health=seen | pending)
    with database.read() as session:
        health = session.get_one(TableHealth, table)
        assert health.report_snapshot_id == 7
        assert (health.indexed_snapshot_id, health.verified_snapshot_id) == (
            7 if has_indexed else None,
            7 if has_verified else None,
        )


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize(
    ("changed", "has_indexed"),
    [({}, True), ({"covers_head": False}, False), ({"files_total": 3}, False), ({"key_sets": []}, False)],
)
def test_a_job_of_any_kind_has_indexed_what_it_leaves_covered(
    changed: dict[str, Any], has_indexed: bool, database: Database
) -> None:
    """What it says is held to what it counts."""
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table, JobKind.CONVERT)
    claim(database, add_worker(database))
    index: dict[str, Any] = dict.fromkeys(("generation", "entries", "bytes", "sorted_runs"), 1)
    index |= {"columns": ["id"], "equality_field_ids": [1], "source": "index", "dead_ratio": 0.0}
    covered = {"files_covered": 2, "files_total": changed.pop("files_total", 2), "coverage": 1.0}
    health = {
        "iceberg_snapshot_id": 7,
        "key_sets": [index | covered],
        "pending_equality_delete_files": 0,
        "pending_equality_deletes": 0,
        "covers_head": True,
    }
    finish(database, job_id, 1, "succeeded", health=health | changed)
    with database.read() as session:
        found = session.get_one(TableHealth, table)
        assert (found.indexed_snapshot_id == 7, found.indexed_at is not None) == (has_indexed,) * 2


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_a_conversion_takes_new_files_along_where_an_index_job_would_come_soon(database: Database) -> None:
    """The policy's bound for their age is 60 s."""
    worker = add_worker(database)
    cases = [(JobKind.CONVERT, 31, True), (JobKind.CONVERT, 20, False), (JobKind.CONVERT, None, False)]
    cases += [(JobKind.COMPACT, 31, False)]
    tables = add_tables(database, [f"t{number}" for number in range(len(cases))])
    for table, (kind, age, takes) in zip(tables, cases, strict=True):
        request(database, table, kind)
        with database.write() as session:
            health = session.get_one(TableHealth, table)
            health.indexed_at = START - timedelta(seconds=age) if age is not None else None
            session.add(health)
        assignment = claim(database, worker)
        assert assignment is not None
        assert assignment.index.takes_new_files is takes, (kind, age)
        finish(database, assignment.job.id, 1, "succeeded")


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize(
    ("settings", "indexing", "takes"),
    [
        ({}, "succeeded", True),
        ({}, "failed", False),
        ({"budget": {"table_seconds_per_day": 5}}, "succeeded", False),
        ({"schedule": {"windows": [{"start": "10:00", "end": "12:00"}]}}, "succeeded", False),
    ],
)
def test_a_conversion_takes_new_files_along_only_where_an_index_job_would_start_by_itself(
    database: Database, settings: dict[str, Any], indexing: str, takes: bool
) -> None:
    worker, (table,) = add_worker(database), add_tables(database, ["a"])
    with database.write() as session:
        create_policy(session, SETTINGS, SYSTEM, PolicyRequest(name="p", settings=settings))
        attach_policy(session, SYSTEM, AttachmentRequest(level=Level.CATALOG, catalog="local", policy="p"))
        health = session.get_one(TableHealth, table)
        health.indexed_at = START
        session.add(health)
    job_id = request(database, table, JobKind.INDEX)
    claim(database, worker)
    error = FATAL if indexing == "failed" else None
    finish(database, job_id, 1, indexing, START + timedelta(seconds=5), error)
    request(database, table, JobKind.CONVERT)  # which is held up by nothing
    assignment = claim(database, worker, START + timedelta(seconds=90))
    assert assignment is not None
    assert assignment.index.takes_new_files is takes


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize(("indexing", "known"), [(4.0, 5.0), (99.0, 0.0)])
def test_what_a_conversion_costs_is_told_without_what_it_indexes(
    database: Database, indexing: float, known: float
) -> None:
    worker, (table,) = add_worker(database), add_tables(database, ["a"])
    job_id = request(database, table, JobKind.CONVERT)
    claim(database, worker)
    told = {"lookup": 3.0, "index": indexing, "commit_index": 1.0}
    stages = [{"name": name, "seconds": seconds} for name, seconds in told.items()]
    ended_at = START + timedelta(seconds=10)
    finish(database, job_id, 1, "succeeded", ended_at, result={"commits": 1, "stages": stages})
    with database.write() as session:
        row, health = session.get_one(EnrolledTable, table), session.get_one(TableHealth, table)
        state = table_state(session, row, health, read_known(session, row, ended_at), ended_at)
        assert state.last[JobKind.CONVERT].seconds == known


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_a_conversion_takes_no_new_files_along_after_an_attempt_that_may_have_died_of_them(
    database: Database,
) -> None:
    worker = add_worker(database)
    ends = ["released", "failed", "lost"]
    for table, status in zip(add_tables(database, ends), ends, strict=True):
        request(database, table, JobKind.CONVERT)
        with database.write() as session:
            health = session.get_one(TableHealth, table)
            health.indexed_at = START - timedelta(seconds=29)
            session.add(health)
        taken = []
        for attempt, seconds in enumerate((0, 2, 600), 1):
            assignment = claim(database, worker, START + timedelta(seconds=seconds))
            assert assignment is not None
            taken.append(assignment.index.takes_new_files)
            if status == "lost" and attempt == 2:  # its worker asks for other work
                continue
            end = "succeeded" if attempt == 3 else status if attempt == 2 else "released"
            error = RETRYABLE if end == "failed" else None
            finish(database, assignment.job.id, attempt, end, START + timedelta(seconds=seconds), error)
        assert taken == [False, True, status == "released"], status
