"""The append-only record of what happened to jobs and tables, and why."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, or_
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.jobs.models import EventView
from service.records.jobs import Event, Job
from service.webhooks.outbox import write_event

SORTING = Sorting({"id": Event.id}, key=Event.id, default="id")
"""Their ids, which are given in order, and not their times: replicas' clocks differ."""


def record_job_event(
    session: Session, job: Job, kind: str, message: str, now: datetime, *, level: str = "info", **fields: Any
) -> None:
    """Add an event about a job; its status goes along, so that a reader of events needs nothing else."""
    write_event(session, **job_event(job, kind, message, now, level=level, **fields))


def job_event(
    job: Job, kind: str, message: str, now: datetime, *, level: str = "info", **fields: Any
) -> dict[str, Any]:
    """The columns of an event about a job."""
    fields = {"job_kind": job.kind, "dry_run": job.dry_run, "status": job.status, **fields}
    of_table = table_event(job.table_id, kind, message, now, level=level, **fields)
    return of_table | {"job_id": job.id, "attempt": job.attempt or None}


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
    write_event(session, **table_event(table_id, kind, message, now, level=level, **fields))


def table_event(
    table_id: str, kind: str, message: str, now: datetime, *, level: str = "info", **fields: Any
) -> dict[str, Any]:
    """The columns of an event about a table."""
    return {
        "at": now,
        "kind": kind,
        "level": level,
        "message": message,
        "table_id": table_id,
        "job_id": None,
        "attempt": None,
        "fields": fields,
    }


def list_events(
    session: Session,
    page: PageRequest,
    *,
    job_id: str | None = None,
    table_id: str | None = None,
    levels: Sequence[str] = (),
    kind: str | None = None,
    but_for: Sequence[str] = (),
    search: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[EventView]:
    """Events of a job or a table; `kind` is one of them, such as `job.queued`, or a group, such as `job`.

    but_for: kinds that are left out, none of them a group. search: a part of the message, in any case.
    """
    query = select(Event)
    if job_id is not None:
        query = query.where(Event.job_id == job_id)
    if table_id is not None:
        query = query.where(Event.table_id == table_id)
    rest = within(col(Event.at), since, until)
    if levels:
        rest.append(col(Event.level).in_(levels))
    if kind:
        in_group = func.substr(Event.kind, 1, len(kind) + 1) == f"{kind}."
        rest.append(or_(col(Event.kind) == kind, in_group))
    if but_for:
        rest.append(col(Event.kind).not_in(but_for))
    if search:
        rest.append(col(Event.message).icontains(search, autoescape=True))
    return read_page(session, query, page, SORTING, lambda rows: [view(row) for row in rows], *rest)


# Made once: streams ask twice a second, and it would take longer than the answer.
_LATEST_ID = select(func.max(Event.id))
_AFTER = (
    columns(*map(col, (getattr(Event, name) for name in EventView.model_fields)))
    .where(col(Event.id) > bindparam("last"))
    .order_by(col(Event.id))
    .limit(bindparam("limit"))
)
_HEADS_AFTER = (
    columns(col(Event.id), col(Event.at), col(Event.kind), col(Event.table_id))
    .where(col(Event.id) > bindparam("last"))
    .order_by(col(Event.id))
    .limit(bindparam("limit"))
)


def latest_event_id(session: Session) -> int:
    return session.execute(_LATEST_ID).scalar_one() or 0


def last_of_tables(session: Session, kinds: Collection[str], after: int, until: int) -> dict[str, int]:
    """The id of the last event of some kinds of each table that has any, among those between two ids."""
    among = (col(Event.id) > after, col(Event.id) <= until, col(Event.kind).in_(kinds))
    query = select(Event.table_id, func.max(Event.id)).where(*among, col(Event.table_id).is_not(None))
    return {str(table_id): last or 0 for table_id, last in session.exec(query.group_by(col(Event.table_id)))}


def events_after(connection: Connection, event_id: int, limit: int) -> list[EventView]:
    return [view(row) for row in connection.execute(_AFTER, {"last": event_id, "limit": limit})]


def heads_after(connection: Connection, event_id: int, limit: int) -> list[Row[Any]]:
    """Their id, time, kind and table: most have much more to say."""
    found: Iterable[Row[Any]] = connection.execute(_HEADS_AFTER, {"last": event_id, "limit": limit})
    return list(found)


def view(row: Event | Row[Any]) -> EventView:
    return EventView.model_validate(row, from_attributes=True)
