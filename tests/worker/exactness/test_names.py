"""Odd names of tables, columns, partitions and places change nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import Catalog, TableBuilder
from tests.jobs import Jobs
from tests.readers import duckdb_rows
from tests.thorough import V2_FIRST, V3_FIRST, by_turns, first_always, thorough_unless

pytestmark = pytest.mark.integration
ODD = [
    'it\'s "quoted" `twice``',
    "schön 数据 🦆 e\u0301",
    " padded  twice ",
    "50% a%20b %2F %",
    "a+b=c&d;e,f(g)[h]{i}$j@k!l~m^n|o",
    "dots.in.it",
    "back\\slash",
    "a/b",
    "a?b#c",
]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fill(table: TableBuilder) -> Counter[tuple[Any, ...]]:
    """Rows of TableBuilder's and of Spark's, equality deletes and positions; returns what is visible."""
    table.append([{"id": i, "region": "eu"} for i in range(8)])
    table.spark.sql(f"INSERT INTO {table.identifier} VALUES (1, 'us'), (8, 'us'), (9, 'us')")
    table.delete_keys([{"id": 1}, {"id": 8}])
    table.spark.sql(f"DELETE FROM {table.identifier} WHERE id = 2")
    table.upsert([{"id": 3, "region": "us"}], key=["id"])
    return Counter([(0, "eu"), *((i, "eu") for i in range(4, 8)), (3, "us"), (9, "us")])


def create(spark: SparkSession, identifier: str, format_version: int, *, location: str = "") -> TableBuilder:
    spark.sql(
        f"CREATE TABLE {identifier} (id bigint, region string) USING iceberg"
        + (f" LOCATION {literal(location)}" if location else "")
        + f" TBLPROPERTIES ('format-version'='{format_version}', 'write.delete.mode'='merge-on-read')"
    )
    return TableBuilder(spark, identifier)


@pytest.mark.parametrize(
    ("format_version", "odd"),
    thorough_unless(
        # The four with what is odd to SQL, to addresses and to paths.
        lambda case: case[1] in ODD[:2] + ODD[3:6:2] and case[0] == 2 + ODD.index(case[1]) % 2,
        [(version, odd) for odd in ODD for version in (2, 3)],
    ),
)
def test_namespaces_and_tables_of_odd_names(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, format_version: int, odd: str
) -> None:
    namespace, name = f"{odd} {format_version}", f"{odd}{format_version}"
    spark.sql(f"CREATE NAMESPACE {catalog.name}.{quoted(namespace)}")
    identifier = f"{catalog.name}.{quoted(namespace)}.{quoted(name)}"
    table = create(spark, identifier, format_version)
    jobs = Jobs(spark, catalog, identifier, tmp_path / "index")
    jobs.identifier = [namespace, name]
    result = Exactness(spark, jobs, identifier).convert(table, rows=fill(table), duckdb=False)
    assert result["rows_deleted"] == 4


@V2_FIRST
@first_always("odd", ODD[::-1])  # tables of odd names lie at such places, too
def test_a_table_at_an_odd_place(exactly: Exactness, tmp_path: Path, format_version: int, odd: str) -> None:
    exactly.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {exactly.table_name.rpartition('.')[0]}")
    location = f"file:{tmp_path}/{odd}/x"
    table = create(exactly.spark, exactly.table_name, format_version, location=location)
    assert table.metadata.location == location
    result = exactly.convert(table, rows=fill(table), duckdb=False)
    assert result["rows_deleted"] == 4


ODD_COLUMNS = ["it's", 'say "so"', "tick`", "schön", "数据", "🦆", "two words", " padded ", "a/b", "a=b"]
ODD_COLUMNS += ["50%", "a%20b", "a+b", "#", "a?b", "dots.in.it", "1st", "_x20", "UPPER", "upper"]


@pytest.mark.parametrize(("format_version", "file_format"), by_turns(["parquet", "orc", "avro"]))
def test_key_columns_of_odd_names(exactly: Exactness, format_version: int, file_format: str) -> None:
    # Iceberg 1.12 can't write a backtick's column as ORC: "Unmatched quote".
    names = [name for name in ODD_COLUMNS if file_format != "orc" or "`" not in name]
    columns = ", ".join(f"{quoted(name)} bigint" for name in names)
    exactly.spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        table = exactly.table(
            columns, format_version=format_version, properties={"write.format.default": file_format}
        )
        table.file_format = file_format
        rows = [{name: i * 100 + at for at, name in enumerate(names)} for i in range(4)]
        table.append(rows)
        by_spark = [{name: 1000 + value for name, value in row.items()} for row in rows]
        values = ", ".join(str(tuple(row.values())) for row in by_spark)
        table.spark.sql(f"INSERT INTO {table.identifier} VALUES {values}")
        table.delete_keys([rows[0], by_spark[1]])
        table.delete_keys([{"dots.in.it": rows[2]["dots.in.it"]}])
        expected = Counter(tuple(row.values()) for row in (rows[1], rows[3], by_spark[0], *by_spark[2:]))
        result = exactly.convert(table, rows=expected, duckdb=False)
    finally:
        exactly.spark.conf.unset("spark.sql.caseSensitive")
    assert result["rows_deleted"] == 3
    assert result["key_sets"][0]["columns"] == names


ODD_VALUES = [
    "it's",
    '"',
    "`",
    "schön",
    "数据",
    "🦆",
    "two words",
    " ",
    " padded ",
    "a/b",
    "a=b",
    "50%",
    "%2F",
]
ODD_VALUES += [
    "%20",
    "+",
    "#",
    "?",
    "..",
    "",
    "null",
    "__HIVE_DEFAULT_PARTITION__",
    "\\",
    "a\nb",
    "\x00",
    "a:b",
]


@V3_FIRST
def test_partition_values_of_odd_text(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(
        "id bigint, region string", format_version=format_version, partitioned_by=["region"]
    )
    rows = [{"id": i, "region": region} for region in ODD_VALUES for i in range(3)]
    # By Spark, whose paths name the partition.
    table.spark.createDataFrame(rows, "id bigint, region string").writeTo(table.identifier).append()
    table.append([{"id": 3, "region": region} for region in ODD_VALUES])
    table.delete_keys([{"id": at % 3, "region": region} for at, region in enumerate(ODD_VALUES)])
    for region in ("a/b", "%2F", ""):
        table.delete_keys([{"id": 3}], partition_of={"region": region})
    expected = Counter(
        {
            (i, region): 1
            for at, region in enumerate(ODD_VALUES)
            for i in range(4)
            if i != at % 3 and not (i == 3 and region in ("a/b", "%2F", ""))
        }
    )
    result = exactly.convert(table, rows=expected, duckdb=False)
    assert duckdb_rows(table) == expected
    assert result["rows_deleted"] == len(ODD_VALUES) + 3


@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=() if set(odd) & set("%#") else pytest.mark.exhaustive) for odd in ODD]
)
def test_an_index_at_an_odd_place(exactly: Exactness, tmp_path: Path, odd: str) -> None:
    exactly.jobs.index = tmp_path / odd / "index"
    table = exactly.table()
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(4)])
    table.delete_keys([{"id": 1}])
    exactly.jobs.run("index")
    table.append([{"id": i, "region": "us", "value": 0} for i in range(4)])
    table.delete_keys([{"id": 2}])
    expected = {(i, "eu", 0): 1 for i in (0, 3)} | {(i, "us", 0): 1 for i in (0, 1, 3)}
    # The dry run finds the older data file in the index and scans the other.
    result = exactly.convert(table, rows=expected, sources=("index_and_scan", "index"))
    assert result["rows_deleted"] == 3
