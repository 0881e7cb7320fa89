"""Audit entries: append-only."""

from datetime import datetime
from typing import Any, Literal

from sqlmodel import Field, SQLModel

from service.db.database import BigId, Json, UtcDateTime, utc_now
from service.http.messages import Message


class AuditEntry(SQLModel, table=True):
    __tablename__ = "audit_entries"
    __table_args__ = {"sqlite_autoincrement": True}

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime, index=True)
    principal: str
    role: str
    action: str = Field(index=True)
    """Such as `table.enroll`."""
    target: str
    outcome: str
    """`allowed` or `denied`."""
    request_id: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict, sa_type=Json)


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
