"""The queue: add a job, find it, cancel it. `claims` gives jobs to workers, `attempts` hears how they fare.

Invariant: a job changes its status only as `status` allows, with an event in the same transaction. That at
most one job of a kind waits for its first attempt is enforced by the unique index `uq_jobs_queued_kind`; jobs
that write rows are no two of them the same. Rows go in the transaction in which their job ends.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete
from sqlalchemy.orm import make_transient_to_detached
from sqlmodel import Session, col, or_, select

from service.db.database import insert_unless_there
from service.errors import ConflictError, NotFoundError
from service.jobs.events import job_event, record_job_event
from service.jobs.models import AttemptView
from service.jobs.status import check_transition
from service.policies.models import EffectivePolicy
from service.records.erasures import ErasureTable
from service.records.jobs import NEVER, REQUEST, Attempt, Job, JobKind, JobRows, JobStatus, LastClaim
from service.records.system import SystemState
from service.records.tables import EnrolledTable
from service.webhooks.outbox import write_event
from telemetry.traces import begin_trace, current_traceparent

JOB_QUEUED = "job-queued"
"""In the info of a session whose transaction queues a job."""
_ACTIVE = (JobStatus.QUEUED.value, JobStatus.RUNNING.value)
_LOCKED_JOB = (
    select(Job)
    .where(Job.id == bindparam("job_id"))
    .with_for_update()
    .execution_options(populate_existing=True)
)
# Polls run these: putting a statement together takes longer than most take to run.
_PAUSED = select(SystemState.paused).where(SystemState.id == 1)
_LAST_CLAIM = select(LastClaim.at).where(LastClaim.table_id == bindparam("table_id"))
_QUEUED_ALIKE = (
    select(Job)
    .where(
        Job.table_id == bindparam("table_id"),
        Job.kind == bindparam("kind"),
        Job.dry_run == bindparam("dry_run"),
        Job.status == JobStatus.QUEUED.value,
    )
    .order_by(col(Job.attempt))
    # A look may have read it before.
    .execution_options(populate_existing=True)
)
_add_unless_queued = insert_unless_there(Job)
_COLUMNS = tuple(Job.__table__.columns.keys())  # type: ignore[attr-defined]
_PUBLICATIONS = select(Job).where(
    Job.table_id == bindparam("table_id"),
    col(Job.status).in_(_ACTIVE),
    Job.kind == JobKind.PUBLISH.value,
)
_MOST_ASKED = 1000
"""Ids in one statement: databases bound its parameters."""
_LONGEST_PERSISTENT_PAUSE_SECONDS = 3600.0
STAGING_BRANCH_CHANGED = "a policy changed the table's staging branch"


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
    rows: list[dict[str, Any]] | None = None,
    active: Sequence[Job] | None = None,
    told: list[dict[str, Any]] | None = None,
) -> tuple[Job, bool]:
    """Add a job, or find the one of its kind that is queued already; True if it was added.

    rows: what it writes. active: jobs of the table that wait or run, if these are known. told: gets the
    event, which is to be written behind all else that the caller has changed. Raises ConflictError if the one
    that is queued has other parameters.
    """
    job = Job(
        table_id=table.id,
        table_uuid=table.table_uuid,
        catalog_id=table.catalog_id,
        table_claimed_at=last_claim_of(session, table.id),
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
    may_wait = active is None or any((one.kind, one.dry_run) == (job.kind, dry_run) for one in active)
    queued = _find_queued(session, job) if may_wait else None
    if queued is None and not _add(session, job, is_first=told is None):
        # Another replica added the same between our look and our insert.
        queued = _find_queued(session, job)
        if queued is None:  # and a worker has it by now
            session.add(job)
            session.flush()
    if queued is not None:
        if queued.parameters != job.parameters:
            raise ConflictError(
                "job-already-queued",
                f"Job {queued.id} ({JobKind(queued.kind).words}) waits with parameters {queued.parameters}.",
                "Wait for it, or cancel it first.",
                job_id=queued.id,
            )
        _bring_forward(session, queued, job, now)
        return queued, False
    session.info[JOB_QUEUED] = True
    if rows is not None:
        session.add(JobRows(job_id=job.id, rows=rows))
    why = f"requested by {requested_by}." if trigger == REQUEST else trigger
    event = job_event(job, "job.queued", f"Queued: {why}", now, trigger=trigger)
    if told is None:
        write_event(session, **event)
    else:
        told.append(event)
    return job, True


def _add(session: Session, job: Job, *, is_first: bool) -> bool:
    """Whether it was added: not if one of its kind waits for its first attempt already.

    is_first: what it refers to may have to be written before it.
    """
    if job.traceparent is None:
        job.traceparent = begin_trace("schedule")
    if is_first:
        session.flush()
    if not _add_unless_queued(session, {name: getattr(job, name) for name in _COLUMNS}):
        return False
    make_transient_to_detached(job)
    session.add(job)
    return True


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
        begin = rfc3339(queued.available_at)
        sentence = f"Asked for again: it may start from {begin} on, with priority {queued.priority}."
        record_job_event(session, queued, "job.queued", sentence, now)


def cancel(session: Session, job: Job, reason: str, now: datetime) -> None:
    """Cancel a queued job at once; ask a running one to stop, which its worker sees at its next heartbeat."""
    status = JobStatus(job.status)
    if status is JobStatus.QUEUED:
        check_transition(status, JobStatus.CANCELLED)
        job.status, job.ended_at = JobStatus.CANCELLED.value, now
        end_parts(session, job, now, reason)
        record_job_event(session, job, "job.cancelled", f"Cancelled before it ran: {reason}.", now)
    elif status is JobStatus.RUNNING and job.cancel_requested_at is None:
        job.cancel_requested_at = now
        if part := _part_of_erasure(session, job):
            part.cancelled_because = reason
        record_job_event(session, job, "job.cancel_requested", f"Asked to stop: {reason}.", now)
    session.add(job)


def rows_of(session: Session, job: Job) -> list[dict[str, Any]] | None:
    """What a job writes; None for one that writes no rows of its own, or has ended."""
    found = session.get(JobRows, job.id) if JobKind(job.kind).writes_rows else None
    return None if found is None else found.rows


def end_parts(session: Session, job: Job, now: datetime, cancelled_because: str | None = None) -> None:
    """Of a job that has ended, nobody needs the rows any more; its erasure keeps what it came to."""
    if JobKind(job.kind).writes_rows:
        session.execute(delete(JobRows).where(col(JobRows.job_id) == job.id))
    part = _part_of_erasure(session, job)
    if part is not None:
        status = JobStatus(job.status)
        part.status, part.started_at, part.ended_at, part.error = status.value, job.started_at, now, job.error
        is_cancelled = status is JobStatus.CANCELLED
        part.cancelled_because = (cancelled_because or part.cancelled_because) if is_cancelled else None
        # What an attempt says that did not succeed may be of an earlier one.
        part.report = (job.result or {}).get("erasure") if status is JobStatus.SUCCEEDED else None
        session.add(part)


def _part_of_erasure(session: Session, job: Job) -> ErasureTable | None:
    if job.kind != JobKind.ERASE.value:
        return None
    return session.exec(select(ErasureTable).where(ErasureTable.job_id == job.id)).first()


def cancel_jobs_of_table(
    session: Session, table_id: str, reason: str, now: datetime, kind: JobKind | None = None
) -> None:
    """All of its jobs, or those of a kind."""
    query = select(Job).where(Job.table_id == table_id, col(Job.status).in_(_ACTIVE))
    if kind is not None:
        query = query.where(Job.kind == kind.value)
    for job in session.exec(query.with_for_update()).all():
        cancel(session, job, reason, now)


def is_of_another_branch(job: Job, source: str) -> bool:
    """Whether a job is to publish another staging branch than this one, which its table has by now."""
    return job.kind == JobKind.PUBLISH.value and job.parameters.get("from", "") != source


def cancel_publications_but(session: Session, table_id: str, source: str, now: datetime) -> None:
    """Cancel the jobs of a table that publish another staging branch than this one; empty for none."""
    for job in session.exec(_PUBLICATIONS, params={"table_id": table_id}).all():
        if is_of_another_branch(job, source):
            cancel(session, lock_job(session, job.id), STAGING_BRANCH_CHANGED, now)


def cancel_index_drops(session: Session, table: EnrolledTable, now: datetime) -> None:
    """Let no job delete the index of this branch any more: it is enrolled again, and will be filled."""
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
        cancel(session, job, "the table was enrolled again", now)


def has_let_expire(session: Session, table: EnrolledTable, since: datetime) -> bool:
    """Whether a job may have let snapshots of a table expire since then, also one of another enrolment."""
    query = select(Job.id).where(
        Job.table_uuid == table.table_uuid,
        col(Job.kind).in_([kind.value for kind in JobKind if kind.lets_snapshots_expire]),
        ~col(Job.dry_run),
        Job.attempt > 0,
        or_(col(Job.status).in_(_ACTIVE), col(Job.ended_at) >= since),
    )
    return session.exec(query).first() is not None


def jobs_of_table(session: Session, table: EnrolledTable, claimed: Collection[str]) -> set[str]:
    """Those of some ids that are jobs which `may_have_committed`, also of another enrolment."""
    ids, found = sorted(claimed), set[str]()
    for begin in range(0, len(ids), _MOST_ASKED):
        query = select(Job.id).where(
            col(Job.id).in_(ids[begin : begin + _MOST_ASKED]),
            Job.table_uuid == table.table_uuid,
            ~col(Job.dry_run),
            Job.attempt > 0,
        )
        found.update(session.exec(query))
    return found


def may_have_committed(job: Job, table: EnrolledTable) -> bool:
    return job.table_uuid == table.table_uuid and not job.dry_run and job.attempt > 0


def get_job(session: Session, job_id: str) -> Job:
    """Raises NotFoundError."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFoundError("job-not-found", f"There is no job {job_id!r}.", "Look in the list of jobs.")
    return job


