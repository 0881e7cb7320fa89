"""HTTP calls about jobs."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from sse_starlette import EventSourceResponse

from service.auth.access import VIEWERS, Admin, Operator, Viewer
from service.db.database import ReadSession, WriteSession
from service.errors import InvalidError
from service.http.messages import JobId, TableId
from service.http.paging import Page, PageRequest, Since, Until
from service.http.routing import ApiRoute
from service.jobs import events, queue, service
from service.jobs.models import (
    BulkRequest,
    BulkResult,
    EventLevel,
    EventView,
    JobRequest,
    JobView,
    SystemView,
)
from service.jobs.stream import stream_events
from service.records.jobs import JobKind, JobStatus
from service.records.tables import get_table

router = APIRouter(tags=["jobs"], route_class=ApiRoute)
EventPage = Annotated[PageRequest, Depends(events.SORTING.page_request)]
Levels = Annotated[
    list[EventLevel] | None,
    Query(description="Only events of this level are listed; it may be given several times."),
]
EventKind = Annotated[
    str | None,
    Query(
        description="Only events of this kind are listed, such as `job.queued`, or of a group, such as `job`."
    ),
]


@router.post("/tables/{table_id}/jobs", status_code=202)
def request_job(session: WriteSession, caller: Operator, table_id: TableId, body: JobRequest) -> JobView:
    """Queue a job. If one of its kind is queued already, that one is the answer."""
    return service.request_job(session, caller, table_id, body)


@router.get("/jobs")
def list_jobs(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    table_id: Annotated[str | None, Query(description="Only jobs of this table are listed.")] = None,
    catalog: Annotated[
        str | None,
        Query(description="Only jobs of tables of this catalog are listed, which is given by name or id."),
    ] = None,
    status: Annotated[
        list[JobStatus] | None,
        Query(description="Only jobs with this status are listed; it may be given several times."),
    ] = None,
    kind: Annotated[
        list[JobKind] | None,
        Query(description="Only jobs of this kind are listed; it may be given several times."),
    ] = None,
    trigger: Annotated[
        Literal["policy", "request"] | None,
        Query(
            description="Only jobs that a policy started are listed, or only those that somebody requested."
        ),
    ] = None,
    worker: Annotated[
        str | None,
        Query(
            description="Only jobs are listed that this worker ran an attempt at; it is given by name or id."
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
) -> Page[JobView]:
    """List jobs, the latest first; `since` and `until` go by `created_at`."""
    return service.list_jobs(
        session,
        page,
        table_id=table_id,
        catalog=catalog,
        statuses=status or (),
        kinds=kind or (),
        trigger=trigger,
        worker=worker,
        since=since,
        until=until,
    )


@router.get("/jobs/{job_id}")
def get_job(session: ReadSession, _caller: Viewer, job_id: JobId) -> JobView:
    """Show one job with its attempts, progress, result and, if it failed, the reason."""
    return service.get_job(session, job_id)


@router.get("/jobs/{job_id}/events")
def list_job_events(
    session: ReadSession,
    _caller: Viewer,
    page: EventPage,
    job_id: JobId,
    level: Levels = None,
    kind: EventKind = None,
    search: Annotated[
        str | None,
        Query(max_length=200, description="Only events are listed whose message contains this, in any case."),
    ] = None,
    since: Since = None,
    until: Until = None,
) -> Page[EventView]:
    """List what happened to a job, oldest first."""
    queue.get_job(session, job_id)
    return events.list_events(
        session, page, job_id=job_id, levels=level or (), kind=kind, search=search, since=since, until=until
    )


@router.post("/jobs/{job_id}/cancel", status_code=202)
def cancel_job(session: WriteSession, caller: Operator, job_id: JobId) -> JobView:
    """Cancel a queued job at once; a running one stops at its worker's next heartbeat."""
    return service.cancel_job(session, caller, job_id)


@router.post("/jobs/{job_id}/retry", status_code=202)
def retry_job(session: WriteSession, caller: Operator, job_id: JobId) -> JobView:
    """Queue a failed or cancelled job again, as a new job."""
    return service.retry_job(session, caller, job_id)


@router.post("/jobs/bulk")
def act_on_jobs(session: WriteSession, caller: Operator, body: BulkRequest) -> BulkResult:
    """Cancel or retry up to 100 jobs; each that can't be is refused with its own problem.

    So is the retry of what can't be undone, such as an expiry: that is retried by itself.
    """
    return service.act_on_jobs(session, caller, body)


@router.get("/tables/{table_id}/events")
def list_table_events(
    session: ReadSession,
    _caller: Viewer,
    page: EventPage,
    table_id: TableId,
    level: Levels = None,
    kind: EventKind = None,
    since: Since = None,
    until: Until = None,
) -> Page[EventView]:
    """List what happened to a table, oldest first: its jobs, and every decision to run or not to run
    something."""
    get_table(session, table_id)
    return events.list_events(
        session, page, table_id=table_id, levels=level or (), kind=kind, since=since, until=until
    )


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_events(
    request: Request,
    _caller: Viewer,
    table_id: Annotated[str | None, Query(description="Only events of this table are sent.")] = None,
    job_id: Annotated[str | None, Query(description="Only events of this job are sent.")] = None,
    last_event_id: Annotated[str | None, Header(description="The stream goes on after this event.")] = None,
) -> EventSourceResponse:
    """Send events as they happen (server-sent events); `data` is one event in JSON, with the job's status.
    First comes an `id` alone: a stream that breaks before its first event goes on after that one. The stream
    ends some seconds after the credentials that opened it.
    """
    if last_event_id is not None and not _is_event_id(last_event_id):
        raise InvalidError("invalid-last-event-id", f"{last_event_id[:50]!r} is no number of 64 bits.")
    after = int(last_event_id) if last_event_id is not None else None
    content: AsyncIterator[dict[str, str]] = stream_events(
        request.app.state.recent_events,
        after,
        request.app.state.stopping,
        lambda: VIEWERS.still_admits(request),
        table_id=table_id,
        job_id=job_id,
    )
    return EventSourceResponse(content)


def _is_event_id(text: str) -> bool:
    return re.fullmatch("[0-9]{1,19}", text) is not None and int(text) < 2**63


@router.get("/system")
def get_system(session: ReadSession, _caller: Viewer) -> SystemView:
    """Show whether the whole system is paused, and the version of the service."""
    return service.system_view(session)


@router.post("/system/pause")
def pause_system(session: WriteSession, caller: Admin) -> SystemView:
    """Start no job of any table until resumed; running ones end as usual."""
    return service.pause_system(session, caller, paused=True)


@router.post("/system/resume")
def resume_system(session: WriteSession, caller: Admin) -> SystemView:
    """Let jobs of all tables start again, unless the table or its catalog is paused."""
    return service.pause_system(session, caller, paused=False)
