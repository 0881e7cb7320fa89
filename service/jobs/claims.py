"""Claims: workers get the jobs whose turn it is.

Invariant: that at most one running job writes a table is enforced by the unique index
`uq_jobs_running_writer`, not here. Who loses that race begins again.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, exists, insert, text, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, col, select

from service.auth.models import Principal
from service.db.together import LostRaceError
from service.jobs.assignments import Given, assignment_of
from service.jobs.attempts import CLAIM_ANSWER_LOST, end_attempt, is_current
from service.jobs.budgets import spent_budget, spent_budget_of
from service.jobs.contract import Assignment, AttemptId, ErrorReport
from service.jobs.events import job_event, record_job_event
from service.jobs.fair_share import NextJob, next_jobs, put_behind, running_by_catalog
from service.jobs.ownership import is_own_attempt, own_worker
from service.jobs.queue import (
    STAGING_BRANCH_CHANGED,
    attempts_of,
    cancel,
    enqueue,
    is_of_another_branch,
    lock_job,
    rfc3339,
)
from service.jobs.status import check_transition
from service.policies.effective import effective_policies, effective_policy
from service.policies.models import EffectivePolicy
from service.records.catalogs import Catalog
from service.records.jobs import POLICY, REQUEST, Attempt, AttemptStatus, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from service.webhooks.outbox import write_events
from telemetry.traces import record_span

_CUT_OFF = ErrorReport(
    code="worker_cut_off",
    title="The worker could not report this attempt",
    detail="It ran the attempt, and gave it up since the service could not be reached.",
    remedy="Nothing to do if a further attempt follows; if it happens often, look at the network between"
    " worker and service.",
    retryable=True,
)


# Putting a statement together takes longer than most take to run.
_RUNNING_ATTEMPTS = select(Attempt.job_id, Attempt.attempt).where(
    Attempt.worker_id == bindparam("of_worker"), Attempt.status == AttemptStatus.RUNNING.value
)
_SEEN = update(Worker).where(col(Worker.id) == bindparam("of_worker")).values(last_seen_at=bindparam("now"))
_BUSY = select(Attempt.worker_id).where(
    col(Attempt.worker_id).in_(bindparam("of_workers", expanding=True)),
    Attempt.status == AttemptStatus.RUNNING.value,
)
_SEEN_IDLE = (
    update(Worker)
    .where(
        col(Worker.id).in_(bindparam("of_workers", expanding=True)),  # by its index, which pairs are not
        tuple_(col(Worker.id), col(Worker.registered_by)).in_(bindparam("of_callers", expanding=True)),
        ~exists().where(
            col(Attempt.worker_id) == col(Worker.id), col(Attempt.status) == AttemptStatus.RUNNING.value
        ),
    )
    .values(last_seen_at=bindparam("now"))
    .returning(col(Worker.id), col(Worker.name))
)
_START = update(Job).where(col(Job.id) == bindparam("of_job"))
_ATTEMPT = insert(Attempt)
_LOCK_CATALOGS = text(
    "SELECT pg_advisory_xact_lock(key) FROM"
    " (SELECT hashtext(id) AS key FROM unnest(CAST(:ids AS text[])) AS id ORDER BY key) AS keys"
)
_TRY_CATALOGS = text(
    "SELECT bool_and(pg_try_advisory_xact_lock(hashtext(id))) FROM unnest(CAST(:ids AS text[])) AS id"
)
_TRIED_AT_ONCE = 20
"""Jobs that a claim looks at, if others get them first or they must wait."""


class Ask(NamedTuple):
    """A worker asks for a job.

    It runs one at a time, so an attempt that it has when it asks is one that it does not run: it has
    `given_up` that one, or never heard of it. If it `has_waited` since it asked, it got that attempt by
    another call and needs no job from this one. If it `is_stopping`, it gets none, and hands that one back.
    """

    caller: Principal
    worker_id: str
    given_up: Collection[AttemptId] = ()
    has_waited: bool = False
    is_stopping: bool = False


def claim(session: Session, settings: Settings, ask: Ask, now: datetime) -> Assignment | None:
    """Give a job of the highest priority to a worker, or None.

    Raises NotFoundError for an unknown worker, ForbiddenError for one that the caller did not register.

    Whose turn it is, `service.jobs.fair_share` says. A job that a policy started waits if the policy's budget
    is spent.

    The session is for that alone: it is rolled back where the transaction must begin again.
    """
    for _ in range(_TRIED_AT_ONCE):
        names = _see_idle(session, [ask], now) or _see(session, ask, now)
        try:
            return _answer(session, settings, names, now).get(ask.worker_id)
        except LostRaceError:
            session.rollback()  # the next try sees that the other job runs
    return None


def claim_together(
    session: Session, settings: Settings, asks: Sequence[Ask], now: datetime
) -> Mapping[str, Assignment | None]:
    """Answer claims in their order as `claim` does one after the other, by ids of workers.

    But for those of which there is more to say: they may have to wait for locks. Raises LostRaceError.
    """
    return _answer(session, settings, _see_idle(session, asks, now), now)


def _answer(
    session: Session, settings: Settings, names: Mapping[str, str], now: datetime
) -> Mapping[str, Assignment | None]:
    """names: of workers that want a job. Raises LostRaceError."""
    given = _give(session, settings, _free(session, names), now)
    _record_attempts(session, given, now)
    assignments = {each.worker_id: assignment_of(session, settings, each, now) for each in given}
    return {worker_id: assignments.get(worker_id) for worker_id in names}


def _see_idle(session: Session, asks: Sequence[Ask], now: datetime) -> dict[str, str]:
    """Note that workers of their callers were heard of that have nothing to run, and want a job; their names.

    These are nearly all, and it takes one statement.
    """
    plain = [(ask.worker_id, ask.caller.key) for ask in asks if not ask.given_up and not ask.is_stopping]
    if not plain:
        return {}
    asked = {"of_workers": [worker_id for worker_id, _ in plain], "of_callers": plain, "now": now}
    idle = {row.id: row.name for row in session.connection().execute(_SEEN_IDLE, asked)}
    return {worker_id: idle[worker_id] for worker_id, _ in plain if worker_id in idle}


def _see(session: Session, ask: Ask, now: datetime) -> dict[str, str]:
    """Note that a worker was heard of, and end what it does not run; its name if it wants a job."""
    worker = own_worker(session, ask.worker_id, ask.caller)
    running_attempts = session.connection().execute(_RUNNING_ATTEMPTS, {"of_worker": ask.worker_id})
    not_run = sorted((job_id, attempt) for job_id, attempt in running_attempts)
    if ask.has_waited and not_run:
        return {}
    # Before the worker's own row is locked: a heartbeat locks them in this order, too.
    for job_id, attempt in not_run:
        lost = lock_job(session, job_id)
        if is_current(lost, attempt):
            running = session.get_one(Attempt, (job_id, attempt))
            has_run = AttemptId(job_id=job_id, attempt=attempt) in ask.given_up
            if ask.is_stopping and not has_run:
                end_attempt(session, lost, running, AttemptStatus.RELEASED, None, now)
            else:
                cause = _CUT_OFF if has_run else CLAIM_ANSWER_LOST
                end_attempt(session, lost, running, AttemptStatus.LOST, cause, now)
    for attempt_id in ask.given_up:
        if not is_own_attempt(session, attempt_id.job_id, attempt_id.attempt, ask.caller):
            continue
        _drop_again(session, attempt_id.job_id, now)
    session.flush()
    session.connection().execute(_SEEN, {"of_worker": ask.worker_id, "now": now})
    return {} if ask.is_stopping else {worker.id: worker.name}


def _free(session: Session, names: Mapping[str, str]) -> Mapping[str, str]:
    """Without workers that another claim has just given a job: what waited for their rows has not seen it."""
    if session.get_bind().dialect.name == "sqlite" or not names:
        return names
    busy = set(session.connection().scalars(_BUSY, {"of_workers": list(names)}))
    return {worker_id: name for worker_id, name in names.items() if worker_id not in busy}


def _give(session: Session, settings: Settings, names: Mapping[str, str], now: datetime) -> Sequence[Given]:
    """Let workers run the jobs whose turn it is, in their order. Raises LostRaceError."""
    given: list[Given] = []
    for number in range(_TRIED_AT_ONCE + len(names)):
        workers = list(names.items())[len(given) :]
        found = next_jobs(session, len(workers), now) if workers else []
        if not found:
            break
        room = _room(session, [each.catalog for each in found], may_wait=number == 0)
        given += _begin(session, settings, workers, found, room, now)
    return given


def _begin(
    session: Session,
    settings: Settings,
    workers: Sequence[tuple[str, str]],
    found: Sequence[NextJob],
    room: dict[str, float],
    now: datetime,
) -> Sequence[Given]:
    """Let workers run jobs in their turn, up to the first whose turn may not have come: one before it is of
    the same table, or can't run."""
    policies = effective_policies(session, [each.table for each in found])
    begun: list[Given] = []
    whose = set[str]()
    for worker, each, policy in zip(workers, found, policies, strict=False):
        job = each.job
        if whose & {job.table_id, job.table_uuid} or room[job.catalog_id] < 1:
            break
        if not _may_run(session, job, each.table, policy, now):
            break
        whose |= {job.table_id, job.table_uuid}
        room[job.catalog_id] -= 1
        previous = attempts_of(session, job.id) if job.attempt else []
        begun.append(Given(*worker, each, policy, previous))
    if begun:
        _start(session, settings, [each.found for each in begun], now)
    return begun


