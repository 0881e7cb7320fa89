"""HTTP calls about the health of tables and their indexes."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.auth.access import Viewer
from service.db.database import ReadSession
from service.http.messages import TableId
from service.http.paging import Page, PageRequest, Since, Until
from service.http.routing import ApiRoute
from service.index_health import samples, service
from service.index_health.layouts import view_indexes
from service.index_health.models import HealthSampleView, HealthView, IndexView
from service.records.health import Resolution
from service.records.tables import get_table

router = APIRouter(prefix="/tables/{table_id}/health", tags=["health"], route_class=ApiRoute)


@router.get("")
def get_health(session: ReadSession, _caller: Viewer, table_id: TableId) -> HealthView:
    """Show how a table and its index are doing, why, and what to do."""
    return service.get_health(session, get_table(session, table_id))


@router.get("/index")
def get_index(session: ReadSession, _caller: Viewer, table_id: TableId) -> IndexView:
    """Show a table's indexes from within: runs, partitions, pending deletes, and what lookups cost."""
    return view_indexes(session, get_table(session, table_id))


@router.get("/history")
def list_history(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(samples.SORTING.page_request)],
    table_id: TableId,
    since: Since = None,
    until: Until = None,
    resolution: Annotated[
        Resolution,
        Query(description="The last sample of each `hour` or `day`, by UTC, is given."),
    ] = Resolution.ALL,
) -> Page[HealthSampleView]:
    """List samples of the health, newest first."""
    get_table(session, table_id)
    return samples.list_history(session, page, table_id, since=since, until=until, resolution=resolution)
