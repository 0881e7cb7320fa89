"""The queue on both databases, in any order of calls, against a simple model."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import update
from sqlmodel import Session, col, select

from service.auth.models import SYSTEM
from service.catalogs.models import Catalog
from service.database import Database
from service.errors import ConflictError, InvalidError
from service.jobs import queue
from service.jobs.leases import LeaseObserver
from service.jobs.models import Assignment, Attempt, Event, Job, Turn
from service.jobs.service import retry_job
from service.jobs.status import AttemptStatus, JobKind, JobStatus
from service.tables.models import EnrolledTable
from service.workers.models import (
    AddressRangeRequest,
    AnnouncedPlan,
    AttemptId,
    ErrorReport,
    FinishRequest,
    HeartbeatRequest,
    Leftovers,
)
from tests.service.conftest import ManualTime
from tests.service.queue_calls import (
    FATAL,
    RETRYABLE,
    SETTINGS,
    add_tables,
    add_worker,
    claim,
    finish,
    job,
    may_be_repeated,
    request,
)


class QueueMachine(RuleBasedStateMachine):
    """Users, workers, lost leases, restarts and clocks in any order; the model knows each attempt's fate."""

    database: Database
    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        with self.database.write() as session:
            for model in (Event, Attempt, Job, Turn, EnrolledTable, Catalog):
                for row in session.exec(select(model)):
                    session.delete(row)
                session.flush()
        # The first two are branches of one Iceberg table.
        self.tables = [
            *add_tables(self.database, ["a", "a", "b"]),
            *add_tables(self.database, ["c"], "other"),
        ]
        self.turns: dict[str, datetime] = {}
        """When each table was last given a worker."""
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

    @rule(
        target=jobs,
        table=st.integers(0, 3),
        kind=st.sampled_from(JobKind),
        dry_run=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def request(self, table: int, kind: JobKind, dry_run: bool, priority: int) -> str:
        return request(self.database, self.tables[table], kind, self.now, dry_run=dry_run, priority=priority)

    @rule(limit=st.sampled_from([None, 1, 2]))
    def limit_a_catalog(self, limit: int | None) -> None:
        with self.database.write() as session:
            session.exec(update(Catalog).where(col(Catalog.name) == "local").values(max_running_jobs=limit))

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
        return self.ask(self.workers[number], gave_up, has_waited=has_waited)

    @rule(table=st.integers(0, 3), number=st.integers(0, 2), gave_up=st.booleans())
    def leave(self, table: int, number: int, gave_up: bool) -> None:
        request(self.database, self.tables[table], JobKind.CONVERT, self.now)
        self.ask(self.workers[number], gave_up=False)
        self.ask(self.workers[number], gave_up, is_stopping=True)

    def ask(
        self, worker: str, gave_up: bool, *, has_waited: bool = False, is_stopping: bool = False
    ) -> tuple[str, int] | None:
        mine = {job_id: attempt for job_id, (attempt, runner) in self.running.items() if runner == worker}
        before = {job_id: job(self.database, job_id) for job_id in mine}
        given_up = [AttemptId(job_id=job_id, attempt=attempt) for job_id, attempt in mine.items() if gave_up]
        assignment = claim(
            self.database,
            worker,
            self.now,
            given_up=given_up,
            has_waited=has_waited,
            is_stopping=is_stopping,
        )
        if mine and has_waited:
            assert assignment is None
            return None
        for job_id, attempt in mine.items():
            del self.running[job_id]
            found, is_handed_back = job(self.database, job_id), is_stopping and not gave_up
            with self.database.read() as session:
                ended = session.get_one(Attempt, (job_id, attempt)).status
            assert ended == ("released" if is_handed_back else "lost")
            counts = gave_up or (not is_handed_back and self.is_unheard_again(job_id, attempt))
            assert found.failures == before[job_id].failures + counts
            if before[job_id].cancel_requested_at is not None:
                assert found.status == JobStatus.CANCELLED.value
            elif found.failures >= found.max_attempts:
                assert found.status == JobStatus.FAILED.value
            elif assignment is None or assignment.job.id != job_id:
                # One that never ran there is queued again at once.
                assert found.status == JobStatus.QUEUED.value
                assert counts or found.available_at == self.now
        first = None if is_stopping else self.whose_turn_it_is(assignment)
        assert (assignment.job.id if assignment is not None else None) == first
        if assignment is None:
            return None
        self.turns[assignment.table.id] = self.now
        assert assignment.job.id not in self.running
        assert [each.attempt for each in assignment.previous_attempts] == list(range(1, assignment.attempt))
        self.running[assignment.job.id] = (assignment.attempt, worker)
        assert assignment.leftovers == self.expected_leftovers(assignment)
        self.told[(assignment.job.id, assignment.attempt)] = assignment.leftovers
        return assignment.job.id, assignment.attempt

    def whose_turn_it_is(self, assignment: Assignment | None) -> str | None:
        """The job that had to be claimed, as things were just before."""
        with self.database.read() as session:
            jobs = session.exec(select(Job)).all()
            catalogs = {table.id: table.catalog_id for table in session.exec(select(EnrolledTable))}
            limits = {each.id: each.max_running_jobs for each in session.exec(select(Catalog))}
        taken = assignment.job.id if assignment is not None else None
        running = [each for each in jobs if each.status == JobStatus.RUNNING.value and each.id != taken]
        written = {each.table_uuid for each in running if each.writes}
        running_of = Counter(catalogs[each.table_id] for each in running)
        never = datetime.min.replace(tzinfo=UTC)
        turn_of = {
            catalog: max(
                (at for table, at in self.turns.items() if catalogs[table] == catalog), default=never
            )
            for catalog in limits
        }

        def is_claimable(each: Job) -> bool:
            limit = limits[catalogs[each.table_id]]
            return (
                (each.id == taken or each.status == JobStatus.QUEUED.value)
                and each.available_at <= self.now
                and not (each.writes and each.table_uuid in written)
                and (limit is None or running_of[catalogs[each.table_id]] < limit)
            )

        def rank(each: Job) -> tuple[int, int, datetime, datetime, datetime, str]:
            catalog = catalogs[each.table_id]
            turn = self.turns.get(each.table_id, never)
            return -each.priority, running_of[catalog], turn_of[catalog], turn, each.available_at, each.id

        first = min(filter(is_claimable, jobs), key=rank, default=None)
        return first.id if first is not None else None

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
                session.exec(update(Catalog).values(max_running_jobs=None))
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
