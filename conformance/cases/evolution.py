"""Schemas that changed between data, deletes and the reader."""

from __future__ import annotations

import json
from decimal import Decimal

from conformance.case import Cases
from conformance.cases.rows import key, keyed, row, rows
from conformance.table import Table
from conformance.types import Row, field

CASES = Cases("Schema Evolution")
case = CASES.case


@case()
def int_became_long(t: Table) -> list[Row]:
    """Values are compared as the wider type, whichever of the two files is older than the promotion."""
    keyed(t)
    t.commit(t.data(*rows([1, -1, 2**31 - 1, None])))
    t.commit(t.equality(key(1), by=["k"]))
    keyed(t, "long")
    t.commit(t.data(*rows([2**31, -1, 1, 5], 10)))
    t.commit(t.equality(key(-1), key(2**31), by=["k"]))
    t.commit(t.equality(key(5), by=["k"], schema_id=0))
    return [row(2, 2**31 - 1), row(3, None), row(12, 1)]


@case()
def decimal_became_wider(t: Table) -> list[Row]:
    """Decimals of different precision are equal if they are the same number; files store them differently."""
    keyed(t, "decimal(9, 2)")
    t.commit(t.data(*rows([Decimal("1.00"), Decimal("-0.01"), Decimal("9999999.99")])))
    keyed(t, "decimal(20, 2)")
    t.commit(t.data(*rows([Decimal("1.00"), Decimal("123456789012345678.00")], 10)))
    t.commit(t.equality(key(Decimal("-0.01")), key(Decimal("1.00")), by=["k"]))
    return [row(2, Decimal("9999999.99")), row(11, Decimal("123456789012345678.00"))]


@case()
def float_became_double(t: Table) -> list[Row]:
    """Beside the key, a promoted column is shown as the wider type."""
    schema = field(1, "id", "long"), field(2, "k", "int")
    t.set_schema(*schema, field(3, "f", "float"))
    t.commit(t.data({"id": 0, "k": 0, "f": 0.5}, {"id": 1, "k": 1, "f": 1.5}))
    t.set_schema(*schema, field(3, "f", "double"))
    t.commit(t.data({"id": 2, "k": 1, "f": 0.1}))
    t.commit(t.equality(key(0), by=["k"]))
    return [{"id": 1, "k": 1, "f": 1.5}, {"id": 2, "k": 1, "f": 0.1}]


@case("Column Projection")
def a_renamed_column(t: Table) -> list[Row]:
    """Columns are matched by field id: data and deletes may have other names than the table."""
    keyed(t)
    t.commit(t.data(*rows([1, 2, 3])))
    t.commit(t.equality(key(1), by=["k"]))
    t.set_schema(field(1, "id", "long"), field(2, "renamed", "int"))
    t.commit(t.equality({"renamed": 2}, by=["renamed"]))
    return [{"id": 2, "renamed": 3}]


@case("Column Projection")
def two_columns_exchanged_their_names(t: Table) -> list[Row]:
    """What has the name of the key now is another column than the key."""
    t.set_schema(field(1, "id", "long"), field(2, "a", "int"), field(3, "b", "int"))
    t.commit(t.data({"id": 0, "a": 1, "b": 2}, {"id": 1, "a": 2, "b": 1}))
    t.commit(t.equality({"a": 1}, by=["a"]))
    t.set_schema(field(1, "id", "long"), field(2, "b", "int"), field(3, "a", "int"))
    t.commit(t.data({"id": 10, "b": 1, "a": 2}))
    return [{"id": 1, "b": 2, "a": 1}, {"id": 10, "b": 1, "a": 2}]


@case("Equality Delete Files")
def a_dropped_key_column(t: Table) -> list[Row]:
    """Deletes of a column that the table has no more still apply, also where it isn't shown."""
    t.set_schema(field(1, "id", "long"), field(2, "k", "int"), field(3, "v", "string"))
    t.commit(t.data(*({"id": i, "k": i, "v": "x"} for i in range(3))))
    t.commit(t.equality(key(1), by=["k"]))
    t.set_schema(field(1, "id", "long"), field(3, "v", "string"))
    t.commit(t.data({"id": 10, "v": "y"}))
    return [{"id": 0, "v": "x"}, {"id": 2, "v": "x"}, {"id": 10, "v": "y"}]


