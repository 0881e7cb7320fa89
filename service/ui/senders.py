"""The pages of those who sign notifications, for admins: who may, and when each was heard or refused last."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.auth.access import Admin
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession
from service.errors import IcestreamError
from service.http.paging import PageRequest, Search
from service.notifications import senders
from service.notifications.models import SenderRequest
from service.settings import CurrentSettings
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, address_of, render
from service.webhooks.signing import new_secret

router = APIRouter(prefix="/senders", route_class=PageRoute)
_FIELDS = {
    "notification_sender_exists": "name",
    "catalog_not_found": "catalog",
    "secret_in_clear": "secret",
    "secret_not_allowed": "secret",
    "secret_unavailable": "secret",
    "webhook_secret_unusable": "secret",
}


@router.get("")
def show_senders(
    request: Request,
    session: ReadSession,
    reader: Admin,
    page: Annotated[PageRequest, Depends(senders.SORTING.page_request)],
    catalog: str | None = None,
    search: Search = None,
) -> Response:
    found = senders.list_senders(session, page, catalog, search)
    return render(
        request,
        "senders/list.html",
        reader,
        senders=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        catalog=catalog,
        search=search,
        catalogs=catalogs.list_names(session),
        address=address_of(request),
    )


@router.get("/new")
def show_sender_form(request: Request, session: ReadSession, sender: Admin) -> Response:
    """With a key that is kept nowhere, for whoever has none yet."""
    return _new_page(request, sender, Form.of(), catalogs.list_names(session), new_secret())


@router.post("/new")
def create_sender(
    request: Request, database: CurrentDatabase, settings: CurrentSettings, sender: Admin, typed: Typed
) -> Response:
    try:
        body = typed.read(SenderRequest, {name: typed[name] for name in ("name", "catalog", "secret")})
        with database.write() as session:
            senders.create_sender(session, settings, sender, body)
    except IcestreamError as error:
        form = typed.refused(error, **_FIELDS)
        with database.read() as session:
            return _new_page(request, sender, form, catalogs.list_names(session))
    return see("/senders")


@router.post("/{sender_id}/delete")
def delete_sender(database: CurrentDatabase, sender: Admin, sender_id: str) -> Response:
    with database.write() as session:
        senders.delete_sender(session, sender, sender_id)
    return see("/senders")


def _new_page(
    request: Request, sender: Principal, form: Form, names: list[str], key: str | None = None
) -> Response:
    return render(
        request,
        "senders/new.html",
        sender,
        status_code=form.status_code,
        form=form,
        catalogs=names,
        key=key,
    )
