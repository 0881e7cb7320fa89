"""Thrift's compact protocol, as far as Parquet's footers and page headers need it: to and from plain values.

Arrow reads these, too, but tells neither where pages lie nor writes a footer of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

# By field id: the type as it is written, and the value. A list is (type of its elements, elements).
Struct: TypeAlias = dict[int, tuple[int, Any]]

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_DEPTH = 16
_LONG_LIST = 15
_VARINT_BYTES = 10
VALUES = 100_000
"""At most in a struct, with those in what is in it: they take 0.1 s, in which no other thread runs."""
VALUE_BYTES = 250
"""At most in memory for each value, besides the bytes of binary ones."""


class TooManyValuesError(ValueError):
    """A struct may be right, and has more values than are read."""


def decode(content: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """A struct and where it ends. Raises ValueError for what is none."""
    struct, end, _ = decode_counted(content, start)
    return struct, end


def decode_counted(content: bytes | memoryview, start: int = 0) -> tuple[Struct, int, int]:
    """As `decode`, and how many values there are."""
    reader = _Reader(content, start)
    try:
        return reader.struct(0), reader.at, reader.values
    except IndexError:
        raise ValueError("a struct of Thrift ends before its end") from None


def decode_until(content: bytes | memoryview, last: int) -> tuple[Struct, int]:
    """The fields of a struct up to `last` as they are written, and where the next one begins.

    Raises ValueError for what is none, and for one without that field.
    """
    reader = _Reader(content, 0)
    try:
        found = reader.struct(0, last)
    except IndexError:
        raise ValueError("a struct of Thrift ends before its end") from None
    if last not in found:
        raise ValueError(f"a struct of Thrift has no field {last}")
    return found, reader.at


def encode(struct: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, content: bytes | memoryview, start: int) -> None:
        self._content = content
        self.at = start
        self.values = 0

    def struct(self, depth: int, last: int | None = None) -> Struct:
        found: Struct = {}
        field = 0
        while head := self._byte():
            self._count(1)
            kind, step = head & 15, head >> 4
            field = field + step if step else self._signed()
            found[field] = kind, (kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth))
            if field == last:
                break
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("a struct of Thrift is too deep")
        match kind:
            case 5 | 6 | 4:
                return self._signed()
            case 8:
                return self._bytes(self._varint())
            case 12:
                return self.struct(depth + 1)
            case 9 | 10:
                head = self._byte()
                count, element = head >> 4, head & 15
                if count == _LONG_LIST:
                    count = self._varint()
                self._count(count)
                return element, [self._value(element, depth + 1) for _ in range(count)]
            case 1 | 2 | 3:  # in a list a boolean is a byte
                return self._byte()
            case 7:
                return self._bytes(8)
        raise ValueError(f"a struct of Thrift has a value of type {kind}")

    def _count(self, values: int) -> None:
        self.values += values
        if self.values > VALUES:
            raise TooManyValuesError(f"a struct of Thrift has more than {VALUES:,} values")

    def _byte(self) -> int:
        value = self._content[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number of Thrift is too long")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self._content):
            raise IndexError
        return bytes(self._content[start : self.at])


def _write_struct(out: bytearray, struct: Mapping[int, tuple[int, Any]]) -> None:
    last = 0
    for field, (kind, value) in sorted(struct.items()):
        written = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < field - last <= 15:
            out.append((field - last) << 4 | written)
        else:
            out.append(written)
            _write_varint(out, _zigzag(field))
        last = field
        if kind not in (TRUE, FALSE):
            _WRITERS[kind](out, value)
    out.append(0)


def _write_list(out: bytearray, value: tuple[int, list[Any]]) -> None:
    element, values = value
    if len(values) < _LONG_LIST:
        out.append(len(values) << 4 | element)
    else:
        out.append(_LONG_LIST << 4 | element)
        _write_varint(out, len(values))
    for one in values:
        _WRITERS[element](out, one)


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_varint(out, len(value))
    out += value


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_signed(out: bytearray, value: int) -> None:
    _write_varint(out, _zigzag(value))


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


_WRITERS: Mapping[int, Callable[[bytearray, Any], None]] = {
    TRUE: bytearray.append,
    FALSE: bytearray.append,
    BYTE: bytearray.append,
    I16: _write_signed,
    I32: _write_signed,
    I64: _write_signed,
    DOUBLE: bytearray.extend,
    BINARY: _write_bytes,
    LIST: _write_list,
    SET: _write_list,
    STRUCT: _write_struct,
}
