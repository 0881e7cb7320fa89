"""HTTP calls of those who hear of commits first: engines, catalogs and object stores."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from service.auth.access import Access, Admin
from service.auth.models import Principal
from service.catalogs.service import get_catalog
from service.db.database import ReadSession, WriteSession
from service.http.messages import CatalogId, TableId
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute
from service.http.waking import WAKES
from service.notifications import senders, service
from service.notifications.events import event_in, told_by
from service.notifications.models import (
    CatalogNotification,
    CommitEvents,
    Notified,
    Received,
    SenderRequest,
    SenderView,
)
from service.notifications.senders import Sender, Signed
from service.records.api_keys import Role
from service.records.tables import get_table
from service.settings import CurrentSettings

router = APIRouter(tags=["notifications"], route_class=ApiRoute)
SenderId = Annotated[str, Path(description="The id names a sender of notifications.")]
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


@router.post("/catalogs/{catalog_id}/commit-events", status_code=202, dependencies=WAKES)
def notify_by_event(
    session: WriteSession, _caller: Notifier, catalog_id: CatalogId, request: Request, body: CommitEvents
) -> Notified:
    """Tell by an event of an object store or of a catalog that there is a new commit.

    A metadata file was written to S3 (its own notifications, or by EventBridge), Cloud Storage (pushed by
    Pub/Sub) or Azure's Blob Storage (Event Grid); or a table was changed in Polaris or Lakekeeper. Several
    come as a list. A CloudEvent comes in structured, batched or binary mode. Events of other kinds that these
    catalogs make mean no table.
    """
    told = told_by(_events(body, request.headers))
    return service.notify_of_tables(session, get_catalog(session, catalog_id), told)


@router.post("/notification-senders", status_code=201)
def create_sender(
    session: WriteSession, settings: CurrentSettings, caller: Admin, body: SenderRequest
) -> SenderView:
    """Make a sender of signed notifications about tables of a catalog."""
    return senders.create_sender(session, settings, caller, body)


@router.get("/notification-senders")
def list_senders(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(senders.SORTING.page_request)],
    catalog: Annotated[
        str | None,
        Query(description="Only senders of this catalog are listed, which is given by name or id."),
    ] = None,
    search: Search = None,
) -> Page[SenderView]:
    """List senders of signed notifications."""
    return senders.list_senders(session, page, catalog, search)


@router.delete("/notification-senders/{sender_id}", status_code=204)
def delete_sender(session: WriteSession, caller: Admin, sender_id: SenderId) -> None:
    """Forget a sender: what it signs counts no more."""
    senders.delete_sender(session, caller, sender_id)


@router.post("/notification-senders/{sender_id}/commit-events", status_code=202, dependencies=WAKES)
def notify_signed(
    session: WriteSession,
    sender: Annotated[Sender, Depends(Signed())],
    sender_id: SenderId,  # noqa: ARG001 - the guard looks for it
    body: CommitEvents,
) -> Received:
    """Tell by a signed request that tables of the sender's catalog have new commits.

    It is signed after Standard Webhooks. The body is an event of an object store or a catalog, as the call of
    the catalog takes it, or names `tables` or `locations` itself. Headers of a CloudEvent are not looked at:
    no signature covers them.
    """
    told = told_by(_events(body))
    service.notify_of_tables(session, get_catalog(session, sender.catalog_id), told)
    return Received(received=len(told.tables) + len(told.locations))


def _events(body: CommitEvents, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """headers: where they may tell of the event."""
    several = body if isinstance(body, list) else [body]
    events = [event.model_extra or {} for event in several]
    return events if isinstance(body, list) else [event_in(headers or {}, events[0])]
