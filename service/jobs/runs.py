"""What ran lately, table by table, for pages and programs that show many tables at once."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, CompoundSelect, Select, bindparam, func, union_all
from sqlalchemy import select as columns
from sqlmodel import Session, col, or_, select

from service.db.database import UtcDateTime
from service.records.jobs import Attempt, Job, JobStatus

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
    rows = session.execute(_latest_of(len(table_ids)), _named(table_ids) | {"number": number}).all()
    for table_id, _, job_id, *others, ended_at in sorted(rows, key=itemgetter(1, 2)):
        found.setdefault(table_id, []).append((job_id, *others, ended_at))
    return found


@cache
def _latest_of(tables: int) -> CompoundSelect[Any]:
    """Made once, as `_ended_of` is."""
    at = func.coalesce(col(Job.ended_at), col(Job.created_at)).label("at")
    told = (Job.table_id, Job.created_at, Job.id, Job.kind, Job.dry_run, Job.status)
    every = columns(*map(col, told), at).order_by(col(Job.created_at).desc()).limit(bindparam("number"))
    return union_all(*(columns(every.where(each).subquery()) for each in _each_table(tables)))


def _each_table(tables: int) -> Iterator[ColumnElement[bool]]:
    return (col(Job.table_id) == bindparam(f"table_{number}") for number in range(tables))


def _named(table_ids: Sequence[str]) -> dict[str, Any]:
    """As `_each_table` names them."""
    return {f"table_{number}": table_id for number, table_id in enumerate(table_ids)}


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
    span = {"since": since, "until": until}
    ended: dict[str, list[Any]] = {}
    for job in session.execute(_ended_of(len(table_ids)), _named(table_ids) | span).all():
        ended.setdefault(job.table_id, []).append(job)
    for table_id, jobs in ended.items():
        found = sorted(jobs, key=attrgetter("ended_at"), reverse=True)
        latest, others = found[: of_each // 2], found[of_each // 2 :]
        longest = sorted(others, key=lambda job: job.ended_at - job.started_at, reverse=True)
        chosen += [job.id for job in (*latest, *longest)[:of_each]]
        if len(found) > of_each:
            with_more.add(table_id)
    return chosen, with_more


@cache
def _ended_of(tables: int) -> CompoundSelect[Any]:
    """Of so many tables, those that `_ended_within` looks at; made once, as making it takes longer than
    asking."""
    ended = col(Job.ended_at)
    since: BindParameter[datetime] = bindparam("since")
    until: BindParameter[datetime] = bindparam("until")
    parts: list[Select[Any]] = []
    for each in _each_table(tables):
        of_table = columns(col(Job.table_id), col(Job.id), col(Job.started_at), ended)
        of_table = of_table.where(each, col(Job.started_at).is_not(None))
        within = of_table.where(ended >= since, ended < until).order_by(ended.desc()).limit(_LOOKED_AT)
        after = of_table.where(ended >= until).order_by(ended).limit(_LOOKED_AT).subquery()
        parts += [columns(within.subquery()), columns(after).where(after.c.started_at < until)]
    return union_all(*parts)
