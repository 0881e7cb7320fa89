"""The queue on both databases: a state machine against a simple model, and real races between threads."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from service.auth.models import SYSTEM
from service.catalogs.models import Catalog
from service.database import Database
from service.errors import ConflictError, InvalidError
from service.jobs import queue
from service.jobs.leases import LeaseObserver
from service.jobs.models import Assignment, Attempt, Event, Job
from service.jobs.service import retry_job
from service.jobs.status import AttemptStatus, JobKind, JobStatus
from service.policies.service import effective_policy
from service.settings import Settings
from service.tables.models import EnrolledTable
from service.workers.models import (
    AddressRangeRequest,
    AnnouncedPlan,
    AttemptId,
    ErrorReport,
    FinishRequest,
    HeartbeatRequest,
    Leftovers,
    Worker,
)
from tests.service.conftest import DATABASES, ManualTime

START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(lease_seconds=30)
RETRYABLE = ErrorReport(code="x", title="Broken", detail="d", remedy="r", retryable=True)
FATAL = RETRYABLE.model_copy(update={"retryable": False})


def add_tables(database: Database, uuids: list[str]) -> list[str]:
    """One enrolled table for each UUID; equal UUIDs are branches of one Iceberg table."""
    with database.write() as session:
        catalog = Catalog(name="local", type="sql", properties={})
        session.add(catalog)
        session.flush()
        tables = [
            EnrolledTable(
                catalog_id=catalog.id,
                identifier=["db", f"t{number}"],
                name=f"db.t{number}",
                table_uuid=uuid,
                format_version=2,
                location=f"file:///wh/db/t{number}",
            )
            for number, uuid in enumerate(uuids)
        ]
        session.add_all(tables)
        return [table.id for table in tables]


def add_worker(database: Database) -> str:
    with database.write() as session:
        worker = Worker(name="w", hostname="h", pid=1, version="0")
        session.add(worker)
        return worker.id


def request(
    database: Database,
    table_id: str,
    kind: JobKind = JobKind.CONVERT,
    now: datetime = START,
    *,
    dry_run: bool = False,
) -> str:
    with database.write() as session:
        table = session.get_one(EnrolledTable, table_id)
        policy = effective_policy(session, table)
        return queue.enqueue(session, table, kind, policy, now, dry_run=dry_run, requested_by="test")[0].id


def claim(database: Database, worker_id: str, now: datetime = START, **how: Any) -> Assignment | None:
    with database.write() as session:
        return queue.claim(session, SETTINGS, worker_id, now, **how)


def give_up(database: Database, job_id: str, now: datetime) -> list[str]:
    """What the background does once a job's lease did not change for long."""
    with database.write() as session:
        current = {each: renewals for each, renewals in queue.leases(session).items() if each[0] == job_id}
        return [each.id for each in queue.give_up(session, current, now)]


def may_be_repeated(found: Job) -> bool:
    """Of what a user can ask for: a table's index is not dropped while the table is enrolled."""
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
) -> JobStatus:
    report = FinishRequest.model_validate({"status": status, "error": error, **further})
    with database.write() as session:
        return JobStatus(queue.finish(session, job_id, attempt, report, now).status)


def job(database: Database, job_id: str) -> Job:
    with database.read() as session:
        return session.get_one(Job, job_id)


