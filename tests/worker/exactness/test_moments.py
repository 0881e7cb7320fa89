"""Moments in files that are not stored as Iceberg writes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, _local, equality_delete_files
from tests.readers import Rows
from tests.thorough import V2_FIRST, V3_FIRST
from tests.worker.query.test_row_formats import found
from worker.query.errors import UnreadableError

pytestmark = pytest.mark.integration

INT96 = {"use_deprecated_int96_timestamps": True}
MOMENTS = [
    datetime(9999, 12, 31, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, 123_456, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1900, 1, 1, tzinfo=UTC),
]


def rows(first_id: int) -> list[dict[str, Any]]:
    moments = [*MOMENTS, None]
    return [
        {"id": first_id + at, "at": one and one.replace(tzinfo=None), "z": one}
        for at, one in enumerate(moments)
    ]


def ids(table: TableBuilder) -> Rows:
    """Of the rows that Spark shows, where each has the moments that it was given."""
    told = table.spark.sql(
        f"SELECT id, unix_micros(CAST(at AS timestamp)) AS at, unix_micros(z) AS z FROM {table.identifier}"
    ).collect()
    assert all(row["at"] == row["z"] for row in told)
    return Counter((row["id"],) for row in told)


@V3_FIRST
def test_moments_of_int96_are_keys_as_others_are(exactly: Exactness, format_version: int) -> None:
    """As Spark, Hive and Impala write them: nanoseconds of 64 bits could not say all of them."""
    table = exactly.table("id bigint, at timestamp_ntz, z timestamp", format_version=format_version)
    table.parquet = INT96
    table.append(rows(0))
    table.parquet = {}
    table.append(rows(10))
    table.delete_keys([{"at": MOMENTS[0].replace(tzinfo=None)}, {"at": None}])
    table.parquet = INT96
    table.delete_keys([{"z": MOMENTS[2]}, {"z": MOMENTS[3]}])
    expected = Counter({(1,): 1, (11,): 1})
    exactly.convert(table, rows=expected, read=ids, duckdb=False)
    assert found(table, [1], ["at", "z"]) == [{"at": MOMENTS[1].replace(tzinfo=None), "z": MOMENTS[1]}]


def in_nanoseconds(file: WrittenFile) -> WrittenFile:
    """The same file with nanoseconds in the place of microseconds."""
    local = _local(file.path)
    found = pq.read_table(local)
    fields = [field.with_type(pa.timestamp("ns")) if field.name == "at" else field for field in found.schema]
    pq.write_table(found.cast(pa.schema(fields)), local, version="2.6", store_schema=False)
    return replace(file, json={**file.json, "file-size-in-bytes": local.stat().st_size})


@V2_FIRST
def test_nanoseconds_in_a_column_of_microseconds_matter_only_where_they_are_asked_for(
    exactly: Exactness, format_version: int
) -> None:
    """Spark takes their numbers for microseconds, and Iceberg's generic reader does not."""
    table = exactly.table("id bigint, at timestamp_ntz", format_version=format_version)
    moment = MOMENTS[1].replace(tzinfo=None)
    (file,) = table.data_files([{"id": 1, "at": moment}, {"id": 2, "at": moment}])
    table.commit(in_nanoseconds(file))
    table.delete_keys([{"id": 1}])
    exactly.jobs.run("index", key_sets=[["id"]])
    result = exactly.jobs.run("convert").result
    assert (result["unconvertible"], result["rows_deleted"]) == ([], 1)
    assert found(table, [2], ["id"]) == [{"id": 2}]
    with pytest.raises(UnreadableError, match="column of another type") as refused:
        found(table, [2], ["at"])
    assert "follows the table's schema" in refused.value.remedy
    (by_moment,) = table.delete_keys([{"at": moment}])
    (left,) = exactly.jobs.run("convert").result["unconvertible"]
    assert (left["file_path"], left["code"]) == (by_moment, "unreadable_key_type")
    assert "nanoseconds" in left["reason"]
    assert len(equality_delete_files(table.spark, table.identifier)) == 1
