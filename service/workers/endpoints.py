"""HTTP calls that workers make, and the list of workers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from service.auth.access import Viewer, WorkerCaller
from service.db.database import CurrentDatabase, ReadSession, WriteSession, utc_now
from service.db.together import Together
from service.http.messages import AttemptNumber, JobId, WorkerId
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute
from service.http.waking import WAKES
from service.jobs import attempts
from service.jobs.attempts import End
from service.jobs.contract import (
    AddressRange,
    AddressRangeRequest,
    Assignment,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from service.settings import CurrentSettings
from service.workers import service
from service.workers.models import ClaimRequest, WorkerRequest, WorkerView
from service.workers.waiting import Claims

router = APIRouter(tags=["workers"], route_class=ApiRoute)


@router.post("/workers", status_code=201)
def register_worker(
    session: WriteSession, settings: CurrentSettings, caller: WorkerCaller, body: WorkerRequest
) -> WorkerView:
    """Register a worker process that just started."""
    return service.register_worker(session, settings, caller, body)


@router.get("/workers")
def list_workers(
    session: ReadSession,
    settings: CurrentSettings,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    alive: Annotated[
        bool | None,
        Query(description="Only workers that were heard of lately are listed, or only the others."),
    ] = None,
    search: Search = None,
) -> Page[WorkerView]:
    """List workers that were heard of within a day, the latest first."""
    return service.list_workers(session, settings, page, alive=alive, search=search)


@router.post(
    "/workers/{worker_id}/claim",
    response_model=Assignment,
    responses={204: {"description": "No job came up within the wait."}},
)
async def claim_job(
    caller: WorkerCaller, request: Request, worker_id: WorkerId, body: ClaimRequest
) -> Assignment | Response:
    """Wait for a job and take it (long poll)."""
    claims: Claims = request.app.state.claims
    assignment = await service.claim_job(claims, caller, worker_id, body, request.is_disconnected)
    return assignment if assignment is not None else Response(status_code=204)


@router.post("/jobs/{job_id}/attempts/{attempt}/heartbeat")
def report_heartbeat(
    session: WriteSession,
    settings: CurrentSettings,
    caller: WorkerCaller,
    job_id: JobId,
    attempt: AttemptNumber,
    body: HeartbeatRequest,
) -> HeartbeatAnswer:
    """Extend the lease; report progress and events. 409 `stale-attempt` if another attempt took over."""
    return attempts.heartbeat(session, settings, caller, job_id, attempt, body, utc_now())


@router.post("/jobs/{job_id}/attempts/{attempt}/address-ranges", status_code=201)
def reserve_addresses(
    session: WriteSession,
    caller: WorkerCaller,
    job_id: JobId,
    attempt: AttemptNumber,
    body: AddressRangeRequest,
) -> AddressRange:
    """Reserve row addresses [base_address, base_address + rows) of the table's index."""
    return attempts.reserve_addresses(session, caller, job_id, attempt, body)


@router.post(
    "/jobs/{job_id}/attempts/{attempt}/finish",
    response_model=Assignment,
    responses={204: {"description": "The attempt has ended; no job was claimed, or none waits."}},
    dependencies=WAKES,
)
async def finish_attempt(
    request: Request,
    database: CurrentDatabase,
    caller: WorkerCaller,
    job_id: JobId,
    attempt: AttemptNumber,
    body: FinishRequest,
) -> Assignment | Response:
    """End an attempt; a report may be repeated. `released` hands the job back without using up an attempt.

    The answer to a worker that `claims_next` is as that to a claim.
    """
    ends: Together[End, str] = request.app.state.ends
    worker_id = await database.in_thread(ends.call, End(caller, job_id, attempt, body), job_id)
    assignment = None
    if body.claims_next:
        claims: Claims = request.app.state.claims
        at_once = ClaimRequest(wait_seconds=0)
        assignment = await service.claim_job(claims, caller, worker_id, at_once, request.is_disconnected)
    return assignment if assignment is not None else Response(status_code=204)
