"""Claims: which job's turn it is, and what the worker that gets it is told.

Invariant: that at most one running job writes a table is enforced by the unique index
`uq_jobs_running_writer`, not here. Losing that race leaves jobs of other tables to try.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import cache
from typing import TypeVarTuple

from sqlalchemy import CTE, ColumnElement, bindparam, exists, func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased
from sqlmodel import Session, and_, col, or_, select
from sqlmodel.sql.expression import Select

from service.auth.models import Principal
from service.catalogs.service import index_warehouse
from service.db.database import UtcDateTime
from service.jobs import orphan_removals
from service.jobs.attempts import CLAIM_ANSWER_LOST, RunningAttempt, end_attempt, is_current
from service.jobs.budgets import spent_budget
from service.jobs.contract import (
    AssignedCatalog,
    AssignedIndex,
    AssignedJob,
    AssignedTable,
    Assignment,
    AttemptId,
    EndedAttempt,
    ErrorReport,
)
from service.jobs.events import record_job_event
from service.jobs.index_reports import seen_equality_field_ids
from service.jobs.ownership import is_own_attempt, own_worker
from service.jobs.queue import (
    STAGING_BRANCH_CHANGED,
    attempts_of,
    cancel,
    change_status,
    enqueue,
    is_of_another_branch,
    lock_job,
    rfc3339,
    rows_of,
)
from service.policies.service import bounded, effective_policy
from service.records.catalogs import Catalog
from service.records.jobs import POLICY, REQUEST, Attempt, AttemptStatus, Job, JobKind, JobStatus, LastClaim
from service.records.system import SystemState
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from telemetry.traces import record_span
from trust.locations import is_under

_CLEARING = tuple(
    kind.value
    for kind in JobKind
    if kind.writes_rows
    or kind
    in (
        JobKind.CONVERT,
        JobKind.PUBLISH,
        JobKind.EXPIRE_SNAPSHOTS,
        JobKind.REWRITE_DATA_FILES,
        JobKind.REWRITE_POSITION_DELETE_FILES,
        JobKind.COMPACT,
    )
)
_EXPIRING = tuple(kind.value for kind in JobKind if kind.lets_snapshots_expire)
_TOLD_BY_SNAPSHOTS = (
    *(kind.value for kind in JobKind if kind.writes_rows),
    JobKind.PUBLISH.value,
    JobKind.EXPIRE_SNAPSHOTS.value,
)
_CUT_OFF = ErrorReport(
    code="worker_cut_off",
    title="The worker could not report this attempt",
    detail="It ran the attempt, and gave it up since the service could not be reached.",
    remedy="Nothing to do if a further attempt follows; if it happens often, look at the network between"
    " worker and service.",
    retryable=True,
)
_ENDED_ATTEMPTS_AT_ONCE = 100
_TRIED_AT_ONCE = 20
"""Jobs that a claim looks at, if others get them first or they must wait."""
Columns = TypeVarTuple("Columns")


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
    caller: Principal,
    worker_id: str,
    now: datetime,
    *,
    given_up: Collection[AttemptId] = (),
    has_waited: bool = False,
    is_stopping: bool = False,
) -> Assignment | None:
    """Give a job of the highest priority to a worker, or None.

    Raises NotFoundError for an unknown worker, ForbiddenError for one that the caller did not register.

    Of equal priority, the catalog with the fewest running jobs goes first, then the one whose last claim is
    longest ago, then likewise the table, then the job that waits longest. So nobody's many jobs hold up
    anybody's one. A job that a policy started waits if the policy's budget is spent.

    A worker runs one job at a time, so an attempt that it has when it asks is one that it does not run: it
    has `given_up` that one, or never heard of it. If it `has_waited` since it asked, it got that attempt by
    another call and needs no job from this one. If it `is_stopping`, it gets none, and hands that one back.
    """
    worker = own_worker(session, worker_id, caller)
    not_run = running_attempts(session, worker_id)
    if has_waited and not_run:
        return None
    # Before the worker's own row is locked: a heartbeat locks them in this order, too.
    for job_id, attempt in not_run:
        lost = lock_job(session, job_id)
        if is_current(lost, attempt):
            running = session.get_one(Attempt, (job_id, attempt))
            has_run = AttemptId(job_id=job_id, attempt=attempt) in given_up
            if is_stopping and not has_run:
                end_attempt(session, lost, running, AttemptStatus.RELEASED, None, now)
            else:
                cause = _CUT_OFF if has_run else CLAIM_ANSWER_LOST
                end_attempt(session, lost, running, AttemptStatus.LOST, cause, now)
    for attempt_id in given_up:
        if not is_own_attempt(session, attempt_id.job_id, attempt_id.attempt, caller):
            continue
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
        job, table, catalog, last_claim = found
        if job.kind == JobKind.DROP_INDEX.value and _is_index_used(session, job, table):
            cancel(session, job, "the table was enrolled again", now)
            continue
        if job.kind == JobKind.PUBLISH.value and is_of_another_branch(
            job, effective_policy(session, table).publish.source
        ):
            cancel(session, job, STAGING_BRANCH_CHANGED, now)
            continue
        if not _has_room(session, catalog) or _hold(session, job, table, now):
            continue
        try:
            with session.begin_nested():
                return _start_attempt(session, settings, job, table, catalog, last_claim, worker, now)
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
        enqueue(session, table, JobKind.DROP_INDEX, policy, now, trigger=why, requested_by=POLICY)


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
    record_job_event(session, job, "job.held", sentence, now, available_at=rfc3339(spent.until))
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


def running_attempts(session: Session, worker_id: str) -> list[RunningAttempt]:
    """What a worker runs as far as is known here."""
    query = select(Attempt.job_id, Attempt.attempt).where(
        Attempt.worker_id == worker_id, Attempt.status == AttemptStatus.RUNNING.value
    )
    return sorted((job_id, attempt) for job_id, attempt in session.exec(query))


@cache  # Putting a query together takes longer than most take to run.
def _next_job() -> Select[Job, EnrolledTable, Catalog, LastClaim]:
    """The job whose turn it is at `now`, locked, with its table, its catalog and the table's last claim."""
    running = _running()
    of_catalog = (
        select(col(LastClaim.catalog_id).label("catalog_id"), func.max(LastClaim.at).label("at"))
        .group_by(col(LastClaim.catalog_id))
        .cte("last_claim_of_catalog")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    return (
        _claimable(select(Job, EnrolledTable, Catalog, LastClaim), running)
        .join(of_catalog, of_catalog.c.catalog_id == col(EnrolledTable.catalog_id), isouter=True)
        .join(LastClaim, col(LastClaim.table_id) == col(Job.table_id), isouter=True)
        .order_by(
            col(Job.priority).desc(),
            func.coalesce(running.c.jobs, 0),
            of_catalog.c.at.nulls_first(),
            col(LastClaim.at).nulls_first(),
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
    begun = aliased(Job)
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
            ~exists().where(col(begun.table_uuid) == col(Job.table_uuid), goes_first(begun, Job)),
        )
    )


def goes_first(begun: type[Job], job: type[Job]) -> ColumnElement[bool]:
    """Whether a job has begun to write rows of the same table, or to let snapshots expire, and may go on, and
    another one waits until it has ended: it lets snapshots expire, by which the other finds what it has done.

    Of two such that have begun, none waits for the other.
    """
    return and_(
        col(job.kind).in_(_EXPIRING),
        col(begun.id) != col(job.id),
        col(begun.status) == JobStatus.QUEUED.value,
        col(begun.attempt) > 0,
        col(begun.writes),
        col(begun.kind).in_(_TOLD_BY_SNAPSHOTS),
        or_(col(begun.kind).not_in(_EXPIRING), col(job.attempt) == 0),
    )


def _start_attempt(
    session: Session,
    settings: Settings,
    job: Job,
    table: EnrolledTable,
    catalog: Catalog,
    last_claim: LastClaim | None,
    worker: Worker,
    now: datetime,
) -> Assignment:
    previous = attempts_of(session, job.id) if job.attempt else []
    expires_at = now + timedelta(seconds=settings.lease_seconds)
    change_status(job, JobStatus.RUNNING)
    job.attempt += 1
    job.started_at = job.started_at or now
    job.lease_expires_at = expires_at
    job.progress = None
    job.held_because = None
    session.add(job)
    last_claim = last_claim or LastClaim(table_id=table.id, catalog_id=table.catalog_id, at=now)
    last_claim.at = now
    session.add(last_claim)
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
    policy = effective_policy(session, table)
    waited_since = max([job.available_at, *(each.ended_at for each in previous if each.ended_at)])
    record_span("wait", job.traceparent, waited_since, now, job_id=job.id, attempt=job.attempt)
    return Assignment(
        job=AssignedJob(id=job.id, kind=job.kind, dry_run=job.dry_run, parameters=job.parameters),
        traceparent=job.traceparent,
        attempt=job.attempt,
        previous_attempts=previous,
        ended_attempts=_with_orphan_files(session, job, table),
        lease_seconds=settings.lease_seconds,
        lease_expires_at=expires_at,
        timeout_seconds=job.timeout_seconds,
        table=AssignedTable(
            id=table.id,
            identifier=table.identifier,
            table_uuid=job.table_uuid,
            location=table.location,
            branch=table.branch,
            staging_branch=policy.publish.source or None,
            key_sets=table.key_sets,
            seen_equality_field_ids=seen_equality_field_ids(session, table.id),
            overlapping_locations=_overlapping_locations(session, job, table),
        ),
        catalog=AssignedCatalog(name=catalog.name, type=catalog.type, properties=catalog.properties),
        index=AssignedIndex(warehouse=index_warehouse(settings, catalog)),
        policy=bounded(policy, settings),
        allowed_locations=list(settings.location_roots),
        allowed_hosts=list(settings.host_rules),
        allowed_secrets=list(settings.secret_rules),
        own_files=list(settings.own_files),
        rows=rows_of(session, job),
        orphan_files=orphan_removals.listed_for(session, job),
    )


def _overlapping_locations(session: Session, job: Job, table: EnrolledTable) -> list[str]:
    """Of other tables than this one, which may be enrolled once more for another branch."""
    if job.kind not in (JobKind.EXPIRE_SNAPSHOTS.value, JobKind.REMOVE_ORPHAN_FILES.value):
        return []
    query = select(EnrolledTable.location).where(
        col(EnrolledTable.deleted_at).is_(None),
        (EnrolledTable.catalog_id != table.catalog_id) | (EnrolledTable.name != table.name),
    )
    return sorted(
        other
        for other in set(session.exec(query))
        if is_under(other, table.location) or is_under(table.location, other)
    )


def _with_orphan_files(session: Session, job: Job, table: EnrolledTable) -> list[EndedAttempt]:
    """Attempts at jobs of the table that may have left orphan files, for a job that may remove these.

    Of the table in its catalog: another one may give a table of its own the same UUID.
    """
    if job.kind not in _CLEARING or job.dry_run:
        return []
    query = (
        select(Attempt)
        .join(Job, col(Job.id) == col(Attempt.job_id))
        # The table may have been removed and registered again.
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.table_uuid == job.table_uuid,
            EnrolledTable.branch == table.branch,
            EnrolledTable.catalog_id == table.catalog_id,
            col(Attempt.plans).is_not(None),
            Attempt.status != AttemptStatus.RUNNING.value,
        )
        # Its own, which it goes on with. Of others, if there are more, each gets its turn, also behind ones
        # that can't be removed yet.
        .order_by(col(Attempt.job_id) != job.id, func.random())
        .limit(_ENDED_ATTEMPTS_AT_ONCE)
    )
    found = [EndedAttempt.model_validate(row, from_attributes=True) for row in session.exec(query)]
    return sorted(found, key=lambda one: (one.job_id, one.attempt))
