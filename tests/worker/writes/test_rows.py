"""Rows are checked against the table's schema before anything is done, and no error says what they hold."""

import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.schema import Schema

from worker.keys.key_set import KeyColumn, KeySet
from worker.writes.rows import InvalidRowsError, keys_of_rows, last_of_each_key, rows_of_json

STRUCT = types.StructType(
    types.NestedField(20, "a", types.IntegerType(), required=True),
    types.NestedField(21, "b", types.DateType(), required=False),
)
MAP = types.MapType(30, types.StringType(), 31, types.DoubleType(), value_required=False)
LIST = types.ListType(40, types.LongType(), element_required=True)


def schema_of(kind: types.IcebergType, *, required: bool = False) -> Schema:
    return Schema(types.NestedField(1, "x", kind, required=required))


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (types.LongType(), "9223372036854775807", 2**63 - 1),
        (types.DecimalType(9, 2), "1.5", Decimal("1.50")),
        (types.DoubleType(), "NaN", "nan"),
        (types.DoubleType(), 3, 3.0),
        (types.DateType(), "2024-02-29", date(2024, 2, 29)),
        (types.UUIDType(), "00000000-0000-0000-0000-00000000000f", b"\0" * 15 + b"\x0f"),
        (STRUCT, {"a": 1, "b": "1970-01-02"}, {"a": 1, "b": date(1970, 1, 2)}),
        (LIST, [1, "2"], [1, 2]),
        (MAP, {"keys": ["k"], "values": [None]}, [("k", None)]),
        (types.StringType(), None, None),
    ],
    ids=str,
)
def test_a_value_is_what_iceberg_writes_for_it_in_json(
    kind: types.IcebergType, given: Any, value: Any
) -> None:
    (found,) = rows_of_json(schema_of(kind), [{"x": given}]).column("x").to_pylist()
    assert (str(found) if value == "nan" else found) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (types.IntegerType(), 2**31),
        (types.IntegerType(), True),
        (types.LongType(), "secret"),
        (types.DecimalType(4, 2), "123.45"),
        (types.FloatType(), 1e39),
        (types.FloatType(), "secret"),
        (types.DateType(), "2024-secret"),
        (types.DateType(), "2024-13-45"),
        (types.UUIDType(), "secret"),
        (types.BinaryType(), "secret"),
        (types.StringType(), 5),
        (STRUCT, {"a": 1}),
        (STRUCT, {"a": None, "b": None}),
        (STRUCT, "secret"),
        (LIST, {"secret": 1}),
        (LIST, [None]),
        (MAP, {"keys": ["secret"], "values": []}),
        (MAP, {"keys": [None], "values": [1.0]}),
    ],
    ids=str,
)
def test_what_is_no_value_of_its_column_is_refused_without_being_told(
    kind: types.IcebergType, given: Any
) -> None:
    good = {"x": None}
    with pytest.raises(InvalidRowsError, match=r"Row 1.* x") as caught:
        rows_of_json(schema_of(kind), [good, {"x": given}])
    told = f"{caught.value} {caught.value.problem}"
    assert "secret" not in told
    assert caught.value.__cause__ is None
    assert str(given) not in told or given is True


def test_a_row_has_each_column_of_the_table_and_no_other() -> None:
    schema = schema_of(types.LongType(), required=True)
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "Row 0 has no value for column x"),
        ({"x": None}, "Row 0 has null in column x, which is required"),
        ({"x": 1, "y": 2}, "Row 0 has 1 value for what is no column"),
    ]
    for row, told in refused:
        with pytest.raises(InvalidRowsError, match=told):
            rows_of_json(schema, [row])


def test_rows_carry_the_field_ids_of_the_table() -> None:
    (field,) = rows_of_json(schema_of(types.LongType()), [{"x": 1}]).schema
    assert field.metadata[b"PARQUET:field_id"] == b"1"


def key_set(*kinds: types.PrimitiveType) -> KeySet:
    arrow = {types.LongType(): pa.int64(), types.StringType(): pa.string(), types.UUIDType(): pa.binary()}
    return KeySet(
        tuple(
            KeyColumn(n, f"s.k{n}", (9, n), kind, arrow[kind], name_path=("s", f"k{n}"))
            for n, kind in enumerate(kinds)
        )
    )


def test_the_key_of_a_row_is_found_in_its_structs_and_null_where_these_are() -> None:
    of = key_set(types.LongType(), types.StringType())
    rows: list[dict[str, Any]] = [{"s": {"k0": 1, "k1": "a", "more": 0}}, {"s": None}]
    assert keys_of_rows(of, rows, are_keys=False) == keys_of_rows(
        of, [{"s.k0": 1, "s.k1": "a"}, {"s.k0": None, "s.k1": None}], are_keys=True
    )


def test_keys_to_be_deleted_have_the_columns_of_the_key_and_no_other() -> None:
    of = key_set(types.LongType())
    rows: list[dict[str, Any]] = [{}, {"s.k0": 1, "more": 2}]
    for row in rows:
        with pytest.raises(InvalidRowsError, match="Row 0"):
            keys_of_rows(of, [row], are_keys=True)


def test_the_last_row_of_each_key_counts_null_being_a_key_like_others() -> None:
    of = key_set(types.LongType(), types.StringType())
    pairs = [(1, "a"), (None, "a"), (1, "a"), (2, None), (None, "a"), (2, "a")]
    keys = keys_of_rows(of, [{"s.k0": a, "s.k1": b} for a, b in pairs], are_keys=True)
    assert last_of_each_key(keys).tolist() == [2, 3, 4, 5]
    ids = key_set(types.UUIDType())
    same = [{"s.k0": str(uuid.UUID(int=n))} for n in (3, 3, 4)]
    assert last_of_each_key(keys_of_rows(ids, same, are_keys=True)).tolist() == [1, 2]
