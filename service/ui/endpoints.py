"""The pages. Each endpoint calls service functions and renders a template, or redirects after a form.

Forms open their transactions themselves, not as a dependency: a dependency is closed after the route has
answered an error, and a denied form is recorded in a transaction of its own.
"""

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlmodel import Session

from service.auth import service as auth
from service.auth.access import Admin, Anyone, Operator, SignedIn, Viewer
from service.auth.models import Principal
from service.auth.principals import SESSION_COOKIE, clear_session_cookie, find_principal, set_session_cookie
from service.catalogs import service as catalogs
from service.catalogs.endpoints import OpenCatalogs
from service.database import CurrentDatabase, ReadSession, utc_now
from service.errors import ForbiddenError, IcestreamError, InvalidError, NotFoundError, UnauthenticatedError
from service.index_health import service as index_health
from service.jobs import events
from service.jobs import service as jobs
from service.jobs.models import EventView, JobRequest, JobView, RequestableKind
from service.jobs.status import JobKind, JobStatus
from service.paging import PageRequest
from service.policies import service as policies
from service.problems import PROBLEMS
from service.settings import CurrentSettings
from service.tables import service as tables
from service.tables.models import TableRequest
from service.ui.formats import policy_sections
from service.ui.job_story import differences_of, figures_of, key_set_table, stages_of
from service.ui.pages import (
    MEDIA_TYPES,
    STATIC,
    PageRoute,
    local_path,
    render,
)
from service.ui.plot import plot_pending
from service.workers import service as workers

router = APIRouter(route_class=PageRoute)

_ACTIVE = (JobStatus.RUNNING, JobStatus.QUEUED)
_PLOT_SPAN = timedelta(hours=24)
_EVERYTHING = 10_000


@router.get("/problems/{slug}", dependencies=[Anyone])
def show_problem(request: Request, slug: str) -> Response:
    """What the `type` of a problem document means: it is the address of this page."""
    problem = PROBLEMS.get(slug)
    if problem is None:
        raise NotFoundError(
            "not-found", "Nothing here", f"No problem is called {slug!r}.", "docs/errors.md lists them."
        )
    return render(request, "problem.html", problem=problem)


