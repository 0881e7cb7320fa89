"""The append-only record of what happened to jobs and tables, and why."""

from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from service.jobs.models import Event, EventView, Job
from service.paging import Page, PageRequest, take_page


def record_job_event(
    session: Session, job: Job, kind: str, message: str, now: datetime, *, level: str = "info", **fields: Any
) -> None:
    """Add an event about a job; its status goes along, so that a reader of events needs nothing else."""
    session.add(
        Event(
            at=now,
            kind=kind,
            level=level,
            message=message,
            table_id=job.table_id,
            job_id=job.id,
            attempt=job.attempt or None,
            fields={"job_kind": job.kind, "dry_run": job.dry_run, "status": job.status, **fields},
        )
    )


def record_table_event(
    session: Session,
    table_id: str,
    kind: str,
    message: str,
    now: datetime,
    *,
    level: str = "info",
    **fields: Any,
) -> None:
    """Add an event about a table, such as a decision not to run anything."""
    session.add(Event(at=now, kind=kind, level=level, message=message, table_id=table_id, fields=fields))


def list_events(
    session: Session, page: PageRequest, *, job_id: str | None = None, table_id: str | None = None
) -> Page[EventView]:
    """Events of a job or a table, oldest first."""
    query = select(Event).order_by(col(Event.id))
    if cursor := page.decode(int):
        query = query.where(col(Event.id) > cursor)
    if job_id is not None:
        query = query.where(Event.job_id == job_id)
    if table_id is not None:
        query = query.where(Event.table_id == table_id)
    return take_page(session.exec(query.limit(page.limit + 1)).all(), page, lambda row: row.id, view)


def latest_event_id(session: Session) -> int:
    return session.exec(select(func.max(Event.id))).one() or 0


def events_after(session: Session, event_id: int, limit: int) -> list[EventView]:
    rows = session.exec(
        select(Event).where(col(Event.id) > event_id).order_by(col(Event.id)).limit(limit)
    ).all()
    return [view(row) for row in rows]


def view(row: Event) -> EventView:
    return EventView.model_validate(row, from_attributes=True)
