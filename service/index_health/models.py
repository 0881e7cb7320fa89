"""Measured health of each table: the latest state, and samples of it over time."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, Index
from sqlmodel import Field, SQLModel

from service.db.database import BigId, Json, UtcDateTime
from service.db.reported import ReportedList
from service.http.messages import Message
from service.workers.models import KeySetReport, UnconvertibleDelete


class HealthStatus(StrEnum):
    """`blocked`: deletes can't be converted, or the job that should do it failed. `unknown`: the table can't
    be looked at. `lagging`: deletes are older than the policy lets them become, with the time that a job
    takes. `degraded`: lookups cost more than they should, or the last job of another kind failed. `healthy`:
    none of these."""

    HEALTHY = "healthy"
    LAGGING = "lagging"
    DEGRADED = "degraded"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


GRAVITY = (
    HealthStatus.HEALTHY,
    HealthStatus.DEGRADED,
    HealthStatus.LAGGING,
    HealthStatus.UNKNOWN,
    HealthStatus.BLOCKED,
)
"""In this order, lists that are sorted by status."""


class Resolution(StrEnum):
    """How long a sample stays: the first of a day for years, the first of an hour for weeks."""

    ALL = "all"
    HOUR = "hour"
    DAY = "day"


class TableHealth(SQLModel, table=True):
    """The latest: pending figures from polling, the index from the last worker's report."""

    __tablename__ = "table_health"

    table_id: str = Field(foreign_key="tables.id", primary_key=True)
    status: str = Field(default=HealthStatus.UNKNOWN.value, index=True)
    """As of the last poll, with its reason."""
    status_reason: str = ""
    measured_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    iceberg_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    pending_equality_delete_files: int = 0
    pending_equality_deletes: int = Field(default=0, sa_type=BigInteger)
    oldest_equality_delete_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    pending_key_sets: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    """Of each key set with pending deletes: `equality_field_ids` in order, `files`, and `oldest_at`."""
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
    key_sets: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(KeySetReport), nullable=False)
    )
    unconvertible: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(UnconvertibleDelete), nullable=False)
    )
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
    resolution: str
    """What it is the first of, by UTC: `day`, `hour`, or neither (`all`)."""
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
    key_sets: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)


class KeySetView(KeySetReport):
    """The index of one key set, and what is pending of it."""

    pending_equality_delete_files: int = 0
    """Live equality delete files by these fields, when the table was last polled."""
    lag_seconds: float = 0
    """Age of the oldest one of them; 0 when there is none."""


class HealthView(Message):
    """Sums over the key sets; `coverage` is their minimum and null while there is no index."""

    table_id: str
    """The table."""
    status: HealthStatus
    """In one word."""
    status_reason: str
    """Why the status is what it is, in words."""
    what_to_do: str | None
    """What to do about it; null if nothing is to be done."""
    coverage: float | None
    """Share of the data files that the index covers, 0 to 1."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    pending_equality_deletes: int
    """Rows of live equality delete files."""
    pending_equality_delete_files: int
    """Live equality delete files."""
    entries: int
    """Entries of the index."""
    bytes: int
    """Bytes of the index."""
    sorted_runs: int
    """Sorted runs of the index; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    unconvertible: list[UnconvertibleDelete]
    """Equality delete files that stay in the table, each with its reason."""
    key_sets: list[KeySetView]
    """The index of each key set, as last reported by a worker, and what is pending of it."""
    data_files: int
    """Data files of the table."""
    unindexed_data_files: int
    """Data files that the index does not cover yet."""
    iceberg_snapshot_id: int | None
    """Head of the table's branch when it was last polled; null while the table is empty."""
    measured_at: datetime | None
    """When the table was last polled; null before the first time."""
    reported_at: datetime | None
    """When a worker last reported about the index; null before the first time."""
    poll_error: dict[str, Any] | None
    """Why the last poll failed; null if it did not."""
    decisions: dict[str, Any]
    """The scheduler's latest decision about each kind of job: what, why, since when."""


class KeySetSample(Message):
    """The index of one key set at one time."""

    equality_field_ids: list[int]
    """Ids of the key fields."""
    columns: list[str]
    """Names of the key columns then."""
    coverage: float
    """Share of the data files that it covers, 0 to 1."""
    entries: int
    """Entries, dead ones too."""
    bytes: int
    """Bytes of its files."""
    sorted_runs: int
    """Sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    pending_equality_delete_files: int | None = None
    """Live equality delete files by these fields; null in samples of earlier versions."""


class HealthSampleView(Message):
    """The health of a table at one time."""

    at: datetime
    """When it was measured."""
    status: HealthStatus
    """In one word."""
    iceberg_snapshot_id: int | None
    """Head of the table's branch then; null while the table is empty."""
    pending_equality_delete_files: int
    """Live equality delete files."""
    pending_equality_deletes: int
    """Rows of live equality delete files."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    coverage: float | None
    """Share of the data files that the index covers, 0 to 1; null while there is no index."""
    entries: int
    """Entries of the index."""
    bytes: int
    """Bytes of the index."""
    sorted_runs: int
    """Sorted runs of the index; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    unconvertible: int
    """How many equality delete files cannot be converted."""
    key_sets: list[KeySetSample]
    """The index of each key set."""