def _room(session: Session, catalogs: Sequence[Catalog], *, may_wait: bool) -> dict[str, float]:
    """How many jobs of catalogs may run beside those that do, until this transaction ends.

    Raises LostRaceError if another one lets some of theirs run: who waits for that does so before all else,
    and in one order, so that nobody waits for who waits for him.
    """
    limits = {each.id: each.max_running_jobs for each in catalogs}
    limited = [catalog_id for catalog_id, limit in limits.items() if limit is not None]
    if not limited or session.get_bind().dialect.name == "sqlite":  # where they were just counted
        return dict.fromkeys(limits, math.inf)
    connection = session.connection()
    if may_wait:
        connection.execute(_LOCK_CATALOGS, {"ids": limited})
    elif not connection.scalar(_TRY_CATALOGS, {"ids": limited}):
        raise LostRaceError
    running = running_by_catalog(session)
    return {
        catalog_id: math.inf if limit is None else limit - running.get(catalog_id, 0)
        for catalog_id, limit in limits.items()
    }


def _may_run(
    session: Session, job: Job, table: EnrolledTable, policy: EffectivePolicy, now: datetime
) -> bool:
    """Whether a job may run; if not, it is not in turn any more."""
    if job.kind == JobKind.DROP_INDEX.value and _is_index_used(session, job, table):
        cancel(session, job, "the table was enrolled again", now)
        return False
    if is_of_another_branch(job, policy.publish.source):
        cancel(session, job, STAGING_BRANCH_CHANGED, now)
        return False
    return not _hold(session, job, table, policy, now)


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


