"""Spark and a catalog for the faults of tables, with the worker's other fixtures."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, sqlite_catalog
from tests.faults.recovery import TALLY
from tests.spark import spark as spark
from tests.worker.conftest import exactly as exactly
from tests.worker.conftest import jobs as jobs
from tests.worker.conftest import table_name as table_name


@pytest.fixture(autouse=True)
def tally(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test injected and saw, for tests.faults.figures."""
    yield
    request.node.user_properties.extend(TALLY.take())


@pytest.fixture(scope="session")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The catalog that Spark knows as `faults`."""
    # Its database is locked for a moment at a time: writers wait for each other, as those of a server do.
    spark.conf.set("spark.sql.catalog.faults.jdbc.busy_timeout", "60000")
    return sqlite_catalog(spark, "faults", tmp_path_factory.mktemp("faults"))
