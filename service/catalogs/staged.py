"""Measure what a staging branch has that is not published: by its snapshots, without their files."""

from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table.metadata import TableMetadata

from service.catalogs.measure import summarized
from staging.history import StagingError, staged_snapshots

_ROWS = ("added-records", "added-equality-deletes", "added-position-deletes")


@dataclass(frozen=True)
class Staged:
    """rows: with row-level deletes. trouble: why it can't be told, nor anything published."""

    snapshots: int = 0
    rows: int = 0
    oldest_at: datetime | None = None
    first_id: int | None = None
    trouble: StagingError | None = None


def measure_staged(metadata: TableMetadata, source: str, target: str) -> Staged:
    """What branch `source` has that was not published on `target`."""
    try:
        found = staged_snapshots(metadata, source, target)
    except StagingError as error:
        return Staged(trouble=error)
    if not found:
        return Staged()
    return Staged(
        len(found),
        sum(summarized(snapshot, name) for snapshot in found for name in _ROWS),
        datetime.fromtimestamp(min(snapshot.timestamp_ms for snapshot in found) / 1000, UTC),
        found[0].snapshot_id,
    )
