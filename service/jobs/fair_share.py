"""Whose turn it is: the jobs that may start, in their order.

Of equal priority, the catalog with the fewest running jobs goes first, then the one whose last claim is
longest ago, then likewise the table, then the job that waits longest. So nobody's many jobs hold up
anybody's one.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
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
    literal_column,
    true,
    update,
)
from sqlalchemy.orm import aliased
from sqlmodel import Session, and_, col, or_, select
from sqlmodel.sql.expression import Select, SelectOfScalar

from service.db.database import UtcDateTime, upsert
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import Attempt, Job, JobKind, JobStatus, LastClaim
from service.records.system import SystemState
from service.records.tables import EnrolledTable

_EXPIRING = tuple(kind.value for kind in JobKind if kind.lets_snapshots_expire)
_TOLD_BY_SNAPSHOTS = (
    *(kind.value for kind in JobKind if kind.writes_rows),
    JobKind.PUBLISH.value,
    JobKind.EXPIRE_SNAPSHOTS.value,
)


def in_text(values: Iterable[str]) -> list[ColumnElement[str]]:
    """Constants of a statement: of parameters, no database knows which partial index has the rows.

    SQLite would look at their values, and prepare the statement anew each time.
    """
    return [literal_column(f"'{value}'", String) for value in values]


_QUEUED, _RUNNING = in_text((JobStatus.QUEUED.value, JobStatus.RUNNING.value))

_claim = upsert(LastClaim, lambda new: {"at": new.at})
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
Query = TypeVar("Query", bound=sqlalchemy.Select[*tuple[Any, ...]])


class NextJob(NamedTuple):
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


def next_jobs(session: Session, most: int, now: datetime) -> Sequence[NextJob]:
    """The jobs whose turn it is, locked, with what goes along; so many at most."""
    dialect = session.get_bind().dialect.name
    found = session.exec(_jobs_in_turn(dialect), params={"now": now, "most": most}).all()
    if not found and dialect != "sqlite":  # nothing waits, or other claims look at all of these
        for catalog_id in session.connection().scalars(_catalogs_in_turn(), {"now": now}).all():
            found = session.exec(_first_job(), params={"now": now, "catalog_id": catalog_id}).all()
            if found:
                break
    return [NextJob._make(row) for row in found]


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
    """A query of jobs and their tables, with the further columns of `NextJob`; SQLModel types no more than
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
        or_(col(Job.kind).not_in(in_text(_EXPIRING)), ~waits),
    )


def goes_first(begun: type[Job], job: type[Job]) -> ColumnElement[bool]:
    """Whether a job has begun to write rows of the same table, or to let snapshots expire, and may go on, and
    another one waits until it has ended: it lets snapshots expire, by which the other finds what it has done.

    Of two such that have begun, none waits for the other.
    """
    return and_(
        col(job.kind).in_(in_text(_EXPIRING)),
        col(begun.id) != col(job.id),
        col(begun.status) == _QUEUED,
        col(begun.attempt) > 0,
        col(begun.writes),
        col(begun.kind).in_(in_text(_TOLD_BY_SNAPSHOTS)),
        or_(col(begun.kind).not_in(in_text(_EXPIRING)), col(job.attempt) == 0),
    )


def put_behind(session: Session, begun: Sequence[NextJob], now: datetime) -> None:
    """Put the tables of jobs behind the others: they have just been claimed."""
    claimed = [
        {"table_id": job.table_id, "catalog_id": job.catalog_id, "at": now}
        for job in sorted((each.job for each in begun), key=lambda job: job.table_id)
    ]
    _claim(session, claimed)
    places = [
        {"of_table": each.job.table_id, "of_catalog": each.job.catalog_id, "now": now}
        for each in begun
        if each.others_wait
    ]
    if places:
        session.connection().execute(_WAITING_BEHIND, places)


def running_by_catalog(session: Session) -> dict[str, int]:
    """Numbers of running jobs by ids of catalogs; those without one are absent."""
    query = select(Job.catalog_id, func.count()).where(Job.status == JobStatus.RUNNING.value)
    return dict(session.exec(query.group_by(Job.catalog_id)).all())
