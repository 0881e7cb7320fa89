"""The Spark session of the worker's tests, and a catalog of their own."""

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, sqlite_catalog
from tests.spark import spark as spark


@pytest.fixture(scope="session")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Spark opens a catalog once by its name, so that of other tests would be this one."""
    return sqlite_catalog(spark, "lake", tmp_path_factory.mktemp("catalog"))
