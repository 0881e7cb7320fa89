"""Types of columns, with a few values of each: near each other, at the ends, and what stands for null."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_LONG = "a common prefix that is longer than truncated bounds and than what sorting looks at first, "

VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, 3, -1, 2**31 - 1, -(2**31)),
    "long": (0, 1, 2, 3, -1, 2**40, 2**63 - 1, -(2**63)),
    "string": ("", "a", "A", "a ", "é", "\U0001f600", _LONG + "a", _LONG + "b"),
    "decimal(9, 2)": tuple(map(Decimal, ("0.00", "0.01", "-0.01", "1.00", "9999999.99", "-9999999.99"))),
    "decimal(20, 0)": tuple(map(Decimal, ("0", "1", "-1", str(10**19), str(-(10**19))))),
    "date": tuple(date(1970, 1, 1) + timedelta(days) for days in (0, 1, 2, -1, 20_000, -200_000)),
    "uuid": tuple(str(UUID(int=value)) for value in (0, 1, 2, 1 << 64, (1 << 127) - 1, 1 << 127)),
    "timestamp": tuple(
        datetime(1970, 1, 1) + timedelta(microseconds=us)  # noqa: DTZ001  # a type without a zone
        for us in (0, 1, -1, 10**6, 1_700_000_000_000_001, -(10**15))
    ),
    "timestamptz": tuple(
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
        for us in (0, 1, -1, 10**6, 1_700_000_000_000_001)
    ),
    "binary": (b"", b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 20),
    "boolean": (False, True),
}
KEY_TYPES = tuple(VALUES)
PARTITION_TYPES = ("int", "long", "string", "date")  # of identity partitions; any but boolean has buckets
WIDER = {"int": "long", "decimal(9, 2)": "decimal(12, 2)"}
VALUES["decimal(12, 2)"] = (*VALUES["decimal(9, 2)"], Decimal("9999999999.99"))
WITH_DEFAULTS = ("int", "long", "string", "date")


def stored(kind: str, value: Any) -> Any:
    """A value as Arrow takes it."""
    return UUID(value).bytes if kind == "uuid" and value is not None else value


def shown(kind: str, value: Any) -> Any:
    """A value as Arrow or a reader gives it, in the model's form."""
    if isinstance(value, UUID):
        return str(value)
    if kind == "uuid" and isinstance(value, bytes):
        return str(UUID(bytes=value))
    if kind == "timestamptz" and value is not None:
        return value.astimezone(UTC)
    return value


def in_json(value: Any) -> Any:
    """A value in Iceberg's JSON form (spec, "JSON single-value serialization")."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def from_json(kind: str, value: Any) -> Any:
    """The value of Iceberg's JSON form."""
    if value is None or kind in ("int", "long", "string", "boolean", "double"):
        return value
    if kind == "uuid":
        return str(UUID(value))
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date":
        return date.fromisoformat(value)
    if kind == "binary":
        return bytes.fromhex(value)
    return shown(kind, datetime.fromisoformat(value))