class QueueMachine(RuleBasedStateMachine):
    """Users, workers, lost leases, restarts and clocks in any order; the model knows each attempt's fate."""

    database: Database
    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        with self.database.write() as session:
            for model in (Event, Attempt, Job, EnrolledTable, Catalog):
                for row in session.exec(select(model)):
                    session.delete(row)
                session.flush()
        # The first two are branches of one Iceberg table.
        self.tables = add_tables(self.database, ["a", "a", "b"])
        self.workers = [add_worker(self.database) for _ in range(3)]
        self.time = ManualTime()
        self.observer = self.new_observer()
        self.running: dict[str, tuple[int, str]] = {}
        """Attempt and worker of each running job."""
        self.seen: dict[str, tuple[int, int, float]] = {}
        """What the service saw of them: attempt, heartbeats, and how long that did not change."""
        self.heartbeats: dict[str, int] = {}
        self.granted: dict[str, list[tuple[int, int]]] = {}
        self.announced: dict[tuple[str, int], dict[int, AnnouncedPlan]] = {}
        """What each attempt may have left."""
        self.told: dict[tuple[str, int], list[Leftovers]] = {}

    def new_observer(self) -> LeaseObserver[queue.RunningAttempt, int]:
        return LeaseObserver(SETTINGS.lease_seconds, self.time.clock.monotonic)

    @property
    def now(self) -> datetime:
        return self.time.wall

    @rule(target=jobs, table=st.integers(0, 2), kind=st.sampled_from(JobKind), dry_run=st.booleans())
    def request(self, table: int, kind: JobKind, dry_run: bool) -> str:
        return request(self.database, self.tables[table], kind, self.now, dry_run=dry_run)

    @rule(target=jobs, job_id=jobs)
    def retry(self, job_id: str) -> str:
        try:
            with self.database.write() as session:
                again = retry_job(session, SYSTEM, job_id).id
        except (ConflictError, InvalidError):
            assert not JobStatus(job(self.database, job_id).status).is_retryable or not may_be_repeated(
                job(self.database, job_id)
            )
            return job_id
        assert again != job_id
        return again

    @rule(target=claims, number=st.integers(0, 2), has_waited=st.booleans(), gave_up=st.booleans())
    def claim(self, number: int, has_waited: bool, gave_up: bool) -> tuple[str, int] | None:
        worker = self.workers[number]
        mine = {job_id: attempt for job_id, (attempt, runner) in self.running.items() if runner == worker}
        before = {job_id: job(self.database, job_id) for job_id in mine}
        given_up = [AttemptId(job_id=job_id, attempt=attempt) for job_id, attempt in mine.items() if gave_up]
        assignment = claim(self.database, worker, self.now, given_up=given_up, has_waited=has_waited)
        if mine and has_waited:
            assert assignment is None
            return None
        for job_id, attempt in mine.items():
            del self.running[job_id]
            found, counts = job(self.database, job_id), gave_up or self.is_unheard_again(job_id, attempt)
            assert found.failures == before[job_id].failures + counts
            if before[job_id].cancel_requested_at is not None:
                assert found.status == JobStatus.CANCELLED.value
            elif found.failures >= found.max_attempts:
                assert found.status == JobStatus.FAILED.value
            elif assignment is None or assignment.job.id != job_id:
                # One that never ran there is queued again at once.
                assert found.status == JobStatus.QUEUED.value
                assert counts or found.available_at == self.now
        if assignment is None:
            return None
        assert assignment.job.id not in self.running
        assert [each.attempt for each in assignment.previous_attempts] == list(range(1, assignment.attempt))
        self.running[assignment.job.id] = (assignment.attempt, worker)
        assert assignment.leftovers == self.expected_leftovers(assignment)
        self.told[(assignment.job.id, assignment.attempt)] = assignment.leftovers
        return assignment.job.id, assignment.attempt

    def is_unheard_again(self, job_id: str, attempt: int) -> bool:
        """Whether the three attempts before this one were not heard of by their workers either."""
        with self.database.read() as session:
            before = queue.attempts_of(session, job_id)[: attempt - 1][-3:]
        return [(one.error or {}).get("code") for one in before] == ["claim_answer_lost"] * 3

    def expected_leftovers(self, assignment: Assignment) -> list[Leftovers]:
        if assignment.job.kind not in ("convert", "compact") or assignment.job.dry_run:
            return []
        return [
            Leftovers(job_id=job_id, attempt=attempt, plans=list(plans.values()))
            for (job_id, attempt), plans in sorted(self.announced.items())
            if job(self.database, job_id).table_uuid == assignment.table.table_uuid
            and self.running.get(job_id, (0, ""))[0] != attempt
        ]

    @rule(
        claimed=claims,
        number=st.integers(0, 1),
        tasks=st.integers(1, 3),
        removes=st.sampled_from([None, "file:/e.parquet"]),
    )
    def announce(self, claimed: tuple[str, int] | None, number: int, tasks: int, removes: str | None) -> None:
        if claimed is None:
            return
        job_id, attempt = claimed
        plan = AnnouncedPlan(number=number, tasks=tasks, removes=removes, location="file:/t")

        def call(session: Session) -> None:
            queue.heartbeat(session, SETTINGS, job_id, attempt, HeartbeatRequest(plan=plan), self.now)

        if self.accepts(job_id, attempt, call):
            self.heartbeats[job_id] = self.heartbeats.get(job_id, 0) + 1
            plans = self.announced.setdefault(claimed, {})
            known = plans.pop(number, plan)
            merged = {"tasks": max(tasks, known.tasks), "removes": removes or known.removes}
            plans[number] = plan.model_copy(update=merged)

    @rule(claimed=claims)
    def heartbeat(self, claimed: tuple[str, int] | None) -> None:
        if claimed is None:
            return
        job_id, attempt = claimed

        def call(session: Session) -> None:
            queue.heartbeat(session, SETTINGS, job_id, attempt, HeartbeatRequest(), self.now)

        if self.accepts(job_id, attempt, call):
            self.heartbeats[job_id] = self.heartbeats.get(job_id, 0) + 1

    @rule(claimed=claims, rows=st.integers(1, 100), at_least=st.integers(0, 200))
    def reserve(self, claimed: tuple[str, int] | None, rows: int, at_least: int) -> None:
        if claimed is None:
            return
        job_id, attempt = claimed
        ranges = self.granted.setdefault(job(self.database, job_id).table_uuid, [])

        def call(session: Session) -> None:
            granted = queue.reserve_addresses(
                session, job_id, attempt, AddressRangeRequest(rows=rows, at_least=at_least)
            )
            begin, end = granted.base_address, granted.base_address + rows
            assert begin >= at_least
            assert all(begin >= other_end or end <= other_begin for other_begin, other_end in ranges)
            ranges.append((begin, end))

        self.accepts(job_id, attempt, call)

    @rule(
        claimed=claims,
        status=st.sampled_from(["succeeded", "failed", "cancelled", "released"]),
        error=st.sampled_from([RETRYABLE, FATAL]),
        clears=st.booleans(),
    )
    def finish(self, claimed: tuple[str, int] | None, status: str, error: ErrorReport, clears: bool) -> None:
        if claimed is None:
            return
        job_id, attempt = claimed
        with self.database.read() as session:
            ended = session.get_one(Attempt, claimed)
        before = job(self.database, job_id)
        if before.attempt == attempt and ended.status == status:
            # The same report again changes nothing.
            finish(self.database, job_id, attempt, status, self.now)
            assert job(self.database, job_id).model_dump() == before.model_dump()
            return
        told = self.told[claimed] if clears else []
        report = FinishRequest.model_validate(
            {
                "status": status,
                "error": error if status == "failed" else None,
                "cleared": [{"job_id": one.job_id, "attempt": one.attempt} for one in told],
            }
        )

        def call(session: Session) -> None:
            queue.finish(session, job_id, attempt, report, self.now)

        if self.accepts(job_id, attempt, call):
            del self.running[job_id]
            for one in told:
                with self.database.read() as session:
                    left = session.get_one(Attempt, (one.job_id, one.attempt))
                assert left.ended_at is not None
                if self.now - left.ended_at > timedelta(minutes=5):
                    self.announced.pop((one.job_id, one.attempt), None)
            if status == "succeeded":
                self.announced.pop(claimed, None)
            assert job(self.database, job_id).status != JobStatus.RUNNING.value

    def accepts(self, job_id: str, attempt: int, call: Callable[[Session], None]) -> bool:
        """Make a call in the name of an attempt; exactly the running one must be let through."""
        slug = None
        try:
            with self.database.write() as session:
                call(session)
        except ConflictError as error:
            slug = error.slug
        is_current = self.running.get(job_id, (0, ""))[0] == attempt
        assert slug == (None if is_current else "stale-attempt")
        return is_current

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        with self.database.write() as session:
            found = session.get_one(Job, job_id)
            queue.cancel(session, found, "test", self.now)

    @rule(seconds=st.integers(1, 40))
    def let_time_pass(self, seconds: int) -> None:
        self.time.pass_by(seconds)

    @rule(seconds=st.integers(-7200, 7200))
    def jump_the_clock(self, seconds: int) -> None:
        self.time.jump(seconds)

    @rule(seconds=st.integers(1, 7200))
    def notice_that_the_clock_was_set_back(self, seconds: int) -> None:
        self.time.jump(-seconds)
        with self.database.write() as session:
            before = {each.id: each.available_at for each in session.exec(select(Job))}
            moved = queue.follow_clock(session, timedelta(seconds=seconds), self.now)
            for each in moved:
                assert self.now <= each.available_at < before[each.id]
        with self.database.read() as session:
            for each in session.exec(select(Job).where(Job.status == JobStatus.QUEUED.value)):
                longest = timedelta(seconds=each.max_backoff_seconds)
                assert each.available_at <= self.now + longest + queue.CLOCK_TOLERANCE

    @rule()
    def restart_the_service(self) -> None:
        self.observer, self.seen = self.new_observer(), {}

    @rule(seconds=st.integers(1, 7), times=st.integers(1, 10))
    def tick(self, seconds: int, times: int) -> None:
        for _ in range(times):
            self.time.pass_by(seconds)
            with self.database.read() as session:
                expired = self.observer.look(queue.leases(session))
            with self.database.write() as session:
                lost = {each.id for each in queue.give_up(session, expired, self.now)}
            self.check_lost(lost, seconds)

    def check_lost(self, lost: set[str], seconds: int) -> None:
        """Exactly those whose heartbeats were not seen to change for a whole lease."""
        before, self.seen = self.seen, {}
        for job_id, (attempt, _) in self.running.items():
            beats = self.heartbeats.get(job_id, 0)
            known = before.get(job_id)
            same = known is not None and known[:2] == (attempt, beats)
            self.seen[job_id] = (attempt, beats, known[2] + seconds if known is not None and same else 0)
        assert lost == {job_id for job_id, (_, _, still) in self.seen.items() if still >= 30}
        for job_id in lost:
            del self.running[job_id]

    def teardown(self) -> None:
        """Whatever happened: when time passes and a worker works, every job ends."""
        for _ in range(200):
            with self.database.read() as session:
                left = [each for each in session.exec(select(Job)) if not JobStatus(each.status).is_final]
            if not left:
                return
            with self.database.write() as session:
                queue.follow_clock(session, timedelta(), self.now)
            assignment = claim(self.database, self.workers[0], self.now)
            if assignment is None:
                self.tick_quietly()
            else:
                finish(self.database, assignment.job.id, assignment.attempt, "succeeded", self.now)
        raise AssertionError(f"jobs that never end: {left}")

    def tick_quietly(self) -> None:
        self.time.pass_by(60)
        with self.database.read() as session:
            expired = self.observer.look(queue.leases(session))
        with self.database.write() as session:
            queue.give_up(session, expired, self.now)

    @invariant()
    def at_most_one_running_job_writes_a_table(self) -> None:
        with self.database.read() as session:
            running = session.exec(select(Job).where(Job.status == JobStatus.RUNNING.value)).all()
        assert {each.id: each.attempt for each in running} == {
            job_id: attempt for job_id, (attempt, _) in self.running.items()
        }
        # No lease of a dead attempt is left, and none is missing.
        with self.database.read() as session:
            attempts = session.exec(
                select(Attempt).where(Attempt.status == AttemptStatus.RUNNING.value)
            ).all()
        assert {each.job_id: (each.attempt, each.worker_id) for each in attempts} == self.running
        writers = [each.table_uuid for each in running if each.writes]
        assert len(writers) == len(set(writers))

    @invariant()
    def attempts_and_jobs_agree(self) -> None:
        with self.database.read() as session:
            jobs = session.exec(select(Job)).all()
            attempts = session.exec(select(Attempt).order_by(col(Attempt.attempt))).all()
        for each in jobs:
            mine = [attempt for attempt in attempts if attempt.job_id == each.id]
            assert [attempt.attempt for attempt in mine] == list(range(1, each.attempt + 1))
            assert [attempt.ended_at is None for attempt in mine[:-1]] == [False] * len(mine[:-1])
            is_running = each.status == JobStatus.RUNNING.value
            assert (bool(mine) and mine[-1].ended_at is None) == is_running
            assert (each.lease_expires_at is not None) == is_running
            assert (each.ended_at is not None) == JobStatus(each.status).is_final
            assert each.failures <= each.max_attempts

    @invariant()
    def at_most_one_job_of_a_kind_waits_for_its_first_attempt(self) -> None:
        with self.database.read() as session:
            waiting = session.exec(
                select(Job).where(Job.status == JobStatus.QUEUED.value, Job.attempt == 0)
            ).all()
        kinds = [(each.table_id, each.kind, each.dry_run) for each in waiting]
        assert len(kinds) == len(set(kinds))


