"""What is asked and told about webhooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import Message, Name, example
from service.records.webhooks import DeliveryStatus

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
    """A webhook says where to send which events."""

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
    """The name is unique among webhooks."""
    url: Url
    """The receiver gets a POST for each event here. Its host must be one that the operator allows."""
    kinds: Kinds
    """The events that are sent: `job.failed`, say, or `job` for all about jobs but their progress and log
    lines."""
    secret: Secret
    """The key that signs is a reference (`env:WEBHOOK_...` or `file:/path`) to `whsec_` and 24 to 64 bytes in
    base64. Several, separated by spaces or line breaks, all sign, so that a key can be changed."""
    enabled: bool = True
    """While false, nothing is sent, and no new event is kept for it."""


class WebhookPatch(Message):
    """Fields left out stay."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=example({"enabled": False}))

    name: Name | None = None
    """The name is unique among webhooks."""
    url: Url | None = None
    """The receiver gets a POST for each event here, also deliveries that wait."""
    kinds: Kinds | None = None
    """The events that are sent from now on."""
    secret: Secret | None = None
    """The key that signs is given by a reference to it."""
    enabled: bool | None = None
    """What waits is sent once it is true again."""


class WebhookView(Message):
    """Where which events are sent, and how that goes."""

    id: str
    """The id names the webhook in later calls."""
    name: str
    """The name is unique among webhooks."""
    url: str
    """The receiver gets a POST for each event here."""
    kinds: list[WebhookKind]
    """The events, or groups of them, that are sent."""
    secret: str
    """The key that signs is given by a reference to it."""
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
    """One event that is sent to one webhook."""

    id: int
    """The id grows with every delivery."""
    message_id: str
    """`webhook-id` of the request, the same each time that it is sent."""
    webhook_id: str
    """The id of the webhook that it is sent to."""
    kind: str
    """The event is of a kind such as `job.failed`."""
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
