"""Claims: which job's turn it is, and what the worker that gets it is told.

Invariant: that at most one running job writes a table is enforced by the unique index
`uq_jobs_running_writer`, not here. Who loses that race begins again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar

import sqlalchemy
from sqlalchemy import (
    ColumnElement,
    Integer,
    SQLColumnExpression,
    String,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, and_, col, or_, select
from sqlmodel.sql.expression import Select, SelectOfScalar

from service.auth.models import Principal
from service.catalogs.service import index_warehouse
from service.db.database import UtcDateTime
from service.jobs import orphan_removals
from service.jobs.attempts import CLAIM_ANSWER_LOST, RunningAttempt, end_attempt, is_current
from service.jobs.budgets import spent_budget, spent_budget_of
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
from service.jobs.events import job_event, record_job_event
from service.jobs.index_reports import seen_equality_field_ids
from service.jobs.models import AttemptView
from service.jobs.ownership import is_own_attempt, own_worker
from service.jobs.queue import (
    STAGING_BRANCH_CHANGED,
    attempts_of,
    cancel,
    enqueue,
    is_of_another_branch,
    lock_job,
    rfc3339,
    rows_of,
)
from service.jobs.status import check_transition
from service.policies.effective import bounded, effective_policies, effective_policy
from service.policies.models import EffectivePolicy
from service.policies.schedules import is_open
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import POLICY, REQUEST, Attempt, AttemptStatus, Job, JobKind, JobStatus, LastClaim
from service.records.system import SystemState
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from service.webhooks.outbox import write_events
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
_EXPIRES_AGAIN_WITHIN = timedelta(days=90)
"""Whoever lets snapshots of a table expire, by whatever schedule."""
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


def _in_text(values: Iterable[str]) -> list[ColumnElement[str]]:
    """Constants of a statement: of parameters, no database knows which partial index has the rows.

    SQLite would look at their values, and prepare the statement anew each time.
    """
    return [literal_column(f"'{value}'", String) for value in values]


_QUEUED, _RUNNING = _in_text((JobStatus.QUEUED.value, JobStatus.RUNNING.value))
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
_CLAIMED = {
    dialect: row.on_conflict_do_update(index_elements=["table_id"], set_={"at": row.excluded.at})
    for dialect, row in (("sqlite", sqlite.insert(LastClaim)), ("postgresql", postgresql.insert(LastClaim)))
}
# But for those that another claim looks at: it may wait for this one, which must not wait for it.
_WAITING_BEHIND = (
    update(Job)
    .where(
        col(Job.id).in_(
            select(Job.id)
            .where(
                col(Job.status) == _QUEUED,
                Job.catalog_id == bindparam("of_catalog"),
                Job.table_id == bindparam("of_table"),
            )
            .with_for_update(skip_locked=True)
        )
    )
    .values(table_claimed_at=bindparam("now"))
)
_ENDED_ATTEMPTS_AT_ONCE = 100
_TRIED_AT_ONCE = 20
"""Jobs that a claim looks at, if others get them first or they must wait."""
Query = TypeVar("Query", bound=sqlalchemy.Select[*tuple[Any, ...]])


class _LostRaceError(Exception):
    """Another transaction let a job run meanwhile that writes the same table."""


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


class _InTurn(NamedTuple):
    """The job whose turn it is, locked, and what goes along with it."""

    job: Job
    table: EnrolledTable
    catalog: Catalog
    key_sets: list[dict[str, Any]]
    """Of the table's last report."""
    indexed_at: datetime | None
    done_elsewhere: dict[str, str]
    others_wait: bool
    """Whether other jobs of the table are queued."""
    has_plans: bool
    """Whether attempts at jobs of the Iceberg table may have left files."""


class _Given(NamedTuple):
    """A job that a worker is to run, and what else is known of it."""

    worker_id: str
    worker_name: str
    found: _InTurn
    policy: EffectivePolicy
    previous: Sequence[AttemptView]


def has_claimable(session: Session, now: datetime) -> bool:
    """Whether a claim would find anything; cheap, and takes no write lock."""
    return session.connection().scalar(_catalogs_in_turn(), {"now": now}) is not None


