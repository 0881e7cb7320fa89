"""What maintenance leaves to readers has the rows that were there, and the report tells of each read."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.maintained_reads import measure, report_of
from tests.spark import spark as spark

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


def test_a_maintained_table_has_what_a_table_just_written_has(spark: SparkSession, tmp_path: Path) -> None:
    found = measure(spark, tmp_path, rows=4_000, checkpoints=2, rounds=1, keeps_large_files=False)
    assert (found.before.data_files, found.before.equality_delete_files) == (16, 8)
    assert (found.after.data_files, found.after.equality_delete_files, found.after.vectors) == (4, 0, 0)
    assert (found.after.data_files, found.after.vectors) == (found.fresh.data_files, found.fresh.vectors)
    report = report_of([found], 4_000, 2, 1, "a machine")
    assert "| all files are small | after | 4 | 0 | 0 | 1 |" in report
    assert report.count("| all files are small | DuckDB, point |") == 1
