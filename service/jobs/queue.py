"""The queue: add, claim, heartbeat, reserve addresses, finish, and give up on lost attempts.

Invariant: the attempt number is the fencing token. Whatever an attempt reports holds only while it is the
running attempt of its job; a later one gets StaleAttempt and changes nothing. That at most one running job
writes a table is enforced by the unique index `uq_jobs_running_writer`, not here.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVarTuple

from sqlalchemy import CTE, bindparam, exists, func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased
from sqlmodel import Session, and_, col, or_, select
from sqlmodel.sql.expression import Select

from service.catalogs.models import Catalog
from service.catalogs.service import index_warehouse
from service.database import UtcDateTime
from service.errors import ConflictError, NotFoundError
from service.index_health.reports import apply_report, seen_equality_field_ids
from service.jobs.budgets import spent_budget
from service.jobs.events import record_job_event
from service.jobs.models import REQUEST, SCHEDULER, Assignment, Attempt, AttemptView, Job, SystemState, Turn
from service.jobs.status import (
    AttemptStatus,
    JobKind,
    JobStatus,
    backoff_seconds,
    check_transition,
    status_after,
)
from service.policies.models import EffectivePolicy
from service.policies.service import bounded, effective_policy
from service.settings import Settings
from service.tables.models import AddressCounter, EnrolledTable
from service.workers.models import (
    AddressRange,
    AddressRangeRequest,
    AnnouncedPlan,
    AssignedCatalog,
    AssignedIndex,
    AssignedJob,
    AssignedTable,
    AttemptId,
    ErrorReport,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    Leftovers,
    Worker,
)
from telemetry.traces import begin_trace, current_traceparent, record_span

_ACTIVE = (JobStatus.QUEUED.value, JobStatus.RUNNING.value)
_CLEARING = (JobKind.CONVERT.value, JobKind.COMPACT.value)
_INDEXING = (JobKind.INDEX.value, JobKind.REBUILD.value)
_WORKER_LOST = ErrorReport(
    code="worker_lost",
    title="The worker was lost",
    detail="It sent no heartbeat until its lease ran out.",
    remedy="Nothing to do if a further attempt follows; if not, the worker's log may tell of a crash.",
    retryable=True,
)
_TIMED_OUT = ErrorReport(
    code="timed_out",
    title="The attempt took longer than its policy allows",
    detail="It went on beyond `retries.timeout_seconds`, so it was taken from its worker.",
    remedy="If such jobs need more time, raise it. If not, the worker hangs: look at its log, and start it"
    " again.",
    retryable=True,
)
_CLAIM_ANSWER_LOST = ErrorReport(
    code="claim_answer_lost",
    title="The worker never got this attempt",
    detail="The worker asked for work again, so it does not run this attempt.",
    remedy="Nothing to do: the job is queued again, and no attempt is used up.",
    retryable=True,
)
_CUT_OFF = ErrorReport(
    code="worker_cut_off",
    title="The worker could not report this attempt",
    detail="It ran the attempt, and gave it up since the service could not be reached.",
    remedy="Nothing to do if a further attempt follows; if it happens often, look at the network between"
    " worker and service.",
    retryable=True,
)
_LONGEST_PERSISTENT_PAUSE_SECONDS = 3600.0
CLOCK_TOLERANCE = timedelta(seconds=3)
"""So much a clock may be off, or a transaction late, without being said to have been set back."""
_LEFTOVERS_AT_ONCE = 100
_TRIED_AT_ONCE = 20
"""Jobs that a claim looks at, if others get them first or they must wait."""
_WRITES_END_WITHIN = timedelta(minutes=5)
_UNHEARD_AT_MOST = 3
"""So many attempts in a row that no worker got are no accident: further ones count."""
Columns = TypeVarTuple("Columns")
RunningAttempt = tuple[str, int]
"""Job id and number of the attempt."""


def enqueue(
    session: Session,
    table: EnrolledTable,
    kind: JobKind,
    policy: EffectivePolicy,
    now: datetime,
    *,
    dry_run: bool = False,
    parameters: dict[str, Any] | None = None,
    trigger: str = REQUEST,
    requested_by: str,
    retry_of: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
) -> tuple[Job, bool]:
    """Add a job, or find the one of its kind that is queued already; True if it was added.

    Raises ConflictError if that one has other parameters.
    """
    job = Job(
        table_id=table.id,
        table_uuid=table.table_uuid,
        kind=kind.value,
        dry_run=dry_run,
        writes=kind.writes(dry_run=dry_run),
        parameters=parameters or {},
        trigger=trigger,
        requested_by=requested_by,
        created_at=now,
        available_at=max(run_at or now, now),
        run_at=run_at,
        priority=policy.schedule.priority if priority is None else priority,
        max_attempts=policy.retries.max_attempts,
        backoff_seconds=policy.retries.backoff_seconds,
        max_backoff_seconds=max(
            policy.retries.max_backoff_seconds, _LONGEST_PERSISTENT_PAUSE_SECONDS if kind.persists else 0.0
        ),
        timeout_seconds=policy.retries.timeout_seconds,
        retry_of=retry_of,
        traceparent=current_traceparent(),
        policy_digest=policy.digest,
    )
    queued = _find_queued(session, job)
    if queued is None:
        try:
            with session.begin_nested():
                session.add(job)
        except IntegrityError:
            # Another replica added the same between our look and our insert.
            queued = _find_queued(session, job)
            if queued is None:
                raise
    if queued is not None:
        if queued.parameters != job.parameters:
            raise ConflictError(
                "job-already-queued",
                "Such a job is queued already, with other parameters",
                f"Job {queued.id} ({queued.kind}) waits with parameters {queued.parameters}.",
                "Wait for it, or cancel it first.",
                job_id=queued.id,
            )
        _bring_forward(session, queued, job, now)
        return queued, False
    if job.traceparent is None:
        job.traceparent = begin_trace("schedule")
    why = f"requested by {requested_by}." if trigger == REQUEST else trigger
    record_job_event(session, job, "job.queued", f"Queued: {why}", now, trigger=trigger)
    return job, True


def _bring_forward(session: Session, queued: Job, asked: Job, now: datetime) -> None:
    """Let a queued job start as early, and as much before others, as a further request for it asks."""
    is_held = queued.held_because is not None and asked.trigger == REQUEST
    is_earlier = (queued.attempt == 0 or is_held) and asked.available_at < queued.available_at
    if is_earlier:
        queued.available_at, queued.run_at = asked.available_at, asked.run_at
    if is_held:
        queued.trigger, queued.requested_by, queued.held_because = REQUEST, asked.requested_by, None
    if is_earlier or asked.priority > queued.priority:
        queued.priority = max(asked.priority, queued.priority)
        session.add(queued)
        begin = _rfc3339(queued.available_at)
        sentence = f"Asked for again: it may start from {begin} on, with priority {queued.priority}."
        record_job_event(session, queued, "job.queued", sentence, now)


def has_claimable(session: Session, now: datetime) -> bool:
    """Whether a claim would find anything; cheap, and takes no write lock."""
    return session.exec(_claimable_jobs().limit(1), params={"now": now}).first() is not None


def count_workers_needed(session: Session, now: datetime) -> int:
    """How many workers would have something to do: one for each job that runs, or that a claim could get.

    Of the jobs that exclude each other, one counts.
    """
    claimable = _claimable_jobs().subquery()
    writers = select(func.count(claimable.c.table_uuid.distinct())).where(claimable.c.writes)
    others = select(func.count()).select_from(claimable).where(~claimable.c.writes)
    running = select(func.count()).where(Job.status == JobStatus.RUNNING.value)
    return sum(session.exec(query, params={"now": now}).one() for query in (writers, others, running))


def claim(
    session: Session,
    settings: Settings,
    worker_id: str,
    now: datetime,
    *,
    given_up: Collection[AttemptId] = (),
    has_waited: bool = False,
    is_stopping: bool = False,
) -> Assignment | None:
    """Give a job of the highest priority to a worker, or None. Raises NotFoundError for an unknown worker.

    Of equal priority, the catalog with the fewest running jobs goes first, then the one whose last turn is
    longest ago, then likewise the table, then the job that waits longest. So nobody's many jobs hold up
    anybody's one. A job that a policy started waits if the policy's budget is spent.

    A worker runs one job at a time, so an attempt that it has when it asks is one that it does not run: it
    has `given_up` that one, or never heard of it. If it `has_waited` since it asked, it got that attempt by
    another call and needs no job from this one. If it `is_stopping`, it gets none, and hands that one back.
    """
    worker = get_worker(session, worker_id)
    not_run = running_attempts(session, worker_id)
    if has_waited and not_run:
        return None
    # Before the worker's own row is locked: a heartbeat locks them in this order, too.
    for job_id, attempt in not_run:
        lost = _lock_job(session, job_id)
        if _is_current(lost, attempt):
            running = session.get_one(Attempt, (job_id, attempt))
            has_run = AttemptId(job_id=job_id, attempt=attempt) in given_up
            if is_stopping and not has_run:
                _end_attempt(session, lost, running, AttemptStatus.RELEASED, None, now)
            else:
                cause = _CUT_OFF if has_run else _CLAIM_ANSWER_LOST
                _end_attempt(session, lost, running, AttemptStatus.LOST, cause, now)
    for attempt_id in given_up:
        _drop_again(session, attempt_id.job_id, now)
    worker.last_seen_at = now
    session.add(worker)
    session.flush()
    if is_stopping:
        return None
    # Losing the race for one table leaves jobs of other tables to try.
    for _ in range(_TRIED_AT_ONCE):
        found = session.exec(_next_job(), params={"now": now}).first()
        if found is None:
            return None
        job, table, catalog, turn = found
        if job.kind == JobKind.DROP_INDEX.value and _is_index_used(session, job, table):
            cancel(session, job, "the table was enrolled again", now)
            continue
        if not _has_room(session, catalog) or _hold(session, job, table, now):
            continue
        try:
            with session.begin_nested():
                return _start_attempt(session, settings, job, table, catalog, turn, worker, now)
        except IntegrityError:
            session.refresh(job)
    return None


def _drop_again(session: Session, job_id: str, now: datetime) -> None:
    """Drop an index once more if a worker that gave a job of it up may have written to its place since.

    It slept while another worker dropped the index, wrote on when it woke, and only then learned that its
    attempt was over. Nothing is done if the branch was enrolled again: compaction cleans up there.
    """
    late = session.get(Job, job_id)
    if late is None or not late.writes:
        return
    again = aliased(EnrolledTable)
    table = session.exec(
        select(EnrolledTable)
        .join(Job, col(Job.table_id) == col(EnrolledTable.id))
        .where(
            Job.kind == JobKind.DROP_INDEX.value,
            col(Job.status).in_((JobStatus.RUNNING.value, JobStatus.SUCCEEDED.value)),
            Job.table_uuid == late.table_uuid,
            Job.created_at >= late.created_at,
            EnrolledTable.branch == session.get_one(EnrolledTable, late.table_id).branch,
            ~exists().where(
                col(again.table_uuid) == col(Job.table_uuid),
                col(again.branch) == col(EnrolledTable.branch),
                col(again.id) != col(EnrolledTable.id),
                col(again.created_at) > col(Job.created_at),
            ),
        )
        .limit(1)
    ).first()
    if table is not None:
        policy = effective_policy(session, table)
        why = f"job {job_id} was given up after the index was dropped, and may have written to it since"
        enqueue(session, table, JobKind.DROP_INDEX, policy, now, trigger=why, requested_by=SCHEDULER)


def _is_index_used(session: Session, job: Job, table: EnrolledTable) -> bool:
    """Whether the index that a job is to delete belongs to an enrolled table, however it came to that."""
    query = select(EnrolledTable.id).where(
        EnrolledTable.table_uuid == job.table_uuid,
        EnrolledTable.branch == table.branch,
        col(EnrolledTable.deleted_at).is_(None),
    )
    return session.exec(query).first() is not None


def _has_room(session: Session, catalog: Catalog) -> bool:
    """Whether one more job of a catalog may run; nobody else is told so until this transaction ends."""
    limit = catalog.max_running_jobs
    if limit is None or session.get_bind().dialect.name == "sqlite":
        return True
    session.execute(select(func.pg_advisory_xact_lock(func.hashtext(catalog.id))))
    return running_by_catalog(session).get(catalog.id, 0) < limit


def running_by_catalog(session: Session) -> dict[str, int]:
    """Numbers of running jobs by ids of catalogs; those without one are absent."""
    query = (
        select(EnrolledTable.catalog_id, func.count())
        .join(Job, col(Job.table_id) == col(EnrolledTable.id))
        .where(Job.status == JobStatus.RUNNING.value)
        .group_by(EnrolledTable.catalog_id)
    )
    return dict(session.exec(query).all())


def _hold(session: Session, job: Job, table: EnrolledTable, now: datetime) -> bool:
    """Let a job that a policy started wait until its budget is refilled, if it is spent."""
    if job.trigger == REQUEST:
        return False
    spent = spent_budget(session, table, effective_policy(session, table), now)
    if spent is None:
        return False
    job.available_at, job.held_because = spent.until, spent.reason
    session.add(job)
    sentence = f"Held: {spent.reason}. Requesting one runs it at once."
    record_job_event(session, job, "job.held", sentence, now, available_at=_rfc3339(spent.until))
    session.flush()
    return True


def release_held(session: Session, table_id: str, now: datetime) -> None:
    """Let the held jobs of a table go, since its budget is no longer spent."""
    query = select(Job).where(
        Job.table_id == table_id, Job.status == JobStatus.QUEUED.value, col(Job.held_because).is_not(None)
    )
    for job in session.exec(query.with_for_update(skip_locked=True)):
        job.available_at, job.held_because = min(job.available_at, now), None
        session.add(job)
        record_job_event(session, job, "job.queued", "No longer held: the budget allows it.", now)


def heartbeat(
    session: Session, settings: Settings, job_id: str, attempt: int, report: HeartbeatRequest, now: datetime
) -> HeartbeatAnswer:
    """Extend the lease and note progress. Raises ConflictError `stale-attempt`.

    A lease that ran out but was not given to anybody else yet is extended too: live work is not killed.
    """
    job, running = _fenced(session, job_id, attempt)
    expires_at = now + timedelta(seconds=settings.lease_seconds)
    job.lease_expires_at = running.lease_expires_at = expires_at
    job.renewals += 1
    worker = session.get_one(Worker, running.worker_id)
    worker.last_seen_at = now
    if report.progress is not None:
        progress = report.progress.model_dump()
        before = {key: value for key, value in (job.progress or {}).items() if key != "updated_at"}
        job.progress = {**progress, "updated_at": _rfc3339(now)}
        if progress != before:
            record_job_event(
                session, job, "job.progress", _progress_sentence(progress), now, progress=job.progress
            )
    if report.plan is not None:
        running.plans = _with(running.plans or [], report.plan)
    for event in report.events:
        record_job_event(
            session, job, f"job.{event.kind}", event.message, now, level=event.level, reported=event.fields
        )
    session.add_all((job, running, worker))
    return HeartbeatAnswer(
        now=now, lease_expires_at=expires_at, cancel_requested=job.cancel_requested_at is not None
    )


def reserve_addresses(
    session: Session, job_id: str, attempt: int, request: AddressRangeRequest
) -> AddressRange:
    """Reserve [base, base + rows) for an attempt, at or above `at_least`; no address is granted twice."""
    job, _ = _fenced(session, job_id, attempt)
    # The running job is locked, and only one running job writes a table, so nobody else is at this counter;
    # the row lock below holds even if two tables share a UUID by being registered twice.
    counter = session.exec(
        select(AddressCounter).where(AddressCounter.table_uuid == job.table_uuid).with_for_update()
    ).first() or AddressCounter(table_uuid=job.table_uuid)
    base = max(counter.next_address, request.at_least)
    counter.next_address = base + request.rows
    session.add(counter)
    return AddressRange(base_address=base)


def finish(session: Session, job_id: str, attempt: int, report: FinishRequest, now: datetime) -> Job:
    """End an attempt as its worker says. Repeating the same report is harmless.

    Raises ConflictError `stale-attempt` when the attempt is no longer the running one.
    """
    outcome = AttemptStatus(report.status)
    job = _lock_job(session, job_id)
    ended = session.get(Attempt, (job_id, attempt))
    if ended is not None and job.attempt == attempt and ended.status == outcome.value:
        # The answer to the first report got lost.
        return job
    running = _check_current(session, job, attempt)
    if report.health is not None:
        job.seen_snapshot_id = report.health.iceberg_snapshot_id
        is_done = outcome is AttemptStatus.SUCCEEDED and not job.dry_run
        apply_report(
            session,
            job,
            report.health,
            now,
            has_indexed=is_done and job.kind in _INDEXING,
            has_verified=is_done and job.kind == JobKind.VERIFY.value,
        )
    job.result = report.result
    for one in report.cleared:
        cleared = session.get(Attempt, (one.job_id, one.attempt))
        if cleared is None or session.get_one(Job, one.job_id).table_uuid != job.table_uuid:
            continue
        # Until then, a task of its may still have written: the next job looks once more.
        if cleared.ended_at is not None and now - cleared.ended_at > _WRITES_END_WITHIN:
            cleared.plans = None
            session.add(cleared)
    if outcome is AttemptStatus.SUCCEEDED:
        running.plans = None
    running.stages = [stage.model_dump() for stage in report.stages]
    running.rows, running.bytes = report.rows, report.bytes
    _end_attempt(session, job, running, outcome, report.error, now)
    return job


def leases(session: Session) -> dict[RunningAttempt, int]:
    """How often the lease of each running attempt was renewed, for a LeaseObserver."""
    query = select(Job.id, Job.attempt, Job.renewals).where(Job.status == JobStatus.RUNNING.value)
    return {(job_id, attempt): renewals for job_id, attempt, renewals in session.exec(query)}


def give_up(session: Session, expired: Mapping[RunningAttempt, int], now: datetime) -> list[Job]:
    """End attempts whose lease ran out as lost, and queue their jobs again while attempts remain.

    One that was renewed since it was seen, or is just being renewed, goes on.
    """
    lost = []
    for (job_id, attempt), renewals in expired.items():
        query = select(Job).where(
            Job.id == job_id,
            Job.attempt == attempt,
            Job.renewals == renewals,
            Job.status == JobStatus.RUNNING.value,
        )
        job = session.exec(query.with_for_update(skip_locked=True)).first()
        if job is not None:
            running = session.get_one(Attempt, (job_id, attempt))
            _end_attempt(session, job, running, AttemptStatus.LOST, _WORKER_LOST, now)
            lost.append(job)
    return lost


def timeouts(session: Session) -> dict[RunningAttempt, float]:
    """How many seconds each running attempt may take, of those that may not take any time."""
    query = select(Job.id, Job.attempt, Job.timeout_seconds).where(
        Job.status == JobStatus.RUNNING.value, Job.timeout_seconds > 0
    )
    return {(job_id, attempt): seconds for job_id, attempt, seconds in session.exec(query)}


def time_out(session: Session, overdue: Collection[RunningAttempt], now: datetime) -> list[Job]:
    """End those of these attempts that still run as failed, whatever their workers say."""
    ended = []
    for job_id, attempt in overdue:
        job = _lock_job(session, job_id)
        if _is_current(job, attempt):
            running = session.get_one(Attempt, (job_id, attempt))
            _end_attempt(session, job, running, AttemptStatus.FAILED, _TIMED_OUT, now)
            ended.append(job)
    return ended


def follow_clock(session: Session, set_back: timedelta, now: datetime) -> list[Job]:
    """Let no queued job wait for a time that a clock which was set back reaches too late.

    No pause is longer than the longest of its job, which tells of a clock that was set back unseen.
    """
    query = select(Job).where(
        Job.status == JobStatus.QUEUED.value,
        col(Job.available_at) > now,
        # A user's time is one of the clock.
        or_(Job.attempt > 0, col(Job.run_at).is_(None)),
    )
    moved = []
    for job in session.exec(query.with_for_update(skip_locked=True)):
        longest = timedelta(seconds=job.max_backoff_seconds)
        available_at = max(min(job.available_at - set_back, now + longest), now)
        if job.available_at - available_at <= CLOCK_TOLERANCE:
            continue
        earlier = (job.available_at - available_at).total_seconds()
        job.available_at = available_at
        session.add(job)
        record_job_event(
            session,
            job,
            "job.clock",
            f"The clock of the service was set back: the job may start {earlier:.0f} s earlier by it.",
            now,
            level="warning",
            available_at=_rfc3339(available_at),
        )
        moved.append(job)
    return moved


def correct_times(session: Session, table: EnrolledTable, now: datetime) -> None:
    """Let nothing of a table have happened at a time that is still to come, after the clock was set back.

    Times between that are kept: the latest becomes `now`. Otherwise no age or pause would pass until then.
    """
    if table.created_at - now > CLOCK_TOLERANCE:
        table.created_at = now
        session.add(table)
    jobs = session.exec(
        select(Job).where(Job.table_id == table.id, col(Job.ended_at) > now + CLOCK_TOLERANCE)
    ).all()
    ends = {job.id: job.ended_at for job in jobs if job.ended_at is not None}
    if not ends:
        return
    ahead = max(ends.values()) - now
    for job in jobs:
        job.ended_at = ends[job.id] - ahead
        job.started_at = min(job.started_at or job.ended_at, job.ended_at)
        sentence = f"It ended {ahead.total_seconds():.0f} s earlier: the clock of the service was ahead."
        record_job_event(session, job, "job.clock", sentence, now, level="warning")
    attempts = select(Attempt).where(col(Attempt.job_id).in_(list(ends)), col(Attempt.ended_at) > now)
    for attempt in session.exec(attempts).all():
        assert attempt.ended_at is not None
        attempt.ended_at -= ahead
        attempt.started_at = min(attempt.started_at, attempt.ended_at)
        session.add(attempt)
    session.add_all(jobs)
    session.flush()


def cancel(session: Session, job: Job, reason: str, now: datetime) -> None:
    """Cancel a queued job at once; ask a running one to stop, which its worker sees at its next heartbeat."""
    status = JobStatus(job.status)
    if status is JobStatus.QUEUED:
        _change_status(job, JobStatus.CANCELLED)
        job.ended_at = now
        record_job_event(session, job, "job.cancelled", f"Cancelled before it ran: {reason}.", now)
    elif status is JobStatus.RUNNING and job.cancel_requested_at is None:
        job.cancel_requested_at = now
        record_job_event(session, job, "job.cancel_requested", f"Asked to stop: {reason}.", now)
    session.add(job)


def cancel_jobs_of_table(session: Session, table_id: str, reason: str, now: datetime) -> None:
    query = select(Job).where(Job.table_id == table_id, col(Job.status).in_(_ACTIVE)).with_for_update()
    for job in session.exec(query).all():
        cancel(session, job, reason, now)


def cancel_index_drops(session: Session, table: EnrolledTable, reason: str, now: datetime) -> None:
    """Let no job delete the index of this branch any more: it is about to be filled again."""
    query = (
        select(Job)
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.kind == JobKind.DROP_INDEX.value,
            Job.table_uuid == table.table_uuid,
            EnrolledTable.branch == table.branch,
            col(Job.status).in_(_ACTIVE),
        )
        .with_for_update(of=Job)
    )
    for job in session.exec(query).all():
        cancel(session, job, reason, now)


def get_worker(session: Session, worker_id: str) -> Worker:
    """Raises NotFoundError."""
    worker = session.get(Worker, worker_id)
    if worker is None:
        raise NotFoundError(
            "worker-not-found",
            "No such worker",
            f"There is no worker {worker_id!r}.",
            "Register it again; workers do so by themselves.",
        )
    return worker


def running_attempts(session: Session, worker_id: str) -> list[RunningAttempt]:
    """What a worker runs as far as is known here."""
    query = select(Attempt.job_id, Attempt.attempt).where(
        Attempt.worker_id == worker_id, Attempt.status == AttemptStatus.RUNNING.value
    )
    return sorted((job_id, attempt) for job_id, attempt in session.exec(query))


def get_job(session: Session, job_id: str) -> Job:
    """Raises NotFoundError."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFoundError(
            "job-not-found", "No such job", f"There is no job {job_id!r}.", "Look in the list of jobs."
        )
    return job


