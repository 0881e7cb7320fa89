"""The pages of webhooks, for admins: where events are sent, and what became of each."""

from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Request, Response
from sqlmodel import Session

from service.auth.access import Admin
from service.auth.models import Principal
from service.db.database import CurrentDatabase, ReadSession
from service.errors import IcestreamError, PreconditionError
from service.http.paging import PageRequest, Search
from service.records.webhooks import DeliveryStatus
from service.settings import CurrentSettings
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, render
from service.webhooks import service as webhooks
from service.webhooks.models import WebhookKind, WebhookPatch, WebhookRequest

router = APIRouter(prefix="/webhooks", route_class=PageRoute)
DeliveryPage = Annotated[PageRequest, Depends(webhooks.DELIVERY_SORTING.page_request)]
_FIRST = PageRequest(sort=webhooks.DELIVERY_SORTING.default)
_FIELDS = {
    "webhook_exists": "name",
    "webhook_url_not_supported": "url",
    "host_not_allowed": "url",
    "secret_in_clear": "secret",
    "secret_not_allowed": "secret",
    "secret_unavailable": "secret",
    "webhook_secret_unusable": "secret",
}


@router.get("")
def show_webhooks(
    request: Request,
    session: ReadSession,
    reader: Admin,
    page: Annotated[PageRequest, Depends(webhooks.SORTING.page_request)],
    enabled: bool | None = None,
    search: Search = None,
) -> Response:
    found = webhooks.list_webhooks(session, page, enabled=enabled, search=search)
    return render(
        request,
        "webhooks/list.html",
        reader,
        webhooks=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        enabled=enabled,
        search=search,
    )


@router.get("/new")
def show_webhook_form(request: Request, sender: Admin) -> Response:
    return _new_page(request, sender, Form.of(kinds="job.failed"))


@router.post("/new")
def create_webhook(
    request: Request, database: CurrentDatabase, settings: CurrentSettings, sender: Admin, typed: Typed
) -> Response:
    try:
        body = typed.read(
            WebhookRequest,
            {
                "name": typed["name"],
                "url": typed["url"],
                "kinds": typed.listed("kinds"),
                "secret": typed["secret"],
            },
        )
        with database.write() as session:
            made = webhooks.create_webhook(session, settings, sender, body)
    except IcestreamError as error:
        return _new_page(request, sender, typed.refused(error, **_FIELDS))
    return see(f"/webhooks/{made.id}")


@router.get("/{webhook_id}")
def show_webhook(
    request: Request,
    session: ReadSession,
    reader: Admin,
    webhook_id: str,
    page: DeliveryPage,
    status: DeliveryStatus | None = None,
    kind: str | None = None,
) -> Response:
    form = _filled(session, webhook_id)
    return _webhook_page(request, session, reader, webhook_id, form, page, status, kind)


@router.post("/{webhook_id}/edit")
def update_webhook(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Admin,
    webhook_id: str,
    typed: Typed,
) -> Response:
    try:
        body = typed.read(
            WebhookPatch,
            {
                "name": typed["name"],
                "url": typed["url"],
                "kinds": typed.listed("kinds"),
                "secret": typed["secret"],
            },
        )
        with database.write() as session:
            webhooks.update_webhook(session, settings, sender, webhook_id, body, typed.if_match)
    except IcestreamError as error:
        with database.read() as session:
            form = typed.refused(error, **_FIELDS).beside(_filled(session, webhook_id))
            return _webhook_page(request, session, sender, webhook_id, form, _FIRST)
    return see(f"/webhooks/{webhook_id}")


@router.post("/{webhook_id}/delete")
def delete_webhook(
    request: Request, database: CurrentDatabase, sender: Admin, webhook_id: str, typed: Typed
) -> Response:
    try:
        with database.write() as session:
            webhooks.delete_webhook(session, sender, webhook_id, if_match=typed.if_match)
    except PreconditionError as error:
        with database.read() as session:
            form = _filled(session, webhook_id).refused(error)
            return _webhook_page(request, session, sender, webhook_id, form, _FIRST)
    return see("/webhooks")


@router.post("/{webhook_id}/deliveries/{delivery_id}/resend")
def resend_delivery(database: CurrentDatabase, sender: Admin, webhook_id: str, delivery_id: int) -> Response:
    with database.write() as session:
        webhooks.resend(session, sender, webhook_id, delivery_id)
    return see(f"/webhooks/{webhook_id}")


@router.post("/{webhook_id}/{action}")
def act_on_webhook(
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Admin,
    webhook_id: str,
    action: Literal["enable", "pause", "test", "resend"],
) -> Response:
    with database.write() as session:
        match action:
            case "test":
                webhooks.send_test(session, sender, webhook_id)
            case "resend":
                webhooks.resend_dead(session, sender, webhook_id)
            case _:
                patch = WebhookPatch(enabled=action == "enable")
                webhooks.update_webhook(session, settings, sender, webhook_id, patch, "*")
    return see(f"/webhooks/{webhook_id}")


def _new_page(request: Request, sender: Principal, form: Form) -> Response:
    return render(
        request,
        "webhooks/new.html",
        sender,
        status_code=form.status_code,
        form=form,
        kinds=get_args(WebhookKind),
    )


def _filled(session: Session, webhook_id: str) -> Form:
    webhook = webhooks.get_webhook(session, webhook_id)
    return Form.of(
        name=webhook.name,
        url=webhook.url,
        kinds=", ".join(webhook.kinds),
        secret=webhook.secret,
        version=str(webhook.version),
    )


def _webhook_page(
    request: Request,
    session: Session,
    reader: Principal,
    webhook_id: str,
    form: Form,
    page: PageRequest,
    status: DeliveryStatus | None = None,
    kind: str | None = None,
) -> Response:
    found = webhooks.list_deliveries(
        session, webhook_id, page, statuses=[status] if status else (), kind=kind
    )
    return render(
        request,
        "webhooks/show.html",
        reader,
        status_code=form.status_code,
        form=form,
        webhook=webhooks.view(session, webhooks.get_webhook(session, webhook_id)),
        kinds=get_args(WebhookKind),
        deliveries=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        status=status,
        statuses=list(DeliveryStatus),
        kind=kind,
    )
