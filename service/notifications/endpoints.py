"""HTTP calls of those who hear of commits first: engines, catalogs and object stores."""

from typing import Annotated

from fastapi import APIRouter, Depends

from service.auth.access import Access
from service.auth.models import Principal
from service.catalogs.service import get_catalog
from service.db.database import WriteSession
from service.http.messages import CatalogId, TableId
from service.http.routing import ApiRoute
from service.http.waking import WAKES
from service.notifications import service
from service.notifications.events import places_of
from service.notifications.models import CatalogNotification, Notified, StoreEvent
from service.records.keys import Role
from service.records.tables import get_table

router = APIRouter(tags=["notifications"], route_class=ApiRoute)
Notifier = Annotated[Principal, Depends(Access(Role.OPERATOR))]


@router.post("/tables/{table_id}/notifications", status_code=202, dependencies=WAKES)
def notify_of_table(session: WriteSession, _caller: Notifier, table_id: TableId) -> Notified:
    """Tell that a table has a new commit: it is looked at now, and not when it is polled next."""
    return service.notify_of_table(session, get_table(session, table_id))


@router.post("/catalogs/{catalog_id}/notifications", status_code=202, dependencies=WAKES)
def notify_of_tables(
    session: WriteSession, _caller: Notifier, catalog_id: CatalogId, body: CatalogNotification
) -> Notified:
    """Tell that tables of a catalog have new commits, by names or by metadata files that were written."""
    return service.notify_of_tables(session, get_catalog(session, catalog_id), body)


@router.post("/catalogs/{catalog_id}/store-events", status_code=202, dependencies=WAKES)
def notify_by_event(
    session: WriteSession, _caller: Notifier, catalog_id: CatalogId, body: StoreEvent
) -> Notified:
    """Tell by an event of an object store that a metadata file was written, which means a new commit.

    It may be one of S3 (its own notifications, or by EventBridge), of Cloud Storage (pushed by Pub/Sub) or of
    Azure's Event Grid.
    """
    told = CatalogNotification.model_construct(tables=[], locations=places_of(body.model_extra or {}))
    return service.notify_of_tables(session, get_catalog(session, catalog_id), told)
