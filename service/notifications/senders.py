"""Who signs notifications: made, listed and removed; and the check of what one has signed.

A sender needs no API key, and its secret is good for nothing else. Whoever has one can make the service look
at enrolled tables of one catalog, and learns nothing of them.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from time import monotonic
from typing import Annotated, ClassVar

from fastapi import Header, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, select
from standardwebhooks import WebhookVerificationError

from service.auth.models import Principal
from service.auth.service import authorize
from service.auth.tries import one_try
from service.catalogs.service import get_catalog
from service.db.database import Database, get_database, utc_now
from service.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
    is_database_trouble,
)
from service.http.guards import Guard
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.notifications.models import SenderRequest, SenderView
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.notifications import NotificationSender
from service.settings import Settings
from service.webhooks.signing import check_secret, signers_at

_log = logging.getLogger("icestream.notifications")
_NOTED_EVERY = timedelta(minutes=1)
_tried_at: dict[tuple[str, bool], float] = {}
"""By id of a sender, and whether it was heard: when this process last tried to note that."""
_NO_SIGNATURE = "It has no signature that can be read"
SORTING = Sorting(
    {"name": NotificationSender.name, "created_at": NotificationSender.created_at},
    key=NotificationSender.id,
    default="name",
)


@dataclass(frozen=True)
class Sender:
    """Who has signed a notification."""

    id: str
    catalog_id: str

    @property
    def key(self) -> str:
        return f"sender:{self.id}"


class Signed(Guard):
    """A dependency that lets through what a sender has signed within the last five minutes.

    The message's id names it: one that comes again, within the days that answers are kept, is answered as
    before and does nothing.
    """

    word = "senders"
    once_header: ClassVar[str] = "webhook-id"
    signs_body = True

    async def __call__(
        self,
        request: Request,
        _id: Annotated[
            str | None,
            Header(alias="webhook-id", description="The id names the message: it is taken once."),
        ] = None,
        _timestamp: Annotated[
            str | None,
            Header(
                alias="webhook-timestamp", description="The message was signed at this second since 1970."
            ),
        ] = None,
        _signature: Annotated[
            str | None,
            Header(alias="webhook-signature", description="Id, time and body are signed: `v1,` and base64."),
        ] = None,
    ) -> Sender:
        return await run_in_threadpool(self.check, request)

    def check(self, request: Request) -> Sender:
        """Who has signed the request, once for each; raises UnauthenticatedError. Its body was read."""
        known: Sender | None = getattr(request.state, "sender", None)
        if known is not None:
            return known
        sender_id: str = request.path_params["sender_id"]
        with one_try(request, f"sender {sender_id}", can_be_guessed=False):
            found = _find(request, sender_id)
            if found is None:
                # The same for whoever is unknown: nobody learns which senders there are.
                raise UnauthenticatedError(
                    "signature-invalid",
                    "The request is not signed by a sender of this id within the last five minutes.",
                )
        request.state.sender = found
        return found


def _find(request: Request, sender_id: str) -> Sender | None:
    settings: Settings = request.app.state.settings
    database = get_database(request)
    with database.read() as session:
        row = session.get(NotificationSender, sender_id)
    if row is None:
        return None
    try:
        signers = signers_at(settings, row.secret)
    except InvalidError as error:
        _tell_once(row.name, str(error), int(monotonic()) // 60)
        _note(database, row, f"Its secret can't be used: {error}")
        return None
    body: bytes = request.state.signed_body
    why = _NO_SIGNATURE
    for signer in signers:
        try:
            signer.verify(body, dict(request.headers), json_parse=False)
        except WebhookVerificationError as error:
            why = str(error)
        except ValueError:
            why = _NO_SIGNATURE
        else:
            _note(database, row)
            return Sender(row.id, row.catalog_id)
    _note(database, row, why)
    return None


def _note(database: Database, row: NotificationSender, refusal: str | None = None) -> None:
    """When a sender was heard, or refused and why; once a minute: anybody may send what is not signed."""
    now = utc_now()
    at = row.last_heard_at if refusal is None else row.last_refused_at
    if at is not None and now - at < _NOTED_EVERY:
        return
    # Nor is it tried more often where nothing can be written: each try may stand for seconds.
    kind = (row.id, refusal is None)
    if monotonic() < _tried_at.get(kind, -math.inf) + _NOTED_EVERY.total_seconds():
        return
    _tried_at[kind] = monotonic()
    try:
        with database.write() as session:
            found = session.get(NotificationSender, row.id)
            if found is None:
                return
            if refusal is None:
                found.last_heard_at = now
            else:
                found.last_refused_at, found.last_refusal = now, refusal
            session.add(found)
    except SQLAlchemyError as error:
        # What is heard counts though nothing can be noted.
        if not is_database_trouble(error):
            raise


@lru_cache(maxsize=1_000)
def _tell_once(name: str, why: str, _minute: int) -> None:
    """In a minute: anybody may send what is not signed, and would fill the log."""
    _log.warning("Notifications of %s are refused, since its secret can't be used: %s", name, why)


def create_sender(
    session: Session, settings: Settings, principal: Principal, request: SenderRequest
) -> SenderView:
    """Make a sender, whose signed notifications count from now on."""
    authorize(session, principal, Role.ADMIN, "notification_sender.create", request.name)
    catalog = get_catalog(session, request.catalog)
    taken = session.exec(select(NotificationSender).where(NotificationSender.name == request.name)).first()
    if taken is not None:
        raise ConflictError(
            "notification-sender-exists", f"There is a sender {request.name!r}.", "Choose another name."
        )
    check_secret(settings, request.secret)
    row = NotificationSender(
        name=request.name, catalog_id=catalog.id, secret=request.secret, created_by=principal.name
    )
    session.add(row)
    session.flush()
    return _view(row, catalog.name)


def list_senders(
    session: Session, page: PageRequest, catalog: str | None = None, search: str | None = None
) -> Page[SenderView]:
    """catalog: name or id, to list the senders of one; search: a part of the name. Raises NotFoundError."""
    query = select(NotificationSender)
    if search:
        query = query.where(col(NotificationSender.name).icontains(search, autoescape=True))
    if catalog is not None:
        query = query.where(NotificationSender.catalog_id == get_catalog(session, catalog).id)
    return read_page(session, query, page, SORTING, lambda rows: _views(session, rows))


def delete_sender(session: Session, principal: Principal, sender_id: str) -> None:
    """Forget a sender: what it signs counts no more."""
    row = session.get(NotificationSender, sender_id)
    if row is None:
        raise NotFoundError(
            "notification-sender-not-found",
            f"There is no sender {sender_id!r}.",
            "Look in the list of senders.",
        )
    authorize(session, principal, Role.ADMIN, "notification_sender.delete", row.name)
    session.delete(row)


def _views(session: Session, rows: Sequence[NotificationSender]) -> list[SenderView]:
    ids = {row.catalog_id for row in rows}
    names = dict(session.exec(select(Catalog.id, Catalog.name).where(col(Catalog.id).in_(ids))).all())
    return [_view(row, names[row.catalog_id]) for row in rows]


def _view(row: NotificationSender, catalog: str) -> SenderView:
    return SenderView(
        id=row.id,
        name=row.name,
        catalog=catalog,
        secret=row.secret,
        created_by=row.created_by,
        created_at=row.created_at,
        last_heard_at=row.last_heard_at,
        last_refused_at=row.last_refused_at,
        last_refusal=row.last_refusal,
    )
