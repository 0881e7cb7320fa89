"""What is told about the health of a table: now, and over time."""

from datetime import datetime
from typing import Any

from service.http.messages import Message
from service.records.health import HealthStatus
from service.records.reports import KeySetReport, UnconvertibleDelete


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
