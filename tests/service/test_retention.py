"""What history goes, what stays, and in how large steps: on both databases."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, SQLModel, func, select

from service.command.openapi import DOCUMENT
from service.db.database import Database
from service.http.routing import IdempotentAnswer
from service.records.api_keys import BrowserSession, LoginToken
from service.records.audit import AuditEntry
from service.records.health import HealthSample
from service.records.jobs import Attempt, Event, Job, JobKind, LastClaim
from service.records.tables import AddressCounter
from service.records.workers import Worker
from service.scheduling import retention
from service.scheduling.retention import forget
from service.settings import Settings
from tests.service.conftest import alike_on_both
from tests.service.health_samples import health_sample
from tests.service.queue_calls import FATAL, START, add_tables, add_worker, claim, finish, request

database_kind = alike_on_both

SETTINGS = Settings(history_days=10, job_history_days=20, audit_history_days=30, answer_days=5)
SERVICE = Path(retention.__file__).parent
PLAN: list[dict[str, Any]] = [
    {"number": 0, "tasks": 1, "removes": None, "location": "file:/t", "properties": {}}
]


def count(database: Database, model: type[SQLModel]) -> int:
    with database.read() as session:
        return session.exec(select(func.count()).select_from(model)).one()


def forget_all(database: Database, days: float) -> None:
    while forget(database, SETTINGS, START + timedelta(days=days)):
        pass


def run(database: Database, table: str, kind: JobKind, hours: float, status: str = "succeeded") -> str:
    now = START + timedelta(hours=hours)
    request(database, table, kind, now)
    assignment = claim(database, add_worker(database), now)
    assert assignment is not None
    error = FATAL if status == "failed" else None
    finish(database, assignment.job.id, assignment.attempt, status, now, error)
    return assignment.job.id


def jobs(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.exec(select(Job.id)))


def test_ended_jobs_go_with_their_attempts_and_events_but_the_last_of_each_kind_stays(
    database: Database,
) -> None:
    (table,) = add_tables(database, ["a"])
    old = [
        run(database, table, JobKind.CONVERT, 0),
        run(database, table, JobKind.CONVERT, 1, "failed"),
        run(database, table, JobKind.INDEX, 2, "cancelled"),
    ]
    last = run(database, table, JobKind.CONVERT, 3, "failed")
    verified = run(database, table, JobKind.VERIFY, 4)
    waiting = request(database, table, JobKind.COMPACT, START, run_at=START + timedelta(days=60))
    forget_all(database, 20.07)
    assert jobs(database) == {last, verified, waiting, old[-1]}
    forget_all(database, 21)
    assert jobs(database) == {last, verified, waiting}
    with database.read() as session:
        assert set(session.exec(select(Attempt.job_id))) == {last, verified}
        assert set(session.exec(select(Event.job_id))) == {last, verified, waiting}
    # The next conversion tells what the last one did, so that one goes.
    again = run(database, table, JobKind.CONVERT, 24 * 21)
    forget_all(database, 22)
    assert jobs(database) == {again, verified, waiting}
    assert count(database, LastClaim) == 1


def test_attempts_that_may_have_left_files_stay_with_their_jobs(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    left = run(database, table, JobKind.CONVERT, 0, "failed")
    run(database, table, JobKind.CONVERT, 1)
    with database.write() as session:
        session.get_one(Attempt, (left, 1)).plans = PLAN
    forget_all(database, 100)
    assert left in jobs(database)
    request(database, table, JobKind.CONVERT, START + timedelta(days=100))
    assignment = claim(database, add_worker(database), START + timedelta(days=100))
    assert assignment is not None
    assert [one.job_id for one in assignment.ended_attempts] == [left]
    with database.write() as session:
        session.get_one(Attempt, (left, 1)).plans = None
    forget_all(database, 100)
    assert left not in jobs(database)


def add_history(session: Session, table: str, number: int, age_days: float) -> None:
    at = START - timedelta(days=age_days)
    session.add(Event(at=at, kind="decision.skip", message="m", table_id=table))
    session.add(Event(at=at, kind="job.progress", message="m", table_id=table))
    session.add(AuditEntry(at=at, principal="p", role="r", action="a", target="t", outcome="allowed"))
    session.add(health_sample(table, at, resolution="hour", pending_equality_delete_files=0, coverage=None))
    session.add(
        IdempotentAnswer(
            principal="p",
            key=f"{number}",
            fingerprint="f",
            status_code=201,
            content_type="",
            body="",
            created_at=at,
        )
    )
    session.add(LoginToken(token_hash=f"{number}", name="n", role="admin", expires_at=at))
    session.add(BrowserSession(token_hash=f"{number}", name="n", role="admin", expires_at=at))
    session.add(Worker(name="w", hostname="h", pid=1, version="0", registered_at=at, last_seen_at=at))


def test_each_kind_of_history_has_its_own_time(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    with database.write() as session:
        session.add(AddressCounter(table_uuid="a", next_address=7))
        for number, age in enumerate((-1, 1, 6, 11, 21, 31)):
            add_history(session, table, number, age)
    forget_all(database, 0)
    left = {
        model.__name__: count(database, model)
        for model in (AuditEntry, HealthSample, IdempotentAnswer, LoginToken, BrowserSession, Worker)
    }
    assert left == {
        "AuditEntry": 5,
        "HealthSample": 3,
        "IdempotentAnswer": 2,
        "LoginToken": 1,
        "BrowserSession": 1,
        "Worker": 4,
    }
    with database.read() as session:
        kinds = list(session.exec(select(Event.kind)))
    assert (kinds.count("decision.skip"), kinds.count("job.progress")) == (4, 3)
    assert count(database, AddressCounter) == 1


def test_samples_are_thinned_as_they_grow_old(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    with database.write() as session:
        for number, age in enumerate((1, 3, 11, 800)):
            add_history(session, table, number, age)
        session.flush()
        for sample in session.exec(select(HealthSample)):
            for resolution in ("all", "day"):
                copy = sample.model_dump(exclude={"id", "resolution"})
                session.add(HealthSample(**copy, resolution=resolution))
    forget_all(database, 0)
    with database.read() as session:
        samples = session.exec(select(HealthSample.at, HealthSample.resolution)).all()
    left = {((START - at).days, resolution) for at, resolution in samples}
    assert left == {(1, "all"), (1, "hour"), (1, "day"), (3, "hour"), (3, "day"), (11, "day")}


def test_history_goes_in_small_batches(database: Database) -> None:
    with database.write() as session:
        for _ in range(retention.BATCH + 3):
            at = START - timedelta(days=100)
            session.add(AuditEntry(at=at, principal="p", role="r", action="a", target="t", outcome="allowed"))
    assert forget(database, SETTINGS, START) is True
    assert count(database, AuditEntry) == 3
    assert forget(database, SETTINGS, START) is False
    assert count(database, AuditEntry) == 0


def test_events_and_audit_entries_are_only_ever_added_until_retention_removes_them(
    database: Database,
) -> None:
    (table,) = add_tables(database, ["a"])
    with database.write() as session:
        add_history(session, table, 0, 0)
    for name in ("events", "audit_entries"):
        with pytest.raises(DBAPIError, match=f"{name} are append-only"), database.write() as session:
            session.connection().execute(text(f"UPDATE {name} SET at = at"))
    removing = {
        str(path.relative_to(SERVICE))
        for path in SERVICE.rglob("*.py")
        if re.search(r"(delete|_remove)\([^()]*\b(Event|AuditEntry)\b", path.read_text())
    }
    assert removing == {"retention.py"}
    calls = {
        (path, method)
        for path, of_path in json.loads(DOCUMENT.read_text())["paths"].items()
        for method in of_path
        if re.search("/(events|audit)(/|$)", path)
    }
    assert {method for _, method in calls} == {"get"}
    assert len(calls) == 4
