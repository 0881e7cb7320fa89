"""HTTP calls about catalogs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from service.auth.access import Admin, Operator, Viewer
from service.catalogs import service
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.models import CatalogCheck, CatalogPatch, CatalogRequest, CatalogView
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession, WriteSession
from service.http.etags import IfMatch, OptionalIfMatch, with_etag
from service.http.messages import CatalogId
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute
from service.records.catalogs import CatalogStatus, CatalogType
from service.settings import CurrentSettings

router = APIRouter(prefix="/catalogs", tags=["catalogs"], route_class=ApiRoute)


def _get_catalogs(request: Request) -> IcebergCatalogs:
    catalogs: IcebergCatalogs = request.app.state.catalogs
    return catalogs


OpenCatalogs = Annotated[IcebergCatalogs, Depends(_get_catalogs)]


@router.post("", status_code=201)
def create_catalog(
    session: WriteSession, settings: CurrentSettings, caller: Admin, body: CatalogRequest, response: Response
) -> CatalogView:
    """Register a catalog. It need not be reachable yet: POST its `/check` to see."""
    return with_etag(response, service.create_catalog(session, settings, caller, body))


@router.get("")
def list_catalogs(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    search: Search = None,
    kind: Annotated[
        CatalogType | None, Query(alias="type", description="Only catalogs of this type are listed.")
    ] = None,
    paused: Annotated[
        bool | None, Query(description="Only those that are paused are listed, or only others.")
    ] = None,
    status: Annotated[
        CatalogStatus | None, Query(description="Only catalogs with this status are listed.")
    ] = None,
) -> Page[CatalogView]:
    """List the registered catalogs."""
    return service.list_catalogs(session, page, search=search, kind=kind, paused=paused, status=status)


@router.get("/{catalog_id}")
def get_catalog(
    session: ReadSession, _caller: Viewer, catalog_id: CatalogId, response: Response
) -> CatalogView:
    """Show one catalog, by id or name."""
    return with_etag(response, service.view(session, service.get_catalog(session, catalog_id)))


@router.patch("/{catalog_id}")
def update_catalog(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Admin,
    catalog_id: CatalogId,
    body: CatalogPatch,
    if_match: IfMatch,
    response: Response,
) -> CatalogView:
    """Change some fields (merge patch); needs If-Match."""
    return with_etag(response, service.update_catalog(session, settings, caller, catalog_id, body, if_match))


@router.delete("/{catalog_id}", status_code=204)
def delete_catalog(
    session: WriteSession, caller: Admin, catalog_id: CatalogId, if_match: OptionalIfMatch = None
) -> None:
    """Forget a catalog and its patterns; refused while tables are enrolled from it."""
    service.delete_catalog(session, caller, catalog_id, if_match=if_match)


@router.post("/{catalog_id}/check")
@waits_for_catalog(lambda given: str(given["catalog_id"]))
def check_catalog(
    request: Request,  # noqa: ARG001 - whose end is waited for
    database: CurrentDatabase,
    settings: CurrentSettings,
    catalogs: OpenCatalogs,
    caller: Operator,
    catalog_id: CatalogId,
) -> CatalogCheck:
    """Try to reach a catalog, look at where its indexes go, and say what can be seen. Writes nothing."""
    with database.write() as session:
        catalog = service.authorize_check(session, caller, catalog_id)
    return service.check_connection(settings, catalogs, catalog)


@router.post("/{catalog_id}/pause")
def pause_catalog(session: WriteSession, caller: Operator, catalog_id: CatalogId) -> CatalogView:
    """Start no job of any of its tables until resumed; running ones end as usual."""
    return service.pause_catalog(session, caller, catalog_id, paused=True)


@router.post("/{catalog_id}/resume")
def resume_catalog(session: WriteSession, caller: Operator, catalog_id: CatalogId) -> CatalogView:
    """Let jobs of its tables start again."""
    return service.pause_catalog(session, caller, catalog_id, paused=False)