def is_system_paused(session: Session) -> bool:
    return bool(session.exec(_PAUSED).first())


def attempts_of(session: Session, job_id: str) -> list[AttemptView]:
    rows = session.exec(select(Attempt).where(Attempt.job_id == job_id).order_by(col(Attempt.attempt))).all()
    return [AttemptView.model_validate(row, from_attributes=True) for row in rows]


def last_claim_of(session: Session, table_id: str) -> datetime:
    at: datetime | None = session.connection().scalar(_LAST_CLAIM, {"table_id": table_id})
    return at if at is not None else NEVER


def lock_job(session: Session, job_id: str) -> Job:
    job = session.exec(_LOCKED_JOB, params={"job_id": job_id}).first()
    return job if job is not None else get_job(session, job_id)


def _find_queued(session: Session, job: Job) -> Job | None:
    """That stands for it: none does for a job that writes rows."""
    if JobKind(job.kind).writes_rows:
        return None
    asked = {"table_id": job.table_id, "kind": job.kind, "dry_run": job.dry_run}
    return session.exec(_QUEUED_ALIKE, params=asked).first()


def rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def check_index_unused(session: Session, row: EnrolledTable) -> None:
    """Raise ConflictError if another enrolment is of the same branch of the same Iceberg table."""
    other = session.exec(
        select(EnrolledTable).where(
            EnrolledTable.table_uuid == row.table_uuid,
            EnrolledTable.branch == row.branch,
            EnrolledTable.id != row.id,
            col(EnrolledTable.deleted_at).is_(None),
        )
    ).first()
    if other is not None:
        raise ConflictError(
            "index-in-use",
            f"Branch {row.branch!r} of this Iceberg table is also enrolled as {other.id} ({other.name}).",
            "Remove this one without dropping the index; drop it with the last enrolment.",
            table_id=other.id,
        )
