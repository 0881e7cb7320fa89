"""Rows of ORC and Avro files, as Iceberg's Java writes them, are told as Spark reads them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.thorough import first_always
from tests.worker.exactness.test_schemas import plain_file
from worker.contract.lookups import AskedKeys
from worker.io.storage import Storage
from worker.query.answers import Answers, TablePlace
from worker.query.errors import UnreadableError
from worker.query.rows import rows_at, selected

pytestmark = pytest.mark.integration

COLUMNS = (
    "id bigint, name string, price decimal(9, 2), day date, is_open boolean, ratio double, raw binary,"
    " town struct<name: string, zip: int>, at timestamp, tags array<string>"
)


def found(table: TableBuilder, ids: list[int], select: list[str]) -> list[dict[str, Any]]:
    storage = Storage()
    place = TablePlace(table.metadata_location, storage, f"{table.metadata.location}/index", storage)
    asked = AskedKeys(keys=[{"id": one} for one in ids], key_columns=["id"])
    coverage, places = Answers().find(place, asked)
    rows = rows_at(coverage.table, places, selected(coverage.table.schema, select)).to_pylist()
    return [rows[at] for at in sorted(range(len(rows)), key=lambda at: int(places.keys[at]))]


@first_always("file_format", ["orc", "avro"])
def test_rows_of_other_formats_are_told(
    spark: SparkSession, table_name: str, file_format: Literal["orc", "avro"]
) -> None:
    table = TableBuilder.create(spark, table_name, COLUMNS, properties={"write.format.default": file_format})
    spark.sql(
        f"INSERT INTO {table_name} SELECT /*+ COALESCE(1) */ id, if(id % 5 = 0, null, concat('n', id)),"
        " cast(id as decimal(9, 2)) / 4, date_add(date'2026-01-01', cast(id as int)), id % 2 = 0, id / 8,"
        " cast(cast(id as string) as binary), named_struct('name', concat('t', id), 'zip', cast(id as int)),"
        " timestamp'2026-01-01 00:00:00', array('x') FROM range(2000)"
    )
    spark.sql(f"ALTER TABLE {table_name} RENAME COLUMN name TO called")
    spark.sql(f"ALTER TABLE {table_name} ADD COLUMN later string")
    select = ["id", "called", "price", "day", "is_open", "ratio", "raw", "town", "later"]
    ids = [1_999, 0, 1_000, 5]
    told = found(table, ids, select)
    rows = spark.table(table_name).where("id IN (0, 5, 1000, 1999)").select(*select).collect()
    by_id = {row["id"]: row.asDict(recursive=True) for row in rows}
    assert told == [by_id[one] | {"raw": bytes(by_id[one]["raw"])} for one in ids]
    assert (told[1]["called"], told[2]["price"]) == (None, Decimal("250.00"))
    assert found(table, [7], ["later"]) == [{"later": None}]
    for column in ["tags", "at"] if file_format == "orc" else ["tags"]:
        with pytest.raises(UnreadableError, match=f"not read: {column}") as refused:
            found(table, [7], [column])
        assert "without `select`" in refused.value.remedy
    if file_format == "avro":
        assert found(table, [7], ["at"])[0]["at"] is not None


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_rows_beside_a_variant_are_told_by_ids_whatever_names_are_mapped(
    spark: SparkSession, table_name: str, file_format: Literal["parquet", "avro"]
) -> None:
    """The parts of a variant are named in a file and have no ids."""
    table = TableBuilder.create(
        spark,
        table_name,
        "id bigint, name string, v variant, s struct<x: int, v: variant>,"
        " l array<struct<x: int, v: variant>>, m map<string, struct<x: int, v: variant>>",
        format_version=3,
        properties={"write.format.default": file_format},
    )
    spark.sql(
        f"INSERT INTO {table_name} SELECT id, concat('n', id), v, s, array(s), map('k', s) FROM"
        " (SELECT *, named_struct('x', cast(id as int), 'v', v) AS s FROM"
        " (SELECT id, parse_json('[1]') AS v FROM range(10)))"
    )
    spark.sql(f"ALTER TABLE {table_name} RENAME COLUMN name TO called")
    spark.sql(f"ALTER TABLE {table_name} ADD COLUMN name string")
    select = ["id", "called", "name", "s.x"]
    expected: list[dict[str, Any]] = [
        {"id": i, "called": f"n{i}", "name": None, "s": {"x": i}} for i in (3, 7)
    ]
    if file_format == "parquet":  # which alone has lists and maps
        select += ["l.element.x", "m.value.x"]
        expected = [of | {"l": [{"x": of["id"]}], "m": [("k", {"x": of["id"]})]} for of in expected]
    assert found(table, [3, 7], select) == expected
    assert found(table, [3], ["name"]) == [{"name": None}]
    parts = [{"field-id": 100 + at, "names": [name]} for at, name in enumerate(("metadata", "value", "x"))]
    top = [
        {"field-id": field.field_id, "names": [field.name], "fields": parts}
        for field in table.metadata.schema().fields
    ]
    table.java.updateProperties().set("schema.name-mapping.default", json.dumps(top)).commit()
    assert found(table, [3, 7], select) == expected


def test_a_file_that_does_not_say_which_columns_it_has_is_refused_and_what_helps_is_told(
    spark: SparkSession, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint, value bigint, at timestamp_ntz")
    table.commit(plain_file(table, [{"id": 1, "value": 2, "at": np.datetime64(1, "ns")}]))
    with pytest.raises(UnreadableError, match="has no field ids") as refused:
        found(table, [1], ["value"])
    assert "without `select`" in refused.value.remedy
    names = [{"field-id": at, "names": [name]} for at, name in enumerate(("id", "value", "at"), start=1)]
    table.java.updateProperties().set("schema.name-mapping.default", json.dumps(names)).commit()
    assert found(table, [1], ["value"]) == [{"value": 2}]
    with pytest.raises(UnreadableError, match="a column of another type"):
        found(table, [1], ["at"])
