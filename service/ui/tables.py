"""A table's page, and what can be done with the table there."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from service.auth.access import Operator, Viewer
from service.database import CurrentDatabase, ReadSession, utc_now
from service.index_health import service as index_health
from service.jobs import service as jobs
from service.jobs.models import JobRequest, RequestableKind
from service.jobs.status import JobKind, JobStatus
from service.paging import PageRequest
from service.policies import service as policies
from service.settings import CurrentSettings
from service.tables import service as tables
from service.ui.formats import policy_sections
from service.ui.pages import EVERYTHING, PageRoute, render
from service.ui.plot import plot_pending

router = APIRouter(route_class=PageRoute)
_PLOT_SPAN = timedelta(hours=24)


@router.get("/tables/{table_id}")
def show_table(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, table_id: str
) -> Response:
    row = tables.get_table(session, table_id)
    now = utc_now()
    samples = index_health.list_history(session, PageRequest(limit=EVERYTHING), table_id).items
    recent = [sample for sample in reversed(samples) if sample.at >= now - _PLOT_SPAN]
    history = jobs.list_jobs(session, PageRequest(limit=50), table_id=table_id)
    conversions = [
        job.ended_at
        for job in history.items
        if job.kind is JobKind.CONVERT
        and not job.dry_run
        and job.ended_at
        and job.status is JobStatus.SUCCEEDED
    ]
    return render(
        request,
        "tables/show.html",
        reader,
        table=tables.view(session, settings, row),
        health=index_health.get_health(session, row),
        policy_sections=policy_sections(policies.explain_policy(session, row).values),
        plot=plot_pending(recent, conversions, now),
        jobs=history.items,
        more_jobs=history.next_cursor is not None,
        now=now,
    )


@router.post("/tables/{table_id}/jobs")
def request_job(
    database: CurrentDatabase,
    sender: Operator,
    table_id: str,
    kind: Annotated[RequestableKind, Form()],
    dry_run: Annotated[bool, Form()] = False,
) -> Response:
    with database.write() as session:
        job = jobs.request_job(session, sender, table_id, JobRequest(kind=kind, dry_run=dry_run))
    return RedirectResponse(f"/jobs/{job.id}", 303)


@router.post("/tables/{table_id}/pause")
def pause_table(
    database: CurrentDatabase, settings: CurrentSettings, sender: Operator, table_id: str
) -> Response:
    with database.write() as session:
        tables.pause_table(session, settings, sender, table_id, paused=True)
    return RedirectResponse(f"/tables/{table_id}", 303)


@router.post("/tables/{table_id}/resume")
def resume_table(
    database: CurrentDatabase, settings: CurrentSettings, sender: Operator, table_id: str
) -> Response:
    with database.write() as session:
        tables.pause_table(session, settings, sender, table_id, paused=False)
    return RedirectResponse(f"/tables/{table_id}", 303)
