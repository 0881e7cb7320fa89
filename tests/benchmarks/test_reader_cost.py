"""The model of what a read costs: how it is fitted, and how right the kept one is about other tables."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from service.reader_cost import MODEL, Read, Reader, Shape, read_model, seconds_of
from tests.benchmarks.reader_cost import (
    MUCH,
    NOTICED,
    Compared,
    LeftOut,
    compared,
    cost_report,
    factors,
    fit,
    left_out,
    model_of,
    overhead_report,
)
from tests.benchmarks.reader_tables import (
    COLUMNS,
    DRAWINGS,
    READS,
    REGIONS,
    Drawing,
    Drawn,
    Kind,
    Measured,
    Measurements,
    drawn,
    kept,
    make,
    measure,
)
from tests.factories import sqlite_catalog
from tests.spark import spark as spark

KNOWN = {
    "read": 0.5,
    "data file": 0.01,
    "row": 1e-7,
    "data file and equality delete file": 0.002,
    "vector": 0.003,
}
FULL = (Reader.SPARK, Read.FULL)


def drawing(number: int, seed: int) -> Drawing:
    return Drawing(number, seed, 50_000, 1_000_000)


def measured_of(coefficients: dict[str, float], tables: Sequence[Drawn]) -> list[Measured]:
    """Without any error."""
    found = [Measured(one, one.shape, {}, {}) for one in tables]
    return [
        replace(
            one,
            seconds=dict.fromkeys(READS, seconds_of(coefficients, one.shape)),
            fresh_seconds=dict.fromkeys(READS, seconds_of(coefficients, one.fresh)),
        )
        for one in found
    ]


def measurements_of(coefficients: dict[str, float]) -> Measurements:
    return Measurements("2026-01-01", "A machine.", 2.5, measured_of(coefficients, drawn(drawing(30, 3))))


def test_a_model_of_few_terms_is_found_again() -> None:
    tables = left_out(measurements_of(KNOWN).tables)
    assert max(factors(FULL, tables)) < 1.05
    assert max(one.off_by for one in compared(FULL, tables, NOTICED)) < 1.2


@given(st.lists(st.floats(0.01, 100), min_size=12, max_size=12), st.integers(0, 1000))
def test_no_coefficient_is_below_0_whatever_was_measured(seconds: list[float], seed: int) -> None:
    measured = [
        Measured(one, one.shape, {FULL: seconds[2 * at]}, {FULL: seconds[2 * at + 1]})
        for at, one in enumerate(drawn(drawing(6, seed)))
    ]
    assert all(one > 0 for one in fit(FULL, measured).values())


def test_the_report_tells_how_far_the_model_is_off() -> None:
    measurements = measurements_of(KNOWN)
    one = measurements.tables[0]
    twice = replace(one, seconds={kind: 4 * seconds for kind, seconds in one.seconds.items()})
    assert max(factors(FULL, left_out([twice, *measurements.tables[1:]]))) > 3.5
    report = cost_report(model_of(measurements), measurements)
    assert "| Spark, full | 60 of 60 | 1.00 | 1.00 |" in report
    assert "| read | 500 ms | 500 ms | 500 ms | 500 ms |" in report
    assert "its load was 2.5 on" in report


def test_the_overhead_is_compared_and_not_the_whole_read() -> None:
    assert Compared(measured=1.5, told=1.25).off_by == pytest.approx(2)
    assert Compared(measured=1.25, told=1.5).off_by == pytest.approx(2)
    assert Compared(measured=1.5, told=1.0).off_by == math.inf


def test_tables_whose_reads_cost_hardly_more_are_left_out_and_the_report_tells_of_each() -> None:
    one = drawn(drawing(1, 1))[0]
    tables = [
        Measured(one, one.shape, dict.fromkeys(READS, seconds), dict.fromkeys(READS, 1.0))
        for seconds in (1.05, 1.2, 3.0)
    ]
    measurements = Measurements("2026-01-01", "A machine.", 2.5, tables)
    assert [each.measured for each in compared(FULL, left_out(tables), NOTICED)] == [1.2, 3.0]
    report = overhead_report(measurements)
    assert report.count("\n| Spark, full | 1") == 2
    assert report.count(f"| {one.shape.data_files}; {one.shape.rows:,}; ") == 3


def test_the_kept_model_is_what_the_kept_measurements_say_of_the_drawn_tables() -> None:
    measurements = kept()
    assert [one.drawn for one in measurements.tables] == [one for each in DRAWINGS for one in drawn(each)]
    model, again = read_model(MODEL.read_text()), model_of(measurements)
    assert (model.measured_on, model.machine) == (again.measured_on, again.machine)
    for reader, read in READS:
        assert model.coefficients[reader][read] == pytest.approx(again.coefficients[reader][read], rel=1e-6)


@pytest.fixture(scope="module")
def tables() -> list[LeftOut]:
    return left_out(kept().tables)


@pytest.mark.parametrize("kind", READS, ids=list(READS.values()))
def test_models_are_right_within_a_factor_of_two_about_nine_of_ten_reads_they_were_not_fitted_to(
    kind: Kind, tables: list[LeftOut]
) -> None:
    off = factors(kind, tables)
    assert sum(one <= 2 for one in off) >= 0.9 * len(off)
    assert max(off) <= 3


@pytest.mark.parametrize(("read", "share"), [(Read.FULL, 0.85), (Read.POINT, 0.6)])
@pytest.mark.parametrize("reader", Reader)
def test_they_are_so_about_most_overheads(
    reader: Reader, read: Read, share: float, tables: list[LeftOut]
) -> None:
    """Where they are more than half of what a read of the fresh table takes."""
    off = [one.off_by for one in compared((reader, read), tables, MUCH)]
    assert len(off) > 15
    assert sum(one <= 2 for one in off) >= share * len(off)
    assert sum(one <= 4 for one in off) >= 0.9 * len(off)


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "wanted",
    [
        Drawn(Shape(3, 1_000, 2, 10, 2, 8, key_columns=1)),
        Drawn(Shape(4, 1_000, 4, 8, 3, 9, key_columns=2), len(REGIONS), len(COLUMNS), format_version=2),
    ],
    ids=["vectors", "position deletes of partitions"],
)
def test_a_table_of_a_shape_is_made_and_read(wanted: Drawn, spark: SparkSession, tmp_path: Path) -> None:
    catalog = sqlite_catalog(spark, f"shapes_{wanted.format_version}", tmp_path)
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
