"""The queue on both databases, call by call."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlmodel import col, select

from service.auth.models import SYSTEM
from service.db.database import Database
from service.errors import ConflictError, InvalidError
from service.jobs import assignments, attempts, queue
from service.jobs.contract import (
    AddressRange,
    AddressRangeRequest,
    AnnouncedPlan,
    AttemptId,
    EndedAttempt,
    ErrorReport,
    HeartbeatRequest,
)
from service.jobs.views import view
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, Event, Job, JobKind, JobStatus
from service.records.system import SystemState
from service.records.tables import AddressCounter, EnrolledTable
from service.scheduling import clock
from service.webhooks.outbox import write_untold
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
    give_up,
    job,
    request,
    statements_of,
    status_of,
)


def test_a_second_request_of_a_kind_finds_the_queued_job(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    first = request(database, table)
    assert request(database, table) == first
    assert request(database, table, dry_run=True) != first
    assert request(database, table, JobKind.INDEX) != first


def test_a_write_that_was_not_added_at_first_is_never_taken_for_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has rows of its own."""
    (table,) = add_tables(database, ["uuid-1"])
    first = request(database, table, JobKind.UPSERT)
    monkeypatch.setattr("service.jobs.queue._add_unless_queued", lambda *_: False)
    second = request(database, table, JobKind.UPSERT)
    assert first != second
    assert {status_of(database, job) for job in (first, second)} == {JobStatus.QUEUED}


def test_the_highest_priority_runs_first_and_the_longest_waiting_of_it(database: Database) -> None:
    tables = add_tables(database, ["a", "b", "c", "d"])
    worker = add_worker(database)
    seconds = (timedelta(seconds=number) for number in range(4))
    ids = [
        request(database, table, now=START + later, priority=priority)
        for table, priority, later in zip(tables, (0, 5, 5, -1), seconds, strict=True)
    ]
    taken = []
    for _ in ids:
        assignment = claim(database, worker, START + timedelta(minutes=1))
        assert assignment is not None
        finish(database, assignment.job.id, 1, "succeeded")
        taken.append(assignment.job.id)
    assert taken == [ids[1], ids[2], ids[0], ids[3]]


def test_a_claim_and_a_report_take_few_statements_however_many_jobs_wait(database: Database) -> None:
    tables = [*add_tables(database, list("abcdefghij")), *add_tables(database, ["z"], "other")]
    for table in tables:
        for kind in (JobKind.INDEX, JobKind.CONVERT):
            request(database, table, kind)
    worker = add_worker(database)
    for _ in tables:
        with statements_of(database) as claiming:
            assignment = claim(database, worker)
        assert assignment is not None
        with statements_of(database) as reporting:
            finish(database, assignment.job.id, assignment.attempt, "succeeded")
        assert len(claiming) <= 9, claiming  # with BEGIN, and other jobs of the table
        assert len(reporting) <= 6, reporting


def test_a_heartbeat_takes_few_statements_however_much_it_tells(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    assert claim(database, add_worker(database)) is not None
    kinds = ["message", "log"] * 5
    told = [{"kind": kind, "level": "info", "message": str(n)} for n, kind in enumerate(kinds)]
    progress = {"stage": "read", "done": 1, "total": 2, "unit": "files"}
    report = HeartbeatRequest.model_validate({"events": told, "progress": progress})
    with statements_of(database) as asked, database.write() as session:
        attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, report, START)
    # The job with its attempt and its worker; a row of each that has changed; the events. And what begins a
    # transaction of SQLite's.
    assert len(asked) <= 6, asked
    assert not any("RETURNING" in statement for statement, _ in asked)
    with database.read() as session:
        latest = session.exec(select(Event).order_by(col(Event.id).desc()).limit(11)).all()[::-1]
    assert [event.kind for event in latest] == ["job.progress", *(f"job.{kind}" for kind in kinds)]
    assert [event.message for event in latest][1:] == [str(number) for number in range(10)]
    assert {event.fields["status"] for event in latest} == {"running"}
    with pytest.raises(ValueError, match=r"webhooks may ask for job\.succeeded"), database.write() as session:
        write_untold(session, [{"kind": "job.succeeded"}])


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_whose_turn_it_is_is_found_in_an_index(database: Database) -> None:
    """PostgreSQL chooses by what the tables have, SQLite by their schema alone."""
    (table,) = add_tables(database, ["a"])
    request(database, table)
    with statements_of(database) as asked:
        assert claim(database, add_worker(database)) is not None
    ((choice, values),) = [each for each in asked if "ORDER BY jobs" in each[0] and "LIMIT" in each[0]]
    assert "status = ?" not in choice, "prepared anew each time, since a partial index depends on the value"
    with database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {choice}", values).all()
        steps = [step for *_, step in plan]
        assert any("jobs USING INDEX ix_jobs_turn (catalog_id=?)" in step for step in steps), steps
        assert not any(step.startswith("SCAN jobs") for step in steps), steps


