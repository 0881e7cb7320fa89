"""The first page: is all well, and what needs a person?"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from service.auth.access import Admin, Viewer
from service.catalogs import service as catalogs
from service.database import CurrentDatabase, ReadSession, utc_now
from service.discovery import patterns
from service.index_health import service as index_health
from service.index_health.models import HealthStatus
from service.jobs import service as jobs
from service.jobs.status import JobStatus
from service.paging import PageRequest
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.ui.formats import count, plural, short_count
from service.ui.forms import see
from service.ui.pages import EVERYTHING, PageRoute, address_of, render
from service.ui.plot import plot
from service.ui.tables import rows_of
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)
_ACTIVE = (JobStatus.RUNNING, JobStatus.QUEUED)
_DAY = timedelta(hours=24)
_TROUBLED = (HealthStatus.BLOCKED, HealthStatus.UNKNOWN, HealthStatus.LAGGING, HealthStatus.DEGRADED)
_SHOWN = 10
"""Tables and concerns of a kind; lists of their own have the others."""


@dataclass(frozen=True)
class Concern:
    """Something that a person should look at."""

    title: str
    detail: str
    remedy: str | None
    path: str
    tone: Literal["bad", "warn"] = "warn"


@router.get("/")
def show_overview(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer
) -> Response:
    now = utc_now()
    summary = index_health.summarize(session, now)
    active = jobs.list_jobs(session, PageRequest(limit=100), statuses=_ACTIVE)
    page = tables.list_tables(session, settings, PageRequest(limit=_SHOWN))
    over_time = index_health.total_pending(session, now - timedelta(days=7))
    return render(
        request,
        "overview.html",
        reader,
        summary=summary,
        enrolled=summary.tables.total(),
        by_status=[(status, summary.tables[status]) for status in HealthStatus if summary.tables[status]],
        rows=rows_of(session, page.items),
        more_tables=page.next_cursor is not None,
        concerns=list(_concerns(session, settings)),
        pending_plot=plot(
            "Pending equality deletes of all tables",
            [*over_time, (now, summary.pending_equality_deletes)],
            now,
            count,
            write_axis=short_count,
        )
        if over_time
        else None,
        converted=jobs.converted_since(session, now - _DAY),
        active=active.items,
        more_active=active.next_cursor is not None,
        workers=workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items,
        catalogs=catalogs.list_catalogs(session, PageRequest(limit=1)).items,
        system=jobs.system_view(session),
        now=now,
        address=address_of(request),
    )


@router.post("/system/{action}")
def pause_system(database: CurrentDatabase, sender: Admin, action: Literal["pause", "resume"]) -> Response:
    with database.write() as session:
        jobs.pause_system(session, sender, paused=action == "pause")
    return see("/")


def _concerns(session: Session, settings: Settings) -> Iterator[Concern]:
    """The gravest first."""
    for status in _TROUBLED:
        found = tables.list_tables(session, settings, PageRequest(limit=_SHOWN), status=status)
        for table in found.items:
            health = index_health.get_health(session, tables.get_table(session, table.id))
            if status is HealthStatus.UNKNOWN and health.poll_error is None:
                continue  # It waits for its first look.
            yield Concern(
                f"{table.name} is {health.status.value}",
                health.status_reason,
                health.what_to_do,
                f"/tables/{table.id}",
                "bad" if status in (HealthStatus.BLOCKED, HealthStatus.UNKNOWN) else "warn",
            )
        if found.next_cursor is not None:
            yield Concern(f"More tables are {status.value}", "", None, f"/tables?status={status.value}")
    for pattern in patterns.list_patterns(session, PageRequest(limit=EVERYTHING)).items:
        if pattern.error is not None:
            yield Concern(
                f"Pattern {pattern.pattern} cannot be compared with catalog {pattern.catalog}",
                str(pattern.error.get("detail", "")),
                pattern.error.get("remedy"),
                f"/patterns/{pattern.id}",
            )
        elif pattern.failures:
            yield Concern(
                f"Pattern {pattern.pattern} matches {plural(len(pattern.failures), 'table')} "
                "that cannot be enrolled",
                pattern.failures[0].detail,
                pattern.failures[0].remedy,
                f"/patterns/{pattern.id}",
            )
