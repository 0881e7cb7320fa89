"""Sends what the outbox holds: at least once, of one table in order, with growing pauses until it is taken.

Invariant: a delivery is claimed in a transaction before it is sent, so replicas that both send do not send
the same at the same time. Each webhook has a thread of its own: none waits for a receiver that is slow.
"""

import json
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from requests import RequestException, Response, Session
from sqlalchemy import ColumnElement, exists
from sqlalchemy.orm import aliased
from sqlmodel import col, or_, select

from service.catalogs.clients import allowed_session
from service.db.database import FOR_UPDATE, Database, utc_now
from service.errors import IcestreamError, is_database_trouble
from service.records.webhooks import DeliveryStatus, Webhook, WebhookDelivery
from service.settings import Settings
from service.webhooks.outbox import CONTENT_TYPE
from service.webhooks.signing import signature, signers_at

_CONNECT_SECONDS = 5
_LONGEST_PAUSE = timedelta(hours=6)
_GROWTH = 3
_GONE = 410
_log = logging.getLogger("icestream.webhooks")


@dataclass(frozen=True)
class _Claim:
    """A delivery that this replica sends now."""

    delivery_id: int
    attempt: int
    message_id: str
    event: bytes
    url: str
    secret: str


@dataclass(frozen=True)
class _Outcome:
    """error: None if the receiver took it. status_code: None if it did not answer."""

    status_code: int | None
    error: str | None


_KNOWN = select(Webhook.id)
"""Asked each second, and most services have none."""


