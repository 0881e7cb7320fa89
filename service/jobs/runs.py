"""What ran lately, table by table, for pages and programs that show many tables at once."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, union_all
from sqlalchemy import select as columns
from sqlmodel import Session, col, or_, select

from service.records.jobs import Attempt, Job, JobStatus

_UNFINISHED = [status.value for status in JobStatus if not status.is_final]


def latest_job_ids(
    session: Session,
    table_ids: Sequence[str],
    number: int,
    until: datetime | None = None,
) -> list[str]:
    """The jobs of each table that were made last, or last before `until`, so many of each at most."""
    if not table_ids:
        return []
    of_each = []
    for table_id in table_ids:
        newest = select(Job.id).where(Job.table_id == table_id)
        if until is not None:
            newest = newest.where(Job.created_at < until)
        newest = newest.order_by(col(Job.created_at).desc()).limit(number)
        of_each.append(select(newest.subquery().c.id))
    return list(session.execute(union_all(*of_each)).scalars())


def latest_jobs_of_each(
    session: Session, table_ids: Sequence[str], number: int
) -> dict[str, list[tuple[str, str, bool, str, datetime]]]:
    """By the table's id, the oldest first: id, kind, whether a dry run, status, end (or when it was made)."""
    chosen = latest_job_ids(session, table_ids, number)
    at = func.coalesce(col(Job.ended_at), col(Job.created_at))
    rows = session.execute(
        columns(col(Job.table_id), col(Job.id), col(Job.kind), col(Job.dry_run), col(Job.status), at)
        .where(col(Job.id).in_(chosen))
        .order_by(col(Job.created_at), col(Job.id))
    )
    found: dict[str, list[tuple[str, str, bool, str, datetime]]] = {}
    for table_id, job_id, kind, dry_run, status, moment in rows:
        found.setdefault(table_id, []).append((job_id, kind, dry_run, status, moment))
    return found


def attempts_within(
    session: Session, table_ids: Sequence[str], since: datetime, until: datetime, *, of_each: int
) -> Sequence[tuple[Job, Attempt]]:
    """Attempts that ran at some time of a span, the oldest first: of so many jobs of each table at most."""
    # However long before the span they were made: a budget, a window or retries may hold a job up for days.
    chosen = latest_job_ids(session, table_ids, of_each, until)
    # Beyond these, what has not ended yet: few have not, and an index has them.
    chosen += session.exec(
        select(Job.id).where(col(Job.status).in_(_UNFINISHED), col(Job.table_id).in_(table_ids))
    ).all()
    return session.exec(
        select(Job, Attempt)
        .join(Attempt, col(Attempt.job_id) == col(Job.id))
        .where(
            col(Job.id).in_(chosen),
            Attempt.started_at < until,
            or_(col(Attempt.ended_at).is_(None), col(Attempt.ended_at) >= since),
        )
        .order_by(col(Attempt.started_at), col(Attempt.job_id))
    ).all()
