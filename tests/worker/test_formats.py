"""Data files and delete files in ORC and Avro convert as those in Parquet do."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs

pytestmark = pytest.mark.integration

_COLUMNS = (
    "id bigint, region string, small int, day date, at timestamp_ntz, price decimal(9,2), raw binary,"
    " flag boolean, `a.b` string, s struct<inner: bigint>"
)


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


@pytest.fixture
def jobs(spark: SparkSession, catalog: Catalog, table_name: str, tmp_path: Path) -> Jobs:
    return Jobs(spark, catalog, table_name, tmp_path / "index")


@pytest.mark.parametrize(
    "key",
    [
        ["id"],
        ["small", "region"],
        ["day", "at"],
        ["price", "raw"],
        ["flag", "a.b"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize(
    ("data", "deletes"), [("orc", "orc"), ("avro", "avro"), ("avro", "orc"), ("orc", "parquet")]
)
def test_conversion_of_other_formats(
    spark: SparkSession, jobs: Jobs, table_name: str, data: str, deletes: str, key: list[str]
) -> None:
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
