"""The pages. Each endpoint calls service functions and renders a template, or leads on after a form.

Forms open their transactions themselves, not as a dependency, which would commit what is behind a form that
comes back with an error.
"""

from fastapi import APIRouter, Request, Response
from sse_starlette import EventSourceResponse

from service.auth.access import VIEWERS, Viewer
from service.errors import NotFoundError
from service.http.guards import Anyone
from service.jobs.stream import stream_changes
from service.problems import PROBLEMS
from service.ui import (
    api_keys,
    audit,
    catalogs,
    enrolment,
    erasures,
    first_hour,
    indexes,
    jobs,
    lookups,
    overview,
    policies,
    search,
    senders,
    sign_in,
    tables,
    timeline,
    webhooks,
    workers,
    writes,
)
from service.ui.pages import DIGEST, MEDIA_TYPES, STATIC, PageRoute, render

router = APIRouter(route_class=PageRoute)


@router.get("/problems/{slug}", dependencies=[Anyone])
def show_problem(request: Request, slug: str) -> Response:
    """What the `type` of a problem document means: it is the address of this page."""
    problem = PROBLEMS.get(slug)
    if problem is None:
        raise NotFoundError("not-found", f"No problem is called {slug!r}.", "docs/errors.md lists them.")
    return render(request, "problem.html", problem=problem)


@router.get("/static/{digest}/{name}", dependencies=[Anyone])
def get_static(digest: str, name: str) -> Response:
    """Assets lie in memory; the digest in their address lets browsers keep them for good.

    Not of a page that came from a replica of another release: what this one has would be kept as that one's.
    """
    if name not in STATIC:
        raise NotFoundError("not-found", f"There is no {name!r}.", "Reload the page.")
    media_type = MEDIA_TYPES[name[name.rindex(".") :]]
    return Response(
        STATIC[name],
        media_type=media_type,
        headers={"Cache-Control": "public, max-age=31536000, immutable" if digest == DIGEST else "no-store"},
    )


@router.get("/changes")
async def follow_changes(
    request: Request,
    _reader: Viewer,
    table_id: str | None = None,
    job_id: str | None = None,
    *,
    pending: bool = False,
) -> EventSourceResponse:
    """Tell a page that something has happened, at most every second: it is asked for again then.

    What polls have found of a table, or of all with `pending`, comes with its figures, every five seconds.
    """
    content = stream_changes(
        request.app.state.recent_events,
        request.app.state.recent_moves,
        request.app.state.stopping,
        lambda: VIEWERS.still_admits(request),
        table_id=table_id,
        job_id=job_id,
        tells_pending=pending or table_id is not None,
    )
    return EventSourceResponse(content)


for page in (
    sign_in,
    overview,
    first_hour,
    timeline,
    search,
    enrolment,
    lookups,
    writes,
    indexes,
    tables,
    erasures,
    jobs,
    policies,
    catalogs,
    workers,
    webhooks,
    senders,
    api_keys,
    audit,
):
    router.include_router(page.router)
