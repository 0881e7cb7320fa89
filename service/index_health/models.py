"""What is told about the health of a table: now, and over time."""

from datetime import datetime
from typing import Any

from service.http.messages import Message
from service.records.health import HealthStatus
from service.records.reports import KeySetReport, StoppedAt, UnconvertibleDelete


class KeySetView(KeySetReport):
    """The index of one key set, and what is pending of it."""

    pending_equality_delete_files: int = 0
    """Live equality delete files by these fields, when the table was last polled."""
    lag_seconds: float = 0
    """Age of the oldest one of them; 0 when there is none."""


class HealthView(Message):
    """Sums over the key sets; `coverage` is their minimum and null while there is no index."""

    table_id: str
    """The id of the table that it is about."""
    status: HealthStatus
    """One word says how the table is doing."""
    status_reason: str
    """Why the status is what it is, in words."""
    what_to_do: str | None
    """What to do about it; null if nothing is to be done."""
    coverage: float | None
    """Share of the data files that the index covers, 0 to 1."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    pending_equality_deletes: int
    """The live equality delete files have so many rows."""
    pending_equality_delete_files: int
    """So many equality delete files are live."""
    entries: int
    """The index has so many entries."""
    bytes: int
    """The index has so many bytes."""
    sorted_runs: int
    """The index has so many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    staged_snapshots: int
    """So many snapshots of the staging branch are not published; 0 of a table without one."""
    staged_rows: int
    """The staged snapshots have so many rows and row-level deletes."""
    staged_age_seconds: float
    """Age of the oldest of these; 0 when there is none."""
    stopped_at: StoppedAt | None
    """What stops their publication, and what to do; null if nothing does."""
    small_manifests: int
    """The head has so many manifests that are smaller than they should be."""
    snapshots: int
    """The table has so many snapshots, whatever branch has them."""
    oldest_snapshot_at: datetime | None
    """When the oldest of those was committed that no branch and no tag names; null if there is none."""
    expired_elsewhere_at: datetime | None
    """When a snapshot was last found to be gone that no job had let expire: somebody else does that; null if
    none was."""
    unconvertible: list[UnconvertibleDelete]
    """Equality delete files that stay in the table, each with its reason."""
    key_sets: list[KeySetView]
    """The index of each key set, as last reported by a worker, and what is pending of it."""
    data_files: int
    """The table has so many data files."""
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
    """The scheduler has decided this about each kind of job last: what, why, since when."""


class KeySetSample(Message):
    """What the index of one key set was like at one time."""

    equality_field_ids: list[int]
    """The key has these field ids."""
    columns: list[str]
    """The key columns had these names."""
    coverage: float
    """Share of the data files that it covers, 0 to 1."""
    entries: int
    """The index has so many entries, dead ones too."""
    bytes: int
    """The index has so many bytes."""
    sorted_runs: int
    """The index had so many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    pending_equality_delete_files: int | None = None
    """So many equality delete files by these fields were live; null in samples of earlier versions."""


class HealthSampleView(Message):
    """How a table was doing at one time."""

    at: datetime
    """When it was measured."""
    status: HealthStatus
    """One word says how the table was doing."""
    iceberg_snapshot_id: int | None
    """Head of the table's branch then; null while the table is empty."""
    pending_equality_delete_files: int
    """So many equality delete files were live."""
    pending_equality_deletes: int
    """The live equality delete files had so many rows."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    coverage: float | None
    """Share of the data files that the index covers, 0 to 1; null while there is no index."""
    entries: int
    """The index had so many entries."""
    bytes: int
    """The index had so many bytes."""
    sorted_runs: int
    """The index had so many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """Share of entries that point to files which are gone, 0 to 1."""
    unconvertible: int
    """How many equality delete files cannot be converted."""
    staged_rows: int
    """The staged snapshots had so many rows and row-level deletes."""
    staged_age_seconds: float
    """Age of the oldest staged snapshot; 0 when all was published."""
    key_sets: list[KeySetSample]
    """What the index of each key set was like."""
