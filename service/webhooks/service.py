"""Webhooks: made, changed, removed, tried; and their deliveries."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import func, update
from sqlmodel import Session, col, delete, select

from service.auth.models import Principal
from service.auth.service import authorize
from service.catalogs.allowlists import check_host
from service.db.database import FOR_UPDATE, new_id, utc_now
from service.errors import ConflictError, InvalidError, NotFoundError
from service.http.etags import check_version, store_change
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.records.api_keys import Role
from service.records.webhooks import DeliveryStatus, Webhook, WebhookDelivery
from service.settings import Settings
from service.webhooks.models import DeliveryView, ResendResult, WebhookPatch, WebhookRequest, WebhookView
from service.webhooks.outbox import cloud_event
from service.webhooks.signing import check_secret

SORTING = Sorting(
    {"name": Webhook.name, "created_at": Webhook.created_at, "updated_at": Webhook.updated_at},
    key=Webhook.id,
    default="name",
)
DELIVERY_SORTING = Sorting({"id": WebhookDelivery.id}, key=WebhookDelivery.id, default="-id")
TEST = "webhook.test"
_OPEN = (DeliveryStatus.PENDING.value, DeliveryStatus.DEAD.value)


def create_webhook(
    session: Session, settings: Settings, principal: Principal, request: WebhookRequest
) -> WebhookView:
    """Make a webhook, which gets the events from now on."""
    authorize(session, principal, Role.ADMIN, "webhook.create", request.name)
    _check_name(session, request.name)
    _check_url(settings, request.url)
    check_secret(settings, request.secret)
    row = Webhook(**request.model_dump(), created_by=principal.name)
    session.add(row)
    session.flush()
    return view(session, row)


def list_webhooks(
    session: Session, page: PageRequest, *, enabled: bool | None = None, search: str | None = None
) -> Page[WebhookView]:
    """Webhooks, all or those that are switched on or off, or whose name contains `search`."""
    query = select(Webhook)
    if enabled is not None:
        query = query.where(Webhook.enabled == enabled)
    if search:
        query = query.where(func.lower(Webhook.name).contains(search.lower(), autoescape=True))
    return read_page(session, query, page, SORTING, lambda rows: _views(session, rows))


def get_webhook(session: Session, webhook_id: str, *, for_update: bool = False) -> Webhook:
    """Raises NotFoundError."""
    row = session.get(Webhook, webhook_id, with_for_update=FOR_UPDATE if for_update else None)
    if row is None:
        raise NotFoundError(
            "webhook-not-found", f"There is no webhook {webhook_id!r}.", "Look in the list of webhooks."
        )
    return row


def update_webhook(
    session: Session,
    settings: Settings,
    principal: Principal,
    webhook_id: str,
    patch: WebhookPatch,
    if_match: str,
) -> WebhookView:
    """Change a webhook that nobody changed meanwhile."""
    row = get_webhook(session, webhook_id, for_update=True)
    fields = sorted(patch.model_fields_set)
    authorize(session, principal, Role.ADMIN, "webhook.update", row.name, fields=fields)
    check_version(if_match, row.version)
    if patch.name is not None and patch.name != row.name:
        _check_name(session, patch.name)
        row.name = patch.name
    if patch.url is not None:
        _check_url(settings, patch.url)
        row.url = patch.url
    if patch.kinds is not None:
        row.kinds = list(patch.kinds)
    if patch.secret is not None:
        check_secret(settings, patch.secret)
        row.secret = patch.secret
    if patch.enabled is not None:
        row.enabled, row.disabled_because = patch.enabled, None
    store_change(session, row)
    return view(session, row)


def delete_webhook(
    session: Session, principal: Principal, webhook_id: str, *, if_match: str | None = None
) -> None:
    """Forget a webhook with all its deliveries."""
    row = get_webhook(session, webhook_id, for_update=True)
    authorize(session, principal, Role.ADMIN, "webhook.delete", row.name)
    check_version(if_match, row.version)
    session.exec(delete(WebhookDelivery).where(col(WebhookDelivery.webhook_id) == webhook_id))
    session.delete(row)


def send_test(session: Session, principal: Principal, webhook_id: str) -> DeliveryView:
    """Put an event that says nothing into the outbox, which is sent like any other."""
    row = get_webhook(session, webhook_id)
    authorize(session, principal, Role.ADMIN, "webhook.test", row.name)
    if not row.enabled:
        raise ConflictError("webhook-disabled", f"Nothing is sent to {row.name!r}.", "Switch it on first.")
    now = utc_now()
    message_id = new_id()
    data = {"message": f"A test of the webhook {row.name}, asked for by {principal.name}."}
    delivery = WebhookDelivery(
        message_id=message_id,
        webhook_id=row.id,
        kind=TEST,
        event=cloud_event(message_id, TEST, now.isoformat(), None, data),
        created_at=now,
        next_attempt_at=now,
    )
    session.add(delivery)
    session.flush()
    return delivery_view(delivery)


def list_deliveries(
    session: Session,
    webhook_id: str,
    page: PageRequest,
    *,
    statuses: Sequence[DeliveryStatus] = (),
    kind: str | None = None,
    table_id: str | None = None,
) -> Page[DeliveryView]:
    """List deliveries of a webhook, the latest first."""
    get_webhook(session, webhook_id)
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    if statuses:
        query = query.where(col(WebhookDelivery.status).in_([status.value for status in statuses]))
    if kind is not None:
        query = query.where(WebhookDelivery.kind == kind)
    if table_id is not None:
        query = query.where(WebhookDelivery.table_id == table_id)
    return read_page(
        session, query, page, DELIVERY_SORTING, lambda rows: [delivery_view(row) for row in rows]
    )


def get_delivery(session: Session, webhook_id: str, delivery_id: int) -> WebhookDelivery:
    """Raises NotFoundError."""
    row = session.get(WebhookDelivery, delivery_id)
    if row is None or row.webhook_id != webhook_id:
        raise NotFoundError(
            "delivery-not-found",
            f"The webhook {webhook_id!r} has no delivery {delivery_id}; old ones are forgotten.",
            "Look in the list of its deliveries.",
        )
    return row


def resend(session: Session, principal: Principal, webhook_id: str, delivery_id: int) -> DeliveryView:
    """Send a delivery again from its first attempt on, however it ended; one that waits goes at once."""
    row = get_delivery(session, webhook_id, delivery_id)
    webhook = get_webhook(session, webhook_id)
    authorize(session, principal, Role.ADMIN, "webhook.resend", webhook.name, delivery_id=delivery_id)
    _start_again(session, col(WebhookDelivery.id) == delivery_id)
    session.refresh(row)
    return delivery_view(row)


def resend_dead(session: Session, principal: Principal, webhook_id: str) -> ResendResult:
    """Send all deliveries of a webhook again that were given up."""
    webhook = get_webhook(session, webhook_id)
    authorize(session, principal, Role.ADMIN, "webhook.resend", webhook.name)
    is_dead = col(WebhookDelivery.status) == DeliveryStatus.DEAD.value
    return ResendResult(resent=_start_again(session, col(WebhookDelivery.webhook_id) == webhook_id, is_dead))


def count_open(session: Session) -> dict[DeliveryStatus, int]:
    """How many deliveries of all webhooks wait, and how many were given up."""
    counts = session.exec(
        select(WebhookDelivery.status, func.count())
        .where(col(WebhookDelivery.status).in_(_OPEN))
        .group_by(col(WebhookDelivery.status))
    ).all()
    return {DeliveryStatus(status): dict(counts).get(status, 0) for status in _OPEN}


def oldest_pending_at(session: Session) -> datetime | None:
    """When the oldest event happened that waits to be sent, of webhooks that are switched on."""
    query = (
        select(func.min(WebhookDelivery.created_at))
        .join(Webhook)
        .where(WebhookDelivery.status == DeliveryStatus.PENDING.value, col(Webhook.enabled))
    )
    return session.exec(query).one()


def last_failure_at(session: Session) -> datetime | None:
    """When a delivery was given up last; None if none that is still known and was not sent again."""
    query = select(func.max(WebhookDelivery.ended_at))
    return session.exec(query.where(WebhookDelivery.status == DeliveryStatus.DEAD.value)).one()


def view(session: Session, row: Webhook) -> WebhookView:
    return _views(session, [row])[0]


def delivery_view(row: WebhookDelivery) -> DeliveryView:
    is_pending = row.status == DeliveryStatus.PENDING.value
    fields = row.model_dump() | {"next_attempt_at": row.next_attempt_at if is_pending else None}
    return DeliveryView.model_validate(fields)


def _views(session: Session, rows: Sequence[Webhook]) -> list[WebhookView]:
    if not rows:
        return []
    ids = [row.id for row in rows]
    query = (
        select(
            WebhookDelivery.webhook_id,
            WebhookDelivery.status,
            func.count(),
            func.max(WebhookDelivery.ended_at),
        )
        .where(col(WebhookDelivery.webhook_id).in_(ids))
        .group_by(col(WebhookDelivery.webhook_id), col(WebhookDelivery.status))
    )
    found = {(webhook_id, status): (count, last) for webhook_id, status, count, last in session.exec(query)}

    def of(row: Webhook, status: DeliveryStatus) -> tuple[int, datetime | None]:
        return found.get((row.id, status.value), (0, None))

    return [
        WebhookView(
            **row.model_dump(),
            pending=of(row, DeliveryStatus.PENDING)[0],
            dead=of(row, DeliveryStatus.DEAD)[0],
            last_delivered_at=of(row, DeliveryStatus.DELIVERED)[1],
        )
        for row in rows
    ]


def _start_again(session: Session, *conditions: object) -> int:
    changed = session.execute(
        update(WebhookDelivery)
        .where(*conditions)  # type: ignore[arg-type]
        .values(status=DeliveryStatus.PENDING.value, attempts=0, next_attempt_at=utc_now(), ended_at=None)
        .returning(col(WebhookDelivery.id))
    )
    return len(changed.all())


def _check_name(session: Session, name: str) -> None:
    if session.exec(select(Webhook).where(Webhook.name == name)).first() is not None:
        raise ConflictError(
            "webhook-exists",
            f"{name!r} is taken.",
            "Choose another name, or change the webhook that is there.",
        )


def _check_url(settings: Settings, url: str) -> None:
    """Names are resolved and checked again for each connection."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        is_usable = False
    if not is_usable or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidError(
            "webhook-url-not-supported",
            "It is an http or https URL with a host, and without a user, a fragment, spaces or other than "
            "ASCII characters.",
            "Correct it, such as https://hooks.example/icestream. The signature says who sends.",
        )
    assert parts.hostname is not None
    check_host(settings, parts.hostname)
