"""What holds for the whole installation, and which replica works for it."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from service.db.database import UtcDateTime


class Lease(SQLModel, table=True):
    """Held by the one replica that polls and schedules."""

    __tablename__ = "leases"

    name: str = Field(primary_key=True)
    holder: str
    expires_at: datetime = Field(sa_type=UtcDateTime)
    """For people, as is that of a job."""
    renewals: int = 0


class SystemState(SQLModel, table=True):
    """One row."""

    __tablename__ = "system_state"

    id: int = Field(default=1, primary_key=True)
    paused: bool = False
