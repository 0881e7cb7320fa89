"""Registered catalogs. Properties hold secret references (`env:NAME`, `file:/path`), never secrets."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict
from pydantic import Field as ModelField
from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from service.database import Json, UtcDateTime, new_id, utc_now

Name = Annotated[str, ModelField(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]


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


Limit = Annotated[
    int | None, ModelField(ge=1, description="Jobs of its tables that run at a time; null for no limit.")
]


class CatalogRequest(BaseModel):
    """For `sql`: `uri` (sqlite:////abs/cat.db or postgresql://...) and `warehouse` (file:///... or s3://...)."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    type: CatalogType
    properties: dict[str, str] = ModelField(default_factory=dict)
    index_warehouse: str | None = None
    """Where indexes of its tables go; null means the default of the installation."""
    max_running_jobs: Limit = None


class CatalogPatch(BaseModel):
    """Fields left out stay; a property set to null is removed (RFC 7396)."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    properties: dict[str, str | None] | None = None
    index_warehouse: str | None = None
    max_running_jobs: Limit = None


class CatalogView(BaseModel):
    id: str
    name: str
    type: CatalogType
    properties: dict[str, str]
    index_warehouse: str | None
    max_running_jobs: int | None
    """At most this many jobs of its tables run at a time; null for no limit."""
    paused: bool
    version: int
    created_at: datetime
    updated_at: datetime


class CatalogCheck(BaseModel):
    """Whether the catalog answers, and what it shows."""

    ok: bool
    status: Literal["ok", "warning", "unreachable"]
    explanation: str
    remedy: str | None
    namespaces: list[str]
    tables: list[str]
    """The first tables found, as dotted names."""
    table_count: int
    seconds: float
