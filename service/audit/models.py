"""Audit entries: append-only."""

from datetime import datetime
from typing import Any, Literal

from service.http.messages import Message


class AuditEntryView(Message):
    """What somebody did, or was not allowed to do."""

    id: int
    """Counts up with every entry."""
    at: datetime
    """When it was recorded."""
    principal: str
    """Name of who did it: of an API key, of whoever signed in, or `icestream` for the service itself."""
    role: str
    """Role that the caller had then."""
    action: str
    """Such as `table.enroll`."""
    target: str
    """What it was done to: a name, an id, or the path that was called."""
    outcome: Literal["allowed", "denied"]
    """Whether it was allowed."""
    request_id: str | None
    """X-Request-ID of the request that did it; null for what the service did by itself."""
    fields: dict[str, Any]
    """More about it, such as `dry_run` or the `reason` of a denial."""
