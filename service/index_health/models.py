"""Measured health of each table: the latest state, and samples of it over time."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from sqlalchemy import BigInteger, Index
from sqlmodel import Field, SQLModel

from service.database import BigId, Json, UtcDateTime
from service.workers.models import KeySetReport, UnconvertibleDelete


class HealthStatus(StrEnum):
    HEALTHY = "healthy"
    LAGGING = "lagging"
    DEGRADED = "degraded"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class TableHealth(SQLModel, table=True):
    """The latest: pending figures from polling, the index from the last worker's report."""

    __tablename__ = "table_health"

    table_id: str = Field(foreign_key="tables.id", primary_key=True)
    measured_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    iceberg_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    pending_equality_delete_files: int = 0
    pending_equality_deletes: int = Field(default=0, sa_type=BigInteger)
    oldest_equality_delete_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    convertible_delete_files: int = 0
    """Pending files without those that the worker reported as unconvertible."""
    convertible_deletes: int = Field(default=0, sa_type=BigInteger)
    convertible_bytes: int = Field(default=0, sa_type=BigInteger)
    oldest_convertible_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    data_files: int = 0
    unindexed_data_files: int = 0
    """Data files that the index does not cover: as last reported, and added since."""
    new_data_files: int = 0
    """Data files added since the last index job's snapshot, which is what triggers the next one."""
    new_rows: int = Field(default=0, sa_type=BigInteger)
    new_bytes: int = Field(default=0, sa_type=BigInteger)
    unverified_data_files: int = 0
    """The same since the last verification."""
    unverified_rows: int = Field(default=0, sa_type=BigInteger)
    unverified_bytes: int = Field(default=0, sa_type=BigInteger)
    has_keys: bool = False
    """Whether there is a key: declared, identifier fields, equality deletes, or indexed before."""
    poll_failures: int = 0
    poll_error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    report_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot of the last report."""
    indexed_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot that the last successful index job saw."""
    verified_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot that the last successful verification saw."""
    reported_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    key_sets: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    unconvertible: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    decisions: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    """The scheduler's latest decision per job kind: what, why, since when."""


class HealthSample(SQLModel, table=True):
    __tablename__ = "health_samples"
    __table_args__ = (
        Index("ix_health_samples_table_id_id", "table_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    table_id: str = Field(foreign_key="tables.id")
    at: datetime = Field(sa_type=UtcDateTime, index=True)
    status: str
    iceberg_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    pending_equality_delete_files: int
    pending_equality_deletes: int = Field(sa_type=BigInteger)
    lag_seconds: float
    coverage: float | None
    entries: int = Field(sa_type=BigInteger)
    bytes: int = Field(sa_type=BigInteger)
    sorted_runs: int
    dead_ratio: float
    unconvertible: int


class HealthView(BaseModel):
    """Sums over the key sets; `coverage` is their minimum and null while there is no index."""

    table_id: str
    status: HealthStatus
    status_reason: str
    what_to_do: str | None
    coverage: float | None
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    pending_equality_deletes: int
    """Rows of live equality delete files."""
    pending_equality_delete_files: int
    entries: int
    bytes: int
    sorted_runs: int
    dead_ratio: float
    unconvertible: list[UnconvertibleDelete]
    key_sets: list[KeySetReport]
    data_files: int
    unindexed_data_files: int
    iceberg_snapshot_id: int | None
    measured_at: datetime | None
    reported_at: datetime | None
    poll_error: dict[str, Any] | None
    decisions: dict[str, Any]


class HealthSampleView(BaseModel):
    at: datetime
    status: HealthStatus
    iceberg_snapshot_id: int | None
    pending_equality_delete_files: int
    pending_equality_deletes: int
    lag_seconds: float
    coverage: float | None
    entries: int
    bytes: int
    sorted_runs: int
    dead_ratio: float
    unconvertible: int
    """How many equality delete files cannot be converted."""