def _hold(session: Session, job: Job, table: EnrolledTable, policy: EffectivePolicy, now: datetime) -> bool:
    """Let a job that a policy started wait until its budget is refilled, if it is spent."""
    if job.trigger == REQUEST:
        return False
    spent = spent_budget(session, table, policy, now) or spent_budget_of(
        session, table, policy, JobKind(job.kind), now
    )
    if spent is None:
        return False
    job.available_at, job.held_because = spent.until, spent.reason
    session.add(job)
    sentence = f"Held: {spent.reason}. Requesting one runs it at once."
    record_job_event(session, job, "job.held", sentence, now, available_at=rfc3339(spent.until))
    return True


def release_held(session: Session, table_id: str, kinds: Collection[JobKind], now: datetime) -> None:
    """Let the held jobs of a table go that are of these kinds, since their budget is no longer spent."""
    query = select(Job).where(
        Job.table_id == table_id,
        col(Job.kind).in_([kind.value for kind in kinds]),
        Job.status == JobStatus.QUEUED.value,
        col(Job.held_because).is_not(None),
    )
    locked = query.with_for_update(skip_locked=True).execution_options(populate_existing=True)
    for job in session.exec(locked):
        job.available_at, job.held_because = min(job.available_at, now), None
        session.add(job)
        record_job_event(session, job, "job.queued", "No longer held: the budget allows it.", now)


def _start(session: Session, settings: Settings, begun: Sequence[NextJob], now: datetime) -> None:
    """Let locked jobs run, which puts their tables behind the others. Raises LostRaceError."""
    jobs, connection = [each.job for each in begun], session.connection()
    started = [
        {
            "status": JobStatus.RUNNING.value,
            "attempt": job.attempt + 1,
            "started_at": job.started_at or now,
            "lease_expires_at": now + timedelta(seconds=settings.lease_seconds),
            "progress": None,
            "held_because": None,
        }
        for job in jobs
    ]
    try:
        # By table, since whoever starts another job of one is waited for.
        of_jobs = sorted(zip(jobs, started, strict=True), key=lambda each: each[0].table_uuid)
        connection.execute(_START, [{"of_job": job.id, **values} for job, values in of_jobs])
    except IntegrityError as error:
        raise LostRaceError from error
    for job, values in zip(jobs, started, strict=True):
        check_transition(JobStatus(job.status), JobStatus.RUNNING)
        for name, value in values.items():
            set_committed_value(job, name, value)
    put_behind(session, begun, now)


def _record_attempts(session: Session, given: Sequence[Given], now: datetime) -> None:
    if not given:
        return
    jobs = [each.found.job for each in given]
    attempts: list[dict[str, Any]] = [
        {
            "job_id": job.id,
            "attempt": job.attempt,
            "worker_id": each.worker_id,
            "worker_name": each.worker_name,
            "started_at": now,
            "lease_expires_at": job.lease_expires_at,
            "stages": [],
        }
        for each, job in zip(given, jobs, strict=True)
    ]
    session.connection().execute(_ATTEMPT, attempts)
    write_events(
        session,
        [
            job_event(
                job,
                "job.running",
                f"Attempt {job.attempt} started on {each.worker_name}.",
                now,
                worker_id=each.worker_id,
            )
            for each, job in zip(given, jobs, strict=True)
        ],
    )
    for each, job in zip(given, jobs, strict=True):
        waited_since = max([job.available_at, *(one.ended_at for one in each.previous if one.ended_at)])
        record_span("wait", job.traceparent, waited_since, now, job_id=job.id, attempt=job.attempt)
