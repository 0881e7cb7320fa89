"""Attempts: what their workers report, how they end, and which are given up on.

Invariant: the attempt number is the fencing token. Whatever an attempt reports holds only while it is the
running attempt of its job; a later one gets `stale-attempt` and changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, update
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, col, select

from service.auth.models import Principal
from service.db.database import Database, utc_now
from service.db.together import Together
from service.errors import ConflictError, InvalidError
from service.jobs.caveats import caveat_of
from service.jobs.contract import (
    MAX_ADDRESS,
    AddressRange,
    AddressRangeRequest,
    AnnouncedPlan,
    ErrorReport,
    EventReport,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from service.jobs.estimates import estimate
from service.jobs.events import job_event
from service.jobs.index_reports import apply_publication, apply_report, covers_head, rewritable
from service.jobs.ownership import check_owner
from service.jobs.queue import (
    STAGING_BRANCH_CHANGED,
    attempts_of,
    cancel,
    end_parts,
    is_of_another_branch,
    last_claim_of,
    lock_job,
    rfc3339,
    rows_of,
)
from service.jobs.status import backoff_seconds, check_transition, status_after
from service.policies.effective import effective_policy
from service.records.health import TableHealth
from service.records.jobs import Attempt, AttemptStatus, Job, JobKind, JobStatus
from service.records.reports import ErasureReport
from service.records.tables import AddressCounter, EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from service.webhooks.outbox import write_events, write_untold
from telemetry.plurals import counted

# These are asked each second, and putting a statement together takes longer than most take to run.
_LEASES = select(Job.id, Job.attempt, Job.renewals).where(Job.status == JobStatus.RUNNING.value)
_TIMEOUTS = select(Job.id, Job.attempt, Job.timeout_seconds).where(
    Job.status == JobStatus.RUNNING.value, Job.timeout_seconds > 0
)
_WITH_WORKER = (
    select(Attempt, Worker)
    .join(Worker, col(Worker.id) == col(Attempt.worker_id))
    .where(Attempt.job_id == bindparam("job_id"), Attempt.attempt == bindparam("attempt"))
)
# Of what is not locked too, whoever waits for the lock gets what was there before.
_WITH_ATTEMPT = (
    select(Job, Attempt, Worker)
    .join(Attempt, col(Attempt.job_id) == col(Job.id))
    .join(Worker, col(Worker.id) == col(Attempt.worker_id))
    .execution_options(populate_existing=True)
)
_LOCKED_WITH_ATTEMPT = _WITH_ATTEMPT.where(
    Job.id == bindparam("job_id"), Attempt.attempt == bindparam("attempt")
).with_for_update(of=(Job, Attempt))
# In one order for all, and none that another transaction has: it may wait for one of the others.
_LOCKED_TOGETHER = (
    _WITH_ATTEMPT.where(
        col(Job.id).in_(bindparam("job_ids", expanding=True)), Attempt.attempt == col(Job.attempt)
    )
    .order_by(col(Job.table_id))
    .with_for_update(of=(Job, Attempt), skip_locked=True)
)
_OF_THE_JOB = update(Job).where(col(Job.id) == bindparam("of_job"))
_OF_JOB = (
    *("status", "failures", "error", "result", "seen_snapshot_id", "seen_rewritable", "ended_at"),
    *("lease_expires_at", "available_at", "table_claimed_at"),
)
"""What the end of an attempt may change of its job: nothing writes a row of it but `_write_ends`."""
_OF_THE_ATTEMPT = update(Attempt).where(
    col(Attempt.job_id) == bindparam("of_job"), col(Attempt.attempt) == bindparam("of_attempt")
)
_OF_ATTEMPT = ("status", "ended_at", "seconds", "error", "plans", "stages", "rows", "bytes")
_HEARD_OF = update(Worker).where(col(Worker.id) == bindparam("of_worker"))
_TOOK = (
    update(TableHealth)
    .where(col(TableHealth.table_id) == bindparam("of_table"))
    .values(maintenance_seconds=TableHealth.maintenance_seconds + bindparam("seconds"))
)
_WRITES_DELETES = "deletes"  # a stage
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
CLAIM_ANSWER_LOST = ErrorReport(
    code="claim_answer_lost",
    title="The worker never got this attempt",
    detail="The worker asked for work again, so it does not run this attempt.",
    remedy="Nothing to do: the job is queued again, and no attempt is used up.",
    retryable=True,
)
_LEAP_AT_MOST = 2**44
"""Row addresses that an index may be ahead of its counter: rows that were indexed since the backup of the
control database that is in use again."""
_WRITES_END_WITHIN = timedelta(minutes=5)
_UNHEARD_AT_MOST = 3
"""So many attempts in a row that no worker got are no accident: further ones count."""
RunningAttempt = tuple[str, int]
"""Job id and number of the attempt."""


class End(NamedTuple):
    """A worker reports how its attempt ended."""

    caller: Principal
    job_id: str
    attempt: int
    report: FinishRequest


class _Ended(NamedTuple):
    """What is to be written of an attempt that has ended."""

    job: Job
    running: Attempt
    event: dict[str, Any]
    maintenance_seconds: float | None
    """None for an attempt that has maintained nothing."""


def heartbeat(
    session: Session,
    settings: Settings,
    caller: Principal,
    job_id: str,
    attempt: int,
    report: HeartbeatRequest,
    now: datetime,
) -> HeartbeatAnswer:
    """Extend the lease and note progress.

    Raises ConflictError `stale-attempt`, ForbiddenError for an attempt of somebody else's worker, and
    InvalidError as `reserve_addresses` does.

    A lease that ran out but was not given to anybody else yet is extended too: live work is not killed. A
    publication of a branch that its table has no more is asked to stop, also before it commits.
    """
    job, running, worker = _fenced(session, caller, job_id, attempt)
    granted = None if report.addresses is None else _reserve(session, job, report.addresses)
    expires_at = now + timedelta(seconds=settings.lease_seconds)
    of_job: dict[str, Any] = {"lease_expires_at": expires_at, "renewals": job.renewals + 1}
    of_attempt: dict[str, Any] = {"lease_expires_at": expires_at}
    told = []
    if report.progress is not None:
        progress = report.progress.model_dump()
        before = {key: value for key, value in (job.progress or {}).items() if key != "updated_at"}
        of_job["progress"] = {**progress, "updated_at": rfc3339(now)}
        if progress != before:
            told.append(
                job_event(job, "job.progress", _progress_sentence(progress), now, progress=of_job["progress"])
            )
    if report.plan is not None:
        of_attempt["plans"] = _with(running.plans or [], report.plan)
    _set(job, **of_job)
    _set(running, **of_attempt)
    connection = session.connection()
    connection.execute(_OF_THE_JOB, {"of_job": job_id, **of_job})
    connection.execute(_OF_THE_ATTEMPT, {"of_job": job_id, "of_attempt": attempt, **of_attempt})
    connection.execute(_HEARD_OF, {"of_worker": worker.id, "last_seen_at": now})
    write_untold(session, [*told, *_told(job, report.events, now)])
    if job.kind == JobKind.PUBLISH.value:
        table = session.get_one(EnrolledTable, job.table_id)
        if is_of_another_branch(job, effective_policy(session, table).publish.source):
            cancel(session, job, STAGING_BRANCH_CHANGED, now)
    return HeartbeatAnswer(
        now=now,
        lease_expires_at=expires_at,
        cancel_requested=job.cancel_requested_at is not None,
        addresses=granted,
    )


def _told(job: Job, events: Sequence[EventReport], now: datetime) -> list[dict[str, Any]]:
    """What an attempt tells, as events of its job."""
    return [
        job_event(job, f"job.{one.kind}", one.message, now, level=one.level, reported=one.fields)
        for one in events
    ]


def reserve_addresses(
    session: Session, caller: Principal, job_id: str, attempt: int, request: AddressRangeRequest
) -> AddressRange:
    """Reserve [base, base + rows) for an attempt, at or above `at_least`; no row address is granted twice.

    Raises InvalidError for row addresses that no index comes to: those of a table are used up only once.
    """
    job, *_ = _fenced(session, caller, job_id, attempt)
    return _reserve(session, job, request)


def _reserve(session: Session, job: Job, request: AddressRangeRequest) -> AddressRange:
    """For the attempt that runs a locked job."""
    # The running job is locked, and only one running job writes a table, so nobody else is at this counter;
    # the row lock below holds even if two tables share a UUID by being registered twice.
    counter = session.exec(
        select(AddressCounter).where(AddressCounter.table_uuid == job.table_uuid).with_for_update()
    ).first() or AddressCounter(table_uuid=job.table_uuid)
    base = max(counter.next_address, request.at_least)
    if base > counter.next_address + _LEAP_AT_MOST or base + request.rows > MAX_ADDRESS:
        raise InvalidError(
            "row-addresses-out-of-range",
            f"{request.rows:,} row addresses from {base:,} on were asked for; those below"
            f" {counter.next_address:,} were reserved before.",
        )
    counter.next_address = base + request.rows
    session.add(counter)
    return AddressRange(base_address=base)


def ends_reported_to(database: Database) -> Together[End, str]:
    """All reports of a process of how attempts ended, which are answered as `finish` does."""
    return Together(
        database,
        lambda session, ends: finish_together(session, ends, utc_now()),
        lambda session, end: finish(session, *end, utc_now()),
    )


def finish(
    session: Session, caller: Principal, job_id: str, attempt: int, report: FinishRequest, now: datetime
) -> str:
    """End an attempt as its worker says; the id of that. Repeating the same report is harmless.

    Raises ConflictError `stale-attempt` when the attempt is no longer the running one, and ForbiddenError for
    an attempt of somebody else's worker.
    """
    if found := _running(session, caller, job_id, attempt):
        job, running, _ = found
    else:
        job = lock_job(session, job_id)
        ended, _ = _own(session, caller, job_id, attempt) or (None, None)
        if ended is not None and job.attempt == attempt and ended.status == report.status:
            return ended.worker_id  # the answer to the first report got lost
        running = _check_current(session, job, attempt)
    _write_ends(session, [_finish(session, job, running, report, now)])
    return running.worker_id


def finish_together(session: Session, ends: Sequence[End], now: datetime) -> Mapping[str, str]:
    """End attempts as `finish` does one after the other; the worker of each, by ids of jobs.

    But for late reports and those of strangers, and for jobs that another transaction has.
    """
    ends_of = {end.job_id: end for end in ends}
    found = session.exec(_LOCKED_TOGETHER, params={"job_ids": list(ends_of)}).all()
    ended = {}
    for job, running, worker in found:
        end = ends_of[job.id]
        if is_current(job, end.attempt) and worker.registered_by == end.caller.key:
            ended[job.id] = _finish(session, job, running, end.report, now)
    _write_ends(session, list(ended.values()))
    return {job_id: each.running.worker_id for job_id, each in ended.items()}


def _finish(session: Session, job: Job, running: Attempt, report: FinishRequest, now: datetime) -> _Ended:
    """Note what the worker of an attempt that runs, whose job is locked, reports as its end."""
    outcome = AttemptStatus(report.status)
    write_untold(session, _told(job, report.events, now))
    if report.result is not None and report.result.erasure is not None:
        _check_erasure(session, job, report.result.erasure)
    if report.health is not None:
        _set(
            job,
            seen_snapshot_id=report.health.iceberg_snapshot_id,
            seen_rewritable=rewritable(job.kind, report.health),
        )
        is_done = outcome is AttemptStatus.SUCCEEDED and not job.dry_run
        apply_report(
            session,
            job,
            report.health,
            now,
            has_indexed=is_done and (job.kind in _INDEXING or covers_head(report.health)),
            has_verified=is_done and job.kind == JobKind.VERIFY.value,
        )
    if job.kind == JobKind.PUBLISH.value and outcome is AttemptStatus.SUCCEEDED and not job.dry_run:
        apply_publication(session, job, report.result)
    result = report.result.model_dump(mode="json", exclude_unset=True) if report.result is not None else None
    if job.dry_run and result is not None and (estimated := estimate(session, job, result)) is not None:
        result["estimate"] = estimated.model_dump()
    _set(job, result=result)
    for one in report.cleared:
        cleared = session.get(Attempt, (one.job_id, one.attempt))
        if cleared is None or not _is_of_the_same_table(session, job, session.get_one(Job, one.job_id)):
            continue
        # Until then, a task of its may still have written: the next job looks once more.
        if cleared.ended_at is not None and now - cleared.ended_at > _WRITES_END_WITHIN:
            cleared.plans = None
            session.add(cleared)
    # A run that failed or that Spark gave up may have written what was not committed, or still will.
    has_strays = any(stage.name == _WRITES_DELETES and stage.failed_tasks for stage in report.stages)
    if outcome is AttemptStatus.SUCCEEDED and not has_strays:
        _set(running, plans=None)
    stages = [stage.model_dump() for stage in report.stages]
    _set(running, stages=stages, rows=report.rows, bytes=report.bytes)
    return _end(session, job, running, outcome, report.error, now)


def _check_erasure(session: Session, job: Job, report: ErasureReport) -> None:
    """Raises InvalidError unless a report is of the keys that the job was given; its files are not read."""
    keys = rows_of(session, job)
    if job.kind != JobKind.ERASE.value or (keys is not None and report.keys != len(keys)):
        given = "no keys" if keys is None else counted(len(keys), "key")
        raise InvalidError(
            "report-of-other-keys",
            f"It is about {counted(report.keys, 'key')}; job {job.id} was given {given}.",
        )


def leases(session: Session) -> dict[RunningAttempt, int]:
    """How often the lease of each running attempt was renewed, for a LeaseObserver."""
    return {(job_id, attempt): renewals for job_id, attempt, renewals in session.exec(_LEASES)}


def give_up(session: Session, expired: RunningAttempt, renewals: int, now: datetime) -> bool:
    """End an attempt whose lease ran out as lost, and queue its job again while attempts remain.

    One that was renewed since it was seen, or is just being renewed, goes on.
    """
    job_id, attempt = expired
    query = select(Job).where(
        Job.id == job_id,
        Job.attempt == attempt,
        Job.renewals == renewals,
        Job.status == JobStatus.RUNNING.value,
    )
    job = session.exec(query.with_for_update(skip_locked=True)).first()
    if job is None:
        return False
    running = session.get_one(Attempt, (job_id, attempt))
    end_attempt(session, job, running, AttemptStatus.LOST, _WORKER_LOST, now)
    return True


def timeouts(session: Session) -> dict[RunningAttempt, float]:
    """How many seconds each running attempt may take, of those that may not take any time."""
    return {(job_id, attempt): seconds for job_id, attempt, seconds in session.exec(_TIMEOUTS)}


def time_out(session: Session, overdue: RunningAttempt, now: datetime) -> bool:
    """End an attempt that still runs as failed, whatever its worker says."""
    job_id, attempt = overdue
    job = lock_job(session, job_id)
    if not is_current(job, attempt):
        return False
    running = session.get_one(Attempt, (job_id, attempt))
    end_attempt(session, job, running, AttemptStatus.FAILED, _TIMED_OUT, now)
    return True


def _with(plans: list[dict[str, Any]], plan: AnnouncedPlan) -> list[dict[str, Any]]:
    """Plans and one that was announced, perhaps late: what is about to be committed stays so."""
    known = next((AnnouncedPlan.model_validate(one) for one in plans if one["number"] == plan.number), plan)
    merged = plan.model_copy(
        update={
            "tasks": max(plan.tasks, known.tasks),
            "files_per_task": max(plan.files_per_task, known.files_per_task),
            "data_files": max(plan.data_files, known.data_files),
            "removes": plan.removes or known.removes,
            "expires": plan.expires or known.expires,
            "only_on": known.only_on if plan.only_on is None else plan.only_on,
        }
    )
    return [*(one for one in plans if one["number"] != plan.number), merged.model_dump()]


def end_attempt(
    session: Session,
    job: Job,
    running: Attempt,
    outcome: AttemptStatus,
    error: ErrorReport | None,
    now: datetime,
) -> None:
    _write_ends(session, [_end(session, job, running, outcome, error, now)])


def _set(row: Job | Attempt, **values: Any) -> None:
    """As `_write_ends` will write it: SQLAlchemy takes longer to note each change and to find it again."""
    for name, value in values.items():
        set_committed_value(row, name, value)


def _write_ends(session: Session, ended: Sequence[_Ended]) -> None:
    if not ended:
        return
    connection = session.connection()
    jobs: list[dict[str, Any]] = [
        {"of_job": each.job.id, **{name: getattr(each.job, name) for name in _OF_JOB}} for each in ended
    ]
    attempts: list[dict[str, Any]] = [
        {
            "of_job": each.job.id,
            "of_attempt": each.running.attempt,
            **{name: getattr(each.running, name) for name in _OF_ATTEMPT},
        }
        for each in ended
    ]
    connection.execute(_OF_THE_JOB, jobs)
    connection.execute(_OF_THE_ATTEMPT, attempts)
    write_events(session, [each.event for each in ended])
    took = [
        {"of_table": each.job.table_id, "seconds": each.maintenance_seconds}
        for each in ended
        if each.maintenance_seconds is not None
    ]
    if took:
        # By the database: a poll may store the table's health meanwhile.
        connection.execute(_TOOK, took)


def _end(
    session: Session,
    job: Job,
    running: Attempt,
    outcome: AttemptStatus,
    error: ErrorReport | None,
    now: datetime,
) -> _Ended:
    never_ran = error is CLAIM_ANSWER_LOST and not _is_unheard_again(session, job)
    has_failed = outcome in (AttemptStatus.FAILED, AttemptStatus.LOST) and not never_ran
    _set(job, failures=job.failures + has_failed)
    persists = JobKind(job.kind).persists
    after = status_after(
        outcome,
        retryable=persists or (error is not None and error.retryable),
        cancel_requested=job.cancel_requested_at is not None,
        failures=job.failures,
        max_attempts=job.failures + 1 if persists else job.max_attempts,
    )
    # The clock may have been set back.
    seconds = max((now - running.started_at).total_seconds(), 0.0)
    told = error.model_dump() if error is not None else None
    check_transition(JobStatus(job.status), after)
    _set(running, status=outcome.value, ended_at=now, seconds=seconds, error=told)
    _set(job, status=after.value, lease_expires_at=None, error=None if after is JobStatus.SUCCEEDED else told)
    if after is JobStatus.QUEUED:
        _set(job, table_claimed_at=last_claim_of(session, job.table_id))
    if after is not JobStatus.QUEUED:
        _set(job, ended_at=now)
        end_parts(session, job, now)
        level = "error" if after is JobStatus.FAILED else "info"
        event = job_event(
            job,
            f"job.{after.value}",
            _end_sentence(job, running, after),
            now,
            level=level,
            error=running.error,
        )
    elif outcome is AttemptStatus.RELEASED:
        _set(job, available_at=now)
        event = job_event(
            job, "job.released", f"Handed back by {running.worker_name}; queued again at once.", now
        )
    else:
        # Nothing is known to be wrong with a job whose worker was lost; one that kills its workers waits.
        is_first_loss = outcome is AttemptStatus.LOST and job.failures <= 1
        delay = (
            0.0
            if never_ran or is_first_loss
            else backoff_seconds(job.failures, job.backoff_seconds, job.max_backoff_seconds)
        )
        _set(job, available_at=now + timedelta(seconds=delay))
        when = f"follows in {delay:.0f} s" if delay else "follows at once"
        event = job_event(
            job,
            "job.retry",
            f"Attempt {job.attempt} {outcome.value}{_cause(running)}. Attempt {job.attempt + 1} {when} "
            + ("(until it succeeds)." if persists else f"({job.failures} of {job.max_attempts} used up)."),
            now,
            level="warning",
            error=running.error,
            available_at=rfc3339(job.available_at),
        )
    maintains = JobKind(job.kind).maintains and not job.dry_run and not never_ran
    return _Ended(job, running, event, running.seconds if maintains else None)


def _is_unheard_again(session: Session, job: Job) -> bool:
    """Whether the attempts before the present one were not heard of by their workers either."""
    before = attempts_of(session, job.id)[:-1][-_UNHEARD_AT_MOST:]
    codes = [(one.error or {}).get("code") for one in before]
    return codes == [CLAIM_ANSWER_LOST.code] * _UNHEARD_AT_MOST


def _end_sentence(job: Job, running: Attempt, after: JobStatus) -> str:
    match after:
        case JobStatus.SUCCEEDED:
            caveat = caveat_of(JobKind(job.kind), job.result, dry_run=job.dry_run)
            if caveat is None:
                return f"Succeeded in attempt {job.attempt}."
            how = "Blocked" if caveat.did_nothing else "Succeeded in part"
            return f"{how} in attempt {job.attempt}: {caveat.title}."
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


def is_current(job: Job, attempt: int) -> bool:
    return job.attempt == attempt and job.status == JobStatus.RUNNING.value


def _fenced(session: Session, caller: Principal, job_id: str, attempt: int) -> tuple[Job, Attempt, Worker]:
    if found := _running(session, caller, job_id, attempt):
        return found
    job = lock_job(session, job_id)
    _own(session, caller, job_id, attempt)
    running = _check_current(session, job, attempt)
    return job, running, session.get_one(Worker, running.worker_id)


def _running(
    session: Session, caller: Principal, job_id: str, attempt: int
) -> tuple[Job, Attempt, Worker] | None:
    """As nearly always, an attempt of the caller's that runs, with its job, both locked: in one statement.

    Raises ForbiddenError for somebody else's.
    """
    params = {"job_id": job_id, "attempt": attempt}
    found = session.exec(_LOCKED_WITH_ATTEMPT, params=params).first()
    if found is None or not is_current(found[0], attempt):
        return None
    job, running, worker = found
    check_owner(worker, caller)
    return job, running, worker


def _own(session: Session, caller: Principal, job_id: str, attempt: int) -> tuple[Attempt, Worker] | None:
    """An attempt of the caller's, if it ever was, and its worker; raises ForbiddenError for somebody else's.

    Read once its job is locked, under which alone it changes.
    """
    found = session.exec(_WITH_WORKER, params={"job_id": job_id, "attempt": attempt}).first()
    if found is None:
        return None
    running, worker = found
    check_owner(worker, caller)
    return running, worker


def _is_of_the_same_table(session: Session, job: Job, other: Job) -> bool:
    """Whether two jobs may have left files in the same place: see `assignments._with_orphan_files`."""
    table, of_other = (session.get_one(EnrolledTable, one.table_id) for one in (job, other))
    return (job.table_uuid, table.branch, table.catalog_id) == (
        other.table_uuid,
        of_other.branch,
        of_other.catalog_id,
    )


def _check_current(session: Session, job: Job, attempt: int) -> Attempt:
    """The attempt that runs a locked job; raises ConflictError `stale-attempt` if it is another one."""
    if not is_current(job, attempt):
        raise ConflictError(
            "stale-attempt",
            f"Job {job.id} is {job.status}, attempt {job.attempt}; the call came from attempt {attempt}.",
            "Stop working on it and report nothing more; claim again.",
            job_status=job.status,
            current_attempt=job.attempt,
        )
    return session.get_one(Attempt, (job.id, attempt))
