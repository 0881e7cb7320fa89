"""Webhooks, and the outbox of what is sent to them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict
from pydantic import Field as ModelField
from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from service.catalogs.models import Name
from service.db.database import BigId, Json, UtcDateTime, new_id, utc_now
from service.http.messages import Message, example

_PENDING = text("status = 'pending'")


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    """It is sent, or sent again, until the receiver takes it."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up; it can be sent again."""


class Webhook(SQLModel, table=True):
    __tablename__ = "webhooks"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    url: str
    kinds: list[str] = Field(sa_type=Json)
    secret: str
    """A reference, which is resolved for each delivery."""
    enabled: bool = True
    disabled_because: str | None = None
    """Why the service switched it off by itself."""
    version: int = 1
    created_by: str
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)


class WebhookDelivery(SQLModel, table=True):
    """One event for one webhook, written in the transaction of the event."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        # What may be sent, and whether something of the same table goes first.
        Index(
            "ix_webhook_deliveries_pending",
            "webhook_id",
            "table_id",
            "id",
            sqlite_where=_PENDING,
            postgresql_where=_PENDING,
        ),
        Index("ix_webhook_deliveries_webhook_id_status_id", "webhook_id", "status", "id"),
        Index("ix_webhook_deliveries_status_created_at", "status", "created_at"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    message_id: str = Field(default_factory=new_id)
    """The same each time that it is sent: by it, a receiver knows what it has already."""
    webhook_id: str = Field(foreign_key="webhooks.id")
    table_id: str | None = None
    """Of one table, a webhook gets one event after the other."""
    kind: str
    event: dict[str, Any] = Field(sa_type=Json)
    """The body, as CloudEvents has it."""
    status: str = DeliveryStatus.PENDING.value
    attempts: int = 0
    """Also tells whose outcome counts, if two replicas send at the same time."""
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    next_attempt_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    """While it is being sent: when another replica may, since nobody told of an outcome."""
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    status_code: int | None = None
    error: str | None = None


WebhookKind = Literal[
    "job",
    "job.queued",
    "job.held",
    "job.running",
    "job.retry",
    "job.released",
    "job.cancel_requested",
    "job.cancelled",
    "job.failed",
    "job.succeeded",
    "job.clock",
    "table",
    "table.changed",
    "table.enrolled",
    "table.paused",
    "table.replaced",
    "table.resumed",
    "decision",
]
"""Of events that are told, or a group of them; progress and log lines are not told."""
Kinds = Annotated[list[WebhookKind], ModelField(min_length=1, max_length=20)]
Url = Annotated[str, ModelField(min_length=1, max_length=2000)]
Secret = Annotated[str, ModelField(min_length=1, max_length=500)]


class WebhookRequest(Message):
    """Where to send which events."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {
                "name": "on-call",
                "url": "https://hooks.example/icestream",
                "kinds": ["job.failed", "table"],
                "secret": "env:WEBHOOK_ON_CALL",
            }
        ),
    )

    name: Name
    """Unique."""
    url: Url
    """Receives a POST for each event. Its host must be one that the operator allows."""
    kinds: Kinds
    """Which events: `job.failed`, say, or `job` for all about jobs but their progress and log lines."""
    secret: Secret
    """Reference (`env:WEBHOOK_...` or `file:/path`) to the key that signs: `whsec_` and 24 to 64 bytes in
    base64. Several, separated by spaces or line breaks, all sign, so that a key can be changed."""
    enabled: bool = True
    """While false, nothing is sent, and no new event is kept for it."""


class WebhookPatch(Message):
    """Fields left out stay."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=example({"enabled": False}))

    name: Name | None = None
    """Unique."""
    url: Url | None = None
    """Also where deliveries that wait are sent from now on."""
    kinds: Kinds | None = None
    """Which events, from now on."""
    secret: Secret | None = None
    """Reference to the key that signs."""
    enabled: bool | None = None
    """What waits is sent once it is true again."""


class WebhookView(Message):
    """Where which events are sent, and how that goes."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    url: str
    """Receives a POST for each event."""
    kinds: list[WebhookKind]
    """Which events, or groups of them."""
    secret: str
    """Reference to the key that signs."""
    enabled: bool
    """Whether events are sent."""
    disabled_because: str | None
    """Why the service switched it off by itself; null if it did not."""
    version: int
    """Counts its changes; also its ETag."""
    created_by: str
    """Who made it."""
    created_at: datetime
    """When it was made."""
    updated_at: datetime
    """When it was changed last."""
    pending: int
    """Deliveries that wait to be sent, or to be sent again."""
    dead: int
    """Deliveries that were given up."""
    last_delivered_at: datetime | None
    """When the receiver last took one; null if none that is still known."""


class DeliveryView(Message):
    """One event for one webhook."""

    id: int
    """Counts up with every delivery."""
    message_id: str
    """`webhook-id` of the request, the same each time that it is sent."""
    webhook_id: str
    """The webhook."""
    kind: str
    """Kind of the event, such as `job.failed`."""
    table_id: str | None
    """The table that the event is about; null if about none."""
    status: DeliveryStatus
    """Whether it waits, was taken, or was given up."""
    attempts: int
    """How often it was sent."""
    created_at: datetime
    """When the event happened."""
    next_attempt_at: datetime | None
    """When it is sent next; null once it was taken or given up."""
    ended_at: datetime | None
    """When it was taken or given up; null before."""
    status_code: int | None
    """What the receiver answered last; null if it did not."""
    error: str | None
    """Why it was not taken the last time; null if it was."""
    event: dict[str, Any]
    """What is sent: a CloudEvent."""


class ResendResult(Message):
    """What becomes of deliveries that were given up."""

    resent: int
    """How many are sent again."""
