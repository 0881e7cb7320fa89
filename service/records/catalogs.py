"""Catalogs. Properties hold secret references (`env:NAME`, `file:/path`), never secrets."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now


class CatalogType(StrEnum):
    SQL = "sql"
    REST = "rest"
    HIVE = "hive"
    GLUE = "glue"
    HADOOP = "hadoop"


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