def count_workers_needed(session: Session, now: datetime) -> int:
    """How many workers would have something to do: one for each job that runs, or that a claim could get.

    Of the jobs that exclude each other, one counts.
    """
    claimable = _claimable_jobs().subquery()
    writers = select(func.count(claimable.c.table_uuid.distinct())).where(claimable.c.writes)
    others = select(func.count()).select_from(claimable).where(~claimable.c.writes)
    running = select(func.count()).where(Job.status == JobStatus.RUNNING.value)
    return sum(session.exec(query, params={"now": now}).one() for query in (writers, others, running))


def claim(session: Session, settings: Settings, ask: Ask, now: datetime) -> Assignment | None:
    """Give a job of the highest priority to a worker, or None.

    Raises NotFoundError for an unknown worker, ForbiddenError for one that the caller did not register.

    Of equal priority, the catalog with the fewest running jobs goes first, then the one whose last claim is
    longest ago, then likewise the table, then the job that waits longest. So nobody's many jobs hold up
    anybody's one. A job that a policy started waits if the policy's budget is spent.

    The session is for that alone: it is rolled back where the transaction must begin again.
    """
    for _ in range(_TRIED_AT_ONCE):
        names = _see_idle(session, [ask], now) or _see(session, ask, now)
        try:
            return _answer(session, settings, names, now).get(ask.worker_id)
        except _LostRaceError:
            session.rollback()  # the next try sees that the other job runs
    return None


def claim_together(
    session: Session, settings: Settings, asks: Sequence[Ask], now: datetime
) -> Mapping[str, Assignment | None]:
    """Answer claims in their order as `claim` does one after the other, by ids of workers.

    But for those of which there is more to say, or that lose a race: they may have to wait for locks.
    """
    try:
        return _answer(session, settings, _see_idle(session, asks, now), now)
    except _LostRaceError:
        session.rollback()
        return {}


def _answer(
    session: Session, settings: Settings, names: Mapping[str, str], now: datetime
) -> Mapping[str, Assignment | None]:
    """names: of workers that want a job. Raises _LostRaceError."""
    given = _give(session, settings, _free(session, names), now)
    _record_attempts(session, given, now)
    assignments = {each.worker_id: _assignment(session, settings, each, now) for each in given}
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
    not_run = running_attempts(session, ask.worker_id)
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


def _give(session: Session, settings: Settings, names: Mapping[str, str], now: datetime) -> Sequence[_Given]:
    """Let workers run the jobs whose turn it is, in their order. Raises _LostRaceError."""
    given: list[_Given] = []
    for _ in range(_TRIED_AT_ONCE + len(names)):
        workers = list(names.items())[len(given) :]
        found = _next_jobs(session, len(workers), now) if workers else []
        if not found:
            break
        given += _begin(session, settings, workers, found, now)
    return given


def _begin(
    session: Session,
    settings: Settings,
    workers: Sequence[tuple[str, str]],
    found: Sequence[_InTurn],
    now: datetime,
) -> Sequence[_Given]:
    """Let workers run jobs in their turn, up to the first whose turn may not have come: one before it is of
    the same table, or can't run."""
    policies = effective_policies(session, [each.table for each in found])
    begun: list[_Given] = []
    whose = set[str]()
    for worker, each, policy in zip(workers, found, policies, strict=False):
        job = each.job
        if whose & {job.table_id, job.table_uuid} or not _may_run(session, each, policy, begun, now):
            break
        whose |= {job.table_id, job.table_uuid}
        previous = attempts_of(session, job.id) if job.attempt else []
        begun.append(_Given(*worker, each, policy, previous))
    if begun:
        _start(session, settings, [each.found for each in begun], now)
    return begun


def _may_run(
    session: Session, found: _InTurn, policy: EffectivePolicy, begun: Sequence[_Given], now: datetime
) -> bool:
    """Whether a job may run beside those that have just begun; if not, it is not in turn any more."""
    job, table = found.job, found.table
    if job.kind == JobKind.DROP_INDEX.value and _is_index_used(session, job, table):
        cancel(session, job, "the table was enrolled again", now)
        return False
    if job.kind == JobKind.PUBLISH.value and is_of_another_branch(job, policy.publish.source):
        cancel(session, job, STAGING_BRANCH_CHANGED, now)
        return False
    more = sum(one.found.job.catalog_id == job.catalog_id for one in begun)
    return _has_room(session, found.catalog, more) and not _hold(session, job, table, policy, now)


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


