"""Until when a snapshot is held."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyiceberg.table.snapshots import Snapshot

from worker.erasure.holds import _after

LAST, FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("timestamp_ms", "age_ms", "until"),
    [
        (1_000, 2_000, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)),
        (1_000, 2**63 - 1, LAST),
        (1_764_000_000_000_000, 1, LAST),
        (1_764_000_000_000_000, -1, FIRST),
    ],
)
def test_a_moment_that_no_calendar_has_is_the_last_or_the_first(
    timestamp_ms: int, age_ms: int, until: datetime
) -> None:
    """Such as that of a snapshot whose writer counts microseconds."""
    snapshot = Snapshot(snapshot_id=1, timestamp_ms=timestamp_ms, manifest_list="file:/m")
    assert _after(snapshot, age_ms) == until
