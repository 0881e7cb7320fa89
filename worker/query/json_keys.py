"""Keys that somebody asks for, in JSON, as the key's columns have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg import types

from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.read import key_batch
from worker.query.errors import InvalidKeyError

# All of ASCII: Python takes the digits of any script for one.
_DAY = r"(?P<day>[+-]?\d{4,7}-\d\d-\d\d)"
_TIME = r"(?P<time>\d\d:\d\d(:\d\d(\.(?P<fraction>\d{1,9}))?)?)"
_ZONE = r"(?P<zone>Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FORMS = {
    types.DateType: re.compile(_DAY, re.ASCII),
    types.TimeType: re.compile(_TIME, re.ASCII),
    types.TimestampType: re.compile(f"{_DAY}T{_TIME}", re.ASCII),
    types.TimestampNanoType: re.compile(f"{_DAY}T{_TIME}", re.ASCII),
    types.TimestamptzType: re.compile(f"{_DAY}T{_TIME}{_ZONE}", re.ASCII),
    types.TimestamptzNanoType: re.compile(f"{_DAY}T{_TIME}{_ZONE}", re.ASCII),
}
_BITS = {types.IntegerType: 31, types.LongType: 63}
_MINUTES_A_DAY = 24 * 60


def keys_of_json(key_set: KeySet, keys: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """From column names and values, which are as Iceberg writes single values in JSON.

    Integers may be text too, since not every reader of JSON keeps 64 bits. Raises InvalidKeyError.
    """
    names = set(key_set.column_names)
    for at, key in enumerate(keys):
        if key.keys() != names:
            raise InvalidKeyError(
                f"Key {at} has the columns {', '.join(sorted(key)) or 'none'}, "
                f"not {', '.join(key_set.column_names)}."
            )
    arrays = []
    for column in key_set.columns:
        values = [_value(column, at, key[column.name]) for at, key in enumerate(keys)]
        arrays.append(pa.array(values, column.key_type))
    return key_batch(key_set, arrays)


def _value(column: KeyColumn, at: int, given: Any) -> Any:
    if given is None:
        return None
    try:
        return single_value(given, column.iceberg_type)
    except NOT_A_VALUE as error:
        raise InvalidKeyError(
            f"Key {at}: column {column.name} is of type {column.iceberg_type}, and {given!r} is none"
            f" of its values: {error}."
        ) from error


def single_value(given: Any, kind: types.PrimitiveType) -> Any:
    """A value, not null, in a key's representation: moments as numbers, a UUID as its bytes.

    Raises one of NOT_A_VALUE.
    """
    return next(parse for of, parse in _PARSERS.items() if isinstance(kind, of))(given, kind)


NOT_A_VALUE = (ValueError, TypeError, OverflowError, InvalidOperation)


def _boolean(given: Any, _: types.PrimitiveType) -> bool:
    known = {True: True, False: False, "true": True, "false": False}
    if not isinstance(given, bool | str) or given not in known:
        raise ValueError("it is neither true nor false")
    return known[given]


def _integer(given: Any, kind: types.PrimitiveType) -> int:
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError("it is no whole number")
    return _in_bits(given, _BITS[type(kind)])


def _decimal(given: Any, kind: types.PrimitiveType) -> Decimal:
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise TypeError("it is neither text nor a whole number")
    if isinstance(given, str) and not _DECIMAL.fullmatch(given):
        raise ValueError("it is no decimal number")
    assert isinstance(kind, types.DecimalType)
    precision, scale = kind.precision, kind.scale
    value = Decimal(given)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or any(digits[min(exponent + scale, 0) or len(digits) :]):
        raise ValueError(f"it has no exact value of {scale} decimal places")
    if not value:
        return Decimal(0)
    if value.adjusted() >= precision - scale:
        raise OverflowError(f"it has more than {precision} digits")
    # Digit by digit: arithmetic would round to 28 of them.
    shift = exponent + scale
    return Decimal((sign, digits[:shift] if shift < 0 else (*digits, *[0] * shift), -scale))


def _text(given: Any, _: types.PrimitiveType) -> str:
    if not isinstance(given, str):
        raise TypeError("it is no text")
    given.encode()  # a lone surrogate is no text that a file can hold
    return given


def _bytes(given: Any, kind: types.PrimitiveType) -> bytes:
    found = bytes.fromhex(_text(given, kind))
    if isinstance(kind, types.FixedType) and len(found) != len(kind):
        raise ValueError(f"it has {len(found)} bytes")
    return found


def _uuid(given: Any, kind: types.PrimitiveType) -> bytes:
    return UUID(_text(given, kind)).bytes


def _moment(given: Any, kind: types.PrimitiveType) -> int:
    form = _FORMS[type(kind)].fullmatch(_text(given, kind))
    if form is None:
        raise ValueError("it has another form")
    found = form.groupdict()
    is_fine = isinstance(kind, types.TimestampNanoType | types.TimestamptzNanoType)
    if (found.get("fraction") or "")[9 if is_fine else 6 :].strip("0"):
        raise ValueError("the column holds no such small part of a second")
    # Numpy counts a moment that is out of range from the other end.
    days = int(np.datetime64(found.get("day") or "1970-01-01", "D").astype(np.int64))
    if isinstance(kind, types.DateType):
        return _in_bits(days, 31)
    of_day = int(np.datetime64(f"1970-01-01T{found['time']}", "ns").astype(np.int64))
    ticks = (days * _MINUTES_A_DAY - _minutes(found.get("zone") or "Z")) * 60 * 10**9 + of_day
    return _in_bits(ticks // (1 if is_fine else 1_000), 63)


def _minutes(zone: str) -> int:
    """From UTC."""
    if zone == "Z":
        return 0
    return (-1 if zone[0] == "-" else 1) * (int(zone[1:3]) * 60 + int(zone[4:]))


def _in_bits(value: int, bits: int) -> int:
    if not -(1 << bits) <= value < 1 << bits:
        raise OverflowError("it is out of range")
    return value


_PARSERS: Mapping[Any, Callable[[Any, types.PrimitiveType], Any]] = {
    types.BooleanType: _boolean,
    types.IntegerType | types.LongType: _integer,
    types.DecimalType: _decimal,
    types.StringType: _text,
    types.FixedType | types.BinaryType: _bytes,
    types.UUIDType: _uuid,
    tuple(_FORMS): _moment,
}
