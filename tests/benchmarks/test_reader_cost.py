"""The model of what a read costs: what is fitted, and that the one that is kept can be read."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.benchmarks.reader_cost import (
    COEFFICIENTS,
    READS,
    TERMS,
    Measured,
    Shape,
    cost,
    drawn,
    factors,
    fit,
    make,
    measure,
    report_of,
)
from tests.factories import sqlite_catalog
from tests.spark import spark as spark

KNOWN = {"read": 0.5, "data file": 0.01, "row": 1e-7, "equality delete file": 0.02, "vector": 0.003}


def test_a_model_of_few_terms_is_found_again() -> None:
    shapes = drawn(30, seed=3)
    found = fit(shapes, [cost(KNOWN, shape) for shape in shapes])
    others = [Measured(shape, {"read": cost(KNOWN, shape)}) for shape in drawn(20, seed=4)]
    assert max(factors(found, "read", others)) < 1.05


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=6), st.integers(0, 1000))
def test_no_coefficient_is_below_0_whatever_was_measured(seconds: list[float], seed: int) -> None:
    assert all(one > 0 for one in fit(drawn(6, seed), seconds).values())


def test_the_model_that_is_kept_says_what_deletes_and_files_cost() -> None:
    models = json.loads(COEFFICIENTS.read_text())
    assert set(models) == set(READS)
    clean, worn = Shape(4, 1_000_000), Shape(400, 1_000_000, 60, 6_000, 300, 3_000)
    for model in models.values():
        assert model.keys() <= TERMS.keys()
        assert cost(model, worn) > 1.5 * cost(model, clean) > 0


def test_the_report_tells_how_far_the_model_is_off() -> None:
    measured = [Measured(Shape(2, 1_000), dict.fromkeys(READS, 1.0)) for _ in range(3)]
    report = report_of({read: {"read": 1.5} for read in READS}, measured, measured, "A machine.")
    assert "| Spark, full | 1.50 | 1.50 | 1.50 | 3 of 3 |" in report
    assert "| read | 1,500 ms | 1,500 ms | 1,500 ms | 1,500 ms |" in report


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
