"""What deletes and small files cost a read: how it is measured, and how right the kept model is about it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.reader_cost import Read, Reader, Shape, model
from tests.benchmarks.reader_cost import READS
from tests.benchmarks.reader_overhead import (
    COLUMNS,
    DRAWINGS,
    REGIONS,
    Compared,
    Drawn,
    Measured,
    Measurements,
    compared,
    drawn,
    kept,
    make,
    measure,
    report_of,
)
from tests.factories import sqlite_catalog
from tests.spark import spark as spark

FULL = (Reader.SPARK, Read.FULL)


def test_the_overhead_is_compared_and_not_the_whole_read() -> None:
    assert Compared(measured=1.5, told=1.25).off_by == pytest.approx(2)
    assert Compared(measured=1.25, told=1.5).off_by == pytest.approx(2)
    assert Compared(measured=1.5, told=1.0).off_by == math.inf


def test_tables_whose_reads_cost_hardly_more_are_left_out_and_the_report_tells_of_each() -> None:
    one = drawn(1, 1)[0]
    tables = [
        Measured(one, one.shape, dict.fromkeys(READS, seconds), dict.fromkeys(READS, 1.0))
        for seconds in (1.05, 1.2, 3.0)
    ]
    assert [each.measured for each in compared(model(), FULL, tables)] == [1.2, 3.0]
    report = report_of(model(), Measurements("2026-01-01", "A machine.", 2.5, tables))
    assert "its load was 2.5 on" in report
    assert report.count("\n| Spark, full | 1") == 2
    assert report.count(f"| {one.shape.data_files}; {one.shape.rows:,}; ") == 3


def test_the_kept_measurements_are_of_the_drawn_tables() -> None:
    tables = [one.drawn for one in kept().tables]
    assert tables == [one for each in DRAWINGS for one in drawn(*each)]
    assert any(one.partitions > 1 and one.columns >= 5 for one in tables)
    assert any(one.format_version == 2 and one.shape.vectors for one in tables)


@pytest.mark.parametrize("reader", Reader)
def test_the_kept_model_is_right_within_a_factor_of_three_about_the_overhead_of_a_full_read(
    reader: Reader,
) -> None:
    """Where it is more than half of what a read of the fresh table takes."""
    off = [one.off_by for one in compared(model(), (reader, Read.FULL), kept().tables, 1.5)]
    assert len(off) > 10
    assert max(off) <= 3


@pytest.mark.integration
@pytest.mark.thorough
@pytest.mark.parametrize(
    "wanted",
    [
        Drawn(Shape(3, 1_000, 2, 10, 2, 8)),
        Drawn(Shape(4, 1_000, 4, 8, 3, 9), len(REGIONS), len(COLUMNS), format_version=2),
    ],
    ids=["vectors", "position deletes of partitions"],
)
def test_a_table_of_a_shape_is_made_and_read(wanted: Drawn, spark: SparkSession, tmp_path: Path) -> None:
    catalog = sqlite_catalog(spark, f"overhead_{wanted.format_version}", tmp_path)
    table, shape = make(spark, f"{catalog.name}.db.t", wanted)
    assert replace(shape, data_bytes=0, delete_bytes=0) == wanted.shape
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    told = head.summary.additional_properties
    names = ("data-files", "records", "equality-deletes", "position-deletes")
    asked = wanted.shape
    numbers = [asked.data_files, asked.rows, asked.equality_deletes, asked.positions]
    assert [int(told[f"total-{name}"] or 0) for name in names] == numbers
    (seconds,) = measure(spark, [table], wanted)
    assert seconds.keys() == set(READS)
