"""The model of what a read costs: how it is fitted, and how right the kept one is about other tables."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from service.reader_cost import MODEL, TERMS, Read, Reader, Shape, read_model, seconds_of
from tests.benchmarks.reader_cost import (
    CHECKED,
    FITTED,
    READS,
    Kind,
    Measured,
    Measurements,
    drawn,
    factors,
    fit,
    kept,
    make,
    measure,
    model_of,
    report_of,
)
from tests.factories import sqlite_catalog
from tests.spark import spark as spark

KNOWN = {"read": 0.5, "data file": 0.01, "row": 1e-7, "equality delete file": 0.02, "vector": 0.003}


def measurements_of(coefficients: dict[str, float]) -> Measurements:
    """Without any error."""
    fitted, others = (
        [Measured(one, dict.fromkeys(READS, seconds_of(coefficients, one))) for one in drawn(30, seed)]
        for seed in (3, 4)
    )
    return Measurements("2026-01-01", "A machine.", fitted, others)


def test_a_model_of_few_terms_is_found_again() -> None:
    measurements = measurements_of(KNOWN)
    model = model_of(measurements)
    assert max(factors(model, (Reader.SPARK, Read.FULL), measurements.others)) < 1.05


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=6), st.integers(0, 1000))
def test_no_coefficient_is_below_0_whatever_was_measured(seconds: list[float], seed: int) -> None:
    assert all(one > 0 for one in fit(drawn(6, seed), seconds, list(TERMS)).values())


def test_the_report_tells_how_far_the_model_is_off() -> None:
    right = measurements_of(KNOWN)
    twice = measurements_of({name: 2 * one for name, one in KNOWN.items()})
    report = report_of(model_of(twice), right)
    assert "| Spark, full | 2.00 | 2.00 | 2.00 |" in report
    assert "| read | 1,000 ms | 1,000 ms | 1,000 ms | 1,000 ms |" in report


def test_the_kept_model_is_what_the_kept_measurements_say_of_the_drawn_tables() -> None:
    measurements = kept()
    for measured, drawings in ((measurements.fitted, FITTED), (measurements.others, CHECKED)):
        assert [one.shape for one in measured] == [shape for each in drawings for shape in drawn(*each)]
    model, again = read_model(MODEL.read_text()), model_of(measurements)
    assert (model.measured_on, model.machine) == (again.measured_on, again.machine)
    for reader, read in READS:
        assert model.coefficients[reader][read] == pytest.approx(again.coefficients[reader][read], rel=1e-6)


@pytest.mark.parametrize("kind", READS, ids=list(READS.values()))
def test_the_kept_model_is_right_within_a_factor_of_two_about_tables_it_was_not_fitted_to(
    kind: Kind,
) -> None:
    assert max(factors(read_model(MODEL.read_text()), kind, kept().others)) <= 2


@pytest.mark.integration
@pytest.mark.thorough
def test_a_table_of_a_shape_is_made_and_read(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sqlite_catalog(spark, "shapes", tmp_path)
    shape = Shape(3, 1_000, 2, 10, 2, 8)
    table = make(spark, f"{catalog.name}.db.t", shape)
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    told = head.summary.additional_properties
    names = ("total-data-files", "total-records", "total-equality-deletes", "total-position-deletes")
    assert [int(told[name] or 0) for name in names] == [3, 1_000, 10, 8]
    assert measure(spark, table, shape).keys() == set(READS)
