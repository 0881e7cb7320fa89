"""What ran lately, table by table, for pages and programs that show many tables at once."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import union_all
from sqlmodel import Session, col, or_, select

from service.records.jobs import Attempt, Job

_LONGEST = timedelta(days=1)
"""A job that was made so long before a span is not looked for in it."""


def latest_job_ids(
    session: Session, table_ids: Sequence[str], number: int, since: datetime | None = None
) -> list[str]:
    """The jobs of each table that were made last, so many of each at most."""
    if not table_ids:
        return []
    of_each = []
    for table_id in table_ids:
        newest = select(Job.id).where(Job.table_id == table_id)
        if since is not None:
            newest = newest.where(Job.created_at >= since - _LONGEST)
        newest = newest.order_by(col(Job.created_at).desc()).limit(number)
        of_each.append(select(newest.subquery().c.id))
    return list(session.execute(union_all(*of_each)).scalars())


def attempts_within(
    session: Session, table_ids: Sequence[str], since: datetime, until: datetime, *, of_each: int
) -> Sequence[tuple[Job, Attempt]]:
    """Attempts that ran at some time of a span, the oldest first: of so many jobs of each table at most."""
    chosen = latest_job_ids(session, table_ids, of_each, since)
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
