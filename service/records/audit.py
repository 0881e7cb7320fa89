"""Audit entries: append-only."""

from datetime import datetime
from typing import Any

from sqlmodel import Field, SQLModel

from service.db.database import BigId, Json, UtcDateTime, utc_now


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
