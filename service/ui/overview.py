"""The first page: is all well, and what needs a person?"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from service.auth.access import Admin, Viewer
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.http.paging import EVERYTHING, PageRequest
from service.index_health.summary import (
    Troubled,
    summarize,
    tables_with_status,
    total_pending,
    with_most_pending,
)
from service.jobs import service as jobs
from service.jobs.conversions import converted_since
from service.overview.endpoints import trouble_of_lookups
from service.overview.service import concerns, tables_in_trouble
from service.records.health import GRAVITY, HealthStatus
from service.records.jobs import JobStatus
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableView
from service.ui.first_hour import first_hour
from service.ui.forms import see
from service.ui.pages import PageRoute, address_of, render
from service.ui.plot import VALUES_SHOWN, Unit, moments, plot
from service.ui.tables import SPANS, rows_of
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)
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
    enrolled = summary.tables.total()
    numbers = jobs.count_active(session)
    troubled = tables_in_trouble(session, summary.tables)
    known_workers = workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items
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
        enrolled=enrolled,
        by_status=[(status, summary.tables[status]) for status in HealthStatus if summary.tables[status]],
        rows=rows_of(session, _gravest_tables(session, settings, summary.tables, troubled)),
        concerns=concerns(session, reader, trouble_of_lookups(request), troubled, known_workers),
        pending_plot=drawn,
        plot_moments=moments([drawn], VALUES_SHOWN) if drawn else [],
        days=days,
        spans=_SPANS,
        converted=converted_since(session, now - _DAY, now),
        active=jobs.active_jobs(session, _JOBS_SHOWN) if numbers.total() else [],
        running=numbers[JobStatus.RUNNING],
        waiting=numbers[JobStatus.QUEUED],
        workers=known_workers,
        catalogs=[] if enrolled else catalogs.list_names(session),
        first=first_hour(session, settings, request, now, is_any_enrolled=bool(enrolled)),
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
    session: Session,
    settings: Settings,
    numbers: Mapping[HealthStatus, int],
    troubled: Mapping[HealthStatus, Sequence[Troubled]],
) -> list[TableView]:
    """Those in trouble first, of a status by name; then those with the most pending deletes, then by name.

    numbers: how many tables there are, by status. troubled: the first ones of some, as many as are shown.
    """
    ids: dict[str, None] = {}
    for status in reversed(GRAVITY):
        if numbers[status] and len(ids) < _SHOWN:
            if status is HealthStatus.HEALTHY:
                ids |= dict.fromkeys(with_most_pending(session, len(ids) + _SHOWN))
            first = troubled.get(status) or tables_with_status(session, status, _SHOWN)
            ids |= dict.fromkeys(table.table_id for table in first)
    return tables.views_of(session, settings, list(ids)[:_SHOWN])
