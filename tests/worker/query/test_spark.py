"""Keys are looked up by Spark's own tasks, and found as a join of all rows finds them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icestream.spark import IndexedTable, LookupFailedError, look_up, metadata_location
from tests.factories import TableBuilder
from tests.jobs import Jobs

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[3] / "docs" / "lookups.md").read_text()
ROWS = 4_000


def rows(ids: range, version: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "region": [f"{version}-{at % 7}" for at in ids]})


@pytest.fixture
def table(spark: SparkSession, jobs: Jobs, table_name: str) -> TableBuilder:
    """Rows that an index covers, two of each key from 3,000 on; newer ones that it does not; and deletes."""
    made = TableBuilder.create(spark, table_name, "id bigint, region string", format_version=3)
    made.append(rows(range(ROWS), "a"), files=3)
    made.append(rows(range(3_000, ROWS), "b"))
    jobs.run("index", key_sets=[["id"]])
    made.delete_keys([{"id": at} for at in range(0, ROWS, 3)])
    made.append(rows(range(ROWS, ROWS + 500), "c"))
    return made


def test_spark_finds_what_a_join_of_all_rows_finds(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, table_name: str
) -> None:
    secret = "a-secret-that-nobody-prints"
    properties = {"s3.secret-access-key": secret}
    place = IndexedTable(metadata_location(spark, table_name), jobs.index_location, properties)
    asked = spark.range(ROWS - 3_500, ROWS + 3_000).where("id % 2 = 0").repartition(3)
    found = look_up(asked, place, select=["region"], partitions=4)
    told: Counter[Any] = Counter(
        (one["id"], one["region"], one["live"])
        for one in found.select("key.id", "row.region", "live").collect()
    )
    written = [rows(range(ROWS), "a"), rows(range(3_000, ROWS), "b"), rows(range(ROWS, ROWS + 500), "c")]
    by_key: dict[int, list[str]] = {}
    for one in pa.concat_tables(written).to_pylist():
        by_key.setdefault(one["id"], []).append(one["region"])
    model: Counter[Any] = Counter()
    for key in (at for at in range(ROWS - 3_500, ROWS + 3_000) if at % 2 == 0):
        is_live = key >= ROWS or key % 3 != 0
        model.update((key, region, is_live) for region in by_key.get(key, ()))
        model.update([(key, None, None)] if key not in by_key else [])
    assert told == model
    joined = spark.table(table_name).join(asked, "id").select("id", "region").collect()
    assert Counter((at, region) for at, region, is_live in told.elements() if is_live) == Counter(
        (one["id"], one["region"]) for one in joined
    )
    assert found.where("live").select("data_file", "position").distinct().count() == len(joined)
    execution = found._jdf.queryExecution()
    assert secret not in execution.toString() + execution.logical().toJSON() + repr(place)


def test_the_program_of_the_page_finds_rows(
    spark: SparkSession,
    jobs: Jobs,
    table: TableBuilder,
    table_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (program,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "look_up(" in one)
    secret = tmp_path / "secret"
    secret.write_text("a-secret")
    # A variable would have to be there when the JVM of all tests starts.
    for mine, here in (("lake.sales.customers", table_name), ("env:LAKE_SECRET_KEY", f"file:{secret}")):
        assert mine in program
        program = program.replace(mine, here)
    names = {"spark": spark, "keys": spark.range(1, 2), "index_warehouse": jobs.index_location}
    exec(program, names)
    assert re.search(r"\| *1\| *true\| *a-1\|", capsys.readouterr().out)


def test_keys_that_cannot_all_be_answered_fail_the_query(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, table_name: str
) -> None:
    properties = {"s3.secret-access-key": "parquet"}
    place = IndexedTable(metadata_location(spark, table_name), jobs.index_location, properties)
    asked = spark.range(10)
    with pytest.raises(LookupFailedError, match="no snapshot 17"):
        look_up(asked, place, snapshot_id=17)
    with pytest.raises(ValueError, match="either a branch or tag, or a snapshot"):
        look_up(asked, place, snapshot_id=17, branch="main")
    found = look_up(asked, place, select=["region"], partitions=1)
    for file in Path(table.metadata.location.removeprefix("file://")).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(PySparkException, match=r"Restore the file") as failed:
        found.collect()
    assert "LookupFailedError" in str(failed.value)
    assert ".***" in str(failed.value), "values of properties are no part of what is told"
