"""Standing patterns, by which tables are enrolled."""

from datetime import datetime
from typing import Any

from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now


class EnrollmentPattern(SQLModel, table=True):
    __tablename__ = "enrollment_patterns"

    id: str = Field(default_factory=new_id, primary_key=True)
    catalog_id: str = Field(foreign_key="catalogs.id", index=True)
    pattern: str
    exclude: list[str] = Field(default_factory=list, sa_type=Json)
    branch: str = "main"
    publish_from: str | None = None
    policy_id: str | None = Field(default=None, foreign_key="policies.id")
    paused: bool = False
    version: int = 1
    created_by: str
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime, index=True)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    evaluated_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    matched: int = 0
    enrolled: int = 0
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    failures: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
