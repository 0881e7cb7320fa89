"""The queue on both databases, in any order of calls, against a simple model."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import update
from sqlmodel import Session, col, select

from service.auth.models import SYSTEM
from service.db.database import Database
from service.errors import ConflictError, InvalidError
from service.jobs import attempts, queue
from service.jobs.contract import (
    AddressRangeRequest,
    AnnouncedPlan,
    Assignment,
    AttemptId,
    EndedAttempt,
    ErrorReport,
    FinishRequest,
    HeartbeatRequest,
)
from service.jobs.leases import LeaseObserver
from service.jobs.service import retry_job
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import Attempt, AttemptStatus, Event, Job, JobKind, JobRows, JobStatus, LastClaim
from service.records.system import SystemState
from service.records.tables import EnrolledTable
from service.scheduling import clock
from tests.service.conftest import ManualTime, alike_on_both
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

# Each call alone is tried on both in tests/service/test_queue.py.
database_kind = alike_on_both

CALLS = ["heartbeat", "announce", "reserve", "finish"]
WIDER = ["catalog", "system"]
TROUBLES = ["pause", "jump", "set back", "limit", "restart", "restart"]
Move = tuple[str, dict[str, Any]]


def move(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Move]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


REPORTS = ["succeeded", "failed", "cancelled", "released"]
YES_OR_NO = st.booleans()
WORKER = {"number": st.integers(0, 2)}
CALLER = {**WORKER, "is_late": st.sampled_from([False, False, False, True])}
CLAIM = move("claim", **WORKER, has_waited=YES_OR_NO, gave_up=YES_OR_NO)
FINISH = move(
    "finish",
    **WORKER,
    is_late=YES_OR_NO,
    status=st.sampled_from([*REPORTS, "as before"]),
    error=st.sampled_from([RETRYABLE, FATAL]),
    clears=YES_OR_NO,
)
TICK = move("tick", seconds=st.sampled_from([1, 7]), times=st.sampled_from([1, 6]), heard=st.integers(0, 1))
MOVES = [  # as often as they are here
    *[CLAIM] * 4,
    *[FINISH] * 4,
    *[TICK] * 3,
    *[move("heartbeat", **CALLER)] * 2,
    move(
        "announce",
        **CALLER,
        plan_number=st.integers(0, 1),
        tasks=st.integers(1, 3),
        removes=st.sampled_from([None, "file:/e.parquet"]),
    ),
    *[move("reserve", **CALLER, rows=st.integers(1, 100), at_least=st.integers(0, 200))] * 2,
    *[move("leave", **WORKER, gave_up=YES_OR_NO)] * 2,
    *[
        move(
            "request",
            table=st.integers(0, 3),
            kind=st.sampled_from(JobKind),
            dry_run=YES_OR_NO,
            priority=st.integers(-1, 1),
        )
    ]
    * 2,
    *[move("retry", which=st.integers(0, 9))] * 3,
    move("cancel", which=st.integers(0, 9)),
    *[move("time_out", **CALLER)] * 2,
    *[move("halt", table=st.integers(0, 3), paused=YES_OR_NO)] * 2,
    *[move("halt_for_a_claim", table=st.integers(0, 3), what=st.sampled_from(WIDER))] * 2,
    *[
        move(
            "disturb",
            trouble=st.sampled_from(TROUBLES),
            seconds=st.integers(1, 7200),
            limit=st.sampled_from([None, 1, 2]),
        )
    ]
    * 3,
]
MOST_ROUNDS = 8
REACHED = {  # in each run
    *(f"claim: {what}" for what in ("a job", "nothing", "worker_cut_off", "claim_answer_lost")),
    "claim: it got a job by another call",
    *(f"leave: {what}" for what in ("nothing", "released", "worker_cut_off")),
    *(f"{number} at once" for number in (1, 2, 3)),
    *(f"{call}: {answer}" for call in CALLS for answer in ("current", "stale-attempt")),
    *(f"finish: {status}" for status in (*REPORTS, "again")),
    *(f"expire: {who}" for who in ("others run", "alone")),
    *(f"cancel: {status}" for status in ("queued", "running")),
    *(f"time_out: {answer}" for answer in ("queued", "had ended")),
    *(f"halt: {paused}" for paused in (True, False)),
    *(f"claim: a paused {what} is passed over" for what in ["table", *WIDER]),
    *(f"{trouble}: while jobs run" for trouble in TROUBLES),
    "claim: an erasure waits for a write that has begun",
    "retry",
    "retry: refused",
}


class QueueMachine(RuleBasedStateMachine):
    """Users, workers, lost leases, restarts and clocks in any order; the model knows each attempt's fate."""

    database: Database
    reached: ClassVar[Counter[str]] = Counter()
    """How often each case came, so that a run which hardly does anything is seen."""

    def __init__(self) -> None:
        super().__init__()
        with self.database.write() as session:
            for model in (Event, Attempt, Job, LastClaim, TableHealth, EnrolledTable, Catalog, SystemState):
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
        self.jobs: list[str] = []
        self.claimed: list[tuple[str, int]] = []
        self.granted: dict[str, list[tuple[int, int]]] = {}
        self.announced: dict[tuple[str, int], dict[int, AnnouncedPlan]] = {}
        """What each attempt may have left."""
        self.told: dict[tuple[str, int], list[EndedAttempt]] = {}

    def new_observer(self) -> LeaseObserver[attempts.RunningAttempt, int]:
        return LeaseObserver(SETTINGS.lease_seconds, self.time.clock.monotonic)

    @property
    def now(self) -> datetime:
        return self.time.wall

    @initialize(kinds=st.lists(st.sampled_from(JobKind), min_size=4, max_size=4))
    def start_jobs(self, kinds: list[JobKind]) -> None:
        """One of each table is queued, and each worker asks for one."""
        for table, kind in zip(self.tables, kinds, strict=True):
            self.jobs.append(request(self.database, table, kind, self.now))
        for worker in self.workers:
            self.ask(worker, gave_up=False)

    @rule(move=st.sampled_from(MOVES).flatmap(lambda moves: moves))
    def make(self, move: Move) -> None:
        """One rule: of several, Hypothesis takes some so much more often that hardly any job is claimed."""
        name, arguments = move
        getattr(self, name)(**arguments)

    def request(self, table: int, kind: JobKind, dry_run: bool, priority: int) -> None:
        asked = request(self.database, self.tables[table], kind, self.now, dry_run=dry_run, priority=priority)
        self.jobs.append(asked)

    def retry(self, which: int) -> None:
        job_id = self.jobs[which % len(self.jobs)]
        try:
            with self.database.write() as session:
                again = retry_job(session, SYSTEM, job_id).id
        except (ConflictError, InvalidError):
            found = job(self.database, job_id)
            with self.database.read() as session:
                table = session.get_one(EnrolledTable, found.table_id)
                paused = self.halted(session) & {table.id, table.catalog_id, "system"}
            is_of_a_list = found.kind == JobKind.REMOVE_ORPHAN_FILES  # of a dry run, which here is none
            is_retryable = JobStatus(found.status).is_retryable and may_be_repeated(found)
            assert paused or is_of_a_list or not is_retryable
            self.reached["retry: refused"] += 1
            return
        self.reached["retry"] += 1
        assert again != job_id
        self.jobs.append(again)

    def claim(self, number: int, has_waited: bool, gave_up: bool) -> None:
        self.ask(self.workers[number], gave_up, has_waited=has_waited)

    def leave(self, number: int, gave_up: bool) -> None:
        self.ask(self.workers[number], gave_up, is_stopping=True)

    def attempt_of(self, number: int, is_late: bool) -> tuple[str, int] | None:
        """What a worker runs, or the last attempt that ended."""
        running = {(job_id, attempt): runner for job_id, (attempt, runner) in self.running.items()}
        if is_late:
            return next((one for one in reversed(self.claimed) if one not in running), None)
        return next((one for one, runner in running.items() if runner == self.workers[number]), None)

    def ask(self, worker: str, gave_up: bool, *, has_waited: bool = False, is_stopping: bool = False) -> None:
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
        call = "leave" if is_stopping else "claim"
        if mine and has_waited:
            assert assignment is None
            self.reached["claim: it got a job by another call"] += 1
            return
        for job_id, attempt in mine.items():
            del self.running[job_id]
            found, is_handed_back = job(self.database, job_id), is_stopping and not gave_up
            with self.database.read() as session:
                left = session.get_one(Attempt, (job_id, attempt))
            ended = left.status
            self.reached[f"{call}: {(left.error or {}).get('code', ended)}"] += 1
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
        self.resume_all_but_tables()
        assert (assignment.job.id if assignment is not None else None) == first
        self.reached[f"{call}: {'nothing' if assignment is None else 'a job'}"] += 1
        if assignment is None:
            return
        self.turns[assignment.table.id] = self.now
        assert assignment.job.id not in self.running
        assert [each.attempt for each in assignment.previous_attempts] == list(range(1, assignment.attempt))
        self.running[assignment.job.id] = (assignment.attempt, worker)
        assert assignment.ended_attempts == self.expected_ended_attempts(assignment)
        self.claimed.append((assignment.job.id, assignment.attempt))
        self.told[self.claimed[-1]] = assignment.ended_attempts
        self.reached[f"{len(self.running)} at once"] += 1

    def whose_turn_it_is(self, assignment: Assignment | None) -> str | None:
        """The job that had to be claimed, as things were just before."""
        with self.database.read() as session:
            jobs = session.exec(select(Job)).all()
            tables = session.exec(select(EnrolledTable)).all()
            catalogs = {table.id: table.catalog_id for table in tables}
            halted = self.halted(session)
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

        expiring = ("erase", "expire_snapshots")
        begun = {
            each.id: each
            for each in jobs
            if (each.status == JobStatus.QUEUED.value or each.id == taken)
            and each.attempt - (each.id == taken) > 0
            and each.writes
            and each.kind in ("upsert", "delete", "publish", *expiring)
        }

        def goes_later(each: Job) -> bool:
            """Whether what lets snapshots expire waits for what has begun and goes by them."""
            before = [
                one
                for one in begun.values()
                if one.id != each.id and one.table_uuid == each.table_uuid
                if each.id not in begun or one.kind not in expiring
            ]
            return each.kind in expiring and bool(before)

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

        def starts(each: Job) -> bool:
            places = {"system": "system", "catalog": catalogs[each.table_id]}
            # The index of a table that goes is dropped all the same.
            if each.kind != JobKind.DROP_INDEX.value:
                places["table"] = each.table_id
            paused = [what for what, place in places.items() if place in halted]
            self.reached.update(f"claim: a paused {what} is passed over" for what in paused)
            if not paused and goes_later(each):
                self.reached["claim: an erasure waits for a write that has begun"] += 1
                return False
            return not paused

        claimable = [each for each in jobs if is_claimable(each) and starts(each)]
        first = min(claimable, key=rank, default=None)
        return first.id if first is not None else None

    def halted(self, session: Session) -> set[str]:
        """Ids of what is paused; "system" is all."""
        tables = session.exec(select(EnrolledTable.id).where(col(EnrolledTable.paused)))
        catalogs = session.exec(select(Catalog.id).where(col(Catalog.paused)))
        return {*tables, *catalogs, *(["system"] if queue.is_system_paused(session) else [])}

    def is_unheard_again(self, job_id: str, attempt: int) -> bool:
        """Whether the three attempts before this one were not heard of by their workers either."""
        with self.database.read() as session:
            before = queue.attempts_of(session, job_id)[: attempt - 1][-3:]
        return [(one.error or {}).get("code") for one in before] == ["claim_answer_lost"] * 3

    def expected_ended_attempts(self, assignment: Assignment) -> list[EndedAttempt]:
        clearing = (
            "convert",
            "compact",
            "upsert",
            "delete",
            "expire_snapshots",
            "rewrite_data_files",
            "rewrite_position_delete_files",
            "erase",
        )
        if assignment.job.kind not in clearing or assignment.job.dry_run:
            return []
        return [
            EndedAttempt(job_id=job_id, attempt=attempt, plans=list(plans.values()))
            for (job_id, attempt), plans in sorted(self.announced.items())
            if job(self.database, job_id).table_uuid == assignment.table.table_uuid
            and self.running.get(job_id, (0, ""))[0] != attempt
        ]

    def announce(self, number: int, is_late: bool, plan_number: int, tasks: int, removes: str | None) -> None:
        claimed = self.attempt_of(number, is_late)
        if claimed is None:
            return
        job_id, attempt = claimed
        plan = AnnouncedPlan(number=plan_number, tasks=tasks, removes=removes, location="file:/t")

        def call(session: Session) -> None:
            attempts.heartbeat(
                session, SETTINGS, SYSTEM, job_id, attempt, HeartbeatRequest(plan=plan), self.now
            )

        if self.accepts("announce", job_id, attempt, call):
            self.heartbeats[job_id] = self.heartbeats.get(job_id, 0) + 1
            plans = self.announced.setdefault(claimed, {})
            known = plans.pop(plan_number, plan)
            merged = {"tasks": max(tasks, known.tasks), "removes": removes or known.removes}
            plans[plan_number] = plan.model_copy(update=merged)

    def heartbeat(self, number: int, is_late: bool) -> None:
        claimed = self.attempt_of(number, is_late)
        if claimed is not None:
            self.beat(*claimed)

    def beat(self, job_id: str, attempt: int) -> None:
        def call(session: Session) -> None:
            attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, attempt, HeartbeatRequest(), self.now)

        if self.accepts("heartbeat", job_id, attempt, call):
            self.heartbeats[job_id] = self.heartbeats.get(job_id, 0) + 1

    def reserve(self, number: int, is_late: bool, rows: int, at_least: int) -> None:
        claimed = self.attempt_of(number, is_late)
        if claimed is None:
            return
        job_id, attempt = claimed
        ranges = self.granted.setdefault(job(self.database, job_id).table_uuid, [])

        asked, by_heartbeat = AddressRangeRequest(rows=rows, at_least=at_least), rows % 2 == 0

        def call(session: Session) -> None:
            if by_heartbeat:
                beat = HeartbeatRequest(addresses=asked)
                answer = attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, attempt, beat, self.now)
                granted = answer.addresses
                assert granted is not None
            else:
                granted = attempts.reserve_addresses(session, SYSTEM, job_id, attempt, asked)
            begin, end = granted.base_address, granted.base_address + rows
            assert begin >= at_least
            assert all(begin >= other_end or end <= other_begin for other_begin, other_end in ranges)
            ranges.append((begin, end))

        if self.accepts("reserve", job_id, attempt, call) and by_heartbeat:
            self.heartbeats[job_id] = self.heartbeats.get(job_id, 0) + 1

    def finish(self, number: int, is_late: bool, status: str, error: ErrorReport, clears: bool) -> None:
        claimed = self.attempt_of(number, is_late)
        if claimed is None:
            return
        job_id, attempt = claimed
        with self.database.read() as session:
            ended = session.get_one(Attempt, claimed)
        if status == "as before":
            status = ended.status if ended.status in REPORTS else "succeeded"
        before = job(self.database, job_id)
        if before.attempt == attempt and ended.status == status:
            # The same report again changes nothing.
            finish(self.database, job_id, attempt, status, self.now)
            assert job(self.database, job_id).model_dump() == before.model_dump()
            self.reached["finish: again"] += 1
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
            attempts.finish(session, SYSTEM, job_id, attempt, report, self.now)

        if self.accepts("finish", job_id, attempt, call):
            self.reached[f"finish: {status}"] += 1
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

    def accepts(self, name: str, job_id: str, attempt: int, call: Callable[[Session], None]) -> bool:
        """Make a call in the name of an attempt; exactly the running one must be let through."""
        slug = None
        try:
            with self.database.write() as session:
                call(session)
        except ConflictError as error:
            slug = error.slug
        is_current = self.running.get(job_id, (0, ""))[0] == attempt
        assert slug == (None if is_current else "stale-attempt")
        self.reached[f"{name}: {slug or 'current'}"] += 1
        return is_current

    def cancel(self, which: int) -> None:
        known = [*self.running, *self.jobs]
        job_id = known[which % len(known)]
        with self.database.write() as session:
            found = session.get_one(Job, job_id)
            self.reached[f"cancel: {found.status}"] += 1
            queue.cancel(session, found, "test", self.now)

    def time_out(self, number: int, is_late: bool) -> None:
        """The service takes an attempt that took too long away, whatever its worker says."""
        claimed = self.attempt_of(number, is_late)
        if claimed is None:
            return
        job_id, attempt = claimed
        before = job(self.database, job_id)
        with self.database.write() as session:
            ended = attempts.time_out(session, claimed, self.now)
        after = job(self.database, job_id)
        if self.running.get(job_id, (0, ""))[0] != attempt:
            assert (ended, after.model_dump()) == (False, before.model_dump())
            self.reached["time_out: had ended"] += 1
            return
        del self.running[job_id]
        with self.database.read() as session:
            taken = session.get_one(Attempt, claimed)
        assert (ended, taken.status, (taken.error or {})["code"]) == (True, "failed", "timed_out")
        assert after.failures == before.failures + 1
        expected = "failed" if after.failures >= after.max_attempts else "queued"
        assert after.status == ("cancelled" if before.cancel_requested_at is not None else expected)
        self.reached[f"time_out: {after.status}"] += 1

    def halt(self, table: int, paused: bool) -> None:
        """Somebody pauses a table, or lets its jobs start again."""
        self.reached[f"halt: {paused}"] += 1
        with self.database.write() as session:
            session.get_one(EnrolledTable, self.tables[table]).paused = paused

    def halt_for_a_claim(self, table: int, what: str) -> None:
        """Somebody pauses a table's catalog or everything, until the next call of a worker for a job."""
        with self.database.write() as session:
            if what == "catalog":
                catalog_id = session.get_one(EnrolledTable, self.tables[table]).catalog_id
                session.get_one(Catalog, catalog_id).paused = True
            else:
                session.merge(SystemState(paused=True))

    def resume_all_but_tables(self) -> None:
        with self.database.write() as session:
            session.exec(update(Catalog).values(paused=False))
            session.exec(update(SystemState).values(paused=False))

    def disturb(self, trouble: str, seconds: int, limit: int | None) -> None:
        self.reached[f"{trouble}: {'while jobs run' if self.running else 'idle'}"] += 1
        match trouble:
            case "pause":
                self.time.pass_by(seconds % 40)
            case "jump":
                self.time.jump(seconds - 3600)
            case "set back":
                self.notice_that_the_clock_was_set_back(seconds)
            case "limit":
                self.limit_a_catalog(limit)
            case "restart":
                self.observer, self.seen = self.new_observer(), {}

    def limit_a_catalog(self, limit: int | None) -> None:
        with self.database.write() as session:
            session.exec(update(Catalog).where(col(Catalog.name) == "local").values(max_running_jobs=limit))

    def notice_that_the_clock_was_set_back(self, seconds: int) -> None:
        self.time.jump(-seconds)
        with self.database.write() as session:
            before = {each.id: each.available_at for each in session.exec(select(Job))}
            moved = clock.follow_clock(session, timedelta(seconds=seconds), self.now)
            for each in moved:
                assert self.now <= each.available_at < before[each.id]
        with self.database.read() as session:
            for each in session.exec(select(Job).where(Job.status == JobStatus.QUEUED.value)):
                longest = timedelta(seconds=each.max_backoff_seconds)
                assert each.available_at <= self.now + longest + clock.CLOCK_TOLERANCE

    def tick(self, seconds: int, times: int, heard: int) -> None:
        """heard: how many of the running attempts send heartbeats meanwhile."""
        for number in range(times):
            self.time.pass_by(seconds)
            for job_id, (attempt, _) in list(self.running.items())[: 0 if number % 3 else heard]:
                self.beat(job_id, attempt)
            self.check_lost(self.give_up(), seconds)

    def give_up(self) -> set[str]:
        """As the service does with each tick; the ids of the jobs whose attempts were lost."""
        with self.database.read() as session:
            expired = self.observer.look(attempts.leases(session))
        lost = set()
        for attempt, renewals in expired.items():
            with self.database.write() as session:
                if attempts.give_up(session, attempt, renewals, self.now):
                    lost.add(attempt[0])
        return lost

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
            self.reached[f"expire: {'others run' if self.running else 'alone'}"] += 1

    def teardown(self) -> None:
        """Whatever happened: when time passes and a worker works, every job ends."""
        self.resume_all_but_tables()
        for _ in range(200):
            with self.database.read() as session:
                left = [each for each in session.exec(select(Job)) if not JobStatus(each.status).is_final]
            if not left:
                return
            with self.database.write() as session:
                clock.follow_clock(session, timedelta(), self.now)
                session.exec(update(Catalog).values(max_running_jobs=None))
                session.exec(update(EnrolledTable).values(paused=False))
            assignment = claim(self.database, self.workers[0], self.now)
            if assignment is None:
                self.tick_quietly()
            else:
                finish(self.database, assignment.job.id, assignment.attempt, "succeeded", self.now)
        raise AssertionError(f"jobs that never end: {left}")

    def tick_quietly(self) -> None:
        self.time.pass_by(60)
        self.give_up()

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
        kinds = [
            (each.table_id, each.kind, each.dry_run) for each in waiting if not JobKind(each.kind).writes_rows
        ]
        assert len(kinds) == len(set(kinds))

    @invariant()
    def rows_are_kept_until_their_job_has_ended(self) -> None:
        with self.database.read() as session:
            kept = set(session.exec(select(JobRows.job_id)))
            jobs = session.exec(select(Job)).all()
        writes = [each for each in jobs if JobKind(each.kind).writes_rows]
        assert kept == {each.id for each in writes if not JobStatus(each.status).is_final}


def test_any_order_of_calls_keeps_the_queue_consistent(database: Database) -> None:
    class Machine(QueueMachine):
        pass

    Machine.database, Machine.reached = database, Counter()
    # A few orders at a time until all cases came: which ones a seed draws depends on what is imported, too.
    for number in range(MOST_ROUNDS):
        run_state_machine_as_test(
            seed(number)(Machine),
            settings=settings(
                max_examples=5,
                stateful_step_count=32,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if Machine.reached.keys() >= REACHED:
            return
    pytest.fail(f"not reached: {REACHED - Machine.reached.keys()}, reached: {Machine.reached}")
