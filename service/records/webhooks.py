"""Webhooks, and the outbox of what is sent to them."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from service.db.database import BigId, Json, UtcDateTime, new_id, utc_now

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