def test_any_order_of_calls_keeps_the_queue_consistent(database: Database) -> None:
    class Machine(QueueMachine):
        pass

    Machine.database = database
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_second_request_of_a_kind_finds_the_queued_job(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    first = request(database, table)
    assert request(database, table) == first
    assert request(database, table, dry_run=True) != first
    assert request(database, table, JobKind.INDEX) != first


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
    removed, other_table, again = add_tables(database, ["a", "b", "a"])
    drop, other_drop = (request(database, table, JobKind.DROP_INDEX) for table in (removed, other_table))
    with database.write() as session:
        queue.cancel_index_drops(session, session.get_one(EnrolledTable, again), "enrolled again", START)
    assert job(database, drop).status == JobStatus.CANCELLED.value
    assert job(database, other_drop).status == JobStatus.QUEUED.value


def test_a_failed_attempt_is_followed_by_another_after_a_growing_pause(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker, now = add_worker(database), START
    job_id = request(database, table)
    pauses = []
    for attempt in range(1, 6):
        assignment = claim(database, worker, now)
        assert assignment is not None
        assert assignment.attempt == attempt
        status = finish(database, job_id, attempt, "failed", now, RETRYABLE)
        if status is JobStatus.QUEUED:
            assert claim(database, worker, now) is None
            pauses.append((job(database, job_id).available_at - now).total_seconds())
            now = job(database, job_id).available_at
    assert pauses == [10, 20, 40, 80]
    assert job(database, job_id).status == "failed"
    assert job(database, job_id).error == RETRYABLE.model_dump()


def test_an_error_that_no_retry_helps_fails_the_job_at_once(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    assert finish(database, job_id, 1, "failed", error=FATAL) is JobStatus.FAILED


def test_handing_back_does_not_use_up_an_attempt(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    for attempt in range(1, 8):
        assignment = claim(database, worker)
        assert assignment is not None
        assert finish(database, job_id, attempt, "released") is JobStatus.QUEUED
    assert job(database, job_id).failures == 0


def test_a_lost_attempt_is_recorded_and_shut_out(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    later = START + timedelta(seconds=31)
    assert give_up(database, job_id, later) == [job_id]
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


def test_a_heartbeat_wins_over_whoever_saw_the_lease_before_it(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    with database.read() as session:
        seen = queue.leases(session)
    # The clock stands still: the lease says the same time as before, and yet it was renewed.
    with database.write() as session:
        queue.heartbeat(session, SETTINGS, job_id, 1, HeartbeatRequest(), START)
    with database.write() as session:
        assert queue.give_up(session, seen, START + timedelta(seconds=60)) == []
    assert give_up(database, job_id, START) == [job_id]


def test_a_cancelled_running_job_ends_cancelled_whatever_its_worker_does(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    with database.write() as session:
        queue.cancel(session, session.get_one(Job, job_id), "test", START)
    with database.write() as session:
        answer = queue.heartbeat(session, SETTINGS, job_id, 1, HeartbeatRequest(), START)
    assert answer.cancel_requested
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
    assert finish(database, job_id, 4, "succeeded") is JobStatus.SUCCEEDED
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


def test_what_an_attempt_may_have_left_is_told_until_it_is_removed(database: Database) -> None:
    tables = add_tables(database, ["a", "b"])
    worker = add_worker(database)

    def announce(job_id: str, attempt: int, number: int, tasks: int, removes: str | None = None) -> None:
        plan = AnnouncedPlan(number=number, tasks=tasks, removes=removes, location="file:/t")
        with database.write() as session:
            queue.heartbeat(session, SETTINGS, job_id, attempt, HeartbeatRequest(plan=plan), START)

    def run(
        kind: JobKind, table: str = tables[0], *, dry_run: bool = False, **report: Any
    ) -> list[Leftovers]:
        job_id = request(database, table, kind, dry_run=dry_run)
        assignment = claim(database, worker)
        assert assignment is not None
        assert assignment.job.id == job_id
        announce(job_id, 1, 0, 1)
        finish(database, job_id, 1, report.pop("status", "succeeded"), **report)
        return assignment.leftovers

    dead = request(database, tables[0])
    claim(database, worker)
    announce(dead, 1, 0, 2)
    announce(dead, 1, 0, 3, "file:/deletes.parquet")
    announce(dead, 1, 1, 4)
    announce(dead, 1, 0, 2)  # once more, and late
    assert finish(database, dead, 1, "failed", error=FATAL) is JobStatus.FAILED
    plans = [
        AnnouncedPlan(number=1, tasks=4, location="file:/t"),
        AnnouncedPlan(number=0, tasks=3, removes="file:/deletes.parquet", location="file:/t"),
    ]
    left = Leftovers(job_id=dead, attempt=1, plans=plans)

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
    assert cancelled.plans == [AnnouncedPlan(number=0, tasks=1, location="file:/t")]


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


def test_a_poll_that_its_worker_gave_up_takes_no_job_and_ends_no_attempt(database: Database) -> None:
    tables = add_tables(database, ["a", "b"])
    worker = add_worker(database)
    request(database, tables[0])
    assert claim(database, worker) is not None
    request(database, tables[1])
    assert claim(database, worker, has_waited=True) is None
    with database.read() as session:
        assert len(queue.leases(session)) == 1


def test_a_clock_that_was_set_back_holds_up_no_queued_job(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    job_id = request(database, table)
    claim(database, worker)
    finish(database, job_id, 1, "failed", START, RETRYABLE)
    back = timedelta(hours=1)
    now = START - back + timedelta(seconds=2)
    with database.write() as session:
        assert [each.id for each in queue.follow_clock(session, back, now)] == [job_id]
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
        assert queue.follow_clock(session, timedelta(), START - timedelta(seconds=601)) == []


def test_a_pause_that_no_job_has_shows_a_clock_that_was_set_back_unseen(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    now = START - timedelta(days=1)
    with database.write() as session:
        queue.follow_clock(session, timedelta(), now)
    found = job(database, job_id)
    assert found.available_at == now + timedelta(seconds=found.max_backoff_seconds)


@pytest.mark.parametrize("pause", ["table", "catalog"])
def test_nothing_of_a_paused_table_is_claimed(database: Database, pause: str) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    request(database, table)
    with database.write() as session:
        row = session.get_one(EnrolledTable, table)
        paused = row if pause == "table" else session.get_one(Catalog, row.catalog_id)
        paused.paused = True
        session.add(paused)
    assert claim(database, worker) is None


def _at_once(count: int, work: Callable[[int], None]) -> None:
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

    _at_once(8, work)
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
    _at_once(8, lambda _: ids.append(request(database, table)))
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
            granted = queue.reserve_addresses(session, job_id, 1, AddressRangeRequest(rows=10))
        bases.append(granted.base_address)

    _at_once(8, work)
    assert sorted(bases) == list(range(0, 80, 10))


@pytest.mark.parametrize("kind", DATABASES)
def test_a_write_waits_for_another_one_instead_of_failing(
    kind: str, new_database_url: Callable[[str], str]
) -> None:
    database = Database(new_database_url(kind))
    tables = add_tables(database, [str(number) for number in range(8)])

    def work(number: int) -> None:
        for each in JobKind:
            request(database, tables[number], each)

    _at_once(8, work)
    with database.read() as session:
        assert len(session.exec(select(Job)).all()) == 8 * len(JobKind)
    database.dispose()
