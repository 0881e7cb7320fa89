"""Iceberg's types, as its JSON has them, and their values as single bytes and as JSON (spec, Appendix D)."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, TypeAlias
from uuid import UUID

Type: TypeAlias = "str | dict[str, Any]"
Field: TypeAlias = dict[str, Any]
Row: TypeAlias = Mapping[str, Any]

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
_BOUND_LENGTH = 16  # as writers have it by default (`write.metadata.metrics.default`)
_DIGITS = Context(prec=40)
_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")


def field(field_id: int, name: str, kind: Type, *, required: bool = False) -> Field:
    return {"id": field_id, "name": name, "required": required, "type": kind}


def struct_of(*fields: Field) -> Type:
    return {"type": "struct", "fields": list(fields)}


def fields_of(kind: Type) -> Sequence[Field] | None:
    """Of a struct; None for a primitive type."""
    return kind["fields"] if isinstance(kind, dict) else None


def decimal_of(kind: Type) -> tuple[int, int] | None:
    """Precision and scale."""
    found = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    return (int(found[1]), int(found[2])) if found else None


def fixed_length(kind: Type) -> int | None:
    found = _FIXED.fullmatch(kind) if isinstance(kind, str) else None
    return int(found[1]) if found else None


def plain(kind: Type, value: Any) -> Any:
    """A primitive value as files keep it: a number, text or bytes. Nanoseconds are numbers already."""
    match value:
        case datetime():
            return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)
        case date():
            return (value - EPOCH.date()).days
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
        case UUID():
            return value.bytes
        case Decimal():
            parts = decimal_of(kind)
            assert parts is not None
            return int(value.scaleb(parts[1], _DIGITS))
    return value


def decimal_length(precision: int) -> int:
    """Bytes that hold any decimal of a precision."""
    return next(n for n in range(1, 17) if 10**precision <= 1 << (8 * n - 1))


def to_bytes(kind: Type, value: Any) -> bytes:
    """The binary single-value serialization."""
    value = plain(kind, value)
    match kind:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "date":
            return struct.pack("<i", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return bytes(value.encode())
        case "uuid" | "binary":
            return bytes(value)
    if decimal_of(kind):
        length = next(n for n in range(1, 17) if -(1 << (8 * n - 1)) <= value < 1 << (8 * n - 1))
        return bytes(value.to_bytes(length, "big", signed=True))
    if fixed_length(kind):
        return bytes(value)
    return struct.pack("<q", value)


def bounds(kind: Type, values: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    """Of values that are not null, as writers put them into manifests: of long ones, what they begin with."""
    known = [plain(kind, value) for value in values]
    if kind in ("float", "double"):
        known = [value for value in known if value == value]
    if not known:
        return None, None
    order = _with_sign if kind in ("float", "double") else None
    low, high = min(known, key=order), max(known, key=order)
    if kind == "binary":
        return low[:_BOUND_LENGTH], _above(high)
    if kind == "string":
        top = high
        if len(top) > _BOUND_LENGTH:
            cut = top[:_BOUND_LENGTH]
            top = None if ord(cut[-1]) > 0xD000 else cut[:-1] + chr(ord(cut[-1]) + 1)
        return low[:_BOUND_LENGTH].encode(), None if top is None else top.encode()
    if decimal_of(kind):
        return _of_unscaled(low), _of_unscaled(high)
    return to_bytes(kind, low), to_bytes(kind, high)


def _with_sign(value: float) -> tuple[float, float]:
    """-0.0 is below +0.0."""
    return value, math.copysign(1, value)


def _above(value: bytes) -> bytes | None:
    if len(value) <= _BOUND_LENGTH:
        return value
    cut = value[:_BOUND_LENGTH].rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _of_unscaled(value: int) -> bytes:
    length = next(n for n in range(1, 17) if -(1 << (8 * n - 1)) <= value < 1 << (8 * n - 1))
    return value.to_bytes(length, "big", signed=True)


def to_json(kind: Type, value: Any) -> Any:
    """The JSON single-value serialization, but structs by their names and not a number by itself as text."""
    if value is None:
        return None
    fields = fields_of(kind)
    if fields is not None:
        return {one["name"]: to_json(one["type"], value.get(one["name"])) for one in fields}
    match value:
        case float() if value != value:
            return "NaN"
        case bool() | int() if kind in ("timestamp_ns", "timestamptz_ns"):
            moment = EPOCH + timedelta(seconds=value // 10**9)
            zone = "+00:00" if kind == "timestamptz_ns" else ""
            return f"{moment.isoformat()}.{value % 10**9:09d}{zone}"
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{text}+00:00" if value.tzinfo is UTC else text
        case time():
            return value.isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
        case UUID() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case bytes():
            return value.hex()
    return value
