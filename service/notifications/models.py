"""What is told of tables that have changed."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import Body
from pydantic import ConfigDict, StringConstraints, model_validator
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, Name, example

TABLES_AT_MOST = 1_000
FILES_AT_MOST = 100
"""Each is looked for under several names."""
_Text = Annotated[str, StringConstraints(min_length=1, max_length=4_000)]


class CatalogNotification(Message):
    """Tables of a catalog that have changed are named, by their names or by files that were written."""

    model_config = ConfigDict(json_schema_extra=example({"tables": ["db.t"]}))

    tables: list[_Text] = ModelField(default_factory=list, max_length=TABLES_AT_MOST)
    """Dotted names, with the catalog's before them or without."""
    locations: list[_Text] = ModelField(default_factory=list, max_length=FILES_AT_MOST)
    """Files were written at these places, such as `s3://lake/db/t/metadata/00012-….metadata.json`: each means
    the tables under whose locations it lies."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.tables and not self.locations:
            raise ValueError("tables or locations must name something")
        return self


class CommitEvent(Message):
    """The event comes as the object store or the catalog makes it."""

    model_config = ConfigDict(extra="allow")


_EVENT = {
    "source": "aws.s3",
    "detail-type": "Object Created",
    "detail": {"bucket": {"name": "lake"}, "object": {"key": "db/t/metadata/1.metadata.json"}},
}
CommitEvents = Annotated[CommitEvent | list[CommitEvent], Body(examples=[_EVENT])]


class Received(Message):
    """The answer to a signed notification tells nothing of the service's tables."""

    received: int
    """The notification named this many tables and files."""


class SenderRequest(ClosedMessage):
    """A sender may tell of commits by signed notifications, without an API key."""

    model_config = ConfigDict(
        json_schema_extra=example({"name": "flink", "catalog": "lake", "secret": "env:WEBHOOK_FLINK"}),
    )

    name: Name
    """The name is unique among senders."""
    catalog: str = ModelField(min_length=1, max_length=200)
    """The sender names tables of this catalog alone, which is given by id or name."""
    secret: str = ModelField(min_length=1, max_length=500)
    """The key that the sender signs with is given by a reference (`env:WEBHOOK_...` or `file:/path`) to
    `whsec_` and 24 to 64 bytes in base64. Of several, separated by spaces or line breaks, each is good, so
    that a key can be changed."""


class SenderView(Message):
    """This is a sender as it is kept."""

    id: str
    """The id names the sender in later calls, and in the address of its notifications."""
    name: str
    """The name is unique among senders."""
    catalog: str
    """The sender names tables of the catalog of this name."""
    secret: str
    """The reference names the key that the sender signs with."""
    created_by: str
    """The sender was registered by the holder of this name."""
    created_at: datetime
    """The sender was registered at this time."""
    last_heard_at: datetime | None
    """A notification of the sender was last taken at this time, within a minute; null if none was yet."""
    last_refused_at: datetime | None
    """A notification to the sender's address was last refused at this time, within a minute; null if none was
    yet."""
    last_refusal: str | None
    """A notification was last refused for this reason, in words; null if none was yet."""


class Notified(Message):
    """The answer says what has become of a notification."""

    notified: int
    """This many enrolled tables are looked at now; one that is enrolled with several branches counts as
    several, and one whose last look found the very file that was written as none."""
    unknown: int
    """This many of the names and files mean no enrolled table. That is no error: a sender that reports all
    tables of a catalog need not know which are enrolled."""
