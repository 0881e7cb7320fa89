"""Writes deliveries: with each event that a webhook asks for, in the same transaction.

Invariant: an event that was committed has a delivery for each webhook that was enabled then, and one that was
rolled back has none. It is done as events are inserted, when they have their ids, so that nobody who records
one has to think of it.
"""

from typing import Any

from sqlalchemy import Connection, event, insert, select
from sqlalchemy.orm import Mapper
from sqlmodel import col

from service import __version__
from service.db.database import new_id
from service.records.catalogs import Catalog
from service.records.jobs import Event, Job
from service.records.tables import EnrolledTable
from service.records.webhooks import DeliveryStatus, Webhook, WebhookDelivery
from telemetry.traces import current_traceparent

CONTENT_TYPE = "application/cloudevents+json"
SOURCE = "/icestream"
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


@event.listens_for(Event, "after_insert")
def _write_deliveries(_: Mapper[Event], connection: Connection, happened: Event) -> None:
    if happened.kind in UNTOLD:
        return
    asked = {happened.kind, happened.kind.partition(".")[0]}
    webhooks = connection.execute(select(col(Webhook.id), col(Webhook.kinds)).where(col(Webhook.enabled)))
    receivers = [webhook_id for webhook_id, kinds in webhooks if asked.intersection(kinds)]
    if not receivers:
        return
    body = cloud_event(
        str(happened.id),
        happened.kind,
        happened.at.isoformat(),
        f"tables/{happened.table_id}" if happened.table_id else None,
        _data(connection, happened),
        _trace(connection, happened),
    )
    deliveries = [
        {
            "message_id": new_id(),
            "webhook_id": webhook_id,
            "table_id": happened.table_id,
            "kind": happened.kind,
            "event": body,
            "status": DeliveryStatus.PENDING.value,
            "attempts": 0,
            "created_at": happened.at,
            "next_attempt_at": happened.at,
        }
        for webhook_id in receivers
    ]
    connection.execute(insert(WebhookDelivery), deliveries)


def _trace(connection: Connection, happened: Event) -> str | None:
    """That of the job, or of the request in which it happened."""
    if happened.job_id is None:
        return current_traceparent()
    given: str | None = connection.scalar(select(col(Job.traceparent)).where(col(Job.id) == happened.job_id))
    return given


def _data(connection: Connection, happened: Event) -> dict[str, Any]:
    about = connection.execute(
        select(col(EnrolledTable.identifier), col(EnrolledTable.branch), col(Catalog.name))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(col(EnrolledTable.id) == happened.table_id)
    ).first()
    identifier, branch, catalog = about or (None, None, None)
    return {
        "event_id": happened.id,
        "kind": happened.kind,
        "level": happened.level,
        "message": happened.message,
        "catalog": catalog,
        "identifier": identifier,
        "branch": branch,
        "table_id": happened.table_id,
        "job_id": happened.job_id,
        "attempt": happened.attempt,
        "fields": happened.fields,
    }
