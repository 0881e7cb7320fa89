"""The page of workers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.auth.access import Viewer
from service.db.database import ReadSession, utc_now
from service.http.paging import PageRequest, Search
from service.jobs import service as jobs
from service.settings import CurrentSettings
from service.ui.pages import PageRoute, address_of, render
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)


@router.get("/workers")
def show_workers(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(workers.SORTING.page_request)],
    alive: bool | None = None,
    search: Search = None,
) -> Response:
    found = workers.list_workers(session, settings, page, alive=alive, search=search)
    return render(
        request,
        "workers/list.html",
        reader,
        workers=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        alive=alive,
        search=search,
        counts=workers.count_by_life(session, settings, utc_now(), search=search),
        running={
            worker.job_id: jobs.get_job(session, worker.job_id)
            for worker in found.items
            if worker.job_id is not None
        },
        now=utc_now(),
        address=address_of(request),
    )
