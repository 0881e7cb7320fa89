"""Enrolled tables: one row per (catalog, identifier, branch)."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict
from pydantic import Field as ModelField
from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from service.database import Json, UtcDateTime, new_id, utc_now

Identifier = Annotated[
    list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=2, max_length=20)
]
KeySet = Annotated[list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=1)]


class EnrolledTable(SQLModel, table=True):
    __tablename__ = "tables"
    __table_args__ = (
        Index(
            "uq_tables_identifier_branch",
            "catalog_id",
            "name",
            "branch",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: str = Field(default_factory=new_id, primary_key=True)
    catalog_id: str = Field(foreign_key="catalogs.id", index=True)
    identifier: list[str] = Field(sa_type=Json)
    name: str
    """The identifier with dots."""
    branch: str = "main"
    key_sets: list[list[str]] = Field(default_factory=list, sa_type=Json)
    """Declared keys, as column names; more are found by the worker."""
    table_uuid: str = Field(index=True)
    """The Iceberg table: enrolments of several branches share it, and its index."""
    format_version: int
    location: str
    paused: bool = False
    version: int = 1
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    deleted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class AddressCounter(SQLModel, table=True):
    """The next free row address of an Iceberg table's index; outlives enrolments, as the index does."""

    __tablename__ = "address_counters"

    table_uuid: str = Field(primary_key=True)
    next_address: int = Field(default=0, sa_type=BigInteger)


class TableRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    catalog: str = ModelField(min_length=1)
    """Name or id."""
    identifier: Identifier
    """Namespace parts, then the table name: `["db", "t"]`."""
    branch: str = ModelField(default="main", min_length=1)
    policy: str | None = None
    """Name or id; null inherits from namespace, catalog, system."""
    key_sets: list[KeySet] | None = None


class PatternRequest(BaseModel):
    """Enrol every table whose dotted name matches a shell-style pattern, such as `sales.*`."""

    model_config = ConfigDict(extra="forbid")

    catalog: str = ModelField(min_length=1)
    pattern: str = ModelField(min_length=1)
    exclude: list[str] = ModelField(default_factory=list)
    branch: str = ModelField(default="main", min_length=1)
    policy: str | None = None
    dry_run: bool = False


class TablePatch(BaseModel):
    """Fields left out stay."""

    model_config = ConfigDict(extra="forbid")

    policy: str | None = None
    """Null goes back to inheriting."""
    key_sets: list[KeySet] | None = None


class TableView(BaseModel):
    id: str
    catalog_id: str
    catalog: str
    identifier: list[str]
    name: str
    branch: str
    policy: str | None
    """The policy attached to this very table; null means inherited."""
    key_sets: list[list[str]]
    table_uuid: str
    format_version: int
    location: str
    index_warehouse: str
    paused: bool
    version: int
    created_at: datetime
    updated_at: datetime


class PatternMiss(BaseModel):
    identifier: list[str]
    type: str
    detail: str
    remedy: str


class PatternResult(BaseModel):
    dry_run: bool
    matched: list[str]
    """Dotted names of every table that the pattern matched."""
    enrolled: list[TableView]
    already_enrolled: list[TableView]
    failed: list[PatternMiss]
