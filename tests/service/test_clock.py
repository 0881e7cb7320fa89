"""Clocks that jumped: what happened at a time that is still to come holds nothing up until then."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlmodel import col, select

from service.db.database import Database
from service.jobs import queue
from service.records.health import TableHealth
from service.records.jobs import Attempt, Event, Job, JobKind
from service.records.policies import Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.scheduling import clock
from service.scheduling.looks import _since
from service.scheduling.scheduler import schedule
from service.scheduling.state import read_known
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import (
    FATAL,
    add_tables,
    add_worker,
    claim,
    finish,
    job,
    request,
    statements_of,
)

database_kind = alike_on_both

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
DAY = timedelta(days=1)
SOON = {
    "index": {"age_seconds": 60, "data_files": 1000},
    "convert": {"age_seconds": 60, "delete_files": 1000},
    "compact": {"min_interval_seconds": 60, "sorted_runs": 16},
    "verify": {"enabled": True, "age_seconds": 60},
    "retries": {"pause_seconds": 60, "max_pause_seconds": 60, "max_attempts": 1},
}
BY_CRON = SOON | {
    "index": {"age_seconds": 10**7, "data_files": 1000, "cron": "30 * * * *"},
    "verify": {"enabled": True, "age_seconds": 10**7, "cron": "30 * * * *"},
}
KEY_SET = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "files_covered": 1,
    "files_total": 1,
    "coverage": 1.0,
    "entries": 1,
    "bytes": 1,
    "sorted_runs": 99,
    "generation": 1,
    "dead_ratio": 0.0,
}


@pytest.fixture
def table(database: Database) -> str:
    """Enrolled, with work for each kind of job."""
    (table_id,) = add_tables(database, ["a"])
    with database.write() as session:
        table = session.get_one(EnrolledTable, table_id)
        table.created_at = NOW - YEAR
        health = session.get_one(TableHealth, table_id)
        health.has_keys, health.new_data_files, health.key_sets = True, 1, [KEY_SET]
        health.pending_equality_delete_files = health.convertible_delete_files = 1
        health.oldest_convertible_at = NOW - DAY
        policy = Policy(name="soon", settings=SOON)
        session.add_all((table, health, policy))
        session.flush()
        target = f"catalog:{table.catalog_id}"
        session.add(
            PolicyAttachment(target=target, level="catalog", catalog_id=table.catalog_id, policy_id=policy.id)
        )
    return table_id


def run_job(database: Database, table_id: str, kind: JobKind, now: datetime, *, fails: bool = False) -> str:
    """One that a trigger started."""
    job_id = request(database, table_id, kind, now, trigger="It is old.")
    assert claim(database, add_worker(database), now) is not None
    finish(database, job_id, 1, "failed" if fails else "succeeded", now, FATAL if fails else None)
    return job_id


def scheduled(database: Database, table_id: str, now: datetime) -> set[str]:
    """What the scheduler would start."""
    with database.write() as session:
        table, health = session.get_one(EnrolledTable, table_id), session.get_one(TableHealth, table_id)
        schedule(session, table, health, read_known(session, table, now), now)
        added = set()
        for queued in session.exec(select(Job).where(Job.status == "queued")).all():
            added.add(queued.kind)
            for event in session.exec(select(Event).where(Event.job_id == queued.id)).all():
                session.delete(event)
            session.flush()
            session.delete(queued)
    return added


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", [JobKind.INDEX, JobKind.CONVERT, JobKind.COMPACT, JobKind.VERIFY])
def test_a_job_that_ended_in_the_future_delays_the_next_by_its_pause_only(
    database: Database, table: str, kind: JobKind, fails: bool
) -> None:
    first = run_job(database, table, kind, NOW + YEAR, fails=fails)
    second = run_job(database, table, kind, NOW + YEAR + timedelta(minutes=10), fails=fails)
    # The clock is right again.
    waits = kind is not JobKind.CONVERT or fails
    assert (kind.value in scheduled(database, table, NOW)) is not waits
    assert [job(database, each).ended_at for each in (first, second)] == [NOW - timedelta(minutes=10), NOW]
    assert (kind.value in scheduled(database, table, NOW + timedelta(seconds=59))) is not waits
    # A conversion is due by then, too, and would index what is new.
    seconds = 121 if kind is JobKind.INDEX else 61
    assert kind.value in scheduled(database, table, NOW + timedelta(seconds=seconds))
    with database.read() as session:
        # Nor do attempts count as later ones, for budgets and for what they may still write.
        assert all(each.ended_at <= NOW for each in session.exec(select(Attempt)) if each.ended_at)
        assert len(session.exec(select(Event).where(col(Event.kind) == "job.clock")).all()) == 2


def test_of_what_decisions_go_by_only_the_jobs_are_read_again_once_they_are_corrected(
    database: Database, table: str
) -> None:
    run_job(database, table, JobKind.INDEX, NOW + YEAR)
    with database.write() as session:
        row, health = session.get_one(EnrolledTable, table), session.get_one(TableHealth, table)
        known = read_known(session, row, NOW)
        with statements_of(database) as asked:
            schedule(session, row, health, known, NOW)
    assert any("FROM jobs" in statement for statement, _ in asked)
    assert not any("FROM system_state" in statement for statement, _ in asked)


def test_a_cron_expression_fires_after_a_job_of_the_future(database: Database, table: str) -> None:
    for kind in (JobKind.INDEX, JobKind.VERIFY):
        run_job(database, table, kind, NOW + YEAR)
    with database.write() as session:
        policy = session.exec(select(Policy).where(Policy.name == "soon")).one()
        policy.settings = BY_CRON
        session.add(policy)
    kinds = {"index", "verify"}
    assert not kinds & scheduled(database, table, NOW)
    assert kinds <= scheduled(database, table, NOW + timedelta(minutes=31))


def test_a_table_that_was_enrolled_in_the_future_is_verified_by_age(database: Database, table: str) -> None:
    with database.write() as session:
        row = session.get_one(EnrolledTable, table)
        row.created_at = NOW + YEAR
        session.add(row)
    assert "verify" not in scheduled(database, table, NOW)
    assert "verify" in scheduled(database, table, NOW + timedelta(seconds=61))


def test_nothing_is_due_or_deleted_since_a_time_to_come_but_for_a_window(
    database: Database, table: str
) -> None:
    opens = (NOW + timedelta(hours=6)).isoformat()
    ahead, now = (queue.rfc3339(at) for at in (NOW + YEAR, NOW))
    made = {
        "expire_snapshots": {"code": "budget-spent", "since": ahead, "due_since": ahead},
        "rewrite_data_files": {"code": "with-conversion", "since": ahead},
        "rewrite_manifests": {"code": "outside-window", "since": ahead, "due_since": opens},
        "verify": {"code": "age", "since": now},
    }
    with database.write() as session:
        health = session.get_one(TableHealth, table)
        health.decisions, health.rows_deleted_since = made, NOW + YEAR
        session.add(health)
        clock.correct_times(session, session.get_one(EnrolledTable, table), health, (), NOW)
    with database.read() as session:
        health = session.get_one(TableHealth, table)
        assert health.rows_deleted_since == NOW
        assert health.decisions == {
            "expire_snapshots": {"code": "budget-spent", "since": now, "due_since": now},
            "rewrite_data_files": {"code": "with-conversion", "since": now},
            "rewrite_manifests": {"code": "outside-window", "since": now, "due_since": opens},
            "verify": {"code": "age", "since": now},
        }


def test_a_clock_that_is_hardly_off_changes_nothing(database: Database, table: str) -> None:
    last = run_job(database, table, JobKind.INDEX, NOW + timedelta(seconds=2))
    assert "index" not in scheduled(database, table, NOW)
    assert job(database, last).ended_at == NOW + timedelta(seconds=2)


def test_a_commit_of_a_writer_whose_clock_is_ahead_ages_from_when_it_was_seen() -> None:
    assert _since(NOW - DAY, None, NOW) == NOW - DAY
    assert _since(None, NOW, NOW) is None
    seen = _since(NOW + YEAR, None, NOW)
    assert seen == NOW
    assert _since(NOW + YEAR, seen, NOW + DAY) == NOW


def test_an_equality_delete_of_the_future_is_converted_by_its_age(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(iceberg)
    policy = {"name": "aged", "settings": {"convert": {"age_seconds": 60}, "index": {"enabled": False}}}
    assert service.admin.post("/policies", json=policy).status_code == 201
    table = service.enroll(policy="aged")
    iceberg.delete_keys("db.t", [1])
    behind = datetime.now(UTC) - DAY
    monkeypatch.setattr("service.scheduling.looks.utc_now", lambda: behind)
    service.poll(table["id"])
    assert service.admin.get("/jobs").json()["items"] == []
    monkeypatch.setattr("service.scheduling.looks.utc_now", lambda: behind + timedelta(seconds=61))
    service.poll(table["id"])
    assert [job["kind"] for job in service.admin.get("/jobs").json()["items"]] == ["convert"]
