"""What ran lately, table by table, for pages and programs that show many tables at once."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CompoundSelect,
    Select,
    bindparam,
    func,
    join,
    true,
    union_all,
)
from sqlalchemy import select as columns
from sqlmodel import Session, col, or_, select

from service.db.database import UtcDateTime
from service.records.jobs import Attempt, Job, JobStatus
from service.records.tables import EnrolledTable

_UNFINISHED = [status.value for status in JobStatus if not status.is_final]
_LOOKED_AT = 200
"""Jobs of each table that ended last in a span: among these, the longest are looked for."""


def latest_jobs_of_each(
    session: Session, table_ids: Sequence[str], number: int
) -> dict[str, list[tuple[str, str, bool, str, datetime]]]:
    """Those that were made last, by the table's id, so many of each at most, the oldest first: id, kind,
    whether a dry run, status, end (or when it was made)."""
    found: dict[str, list[tuple[str, str, bool, str, datetime]]] = {}
    if not table_ids:
        return found
    rows = _of_each(session, table_ids, _latest_of, number=number)
    for table_id, _, job_id, *others, ended_at in sorted(rows, key=itemgetter(1, 2)):
        found.setdefault(table_id, []).append((job_id, *others, ended_at))
    return found


def _latest_of(table: ColumnElement[bool]) -> list["_Part"]:
    at = func.coalesce(col(Job.ended_at), col(Job.created_at)).label("at")
    told = (Job.table_id, Job.created_at, Job.id, Job.kind, Job.dry_run, Job.status)
    every = columns(*map(col, told), at).where(table)
    return [_Part(every.order_by(col(Job.created_at).desc()).limit(bindparam("number")))]


class _Part(NamedTuple):
    """Some jobs of one table, and which of these are wanted."""

    of_table: Select[*tuple[Any, ...]]
    where: Callable[[Any], ColumnElement[bool]] = lambda _: true()
    """By the columns of `of_table`."""


def _of_each(
    session: Session,
    table_ids: Sequence[str],
    parts: Callable[[ColumnElement[bool]], list[_Part]],
    **values: object,
) -> Sequence[Any]:
    """Rows of the parts of each table. parts: from a condition, that a job is of the table."""
    dialect = session.get_bind().dialect.name
    if dialect == "sqlite":
        named: dict[str, Any] = {f"table_{number}": table_id for number, table_id in enumerate(table_ids)}
        return session.execute(_of_each_named(len(table_ids), parts), named | values).all()
    return session.execute(_of_each_lateral(parts), {"table_ids": table_ids, **values}).all()


@cache
def _of_each_named(tables: int, parts: Callable[[ColumnElement[bool]], list[_Part]]) -> CompoundSelect[Any]:
    """For SQLite, which has no LATERAL. Made once, as making it takes longer than asking."""
    every = (parts(col(Job.table_id) == bindparam(f"table_{number}")) for number in range(tables))
    found = ((part.of_table.subquery(), part.where) for some in every for part in some)
    return union_all(*(columns(rows).where(where(rows.c)) for rows, where in found))


@cache
def _of_each_lateral(parts: Callable[[ColumnElement[bool]], list[_Part]]) -> CompoundSelect[Any]:
    """For PostgreSQL, which would plan the same part of each table anew, for longer than it reads."""
    table_id = col(EnrolledTable.id)
    found = ((part.of_table.lateral(), part.where) for part in parts(col(Job.table_id) == table_id))
    return union_all(
        *(
            columns(rows)
            .select_from(join(EnrolledTable, rows, true()))
            .where(table_id.in_(bindparam("table_ids", expanding=True)), where(rows.c))
            for rows, where in found
        )
    )


class Ran(NamedTuple):
    """An attempt, and what is told of its job beside it."""

    table_id: str
    job_id: str
    kind: str
    dry_run: bool
    attempt: int
    status: str
    worker_name: str
    started_at: datetime
    ended_at: datetime | None


class Waits(NamedTuple):
    """A job that no worker has now."""

    table_id: str
    job_id: str
    kind: str
    dry_run: bool
    since: datetime
    """When it was made, or its last attempt ended."""
    available_at: datetime


def waiting_jobs(session: Session, table_ids: Sequence[str]) -> list[Waits]:
    """What has waited longest first."""
    ended = select(func.max(Attempt.ended_at)).where(col(Attempt.job_id) == col(Job.id)).scalar_subquery()
    since = func.coalesce(ended, col(Job.created_at), type_=UtcDateTime)
    rows = session.execute(
        columns(col(Job.table_id), col(Job.id), col(Job.kind), col(Job.dry_run), since, col(Job.available_at))
        .where(col(Job.status) == JobStatus.QUEUED.value, col(Job.table_id).in_(table_ids))
        .order_by(since, col(Job.id))
    )
    return [Waits(*row) for row in rows]


def attempts_within(
    session: Session, table_ids: Sequence[str], since: datetime, until: datetime, *, of_each: int
) -> tuple[Sequence[Ran], set[str]]:
    """Attempts that ran at some time of a span, the oldest first, and the tables of which others ran too.

    Of each table these are of all jobs that have not ended, and of so many that have: half of them ended
    last, and the others took longest.
    """
    chosen, with_more = _ended_within(session, table_ids, since, until, of_each)
    # Few have not ended, and an index has them.
    chosen += session.exec(
        select(Job.id).where(col(Job.status).in_(_UNFINISHED), col(Job.table_id).in_(table_ids))
    ).all()
    rows = session.execute(
        columns(
            col(Job.table_id),
            col(Job.id),
            col(Job.kind),
            col(Job.dry_run),
            col(Attempt.attempt),
            col(Attempt.status),
            col(Attempt.worker_name),
            col(Attempt.started_at),
            col(Attempt.ended_at),
        )
        .join(Attempt, col(Attempt.job_id) == col(Job.id))
        .where(
            col(Job.id).in_(chosen),
            col(Attempt.started_at) < until,
            or_(col(Attempt.ended_at).is_(None), col(Attempt.ended_at) >= since),
        )
        .order_by(col(Attempt.started_at), col(Attempt.job_id))
    )
    return [Ran(*row) for row in rows.all()], with_more


def _ended_within(
    session: Session, table_ids: Sequence[str], since: datetime, until: datetime, of_each: int
) -> tuple[list[str], set[str]]:
    """Jobs that ended in a span, or after it and began before its end; and tables of which there are more.

    Neither what else ended nor when a job was made counts: one that was held up for days or took hours is
    there beside any number of shorter ones. Of each table, some hundred places of an index are looked at.
    """
    chosen: list[str] = []
    with_more: set[str] = set()
    if not table_ids:
        return chosen, with_more
    ended: dict[str, list[Any]] = {}
    for job in _of_each(session, table_ids, _ended_of, since=since, until=until):
        ended.setdefault(job.table_id, []).append(job)
    for table_id, jobs in ended.items():
        found = sorted(jobs, key=attrgetter("ended_at"), reverse=True)
        latest, others = found[: of_each // 2], found[of_each // 2 :]
        longest = sorted(others, key=lambda job: job.ended_at - job.started_at, reverse=True)
        chosen += [job.id for job in (*latest, *longest)[:of_each]]
        if len(found) > of_each:
            with_more.add(table_id)
    return chosen, with_more


def _ended_of(table: ColumnElement[bool]) -> list[_Part]:
    """Those that `_ended_within` looks at."""
    ended = col(Job.ended_at)
    since: BindParameter[datetime] = bindparam("since")
    until: BindParameter[datetime] = bindparam("until")
    every = columns(col(Job.table_id), col(Job.id), col(Job.started_at), ended)
    every = every.where(table, col(Job.started_at).is_not(None)).limit(_LOOKED_AT)
    return [
        _Part(every.where(ended >= since, ended < until).order_by(ended.desc())),
        _Part(every.where(ended >= until).order_by(ended), lambda job: job.started_at < until),
    ]
