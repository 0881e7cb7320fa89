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
from service.jobs import service as jobs
from service.jobs.models import JobView
from service.records.health import TableHealth
from service.records.jobs import JobKind, JobStatus
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
class Conversion:
    """The first one, and what it has changed for readers."""

    job: JobView
    seconds: float
    read_seconds_before: float
    """Of a full read when its table was enrolled."""
    read_seconds: float


@dataclass(frozen=True)
class FirstHour:
    """What there is of what the steps make."""

    catalog: str | None
    table: TableView | None
    """The one with most pending deletes."""
    dry_run: JobView | None
    active: JobView | None
    """A conversion of it, or a dry run of one, that has not ended."""
    converted: Conversion | None


def first_hour(session: Session, settings: Settings, request: Request, now: datetime) -> FirstHour | None:
    """None once it is over."""
    if request.cookies.get(_COOKIE):
        return None
    known = catalogs.list_catalogs(session, PageRequest(limit=1, sort="created_at")).items
    most = PageRequest(limit=1, sort="-pending_equality_deletes")
    table = next(iter(tables.list_tables(session, settings, most).items), None)
    if table is not None and known and known[0].created_at < now - _YOUNG:
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
        )
        return FirstHour(first.catalog, table, None, None, converted)
    newest = catalogs.list_catalogs(session, PageRequest(limit=1, sort="-created_at")).items
    dry_run = active = None
    if table is not None:
        page = PageRequest(limit=20)
        of_table = jobs.list_jobs(session, page, table_id=table.id, kinds=[JobKind.CONVERT]).items
        dry_run = next((one for one in of_table if one.dry_run and one.status is JobStatus.SUCCEEDED), None)
        active = next((one for one in of_table if not one.status.is_final), None)
    return FirstHour(newest[0].name if newest else None, table, dry_run, active, None)


@router.post("/first-hour/dismiss")
def dismiss(_sender: Viewer) -> Response:
    response = see("/")
    response.set_cookie(_COOKIE, "over", max_age=_YEAR_SECONDS, httponly=True, samesite="lax")
    return response
