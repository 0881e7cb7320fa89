"""The first hour on the overview: from a catalog to a converted table, a step at a time.

Nothing is remembered for it: a step is done if what it makes is there. It ends a day after the first
conversion, or when somebody dismisses it, which their browser remembers.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from service.auth.access import Viewer
from service.catalogs import service as catalogs
from service.http.paging import PageRequest
from service.index_health.service import list_history
from service.jobs import service as jobs
from service.jobs.models import JobView
from service.records.health import TableHealth
from service.records.jobs import JobKind, JobStatus
from service.records.tables import get_table
from service.settings import Settings
from service.tables import service as tables
from service.tables.models import TableView
from service.ui.forms import see
from service.ui.pages import PageRoute

router = APIRouter(route_class=PageRoute)
_COOKIE = "first-hour"
_YEAR_SECONDS = 365 * 24 * 3600
_YOUNG = timedelta(days=7)
"""An installation that is older knows its way."""
_SHOWN_FOR = timedelta(days=1)
"""The first conversion."""


@dataclass(frozen=True)
class Left:
    """What the conversion did not convert, such as equality deletes that cannot be."""

    files: int
    deletes: int


@dataclass(frozen=True)
class Conversion:
    """The first one, and what it has changed for readers."""

    job: JobView
    seconds: float
    read_seconds_before: float
    """Of a full read when its table was enrolled."""
    read_seconds: float
    left: Left


@dataclass(frozen=True)
class FirstHour:
    """What there is of what the steps make."""

    catalog: str | None
    table: TableView | None
    """The one that was tried, else the one with most pending deletes."""
    dry_run: JobView | None
    active: JobView | None
    """A conversion of it, or a dry run of one, that has not ended."""
    converted: Conversion | None


def first_hour(session: Session, settings: Settings, request: Request, now: datetime) -> FirstHour | None:
    """None once it is over."""
    if request.cookies.get(_COOKIE):
        return None
    known = catalogs.list_registrations(session)
    # Few pages ask for more than this: most installations are older.
    if known and known[0][0] < now - _YOUNG and tables.is_any_enrolled(session):
        return None
    first = jobs.first_conversion(session)
    if first is not None:
        ended_at = first.ended_at or now
        health = session.get(TableHealth, first.table_id)
        if ended_at < now - _SHOWN_FOR or health is None:
            return None
        converted = Conversion(
            job=first,
            seconds=(ended_at - (first.started_at or ended_at)).total_seconds(),
            read_seconds_before=health.read_seconds + health.read_saved_seconds,
            read_seconds=health.read_seconds,
            left=_left(session, health, ended_at),
        )
        return FirstHour(first.catalog, None, None, None, converted)
    dry_run = jobs.first_dry_run(session)
    # What was tried stays the one to convert, whatever else comes to hold more.
    if dry_run is None:
        table = _most_pending(session, settings)
    else:
        table = tables.view(session, settings, get_table(session, dry_run.table_id))
    if table is None:
        return FirstHour(known[-1][1] if known else None, None, None, None, None)
    unfinished = [status for status in JobStatus if not status.is_final]
    page = PageRequest(limit=1)
    active = jobs.list_jobs(
        session, page, table_id=table.id, kinds=[JobKind.CONVERT], statuses=unfinished
    ).items
    told = jobs.view(session, dry_run) if dry_run is not None else None
    return FirstHour(table.catalog, table, told, active[0] if active else None, None)


def _most_pending(session: Session, settings: Settings) -> TableView | None:
    most = PageRequest(limit=1, sort="-pending_equality_deletes")
    return next(iter(tables.list_tables(session, settings, most).items), None)


def _left(session: Session, health: TableHealth, ended_at: datetime) -> Left:
    """As the table was first seen after that; until then, as the worker said at its end."""
    seen = list_history(session, PageRequest(limit=1, sort="at"), health.table_id, since=ended_at).items
    first = seen[0] if seen else health
    return Left(first.pending_equality_delete_files, first.pending_equality_deletes)


@router.post("/first-hour/dismiss")
def dismiss(_sender: Viewer) -> Response:
    response = see("/")
    response.set_cookie(_COOKIE, "over", max_age=_YEAR_SECONDS, httponly=True, samesite="lax")
    return response