@router.get("/static/{digest}/{name}", dependencies=[Anyone])
def get_static(digest: str, name: str) -> Response:  # noqa: ARG001
    """Assets lie in memory; the digest in their address lets browsers keep them for good."""
    if name not in STATIC:
        raise NotFoundError("not-found", "Nothing here", f"There is no {name!r}.", "Reload the page.")
    media_type = MEDIA_TYPES[name[name.rindex(".") :]]
    return Response(
        STATIC[name],
        media_type=media_type,
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


@router.get("/login", dependencies=[Anyone])
def show_login(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    token: str | None = None,
    next: str = "/",  # noqa: A002
) -> Response:
    """The form for an API key; with a one-time token, sign in at once."""
    if token is not None:
        try:
            with database.write() as session:
                secret = auth.log_in_with_token(session, settings, token)
                auth.log_out(session, request.cookies.get(SESSION_COOKIE, ""))
        except UnauthenticatedError as error:
            return _login_form(request, next, error)
        return _signed_in(request, secret, next)
    if request.cookies.get(SESSION_COOKIE) and find_principal(request) is not None:
        return RedirectResponse(local_path(next), 303)
    return _login_form(request, next)


@router.post("/login", dependencies=[Anyone])
def log_in(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    api_key: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
) -> Response:
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise ForbiddenError(
            "csrf-failed",
            "The request did not come from our page",
            "Another site sent this login form.",
            "Open this page yourself and sign in.",
        )
    try:
        with database.write() as session:
            secret = auth.log_in_with_key(session, settings, api_key.strip())
            auth.log_out(session, request.cookies.get(SESSION_COOKIE, ""))
    except UnauthenticatedError as error:
        return _login_form(request, next, error)
    return _signed_in(request, secret, next)


@router.post("/logout")
def log_out(request: Request, database: CurrentDatabase, _sender: SignedIn) -> Response:
    if token := request.cookies.get(SESSION_COOKIE):
        with database.write() as session:
            auth.log_out(session, token)
    response = RedirectResponse("/login", 303)
    clear_session_cookie(response)
    return response


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
    rows = []
    for table in page.items:
        last = jobs.list_jobs(session, PageRequest(limit=1), table_id=table.id).items
        health = index_health.get_health(session, tables.get_table(session, table.id))
        rows.append({"table": table, "health": health, "last_job": last[0] if last else None})
    active = jobs.list_jobs(session, PageRequest(limit=100), statuses=_ACTIVE)
    return render(
        request,
        "overview.html",
        reader,
        rows=rows,
        next_cursor=page.next_cursor,
        search=search,
        active=active.items,
        more_active=active.next_cursor is not None,
        workers=workers.list_workers(session, settings, PageRequest(limit=500)).items,
        catalogs=catalogs.list_catalogs(session, PageRequest(limit=1)).items,
        system=jobs.system_view(session),
        now=utc_now(),
        address=str(request.base_url).rstrip("/"),
    )


@router.get("/tables/new")
def show_table_form(request: Request, session: ReadSession, reader: Viewer, catalog: str = "") -> Response:
    return _table_form(request, session, reader, {"catalog": catalog, "branch": "main"})


@router.post("/tables/new")
def register_table(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    catalog: Annotated[str, Form()] = "",
    identifier: Annotated[str, Form()] = "",
    branch: Annotated[str, Form()] = "main",
    policy: Annotated[str, Form()] = "",
    key_columns: Annotated[str, Form()] = "",
) -> Response:
    """Enrol a table; what was typed comes back together with what is wrong about it."""
    typed = {
        "catalog": catalog,
        "identifier": identifier,
        "branch": branch,
        "policy": policy,
        "key_columns": key_columns,
    }
    try:
        body = _table_request(typed)
        loaded = tables.load_for_enrolment(database, opened, sender, body)
        with database.write() as session:
            created = tables.enroll_table(session, settings, sender, body, loaded)
    except ForbiddenError:
        raise
    except IcestreamError as error:
        with database.read() as session:
            return _table_form(request, session, sender, typed, error)
    return RedirectResponse(f"/tables/{created.id}", 303)


@router.get("/tables/{table_id}")
def show_table(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, table_id: str
) -> Response:
    row = tables.get_table(session, table_id)
    now = utc_now()
    samples = index_health.list_history(session, PageRequest(limit=_EVERYTHING), table_id).items
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
        "table.html",
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


@router.get("/jobs")
def show_jobs(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    status: Annotated[list[JobStatus] | None, Query()] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    table_id: str = "",
    cursor: str | None = None,
) -> Response:
    page = jobs.list_jobs(
        session,
        PageRequest(limit=50, cursor=cursor),
        table_id=table_id or None,
        statuses=status or (),
        kinds=kind or (),
    )
    return render(
        request,
        "jobs.html",
        reader,
        jobs=page.items,
        next_page=str(request.url.include_query_params(cursor=page.next_cursor))
        if page.next_cursor
        else None,
        statuses=list(JobStatus),
        kinds=list(JobKind),
        chosen_statuses=status or [],
        chosen_kinds=kind or [],
        table=tables.get_table(session, table_id) if table_id else None,
        now=utc_now(),
    )


@router.get("/jobs/{job_id}")
def show_job(request: Request, session: ReadSession, reader: Viewer, job_id: str) -> Response:
    job = jobs.get_job(session, job_id)
    happened = _events_of(session, job)
    now = utc_now()
    return render(
        request,
        "job.html",
        reader,
        job=job,
        events=[event for event in happened if event.kind != "job.progress"],
        stages=stages_of(job, happened, now),
        figures=figures_of(job),
        key_set_table=key_set_table(job),
        differences=differences_of(job),
        now=now,
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


@router.get("/workers")
def show_workers(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer
) -> Response:
    listed = workers.list_workers(session, settings, PageRequest(limit=500)).items
    running = {
        worker.job_id: jobs.get_job(session, worker.job_id) for worker in listed if worker.job_id is not None
    }
    return render(
        request,
        "workers.html",
        reader,
        workers=listed,
        running=running,
        now=utc_now(),
        address=str(request.base_url).rstrip("/"),
    )


@router.post("/system/{action}")
def pause_system(database: CurrentDatabase, sender: Admin, action: Literal["pause", "resume"]) -> Response:
    with database.write() as session:
        jobs.pause_system(session, sender, paused=action == "pause")
    return RedirectResponse("/", 303)


def _login_form(request: Request, target: str, error: UnauthenticatedError | None = None) -> Response:
    return render(
        request,
        "login.html",
        status_code=error.status_code if error else 200,
        target=local_path(target),
        error=error,
    )


def _signed_in(request: Request, secret: str, target: str) -> Response:
    response = RedirectResponse(local_path(target), 303)
    set_session_cookie(response, request, secret)
    return response


def _table_form(
    request: Request,
    session: Session,
    reader: Principal,
    typed: dict[str, str],
    error: IcestreamError | None = None,
) -> Response:
    everything = PageRequest(limit=500)
    return render(
        request,
        "table_new.html",
        reader,
        status_code=error.status_code if error else 200,
        typed={"catalog": "", "identifier": "", "branch": "main", "policy": "", "key_columns": "", **typed},
        error=error,
        catalogs=catalogs.list_catalogs(session, everything).items,
        policies=policies.list_policies(session, everything).items,
        address=str(request.base_url).rstrip("/"),
    )


def _table_request(typed: dict[str, str]) -> TableRequest:
    columns = [column.strip() for column in typed["key_columns"].split(",") if column.strip()]
    try:
        return TableRequest(
            catalog=typed["catalog"],
            identifier=[part.strip() for part in typed["identifier"].strip().split(".")],
            branch=typed["branch"].strip() or "main",
            policy=typed["policy"] or None,
            key_sets=[columns] if columns else None,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        asked = {
            "catalog": "Choose the catalog that knows the table.",
            "identifier": "Write namespace and table with a dot in between, such as sales.orders.",
        }
        raise InvalidError(
            "validation-error",
            "The form is not complete",
            asked.get(field, f"{field}: {error.errors()[0]['msg']}."),
            "Correct it and send the form again.",
        ) from error


def _events_of(session: Session, job: JobView) -> list[EventView]:
    return events.list_events(session, PageRequest(limit=_EVERYTHING), job_id=job.id).items
