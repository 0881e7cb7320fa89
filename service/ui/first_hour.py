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
from service.catalogs.service import EMBEDDED
from service.http.paging import PageRequest
from service.index_health.samples import samples_around
from service.jobs import conversions
from service.jobs.models import JobView
from service.jobs.views import view
from service.reader_cost import HEADLINE, model
from service.records.health import HealthSample, TableHealth
from service.records.jobs import JobStatus
from service.records.tables import get_table
from service.settings import Settings
from service.tables import service as tables
from service.tables.models import TableFilter, TableView
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
    """Of a full read right before it; when its table was enrolled, if nobody had looked at it since."""
    read_seconds: float | None
    """Of one right after it; None until somebody has looked."""
    left: Left


@dataclass(frozen=True)
class FirstHour:
    """What there is of what the steps make."""

    catalog: str | None = None
    """Of their own; one that came with the service counts once a table of it is enrolled."""
    embedded: str | None = None
    """The one that came with it."""
    table: TableView | None = None
    """The one that was tried, else the one with most pending deletes."""
    dry_run: JobView | None = None
    active: JobView | None = None
    """A conversion of it, or a dry run of one, that has not ended."""
    stuck: JobView | None = None
    """The latest of these, if it came to nothing."""
    converted: Conversion | None = None


def first_hour(
    session: Session, settings: Settings, request: Request, now: datetime, *, is_any_enrolled: bool
) -> FirstHour | None:
    """None once it is over."""
    if request.cookies.get(_COOKIE):
        return None
    known = catalogs.list_registrations(session)
    # Few pages ask for more than this: most installations are older.
    if known and known[0][0] < now - _YOUNG and is_any_enrolled:
        return None
    first = conversions.first_conversion(session)
    if first is not None:
        ended_at = first.ended_at or now
        if ended_at < now - _SHOWN_FOR:
            return None
        health = session.get_one(TableHealth, first.table_id)
        before, after = samples_around(session, first.table_id, first.started_at or ended_at, ended_at)
        converted = Conversion(
            job=first,
            seconds=(ended_at - (first.started_at or ended_at)).total_seconds(),
            read_seconds_before=_read_seconds(before) or health.read_seconds + health.read_avoided_seconds,
            read_seconds=_read_seconds(after),
            left=_left(after or health),
        )
        return FirstHour(first.catalog, converted=converted)
    dry_run = conversions.first_dry_run(session)
    latest = conversions.latest_conversion(session, dry_run.table_id if dry_run else None)
    # What was tried stays the one to convert, whatever else comes to hold more.
    tried = dry_run.table_id if dry_run else latest.table_id if latest else None
    table = (
        tables.view(session, settings, get_table(session, tried))
        if tried
        else _most_pending(session, settings)
    )
    if table is None:
        names = [name for _, name in known]
        own = [name for name in names if name != EMBEDDED]
        return FirstHour(own[-1] if own else None, EMBEDDED if EMBEDDED in names else None)
    return FirstHour(
        catalog=table.catalog,
        table=table,
        dry_run=view(session, dry_run) if dry_run is not None else None,
        active=latest if latest and not latest.status.is_final else None,
        stuck=latest if latest and _came_to_nothing(latest) else None,
    )


def _came_to_nothing(job: JobView) -> bool:
    return job.status.is_final and (
        job.status is not JobStatus.SUCCEEDED or (job.caveat is not None and job.caveat.did_nothing)
    )


def _most_pending(session: Session, settings: Settings) -> TableView | None:
    most = PageRequest(limit=1, sort="-pending_equality_deletes")
    return next(iter(tables.list_tables(session, settings, most, TableFilter()).items), None)


def _read_seconds(seen: HealthSample | None) -> float | None:
    """Of a full read of a table as it was then."""
    return model().seconds(seen.shape, *HEADLINE) if seen is not None else None


def _left(seen: HealthSample | TableHealth) -> Left:
    """As the table was first seen after that; until then, as the worker said at its end."""
    return Left(seen.pending_equality_delete_files, seen.pending_equality_deletes)


@router.post("/first-hour/dismiss")
def dismiss(_sender: Viewer) -> Response:
    response = see("/")
    response.set_cookie(_COOKIE, "over", max_age=_YEAR_SECONDS, httponly=True, samesite="lax")
    return response
