"""Workers: one row per started process. An identity is never reused, so a restart cannot hide a stall."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from service.db.database import UtcDateTime, new_id, utc_now


class Worker(SQLModel, table=True):
    __tablename__ = "workers"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    hostname: str
    pid: int
    version: str
    problem: str | None = None
    registered_by: str | None = None
    """The principal that it belongs to (`Principal.key`)."""
    registered_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    last_seen_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
