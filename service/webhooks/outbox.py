"""Writes events, and with each one the deliveries to webhooks that ask for it, in the same transaction.

Invariant: an event that was committed has a delivery for each webhook that was enabled then, and one that was
rolled back has none: nothing else inserts events.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, exists, insert, select
from sqlmodel import Session, col

from service import __version__
from service.db.database import new_id
from service.records.catalogs import Catalog
from service.records.jobs import Event, Job
from service.records.tables import EnrolledTable
from service.records.webhooks import DeliveryStatus, Webhook, WebhookDelivery
from telemetry.traces import current_traceparent

CONTENT_TYPE = "application/cloudevents+json"
SOURCE = "/icestream"
_ENABLED = select(col(Webhook.id), col(Webhook.kinds)).where(col(Webhook.enabled))
_INSERT_UNTOLD = insert(Event)
_INSERT = _INSERT_UNTOLD.returning(col(Event.id), exists().where(col(Webhook.enabled)))
UNTOLD = frozenset(("job.progress", "job.message", "job.log"))
"""So many that they would hold up the others; GET /events has them."""


def cloud_event(
    event_id: str,
    kind: str,
    at: str,
    subject: str | None,
    data: dict[str, Any],
    traceparent: str | None = None,
) -> dict[str, Any]:
    """In the structured JSON of CloudEvents 1.0, with its extension for distributed tracing."""
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": f"icestream.{kind}",
        **({"subject": subject} if subject else {}),
        **({"traceparent": traceparent} if traceparent else {}),
        "time": at,
        "datacontenttype": "application/json",
        "data": {"icestream_version": __version__, **data},
    }


def write_event(session: Session, **event: Any) -> None:
    """Write an event, by all its columns but the id, behind what it tells of."""
    write_events(session, [event])


def write_events(session: Session, events: Sequence[dict[str, Any]]) -> None:
    """Write events in order."""
    if not events:
        return
    session.flush()
    connection = session.connection()
    # That asks whether there are receivers: before, a webhook might be enabled meanwhile.
    written: list[Any] = sorted(connection.execute(_INSERT, events))  # ids are given in order
    for event, (event_id, has_receivers) in zip(events, written, strict=True):
        if has_receivers and event["kind"] not in UNTOLD:
            _write_deliveries(connection, event_id, **event)


def write_untold(session: Session, events: Sequence[dict[str, Any]]) -> None:
    """Write events of kinds that no webhook is told of, in order and together: a busy job has many."""
    if told := {event["kind"] for event in events} - UNTOLD:
        raise ValueError(f"webhooks may ask for {', '.join(sorted(told))}")
    if events:
        session.flush()
        session.connection().execute(_INSERT_UNTOLD, events)


def _write_deliveries(
    connection: Connection,
    event_id: int,
    *,
    at: datetime,
    kind: str,
    level: str,
    message: str,
    table_id: str | None,
    job_id: str | None,
    attempt: int | None,
    fields: dict[str, Any],
) -> None:
    """Of an event that was just inserted."""
    asked = {kind, kind.partition(".")[0]}
    receivers = [
        webhook_id for webhook_id, kinds in connection.execute(_ENABLED) if asked.intersection(kinds)
    ]
    if not receivers:
        return
    about = connection.execute(
        select(col(EnrolledTable.identifier), col(EnrolledTable.branch), col(Catalog.name))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(col(EnrolledTable.id) == table_id)
    ).first()
    identifier, branch, catalog = about or (None, None, None)
    subject = f"tables/{table_id}" if table_id else None
    if kind.startswith("catalog."):
        catalog, subject = fields["catalog"], f"catalogs/{fields['catalog_id']}"
    body = cloud_event(
        str(event_id),
        kind,
        at.isoformat(),
        subject,
        {
            "event_id": event_id,
            "kind": kind,
            "level": level,
            "message": message,
            "catalog": catalog,
            "identifier": identifier,
            "branch": branch,
            "table_id": table_id,
            "job_id": job_id,
            "attempt": attempt,
            "fields": fields,
        },
        _trace(connection, job_id),
    )
    deliveries = [
        {
            "message_id": new_id(),
            "webhook_id": webhook_id,
            "table_id": table_id,
            "kind": kind,
            "event": body,
            "status": DeliveryStatus.PENDING.value,
            "attempts": 0,
            "created_at": at,
            "next_attempt_at": at,
        }
        for webhook_id in receivers
    ]
    connection.execute(insert(WebhookDelivery), deliveries)


def _trace(connection: Connection, job_id: str | None) -> str | None:
    """That of the job, or of the request in which it happened."""
    if job_id is None:
        return current_traceparent()
    given: str | None = connection.scalar(select(col(Job.traceparent)).where(col(Job.id) == job_id))
    return given
