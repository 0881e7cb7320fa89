"""Catalogs. Properties hold secret references (`env:NAME`, `file:/path`), never secrets."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now


class CatalogType(StrEnum):
    SQL = "sql"
    REST = "rest"
    HIVE = "hive"
    GLUE = "glue"
    HADOOP = "hadoop"


class CatalogStatus(StrEnum):
    """This is the status of a catalog. `unreachable`: it has failed at least twice since its last answer.
    `unknown`: it was not asked for anything yet."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


class Catalog(SQLModel, table=True):
    __tablename__ = "catalogs"
    __table_args__ = (
        Index(
            "uq_catalogs_name",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    type: str
    properties: dict[str, str] = Field(sa_type=Json)
    index_warehouse: str | None = None
    max_running_jobs: int | None = None
    paused: bool = False
    version: int = 1
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    deleted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Deleted rows stay, because the jobs of their tables name them."""


class CatalogHealth(SQLModel, table=True):
    """What was seen of a catalog whenever it was asked for something. Its locks are held for no other row."""

    __tablename__ = "catalog_health"

    catalog_id: str = Field(foreign_key="catalogs.id", primary_key=True)
    status: str = CatalogStatus.UNKNOWN.value
    since: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Of the status: its first answer, or what failed first."""
    failures: int = 0
    """Since it answered last."""
    failed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """The first of these."""
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    """Of the last of these: `code`, `title`, `detail` and `remedy`."""
    answered_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    latency_seconds: float | None = None
    requests: int = Field(default=0, sa_type=BigInteger)
