"""Parquet files, plain and uncompressed: what any reader reads, the same bytes on any day.

Arrow's and others' writers leave out that a column is a UUID, or which field it is, or change with versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.types import Field, Row, Type, decimal_length, decimal_of, fields_of, fixed_length, plain

_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12  # of Thrift's compact protocol
_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = 0, 1, 2, 4, 5, 6, 7  # of Parquet
_PLAIN, _RLE = 0, 3
_MAGIC = b"PAR1"

Thrift = list[tuple[int, int, Any]]


def parquet_file(
    fields: Sequence[Field],
    rows: Sequence[Row],
    *,
    with_ids: bool = True,
    group_rows: int | None = None,
    page_rows: int | None = None,
) -> bytes:
    """with_ids: whether columns have their field ids, as Iceberg's writers put them. group_rows, page_rows:
    at most as many are in a row group, and in a page of it; None for all."""
    out = bytearray(_MAGIC)
    groups: list[Thrift] = []
    for group in _parts(rows, group_rows):
        begin = len(out)
        chunks = [_chunk(out, column, group, page_rows) for column in _columns(fields)]
        groups.append([(1, _LIST, (_STRUCT, chunks)), (2, _I64, len(out) - begin), (3, _I64, len(group))])
    root: Thrift = [(4, _BINARY, b"table"), (5, _I32, len(fields))]
    elements = [root, *(element for one in fields for element in _elements(one, with_ids))]
    footer = _thrift(
        [
            (1, _I32, 1),
            (2, _LIST, (_STRUCT, elements)),
            (3, _I64, len(rows)),
            (4, _LIST, (_STRUCT, groups)),
            (6, _BINARY, b"icestream conformance"),
        ]
    )
    return bytes(out) + footer + struct.pack("<i", len(footer)) + _MAGIC


def _parts(rows: Sequence[Row], count: int | None) -> Iterator[Sequence[Row]]:
    count = count or len(rows)
    return (rows[at : at + count] for at in range(0, len(rows), count or 1))


def _chunk(out: bytearray, column: _Column, rows: Sequence[Row], page_rows: int | None) -> Thrift:
    """Appends the pages of a column, and returns what the footer says of them."""
    offset = len(out)
    for part in _parts(rows, page_rows):
        page = column.page(part)
        header: Thrift = [
            (1, _I32, 0),
            (2, _I32, len(page)),
            (3, _I32, len(page)),
            (5, _STRUCT, [(1, _I32, len(part)), (2, _I32, _PLAIN), (3, _I32, _RLE), (4, _I32, _RLE)]),
        ]
        out += _thrift(header) + page
    size = len(out) - offset
    return [
        (2, _I64, offset),
        (
            3,
            _STRUCT,
            [
                (1, _I32, column.physical),
                (2, _LIST, (_I32, [_PLAIN, _RLE])),
                (3, _LIST, (_BINARY, [name.encode() for name in column.path])),
                (4, _I32, 0),
                (5, _I64, len(rows)),
                (6, _I64, size),
                (7, _I64, size),
                (9, _I64, offset),
            ],
        ),
    ]


@dataclass(frozen=True)
class _Column:
    path: tuple[str, ...]
    optional: tuple[bool, ...]  # of each part of the path
    kind: Type

    @property
    def physical(self) -> int:
        return _physical(self.kind)[0]

    def page(self, rows: Sequence[Row]) -> bytes:
        values, levels = [], []
        for row in rows:
            value: Any = row
            level = 0
            for name, optional in zip(self.path, self.optional, strict=True):
                value = value.get(name)
                if value is None:
                    if not optional:
                        raise ValueError(f"{'.'.join(self.path)} is required and null")
                    break
                level += optional
            levels.append(level)
            if value is not None:
                values.append(plain(self.kind, value))
        return (_levels(levels) if any(self.optional) else b"") + _plain_values(self.kind, values)


def _columns(
    fields: Sequence[Field], path: tuple[str, ...] = (), optional: tuple[bool, ...] = ()
) -> Iterator[_Column]:
    for one in fields:
        place = (*path, one["name"]), (*optional, not one["required"])
        below = fields_of(one["type"])
        if below is None:
            yield _Column(*place, one["type"])
        else:
            yield from _columns(below, *place)


def _elements(one: Field, with_ids: bool) -> Iterator[Thrift]:
    """A field and those below it, as the footer lists them."""
    named: Thrift = [(3, _I32, 0 if one["required"] else 1), (4, _BINARY, one["name"].encode())]
    field_id: Thrift = [(9, _I32, one["id"])] if with_ids else []
    below = fields_of(one["type"])
    if below is not None:
        yield [*named, (5, _I32, len(below)), *field_id]
        for child in below:
            yield from _elements(child, with_ids)
        return
    physical, length = _physical(one["type"])
    sized: Thrift = [(2, _I32, length)] if length else []
    converted, logical = _logical(one["type"])
    yield [(1, _I32, physical), *sized, *named, *converted, *field_id, *logical]


def _physical(kind: Type) -> tuple[int, int]:
    """Parquet's type, and the length of a fixed one."""
    decimal = decimal_of(kind)
    if decimal:
        precision, _ = decimal
        if precision <= 18:
            return (_INT32 if precision <= 9 else _INT64), 0
        return _FIXED, decimal_length(precision)
    match kind:
        case "boolean":
            return _BOOLEAN, 0
        case "int" | "date":
            return _INT32, 0
        case "float":
            return _FLOAT, 0
        case "double":
            return _DOUBLE, 0
        case "string" | "binary":
            return _BYTE_ARRAY, 0
        case "uuid":
            return _FIXED, 16
    length = fixed_length(kind)
    return (_FIXED, length) if length else (_INT64, 0)


