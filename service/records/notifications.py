"""What others tell of tables, until the poller takes it up."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from service.db.database import BigId, UtcDateTime, utc_now


class Notification(SQLModel, table=True):
    """That somebody says a table has changed. It is only a reason to look: nothing else is believed of it."""

    __tablename__ = "notifications"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    table_id: str = Field(foreign_key="tables.id")
    at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
