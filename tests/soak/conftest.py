"""One Spark session and one catalog for all histories."""

import pytest
from pyspark.sql import SparkSession

from tests.soak.world import World
from tests.spark import spark as spark


@pytest.fixture(scope="session")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.create(spark, tmp_path_factory.mktemp("soak"))
