"""A value is what it says, however it is spelt."""

from __future__ import annotations

import pytest

from conformance.compare import difference, parse
from conformance.types import Type, field, struct_of

DIGITS = "12345678901234567890123456789012345678"
SAME: list[tuple[Type, list[str]]] = [
    ("boolean", ["true", '"true"', '"TRUE"']),
    ("long", ["9007199254740993", '"9007199254740993"']),
    ("float", ["0.1", "0.100000001490116", '"0.1"']),
    ("double", ['"NaN"', "NaN", '"nan"']),
    ("double", ["1.0", "1", '"1.0E0"']),
    ("decimal(38, 2)", ["1.50", "1.5", '"1.50"', '"1.5E0"', "1.500"]),
    (
        "decimal(38, 0)",
        ["12345678901234567890123456789012345678", '"12345678901234567890123456789012345678"'],
    ),
    ("date", ['"2024-02-29"', '"2024-02-29T00:00:00"']),
    ("time", ['"12:00:00"', '"12:00"', '"12:00:00.000000"']),
    ("timestamp", ['"2024-01-02T03:04:05"', '"2024-01-02 03:04:05.000000"', '"2024-01-02 03:04:05Z"']),
    (
        "timestamptz",
        ['"2024-01-02T03:04:05.1+00:00"', '"2024-01-02 05:04:05.100+02"', '"2024-01-01T21:34:05.1-0530"'],
    ),
    ("timestamp_ns", ['"1969-12-31T23:59:59.999999999"', '"1969-12-31 23:59:59.999999999"']),
    ("uuid", ['"00000000-0000-4000-8000-00000000000A"', '"0000000000004000800000000000000a"']),
    ("binary", ['"00ff"', '"00FF"', '"0x00ff"', '"\\\\x00FF"']),
    (struct_of(field(3, "a", "int"), field(4, "b", "int")), ['{"a": 1}', '{"b": null, "a": "1"}']),
]
OTHER: list[tuple[Type, str, str]] = [
    ("long", "9007199254740993", "9007199254740992"),
    ("double", '"NaN"', "null"),
    ("decimal(38, 0)", DIGITS, f"{DIGITS[:-1]}9"),
    ("time", '"23:59:59.999999"', '"23:59:59.999998"'),
    ("timestamp", '"2024-01-02T03:04:05"', '"2024-01-02T03:04:05.000001"'),
    ("timestamptz", '"2024-01-02T03:04:05+00:00"', '"2024-01-02T03:04:05+01:00"'),
    ("timestamp_ns", '"1970-01-01T00:00:00.000000001"', '"1970-01-01T00:00:00"'),
    ("string", '"a"', '"a "'),
    ("string", '"1"', "1"),
    ("binary", '""', "null"),
    (struct_of(field(3, "a", "int")), '{"a": null}', "null"),
]


def differs(kind: Type, one: str, other: str) -> str:
    rows = [[parse(f'{{"id": 1, "k": {value}}}')] for value in (one, other)]
    return difference([field(1, "id", "long"), field(2, "k", kind)], *rows)


@pytest.mark.parametrize(("kind", "values"), SAME)
def test_a_value_has_many_spellings(kind: Type, values: list[str]) -> None:
    assert {differs(kind, values[0], value) for value in values} == {""}


@pytest.mark.parametrize(("kind", "one", "other"), OTHER)
def test_values_are_told_apart(kind: Type, one: str, other: str) -> None:
    assert differs(kind, one, other)


@pytest.mark.parametrize(
    "value", ['"12"', '"2024-13-01 00:00:00"', "[]", "true", '"2024-01-01 00:00:00 CET"']
)
def test_what_is_no_moment_is_told(value: str) -> None:
    assert "of column 'k' is no timestamp" in differs("timestamp", '"2024-01-01 00:00:00"', value)