def _logical(kind: Type) -> tuple[Thrift, Thrift]:
    """The converted type with scale and precision, and the logical type."""

    def union(member: int, of: Thrift) -> Thrift:
        return [(10, _STRUCT, [(member, _STRUCT, of)])]

    def in_time(utc: bool, unit: int) -> Thrift:
        return [(1, _TRUE if utc else _FALSE, None), (2, _STRUCT, [(unit, _STRUCT, [])])]

    decimal = decimal_of(kind)
    if decimal:
        precision, scale = decimal
        return (
            [(6, _I32, 5), (7, _I32, scale), (8, _I32, precision)],
            union(5, [(1, _I32, scale), (2, _I32, precision)]),
        )
    match kind:
        case "string":
            return [(6, _I32, 0)], union(1, [])
        case "date":
            return [(6, _I32, 6)], union(6, [])
        case "time":
            return [(6, _I32, 8)], union(7, in_time(False, 2))
        case "timestamp":
            return [], union(8, in_time(False, 2))
        case "timestamptz":
            return [(6, _I32, 10)], union(8, in_time(True, 2))
        case "timestamp_ns":
            return [], union(8, in_time(False, 3))
        case "timestamptz_ns":
            return [], union(8, in_time(True, 3))
        case "uuid":
            return [], union(14, [])
    return [], []


def _plain_values(kind: Type, values: Sequence[Any]) -> bytes:
    physical, length = _physical(kind)
    if physical == _BOOLEAN:
        bits = sum(1 << i for i, value in enumerate(values) if value)
        return bits.to_bytes(-(-len(values) // 8), "little")
    if physical == _BYTE_ARRAY:
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        return b"".join(struct.pack("<i", len(text)) + text for text in texts)
    if physical == _FIXED:
        of_length = [
            value if isinstance(value, bytes) else value.to_bytes(length, "big", signed=True)
            for value in values
        ]
        assert all(len(value) == length for value in of_length)
        return b"".join(of_length)
    code = {_INT32: "i", _INT64: "q", _FLOAT: "f", _DOUBLE: "d"}[physical]
    return struct.pack(f"<{len(values)}{code}", *values)


def _levels(levels: Sequence[int]) -> bytes:
    """Definition levels as runs, each of the same level; a level takes a byte."""
    runs = bytearray()
    at = 0
    while at < len(levels):
        end = at
        while end < len(levels) and levels[end] == levels[at]:
            end += 1
        runs += _varint((end - at) << 1) + bytes([levels[at]])
        at = end
    return struct.pack("<i", len(runs)) + runs


def _thrift(fields: Thrift) -> bytes:
    """A struct in Thrift's compact protocol; fields in ascending order."""
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        assert 0 < number - last <= 15
        out.append((number - last) << 4 | kind)
        out += _value(kind, value)
        last = number
    return bytes(out) + b"\x00"


def _value(kind: int, value: Any) -> bytes:
    match kind:
        case 5 | 6:  # integers
            return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
        case 8:  # binary
            return _varint(len(value)) + bytes(value)
        case 9:  # list
            element, values = value
            many = len(values) > 14
            head = bytes([(15 if many else len(values)) << 4 | element])
            return (
                head
                + (_varint(len(values)) if many else b"")
                + b"".join(_value(element, one) for one in values)
            )
        case 12:  # struct
            return _thrift(value)
    return b""  # the kind says whether it is true


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
