"""Erasures, with what has become of each of their tables: kept for their receipts, whatever history ends.

Keys are kept as keyed hashes alone; they themselves are rows of the jobs (JobRows) until these have ended.
"""

from datetime import datetime
from typing import Any

from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now


class Erasure(SQLModel, table=True):
    __tablename__ = "erasures"

    id: str = Field(default_factory=new_id, primary_key=True)
    requested_by: str
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime, index=True)
    note: str | None = None
    pattern: str | None = None
    """By which the tables were chosen; None if they were named."""
    files: list[str] = Field(default_factory=list, sa_type=Json)
    """Where the keys were read from, if they did not come with the request."""
    key_columns: list[str] | None = Field(default=None, sa_type=Json)
    key_hashes: list[str] = Field(default_factory=list, sa_type=Json)
    """Of the keys of the request, in their order."""
    erasure_secret_id: str | None = None
    """By which of the secrets of all times they were hashed; None if there are none."""
    expire_snapshots: bool = True
    receipt: str | None = None
    """As it was issued, once all jobs had ended."""


class ErasureTable(SQLModel, table=True):
    """A table's part of an erasure. Its job's history may end before the erasure's: nothing refers to it."""

    __tablename__ = "erasure_tables"

    erasure_id: str = Field(foreign_key="erasures.id", primary_key=True)
    number: int = Field(primary_key=True)
    """Tables are listed in this order."""
    job_id: str = Field(index=True, unique=True)
    table_id: str
    table_uuid: str
    table: str
    """Names are those that held when the erasure was made."""
    catalog: str
    branch: str
    status: str | None = None
    """How the job has ended; None before, and so are the following."""
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    cancelled_because: str | None = None
    """Also of a job that was asked to stop and has not yet."""
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    report: dict[str, Any] | None = Field(default=None, sa_type=Json)
    """What its worker has said (ErasureReport); whoever reads it checks it once more."""