def _has_room(session: Session, catalog: Catalog, more: int) -> bool:
    """Whether one job of a catalog may run beside so many more than are known to run; nobody else is told so
    until this transaction ends."""
    limit = catalog.max_running_jobs
    if limit is None or session.get_bind().dialect.name == "sqlite":
        return True
    session.execute(select(func.pg_advisory_xact_lock(func.hashtext(catalog.id))))
    return running_by_catalog(session).get(catalog.id, 0) + more < limit


def running_by_catalog(session: Session) -> dict[str, int]:
    """Numbers of running jobs by ids of catalogs; those without one are absent."""
    query = select(Job.catalog_id, func.count()).where(Job.status == JobStatus.RUNNING.value)
    return dict(session.exec(query.group_by(Job.catalog_id)).all())


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
    for job in session.exec(query.with_for_update(skip_locked=True)):
        job.available_at, job.held_because = min(job.available_at, now), None
        session.add(job)
        record_job_event(session, job, "job.queued", "No longer held: the budget allows it.", now)


def running_attempts(session: Session, worker_id: str) -> list[RunningAttempt]:
    """What a worker runs as far as is known here."""
    found = session.connection().execute(_RUNNING_ATTEMPTS, {"of_worker": worker_id})
    return sorted((job_id, attempt) for job_id, attempt in found)


def _next_jobs(session: Session, most: int, now: datetime) -> Sequence[_InTurn]:
    """The jobs whose turn it is, locked, with what goes along; so many at most."""
    dialect = session.get_bind().dialect.name
    found = session.exec(_jobs_in_turn(dialect), params={"now": now, "most": most}).all()
    if not found and dialect != "sqlite":  # nothing waits, or other claims look at all of these
        for catalog_id in session.connection().scalars(_catalogs_in_turn(), {"now": now}).all():
            found = session.exec(_first_job(), params={"now": now, "catalog_id": catalog_id}).all()
            if found:
                break
    return [_InTurn._make(row) for row in found]


@cache
def _catalogs_in_turn() -> SelectOfScalar[str]:
    """The catalogs that have a job which may start at `now`, in their turn."""
    first = aliased(Job)
    first_id = _claimable(select(Job.id)).where(Job.catalog_id == Catalog.id).order_by(*_turn(Job)).limit(1)
    priority, *rest = _turn(first)
    return (
        select(Catalog.id)
        .join(first, col(first.id) == first_id.correlate(Catalog).scalar_subquery())
        .where(*_has_turn())
        .order_by(priority, _running(), _claimed_at().nulls_first(), *rest)
    )


@cache
def _first_job() -> Any:
    """Of `catalog_id`, the first job that may start at `now` and that no other claim looks at."""
    query = _claimable(select(Job, EnrolledTable)).where(Job.catalog_id == bindparam("catalog_id"))
    return _with_all(query.order_by(*_turn(Job)).limit(1).with_for_update(skip_locked=True, of=Job))


