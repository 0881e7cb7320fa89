"""HTTP calls about the whole installation."""

from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Depends, Query, Request

from service.auth.access import Viewer
from service.db.database import ReadSession
from service.http.messages import UtcTime
from service.http.paging import PageRequest
from service.http.routing import ApiRoute
from service.lookups.servers import LookupServers
from service.overview import service, timeline
from service.overview.models import Overview, Timeline
from service.settings import CurrentSettings
from service.tables.models import TableFilter

From = Annotated[
    UtcTime | None,
    Query(description="The timeline begins at this time; by default a day before its end."),
]
To = Annotated[
    UtcTime | None,
    Query(description="The timeline ends at this time; by default now, or a day after `since` if sooner."),
]
router = APIRouter(prefix="/overview", tags=["health"], route_class=ApiRoute)


@router.get("")
def get_overview(
    request: Request, session: ReadSession, settings: CurrentSettings, caller: Viewer
) -> Overview:
    """Show how all tables are doing together, and what needs attention: what is wrong, why, and what to
    do."""
    return service.get_overview(session, settings, caller, trouble_of_lookups(request))


@router.get("/timeline")
def get_timeline(
    session: ReadSession,
    settings: CurrentSettings,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(timeline.tables_request)],
    which: Annotated[TableFilter, Depends()],
    since: From = None,
    until: To = None,
) -> Timeline:
    """Show tables over time: what was pending and how old it was, and which jobs ran on which workers."""
    return timeline.get_timeline(session, settings, page, which, since=since, until=until)


def trouble_of_lookups(request: Request) -> str | None:
    """Why nobody can be told about keys, if lookup servers are named; None if all is well."""
    servers: LookupServers = request.app.state.lookup_servers
    return from_thread.run(servers.trouble)
