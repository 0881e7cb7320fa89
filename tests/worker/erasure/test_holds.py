"""What holds a snapshot, and until when."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.table.snapshots import Snapshot

from tests.test_staging import metadata, snapshot
from worker.erasure.holds import _after, holds
from worker.table.commit import _ancestors

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


def test_ancestors_that_go_round_in_a_circle_are_each_looked_at_once() -> None:
    found = metadata(snapshot(1, 3), snapshot(2, 1), snapshot(3, 2, **{"flink.job-id": "f"}), main=1, work=2)
    erase = SimpleNamespace(expire_snapshots=True)
    assignment = SimpleNamespace(
        table=SimpleNamespace(branch="main", staging_branch=None), job=SimpleNamespace(erase=erase)
    )
    held = holds(cast("Any", SimpleNamespace(assignment=assignment)), found)
    assert {number: hold.holder for number, hold in held.items()} == {1: "branch", 2: "branch", 3: "writer"}
    told = found.model_dump(mode="json", by_alias=True)
    assert [one["snapshot-id"] for one in _ancestors(told, "main")] == [1, 3, 2]
