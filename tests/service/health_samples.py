"""Samples of a table's health, as polls and reports store them."""

from datetime import datetime
from typing import Any

from service.records.health import HealthSample


def health_sample(table_id: str, at: datetime, deletes: int = 0, **values: Any) -> HealthSample:
    """Of a healthy table whose index is empty. deletes: pending equality deletes, in one file."""
    empty = dict.fromkeys(
        ("lag_seconds", "entries", "bytes", "sorted_runs", "dead_ratio", "unconvertible"), 0
    )
    known: dict[str, Any] = {
        **empty,
        "resolution": "all",
        "status": "healthy",
        "coverage": 1,
        "pending_equality_delete_files": 1,
        "pending_equality_deletes": deletes,
    }
    return HealthSample(table_id=table_id, at=at, **known | values)
