"""Keys of every type, each with values that may be mistaken for each other, in every other place a delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from conformance.case import Case, Cases, Expected
from conformance.cases.rows import key, keyed, row, rows
from conformance.table import Table
from conformance.types import Row, field, struct_of

CASES = Cases("Equality Delete Files")
case = CASES.case

_HALF = 1 << 63
_DAY = 86_400 * 10**9
_TEXT = "prefix " * 20  # beyond the 16 characters that bounds keep
_MOMENTS = [
    datetime(1, 1, 1),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59, 999_998),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(1970, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
]
_NANOSECONDS = [-1, 0, 1, 999, 1_000, 1_001, -_DAY, _DAY, _DAY + 1]
_VALUES: dict[str, Sequence[Any]] = {
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1, -1, 1, 0, 256],
    "long": [-_HALF, _HALF - 1, -1, 0, 1, 2**31, 2**32, 2**53, 2**53 + 1],
    "decimal(7, 2)": [Decimal(n) / 100 for n in (-9999999, 9999999, -1, 0, 1, 10, 100)],
    "decimal(18, 4)": [Decimal(sign * n).scaleb(-4) for n in (10**18 - 1, 10**15, 1) for sign in (1, -1)],
    "decimal(38, 10)": [
        Decimal((sign, tuple(map(int, str(n))), -10))
        for n in (10**38 - 1, 2**64, 2**63, 1)
        for sign in (0, 1)
    ],
    "date": [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4), date(1969, 12, 31), date(1970, 1, 1)],
    "time": [time(0), time(0, 0, 0, 1), time(12), time(23, 59, 59, 999_998), time(23, 59, 59, 999_999)],
    "timestamp": _MOMENTS,
    "timestamptz": [moment.replace(tzinfo=UTC) for moment in _MOMENTS],
    "timestamp_ns": _NANOSECONDS,
    "timestamptz_ns": _NANOSECONDS,
    "string": [
        *("", " ", "a", "a ", "A", "ab", "null", "caf\u00e9", "cafe\u0301", "\uffff", "\U0001f600"),
        *(_TEXT, _TEXT + "a", _TEXT[:-1], _TEXT[:16], _TEXT[:17]),
    ],
    "binary": [
        *(b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"ab", b"\x7f", b"\x80", b"\xff"),
        *(b"\xff" * 16, b"\xff" * 17, _TEXT.encode(), _TEXT.encode() + b"\x00"),
    ],
    "fixed[4]": [b"\x00" * 4, b"\x00\x00\x00\x01", b"a\x00\x00\x00", b"ab\x00\x00", b"\x80\x00\x00\x00"],
    "uuid": [
        UUID(int=n)
        for n in (0, 1, _HALF - 1, _HALF, 1 << 64, (1 << 127) - 1, 1 << 127, (1 << 127) + 1, (1 << 128) - 1)
    ],
}


def _of_type(kind: str) -> Callable[[Table], list[Row]]:
    def build(t: Table) -> list[Row]:
        keyed(t, kind)
        values = _VALUES[kind]
        count = len(values)
        with_bounds = kind != "uuid"  # whose order in bounds is not settled
        t.commit(
            t.data(*rows(values), with_bounds=with_bounds),
            t.data(*rows(values[::-1], count), with_bounds=with_bounds),
        )
        t.commit(t.equality(*map(key, values[::2]), by=["k"], with_bounds=with_bounds))
        t.commit(t.data(*rows(values, 2 * count), with_bounds=with_bounds))
        older = [*rows(values)[1::2], *(one for one in rows(values[::-1], count) if one["k"] in values[1::2])]
        return [*older, *rows(values, 2 * count)]

    return build


for _kind in _VALUES:
    CASES.all.append(
        Case(
            "key-of-type-" + _kind.replace("(", "-").replace(", ", "-").replace("[", "-").rstrip(")]"),
            f"Values of `{_kind}` are compared as they are: each deletes its own rows and no others.",
            "Equality Delete Files",
            _of_type(_kind),
            (3,) if _kind.endswith("_ns") else (2, 3),
        )
    )


@case("Identifier Field IDs", is_defined=False)
def float_keys(t: Table) -> Expected:
    """`float` and `double` may be no delete columns. A reader may refuse the table; if it reads it, what it
    makes of NaN and of the two zeros is its own affair, and all other values are compared as they are."""
    keyed(t, "double")
    t.commit(t.data(*rows([1.5, float("nan"), 0.0, -0.0, 2.5, None])))
    t.commit(t.equality(key(1.5), key(float("nan")), key(-0.0), by=["k"]))
    return Expected([row(4, 2.5), row(5, None)], open_ids=(1, 2, 3))


@case()
def floats_beside_the_key(t: Table) -> list[Row]:
    """Columns of floating-point numbers that are not compared, NaN among them."""
    t.set_schema(
        field(1, "id", "long"), field(2, "k", "int"), field(3, "f", "double"), field(4, "g", "float")
    )
    data: list[Row] = [
        {"id": i, "k": i, "f": f, "g": f} for i, f in enumerate((float("nan"), 0.0, -0.0, 1.5, None))
    ]
    t.commit(t.data(*data))
    t.commit(t.equality({"id": 9, "k": 0, "f": 0.0, "g": 0.0}, by=["k"], columns=["id", "k", "f", "g"]))
    return data[1:]


def _nested(t: Table) -> list[Row]:
    inner = struct_of(field(3, "k", "int"), field(4, "j", "int"))
    t.set_schema(field(1, "id", "long"), field(2, "s", inner))
    data: list[Row] = [
        {"id": 0, "s": {"k": 1, "j": 1}},
        {"id": 1, "s": {"k": None, "j": 1}},
        {"id": 2, "s": None},
        {"id": 3, "s": {"k": 2, "j": 2}},
    ]
    t.commit(t.data(*data))
    return data


@case()
def a_key_in_a_struct(t: Table) -> list[Row]:
    """A delete column may lie in a struct."""
    data = _nested(t)
    t.commit(t.equality({"s": {"k": 1, "j": 9}}, by=["s.k"], columns=["s"]))
    return data[1:]


@case()
def a_null_struct_has_null_leaves(t: Table) -> list[Row]:
    """If a parent struct is null, the delete column in it is null: a delete of null takes both."""
    data = _nested(t)
    t.commit(t.equality({"s": {"k": None, "j": None}}, by=["s.k"], columns=["s"]))
    return [data[0], data[3]]


@case()
def required_columns(t: Table) -> list[Row]:
    """Columns that can't be null."""
    t.set_schema(field(1, "id", "long", required=True), field(2, "k", "string", required=True))
    t.commit(t.data(*rows(["a", "b"])))
    t.commit(t.equality(key("a"), by=["k"]))
    return [row(1, "b")]


@case()
def thirty_three_delete_columns(t: Table) -> list[Row]:
    """A key may have any number of columns."""
    names = [f"k{i}" for i in range(33)]
    t.set_schema(field(1, "id", "long"), *(field(2 + i, name, "int") for i, name in enumerate(names)))
    whole = dict.fromkeys(names, 1)
    data: list[Row] = [{"id": 0, **whole}, {"id": 1, **whole, "k32": 2}, {"id": 2, **whole, "k32": None}]
    t.commit(t.data(*data))
    t.commit(t.equality(whole, {**whole, "k32": None}, by=names))
    return data[1:2]
