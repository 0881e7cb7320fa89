"""Calls of the queue that meet: real races between threads, and what locks let wait, pass and fail."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from service.auth.models import SYSTEM
from service.db.database import Database
from service.jobs import attempts, claims, fair_share, queue
from service.jobs.contract import AddressRangeRequest, Assignment, HeartbeatRequest
from service.records.jobs import Job, JobKind, JobStatus
from tests.patience import wait_until
from tests.service.conftest import DATABASES
from tests.service.queue_calls import (
    LATER,
    SETTINGS,
    START,
    add_tables,
    add_worker,
    at_once,
    claim,
    give_up,
    job,
    request,
)


def test_the_database_itself_refuses_a_second_running_writer(database: Database) -> None:
    tables = add_tables(database, ["a", "a"])
    worker = add_worker(database)
    for table in tables:
        request(database, table)
    assignment = claim(database, worker)
    assert assignment is not None
    statement = update(Job).values(status=JobStatus.RUNNING.value)
    with database.write() as session, pytest.raises(IntegrityError):
        session.exec(statement)


def test_a_heartbeat_wins_over_whoever_saw_the_lease_before_it(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    with database.read() as session:
        seen = attempts.leases(session)
    # The clock stands still: the lease says the same time as before, and yet it was renewed.
    with database.write() as session:
        attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, HeartbeatRequest(), START)
    with database.write() as session:
        assert not attempts.give_up(session, (job_id, 1), seen[job_id, 1], START + timedelta(seconds=60))
    assert give_up(database, job_id, START) == [job_id]


def test_whoever_saw_the_attempt_before_ends_not_the_one_of_now(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    assert give_up(database, job_id, START) == [job_id]
    assert claim(database, worker, LATER) is not None
    with database.write() as session:
        renewals = attempts.leases(session)[job_id, 2]
        assert not attempts.give_up(session, (job_id, 1), renewals, LATER)
    assert give_up(database, job_id, LATER) == [job_id]


def test_a_database_in_a_file_is_read_while_it_is_written(new_database_url: Callable[[str], str]) -> None:
    database = Database(new_database_url("sqlite"))
    with database.write() as session:
        assert session.connection().scalar(text("PRAGMA journal_mode")) == "wal"
    database.dispose()


def test_racing_workers_never_share_a_job_or_a_table(database: Database) -> None:
    tables = add_tables(database, ["a", "a", "b", "b", "c"])
    workers = [add_worker(database) for _ in range(8)]
    for table in tables:
        request(database, table)
        request(database, table, JobKind.INDEX)
    claimed: list[Assignment] = []

    def work(number: int) -> None:
        assignment = claim(database, workers[number])
        if assignment is not None:
            claimed.append(assignment)

    at_once(8, work)
    assert len({assignment.job.id for assignment in claimed}) == len(claimed)
    uuids = [job(database, assignment.job.id).table_uuid for assignment in claimed]
    assert len(uuids) == len(set(uuids))
    # Whoever lost a race finds the rest later: every table gets its writer.
    while (assignment := claim(database, add_worker(database))) is not None:
        uuids.append(job(database, assignment.job.id).table_uuid)
    assert sorted(uuids) == ["a", "b", "c"]


def test_racing_requests_add_one_job(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    ids: list[str] = []
    at_once(8, lambda _: ids.append(request(database, table)))
    assert len(ids) == 8
    assert len(set(ids)) == 1


def test_racing_reservations_never_overlap(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    bases: list[int] = []

    def work(_: int) -> None:
        with database.write() as session:
            granted = attempts.reserve_addresses(session, SYSTEM, job_id, 1, AddressRangeRequest(rows=10))
        bases.append(granted.base_address)

    at_once(8, work)
    assert sorted(bases) == list(range(0, 80, 10))


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_claim_passes_by_a_job_that_another_claim_looks_at(database: Database) -> None:
    """In a file, only one writes at a time."""
    one, other = add_tables(database, ["a", "b"])
    first, second = request(database, one, priority=1), request(database, other)
    worker = add_worker(database)
    with database.write() as session:
        queue.lock_job(session, first)
        with database.write() as meanwhile:
            meanwhile.execute(text("SET LOCAL lock_timeout = '1ms'"))
            assignment = claims.claim(meanwhile, SETTINGS, claims.Ask(SYSTEM, worker), START)
    assert assignment is not None
    assert assignment.job.id == second


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_of_catalogs_whose_first_job_others_look_at_the_next_one_comes_in_their_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when other claims hold all that this one has chosen among."""
    tables = add_tables(database, ["a", "b"])
    (other,) = add_tables(database, ["c"], "other")
    first, second = (request(database, table, priority=1) for table in tables)
    request(database, other)
    monkeypatch.setattr(fair_share, "_jobs_in_turn", lambda _: select(Job).where(Job.id == "none"))
    with database.write() as session:
        queue.lock_job(session, first)
        with database.write() as meanwhile:
            meanwhile.execute(text("SET LOCAL lock_timeout = '1ms'"))
            (found,) = fair_share.next_jobs(meanwhile, 1, START)
    assert found.job.id == second


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_job_that_is_put_off_while_a_claim_chooses_is_not_started(database: Database) -> None:
    """The claim waits after it has chosen, and before it has locked what it chose."""
    (table,) = add_tables(database, ["a"])
    waiting, worker = request(database, table), add_worker(database)
    with database.write() as session:
        session.execute(text("ALTER TABLE table_health RENAME TO slow"))
        slow = "CREATE VIEW table_health AS SELECT slow.* FROM slow, pg_advisory_xact_lock_shared(7)"
        session.execute(text(slow))
    with ThreadPoolExecutor(1) as thread, database.write() as holding:
        holding.execute(text("SELECT pg_advisory_xact_lock(7)"))
        claimed = thread.submit(claim, database, worker)
        with database.read() as session:
            count = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            wait_until(lambda: session.execute(count).scalar_one() or None, "a claim that has chosen")
        with database.write() as session:
            session.get_one(Job, waiting).available_at = START + timedelta(days=1)
        holding.rollback()
        assert claimed.result() is None
    assert job(database, waiting).status == JobStatus.QUEUED


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_whoever_lets_held_jobs_go_waits_for_none_of_them(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    held = request(database, table)
    with database.write() as session:
        session.get_one(Job, held).held_because = "its budget is spent"
    with database.write() as session:
        queue.lock_job(session, held)
        with database.write() as meanwhile:
            meanwhile.execute(text("SET LOCAL lock_timeout = '1ms'"))
            claims.release_held(meanwhile, table, list(JobKind), START)
    assert job(database, held).held_because is not None
    with database.write() as session:
        claims.release_held(session, table, list(JobKind), START)
    assert job(database, held).held_because is None


@pytest.mark.parametrize("kind", DATABASES)
def test_a_write_waits_for_another_one_instead_of_failing(
    kind: str, new_database_url: Callable[[str], str]
) -> None:
    database = Database(new_database_url(kind))
    tables = add_tables(database, [str(number) for number in range(8)])

    def work(number: int) -> None:
        for each in JobKind:
            request(database, tables[number], each)

    at_once(8, work)
    with database.read() as session:
        assert len(session.exec(select(Job)).all()) == 8 * len(JobKind)
    database.dispose()
