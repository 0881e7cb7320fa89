"""Who tells of tables, and what, until the poller takes it up."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from service.db.database import BigId, UtcDateTime, new_id, utc_now


class Notification(SQLModel, table=True):
    """That somebody says a table has changed. It is only a reason to look: nothing else is believed of it."""

    __tablename__ = "notifications"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    table_id: str = Field(foreign_key="tables.id")
    at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)


class NotificationSender(SQLModel, table=True):
    """Whose signed notifications count, for tables of one catalog."""

    __tablename__ = "notification_senders"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    catalog_id: str = Field(foreign_key="catalogs.id", index=True)
    secret: str
    """A reference, which is resolved for each notification."""
    created_by: str
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    last_heard_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Within a minute, as what follows."""
    last_refused_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    last_refusal: str | None = None
    """Why, which only admins are told."""