@cache
def _jobs_in_turn(dialect: str) -> Any:
    """The first `most` jobs of those that would start at `now` one after the other, in that order, but for
    those that other claims look at.

    Of a catalog, each that starts is one more that runs, and its last claim.
    """
    now, most = bindparam("now", type_=UtcDateTime()), bindparam("most", type_=Integer)
    turns = (
        sqlalchemy.select(
            col(Catalog.id).label("catalog_id"),
            col(Catalog.max_running_jobs).label("most"),
            _running().label("running"),
            _claimed_at().label("claimed_at"),
        )
        .where(*_has_turn())
        .cte("turns")
        .prefix_with("MATERIALIZED")
    )
    nearest = _claimable(select(Job.id)).where(Job.catalog_id == turns.c.catalog_id).order_by(*_turn(Job))
    nearest, job = nearest.limit(most).correlate(turns), aliased(Job)
    if dialect == "sqlite":  # which has no LATERAL
        jobs = turns.join(job, col(job.id).in_(nearest))
    else:
        each = nearest.lateral()
        jobs = turns.join(each, true()).join(job, col(job.id) == each.c.id)
    nth = func.row_number().over(partition_by=turns.c.catalog_id, order_by=_turn(job))
    ranked: Any = (
        sqlalchemy.select(*map(col, (job.id, job.priority, job.table_claimed_at, job.available_at)))
        .add_columns(turns, nth.label("nth"))
        .select_from(jobs)
        .subquery()
    )
    last_claim = case((ranked.c.nth == 1, ranked.c.claimed_at), else_=now)
    running = ranked.c.running + ranked.c.nth
    order = ranked.c.priority.desc(), running, last_claim.nulls_first(), *_turn(ranked.c)[1:]
    chosen = (
        select(ranked.c.id, func.row_number().over(order_by=order).label("place"))
        .where(or_(ranked.c.most.is_(None), running <= ranked.c.most))
        .order_by("place")
        .limit(most)
        .subquery()
    )
    query = select(Job, EnrolledTable).join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
    # Of one that another claim has had meanwhile, both are new once it is locked: it may have failed since.
    may_start = col(Job.status) == _QUEUED, col(Job.available_at) <= now
    query = query.join(chosen, chosen.c.id == Job.id).where(*may_start)
    return _with_all(query.order_by(chosen.c.place).with_for_update(skip_locked=True, of=Job))


def _with_all(query: Any) -> Any:
    """A query of jobs and their tables, with the further columns of `_InTurn`; SQLModel types no more than
    four."""
    other, ended, of_ended = aliased(Job), aliased(Attempt), aliased(Job)
    others_wait = exists().where(
        col(other.status) == _QUEUED,
        col(other.catalog_id) == col(Job.catalog_id),
        col(other.table_id) == col(Job.table_id),
        col(other.id) != col(Job.id),
    )
    has_plans = exists().where(
        col(ended.plans).is_not(None),
        col(of_ended.id) == col(ended.job_id),
        col(of_ended.table_uuid) == col(Job.table_uuid),
    )
    return (
        query.add_columns(
            Catalog,
            col(TableHealth.key_sets),
            col(TableHealth.indexed_at),
            col(TableHealth.done_elsewhere),
            others_wait,
            has_plans,
        )
        .join(Catalog, col(Catalog.id) == col(Job.catalog_id))
        .join(TableHealth, col(TableHealth.table_id) == col(Job.table_id))
    )


@cache
def _claimable_jobs() -> Select[str, bool]:
    """All jobs that may start at `now`: what they write, and whether they do."""
    query = _claimable(select(Job.table_uuid, Job.writes))
    return query.join(Catalog, col(Catalog.id) == col(Job.catalog_id)).where(*_has_turn())


def _turn(job: type[Job]) -> Sequence[SQLColumnExpression[Any]]:
    """The order of the jobs of a catalog, which the index `ix_jobs_turn` has."""
    return col(job.priority).desc(), col(job.table_claimed_at), col(job.available_at), col(job.id)


def _claimed_at() -> ColumnElement[datetime]:
    """The last claim of a catalog."""
    query = select(func.max(LastClaim.at)).where(LastClaim.catalog_id == Catalog.id)
    return query.correlate(Catalog).scalar_subquery()


def _running() -> ColumnElement[int]:
    """How many jobs of a catalog run."""
    query = select(func.count()).where(Job.catalog_id == Catalog.id, col(Job.status) == _RUNNING)
    return query.correlate(Catalog).scalar_subquery()


def _has_turn() -> tuple[ColumnElement[bool], ...]:
    """Whether jobs of a catalog may start."""
    return (
        or_(col(Catalog.max_running_jobs).is_(None), _running() < col(Catalog.max_running_jobs)),
        # Nobody can resume a removed catalog.
        or_(~col(Catalog.paused), col(Catalog.deleted_at).is_not(None)),
        ~exists().where(col(SystemState.paused)),
    )


