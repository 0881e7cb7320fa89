"""What maintenance leaves to readers has the rows that were there, and no more to do with than a table
that was just written; the report tells of each read."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from pyspark.sql import SparkSession

from service.reader_cost import Shape, model
from tests.benchmarks.maintained_reads import (
    CASES,
    Case,
    Files,
    Maintained,
    Pair,
    Reads,
    measure,
    report_of,
)
from tests.benchmarks.measure import Figure
from tests.benchmarks.page import Part, read_part
from tests.benchmarks.reader_tables import READS
from tests.spark import spark as spark

SMALL, _, LOW, _, WORTHWHILE, V2, _ = CASES
ROWS = 700_000  # so that a file of them is not small to a table that wants the least that it may
MOST_TIMES = 1.1
"""What a read of a table whose files were written anew may take, of one just written: in the middle."""
NOISE = 0.05
"""By which a read may be off of which all rounds are few."""


def test_where_files_were_written_anew_reads_take_what_they_take_of_a_table_just_written() -> None:
    rows = re.findall(
        r"^\| (.+) \| (?:Spark|DuckDB), \w+ \| .+ \| .+ \| (\d\.\d\d) \| \d\.\d\d \| \d\.\d\d \|$",
        read_part(Part.MAINTAINED_READS),
        re.M,
    )
    for case in CASES:
        ratios = [float(ratio) for name, ratio in rows if name == case.name]
        assert len(ratios) == 4, case
        if case.is_rewritten:
            assert median(ratios) <= MOST_TIMES, case
            assert max(ratios) <= MOST_TIMES + NOISE, case


def test_the_report_tells_how_far_off_the_model_is_about_these_tables() -> None:
    shape = Shape(4, 1_000_000, data_bytes=10**8)
    files = Files(shape, 1)
    took = {kind: model().seconds(shape, *kind) for kind in READS}

    def measured(times: float) -> Maintained:
        reads = {kind: Reads(Figure((9.0,)), Figure((times * seconds,))) for kind, seconds in took.items()}
        right = {kind: Reads(Figure((9.0,)), Figure((seconds,))) for kind, seconds in took.items()}
        return Maintained(
            SMALL, files, files, files, {kind: Pair(reads[kind], right[kind]) for kind in READS}
        )

    assert measured(0.5).off_by == pytest.approx([2, 1] * len(READS))
    report = report_of([measured(1.5), measured(2.5)], 4_000, 1, 2.0, "a machine")
    assert (
        "Of what these 16 reads took, the model tells 12 within a factor of two, and all within 2.50."
        in report
    )


def maintained(spark: SparkSession, directory: Path, case: Case, rows: int = ROWS) -> Maintained:
    """With 2% of the rows deleted by position."""
    return measure(spark, directory, replace(case, checkpoints=1, changed_share=0.025), rows, rounds=1)


@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_maintained_table_has_what_a_table_just_written_has(spark: SparkSession, tmp_path: Path) -> None:
    found = maintained(spark, tmp_path, SMALL, 4_000)
    before, after, fresh = (one.shape for one in (found.before, found.after, found.fresh))
    assert (before.data_files, before.equality_delete_files) == (12, 4)
    assert (after.data_files, after.delete_files, after.positions) == (4, 0, 0)
    assert (after.data_files, after.rows) == (fresh.data_files, fresh.rows)
    report = report_of([found], 4_000, 1, 2.0, "a machine")
    assert "| all files are small | after | 4 | 0 | 0 | 1 | 0.0% |" in report
    assert report.count("| all files are small | DuckDB, point |") == 1


@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_low_threshold_leaves_no_deletes_to_readers_of_large_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = maintained(spark, tmp_path, LOW)
    assert found.before.shape.data_files > found.before.shape.equality_delete_files > 0
    assert (found.after.shape.delete_files, found.after.shape.positions) == (0, 0)
    assert found.after.shape.rows == found.fresh.shape.rows


@pytest.mark.integration
@pytest.mark.exhaustive
def test_worthwhile_leaves_none_either_once_readers_have_paid_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert maintained(spark, tmp_path, WORTHWHILE).after.shape.positions == 0


@pytest.mark.integration
@pytest.mark.exhaustive
def test_by_standard_large_files_of_format_v2_keep_their_position_delete_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    after = maintained(spark, tmp_path, V2).after.shape
    assert (after.equality_delete_files, after.vectors) == (0, 8)
    assert 0.015 < after.positions / after.rows < 0.025