class WebhookSender:
    """Sends for one replica."""

    def __init__(
        self, database: Database, settings: Settings, wall: Callable[[], datetime] = utc_now
    ) -> None:
        self._database, self._settings, self._wall = database, settings, wall
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def send_due(self) -> None:
        """Start with each webhook that has something to be sent now."""
        with self._database.read() as session:
            known = set(session.exec(_KNOWN))
            due = set[str]()
            if known:
                query = select(WebhookDelivery.webhook_id).join(Webhook).where(*self._due()).distinct()
                due.update(session.exec(query))
        for webhook_id in self._threads.keys() - known:
            self._threads.pop(webhook_id).shutdown(wait=False)
        for webhook_id in due:
            with self._lock:
                if webhook_id in self._busy:
                    continue
                self._busy.add(webhook_id)
            if webhook_id not in self._threads:
                self._threads[webhook_id] = ThreadPoolExecutor(1, f"webhook-{webhook_id[:8]}")
            self._threads[webhook_id].submit(self._run, webhook_id)

    def stop(self) -> None:
        """Waits for what is being sent."""
        self._stopping.set()
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, webhook_id: str) -> None:
        try:
            with allowed_session(self._settings, self._settings.webhook_timeout_seconds) as http:
                while not self._stopping.is_set() and self.send_next(webhook_id, http):
                    pass
        except Exception as error:
            if is_database_trouble(error):
                _log.warning("The control database does not answer, sending later: %s", error)
            else:
                _log.exception("Webhook %s failed", webhook_id)
        finally:
            with self._lock:
                self._busy.discard(webhook_id)

    def send_next(self, webhook_id: str, http: Session) -> bool:
        """Send one delivery; False if none is due."""
        claim = self._claim(webhook_id)
        if claim is None:
            return False
        self._record(claim, self._send(claim, http))
        return True

    def _due(self) -> list[ColumnElement[bool]]:
        now = self._wall()
        earlier = aliased(WebhookDelivery)
        goes_first = exists().where(
            col(earlier.webhook_id) == col(WebhookDelivery.webhook_id),
            col(earlier.table_id) == col(WebhookDelivery.table_id),
            col(earlier.status) == DeliveryStatus.PENDING.value,
            col(earlier.id) < col(WebhookDelivery.id),
        )
        at = col(WebhookDelivery.next_attempt_at)
        return [
            col(Webhook.enabled).is_(True),
            col(WebhookDelivery.status) == DeliveryStatus.PENDING.value,
            # No pause is as long: then the clock was set back meanwhile.
            or_(at <= now, at > now + 2 * _LONGEST_PAUSE),
            ~goes_first,
        ]

    def _claim(self, webhook_id: str) -> _Claim | None:
        with self._database.write() as session:
            query = (
                select(WebhookDelivery, Webhook)
                .join(Webhook)
                .where(col(WebhookDelivery.webhook_id) == webhook_id, *self._due())
                .order_by(col(WebhookDelivery.id))
                .limit(1)
                .with_for_update(skip_locked=True, of=WebhookDelivery)
            )
            found = session.exec(query).first()
            if found is None:
                return None
            delivery, webhook = found
            assert delivery.id is not None
            delivery.attempts += 1
            # Longer than it can take; after a crash, it is sent again then.
            patience = 2 * (_CONNECT_SECONDS + self._settings.webhook_timeout_seconds) + 30
            delivery.next_attempt_at = self._wall() + timedelta(seconds=patience)
            session.add(delivery)
            return _Claim(
                delivery.id,
                delivery.attempts,
                delivery.message_id,
                json.dumps(delivery.event, separators=(",", ":")).encode(),
                webhook.url,
                webhook.secret,
            )

    def _send(self, claim: _Claim, http: Session) -> _Outcome:
        now = self._wall()
        try:
            signers = signers_at(self._settings, claim.secret)
            headers = {
                "Content-Type": CONTENT_TYPE,
                "User-Agent": "icestream",
                "webhook-id": claim.message_id,
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": signature(signers, claim.message_id, now, claim.event),
            }
            # Nobody reads what it says: it may be endless.
            with http.post(
                claim.url, data=claim.event, headers=headers, allow_redirects=False, stream=True
            ) as answer:
                return _Outcome(answer.status_code, _refusal(answer))
        except IcestreamError as error:
            return _Outcome(None, f"{error.title}: {error.detail} {error.remedy}")
        except RequestException as error:
            return _Outcome(None, f"The receiver did not answer: {type(error).__name__}.")

    def _record(self, claim: _Claim, outcome: _Outcome) -> None:
        now = self._wall()
        with self._database.write() as session:
            delivery = session.get(WebhookDelivery, claim.delivery_id, with_for_update=FOR_UPDATE)
            is_mine = delivery is not None and delivery.attempts == claim.attempt
            if delivery is None or not is_mine or delivery.status != DeliveryStatus.PENDING.value:
                return
            delivery.status_code, delivery.error = outcome.status_code, outcome.error
            is_gone = outcome.status_code == _GONE
            if outcome.error is None:
                delivery.status, delivery.ended_at = DeliveryStatus.DELIVERED.value, now
            elif is_gone or delivery.attempts >= self._settings.webhook_attempts:
                delivery.status, delivery.ended_at = DeliveryStatus.DEAD.value, now
                _log.warning(
                    "Delivery %d of %s is given up: %s", claim.delivery_id, delivery.kind, outcome.error
                )
            else:
                delivery.next_attempt_at = now + pause(self._settings.webhook_pause_seconds, claim.attempt)
            session.add(delivery)
            if is_gone:
                webhook = session.get_one(Webhook, delivery.webhook_id, with_for_update=FOR_UPDATE)
                webhook.enabled, webhook.disabled_because = False, "The receiver answered 410 Gone."
                webhook.version += 1
                webhook.updated_at = now
                session.add(webhook)


def pause(first_seconds: float, attempt: int) -> timedelta:
    """Before the next attempt: three times as long each time, six hours at most, and a quarter more or less,
    so that receivers that come back do not get everything at the same moment."""
    seconds = min(first_seconds * _GROWTH ** (attempt - 1), _LONGEST_PAUSE.total_seconds())
    return timedelta(seconds=seconds * random.uniform(0.75, 1.25))  # noqa: S311 - no secret


def _refusal(answer: Response) -> str | None:
    if 200 <= answer.status_code < 300:
        return None
    if answer.is_redirect:
        return f"The receiver answered {answer.status_code}: redirects are not followed."
    return f"The receiver answered {answer.status_code}."