def _claimable(query: Query) -> Query:
    """Of a query of jobs, those that may start at the parameter `now` as far as their catalogs allow it."""
    rival, begun = aliased(Job), aliased(Job)
    writer_runs = exists().where(
        col(rival.table_uuid) == col(Job.table_uuid), col(rival.status) == _RUNNING, col(rival.writes)
    )
    waits = exists().where(col(begun.table_uuid) == col(Job.table_uuid), goes_first(begun, Job))
    return query.join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id)).where(
        col(Job.status) == _QUEUED,
        col(Job.available_at) <= bindparam("now", type_=UtcDateTime()),
        # The index of a removed table can still be dropped; nobody can resume such a table.
        or_(
            col(Job.kind) == JobKind.DROP_INDEX.value,
            and_(col(EnrolledTable.deleted_at).is_(None), ~col(EnrolledTable.paused)),
        ),
        or_(~col(Job.writes), ~writer_runs),
        or_(col(Job.kind).not_in(_in_text(_EXPIRING)), ~waits),
    )


def goes_first(begun: type[Job], job: type[Job]) -> ColumnElement[bool]:
    """Whether a job has begun to write rows of the same table, or to let snapshots expire, and may go on, and
    another one waits until it has ended: it lets snapshots expire, by which the other finds what it has done.

    Of two such that have begun, none waits for the other.
    """
    return and_(
        col(job.kind).in_(_in_text(_EXPIRING)),
        col(begun.id) != col(job.id),
        col(begun.status) == _QUEUED,
        col(begun.attempt) > 0,
        col(begun.writes),
        col(begun.kind).in_(_in_text(_TOLD_BY_SNAPSHOTS)),
        or_(col(begun.kind).not_in(_in_text(_EXPIRING)), col(job.attempt) == 0),
    )


def _start(session: Session, settings: Settings, begun: Sequence[_InTurn], now: datetime) -> None:
    """Let locked jobs run, which puts their tables behind the others. Raises _LostRaceError."""
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
        raise _LostRaceError from error
    for job, values in zip(jobs, started, strict=True):
        check_transition(JobStatus(job.status), JobStatus.RUNNING)
        for name, value in values.items():
            set_committed_value(job, name, value)
    claimed = [
        {"table_id": job.table_id, "catalog_id": job.catalog_id, "at": now}
        for job in sorted(jobs, key=lambda job: job.table_id)
    ]
    connection.execute(_CLAIMED[connection.dialect.name], claimed)
    places = [
        {"of_table": each.job.table_id, "of_catalog": each.job.catalog_id, "now": now}
        for each in begun
        if each.others_wait
    ]
    if places:
        connection.execute(_WAITING_BEHIND, places)


def _record_attempts(session: Session, given: Sequence[_Given], now: datetime) -> None:
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


def _assignment(
    session: Session,
    settings: Settings,
    given: _Given,
    now: datetime,
) -> Assignment:
    found, policy, previous = given.found, given.policy, given.previous
    job, table, catalog = found.job, found.table, found.catalog
    listed = orphan_removals.listed_for(session, job, now)
    return Assignment(
        job=AssignedJob(id=job.id, kind=job.kind, dry_run=job.dry_run, parameters=job.parameters),
        traceparent=job.traceparent,
        attempt=job.attempt,
        previous_attempts=previous,
        ended_attempts=_with_orphan_files(session, job, table) if found.has_plans else [],
        lease_seconds=settings.lease_seconds,
        lease_expires_at=job.lease_expires_at,
        timeout_seconds=job.timeout_seconds,
        table=AssignedTable(
            id=table.id,
            identifier=table.identifier,
            table_uuid=job.table_uuid,
            location=table.location,
            branch=table.branch,
            staging_branch=policy.publish.source or None,
            key_sets=table.key_sets,
            seen_equality_field_ids=seen_equality_field_ids(found.key_sets),
            overlapping_locations=_overlapping_locations(session, job, table),
            snapshots_expire_elsewhere=expire_elsewhere(found.done_elsewhere, now),
        ),
        catalog=AssignedCatalog(name=catalog.name, type=catalog.type, properties=catalog.properties),
        index=AssignedIndex(
            warehouse=index_warehouse(settings, catalog),
            takes_new_files=_takes_new_files(session, job, table, found.indexed_at, policy, previous, now),
        ),
        policy=bounded(policy, settings),
        allowed_locations=list(settings.location_roots),
        allowed_hosts=list(settings.host_rules),
        allowed_secrets=list(settings.secret_rules),
        own_files=list(settings.own_files),
        rows=rows_of(session, job),
        orphan_files=listed.files,
        orphans_older_than=listed.older_than,
    )


