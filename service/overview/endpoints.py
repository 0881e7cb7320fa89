"""HTTP calls about the whole installation."""

from anyio import from_thread
from fastapi import APIRouter, Request

from service.auth.access import Viewer
from service.db.database import ReadSession
from service.http.routing import ApiRoute
from service.lookups.servers import LookupServers
from service.overview import service
from service.overview.models import Overview
from service.settings import CurrentSettings

router = APIRouter(prefix="/overview", tags=["health"], route_class=ApiRoute)


@router.get("")
def get_overview(
    request: Request, session: ReadSession, settings: CurrentSettings, caller: Viewer
) -> Overview:
    """Show how all tables are doing together, and what needs attention: what is wrong, why, and what to
    do."""
    return service.get_overview(session, settings, caller, trouble_of_lookups(request))


def trouble_of_lookups(request: Request) -> str | None:
    """Why nobody can be told about keys, if lookup servers are named; None if all is well."""
    servers: LookupServers = request.app.state.lookup_servers
    return from_thread.run(servers.trouble)
