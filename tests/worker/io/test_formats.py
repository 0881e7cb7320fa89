"""Data files and delete files in ORC and Avro convert as those in Parquet do."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import fastavro
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DecimalType, NestedField, StringType
from pyspark.sql import SparkSession

from tests import decimals
from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs
from tests.thorough import thorough_unless
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError
from worker.keys.read import key_reader
from worker.keys.schema_fields import resolve_key_set
from worker.table.files import DataFile, PartitionKey

_COLUMNS = (
    "id bigint, region string, small int, day date, at timestamp_ntz, price decimal(9,2), raw binary,"
    " flag boolean, `a.b` string, s struct<inner: bigint>"
)


KEYS = ("id", "small region", "day at", "price raw", "flag a.b")
FORMATS = (("orc", "orc"), ("avro", "avro"), ("avro", "orc"), ("orc", "parquet"))  # of data and of deletes
ALWAYS = [
    ("orc", "orc", "day at"),
    ("orc", "orc", "flag a.b"),
    ("avro", "avro", "day at"),
    ("avro", "orc", "price raw"),
    ("orc", "parquet", "small region"),
]


def row(i: int) -> dict[str, Any]:
    """Every seventh value of each column but the first two is null."""
    values = {
        "small": i % 50,
        "day": date(1969, 12, 1 + i % 28),
        "at": datetime(1969, 12, 31, 23, 59, 59, i),  # noqa: DTZ001 - without a zone, as the column
        "price": Decimal(i - 20) / 4,
        "raw": bytes([i % 256, 0]),
        "flag": i % 2 == 0,
        "a.b": f"é{i % 30}",
        "s": {"inner": i * 2**33},
    }
    nulled = {name: None for place, name in enumerate(values) if (i + place) % 7 == 0}
    return {"id": i, "region": ("eu", "us")[i % 2], **values, **nulled}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("data", "deletes", "columns"),
    thorough_unless(
        lambda case: case in ALWAYS,
        [(*formats, columns) for formats in FORMATS for columns in KEYS],
    ),
)
def test_conversion_of_other_formats(
    spark: SparkSession, jobs: Jobs, table_name: str, data: str, deletes: str, columns: str
) -> None:
    key = columns.split()
    version: Literal[2, 3] = 3 if data == "avro" else 2
    partitioned_by = ["region"] if "region" in key else []
    table = TableBuilder.create(
        spark, table_name, _COLUMNS, format_version=version, partitioned_by=partitioned_by
    )
    table.file_format = data
    table.append([row(i) for i in range(60)], files=2)
    table.append([row(i) for i in range(30, 90)])
    table.file_format = deletes
    keys = [{name: row(i)[name] for name in key} for i in range(0, 80, 5)]
    table.delete_keys(keys)
    before = visible_rows(spark, table_name)

    if "at" in key and "orc" in (data, deletes):
        refused = jobs.run("convert").result["unconvertible"]
        assert [one["code"] for one in refused] == ["unsupported_orc_timestamp"]
        assert visible_rows(spark, table_name) == before
        return
    assert before.total() < 120
    scanned = jobs.run("convert", dry_run=True).result
    jobs.run("index")
    converted = jobs.run("convert").result
    assert [one["source"] for one in scanned["key_sets"]] == ["scan"]
    assert [one["source"] for one in converted["key_sets"]] == ["index"]
    assert converted["rows_deleted"] == scanned["rows_deleted"] == 120 - before.total()
    assert (visible_rows(spark, table_name), equality_delete_files(spark, table_name)) == (before, [])


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_damaged_avro_file_is_told_from_a_store_that_does_not_answer(tmp_path: Path, codec: str) -> None:
    fields = [{"name": n, "field-id": i, "type": "string"} for i, n in ((1, "id"), (2, "note"))]
    schema = fastavro.parse_schema({"type": "record", "name": "table", "fields": fields})
    path = tmp_path / "keys.avro"
    with path.open("wb") as sink:
        fastavro.writer(sink, schema, [{"id": f"key {i}", "note": "n" * i} for i in range(200)], codec)
    content = path.read_bytes()
    metadata = _metadata(NestedField(1, "id", StringType()))
    reader = key_reader(metadata, Storage(), resolve_key_set(metadata, [1]))
    file = DataFile(str(path), "avro", PartitionKey(0, "[]"), 200, len(content), 1)
    assert sum(batch.num_rows for batch in reader.read_data_file(file)) == 200
    for place in range(100, len(content), 97):
        path.write_bytes(content[:place] + b"\xff" * 8 + content[place + 8 :])
        try:
            batches = list(reader.read_data_file(file))
        except KeyColumnError as error:
            assert error.code == "corrupt_file"  # noqa: PT017 - not every change shows
        else:
            assert sum(batch.num_rows for batch in batches) == 200


def test_an_avro_schema_may_refer_to_a_type_that_it_has_defined(tmp_path: Path) -> None:
    decimal = {"type": "fixed", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2, "name": "d"}
    fields = [{"name": "a", "field-id": 1, "type": decimal}, {"name": "b", "field-id": 2, "type": "d"}]
    schema = fastavro.parse_schema({"type": "record", "name": "table", "fields": fields})
    path = tmp_path / "keys.avro"
    with path.open("wb") as sink:
        fastavro.writer(sink, schema, [{"a": Decimal("1.25"), "b": Decimal("-2.50")}])
    metadata = _metadata(NestedField(1, "a", DecimalType(9, 2)), NestedField(2, "b", DecimalType(9, 2)))
    file = DataFile(str(path), "avro", PartitionKey(0, "[]"), 1, path.stat().st_size, 1)
    (batch,) = key_reader(metadata, Storage(), resolve_key_set(metadata, [2])).read_data_file(file)
    assert batch.column(1).to_pylist() == [Decimal("-2.50")]


def test_decimals_of_no_scale_are_damage(tmp_path: Path) -> None:
    path = decimals.parquet_file(tmp_path / "keys.parquet", "a")
    metadata = _metadata(NestedField(1, "a", DecimalType(20, 2)))
    file = DataFile(str(path), "parquet", PartitionKey(0, "[]"), 1, path.stat().st_size, 1)
    with pytest.raises(KeyColumnError, match="scale is not from 0 to 76") as told:
        list(key_reader(metadata, Storage(), resolve_key_set(metadata, [1])).read_data_file(file))
    assert told.value.code == "corrupt_file"


def _metadata(*fields: NestedField) -> TableMetadata:
    return new_table_metadata(
        Schema(*fields), PartitionSpec(), UNSORTED_SORT_ORDER, "file:///nowhere", {"format-version": "2"}
    )
