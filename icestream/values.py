"""Values as Iceberg writes single ones in JSON (spec, Appendix D)."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


def json_value(value: Any) -> Any:
    """Of a column's single value. Raises TypeError for anything else."""
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return value.hex()
    raise TypeError(f"{value!r} is no value of a column")
