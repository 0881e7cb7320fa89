"""Calls of the queue, each in a transaction of its own, for tests that have no service."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import event

from service.auth.models import SYSTEM, Principal
from service.db.database import Database
from service.jobs import attempts, claims, queue
from service.jobs.contract import Assignment, ErrorReport, FinishRequest
from service.policies.effective import effective_policy
from service.records.catalogs import Catalog
from service.records.jobs import Job, JobKind, JobStatus
from service.records.tables import EnrolledTable, add_table
from service.records.workers import Worker
from service.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(hours=1)
SETTINGS = Settings(lease_seconds=30)
RETRYABLE = ErrorReport(code="x", title="Broken", detail="d", remedy="r", retryable=True)
FATAL = RETRYABLE.model_copy(update={"retryable": False})


def add_tables(database: Database, uuids: list[str], catalog_name: str = "local") -> list[str]:
    """One enrolled table for each UUID in a new catalog; equal UUIDs are branches of one Iceberg table."""
    with database.write() as session:
        catalog = Catalog(name=catalog_name, type="sql", properties={})
        session.add(catalog)
        session.flush()
        tables = [
            EnrolledTable(
                catalog_id=catalog.id,
                identifier=["db", f"t{number}"],
                namespace="db",
                name=f"db.t{number}",
                table_uuid=uuid,
                format_version=2,
                location=f"file:///wh/db/t{number}",
            )
            for number, uuid in enumerate(uuids)
        ]
        for table in tables:
            add_table(session, table)
        return [table.id for table in tables]


def add_worker(database: Database) -> str:
    with database.write() as session:
        worker = Worker(name="w", hostname="h", pid=1, version="0", registered_by=SYSTEM.key)
        session.add(worker)
        return worker.id


def request(
    database: Database,
    table_id: str,
    kind: JobKind = JobKind.CONVERT,
    now: datetime = START,
    *,
    dry_run: bool = False,
    **how: Any,
) -> str:
    with database.write() as session:
        table = session.get_one(EnrolledTable, table_id)
        policy = effective_policy(session, table)
        if kind.writes_rows:
            how = {"rows": [{"id": 1}], **how}
        job, _ = queue.enqueue(session, table, kind, policy, now, dry_run=dry_run, requested_by="test", **how)
        return job.id


def claim(
    database: Database, worker_id: str, now: datetime = START, *, caller: Principal = SYSTEM, **how: Any
) -> Assignment | None:
    with database.write() as session:
        return claims.claim(session, SETTINGS, claims.Ask(caller, worker_id, **how), now)


def give_up(database: Database, job_id: str, now: datetime) -> list[str]:
    """What the background does once a job's lease did not change for long."""
    with database.write() as session:
        current = {each: renewals for each, renewals in attempts.leases(session).items() if each[0] == job_id}
        return [each[0] for each, seen in current.items() if attempts.give_up(session, each, seen, now)]


def may_be_repeated(found: Job) -> bool:
    """Of what a user can ask for: a table's index is not dropped while the table is enrolled, and rows are
    not kept."""
    if JobKind(found.kind).writes_rows:
        return False
    return found.kind != JobKind.DROP_INDEX.value and (
        not found.dry_run or found.kind == JobKind.CONVERT.value
    )


def finish(
    database: Database,
    job_id: str,
    attempt: int,
    status: str,
    now: datetime = START,
    error: ErrorReport | None = None,
    **further: Any,
) -> None:
    report = FinishRequest.model_validate({"status": status, "error": error, **further})
    with database.write() as session:
        attempts.finish(session, SYSTEM, job_id, attempt, report, now)


def job(database: Database, job_id: str) -> Job:
    with database.read() as session:
        return session.get_one(Job, job_id)


def status_of(database: Database, job_id: str) -> JobStatus:
    return JobStatus(job(database, job_id).status)


@contextmanager
def statements_of(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """What the database is asked meanwhile: text and parameters."""
    asked: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        asked.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Call `work` in so many threads that begin together; none may raise."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
