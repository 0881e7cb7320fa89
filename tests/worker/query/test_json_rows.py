"""Values in JSON: what an answer shows of a column is what a question may ask for in it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from tests.worker.query.test_arrow_keys import key_set
from worker.query.errors import InvalidKeyError
from worker.query.json_keys import keys_of_json
from worker.query.report import json_rows

FIRST, LAST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "in_arrow", "value", "in_json"),
    [
        (types.DateType(), pa.date32(), 2_932_897, "+10000-01-01"),
        (types.DateType(), pa.date32(), -719_529, "-0001-12-31"),
        (types.DateType(), pa.date32(), -(2**31), "-5877641-06-23"),
        (types.DateType(), pa.date32(), 2**31 - 1, "+5881580-07-11"),
        (types.TimeType(), pa.time64("us"), 60 * 10**6 + 1, "00:01:00.000001"),
        (types.TimestampType(), pa.timestamp("us"), 0, "1970-01-01T00:00:00"),
        (types.TimestampType(), pa.timestamp("us"), FIRST, "-290308-12-21T19:59:05.224192"),
        (types.TimestamptzType(), pa.timestamp("us", "UTC"), LAST, "+294247-01-10T04:00:54.775807+00:00"),
        (types.TimestampNanoType(), pa.timestamp("ns"), -1, "1969-12-31T23:59:59.999999999"),
        (types.TimestampNanoType(), pa.timestamp("ns"), FIRST, "1677-09-21T00:12:43.145224192"),
        (types.TimestamptzNanoType(), pa.timestamp("ns", "UTC"), LAST, "2262-04-11T23:47:16.854775807+00:00"),
    ],
)
def test_a_moment_of_any_year_is_told_as_it_is_asked_for(
    kind: PrimitiveType, in_arrow: pa.DataType, value: int, in_json: str
) -> None:
    width = pa.int32() if in_arrow == pa.date32() else pa.int64()
    values = pa.array([value, None], width).cast(in_arrow)
    rows = json_rows(pa.table({"k": values}), Schema(types.NestedField(1, "k", kind)))
    assert rows == [{"k": in_json}, {"k": None}]
    assert keys_of_json(key_set(kind), [{"k": in_json}]).column(1).to_pylist() == [value]


def test_zones_and_words_are_understood() -> None:
    """Further forms of what `json_rows` writes in one."""
    asked: list[dict[str, Any]] = [{"k": f"1970-01-01T00:00:00{zone}"} for zone in ("Z", "+01:30", "-01:30")]
    keys = keys_of_json(key_set(types.TimestamptzType()), asked)
    assert keys.column(1).to_pylist() == [minutes * 60 * 10**6 for minutes in (0, -90, 90)]
    asked = [{"k": word} for word in (True, False, "true", "false")]
    keys = keys_of_json(key_set(types.BooleanType()), asked)
    assert keys.column(1).to_pylist() == [True, False, True, False]


def test_moments_in_nested_columns_are_of_any_year() -> None:
    day = types.DateType()
    schema = Schema(
        types.NestedField(1, "in_list", types.ListType(2, day)),
        types.NestedField(3, "in_map", types.MapType(4, day, 5, types.TimestampNanoType())),
        types.NestedField(6, "in_struct", types.StructType(types.NestedField(7, "day", day))),
    )
    days = pa.array([2_932_897], pa.int32()).cast(pa.date32())
    moments = pa.array([1], pa.timestamp("ns"))
    rows = pa.table(
        {
            "in_list": pa.ListArray.from_arrays(pa.array([0, 1]), days),
            "in_map": pa.MapArray.from_arrays(pa.array([0, 1]), days, moments),
            "in_struct": pa.StructArray.from_arrays([days], ["day"]),
        }
    )
    told = json.loads(json.dumps(json_rows(rows, schema)))
    assert told == [
        {
            "in_list": ["+10000-01-01"],
            "in_map": [{"key": "+10000-01-01", "value": "1970-01-01T00:00:00.000000001"}],
            "in_struct": {"day": "+10000-01-01"},
        }
    ]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (types.DateType(), "+6000000-01-01"),
        (types.TimestampType(), "+294248-01-01T00:00"),
        (types.TimestamptzType(), "-290309-12-21T19:59:05+00:00"),
        (types.TimestampNanoType(), "2262-04-11T23:47:16.854775808"),
        (types.TimeType(), "24:00"),
        (types.TimeType(), "\u0661\u0662:00"),
        (types.TimestamptzType(), "2026-01-02T03:04:05+24:00"),
        (types.TimestamptzType(), "2026-01-02T03:04:05+00:60"),
    ],
)
def test_a_moment_that_no_value_is_of_is_refused(kind: PrimitiveType, given: str) -> None:
    with pytest.raises(InvalidKeyError):
        keys_of_json(key_set(kind), [{"k": given}])


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("9999999999999999999999999999999999.9999", "9999999999999999999999999999999999.9999"),
        ("-1.2" + 60 * "0", "-1.2000"),
        ("12E+30", "12000000000000000000000000000000.0000"),
        ("0E+1000000", "0.0000"),
    ],
)
def test_a_decimal_of_any_precision_is_a_key(given: str, value: str) -> None:
    keys = keys_of_json(key_set(types.DecimalType(38, 4)), [{"k": given}])
    assert keys.column(1).to_pylist() == [Decimal(value)]


@pytest.mark.parametrize(
    "given",
    [
        "0.00001",
        "1e-1000000",
        "1e34",
        "1e1000000",
        "NaN",
        "-Infinity",
        "12345678901234567890123.45678",
        "1_0",
        " 1",
        "\u0661\u0667",
        "",
    ],
)
def test_a_decimal_that_no_value_is_is_refused(given: str) -> None:
    with pytest.raises(InvalidKeyError):
        keys_of_json(key_set(types.DecimalType(38, 4)), [{"k": given}])
