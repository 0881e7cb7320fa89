"""What is asked and told about webhooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, Name, example
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
    "table.maintained-elsewhere",
    "table.paused",
    "table.replaced",
    "table.resumed",
    "decision",
    "catalog",
    "catalog.recovered",
    "catalog.unreachable",
]
"""Of events that are sent, or a group of them; progress and log lines are not sent."""
Kinds = Annotated[list[WebhookKind], ModelField(min_length=1, max_length=30)]
Url = Annotated[str, ModelField(min_length=1, max_length=2000)]
Secret = Annotated[str, ModelField(min_length=1, max_length=500)]


class WebhookRequest(ClosedMessage):
    """A webhook is a place to which events of some kinds are sent."""

    model_config = ConfigDict(
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
    """These events are sent: `job.failed`, say, or `job` for all about jobs but their progress and log
    lines."""
    secret: Secret
    """The key that signs is given by a reference (`env:WEBHOOK_...` or `file:/path`) to `whsec_` and 24 to 64
    bytes in base64. Several, separated by spaces or line breaks, all sign, so that a key can be changed."""
    enabled: bool = True
    """While false, nothing is sent, and no new event is kept for it."""


class WebhookPatch(ClosedMessage):
    """Fields left out stay."""

    model_config = ConfigDict(json_schema_extra=example({"enabled": False}))

    name: Name | None = None
    """The name is unique among webhooks."""
    url: Url | None = None
    """The receiver gets a POST for each event here, also deliveries that wait."""
    kinds: Kinds | None = None
    """These events, or groups of them, are sent from now on."""
    secret: Secret | None = None
    """The key that signs is given by a reference to it."""
    enabled: bool | None = None
    """Deliveries that wait are sent once it is true again."""


class WebhookView(Message):
    """This is a webhook as it is kept, with how deliveries go."""

    id: str
    """The id names the webhook in later calls."""
    name: str
    """The name is unique among webhooks."""
    url: str
    """The receiver gets a POST for each event here."""
    kinds: list[WebhookKind]
    """The webhook is sent these events, or groups of them."""
    secret: str
    """The key that signs is given by a reference to it."""
    enabled: bool
    """While true, events are sent."""
    disabled_because: str | None
    """The service switched the webhook off by itself for this reason; null if it did not."""
    version: int
    """Counts its changes; also its ETag."""
    created_by: str
    """The webhook was made by the holder of this name."""
    created_at: datetime
    """The webhook was made at this time."""
    updated_at: datetime
    """The webhook was last changed at this time."""
    pending: int
    """Deliveries that wait to be sent, or to be sent again."""
    dead: int
    """This many deliveries were given up, and can be sent again."""
    last_delivered_at: datetime | None
    """The receiver last took an event at this time; null if none is known any more."""


class DeliveryView(Message):
    """This is one event that is sent to one webhook."""

    id: int
    """The id of the delivery is larger than those of earlier ones."""
    message_id: str
    """This is `webhook-id` of the request, the same each time that it is sent."""
    webhook_id: str
    """The event is sent to the webhook of this id."""
    kind: str
    """The event is of a kind such as `job.failed`."""
    table_id: str | None
    """The event is about this table; null if about none."""
    status: DeliveryStatus
    """The delivery waits, was taken by the receiver, or was given up."""
    attempts: int
    """The event was sent this many times."""
    created_at: datetime
    """The event happened at this time."""
    next_attempt_at: datetime | None
    """The event is sent next at this time; null once it was taken or given up."""
    ended_at: datetime | None
    """The event was taken or given up at this time; null before."""
    status_code: int | None
    """The receiver last answered with this status; null if it did not answer."""
    error: str | None
    """The event was not taken the last time for this reason; null if it was."""
    event: dict[str, Any]
    """The body of the request is this, a CloudEvent."""


class ResendResult(Message):
    """This is what becomes of deliveries that were given up."""

    resent: int
    """This many deliveries are sent again."""
