"""The pages of jobs."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from sqlmodel import Session

from service.auth.access import Operator, Viewer
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.http.paging import Page, PageRequest, Search
from service.jobs import events, orphan_removals
from service.jobs import service as jobs
from service.jobs.models import BulkRequest, EventView
from service.records.jobs import JobKind, JobStatus
from service.records.tables import get_table
from service.ui.formats import rfc3339
from service.ui.forms import Typed
from service.ui.job_results import differences_of, duplicates_of, figures_of, key_set_table
from service.ui.job_story import earlier_stages_of, stages_of, timeline_of
from service.ui.pages import PageRoute, TypedTime, render

router = APIRouter(route_class=PageRoute)
EVENTS_SHOWN = 200
"""Of the log, or of other events: the latest ones, or those before others."""
_CHARACTERS = 30_000
"""Of their messages: a line has up to 4,000."""
_PROGRESS_READ = 1000
_LINES = 1000
"""Of a log that is downloaded, in memory at a time."""
_PROGRESS, _LOG = "job.progress", "job.log"
LogLevel = Literal["warning", "error"]
_LEVELS: dict[LogLevel | None, tuple[str, ...]] = {
    None: (),
    "warning": ("warning", "error"),
    "error": ("error",),
}
"""Levels of lines that are at least as grave."""


@router.get("/jobs")
def show_jobs(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    status: Annotated[list[JobStatus] | None, Query()] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    table_id: str = "",
    catalog: str | None = None,
    trigger: Literal["policy", "request"] | None = None,
    worker: str | None = None,
    since: TypedTime | None = None,
    until: TypedTime | None = None,
    cursor: str | None = None,
) -> Response:
    page = jobs.list_jobs(
        session,
        PageRequest(limit=50, cursor=cursor),
        table_id=table_id or None,
        catalog=catalog,
        trigger=trigger,
        worker=worker,
        statuses=status or (),
        kinds=kind or (),
        since=since,
        until=until,
    )
    counted = jobs.count_by_status(
        session,
        table_id=table_id or None,
        catalog=catalog,
        kinds=kind or (),
        trigger=trigger,
        worker=worker,
        since=since,
        until=until,
    )
    shown = Counter(job.status for job in page.items)
    return render(
        request,
        "jobs/list.html",
        reader,
        jobs=page.items,
        next_cursor=page.next_cursor,
        statuses=list(JobStatus),
        counts={one: total.or_more(shown[one]) for one, total in counted.items()},
        kinds=list(JobKind),
        chosen_statuses=status or [],
        chosen_kinds=kind or [],
        catalogs=catalogs.list_names(session),
        catalog=catalog,
        trigger=trigger,
        worker=worker,
        since=since,
        until=until,
        table=get_table(session, table_id) if table_id else None,
        now=utc_now(),
    )


@router.post("/jobs/bulk")
def act_on_jobs(request: Request, database: CurrentDatabase, sender: Operator, typed: Typed) -> Response:
    """Cancel or retry the chosen jobs; what became of each."""
    body = typed.read(BulkRequest, {"action": typed["action"], "job_ids": typed.all("job_ids")})
    with database.write() as session:
        result = jobs.act_on_jobs(session, sender, body)
    return render(request, "jobs/bulk.html", sender, result=result, action=body.action)


@router.get("/jobs/{job_id}")
def show_job(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    job_id: str,
    level: LogLevel | None = None,
    search: Search = None,
    cursor: str | None = None,
) -> Response:
    """level, search: which lines of its log; cursor: those before these."""
    job = jobs.get_job(session, job_id)
    log = _latest_events(session, job_id, cursor, kind=_LOG, levels=_LEVELS[level], search=search)
    happened = _latest_events(session, job_id, but_for=(_PROGRESS, _LOG))
    warnings = _latest_events(session, job_id, kind=_LOG, levels=_LEVELS["warning"]).items
    progress: list[EventView] = []
    if not all(attempt.stages for attempt in job.attempts):
        page = PageRequest(limit=_PROGRESS_READ, sort="-id")
        progress = events.list_events(session, page, job_id=job_id, kind=_PROGRESS).items[::-1]
    now = utc_now()
    return render(
        request,
        "jobs/show.html",
        reader,
        job=job,
        timeline=timeline_of(job, happened.items, progress, warnings, now),
        events=happened.items,
        has_more_events=happened.next_cursor is not None,
        log=log.items[::-1],
        earlier_log=log.next_cursor,
        level=level,
        search=search,
        stages=stages_of(job, progress, now),
        earlier_stages=earlier_stages_of(job, progress, now),
        figures=figures_of(job),
        key_set_table=key_set_table(job),
        differences=differences_of(job),
        duplicates=duplicates_of(job),
        is_recent=orphan_removals.counts(job.ended_at, now),
        now=now,
    )


@router.get("/jobs/{job_id}/log")
def download_log(
    database: CurrentDatabase,
    _reader: Viewer,
    job_id: str,
    level: LogLevel | None = None,
    search: Search = None,
) -> Response:
    """The lines that the page shows, and those before them, as a file: time, level, and what was said."""
    with database.read() as session:
        jobs.get_job(session, job_id)

    def written() -> Iterator[str]:
        cursor: str | None = None
        while True:
            page = PageRequest(limit=_LINES, cursor=cursor, sort="id")
            with database.read() as session:
                found = events.list_events(
                    session, page, job_id=job_id, kind=_LOG, levels=_LEVELS[level], search=search
                )
            yield "".join(
                f"{rfc3339(line.at)} {line.level.upper():7} {line.message}\n" for line in found.items
            )
            cursor = found.next_cursor
            if cursor is None:
                return

    return StreamingResponse(
        written(),
        media_type="text/plain",
        headers={"Content-Disposition": f'attachment; filename="job-{job_id[:8]}.log"'},
    )


@router.post("/jobs/{job_id}/cancel")
def cancel_job(database: CurrentDatabase, sender: Operator, job_id: str) -> Response:
    with database.write() as session:
        jobs.cancel_job(session, sender, job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/retry")
def retry_job(database: CurrentDatabase, sender: Operator, job_id: str) -> Response:
    with database.write() as session:
        again = jobs.retry_job(session, sender, job_id)
    return RedirectResponse(f"/jobs/{again.id}", 303)


def _latest_events(session: Session, job_id: str, cursor: str | None = None, **which: Any) -> Page[EventView]:
    """The latest first, or those before others; `which` as `list_events` takes it."""

    def read(limit: int) -> Page[EventView]:
        page = PageRequest(limit=limit, cursor=cursor, sort="-id")
        return events.list_events(session, page, job_id=job_id, **which)

    found = read(EVENTS_SHOWN)
    lengths = accumulate(len(event.message) for event in found.items)
    fitting = sum(length <= _CHARACTERS for length in lengths)
    return found if fitting == len(found.items) else read(max(fitting, 1))