def is_system_paused(session: Session) -> bool:
    state = session.get(SystemState, 1)
    return state is not None and state.paused


def attempts_of(session: Session, job_id: str) -> list[AttemptView]:
    rows = session.exec(select(Attempt).where(Attempt.job_id == job_id).order_by(col(Attempt.attempt))).all()
    return [AttemptView.model_validate(row, from_attributes=True) for row in rows]


@cache  # Putting a query together takes longer than most take to run.
def _next_job() -> Select[Job, EnrolledTable, Catalog, Turn]:
    """The job whose turn it is at `now`, locked, with its table, its catalog and the table's last turn."""
    running = _running()
    turn = (
        select(col(Turn.catalog_id).label("catalog_id"), func.max(Turn.at).label("at"))
        .group_by(col(Turn.catalog_id))
        .cte("turn")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    return (
        _claimable(select(Job, EnrolledTable, Catalog, Turn), running)
        .join(turn, turn.c.catalog_id == col(EnrolledTable.catalog_id), isouter=True)
        .join(Turn, col(Turn.table_id) == col(Job.table_id), isouter=True)
        .order_by(
            col(Job.priority).desc(),
            func.coalesce(running.c.jobs, 0),
            turn.c.at.nulls_first(),
            col(Turn.at).nulls_first(),
            col(Job.available_at),
            col(Job.id),
        )
        .limit(1)
        .with_for_update(skip_locked=True, of=Job)
    )


@cache
def _claimable_jobs() -> Select[str, bool]:
    """All jobs that may start at `now`: what they write, and whether they do."""
    return _claimable(select(Job.table_uuid, Job.writes), _running())


def _running() -> CTE:
    """How many jobs of each catalog run."""
    return (
        select(col(EnrolledTable.catalog_id).label("catalog_id"), func.count().label("jobs"))
        .join(Job, col(Job.table_id) == col(EnrolledTable.id))
        .where(Job.status == JobStatus.RUNNING.value)
        .group_by(col(EnrolledTable.catalog_id))
        .cte("running")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _claimable(query: Select[*Columns], running: CTE) -> Select[*Columns]:
    """Of a query of jobs, those that may start at the parameter `now`."""
    rival = aliased(Job)
    writer_runs = exists().where(
        col(rival.table_uuid) == col(Job.table_uuid),
        col(rival.status) == JobStatus.RUNNING.value,
        col(rival.writes),
    )
    return (
        query.join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .join(running, running.c.catalog_id == col(EnrolledTable.catalog_id), isouter=True)
        .where(
            Job.status == JobStatus.QUEUED.value,
            or_(
                col(Catalog.max_running_jobs).is_(None),
                func.coalesce(running.c.jobs, 0) < Catalog.max_running_jobs,
            ),
            col(Job.available_at) <= bindparam("now", type_=UtcDateTime()),
            # The index of a removed table can still be dropped; nobody can resume such a table.
            or_(
                col(Job.kind) == JobKind.DROP_INDEX.value,
                and_(col(EnrolledTable.deleted_at).is_(None), ~col(EnrolledTable.paused)),
            ),
            # Nobody can resume a removed catalog.
            or_(~col(Catalog.paused), col(Catalog.deleted_at).is_not(None)),
            ~exists().where(col(SystemState.paused)),
            or_(~col(Job.writes), ~writer_runs),
        )
    )


def _start_attempt(
    session: Session,
    settings: Settings,
    job: Job,
    table: EnrolledTable,
    catalog: Catalog,
    turn: Turn | None,
    worker: Worker,
    now: datetime,
) -> Assignment:
    previous = attempts_of(session, job.id) if job.attempt else []
    expires_at = now + timedelta(seconds=settings.lease_seconds)
    _change_status(job, JobStatus.RUNNING)
    job.attempt += 1
    job.started_at = job.started_at or now
    job.lease_expires_at = expires_at
    job.progress = None
    job.held_because = None
    session.add(job)
    turn = turn or Turn(table_id=table.id, catalog_id=table.catalog_id, at=now)
    turn.at = now
    session.add(turn)
    session.add(
        Attempt(
            job_id=job.id,
            attempt=job.attempt,
            worker_id=worker.id,
            worker_name=worker.name,
            started_at=now,
            lease_expires_at=expires_at,
        )
    )
    record_job_event(
        session,
        job,
        "job.running",
        f"Attempt {job.attempt} started on {worker.name}.",
        now,
        worker_id=worker.id,
    )
    session.flush()
    waited_since = max([job.available_at, *(each.ended_at for each in previous if each.ended_at)])
    record_span("wait", job.traceparent, waited_since, now, job_id=job.id, attempt=job.attempt)
    return Assignment(
        job=AssignedJob(id=job.id, kind=job.kind, dry_run=job.dry_run, parameters=job.parameters),
        traceparent=job.traceparent,
        attempt=job.attempt,
        previous_attempts=previous,
        leftovers=_leftovers(session, job, table.branch),
        lease_seconds=settings.lease_seconds,
        lease_expires_at=expires_at,
        timeout_seconds=job.timeout_seconds,
        table=AssignedTable(
            id=table.id,
            identifier=table.identifier,
            table_uuid=job.table_uuid,
            branch=table.branch,
            key_sets=table.key_sets,
            seen_equality_field_ids=seen_equality_field_ids(session, table.id),
        ),
        catalog=AssignedCatalog(name=catalog.name, type=catalog.type, properties=catalog.properties),
        index=AssignedIndex(warehouse=index_warehouse(settings, catalog)),
        policy=bounded(effective_policy(session, table), settings),
        allowed_locations=list(settings.location_roots),
        allowed_hosts=list(settings.host_rules),
        allowed_secrets=list(settings.secret_rules),
    )


def _with(plans: list[dict[str, Any]], plan: AnnouncedPlan) -> list[dict[str, Any]]:
    """Plans and one that was announced, perhaps late: what is about to be committed stays so."""
    known = next((AnnouncedPlan.model_validate(one) for one in plans if one["number"] == plan.number), plan)
    merged = plan.model_copy(
        update={
            "tasks": max(plan.tasks, known.tasks),
            "files_per_task": max(plan.files_per_task, known.files_per_task),
            "removes": plan.removes or known.removes,
        }
    )
    return [*(one for one in plans if one["number"] != plan.number), merged.model_dump()]


def _leftovers(session: Session, job: Job, branch: str) -> list[Leftovers]:
    """What attempts at jobs of the table may have left, for a job that may remove it."""
    if job.kind not in _CLEARING or job.dry_run:
        return []
    query = (
        select(Attempt)
        .join(Job, col(Job.id) == col(Attempt.job_id))
        # The table may have been removed and registered again.
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.table_uuid == job.table_uuid,
            EnrolledTable.branch == branch,
            col(Attempt.plans).is_not(None),
            Attempt.status != AttemptStatus.RUNNING.value,
        )
        # If there are more, each gets its turn, also behind ones that can't be removed yet.
        .order_by(func.random())
        .limit(_LEFTOVERS_AT_ONCE)
    )
    found = [Leftovers.model_validate(row, from_attributes=True) for row in session.exec(query)]
    return sorted(found, key=lambda one: (one.job_id, one.attempt))


def _end_attempt(
    session: Session,
    job: Job,
    running: Attempt,
    outcome: AttemptStatus,
    error: ErrorReport | None,
    now: datetime,
) -> None:
    never_ran = error is _CLAIM_ANSWER_LOST and not _is_unheard_again(session, job)
    if outcome in (AttemptStatus.FAILED, AttemptStatus.LOST) and not never_ran:
        job.failures += 1
    persists = JobKind(job.kind).persists
    after = status_after(
        outcome,
        retryable=persists or (error is not None and error.retryable),
        cancel_requested=job.cancel_requested_at is not None,
        failures=job.failures,
        max_attempts=job.failures + 1 if persists else job.max_attempts,
    )
    running.status = outcome.value
    running.ended_at = now
    # The clock may have been set back.
    running.seconds = max((now - running.started_at).total_seconds(), 0.0)
    running.error = error.model_dump() if error is not None else None
    job.error = None if after is JobStatus.SUCCEEDED else running.error
    job.lease_expires_at = None
    _change_status(job, after)
    session.add_all((job, running))
    if after is not JobStatus.QUEUED:
        job.ended_at = now
        level = "error" if after is JobStatus.FAILED else "info"
        record_job_event(
            session,
            job,
            f"job.{after.value}",
            _end_sentence(job, running, after),
            now,
            level=level,
            error=running.error,
        )
    elif outcome is AttemptStatus.RELEASED:
        job.available_at = now
        record_job_event(
            session, job, "job.released", f"Handed back by {running.worker_name}; queued again at once.", now
        )
    else:
        # Nothing is known to be wrong with a job whose worker was lost; one that kills its workers waits.
        is_first_loss = outcome is AttemptStatus.LOST and job.failures <= 1
        delay = (
            0.0
            if never_ran or is_first_loss
            else backoff_seconds(job.failures, job.backoff_seconds, job.max_backoff_seconds)
        )
        job.available_at = now + timedelta(seconds=delay)
        when = f"follows in {delay:.0f} s" if delay else "follows at once"
        record_job_event(
            session,
            job,
            "job.retry",
            f"Attempt {job.attempt} {outcome.value}{_cause(running)}. Attempt {job.attempt + 1} {when} "
            + ("(until it succeeds)." if persists else f"({job.failures} of {job.max_attempts} used up)."),
            now,
            level="warning",
            error=running.error,
            available_at=_rfc3339(job.available_at),
        )


def _is_unheard_again(session: Session, job: Job) -> bool:
    """Whether the attempts before the present one were not heard of by their workers either."""
    before = attempts_of(session, job.id)[:-1][-_UNHEARD_AT_MOST:]
    codes = [(one.error or {}).get("code") for one in before]
    return codes == [_CLAIM_ANSWER_LOST.code] * _UNHEARD_AT_MOST


def _end_sentence(job: Job, running: Attempt, after: JobStatus) -> str:
    match after:
        case JobStatus.SUCCEEDED:
            return f"Succeeded in attempt {job.attempt}."
        case JobStatus.CANCELLED:
            return f"Cancelled during attempt {job.attempt}."
        case _:
            last = "" if job.failures < job.max_attempts else f" All {job.max_attempts} attempts are used up."
            return f"Failed in attempt {job.attempt}{_cause(running)}.{last}"


def _cause(running: Attempt) -> str:
    return f": {running.error['title']}" if running.error else ""


def _progress_sentence(progress: dict[str, Any]) -> str:
    counts = ""
    if progress["done"] is not None:
        counts = f" {progress['done']}" + (
            f" of {progress['total']}" if progress["total"] is not None else ""
        )
        counts += f" {progress['unit']}" if progress["unit"] else ""
    return f"{progress['stage']}:{counts} {progress['message'] or ''}".strip().rstrip(":")


def _change_status(job: Job, after: JobStatus) -> None:
    check_transition(JobStatus(job.status), after)
    job.status = after.value


def _is_current(job: Job, attempt: int) -> bool:
    return job.attempt == attempt and job.status == JobStatus.RUNNING.value


def _lock_job(session: Session, job_id: str) -> Job:
    query = select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    job = session.exec(query).first()
    return job if job is not None else get_job(session, job_id)


def _fenced(session: Session, job_id: str, attempt: int) -> tuple[Job, Attempt]:
    job = _lock_job(session, job_id)
    return job, _check_current(session, job, attempt)


def _check_current(session: Session, job: Job, attempt: int) -> Attempt:
    """The attempt that runs a locked job; raises ConflictError `stale-attempt` if it is another one."""
    if not _is_current(job, attempt):
        raise ConflictError(
            "stale-attempt",
            "This attempt no longer runs the job",
            f"Job {job.id} is {job.status}, attempt {job.attempt}; the call came from attempt {attempt}.",
            "Stop working on it and report nothing more; claim again.",
            job_status=job.status,
            current_attempt=job.attempt,
        )
    return session.get_one(Attempt, (job.id, attempt))


def _find_queued(session: Session, job: Job) -> Job | None:
    return session.exec(
        select(Job)
        .where(
            Job.table_id == job.table_id,
            Job.kind == job.kind,
            Job.dry_run == job.dry_run,
            Job.status == JobStatus.QUEUED.value,
        )
        .order_by(col(Job.attempt))
    ).first()


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
