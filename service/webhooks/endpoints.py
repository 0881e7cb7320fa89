"""HTTP calls about webhooks and their deliveries."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from service.auth.access import Admin
from service.db.database import ReadSession, WriteSession
from service.http.etags import IfMatch, OptionalIfMatch, with_etag
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute
from service.records.webhooks import DeliveryStatus
from service.settings import CurrentSettings
from service.webhooks import service
from service.webhooks.models import DeliveryView, ResendResult, WebhookPatch, WebhookRequest, WebhookView

router = APIRouter(tags=["webhooks"], route_class=ApiRoute)
WebhookId = Annotated[str, Path(description="The id names a webhook.")]
DeliveryId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The id names a delivery.")]


@router.post("/webhooks", status_code=201)
def create_webhook(
    session: WriteSession, settings: CurrentSettings, caller: Admin, body: WebhookRequest, response: Response
) -> WebhookView:
    """Make a webhook: it gets a signed POST for each event of its kinds from now on."""
    return with_etag(response, service.create_webhook(session, settings, caller, body))


@router.get("/webhooks")
def list_webhooks(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    enabled: Annotated[
        bool | None, Query(description="Only those are listed that are switched on, or off.")
    ] = None,
    search: Search = None,
) -> Page[WebhookView]:
    """Webhooks, with how many deliveries wait or were given up."""
    return service.list_webhooks(session, page, enabled=enabled, search=search)


@router.get("/webhooks/{webhook_id}")
def get_webhook(
    session: ReadSession, _caller: Admin, webhook_id: WebhookId, response: Response
) -> WebhookView:
    """Show one webhook; the ETag of the answer is what a change of it must name."""
    return with_etag(response, service.view(session, service.get_webhook(session, webhook_id)))


@router.patch("/webhooks/{webhook_id}")
def update_webhook(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Admin,
    webhook_id: WebhookId,
    body: WebhookPatch,
    if_match: IfMatch,
    response: Response,
) -> WebhookView:
    """Change a webhook, or switch it off or on; needs If-Match."""
    return with_etag(response, service.update_webhook(session, settings, caller, webhook_id, body, if_match))


@router.delete("/webhooks/{webhook_id}", status_code=204)
def delete_webhook(
    session: WriteSession, caller: Admin, webhook_id: WebhookId, if_match: OptionalIfMatch = None
) -> None:
    """Forget a webhook with all its deliveries; what waits is not sent."""
    service.delete_webhook(session, caller, webhook_id, if_match=if_match)


@router.post("/webhooks/{webhook_id}/test", status_code=202)
def test_webhook(session: WriteSession, caller: Admin, webhook_id: WebhookId) -> DeliveryView:
    """Send an event of kind `webhook.test`; the delivery shows what becomes of it."""
    return service.send_test(session, caller, webhook_id)


@router.get("/webhooks/{webhook_id}/deliveries")
def list_deliveries(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(service.DELIVERY_SORTING.page_request)],
    webhook_id: WebhookId,
    status: Annotated[
        list[DeliveryStatus] | None,
        Query(description="Only deliveries with this status are listed; it may be given several times."),
    ] = None,
    kind: Annotated[
        str | None,
        Query(description="Only deliveries of events of this kind are listed, such as `job.failed`."),
    ] = None,
    table_id: Annotated[
        str | None, Query(description="Only deliveries of this table's events are listed.")
    ] = None,
) -> Page[DeliveryView]:
    """List deliveries of a webhook, the latest first."""
    return service.list_deliveries(
        session, webhook_id, page, statuses=status or (), kind=kind, table_id=table_id
    )


@router.get("/webhooks/{webhook_id}/deliveries/{delivery_id}")
def get_delivery(
    session: ReadSession, _caller: Admin, webhook_id: WebhookId, delivery_id: DeliveryId
) -> DeliveryView:
    """Show one delivery, with what is sent."""
    return service.delivery_view(service.get_delivery(session, webhook_id, delivery_id))


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/resend", status_code=202)
def resend_delivery(
    session: WriteSession, caller: Admin, webhook_id: WebhookId, delivery_id: DeliveryId
) -> DeliveryView:
    """Send a delivery again, however it ended, or at once if it waits; its `webhook-id` stays."""
    return service.resend(session, caller, webhook_id, delivery_id)


@router.post("/webhooks/{webhook_id}/resend", status_code=202)
def resend_dead_deliveries(session: WriteSession, caller: Admin, webhook_id: WebhookId) -> ResendResult:
    """Send all deliveries again that were given up."""
    return service.resend_dead(session, caller, webhook_id)
