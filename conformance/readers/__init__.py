"""Readers that the suite brings along, each a program of its own that answers lines.

Started as `python -m conformance.readers.NAME`: a line of its input names a table, as a JSON object with
`metadata` and `snapshot`; a line of its output is its answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

BUILT_IN = ("pyiceberg", "duckdb", "spark", "flink")

Row = Mapping[str, Any]


def serve(read: Callable[[str, int | None], Iterable[Row]]) -> None:
    """Answers until the input ends. read: takes the metadata's place and the id of a snapshot to travel to;
    whatever it raises is a refusal."""
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            metadata, snapshot_id = asked["metadata"], int(asked["snapshot"])
            current = json.loads(Path(metadata).read_text())["current-snapshot-id"]
            answer = {"rows": list(read(metadata, None if snapshot_id == current else snapshot_id))}
        except Exception as error:
            first = str(error).strip().splitlines()[:1]
            answer = {"refused": f"{type(error).__name__}: {first[0] if first else ''}"}
        sys.stdout.write(as_json(answer) + "\n")
        sys.stdout.flush()


def as_json(answer: Any) -> str:
    """Of rows in Python's values."""
    return json.dumps(answer, default=_spelt)


def _spelt(value: Any) -> str:
    match value:
        case bytes() | bytearray():
            return value.hex()
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    raise TypeError(f"no row has a {type(value).__name__}")
