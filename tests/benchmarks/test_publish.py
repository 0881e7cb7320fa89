"""The benchmark of publications runs on a small table; each of its parts looks whether the rows are right."""

import pytest
from pyspark.sql import SparkSession

from tests import maven
from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.publish import WARM_UP, beside_conversion, streamed, waiting
from tests.integration.upsert_stream import PROJECT
from tests.spark import spark as spark

# Of a command that people run now and then.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def dataset(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = Dataset(spark, tmp_path_factory.mktemp("publish") / "table", Kind.INT64, 2_000)
    made.load(lambda _: None)
    return made


def test_what_flink_stages_is_published(dataset: Dataset) -> None:
    line = streamed(dataset.load_streamed(), maven.build(PROJECT), WARM_UP + 3, notifies=True)
    assert line[:3] == ["2,000", "told of each commit", 3]


def test_snapshots_that_waited_are_published_at_once(dataset: Dataset) -> None:
    assert waiting(dataset, 3)[:3] == ["2,000", "3", 1]


def test_a_publication_is_timed_beside_a_conversion(dataset: Dataset) -> None:
    (pair,) = beside_conversion(dataset, 10, adds=True, rounds=1)
    assert 0 < pair.publication.until_commit < pair.publication.in_all
    assert 0 < pair.conversion.until_commit < pair.conversion.in_all
