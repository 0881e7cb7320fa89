"""Rows as a reader prints them against those that it must see: by type, not by how a value is spelt."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any

from conformance.types import Field, Type, decimal_of, fields_of

Key = tuple[Any, ...]
_MOMENT = re.compile(
    r"([+-]?\d{4,6})-(\d\d)-(\d\d)[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(\s*(?:Z|UTC|([+-])(\d\d):?(\d\d)?))?"
)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]00:00(?::00(?:\.0{1,9})?)?)?")
_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_IDS = 8  # at most told of each kind


def parse(line: str) -> Any:
    """A row, or more; numbers with a point stay as exact as they are written. Raises ValueError."""
    try:
        return json.loads(line, parse_float=Decimal, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("too deep") from error


def _integer(digits: str) -> int | Decimal:
    """An integer has no zero with a sign, and a floating-point number does."""
    return Decimal(digits) if digits == "-0" else int(digits)


def difference(
    fields: Sequence[Field], expected: Iterable[Any], seen: Iterable[Any], open_ids: Iterable[int] = ()
) -> str:
    """What a reader sees too much or too little, in words; empty if the rows are the same multiset.
    open_ids: of rows that don't count."""
    wanted = Counter(_row(fields, row) for row in expected)
    seen = list(seen)
    try:
        found = Counter(_row(fields, row) for row in seen)
    except ValueError as error:
        return str(error)
    for one in fields:
        if seen and not any(one["name"] in row for row in seen):
            return f"no row has the column {one['name']!r}, not even a null"
    for row in [row for row in wanted | found if dict(row).get("id") in set(open_ids)]:
        del wanted[row], found[row]
    parts = []
    for rows, words in ((found - wanted, "shows"), (wanted - found, "lacks")):
        if rows:
            ids = sorted(
                (str(dict(row).get("id")) for row in rows.elements()), key=lambda one: (len(one), one)
            )
            more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
            parts.append(f"{words} id {', '.join(ids[:_IDS])}{more}")
    return "; ".join(parts)


def _row(fields: Sequence[Field], row: Any) -> Key:
    if not isinstance(row, dict):
        raise ValueError(f"a row is no JSON object: {row!r:.60}")
    unknown = sorted(set(row) - {one["name"] for one in fields})
    if unknown:
        raise ValueError(f"there is a column {unknown[0]!r}, which the table does not have")
    return tuple((one["name"], _value(one["name"], one["type"], row.get(one["name"]))) for one in fields)


def _value(name: str, kind: Type, value: Any) -> Any:
    if value is None:
        return None
    below = fields_of(kind)
    if below is not None:
        return _row(below, value)
    try:
        return _primitive(kind, value)
    except (ValueError, TypeError, AttributeError, InvalidOperation, OverflowError, struct.error) as error:
        raise ValueError(f"the value {value!r:.60} of column {name!r} is no {kind}") from error


def _primitive(kind: Type, value: Any) -> Any:
    text = str(value)
    match kind:
        case "boolean":
            return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else text
        case "int" | "long":
            return int(text)
        case "float" | "double":
            number = float(text)
            if number != number:
                return "NaN"
            return struct.pack("<f" if kind == "float" else "<d", number)  # which tells the zeros apart
        case "date":
            return _date(text)
        case "time":
            return _time(text)
        case "string":
            if not isinstance(value, str):
                raise TypeError
            return value
        case "uuid":
            return text.lower().replace("-", "")
    if decimal_of(kind):
        exact = Decimal(text)
        if not exact.is_finite():
            raise ValueError
        return exact
    if isinstance(kind, str) and kind.startswith("timestamp"):
        return _moment(text, has_zone=kind.startswith("timestamptz"))
    return bytes.fromhex(re.sub(r"^(0x|\\x)", "", value))


def _date(text: str) -> int:
    """Also at midnight, as programs without a type for days have it."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError
    return date.fromisoformat(found[1]).toordinal()


def _time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError
    hours, minutes, seconds, fraction = found.groups(default="0")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**9 + int(fraction.ljust(9, "0"))


def _moment(text: str, *, has_zone: bool) -> int:
    """Nanoseconds since the first day, in UTC. Without its zone a moment is not known, and a local time has
    none."""
    found = _MOMENT.fullmatch(text)
    if found is None or (found[8] is not None) != has_zone:
        raise ValueError
    *numbers, fraction, _, sign, off_hours, off_minutes = found.groups(default="0")
    year, month, day, hours, minutes, seconds = map(int, numbers)
    minutes -= (int(off_hours) * 60 + int(off_minutes)) * (-1 if sign == "-" else 1)
    seconds += ((date(year, month, day).toordinal() * 24 + hours) * 60 + minutes) * 60
    return seconds * 10**9 + int(fraction.ljust(9, "0"))
