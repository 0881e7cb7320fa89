"""A value is what it says, however it is spelt."""

from __future__ import annotations

import struct

import pytest

from conformance.compare import difference, parse
from conformance.types import Type, bounds, field, struct_of

DIGITS = "12345678901234567890123456789012345678"
SAME: list[tuple[Type, list[str]]] = [
    ("boolean", ["true", '"true"', '"TRUE"']),
    ("long", ["9007199254740993", '"9007199254740993"']),
    ("float", ["0.1", "0.100000001490116", '"0.1"']),
    ("double", ['"NaN"', "NaN", '"nan"']),
    ("double", ["1.0", "1", '"1.0E0"']),
    ("double", ["-0.0", "-0", '"-0.0"']),
    ("int", ["0", "-0"]),
    ("decimal(38, 2)", ["1.50", "1.5", '"1.50"', '"1.5E0"', "1.500"]),
    (
        "decimal(38, 0)",
        ["12345678901234567890123456789012345678", '"12345678901234567890123456789012345678"'],
    ),
    ("date", ['"2024-02-29"', '"2024-02-29T00:00:00"']),
    ("time", ['"12:00:00"', '"12:00"', '"12:00:00.000000"']),
    ("timestamp", ['"2024-01-02T03:04:05"', '"2024-01-02 03:04:05.000000"']),
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
    ("double", "0.0", "-0.0"),
    ("float", "0.0", '"-0.0"'),
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
    ("kind", "right", "wrong"),
    [
        *(
            ("timestamp", '"2024-01-01 00:00:00"', value)
            for value in ('"12"', '"2024-13-01 00:00:00"', "[]", "true", '"2024-01-01 00:00:00 CET"')
        ),
        ("timestamp", '"2024-01-01 00:00:00"', '"2024-01-01 00:00:00Z"'),
        ("timestamptz", '"2024-01-01 00:00:00Z"', '"2024-01-01 00:00:00"'),
        ("date", '"2024-01-01"', '"2024-01-01, or so"'),
        ("date", '"2024-01-01"', '"2024-01-01T12:00:00"'),
        *(("decimal(9, 2)", "1.50", value) for value in ('"sNaN"', '"NaN"', '"Infinity"', "NaN")),
    ],
)
def test_what_is_no_value_of_the_type_is_told(kind: str, right: str, wrong: str) -> None:
    assert f"of column 'k' is no {kind}" in differs(kind, right, wrong)


def test_a_column_that_is_in_no_row_is_told() -> None:
    fields = [field(1, "id", "long"), field(2, "k", "int")]
    nulls: list[dict[str, int | None]] = [{"id": 0, "k": None}, {"id": 1, "k": None}]
    assert difference(fields, nulls, [{"id": 0}, {"id": 1}]) == "no row has the column 'k', not even a null"
    assert difference(fields, nulls, [{"id": 0, "k": None}, {"id": 1}]) == ""
    assert difference(fields, [], []) == ""


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize(("kind", "code"), [("float", "<f"), ("double", "<d")])
def test_bounds_have_both_zeros_between_them(kind: str, code: str, zeros: tuple[float, float]) -> None:
    assert bounds(kind, zeros) == (struct.pack(code, -0.0), struct.pack(code, 0.0))