def _takes_new_files(
    session: Session,
    job: Job,
    table: EnrolledTable,
    indexed_at: datetime | None,
    policy: EffectivePolicy,
    previous: Sequence[AttemptView],
    now: datetime,
) -> bool:
    """Whether half the time is over for which new data files may wait for an index, and an index job could
    start by itself.

    One attempt then does what would take two. There is an index if there was an indexing. What an earlier
    attempt may have died of is not tried again: the conversion itself is to succeed.
    """
    if job.kind != JobKind.CONVERT.value or job.dry_run or not policy.index.enabled:
        return False
    if indexed_at is None or (now - indexed_at).total_seconds() < policy.index.age_seconds / 2:
        return False
    if any(one.status in (AttemptStatus.FAILED, AttemptStatus.LOST) for one in previous):
        return False
    if not is_open(policy.schedule.windows, policy.schedule.time_zone, now):
        return False
    return spent_budget(session, table, policy, now) is None and not _has_index_job_failed(session, table)


def _has_index_job_failed(session: Session, table: EnrolledTable) -> bool:
    """Whether the last one did: one that succeeds comes first then."""
    query = select(Job.status).where(
        Job.table_id == table.id,
        Job.kind == JobKind.INDEX.value,
        ~col(Job.dry_run),
        col(Job.status).in_((JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)),
    )
    last = session.exec(query.order_by(col(Job.ended_at).desc()).limit(1)).first()
    return last == JobStatus.FAILED.value


def expire_elsewhere(done_elsewhere: dict[str, str], now: datetime) -> bool:
    """Whether somebody else was seen to let snapshots expire, and may do it again."""
    seen_at = done_elsewhere.get(JobKind.EXPIRE_SNAPSHOTS.value)
    return seen_at is not None and now - datetime.fromisoformat(seen_at) < _EXPIRES_AGAIN_WITHIN


def _overlapping_locations(session: Session, job: Job, table: EnrolledTable) -> list[str]:
    """Places of other tables than this one, which may be enrolled once more for another branch."""
    if job.kind not in (JobKind.EXPIRE_SNAPSHOTS.value, JobKind.REMOVE_ORPHAN_FILES.value):
        return []
    query = select(EnrolledTable.location, EnrolledTable.other_locations).where(
        col(EnrolledTable.deleted_at).is_(None),
        (EnrolledTable.catalog_id != table.catalog_id) | (EnrolledTable.name != table.name),
    )
    others = {place for location, more in session.exec(query) for place in (location, *more)}
    return sorted(
        other for other in others if is_under(other, table.location) or is_under(table.location, other)
    )


def _with_orphan_files(session: Session, job: Job, table: EnrolledTable) -> list[EndedAttempt]:
    """Attempts at jobs of the table that may have left orphan files, for a job that may remove these.

    Of the table in its catalog: another one may give a table of its own the same UUID.
    """
    if job.kind not in _CLEARING or job.dry_run:
        return []
    whose = {
        "job_id": job.id,
        "table_uuid": job.table_uuid,
        "catalog_id": table.catalog_id,
        "branch": table.branch,
    }
    rows = session.connection().execute(_with_plans(), {**whose, "most": _ENDED_ATTEMPTS_AT_ONCE})
    found = [EndedAttempt.model_validate(row, from_attributes=True) for row in rows]
    return sorted(found, key=lambda one: (one.job_id, one.attempt))


@cache
def _with_plans() -> SelectOfScalar[Attempt]:
    """Of the jobs of an Iceberg table and branch in a catalog."""
    return (
        select(Attempt)
        .join(Job, col(Job.id) == col(Attempt.job_id))
        # The table may have been removed and registered again.
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.table_uuid == bindparam("table_uuid"),
            EnrolledTable.branch == bindparam("branch"),
            EnrolledTable.catalog_id == bindparam("catalog_id"),
            col(Attempt.plans).is_not(None),
            Attempt.status != AttemptStatus.RUNNING.value,
        )
        # Its own, which it goes on with. Of others, if there are more, each gets its turn, also behind ones
        # that can't be removed yet.
        .order_by(col(Attempt.job_id) != bindparam("job_id"), func.random())
        .limit(bindparam("most"))
    )
