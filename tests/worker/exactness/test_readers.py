"""Readers that refuse a table while it holds equality deletes read it, and read it rightly, afterwards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import polars as pl
import pyiceberg
import pyspark
import pytest

from icestream.readers import reader
from tests.exactness import Exactness
from tests.factories import TableBuilder
from tests.readers import Rows, duckdb_rows, java_rows, pyiceberg_rows
from tests.thorough import V2_FIRST, first_always
from worker.process.errors import JobError

pytestmark = pytest.mark.integration
EXPECTED: dict[tuple[Any, ...], int] = {
    (0, "eu", 0): 1,
    (1, "us", 1): 1,
    (2, "eu", 1): 1,
    (3, "us", 0): 1,
    (4, "eu", 2): 1,
    (8, "eu", 2): 1,
    (9, "us", 0): 1,
}


def rows(*ids: int, value: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "region": "us" if i % 2 else "eu", "value": value} for i in ids]


def polars_rows(table: TableBuilder) -> Rows:
    """What Polars shows. Raises ValueError for a table with equality deletes."""
    return Counter(pl.scan_iceberg(table.metadata_location).collect().rows())


# Polars 1.44 calls what PyIceberg 0.12 deprecates.
@pytest.mark.filterwarnings("ignore:Call to to_vector:DeprecationWarning")
@V2_FIRST
@first_always("partitioned", [True, False])
def test_readers_without_equality_deletes_read_the_table_after_its_conversion(
    exactly: Exactness, format_version: int, partitioned: bool
) -> None:
    table = exactly.table(format_version=format_version, partitioned_by=["region"] if partitioned else [])
    (path, *_) = table.append(rows(0, 2, 4, 6, 1, 3, 5, 7))
    table.delete_positions({path: [3]})
    table.upsert(rows(1, 2, 4, value=1), key=["id"])
    table.upsert(rows(4, 8, value=2), key=["id"])
    table.delete_keys(rows(5, 7), equality_columns=["id"])
    table.append(rows(9))

    for refuse in (pyiceberg_rows, polars_rows):
        with pytest.raises(ValueError, match="does not yet support equality deletes"):
            refuse(table)
    named = [f"pyiceberg-{pyiceberg.__version__}", f"polars-{pl.__version__}"]
    named += [f"duckdb-{duckdb.__version__}", f"spark-{pyspark.__version__}"]
    known = [reader(name) for name in named]
    assert [one.before(format_version) for one in known] == ["refuses", "refuses", "reads", "reads"]
    exactly.convert(table, rows=EXPECTED)
    for read in (exactly.spark_rows, exactly.visible_rows, pyiceberg_rows, polars_rows, duckdb_rows):
        assert read(table) == EXPECTED, read.__name__
    assert {one.after(format_version) for one in known} == {"reads"}
    as_text = {tuple(map(str, row)): count for row, count in EXPECTED.items()}
    assert java_rows(table, "id", "region", "value") == as_text


def test_a_table_is_not_converted_for_readers_none_of_whom_could_read_it_then(exactly: Exactness) -> None:
    table = exactly.table(format_version=3)
    table.append(rows(0, 1))
    table.delete_keys([{"id": 1}])
    nobody = {"convert": {"readers": ["athena", "trino-475"]}}
    foretold = exactly.jobs.run("convert", dry_run=True, policy=nobody).result
    assert [(one["reader"], one["before"], one["after"]) for one in foretold["readers"]] == [
        ("athena", "refuses", "refuses"),
        ("trino-475", "refuses", "refuses"),
    ]
    assert "A conversion will be refused: none of athena, trino-475 reads" in "".join(foretold["decisions"])
    with pytest.raises(JobError, match="reads a table with deletion vectors") as refusal:
        exactly.jobs.run("convert", policy=nobody)
    assert (refusal.value.code, refusal.value.retryable) == ("no_reader", False)
    for one in ("snowflake", "trino", "starrocks-99"):
        assert exactly.jobs.run(
            "convert", dry_run=True, policy={"convert": {"readers": ["athena", one]}}
        ).result["readers"][1]["after"] in ("reads", "unknown")
    result = exactly.jobs.run("convert", policy={"convert": {"readers": ["athena", "trino-480"]}}).result
    assert [one["after"] for one in result["readers"]] == ["refuses", "reads"]
    assert exactly.spark_rows(table) == {(0, "eu", 0): 1}


def test_readers_are_told_of_what_a_conversion_leaves_to_them(exactly: Exactness) -> None:
    """A policy may name readers of which nothing is known, and a delete of a float key stays."""
    table = exactly.table("id bigint, price double")
    table.append([{"id": 0, "price": 0.5}, {"id": 1, "price": 1.5}])
    table.delete_keys([{"price": 0.5}], equality_columns=["price"])
    table.delete_keys([{"id": 1}])
    policy = {"convert": {"readers": ["pyiceberg", "spark", "starrocks"]}}
    for dry_run in (True, False):
        result = exactly.jobs.run("convert", dry_run=dry_run, policy=policy).result
        assert [one["after"] for one in result["readers"]] == ["refuses", "reads", "unknown"]
        told = "".join(result["decisions"])
        assert "1 equality delete files stay, so afterwards as well pyiceberg will not" in told
        assert "Reader starrocks: nothing is known of it, so it hinders nothing. Engines of" in told
    with pytest.raises(ValueError, match="does not yet support equality deletes"):
        pyiceberg_rows(table)
