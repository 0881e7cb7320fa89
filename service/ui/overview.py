"""The first page: is all well, and what needs a person?"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from service.auth.access import Admin, Viewer
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.http.paging import EVERYTHING, PageRequest
from service.index_health.summary import summarize, total_pending
from service.jobs import service as jobs
from service.jobs.conversions import converted_since
from service.overview.endpoints import trouble_of_lookups
from service.overview.service import concerns
from service.records.health import GRAVITY, HealthStatus
from service.records.jobs import JobStatus
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableFilter, TableView
from service.ui.first_hour import first_hour
from service.ui.forms import see
from service.ui.pages import PageRoute, address_of, render
from service.ui.plot import VALUES_SHOWN, Unit, moments, plot
from service.ui.tables import SPANS, rows_of
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)
_ACTIVE = (JobStatus.RUNNING, JobStatus.QUEUED)
"""In the order in which they are shown."""
_JOBS_SHOWN = 20
_DAY = timedelta(hours=24)
_SPANS = {days: words for days, words in SPANS.items() if days <= 90}
"""What the plot of all tables may cover: not so much that a page takes long with many of them."""
_MINUTE = timedelta(minutes=1)
"""What totals are told for: of less, nothing can be drawn."""
_SHOWN = 10
"""Tables; a list of their own has the others."""


@router.get("/")
def show_overview(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, days: int = 7
) -> Response:
    days = days if days in _SPANS else 7
    now = utc_now()
    summary = summarize(session, now)
    # A page for each: else many that were queued later would hide what runs.
    active = [
        job
        for status in _ACTIVE
        for job in jobs.list_jobs(session, PageRequest(limit=_JOBS_SHOWN), statuses=[status]).items
    ]
    numbers = jobs.count_jobs(session, _ACTIVE)
    since = now - timedelta(days=days)
    over_time = total_pending(session, since, now)
    drawn = (
        plot(
            "Pending equality deletes of all tables",
            Unit.COUNT,
            [*over_time, (now, summary.pending_equality_deletes)],
            now,
            since=since,
        )
        if over_time and now - over_time[0][0] > _MINUTE
        else None
    )
    return render(
        request,
        "overview.html",
        reader,
        summary=summary,
        enrolled=summary.tables.total(),
        by_status=[(status, summary.tables[status]) for status in HealthStatus if summary.tables[status]],
        rows=rows_of(session, _gravest_tables(session, settings, summary.tables)),
        concerns=concerns(session, settings, reader, trouble_of_lookups(request)),
        pending_plot=drawn,
        plot_moments=moments([drawn], VALUES_SHOWN) if drawn else [],
        days=days,
        spans=_SPANS,
        converted=converted_since(session, now - _DAY, now),
        active=active[:_JOBS_SHOWN],
        running=numbers[JobStatus.RUNNING],
        waiting=numbers[JobStatus.QUEUED],
        workers=workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items,
        catalogs=catalogs.list_names(session),
        first=first_hour(session, settings, request, now),
        system=jobs.system_view(session),
        now=now,
        address=address_of(request),
    )


@router.post("/system/{action}")
def pause_system(database: CurrentDatabase, sender: Admin, action: Literal["pause", "resume"]) -> Response:
    with database.write() as session:
        jobs.pause_system(session, sender, paused=action == "pause")
    return see("/")


def _gravest_tables(
    session: Session, settings: Settings, numbers: Mapping[HealthStatus, int]
) -> list[TableView]:
    """Those in trouble first, of a status by name. numbers: how many tables there are, by status."""
    found: list[TableView] = []
    for status in reversed(GRAVITY):
        if numbers[status] and len(found) < _SHOWN:
            page = PageRequest(limit=_SHOWN - len(found))
            found += tables.list_tables(session, settings, page, TableFilter(status=status)).items
    return found
