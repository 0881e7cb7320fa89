"""One service, with a worker in this process, for all histories."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.soak.world import World
from tests.spark import spark as spark
from tests.writers.served import Served


@pytest.fixture(scope="session")
def served(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served.serving(World.create(spark, tmp_path_factory.mktemp("writers"))) as served:
        yield served