def test_a_job_for_later_waits_and_a_further_request_brings_it_forward(database: Database) -> None:
    tables = add_tables(database, ["a", "b"])
    worker = add_worker(database)
    tomorrow = START + timedelta(days=1)
    first, second = (request(database, table, run_at=tomorrow) for table in tables)
    assert claim(database, worker) is None
    # A clock that was set back changes nothing of a time by the clock.
    with database.write() as session:
        assert clock.follow_clock(session, timedelta(hours=1), START) == []
    assert request(database, tables[0], priority=7) == first
    assignment = claim(database, worker)
    assert assignment is not None
    assert (assignment.job.id, job(database, first).priority) == (first, 7)
    finish(database, first, 1, "succeeded")
    assert request(database, tables[1], run_at=tomorrow + timedelta(days=1)) == second
    assert job(database, second).available_at == tomorrow
    assert claim(database, worker, tomorrow) is not None


def test_a_dry_run_goes_beside_a_writer_and_a_verification_waits_for_it(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    for kind, dry_run in ((JobKind.CONVERT, False), (JobKind.CONVERT, True), (JobKind.VERIFY, False)):
        request(database, table, kind, dry_run=dry_run)
    request(database, table, JobKind.INDEX)
    kinds = []
    while (assignment := claim(database, add_worker(database))) is not None:
        kinds.append((assignment.job.kind, assignment.job.dry_run))
    # The writers were requested at the same moment: any may be first, and the others wait for it.
    writers = {("convert", False), ("index", False), ("verify", False)}
    assert len(kinds) == 2
    assert len(writers.intersection(kinds)) == 1
    assert set(kinds) - writers == {("convert", True)}


@pytest.mark.parametrize(
    ("kind", "expires"),
    [
        (JobKind.UPSERT, JobKind.ERASE),
        (JobKind.DELETE, JobKind.EXPIRE_SNAPSHOTS),
        (JobKind.PUBLISH, JobKind.EXPIRE_SNAPSHOTS),
        (JobKind.ERASE, JobKind.ERASE),
        (JobKind.ERASE, JobKind.EXPIRE_SNAPSHOTS),
        (JobKind.EXPIRE_SNAPSHOTS, JobKind.ERASE),
    ],
)
def test_an_expiry_waits_until_a_write_that_has_begun_has_ended(
    database: Database, kind: JobKind, expires: JobKind
) -> None:
    """Whatever has kept that one from going on, and on whichever branch: it finds what it has committed by
    snapshots, which an erasure or expiry would let go."""
    one, other = add_tables(database, ["a", "a"])
    worker = add_worker(database)
    begun = request(database, one, kind)
    assert claim(database, worker) is not None
    finish(database, begun, 1, "failed", error=RETRYABLE)
    not_begun = request(database, one, JobKind.UPSERT, LATER)
    erasure = request(database, other, expires)
    with database.write() as session:
        session.get_one(EnrolledTable, one).paused = True
    assert claim(database, worker, LATER) is None
    with database.read() as session:
        told = view(session, session.get_one(Job, erasure)).waiting_for
    assert told == f"Waits for job {begun} ({kind.words}), which has begun to write the same table, to end."
    with database.write() as session:
        queue.cancel(session, session.get_one(Job, begun), "test", LATER)
    assignment = claim(database, worker, LATER)
    assert assignment is not None
    assert assignment.job.id == erasure
    assert job(database, not_begun).attempt == 0


def test_of_a_removed_table_only_the_drop_of_its_index_runs(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    drop = request(database, table, JobKind.DROP_INDEX)
    request(database, table, JobKind.VERIFY)
    with database.write() as session:
        removed = session.get_one(EnrolledTable, table)
        removed.deleted_at, removed.paused = START, True
        session.add(removed)
    assignment = claim(database, worker)
    assert assignment is not None
    assert (assignment.job.id, assignment.table.table_uuid) == (drop, "a")
    finish(database, drop, 1, "succeeded")
    assert claim(database, worker) is None


def test_enrolling_a_branch_again_cancels_the_drop_of_its_index_only(database: Database) -> None:
    *removed, again = add_tables(database, ["a", "b", "c", "b"])
    drops = [request(database, table, JobKind.DROP_INDEX) for table in removed]
    with database.write() as session:
        queue.cancel_index_drops(session, session.get_one(EnrolledTable, again), START)
    assert [job(database, drop).status for drop in drops] == ["queued", "cancelled", "queued"]


def test_a_failed_attempt_is_followed_by_another_after_a_growing_pause(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker, now = add_worker(database), START
    job_id = request(database, table)
    pauses = []
    for attempt in range(1, 6):
        assignment = claim(database, worker, now)
        assert assignment is not None
        assert assignment.attempt == attempt
        finish(database, job_id, attempt, "failed", now, RETRYABLE)
        if status_of(database, job_id) is JobStatus.QUEUED:
            assert claim(database, worker, now) is None
            pauses.append((job(database, job_id).available_at - now).total_seconds())
            now = job(database, job_id).available_at
    assert pauses == [10, 20, 40, 80]
    assert job(database, job_id).status == "failed"
    assert job(database, job_id).error == RETRYABLE.model_dump()


def test_the_history_says_who_asked_how_far_it_came_and_what_follows(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker, now = add_worker(database), START
    job_id = request(database, table)
    for attempt, status in ((1, "lost"), (2, "failed"), (3, "failed")):
        assert claim(database, worker, now) is not None
        for progress in ({"stage": "read", "done": 1, "total": 2, "unit": "files"}, {"message": "all of it"}):
            report = HeartbeatRequest.model_validate({"progress": {"stage": "write"} | progress})
            with database.write() as session:
                attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, attempt, report, now)
        if status == "lost":
            give_up(database, job_id, now)
        else:
            finish(database, job_id, attempt, status, now, RETRYABLE if attempt == 2 else FATAL)
        now = job(database, job_id).available_at
    with database.read() as session:
        said = session.exec(select(Event.message).where(Event.job_id == job_id).order_by(col(Event.id))).all()
    heard = ["read: 1 of 2 files", "write: all of it"]
    assert [*said] == [
        "Queued: requested by test.",
        "Attempt 1 started on w.",
        *heard,
        "Attempt 1 lost: The worker was lost. Attempt 2 follows at once (1 of 5 used up).",
        "Attempt 2 started on w.",
        *heard,
        "Attempt 2 failed: Broken. Attempt 3 follows in 20 s (2 of 5 used up).",
        "Attempt 3 started on w.",
        *heard,
        "Failed in attempt 3: Broken.",
    ]


def test_an_error_that_no_retry_helps_fails_the_jobat_once(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    finish(database, job_id, 1, "failed", error=FATAL)
    assert status_of(database, job_id) is JobStatus.FAILED


def test_handing_back_does_not_use_up_an_attempt(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    for attempt in range(1, 8):
        assignment = claim(database, worker)
        assert assignment is not None
        finish(database, job_id, attempt, "released")
        assert status_of(database, job_id) is JobStatus.QUEUED
    assert job(database, job_id).failures == 0


def test_a_worker_that_stops_hands_back_what_it_never_got_and_takes_nothing(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker, other = add_worker(database), add_worker(database)
    job_id = request(database, table)
    for taker in (worker, other):
        assert claim(database, taker) is not None
        assert claim(database, taker, is_stopping=True) is None
        assert (job(database, job_id).status, job(database, job_id).failures) == ("queued", 0)
    # What it ran and could not report is no less lost.
    claim(database, worker)
    claim(database, worker, is_stopping=True, given_up=[AttemptId(job_id=job_id, attempt=3)])
    with database.read() as session:
        attempts = queue.attempts_of(session, job_id)
    assert [each.status for each in attempts] == ["released", "released", "lost"]
    assert job(database, job_id).failures == 1


def test_a_lost_attempt_is_recorded_and_shut_out(database: Database) -> None:
    another, table = add_tables(database, ["another", "a"])
    going_on = request(database, another)
    claim(database, add_worker(database))
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    later = START + timedelta(seconds=31)
    assert give_up(database, job_id, later) == [job_id]
    assert job(database, going_on).status == "running"
    with database.read() as session:
        (attempt,) = queue.attempts_of(session, job_id)
    assert attempt.status == "lost"
    assert attempt.error is not None
    assert attempt.error["code"] == "worker_lost"
    with pytest.raises(ConflictError) as stale:
        finish(database, job_id, 1, "succeeded", later)
    assert stale.value.slug == "stale-attempt"
    # The next attempt follows at once, and after a second loss only after a pause.
    assert claim(database, worker, later) is not None
    assert give_up(database, job_id, later) == [job_id]
    assert claim(database, worker, later) is None
    assert claim(database, worker, later + timedelta(seconds=20)) is not None


def test_a_cancelled_running_job_ends_cancelled_whatever_its_worker_does(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    for at in (START, LATER):
        with database.write() as session:
            queue.cancel(session, session.get_one(Job, job_id), "test", at)
    assert job(database, job_id).cancel_requested_at == START, "it is asked once"
    with database.write() as session:
        answer = attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, HeartbeatRequest(), START)
    assert answer.cancel_requested
    assert (answer.now, answer.lease_expires_at) == (START, START + timedelta(seconds=30))
    give_up(database, job_id, START + timedelta(seconds=31))
    assert job(database, job_id).status == "cancelled"


def test_a_worker_that_claims_again_does_not_run_what_it_has(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    for attempt in range(1, 5):
        # Each answer got lost: the same job comes again, and no attempt is used up.
        assignment = claim(database, worker)
        assert assignment is not None
        assert (assignment.job.id, assignment.attempt) == (job_id, attempt)
    with database.read() as session:
        attempts = queue.attempts_of(session, job_id)
    assert [each.status for each in attempts] == ["lost"] * 3 + ["running"]
    assert {each.error["code"] for each in attempts if each.error} == {"claim_answer_lost"}
    assert job(database, job_id).failures == 0
    with pytest.raises(ConflictError, match="attempt 4"):
        finish(database, job_id, 3, "succeeded")
    finish(database, job_id, 4, "succeeded")
    assert status_of(database, job_id) is JobStatus.SUCCEEDED
    assert claim(database, worker) is None


def test_a_worker_says_which_attempt_it_ran_and_could_not_report(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    assert claim(database, worker, given_up=[AttemptId(job_id=job_id, attempt=1)]) is not None
    with database.read() as session:
        (lost, _) = queue.attempts_of(session, job_id)
    assert lost.error is not None
    assert (lost.status, lost.error["code"]) == ("lost", "worker_cut_off")
    assert job(database, job_id).failures == 1


class TestLateWriters:
    """A worker sleeps in a job while the table's index is dropped, and writes on when it wakes."""

    @staticmethod
    def remove(database: Database, table_id: str, now: datetime) -> str:
        """Asks for its index to be dropped, too."""
        with database.write() as session:
            queue.cancel_jobs_of_table(session, table_id, "it was removed", now)
            session.get_one(EnrolledTable, table_id).deleted_at = now
        return request(database, table_id, JobKind.DROP_INDEX, now)

    @pytest.mark.parametrize("has_ended", [True, False])
    def test_the_index_is_dropped_again_once_the_worker_tells_of_itself(
        self, database: Database, has_ended: bool
    ) -> None:
        (table,) = add_tables(database, ["a"])
        sleeper, other = add_worker(database), add_worker(database)
        late = AttemptId(job_id=request(database, table, JobKind.INDEX), attempt=1)
        assert claim(database, sleeper) is not None
        drop = self.remove(database, table, LATER)
        assert claim(database, other, LATER) is None
        assert give_up(database, late.job_id, LATER) == [late.job_id]
        assert self.claimed(database, other) == drop
        if has_ended:
            finish(database, drop, 1, "succeeded", LATER)
            again = self.claimed(database, sleeper, given_up=[late])
        else:  # it may have been there before
            assert self.claimed(database, sleeper, given_up=[late]) is None
            finish(database, drop, 1, "succeeded", LATER)
            again = self.claimed(database, sleeper)
        assert again not in (None, drop)
        assert "may have written to it since" in job(database, str(again)).trigger
        finish(database, str(again), 1, "succeeded", LATER)
        assert self.claimed(database, sleeper) is None

    def test_an_index_that_is_in_use_again_is_kept(self, database: Database) -> None:
        (table,) = add_tables(database, ["a"])
        sleeper = add_worker(database)
        late = AttemptId(job_id=request(database, table, JobKind.INDEX), attempt=1)
        claim(database, sleeper)
        drop = self.remove(database, table, LATER)
        give_up(database, late.job_id, LATER)
        assert self.claimed(database, sleeper) == drop
        finish(database, drop, 1, "succeeded", LATER)
        (enrolled_again,) = add_tables(database, ["a"], "other")
        with database.write() as session:
            session.get_one(EnrolledTable, enrolled_again).created_at = LATER + timedelta(seconds=1)
        assert self.claimed(database, sleeper, given_up=[late]) is None
        # Also when that one was removed since, without its index.
        with database.write() as session:
            session.get_one(EnrolledTable, enrolled_again).deleted_at = LATER
        assert self.claimed(database, sleeper, given_up=[late]) is None

    @staticmethod
    def claimed(database: Database, worker: str, **how: Any) -> str | None:
        assignment = claim(database, worker, LATER, **how)
        return assignment.job.id if assignment is not None else None


def test_what_an_attempt_may_have_left_is_told_until_it_is_removed(database: Database) -> None:
    tables = add_tables(database, ["a", "b"])
    worker = add_worker(database)

    def announce(job_id: str, attempt: int, number: int, tasks: int, removes: str | None = None) -> None:
        files = 10 * tasks
        plan = AnnouncedPlan(
            number=number, tasks=tasks, files_per_task=files, removes=removes, location="file:/t"
        )
        with database.write() as session:
            attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, attempt, HeartbeatRequest(plan=plan), START)

    def run(
        kind: JobKind, table: str = tables[0], *, dry_run: bool = False, **report: Any
    ) -> list[EndedAttempt]:
        job_id = request(database, table, kind, dry_run=dry_run)
        assignment = claim(database, worker)
        assert assignment is not None
        assert assignment.job.id == job_id
        announce(job_id, 1, 0, 1)
        finish(database, job_id, 1, report.pop("status", "succeeded"), **report)
        return assignment.ended_attempts

    dead = request(database, tables[0])
    claim(database, worker)
    announce(dead, 1, 0, 2)
    announce(dead, 1, 0, 3, "file:/deletes.parquet")
    announce(dead, 1, 1, 4)
    announce(dead, 1, 0, 2)  # once more, and late
    finish(database, dead, 1, "failed", error=FATAL)
    assert status_of(database, dead) is JobStatus.FAILED
    plans = [
        AnnouncedPlan(number=1, tasks=4, files_per_task=40, location="file:/t"),
        AnnouncedPlan(
            number=0, tasks=3, files_per_task=30, removes="file:/deletes.parquet", location="file:/t"
        ),
    ]
    left = EndedAttempt(job_id=dead, attempt=1, plans=plans)

    # Only those who may remove it are told, and only of their own table.
    assert run(JobKind.CONVERT, tables[1]) == run(JobKind.CONVERT, dry_run=True) == []
    assert run(JobKind.INDEX) == []
    assert run(JobKind.CONVERT) == run(JobKind.COMPACT) == [left]
    cleared = [{"job_id": dead, "attempt": 1}]
    # Somebody else's word counts for nothing.
    run(JobKind.CONVERT, tables[1], cleared=[*cleared, {"job_id": "unknown", "attempt": 1}])
    # A task of an attempt that has just ended may still write.
    assert run(JobKind.CONVERT, cleared=cleared) == [left]
    assert run(JobKind.CONVERT, cleared=cleared, now=START + timedelta(minutes=6)) == [left]
    assert run(JobKind.CONVERT, status="cancelled") == []
    (cancelled,) = run(JobKind.COMPACT)
    assert cancelled.plans == [AnnouncedPlan(number=0, tasks=1, files_per_task=10, location="file:/t")]

    # A run of a task that Spark gave up may write more than its attempt committed.
    stages = [{"name": name, "seconds": 1, "failed_tasks": 1} for name in ("lookup", "deletes")]
    assert run(JobKind.CONVERT, stages=stages[:1]) == [cancelled]
    assert run(JobKind.CONVERT, stages=stages) == [cancelled]
    assert len(run(JobKind.COMPACT)) == 2


def test_of_many_attempts_a_job_is_told_its_own(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure has to know which snapshots it has let expire."""
    monkeypatch.setattr(assignments, "_ENDED_ATTEMPTS_AT_ONCE", 1)
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)

    def begin(kind: JobKind, error: ErrorReport, **plan: Any) -> str:
        begun = request(database, table, kind)
        assert claim(database, worker) is not None
        for number in (0, 0):
            announced = AnnouncedPlan(number=number, tasks=1, location="file:/t", **plan)
            with database.write() as session:
                news = HeartbeatRequest(plan=announced)
                attempts.heartbeat(session, SETTINGS, SYSTEM, begun, 1, news, START)
            plan = {}
        finish(database, begun, 1, "failed", error=error)
        return begun

    for _ in range(8):
        begin(JobKind.UPSERT, FATAL)
    erasure = begin(JobKind.ERASE, RETRYABLE, expires=[7, 8])
    assignment = claim(database, worker, LATER)
    assert assignment is not None
    assert [(one.job_id, one.plans[0].expires) for one in assignment.ended_attempts] == [(erasure, [7, 8])]


def test_an_attempt_that_no_worker_ever_gets_is_not_repeated_for_ever(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    now = START
    for _ in range(20):
        claim(database, worker, now)
        now += timedelta(hours=1)
    found = job(database, job_id)
    assert (found.status, found.failures) == ("failed", found.max_attempts)
    with database.read() as session:
        # Three in a row may be an accident, and do not count.
        assert len(queue.attempts_of(session, job_id)) == 3 + found.max_attempts


def test_a_poll_that_its_worker_gave_up_takes_no_job_and_ends_no_attempt(database: Database) -> None:
    tables = add_tables(database, ["a", "b"])
    worker = add_worker(database)
    request(database, tables[0])
    assert claim(database, worker) is not None
    request(database, tables[1])
    assert claim(database, worker, has_waited=True) is None
    with database.read() as session:
        assert len(attempts.leases(session)) == 1


def test_a_clock_that_was_set_back_holds_up_no_queued_job(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    finish(database, job_id, 1, "failed", START, RETRYABLE)
    back = timedelta(hours=1)
    now = START - back + timedelta(seconds=2)
    with database.write() as session:
        assert [each.id for each in clock.follow_clock(session, back, now)] == [job_id]
    assert job(database, job_id).available_at == START - back + timedelta(seconds=10)
    assert claim(database, worker, now) is None
    assert claim(database, worker, now + timedelta(seconds=8)) is not None
    with database.read() as session:
        kinds = [each.kind for each in session.exec(select(Event).where(Event.job_id == job_id))]
    assert kinds.count("job.clock") == 1


def test_a_moment_that_a_transaction_waited_is_no_clock_that_was_set_back(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    request(database, table)
    with database.write() as session:
        assert clock.follow_clock(session, timedelta(), START - timedelta(seconds=601)) == []


def test_a_pause_that_no_job_has_shows_a_clock_that_was_set_back_unseen(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    now = START - timedelta(days=1)
    with database.write() as session:
        clock.follow_clock(session, timedelta(), now)
    found = job(database, job_id)
    assert found.available_at == now + timedelta(seconds=found.max_backoff_seconds)


@pytest.mark.parametrize("pause", ["table", "catalog", "system"])
def test_nothing_of_a_paused_table_is_claimed(database: Database, pause: str) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    request(database, table)
    with database.write() as session:
        row = session.get_one(EnrolledTable, table)
        paused = {
            "table": row,
            "catalog": session.get_one(Catalog, row.catalog_id),
            "system": session.get(SystemState, 1) or SystemState(),
        }[pause]
        paused.paused = True
        session.add(paused)
    assert claim(database, worker) is None


def test_no_attempt_uses_up_the_row_addresses_of_a_table(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)

    def reserve(rows: int, at_least: int) -> int:
        asked = AddressRangeRequest(rows=rows, at_least=at_least)
        with database.write() as session:
            return attempts.reserve_addresses(session, SYSTEM, job_id, 1, asked).base_address

    assert reserve(10, 5) == 5
    for at_least in (2**45, 2**62):
        with pytest.raises(InvalidError) as refused:
            reserve(10, at_least)
        assert refused.value.slug == "row-addresses-out-of-range"
    assert reserve(2**40, 2**44) == 2**44, "as after the loss of the control database"
    with database.write() as session:
        session.execute(update(AddressCounter).values(next_address=2**62 - 10))
    with pytest.raises(InvalidError):
        reserve(11, 0)
    assert reserve(10, 0) == 2**62 - 10


def test_a_heartbeat_reserves_row_addresses_or_renews_nothing(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    claim(database, add_worker(database))

    def beat(rows: int, at_least: int = 0) -> AddressRange | None:
        asked = HeartbeatRequest(addresses=AddressRangeRequest(rows=rows, at_least=at_least))
        with database.write() as session:
            return attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, asked, START).addresses

    assert [beat(10), beat(5)] == [AddressRange(base_address=0), AddressRange(base_address=10)]
    with pytest.raises(InvalidError):
        beat(1, 2**62)
    assert job(database, job_id).renewals == 2
    finish(database, job_id, 1, "succeeded")
    with pytest.raises(ConflictError):
        beat(10)
    with database.read() as session:
        assert session.exec(select(AddressCounter.next_address)).one() == 15


@pytest.mark.parametrize(("after", "seconds"), [(0.25, 0.25), (-5, 0)])
def test_an_attempt_took_no_less_than_nothing_by_a_clock_that_was_set_back(
    database: Database, after: float, seconds: float
) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    assert claim(database, add_worker(database)) is not None
    finish(database, job_id, 1, "succeeded", START + timedelta(seconds=after))
    with database.read() as session:
        assert session.get_one(Attempt, (job_id, 1)).seconds == seconds