@case("Column Projection")
def a_column_of_the_same_name_as_a_dropped_one(t: Table) -> list[Row]:
    """A column that was dropped and added again is another column: deletes of the old one are of the old
    values, and those of the new one find null in older data files."""
    keyed(t)
    t.commit(t.data(*rows([1, 2])))
    t.commit(t.equality(key(1), by=["k"]))
    t.set_schema(field(1, "id", "long"), field(3, "k", "int"))
    t.commit(t.data(row(10, 1), row(11, 2)))
    t.commit(t.equality(key(2), by=["k"]))
    return [row(1, None), row(10, 1)]


@case("Equality Delete Files")
def a_column_that_older_data_lacks(t: Table) -> list[Row]:
    """Where a data file has no such column, its value is null: a delete of null takes those rows."""
    t.set_schema(field(1, "id", "long"))
    t.commit(t.data({"id": 0}, {"id": 1}))
    keyed(t)
    t.commit(t.data(row(2, None), row(3, 5)))
    t.commit(t.equality({"id": 0, "k": None}, {"id": 2, "k": None}, {"id": 1, "k": 7}, by=["id", "k"]))
    return [row(1, None), row(3, 5)]


@case("Equality Delete Files")
def every_row_of_older_data_is_null(t: Table) -> list[Row]:
    """The same with the new column alone as the key."""
    t.set_schema(field(1, "id", "long"))
    t.commit(t.data({"id": 0}, {"id": 1}))
    keyed(t)
    t.commit(t.data(row(2, None), row(3, 5)))
    t.commit(t.equality(key(None), by=["k"]))
    return [row(3, 5)]


@case("Default values", versions=(3,))
def an_initial_default_is_the_key(t: Table) -> list[Row]:
    """Where a data file has no such column, its value is the `initial-default` of the field, and a delete of
    that value takes the row; a delete of null does not."""
    t.set_schema(field(1, "id", "long"))
    t.commit(t.data({"id": 0}, {"id": 1}))
    with_default = field(2, "k", "int") | {"initial-default": 7, "write-default": 8}
    t.set_schema(field(1, "id", "long"), with_default)
    t.commit(t.data(row(2, 7), row(3, 8), row(4, None)))
    t.commit(t.equality({"id": 0, "k": 7}, {"id": 1, "k": None}, {"id": 2, "k": 7}, by=["id", "k"]))
    return [row(1, 7), row(3, 8), row(4, None)]


@case("Column Projection")
def a_key_from_the_partition(t: Table) -> list[Row]:
    """Where a data file lacks the column of an identity partition, its value is the partition's, as in data
    files that were added to the table from elsewhere."""
    t.set_schema(field(1, "id", "long"), field(2, "region", "string"))
    t.set_spec((2, "region", "identity", "string"))
    data: list[Row] = [{"id": i, "region": region} for i, region in enumerate(("eu", "eu", "us"))]
    t.commit(
        t.data(*data[:2], columns=["id"], partition={"region": "eu"}),
        t.data(*data[2:], columns=["id"], partition={"region": "us"}),
    )
    for region in ("eu", "us"):
        t.commit(
            t.equality(
                {"id": 0, "region": "eu"},
                {"id": 2, "region": "eu"},
                by=["id", "region"],
                partition={"region": region},
            )
        )
    return data[1:]


@case("Column Projection")
def data_files_without_field_ids(t: Table) -> list[Row]:
    """Columns of a data file without field ids are found by the name mapping of the table."""
    keyed(t)
    mapping = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["k", "old_name"]}]
    t.properties["schema.name-mapping.default"] = json.dumps(mapping)
    t.commit(t.data(*rows([1, 2, 3]), with_ids=False))
    t.commit(t.equality(key(2), by=["k"]))
    return [row(0, 1), row(2, 3)]
