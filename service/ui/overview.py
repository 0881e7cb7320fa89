"""The first page: is all well, and what needs a person?"""

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.auth.access import Admin, Viewer
from service.catalogs import service as catalogs
from service.database import CurrentDatabase, ReadSession, utc_now
from service.jobs import service as jobs
from service.jobs.status import JobStatus
from service.paging import PageRequest
from service.settings import CurrentSettings
from service.tables import service as tables
from service.ui.pages import PageRoute, address_of, render
from service.ui.tables import rows_of
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)
_ACTIVE = (JobStatus.RUNNING, JobStatus.QUEUED)


@router.get("/")
def show_overview(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    reader: Viewer,
    search: str = "",
    cursor: str | None = None,
) -> Response:
    page = tables.list_tables(
        session, settings, PageRequest(limit=100, cursor=cursor), search=search.strip() or None
    )
    active = jobs.list_jobs(session, PageRequest(limit=100), statuses=_ACTIVE)
    return render(
        request,
        "overview.html",
        reader,
        rows=rows_of(session, page.items),
        next_cursor=page.next_cursor,
        search=search,
        active=active.items,
        more_active=active.next_cursor is not None,
        workers=workers.list_workers(session, settings, PageRequest(limit=500)).items,
        catalogs=catalogs.list_catalogs(session, PageRequest(limit=1)).items,
        system=jobs.system_view(session),
        now=utc_now(),
        address=address_of(request),
    )


@router.post("/system/{action}")
def pause_system(database: CurrentDatabase, sender: Admin, action: Literal["pause", "resume"]) -> Response:
    with database.write() as session:
        jobs.pause_system(session, sender, paused=action == "pause")
    return RedirectResponse("/", 303)
